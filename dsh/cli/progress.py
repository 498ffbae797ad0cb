"""Standard error of a run: a living line on a terminal, one line a notice otherwise, nothing with `-q`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from dsh.cli.output import errors_on_terminal, fit, one_line, width_of

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_CLEAR = "\r\x1b[2K"
FRAME_S = 0.1


class Progress:
    """What the person sees while the agent works. `notice` lines stay; the living line is erased before them."""

    def __init__(self, *, quiet: bool, began: float | None = None) -> None:
        """`began` is the time.monotonic() to count from; the present one if not given."""
        self._quiet = quiet
        self._terminal = not quiet and errors_on_terminal() and os.environ.get("TERM") != "dumb"
        self._colour = self._terminal and not os.environ.get("NO_COLOR")
        self._doing = ""
        self._shown = False
        self._paused = False
        self._resumed = False  # for one frame: the end of what flowed is still on its way to the screen
        self._began = time.monotonic() if began is None else began
        self._tokens = 0
        self._frame = 0

    def notice(self, text: str) -> None:
        if not self._quiet:
            self._erase()
            self._write(f"dsh: {one_line(text)}\n")

    def failure(self, text: str) -> None:
        """A line that also `-q` shows: why there is no answer."""
        self._erase()
        self._write(f"dsh: {one_line(text)}\n")

    def tool(self, title: str, *, failed: bool, seconds: float) -> None:
        """A finished tool call, kept on a terminal."""
        if self._terminal:
            self._erase()
            mark = self._paint("31", "✗") if failed else self._paint("32", "✓")
            self._write(f"{mark} {self._paint('2', f'{_line(title, 100)} ({seconds:.1f} s)')}\n")

    def doing(self, what: str) -> None:
        self._doing = what

    def count(self, characters: int) -> None:
        self._tokens += characters

    def text_flows(self, flows: bool) -> None:
        """While the answer is being written on the same screen the living line stays away."""
        if flows and self._shown:
            self._erase()
        self._resumed = not flows and (self._paused or self._resumed)
        self._paused = flows

    def summary(self, text: str) -> None:
        if self._terminal:
            self._erase()
            self._write(self._paint("2", text) + "\n")

    @property
    def living(self) -> bool:
        """Whether there is a line to draw."""
        return self._terminal

    async def run(self) -> None:
        """Draw the living line ten times a second; returns at once where there is no terminal."""
        import trio  # who looks on from another shell draws without it

        while self._terminal:
            self.draw()
            await trio.sleep(FRAME_S)

    def draw(self) -> None:
        """The living line as it is now."""
        if self._terminal and not self._paused and not self._resumed and self._doing:
            seconds = time.monotonic() - self._began
            spin = self._paint("36", _FRAMES[self._frame % len(_FRAMES)])
            amount = f" · {self._tokens:,} characters" if self._tokens else ""
            room = _columns() - 3  # a line that wraps could not be taken back
            tail = fit(f" · {seconds:.0f} s{amount}", room)
            what = fit(_line(self._doing, 80), room - width_of(tail))
            self._write(f"{_CLEAR}{spin} {what}{self._paint('2', tail)}")
            self._shown = True
        self._frame += 1
        self._resumed = False

    def close(self) -> None:
        self._erase()
        self._terminal = False

    def _erase(self) -> None:
        if self._shown:
            self._write(_CLEAR)
            self._shown = False

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    @staticmethod
    def _write(text: str) -> None:
        if sys.stderr is None:
            return
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads the notices; the answer matters
            pass


def _columns() -> int:
    """The width of the terminal now; a person may change it while we draw."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _line(text: str, width: int) -> str:
    """One printable line of at most `width` characters."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def call_title(name: str, arguments: str) -> str:
    """How a tool call is named while it runs: the tool and its first argument."""
    import json

    try:
        given: Any = json.loads(arguments or "{}")
    except ValueError:
        given = arguments
    first = next(iter(given.values()), "") if isinstance(given, dict) else given
    return f"{name} {first}" if isinstance(first, str) else name
