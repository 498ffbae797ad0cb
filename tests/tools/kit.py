"""What tests of tools share: a host with the registry, a stand-in for an agent, and one-line calls."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dsh.core.messages import text_of
from dsh.kernel.config import Config
from dsh.kernel.host import Host
from dsh.kernel.signal import Signal
from dsh.tools.definition import Execution, ToolResult, define
from dsh.tools.pipeline import execute
from dsh.tools.registry import Tools


def make_agent(cwd: str | os.PathLike[str] | None = None, name: str = "s1") -> Any:
    """An object with the few attributes that tools know of an agent; `events` is what was appended."""
    events: list[tuple[str, Any]] = []
    session = SimpleNamespace(
        id=name,
        cwd=None if cwd is None else os.fspath(cwd),
        append=lambda kind, data: events.append((kind, data)),
        scope_key=None,
    )
    return SimpleNamespace(id=name, session=session, events=events)


class Bench:
    """A host with the given plugins, and calls through the whole pipeline as `agent`."""

    def __init__(self, cwd: Path | None = None, plugins: Iterable[str] = (), **settings: Any) -> None:
        values: Any = {key.replace("__", "."): (value, "flag") for key, value in settings.items()}
        self.host = Host(Config(values, {}))
        self.tools = Tools(self.host)
        self.host.root.provide(Tools, self.tools)
        self.host.start(plugins)
        self.agent = make_agent(cwd)

    async def call(self, name: str, signal: Signal | None = None, agent: Any = ..., **args: Any) -> ToolResult:
        execution = Execution(
            call_id="c1",
            name=name,
            arguments=args,
            agent=self.agent if agent is ... else agent,
            signal=signal or Signal(),
        )
        return await execute(self.tools, execution)

    def add(self, name: str, body: Any = None, **more: Any) -> None:
        """Register a tool that takes any arguments and returns what `body(args, execution)` returns."""
        self.tools.register(self.host.root, simple_tool(name, body, **more))


def simple_tool(name: str, body: Any = None, **more: Any) -> Any:
    async def default(args: Any, execution: Execution) -> Any:
        return "done"

    fields: dict[str, Any] = {
        "description": f"the tool {name}",
        "parameters": {},
        "output": {"type": "json"},
        "render": lambda _, value: str(value),
        "execute": body or default,
        **more,
    }
    return define(name=name, **fields)


def text(result: ToolResult) -> str:
    return text_of(result.content)


def code(result: ToolResult) -> str | None:
    """The code an error result logs, None for an uncoded one."""
    assert result.is_error
    assert result.error is not None
    info = result.error.get("info")
    return None if info is None else info["code"]
