"""Starting plugins that are not ours, so that a bad one is named in one line and the run goes on without it.

A plugin module has `setup(ctx)`; it may say `DSH_INTERFACE = 1`, the version of what this program offers to plugins,
and `name`, `description` are free for its own use. Import and `setup` are synchronous and run in the main thread under
a real timer, since nothing else gets a hanging import out of the way. Whatever a plugin that failed has registered is
undone with its context. What it prints while starting goes to standard error: standard output is the answer.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from types import FrameType, ModuleType
from typing import Any

from dsh.core.errors import ConfigError, DshError, render_chain
from dsh.kernel.found import describe
from dsh.kernel.host import Host, Plugin
from dsh.kernel.scope import Context

INTERFACE = 1
_ASYNCHRONOUS = "its setup is asynchronous, and it has to be a plain function"
# Whose handlers are afterwards what they were: those that end a run, and those that child processes and pipes need.
_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD)
_LOOK_S = 0.1  # how often a start that takes long is asked whether it should end


class PluginError(DshError):
    code = "PLUGIN_FAILED"


class _NoModule(ConfigError):
    """A module that the settings name does not exist."""


class _TooLong(BaseException):
    """The time is over. No Exception, so that a plugin does not catch it by accident."""


class _Stopped(BaseException):
    """The run was told to end."""


async def start(
    host: Host, plugins: Iterable[Plugin], interrupted: Callable[[], bool] | None = None, *, strict: bool = True
) -> list[str]:
    """Start the plugins that may be, in order, and return a line for each that was not: what a person should know.

    `interrupted` says whether the run was told to end, if the caller hears signals itself; without it a
    KeyboardInterrupt ends everything. `strict`: ConfigError for a module named in the settings that does not exist.
    """
    lines = []
    for plugin in plugins:
        host.plugins.append(plugin)
        if plugin.state == "found":
            await _start(host, plugin, interrupted, strict)
        if plugin.state == "failed":
            lines.append(f"{describe(plugin)} is not used: {plugin.reason}")
        if interrupted is not None and interrupted():
            break
    untrusted = [p for p in host.plugins if p.state == "untrusted"]
    if untrusted:
        names = ", ".join(p.name for p in untrusted)
        how = untrusted[0].reason
        lines.append(f"plugins of this project are not used, its folder is not trusted: {names} ({how})")
    return lines


async def _start(host: Host, plugin: Plugin, interrupted: Callable[[], bool] | None, strict: bool) -> None:
    seconds: float = host.config["plugins.start_timeout_ms"] / 1000
    try:
        with redirect_stdout(sys.stderr), _folder_kept():
            _limited(lambda: host.set_up(plugin, _setup_of(plugin)), seconds, interrupted)
        plugin.state = "loaded"
        return
    except _Stopped:
        plugin.state, plugin.reason = "off", "the run was interrupted"
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        plugin.state, plugin.reason = "failed", "it raised KeyboardInterrupt"
    except _TooLong:
        plugin.state, plugin.reason = "failed", f"it did not start within {seconds:g} s (plugins.start_timeout_ms)"
    except SystemExit as error:
        plugin.state, plugin.reason = "failed", f"it called sys.exit({error.code!r})"
    except DshError as error:
        if strict and isinstance(error, _NoModule):
            raise
        plugin.state, plugin.reason = "failed", render_chain(error)
    except BaseException as error:  # noqa: BLE001 - whatever foreign code raises, the run goes on without it
        plugin.state, plugin.reason = "failed", f"{type(error).__name__}: {render_chain(error)}"
    await _undo(host, plugin)


@contextmanager
def _folder_kept() -> Iterator[None]:
    """The current folder is afterwards what it was: relative paths of the command line and of tools are meant there."""
    here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)


async def _undo(host: Host, plugin: Plugin) -> None:
    plugin.registered.clear()
    if plugin.ctx is not None:
        try:
            await plugin.ctx.dispose()
        except Exception as error:  # noqa: BLE001 - the rest is undone all the same (SC-4)
            host.report(f"undoing plugin {plugin.name}", error)


# ----------------------------------------------------------------------------------------------------------- module


def _setup_of(plugin: Plugin) -> Callable[[Any], None]:
    """Import the plugin and check what it declares."""
    module = _from_file(plugin) if plugin.origin in ("user", "project") else _by_name(plugin)
    interface = getattr(module, "DSH_INTERFACE", INTERFACE)
    if interface != INTERFACE:
        raise PluginError(f"it is made for plugin interface {interface!r}, this program has {INTERFACE}")
    setup: Any = getattr(module, "setup", None)
    if not callable(setup):
        raise PluginError("it has no setup(ctx)")
    if inspect.iscoroutinefunction(setup):
        raise PluginError(_ASYNCHRONOUS)

    def made(ctx: Context) -> None:
        pending = setup(ctx)
        if inspect.iscoroutine(pending):
            pending.close()
            raise PluginError(_ASYNCHRONOUS)

    return made


def _by_name(plugin: Plugin) -> ModuleType:
    try:
        return importlib.import_module(plugin.module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if plugin.origin == "setting" and (plugin.module + ".").startswith(missing + "."):
            raise _NoModule(f"plugin {plugin.module!r} cannot be imported: {error}") from error
        raise


def _from_file(plugin: Plugin) -> ModuleType:
    """A module of a plugin folder, under its own name, which must not be that of another module: neither may be
    mistaken for the other by whoever imports it later."""
    name = plugin.module
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        raise PluginError(f"a module is already called {name!r}")
    folder = [plugin.where.rpartition("/")[0]] if plugin.where.endswith("/__init__.py") else None
    spec = importlib.util.spec_from_file_location(name, plugin.where, submodule_search_locations=folder)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


# ------------------------------------------------------------------------------------------------------------ timer


def _limited(call: Callable[[], None], seconds: float, interrupted: Callable[[], bool] | None) -> None:
    """Call; raise _TooLong inside it after so many seconds, _Stopped once `interrupted`. Signal handlers are afterwards
    what they were before. Outside the main thread, where no signal arrives, the call may take as long as it likes."""
    if threading.current_thread() is not threading.main_thread():
        call()
        return
    end = time.monotonic() + seconds

    def body() -> None:
        call()

    def look(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not body.__code__:
            frame = frame.f_back
        if frame is None:  # the call is over, the timer not yet off
            return
        if interrupted is not None and interrupted():
            raise _Stopped
        if time.monotonic() >= end:
            raise _TooLong

    handlers = {number: signal.getsignal(number) for number in _OURS}
    handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, look)
    remaining = signal.setitimer(signal.ITIMER_REAL, min(seconds, _LOOK_S), _LOOK_S)
    try:
        body()
    finally:
        signal.setitimer(signal.ITIMER_REAL, *remaining)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
