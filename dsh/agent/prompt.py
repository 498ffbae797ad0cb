"""The system prompt: ordered sections, variables, and the tools a model is offered (docs/spec/system-prompt.md).

Assembled once per step; the same result goes into the request header and the request, so a prompt that does not
change costs nothing in the log and keeps the provider's prefix cache warm. Section text must not vary between steps
unless a fact did (SP-27).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from dsh.core.errors import DshError, blame
from dsh.core.lossless import freeze
from dsh.core.messages import ToolSchema, what_it_is
from dsh.kernel.hooks import contained
from dsh.kernel.host import Host
from dsh.kernel.scope import Context, Layers

T = TypeVar("T")
Text = str | Callable[["AssembleContext"], str]
_GROUP = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class PromptError(DshError):
    """PROMPT_DUPLICATE, PROMPT_TEMPLATE or PROMPT_TOOL_ORDER; fails the turn before any request (SP-12)."""

    code = "PROMPT_TEMPLATE"


class AssembleContext(NamedTuple):
    """What one assembly is for; every field may be absent (SP table)."""

    agent: Any = None
    signal: Any = None


@dataclass(slots=True)
class Assembly:
    """Sections resolved but not interpolated, tools in final order, variables. Interceptors may replace it (SP-9)."""

    sections: list[tuple[str, str]]
    tools: list[ToolSchema]
    variables: dict[str, str | None] = field(default_factory=dict)

    def render(self) -> str:
        """The system text: sections interpolated, empty ones dropped, one blank line between (SP-20)."""
        texts = (_interpolate(name, text, self.variables) for name, text in self.sections)
        return "\n\n".join(t for t in texts if t)


class Prompt:
    """A service: sections, variables and tool providers, global or of one agent."""

    def __init__(self, host: Host) -> None:
        self._hooks = host.hooks

        def changed() -> None:
            host.hooks.notify("system-prompt/change", None)

        self._sections: Layers[tuple[float, Text]] = Layers("prompt section", "PROMPT_DUPLICATE", changed)
        self._variables: Layers[Callable[[AssembleContext], str | None]] = Layers(
            "prompt variable", "PROMPT_DUPLICATE", changed
        )
        self._tools: Layers[Callable[[AssembleContext], Sequence[ToolSchema]]] = Layers(
            "tool provider", "PROMPT_DUPLICATE", changed
        )

    def section(self, ctx: Context, name: str, order: float, text: Text) -> None:
        if not math.isfinite(order):
            raise PromptError(f"prompt section {name!r} needs a finite order")
        self._sections.add(ctx, name, (order, text if isinstance(text, str) else _of_plugin(ctx, name, text)))

    def variable(self, ctx: Context, name: str, value: Callable[[AssembleContext], str | None]) -> None:
        if not _NAME.fullmatch(name):
            raise PromptError(f"{name!r} is no name for a prompt variable")
        self._variables.add(ctx, name, _of_plugin(ctx, name, value))

    def tools(self, ctx: Context, name: str, provider: Callable[[AssembleContext], Sequence[ToolSchema]]) -> None:
        self._tools.add(ctx, name, _of_plugin(ctx, name, provider))

    def assemble(self, context: AssembleContext) -> Assembly:
        """One assembly, through the interceptors (SP-1 to SP-9). A failing provider fails it."""
        key = context.agent
        entries = sorted(self._sections.merged(key).items(), key=lambda e: e[1][0])
        sections = [(name, text if isinstance(text, str) else text(context)) for name, (_, text) in entries]
        for name, text in sections:
            if not isinstance(text, str):
                raise PromptError(f"prompt section {name!r} has {what_it_is(text)} as its text")
        tools = [t for provider in self._tools.merged(key).values() for t in provider(context)]
        variables = {name: value(context) for name, value in self._variables.merged(key).items()}
        assembly = Assembly(sections, sorted(tools, key=lambda t: t["name"]), variables)
        final: Assembly = self._hooks.waterfall("system-prompt/assemble", key, lambda a, _: a, assembly, context)
        final.tools = freeze([dict(t) for t in final.tools])
        return final


def _of_plugin(ctx: Context, name: str, provider: Callable[[AssembleContext], T]) -> Callable[[AssembleContext], T]:
    """A provider whose failure names the plugin that it belongs to; one of the program as it is."""
    plugin = ctx.plugin
    if plugin is None or not plugin.foreign:
        return provider

    def named(context: AssembleContext) -> T:
        try:
            return provider(context)
        except BaseException as raised:  # noqa: BLE001 - it goes on, with a name
            error = contained("a provider of the prompt", raised)
            blame(error, plugin.name, f"prompt {name}")
            raise error  # noqa: B904 - it is the very same error

    return named


def _interpolate(section: str, text: str, variables: dict[str, str | None]) -> str:
    """Replace `{{name}}`; strict about everything that looks like a reference (SP-21 to SP-23)."""
    if "{{" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if not _NAME.fullmatch(name) or variables.get(name) is None:
            raise PromptError(f"prompt section {section!r} refers to {{{{{name}}}}}, which has no value")
        return variables[name] or ""

    return _GROUP.sub(value, text)
