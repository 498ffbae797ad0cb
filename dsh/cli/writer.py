"""Standard output of a run, written without holding up the agent.

Text is queued by the observer of the log and written by a task of its own, which waits for a slow reader. When the
reader has gone, `broken` tells why, and the run is cancelled.
"""

from __future__ import annotations

import os
import stat
from collections import deque

import trio

_PIECE = 4096  # PIPE_BUF: so much fits once a pipe says it can be written


class Writer:
    """Bytes on their way to a descriptor, written in order by `run`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken: OSError | None = None
        self._queue: deque[bytes] = deque()
        self._more = trio.Event()
        self._empty = trio.Event()
        self._empty.set()
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
            if self._empty.is_set():
                self._empty = trio.Event()

    async def drained(self) -> None:
        """Return when what was put so far is written, or cannot be."""
        await self._empty.wait()

    def finish(self) -> None:
        """No more will come; `run` returns when all is written."""
        self._closing = True
        self._more.set()

    async def run(self) -> None:
        while True:
            while self._queue and self.broken is None:
                await self._write(self._queue.popleft())
            self._empty.set()
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
