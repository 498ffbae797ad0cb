"""The host: hooks, services by type, the root context, and the plugins that were named.

A plugin is a module with `def setup(ctx: Context) -> None`. Built-in capabilities and third-party ones are started by
the same call; third-party modules are named in the setting `plugins`, so no start-up scans installed packages.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from dsh.core.errors import ConfigError, InvariantError, render_chain
from dsh.kernel.config import Config
from dsh.kernel.hooks import Hooks
from dsh.kernel.scope import Context

T = TypeVar("T")


class Host:
    """One per process. `report(where, error)` is where contained failures go; it prints them under DSH_DEBUG=1."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.hooks = Hooks(self.report)
        self.reports: list[tuple[str, BaseException]] = []
        self._services: dict[type[Any], Any] = {}
        self.root = Context(self)

    def report(self, where: str, error: BaseException) -> None:
        self.reports = [*self.reports[-99:], (where, error)]
        if os.environ.get("DSH_DEBUG") == "1":
            sys.stderr.write(f"dsh: {where}: {render_chain(error)}\n")

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
        """Set up each named plugin in its own context; one that cannot be imported is a configuration error."""
        for name in modules:
            try:
                module = importlib.import_module(name)
            except ImportError as error:
                raise ConfigError(f"plugin {name!r} cannot be imported: {error}") from error
            setup = getattr(module, "setup", None)
            if setup is None:
                raise ConfigError(f"plugin {name!r} has no setup(ctx)")
            setup(self.root.scope())

    async def close(self) -> None:
        await self.root.dispose()
