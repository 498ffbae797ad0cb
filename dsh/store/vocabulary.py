"""The words of the full-text index, for queries like `conf*`.

FTS5 itself answers a prefix by merging the lists of every word that begins so, up to a second on a big history. The
vocabulary tells which words there are and how often, for a tenth of that. It is a table that a connection has to make
for itself, which the guard of ours forbids; so this one is made, asked and closed.
"""

from __future__ import annotations

from pathlib import Path

import apsw

_MAKE = "CREATE VIRTUAL TABLE temp.words USING fts5vocab(main, search, row)"
_ASK = "SELECT term FROM temp.words WHERE term >= ? AND term < ? ORDER BY doc DESC, term LIMIT ?"


def words(path: Path, prefix: str, limit: int) -> list[str]:
    """The most frequent indexed words that begin with `prefix` (folded as the index folds), at most `limit`.

    Empty if none does, or if the database cannot be read in this way: the prefix is then a word like any other.
    """
    after = prefix[:-1] + chr(min(ord(prefix[-1]) + 1, 0x10FFFF))
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error:
        return []
    try:
        db.execute(_MAKE)
        return [str(term) for (term,) in db.execute(_ASK, (prefix, after, limit))]
    except apsw.Error:
        return []
    finally:
        db.close()
