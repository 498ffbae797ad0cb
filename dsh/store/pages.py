"""Reading rows straight from the pages of an SQLite file, for a file that SQLite itself no longer reads.

A table is a tree of pages; SQLite gives up a whole read where one page of it is bad. Here every page is looked at by
itself: what can be reached from a root, and then the leaves that nothing reaches any more because a page above them is
gone. A row counts only if all of it fits: sizes, types, text that is UTF-8. SQLite's "Database File Format" describes
the format; files with pointer maps or another text encoding than UTF-8 are not dsh's.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = b"SQLite format 3\0"
_TABLE_LEAF, _TABLE_INNER, _INDEX_LEAF, _INDEX_INNER = 13, 5, 10, 2
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}

Value = int | float | str | bytes | None


class Entry(NamedTuple):
    """A row of a table, with its rowid, or of an index or WITHOUT ROWID table, where `rowid` is 0."""

    rowid: int
    values: tuple[Value, ...]


class _Bad(Exception):
    """What is there cannot have been written so."""


class Pages:
    """One file. `bad` collects the numbers of pages that are unreadable, wholly or in part."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(self._data[16:18], "big")
        size = 65536 if size == 1 else size
        sound = self._data[:16] == MAGIC and 512 <= size <= 65536 and size & (size - 1) == 0
        self.page_size = size if sound else 4096
        self.usable = self.page_size - (self._data[20] if sound and self._data[20] < 64 else 0)
        self.count = -(-len(self._data) // self.page_size)
        self.bad: set[int] = set()
        self._seen: set[int] = set()
        self._free = self._freelist()

    def close(self) -> None:
        self._data.close()

    def tree(self, root: int) -> Iterator[Entry]:
        """The rows of the table or index with this root, as far as they can be read."""
        waiting = [root]
        while waiting:
            number = waiting.pop()
            if number in self._seen:
                continue
            self._seen.add(number)
            try:
                kind, cells = self._cells(number)
            except _Bad:
                self.bad.add(number)
                continue
            if kind in (_TABLE_INNER, _INDEX_INNER):
                start = self._start(number)
                page = self._page(number)
                children = [*(int.from_bytes(page[at : at + 4], "big") for at in cells)]
                children.append(int.from_bytes(page[start + 8 : start + 12], "big"))
                waiting += reversed(children)
            if kind != _TABLE_INNER:
                yield from self._entries(number, kind, cells)

    def strays(self, *, indexes: bool = False) -> Iterator[Entry]:
        """The rows of leaves, of tables or also of indexes, that no tree has led to and that are not known to be free.
        For the end."""
        for number in range(2, self.count + 1):
            if number in self._seen or number in self._free:
                continue
            try:
                kind, cells = self._cells(number)
            except _Bad:
                continue
            if kind == _TABLE_LEAF or (indexes and kind == _INDEX_LEAF):
                yield from self._entries(number, kind, cells)

    # ------------------------------------------------------------------------------------------------------- pages

    def _page(self, number: int) -> bytes:
        if not 1 <= number <= self.count:
            raise _Bad
        return self._data[(number - 1) * self.page_size : number * self.page_size]

    @staticmethod
    def _start(number: int) -> int:
        return 100 if number == 1 else 0

    def _freelist(self) -> set[int]:
        free: set[int] = set()
        trunk = int.from_bytes(self._data[32:36], "big")
        while 1 < trunk <= self.count and trunk not in free:
            free.add(trunk)
            page = self._page(trunk)
            many = min(int.from_bytes(page[4:8], "big"), self.usable // 4 - 2)
            free.update(int.from_bytes(page[8 + 4 * i : 12 + 4 * i], "big") for i in range(many))
            trunk = int.from_bytes(page[:4], "big")
        return free

    def _cells(self, number: int) -> tuple[int, list[int]]:
        """What kind of page this is, and where its cells begin."""
        page, start = self._page(number), self._start(number)
        kind = page[start] if len(page) > start + 12 else 0
        if kind not in (_TABLE_LEAF, _TABLE_INNER, _INDEX_LEAF, _INDEX_INNER):
            raise _Bad
        many = int.from_bytes(page[start + 3 : start + 5], "big")
        first = start + (8 if kind in (_TABLE_LEAF, _INDEX_LEAF) else 12)
        if first + 2 * many > len(page):
            raise _Bad
        cells = list(struct.unpack_from(f">{many}H", page, first))
        if any(not first + 2 * many <= at <= self.usable - 4 for at in cells):
            self.bad.add(number)
            cells = [at for at in cells if first + 2 * many <= at <= self.usable - 4]
        return kind, cells

    def _entries(self, number: int, kind: int, cells: list[int]) -> Iterator[Entry]:
        page = self._page(number)
        for at in cells:
            try:
                yield self._entry(page, kind, at)
            except (_Bad, IndexError, struct.error, UnicodeDecodeError):
                self.bad.add(number)

    def _entry(self, page: bytes, kind: int, at: int) -> Entry:
        rowid = 0
        if kind == _INDEX_INNER:
            at += 4
        size, at = _varint(page, at)
        if kind == _TABLE_LEAF:
            rowid, at = _varint(page, at)
            most = self.usable - 35
        else:
            most = (self.usable - 12) * 64 // 255 - 23
        if size > len(self._data):
            raise _Bad
        if size <= most:
            payload = page[at : at + size]
        else:
            least = (self.usable - 12) * 32 // 255 - 23
            here = least + (size - least) % (self.usable - 4)
            here = here if here <= most else least
            payload = page[at : at + here] + self._overflow(page[at + here : at + here + 4], size - here)
        if len(payload) != size:
            raise _Bad
        return Entry(rowid - (1 << 64) if rowid >= 1 << 63 else rowid, _record(payload))

    def _overflow(self, link: bytes, size: int) -> bytes:
        pieces: list[bytes] = []
        number, room = int.from_bytes(link, "big"), self.usable - 4
        while size > 0:
            page = self._page(number)
            pieces.append(page[4 : 4 + min(size, room)])
            size -= min(size, room)
            number = int.from_bytes(page[:4], "big")
        return b"".join(pieces)


def _varint(page: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = page[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | page[at], at + 1


def _record(payload: bytes) -> tuple[Value, ...]:
    end, at = _varint(payload, 0)
    if end > len(payload):
        raise _Bad
    types = []
    while at < end:
        type_, at = _varint(payload, at)
        types.append(type_)
    if at != end:
        raise _Bad
    values: list[Value] = []
    for type_ in types:
        size = 0 if type_ == 0 else _INTEGER_BYTES.get(type_, 8 if type_ == 7 else (type_ - 12) // 2)
        piece = payload[at : at + size]
        if type_ in (10, 11) or len(piece) != size:
            raise _Bad
        at += size
        if type_ == 0:
            values.append(None)
        elif type_ in (8, 9):
            values.append(type_ - 8)
        elif type_ == 7:
            values.append(struct.unpack(">d", piece)[0])
        elif type_ < 7:
            values.append(int.from_bytes(piece, "big", signed=True))
        else:
            values.append(piece.decode() if type_ % 2 else piece)
    if at != len(payload):
        raise _Bad
    return tuple(values)
