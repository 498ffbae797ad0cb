"""Text that is stored compressed, and how views get at it.

A packed block is zstd-compressed UTF-8. The views read it through SQLite's own function `likely`, which gives back its
argument: our connections have another one under that name, which decompresses. So the views work in a stock `sqlite3`
shell too, where packed text is empty, and nothing has to be installed there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import apsw

from dsh.core.errors import StoreError

_KEPT = 16  # blocks: events that follow each other lie in the same one
_LEVEL = 12

BLOCK_BYTES = 256_000  # of text in a block, about: what is read to get at any of its events


def compress(text: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True).compress(text)


def _unpacked(body: bytes) -> bytes | None:
    import zstandard

    try:
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError:
        return None


def part(body: str | bytes, start: int, size: int | None) -> str | None:
    """What a piece stands for: the whole of a shared block (`size` None), or some bytes of a packed one; None if that
    cannot be read."""
    if size is None:
        return body if isinstance(body, str) else None
    text = _unpacked(body) if isinstance(body, bytes) else None
    if text is None or len(text) < start + size:
        return None
    return text[start : start + size].decode("utf-8", "replace")


def register(db: apsw.Connection) -> None:
    """Have this connection's views read packed text."""
    kept: OrderedDict[bytes, bytes] = OrderedDict()

    def likely(*values: Any) -> Any:
        (value,) = values
        if not isinstance(value, bytes):
            return 1 if value is None else value
        text = kept.get(value)
        if text is not None:
            kept.move_to_end(value)
            return text
        text = _unpacked(value)
        if text is None:
            raise StoreError("a packed text is damaged", code="DB_DAMAGED", hint="dsh db check says where")
        kept[value] = text
        if len(kept) > _KEPT:
            kept.popitem(last=False)
        return text

    db.create_scalar_function("likely", likely, 1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
