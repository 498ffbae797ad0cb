"""Standard output of a run: the answer and nothing else, or with `--json` one object a line.

Writing waits for a reader without holding up the agent: text is queued by the observer of the log and written by a
task of its own. When the reader has gone, `broken` tells why, and the run is cancelled.

A step's text may turn out to be a remark before a tool call, or belong to a try that fails and is made again; neither
is the answer, and what is in a pipe cannot be taken back. So into anything but a terminal a step's text is held for
the first second or 2,000 characters, and flows from then on. What was held of a remark or a failed try is dropped when
the next step begins; if none does, it is all there is, and goes out (HD-4, HD-9). A terminal shows everything at once,
with control characters made visible: what a model says must not drive it.
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque

import trio

from dsh.cli.output import printable

HOLD_S = 1.0
HOLD_CHARS = 2000
_PIECE = 4096  # PIPE_BUF: so much fits once a pipe says it can be written


class Writer:
    """Bytes on their way to a descriptor, written in order by `run`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken: OSError | None = None
        self._queue: deque[bytes] = deque()
        self._more = trio.Event()
        self._closing = False
        try:
            self._waits = not stat.S_ISREG(os.fstat(fd).st_mode) and not self._is_device()
        except OSError:
            self._waits = False

    def _is_device(self) -> bool:
        return stat.S_ISCHR(os.fstat(self.fd).st_mode) and not os.isatty(self.fd)

    def put(self, text: str) -> None:
        if text and self.broken is None:
            self._queue.append(text.encode("utf-8", "replace"))
            self._more.set()

    def finish(self) -> None:
        """No more will come; `run` returns when all is written."""
        self._closing = True
        self._more.set()

    async def run(self) -> None:
        while True:
            while self._queue and self.broken is None:
                await self._write(self._queue.popleft())
            if self._closing or self.broken is not None:
                return
            await self._more.wait()
            self._more = trio.Event()

    async def _write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            try:
                if self._waits:
                    await trio.lowlevel.wait_writable(self.fd)
                at += os.write(self.fd, data[at : at + _PIECE])
            except OSError as error:
                self.broken = error
                return


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

    def __init__(self, writer: Writer, *, live: bool) -> None:
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
        now = trio.current_time()
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
        self._end_line()

    def message_ends(self, *, is_answer: bool) -> None:
        """The step's text is complete: the answer, or a remark before tool calls."""
        if is_answer:
            self._release()

    def turn_ends(self, answer: str | None, *, completed: bool) -> None:
        """The rest of what was said, or all of it if nothing was written. One newline after an answer, an empty one
        too; nothing after a failure that said nothing (HD-4, HD-9)."""
        self._release()
        if not self._last:
            self._out(answer or ("\n" if completed else ""))
        self._end_line()

    def _end_line(self) -> None:
        if self._last not in ("", "\n"):
            self._out("\n")
