"""The real model for tests: one cached installation for all runs, one server for all workers of a run.

The installation lies in `${XDG_CACHE_HOME:-~/.cache}/dsh-tests/model`, so only the first run downloads it.
The server takes its stdin from a named pipe that every worker holds open for writing: it lives as long as the
last of them, whichever started it and however they end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

# Read at import: each test gets a home of its own later.
REAL_ENVIRONMENT = {n: os.environ.get(n) for n in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
_CACHE = Path(REAL_ENVIRONMENT["XDG_CACHE_HOME"] or Path.home() / ".cache") / "dsh-tests" / "model"

_started: list[subprocess.Popen[bytes]] = []  # servers that may outlive the worker that started them


@contextlib.contextmanager
def cached_installation() -> Iterator[Path]:
    """The folder of an intact installation, with DSH_MODELS set to it inside the block."""
    from dsh.llm.local.install import install

    before = os.environ.get("DSH_MODELS")
    os.environ["DSH_MODELS"] = str(_CACHE)
    try:
        install()
        yield _CACHE
    finally:
        if before is None:
            del os.environ["DSH_MODELS"]
        else:
            os.environ["DSH_MODELS"] = before


@contextlib.contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """The base URL of the server that all users of `folder` share."""
    with _locked(folder / "local-model.lock"):
        lifeline, url = _join(folder) or _start(folder)
    try:
        yield url
    finally:
        with _locked(folder / "local-model.lock"):
            os.close(lifeline)
            _settle(folder)


def _join(folder: Path) -> tuple[int, str] | None:
    lifeline = _hold(folder)
    if lifeline is None:
        return None
    return lifeline, json.loads((folder / "local-model.json").read_text())["url"]


def _hold(folder: Path) -> int | None:
    """Open the pipe for writing; None when no server reads it."""
    try:
        return os.open(folder / "local-model.stdin", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return None
        raise


def _start(folder: Path) -> tuple[int, str]:
    from dsh.llm.local.child import base_url, configuration, launch, signal_group

    pipe = folder / "local-model.stdin"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lifeline = os.open(pipe, os.O_WRONLY | os.O_CLOEXEC)
    os.set_blocking(reading, True)
    with cached_installation():
        config = configuration(parent=0)
    os.write(lifeline, json.dumps(config).encode() + b"\n")
    with launch(config, stdin=reading) as (process, log):
        os.close(reading)
        assert process.stdout is not None
        try:
            url = base_url(process.stdout.readline(), log)
        except BaseException:
            os.close(lifeline)
            signal_group(process, signal.SIGKILL)
            process.wait()
            raise
    _started.append(process)
    (folder / "local-model.json").write_text(json.dumps({"url": url}))
    return lifeline, url


def _settle(folder: Path) -> None:
    """Give a server that has just lost its last user the time to end, so that nobody joins it meanwhile."""
    for _ in range(10):
        other = _hold(folder)
        if other is None:
            break
        os.close(other)
        time.sleep(0.05)
    for process in _started:
        process.poll()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
