"""Incremental decoder of `text/event-stream` bodies: bytes in, events out (LS-60).

The decoder works on lines of bytes. A line end (LF, CRLF or CR) is never part of a multi-byte character, so a
line can be decoded as a whole once it is complete, and a read that ends inside a character or between CR and
LF needs no special case beyond one flag. Pieces of an unfinished line wait in a list and are joined once: one
event of many megabytes in small reads costs each byte two copies, not a copy per read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One dispatched event; `name` is None unless an `event:` field gave one."""

    name: str | None
    data: str


class SseDecoder:
    """Feed it the body in any pieces. Comments and unknown fields are ignored, several data lines join with
    LF."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._skip_lf = False
        self._first_line = True
        self._name: str | None = None
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that these bytes complete; an event counts when its blank line has arrived."""
        if self._skip_lf and data:
            self._skip_lf = False
            if data[:1] == b"\n":
                data = data[1:]
        if not data:
            return []
        self._skip_lf = data[-1:] == b"\r"
        head, *rest = _LINE_END.split(data)
        self._pieces.append(head)
        if not rest:
            return []
        *whole, tail = rest
        events: list[SseEvent] = []
        self._line(b"".join(self._pieces), events)
        for line in whole:
            self._line(line, events)
        self._pieces = [tail]
        return events

    def pending(self) -> str:
        """The data of an event whose blank line has not come, including an unfinished last line."""
        name, data = self._name, list(self._data)
        line = b"".join(self._pieces)
        self._field(line.removeprefix(_BOM) if self._first_line else line)
        left = "\n".join(self._data)
        self._name, self._data = name, data
        return left

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if line:
            self._field(line)
            return
        if self._data:
            events.append(SseEvent(self._name, "\n".join(self._data)))
        self._name, self._data = None, []

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")
