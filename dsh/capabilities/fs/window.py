"""Cutting a window of lines out of a text that arrives in chunks, in bounded memory (FS-63 to FS-65).

Only the lines that are wanted are looked at; all others are merely counted. Of one line no more than the
limit is kept, however long it is.
"""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from dsh.capabilities.fs.errors import FsError


class Line(TypedDict):
    number: int
    text: str


class Limits(NamedTuple):
    """`lines` and `line_length` (in characters), `total_bytes` of a read; the configured `read.*` values."""

    lines: int
    line_length: int
    total_bytes: int


class Window:
    """Feed chunks, then `finish`. `lines`, `total` and `capped` are the outcome."""

    def __init__(self, offset: int, limit: int, limits: Limits) -> None:
        self.lines: list[Line] = []
        self.capped = False
        self._offset = offset
        self._limit = limit
        self._limits = limits
        self._bytes = 0
        self._number = 1  # of the line being read
        self._open = False  # whether that line has any text
        self._closed = False  # whether the selection has ended
        self._head = ""
        self._length = 0
        self._last = ""

    @property
    def total(self) -> int:
        """Lines seen so far; a final line end adds no empty line."""
        return self._number if self._open else self._number - 1

    def feed(self, text: str) -> None:
        breaks = text.count("\n")
        if self._closed or self._number + breaks < self._offset:
            self._number += breaks
            self._open = not text.endswith("\n")
            return
        *whole, rest = text.split("\n")
        for part in whole:
            if self._wanted():
                self._extend(part)
                self._take()
            self._number += 1
        self._open = rest != "" or (self._open and not whole)
        if rest and self._wanted():
            self._extend(rest)

    def finish(self) -> None:
        """End of the text. Raises FS_NOT_FOUND when the window starts beyond it (FS-63)."""
        if self._open and self._wanted():
            self._take()
        if self._offset > max(self.total, 1):
            raise FsError(f"offset {self._offset} is beyond the end: the file has {self.total} lines", "FS_NOT_FOUND")

    def _wanted(self) -> bool:
        return not self._closed and self._number >= self._offset

    def _extend(self, part: str) -> None:
        if part:
            self._head += part[: self._limits.line_length - len(self._head)]
            self._length += len(part)
            self._last = part[-1]

    def _take(self) -> None:
        length = self._length - (self._last == "\r")
        text = self._head[:length]
        if length > self._limits.line_length:
            text += f"... (line truncated to {self._limits.line_length} chars)"
        self._head, self._length, self._last = "", 0, ""
        size = len(text.encode()) + (1 if self.lines else 0)
        if self._bytes + size > self._limits.total_bytes:
            self.capped = self._closed = True
            return
        self._bytes += size
        self.lines.append({"number": self._number, "text": text})
        self._closed = len(self.lines) >= self._limit
