"""Runs in the background for tests: started detached, held up where a test wants them, and never left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.provider import FakeProvider
from tests.shell.process import Dsh


@contextmanager
def background(folder: Path, fake: FakeProvider) -> Iterator[Dsh]:
    """A `Dsh`; on leaving, what is still at work on its database is killed."""
    dsh = Dsh(folder, fake, DSH_RETRY_INITIAL_DELAY_MS="1", DSH_RETRY_MAX_DELAY_MS="2")
    try:
        yield dsh
    finally:
        for (pid,) in dsh.rows("SELECT pid FROM lease") if dsh.db.exists() else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def detach(dsh: Dsh, *words: str, **more: Any) -> str:
    """Start a run that must begin; its session."""
    done = dsh("run", "--detach", *words, **more)
    assert (done.code, done.errors) == (0, ""), done
    return done.text.removesuffix("\n")


def driver(dsh: Dsh) -> int:
    """The process of the one session at work."""
    ((pid,),) = dsh.rows("SELECT pid FROM lease")
    return int(pid)


def until(path: Path) -> str:
    """A command that runs until a file is there."""
    return f"until [ -e '{path}' ]; do sleep 0.02; done; echo went on"
