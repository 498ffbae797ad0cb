"""Text that is stored compressed, and how views get at it.

A packed block is zstd-compressed UTF-8. The views read it through SQLite's own function `likely`, which gives back its
argument: our connections have another one under that name, which decompresses a blob. So the views work in a stock
`sqlite3` shell too, where packed text is empty, and nothing has to be installed there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import apsw

from dsh.core.errors import StoreError

_KEPT = 32  # blocks, of some 64 KiB each: events that follow each other lie in the same one

BLOCK_CHARS = 64_000  # of text in a block, about
LEVEL = 9


def compress(text: str) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True).compress(text.encode())


def text_of(body: str | bytes) -> str | None:
    """The text of a block; None if it cannot be read."""
    if isinstance(body, str):
        return body
    import zstandard

    try:
        return zstandard.ZstdDecompressor().decompress(body).decode()
    except (zstandard.ZstdError, UnicodeDecodeError):
        return None


def register(db: apsw.Connection) -> None:
    """Have this connection's views read packed text."""
    kept: OrderedDict[bytes, str] = OrderedDict()

    def likely(*values: Any) -> Any:
        (value,) = values
        if not isinstance(value, bytes):
            return value
        text = kept.get(value)
        if text is not None:
            kept.move_to_end(value)
            return text
        text = text_of(value)
        if text is None:
            raise StoreError("a packed text is damaged", code="DB_DAMAGED", hint="dsh db check says where")
        kept[value] = text
        if len(kept) > _KEPT:
            kept.popitem(last=False)
        return text

    db.create_scalar_function("likely", likely, 1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
