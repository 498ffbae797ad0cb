"""The real program in a process of its own, and histories to point it at."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.history import History

ROOT = Path(__file__).resolve().parent.parent.parent
DSH = [sys.executable, "-m", "dsh"]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A database at $DSH_DB, closed again when the test is over."""
    made = History(tmp_path / "dsh.db")
    yield made
    made.db.close()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def dsh() -> Run:
    """Run the program to its end, with captured text and nothing on standard input."""

    def run(*arguments: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
        more.setdefault("stdin", subprocess.DEVNULL)
        if "stdout" not in more:
            more["stdout"] = subprocess.PIPE
        return subprocess.run(
            [*DSH, *arguments],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            encoding="utf-8",
            timeout=60,
            check=False,
            **more,
        )

    return run


@pytest.fixture
def terminal() -> Callable[..., tuple[int, str]]:
    """Run the program on a pseudo-terminal of 80 columns: exit code, and all that it showed."""

    def run(*arguments: str, **env: str) -> tuple[int, str]:
        import pty
        import termios

        main, side = pty.openpty()
        termios.tcsetwinsize(side, (24, 80))
        process = subprocess.Popen(
            [*DSH, *arguments],
            stdin=side,
            stdout=side,
            stderr=side,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **env},
        )
        os.close(side)
        shown = b""
        try:
            while piece := os.read(main, 65536):
                shown += piece
        except OSError:  # how Linux tells that the other side is closed
            pass
        os.close(main)
        return process.wait(timeout=60), shown.decode().replace("\r\n", "\n")

    return run
