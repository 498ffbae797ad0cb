"""Which tools exist and which of them an agent sees.

Definitions sit in two layers, one global and one per agent; an agent's own tool shadows the global one of its
name (TL-21). Restrictions hide global tools from one agent. Lookup, model schemas, classification and
dispatch all ask `visible`, so a hidden tool behaves exactly as an unknown one (TL-23).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from dsh.core.errors import InvariantError
from dsh.core.lossless import NotJson, freeze
from dsh.core.messages import ToolSchema
from dsh.kernel.host import Host
from dsh.kernel.scope import Context, Layers
from dsh.tools.definition import Execution, ToolDefinition
from dsh.tools.errors import JsonSchemaError
from dsh.tools.schema import require_schema

# The name of the code transport, which is never an ordinary tool (TL-20, TL-22).
RESERVED = "run_code"

Guard = Callable[[Execution], Awaitable[str | None] | str | None]
Undo = Callable[[], Awaitable[None]]


class _Restriction(NamedTuple):
    key: object
    allow: frozenset[str] | None
    deny: frozenset[str]

    def admits(self, name: str) -> bool:
        return (self.allow is None or name in self.allow) and name not in self.deny


class Tools:
    """The registry service, one per host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._layers: Layers[ToolDefinition] = Layers("tool", changed=self._announce)
        self._guards: list[tuple[object | None, Guard]] = []
        self._restrictions: list[_Restriction] = []

    def _announce(self) -> None:
        self.host.hooks.notify("tools/change", None)

    def register(self, ctx: Context, definition: ToolDefinition) -> Undo:
        """Add a tool to the context's layer; the result takes exactly this registration back (TL-20, TL-21).

        Raises JsonSchemaError for an output schema outside the subset, InvariantError for any other defect of
        the definition and for a name the layer already has.
        """
        definition = _checked(definition)
        registration = ctx.scope()
        self._layers.add(registration, definition.name, definition)
        return registration.dispose

    def guard(self, ctx: Context, guard: Guard) -> Undo:
        """Add a guard; the reason it returns denies a call that was allowed. It cannot allow one (TL-35)."""
        return _listed(ctx, self._guards, (ctx.key, guard))

    def restrict(self, ctx: Context, allow: Iterable[str] | None = None, deny: Iterable[str] | None = None) -> Undo:
        """Narrow the global tools that the context's agent sees; restrictions intersect (TL-22)."""
        if ctx.key is None:
            raise InvariantError("a restriction is made for one agent")
        allowed = None if allow is None else frozenset(allow)
        denied = frozenset(deny or ())
        if not allowed and not denied:
            raise InvariantError("a restriction names tools to allow or to deny")
        known = self._layers.own(None)
        for name in sorted((allowed or frozenset()) | denied):
            if name == RESERVED:
                raise InvariantError(f"{RESERVED} cannot be restricted")
            if name not in known:
                raise InvariantError(f"no global tool is called {name!r}; known: {', '.join(sorted(known))}")
        entry = _Restriction(ctx.key, allowed, denied)
        undo = _listed(ctx, self._restrictions, entry, self._announce)
        self._announce()
        return undo

    def guards(self, agent: object | None) -> list[Guard]:
        """The guards of a call in the order they are asked: global ones, then the agent's (TL-35)."""
        scoped = [guard for key, guard in self._guards if key is agent] if agent is not None else []
        return [guard for key, guard in self._guards if key is None] + scoped

    def visible(self, agent: object | None) -> dict[str, ToolDefinition]:
        """What `agent` can call, by name: admitted globals, shadowed in place, then its own (TL-22,
        TL-23).
        """
        own = self._layers.own(agent) if agent is not None else {}
        limits = [r for r in self._restrictions if r.key is agent]
        seen = {
            name: own.get(name, definition)
            for name, definition in self._layers.own(None).items()
            if name in own or all(limit.admits(name) for limit in limits)
        }
        return seen | own

    def find(self, agent: object | None, name: str) -> ToolDefinition | None:
        return self.visible(agent).get(name)

    def schemas(self, agent: object | None) -> list[ToolSchema]:
        """What the model is told: name, description and parameters, by name in code-point order (TL-24,
        TL-26).
        """
        return [
            {"name": name, "description": definition.description, "parameters": definition.parameters}
            for name, definition in sorted(self.visible(agent).items())
        ]

    def mode(self, agent: object | None, name: str, args: Any) -> Literal["parallel", "exclusive"]:
        """`parallel` only if the visible definition's classifier says exactly True (TL-60, AL-56)."""
        definition = self.find(agent, name)
        if definition is None or definition.is_concurrency_safe is None:
            return "exclusive"
        try:
            safe: object = definition.is_concurrency_safe(args)
        except Exception as error:  # noqa: BLE001 - a classifier that fails is a no (TL-60)
            self.host.report(f"classifier of {name}", error)
            return "exclusive"
        return "parallel" if safe is True else "exclusive"


def _checked(definition: ToolDefinition) -> ToolDefinition:
    output: Any = definition.output
    if not callable(getattr(output, "render", None)):
        raise InvariantError(f"tool {definition.name!r} has no output with a render function")
    if output.presentation_meta is not None and not callable(output.presentation_meta):
        raise InvariantError(f"tool {definition.name!r}: presentation_meta is not callable")
    require_schema(output.schema)
    budget: Any = definition.timeout_ms
    if budget is not None and not (isinstance(budget, (int, float)) and math.isfinite(budget) and budget > 0):
        raise InvariantError(f"tool {definition.name!r}: timeout_ms must be positive and finite")
    if definition.name == RESERVED:
        raise InvariantError(f"the tool name {RESERVED} is reserved")
    try:
        parameters = freeze(definition.parameters)
        schema = freeze(output.schema)
    except NotJson as error:
        raise JsonSchemaError(f"tool {definition.name!r}: {error.message}") from None
    if not isinstance(parameters, dict):
        raise JsonSchemaError(f"tool {definition.name!r}: parameters must be an object")
    return replace(definition, parameters=parameters, output=output._replace(schema=schema))


def _listed(ctx: Context, entries: list[Any], entry: Any, undone: Callable[[], None] = lambda: None) -> Undo:
    """Append `entry` under a context of its own, so that undoing it is idempotent and hits only this one
    (SC-32).
    """
    registration = ctx.scope()

    def remove() -> None:
        entries[:] = [other for other in entries if other is not entry]
        undone()

    registration.effect(remove)
    entries.append(entry)
    return registration.dispose
