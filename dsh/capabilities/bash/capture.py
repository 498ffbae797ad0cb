"""What is kept of a command's output stream: a tail in memory, and the whole in a file once the tail is not
all.

The file is made at the first overflow and starts with everything still held, so it is the stream from byte 0
(BA-23). A stream that grows beyond the file limit, or a disk that is full, costs the file and never the
command (BA-24).
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from contextlib import suppress
from itertools import count
from typing import BinaryIO, NamedTuple

_numbers = count(1)


class SpillFolder:
    """The private folder of this process for spill files, made on first need (BA-25)."""

    def __init__(self) -> None:
        self._path: str | None = None

    def open(self, label: str) -> tuple[str, BinaryIO]:
        if self._path is None or not os.path.isdir(self._path):
            import tempfile

            self._path = tempfile.mkdtemp(prefix=f"dsh-{os.getpid()}-")
        name = f"{os.getpid()}-{next(_numbers)}-{secrets.token_hex(6)}-{label}.txt"
        path = os.path.join(self._path, name)
        return path, os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", 0)


class CollectedOutput(NamedTuple):
    """`text` is the tail when `truncated`; `spill_path` is the file with the complete stream, if there is
    one."""

    text: str
    truncated: bool
    spill_path: str | None = None


class Capture:
    """Collects one stream; `cap` and `spill_cap` count bytes."""

    def __init__(self, label: str, cap: int, spill_cap: int, folder: SpillFolder) -> None:
        self._label = label
        self._cap = cap
        self._spill_cap = spill_cap
        self._folder = folder
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._total = 0
        self._file: BinaryIO | None = None
        self._path: str | None = None
        self._spilling = True
        self.truncated = False

    def feed(self, chunk: bytes) -> None:
        self._total += len(chunk)
        self._chunks.append(chunk)
        self._held += len(chunk)
        overflow = self._held - self._cap
        if overflow > 0 or self._file is not None:
            self._spill(chunk)
        while overflow > 0:
            self.truncated = True
            oldest = self._chunks.popleft()
            if len(oldest) > overflow:
                self._chunks.appendleft(oldest[overflow:])
                oldest = oldest[:overflow]
            self._held -= len(oldest)
            overflow -= len(oldest)

    def _spill(self, chunk: bytes) -> None:
        if not self._spilling:
            return
        if self._total > self._spill_cap:
            self._give_up()
            return
        try:
            if self._file is None:
                self._path, self._file = self._folder.open(self._label)
                chunk = b"".join(self._chunks)
            view = memoryview(chunk)
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """No file for this stream any more (BA-24); a failed delete leaves it behind, within the limit."""
        self._spilling = False
        self.close()
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)
            self._path = None

    def close(self) -> None:
        """End the file; one that cannot be closed properly is not reported (BA-26)."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                self._path = None

    def collected(self) -> CollectedOutput:
        """Close the file and decode the tail; a character cut at its start is left out (BA-27)."""
        self.close()
        data = b"".join(self._chunks)
        if self.truncated:
            start = 0
            while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
                start += 1
            data = data[start:]
        return CollectedOutput(data.decode("utf-8", "replace"), self.truncated, self._path)
