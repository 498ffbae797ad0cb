"""The variables a command runs with: the harness's own environment without secrets, plus what the harness
tells it.

`ShellEnvironment` collects the `DSH_*` variables of one call: three of our own and those of registered
contributors, which declare their names beforehand so that they can be listed without running anything (BA-10
to BA-12).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from dsh.core.errors import InvariantError, ToolError
from dsh.kernel.config import home
from dsh.kernel.scope import Context
from dsh.tools.definition import Agent

_SECRET = re.compile("KEY|SECRET|TOKEN", re.IGNORECASE)
_NAME = re.compile("DSH_[A-Z][A-Z0-9_]*")
_RESERVED = frozenset({"DSH_HOME", "DSH_SHELL", "DSH_SESSION_ID"})
_PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}

Resolve = Callable[["Agent | None"], Mapping[str, str]]


def compose(env: Mapping[str, str] | None = None, dsh_env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a command (BA-6, BA-7); a name in the wrong map is an error (BA-8)."""
    for name in env or ():
        if name.startswith("DSH_"):
            raise ToolError(f"{name} belongs to the harness and cannot be set for a command")
    for name in dsh_env or ():
        if not name.startswith("DSH_"):
            raise ToolError(f"{name} is not a DSH_ variable")
    base = {k: v for k, v in os.environ.items() if not k.startswith("DSH_") and not _SECRET.search(k)}
    return {**base, **_PLAIN, **(env or {}), **(dsh_env or {})}


class _Contributor(NamedTuple):
    declared: Mapping[str, str]
    resolve: Resolve


class ShellEnvironment:
    """The service that makes the `DSH_*` variables of a call."""

    def __init__(self) -> None:
        self._contributors: dict[str, _Contributor] = {}

    def contribute(self, ctx: Context, name: str, declared: Mapping[str, str], resolve: Resolve) -> None:
        """Register variables: `declared` maps names to descriptions, `resolve` gives values (BA-11)."""
        if not name.strip() or name in self._contributors:
            raise InvariantError(f"a contributor of shell variables needs a name of its own, not {name!r}")
        taken = _RESERVED.union(*(c.declared for c in self._contributors.values()))
        for key, description in declared.items():
            if not _NAME.fullmatch(key) or key in taken or not description.strip():
                raise InvariantError(f"{key} cannot be declared by {name}: malformed, taken, or without description")
        entry = _Contributor(dict(declared), resolve)

        def undo() -> None:
            if self._contributors.get(name) is entry:
                del self._contributors[name]

        ctx.effect(undo)
        self._contributors[name] = entry

    def declarations(self) -> dict[str, str]:
        """Every contributed variable with its description, by name; runs no resolver (BA-12)."""
        entries = [item for c in self._contributors.values() for item in c.declared.items()]
        return dict(sorted(entries))

    def collect(self, agent: Agent | None) -> Mapping[str, str]:
        """The variables of one call, read-only and sorted (BA-10, BA-12)."""
        values = {"DSH_HOME": str(home()), "DSH_SHELL": "1"}
        if agent is not None:
            values["DSH_SESSION_ID"] = agent.session.id
        for name, contributor in sorted(self._contributors.items()):
            for key, value in contributor.resolve(agent).items():
                if key not in contributor.declared or not isinstance(value, str):
                    raise InvariantError(f"{name} gave {key}, which it did not declare, or which is no text")
                values[key] = value
        return MappingProxyType(dict(sorted(values.items())))
