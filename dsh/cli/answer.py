"""Standard output of a run: the answer and nothing else, or with `--json` one object a line.

Writing waits for a reader without holding up the agent: text is queued by the observer of the log and written by a
task of its own. When the reader has gone, `broken` tells why, and the run is cancelled.

A step's text may turn out to be a remark before a tool call, or belong to a try that fails and is made again; neither
is the answer, and what is in a pipe cannot be taken back. So into anything but a terminal a step's text is held for
the first second or 2,000 characters, and flows from then on. A remark that ends within that goes nowhere; a terminal
shows everything as it comes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque

import trio

HOLD_S = 1.0
HOLD_CHARS = 2000
_PIECE = 4096  # PIPE_BUF: so much fits once a pipe says it can be written


class Writer:
    """Bytes on their way to a descriptor, written in order by `run`."""

    def __init__(self, fd: int = 1) -> None:
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

    @property
    def reader_left(self) -> bool:
        return self.broken is not None and self.broken.errno in (errno.EPIPE, errno.ECONNRESET)


class Answer:
    """The text form: what of the deltas goes out, and when."""

    def __init__(self, writer: Writer, *, live: bool) -> None:
        self._writer = writer
        self._live = live
        self._held: list[str] = []
        self._held_chars = 0
        self._since: float | None = None
        self._last = ""  # the last character written

    def delta(self, text: str) -> None:
        if self._live:
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

    def _out(self, text: str) -> None:
        if text:
            self._writer.put(text)
            self._last = text[-1]

    def step_ends(self, *, is_answer: bool) -> None:
        """The step's text is complete: it was (part of) the answer, or a remark."""
        if is_answer:
            self._release()
        self._held.clear()
        self._held_chars = 0
        self._since = None
        if not is_answer:
            self._end_line()

    def turn_ends(self, *, completed: bool) -> None:
        """One newline after an answer, an empty one too; nothing after a failure that said nothing (HD-4)."""
        if completed and not self._last:
            self._out("\n")
        self._end_line()

    def _end_line(self) -> None:
        if self._last not in ("", "\n"):
            self._out("\n")
