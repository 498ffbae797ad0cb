"""Standard output of a run: the answer and nothing else, or with `--json` one object a line.

A step's text may turn out to be a remark before a tool call, or belong to a try that fails and is made again; neither
is the answer, and what is in a pipe cannot be taken back. So into anything but a terminal a step's text is held for
the first second or 2,000 characters, and flows from then on. What was held of a remark or a failed try is dropped when
the next step begins; if none does, it is all there is, and goes out (HD-4, HD-9). A terminal shows everything at once,
with control characters made visible: what a model says must not drive it.
"""

from __future__ import annotations

import os
import select
import time
from typing import Protocol

from dsh.cli.output import printable

HOLD_S = 1.0
HOLD_CHARS = 2000


class Sink(Protocol):
    """Where the text goes: the Writer of a run, or the plain descriptor of a command that only looks on."""

    def put(self, text: str) -> None: ...


def write_all(fd: int, text: str) -> None:
    """Write everything, waiting where the descriptor does not block by itself; OSError as it comes."""
    data = text.encode("utf-8", "replace")
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [])


class Answer:
    """The text form: what of the deltas goes out, and when."""

    def __init__(self, writer: Sink, *, live: bool) -> None:
        self._writer = writer
        self.live = live
        self._held: list[str] = []
        self._held_chars = 0
        self._since: float | None = None
        self._last = ""  # the last character written
        self._carry = ""

    def delta(self, text: str) -> None:
        if self.live:
            self._out(text)
            return
        now = time.monotonic()
        if self._since is None:
            self._since = now
        self._held.append(text)
        self._held_chars += len(text)
        if now - self._since >= HOLD_S or self._held_chars >= HOLD_CHARS:
            self._release()
            self._since = float("-inf")  # flows until the step ends

    def _release(self) -> None:
        self._out("".join(self._held))
        self._held.clear()
        self._held_chars = 0

    def _drop(self) -> None:
        self._held.clear()
        self._held_chars = 0
        self._since = None

    def _out(self, text: str) -> None:
        if self.live:
            text = self._carry + text
            self._carry = "\r" if text.endswith("\r") else ""  # a CRLF may be cut between two deltas
            text = printable(text.removesuffix("\r"))
        if text:
            self._writer.put(text)
            self._last = text[-1]

    def step_begins(self) -> None:
        """What is still held belongs to a remark or to a try that failed: it was not the answer."""
        self._drop()
        self.end_line()

    def message_ends(self, *, is_answer: bool) -> None:
        """The step's text is complete: the answer, or a remark before tool calls."""
        if is_answer:
            self._release()
        elif self.live:  # else the living line would be drawn over it
            self.end_line()

    def turn_ends(self, answer: str | None, *, completed: bool) -> None:
        """The rest of what was said, or all of it if nothing was written. One newline after an answer, an empty one
        too; nothing after a failure that said nothing (HD-4, HD-9)."""
        self._release()
        if not self._last:
            self._out(answer or ("\n" if completed else ""))
        self.end_line()

    def end_line(self) -> None:
        """What follows begins a line of its own."""
        if self._last not in ("", "\n"):
            self._out("\n")
