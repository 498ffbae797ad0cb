"""Importing click, trio and httpx without the parts that dsh never uses.

The three are most of a start-up, and a fifth of that is for UUID parameters, for DTLS, for a synchronous HTTP client,
for asyncio, for a command line, and for naming threads (which runs `ldconfig`). While one of them is imported,
stand-ins take the place of those modules. Afterwards the stand-ins are gone from `sys.modules`, so the real modules
can be imported as ever, and what a library took from a stand-in fetches the real thing when it is used: `httpx.Client`
and `trio.DTLSEndpoint` work, a moment later. A library that was imported already is left alone.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn


def load_click() -> None:
    """Import click; later imports find it ready."""
    if "click" not in sys.modules:
        with _in_place({"uuid": _Deferred("uuid")}):
            import click  # noqa: F401


def load_trio() -> None:
    """Import trio; later imports find it ready."""
    if "trio" not in sys.modules:
        with _in_place({"trio._dtls": _Deferred("trio._dtls"), **_no_ctypes()}):
            import trio  # noqa: F401


def load_httpx() -> None:
    """Import trio, then httpx and its transport; later imports find them ready."""
    load_trio()
    if "httpx" in sys.modules or "httpcore" in sys.modules:
        return
    # Both are optional to the libraries, which catch the ImportError: httpx's command line pulls rich and pygments
    # where they are installed, anyio would be a second backend beside trio. None is how an import is made to fail.
    absent = dict.fromkeys(("httpx._main", "anyio"))
    names = ("httpcore._sync", "httpcore._sync.connection_pool", "httpcore._backends.sync")
    stand_ins = {**absent, **{name: _Deferred(name) for name in names}}
    with (
        # what httpx has these for a run does not do; urllib's modules look two values up in http.client
        _leave_asleep("certifi"),
        _leave_asleep("email.message"),
        _leave_asleep("http.client", HTTP_PORT=80, HTTPSConnection=_Later("http.client", "HTTPSConnection")),
        _in_place(stand_ins),
    ):
        import httpcore  # noqa: F401  (httpx imports it on first use, which would be after the hiding)
        import httpx  # noqa: F401


class _Asleep(ModuleType):
    """A module that is imported when something is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system itself looks at modules
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _leave_asleep(name: str, **shown: Any) -> Iterator[None]:
    """Put an `_Asleep` in the place of a module that is not imported yet. For now it has what is `shown`; it stays."""
    if name in sys.modules:
        yield
        return
    module = sys.modules[name] = _Asleep(name)
    package, _, own = name.rpartition(".")
    if package:
        vars(importlib.import_module(package))[own] = module
    vars(module).update(shown)
    try:
        yield
    finally:
        for attribute in shown:
            vars(module).pop(attribute, None)


class _Later:
    """A class or function of a module that is imported when it is called or an object is asked whether it is one."""

    def __init__(self, module: str, name: str) -> None:
        self._place = module, name

    def _real(self) -> Any:
        module, name = self._place
        return getattr(importlib.import_module(module), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._real())


class _Deferred(ModuleType):
    """A stand-in: every name in it is a `_Later`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # makes it a package, so that its submodules' stand-ins are asked for

    def __getattr__(self, name: str) -> _Later:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Later(self.__name__, name)


def _no_ctypes() -> dict[str, ModuleType]:
    """A ctypes that finds no library. trio asks it for a way to name worker threads and does without."""

    def refuse(name: str) -> NoReturn:
        raise OSError(f"{name} is not looked for")

    ctypes, util = ModuleType("ctypes"), ModuleType("ctypes.util")
    ctypes.__dict__.update(__path__=(), util=util, CDLL=refuse)
    util.__dict__.update(find_library=lambda name: None)
    return {"ctypes": ctypes, "ctypes.util": util}


@contextmanager
def _in_place(stand_ins: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Let these stand for modules that are not imported yet, then take them away."""
    placed = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(placed)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in placed:
            sys.modules.pop(name, None)
