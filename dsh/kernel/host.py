"""The host: hooks, services by type, the root context, and the plugins.

A plugin is a module with `def setup(ctx: Context) -> None`. Built-in capabilities and third-party ones are started by
the same call; what it takes to find the others, and to live with their faults, is in found.py and plugins.py.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, cast

from dsh.core.errors import InvariantError, blame, blamed, blaming, only, render_chain
from dsh.kernel.config import Config
from dsh.kernel.hooks import CheckedHooks, Hooks
from dsh.kernel.points import POINTS
from dsh.kernel.scope import Context

T = TypeVar("T")
MANY_FAILURES = 5
_END = "its end"
State = Literal["found", "loaded", "off", "failed", "untrusted"]


class Plugin:
    """One plugin: where it comes from, what became of it, and what it has registered, as (what, name) in order.

    `origin` is built-in, installed, setting, user or project; `where` the package (with `version`) or the file.
    """

    __slots__ = ("ctx", "module", "name", "origin", "reason", "registered", "state", "version", "where")

    def __init__(self, name: str, origin: str, module: str, where: str = "", version: str = "") -> None:
        self.name = name
        self.origin = origin
        self.module = module
        self.where = where
        self.version = version
        self.state: State = "found"
        self.reason = ""
        self.registered: list[tuple[str, str]] = []
        self.ctx: Context | None = None

    @property
    def foreign(self) -> bool:
        return self.origin != "built-in"


class Host:
    """One per process. `report(where, error)` is where contained failures go; it prints them under DSH_DEBUG=1.

    `notice` is given a line for each plugin that failed at a hook point, so that its user learns of it: once per plugin
    and point, and few in all, since a listener of each chunk fails for each chunk.
    """

    def __init__(self, config: Config, notice: Callable[[str], None] | None = None) -> None:
        self.config = config
        self._notice = notice
        self._told: set[tuple[str, str]] = set()
        self.hooks = (CheckedHooks if os.environ.get("DSH_CHECK") == "1" else Hooks)(self.report)
        self.plugins: list[Plugin] = []  # in the order of their start
        self.reports: list[tuple[str, BaseException]] = []
        self._services: dict[type[Any], Any] = {}
        self.root = Context(self)

    def report(self, where: str, error: BaseException) -> None:
        self.reports = [*self.reports[-99:], (where, error)]
        if os.environ.get("DSH_DEBUG") == "1":
            sys.stderr.write(f"dsh: {where}: {render_chain(error)}\n")
        elif self._notice is not None and (plugin := blamed(error)) is not None:
            self._tell(plugin, where, error)

    def _tell(self, plugin: str, where: str, error: BaseException) -> None:
        if (where not in POINTS and where != _END) or where == "session/created":  # else it is told as the end of a
            return  # turn or of a session
        if (plugin, where) in self._told or len(self._told) > MANY_FAILURES:
            return
        self._told.add((plugin, where))
        assert self._notice is not None
        if len(self._told) > MANY_FAILURES:
            self._notice("more plugins failed (DSH_DEBUG=1 shows all)")
        else:
            said = render_chain(only(error)).removeprefix(blaming(error, ""))
            self._notice(f"plugin {plugin} failed at {where}: {said}")

    def provide(self, kind: type[T], service: T) -> Callable[[], None]:
        if kind in self._services:
            raise InvariantError(f"a {kind.__name__} is already provided", code="DUPLICATE_NAME")
        self._services[kind] = service

        def undo() -> None:
            if self._services.get(kind) is service:
                del self._services[kind]

        return undo

    def get(self, kind: type[T]) -> T:
        try:
            return cast(T, self._services[kind])
        except KeyError:
            raise InvariantError(f"nothing provides a {kind.__name__}") from None

    def find(self, kind: type[T]) -> T | None:
        """The service if some plugin provides it; optional parts of the program ask this way."""
        return cast("T | None", self._services.get(kind))

    def start(self, modules: Iterable[str]) -> None:
        """Set up modules of the program itself, each in its own context; one that fails is a fault of the program.
        Those named in `plugins.disabled` are left out."""
        for module in modules:
            plugin = Plugin(module.rpartition(".")[2], "built-in", module)
            self.plugins.append(plugin)
            if plugin.name in self.config["plugins.disabled"]:
                plugin.state = "off"
                continue
            self.set_up(plugin, importlib.import_module(module).setup)
            plugin.state = "loaded"

    def set_up(self, plugin: Plugin, setup: Callable[[Context], None]) -> None:
        """Call a plugin's `setup` with a context of its own."""
        plugin.ctx = ctx = self.root.scope()
        ctx.plugin = plugin
        setup(ctx)

    async def close(self) -> None:
        """End the plugins, the last first, then the rest. A plugin that fails at its end is no failure of a run."""
        for plugin in reversed([p for p in self.plugins if p.foreign]):
            try:
                if plugin.ctx is not None:
                    await plugin.ctx.dispose()
            except Exception as error:  # noqa: BLE001 - the answer is there
                blame(error, plugin.name)
                self.report(_END, error)
        await self.root.dispose()
