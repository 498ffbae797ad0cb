"""What may be done to stored events: pack, thin, redact. None of it changes what the log says but for the text that was
to go, and all of it is checked by the triggers that do it (dsh/rules.sql). A session that is driven is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from dsh.core.lossless import dumps, loads
from dsh.store import named, packed
from dsh.store.database import Database
from dsh.store.writes import fit_index

_SMALLEST = 96  # characters of a text that is worth a row of its own
_SMALLEST_FIELD = 40
_PAGE = 500
# What no index, rule or list reads where it is stored, so that it can be packed whole.
_FIELDS = {
    "user/message": ("content",),
    "steering/message": ("content",),
    "prompt/blocked": ("content",),
    "assistant/message": ("content", "provenance"),
    "tool/result": ("content",),
    "tool/call": ("arguments",),
}
# Elsewhere long strings are, but for those by which events refer to each other.
_REFERENCE = r'"(?:callId|toolCallId|id|name|type|kind)":"(?:[^"\\]|\\.)*"'
_STRING = rf'{_REFERENCE}|"((?:[^"\\]|\\.){{{_SMALLEST},}})"'


class _Cut(NamedTuple):
    seq: int
    skeleton: str
    pieces: list[list[int]]  # at, start, size
    whole: str


def pack_session(db: Database, session: str) -> int:
    """Compress the long texts of a session; how many events. Reading, searching and going on stay as they are.

    SESSION_LEASED while a process drives it.
    """
    with db.transaction():
        row = named.row(db, "next_block")
        assert row is not None
        block, count, low = int(row[0]), 0, 0
        texts: list[bytes] = []
        held = 0
        cuts: list[_Cut] = []
        while rows := named.rows(db, "pack_rows", session=session, low=low, chars=_SMALLEST, limit=_PAGE):
            for seq, type_, data in rows:
                cut, inside = _cut(seq, type_, data, held)
                if not inside:
                    continue
                cuts.append(cut)
                texts += inside
                held += sum(map(len, inside))
                if held >= packed.BLOCK_BYTES:
                    _write(db, session, block, b"".join(texts), cuts)
                    count += len(cuts)
                    block, held = block + 1, 0
                    texts.clear()
                    cuts.clear()
            low = rows[-1][0] + 1
        if cuts:
            _write(db, session, block, b"".join(texts), cuts)
        return count + len(cuts)


def _cut(seq: int, type_: str, data: str, held: int) -> tuple[_Cut, list[bytes]]:
    """An event's data without its long texts, and these in UTF-8; `held` bytes are in the block already."""
    kept: list[str] = []
    pieces: list[list[int]] = []
    inside: list[bytes] = []
    at = end = 0
    for left, right in _spans(type_, data):
        kept.append(data[end:left])
        at += left - end
        text = data[left:right].encode()
        pieces.append([at, held, len(text)])
        inside.append(text)
        held += len(text)
        end = right
    kept.append(data[end:])
    return _Cut(seq, "".join(kept), pieces, data), inside


def _spans(type_: str, data: str) -> list[tuple[int, int]]:
    """Where the parts of an event's data are that are packed: the insides of fields and of strings, in order."""
    spans: list[tuple[int, int]] = []
    fields = _FIELDS.get(type_, ())
    body: Any = loads(data) if fields else None
    for name in fields if isinstance(body, dict) else ():
        text = dumps(body.get(name))
        at = data.find(f'"{name}":{text}') + len(name) + 4  # behind its first bracket or quote
        if len(text) > _SMALLEST_FIELD and at > len(name) + 3:
            spans.append((at, at + len(text) - 2))
    for found in re.finditer(_STRING, data, re.DOTALL):
        left, right = found.span(1)
        if left >= 0 and not any(start <= left < end for start, end in spans):
            spans.append((left, right))
    return sorted(spans)


def _write(db: Database, session: str, block: int, text: bytes, cuts: list[_Cut]) -> None:
    db.rows("INSERT INTO packed_block(id, session_id, body) VALUES (?, ?, ?)", (block, session, packed.compress(text)))
    for cut in cuts:
        pieces = dumps([[at, block, start, size] for at, start, size in cut.pieces])
        db.rows(
            "INSERT INTO packing(session_id, seq, data, pieces, whole) VALUES (?, ?, ?, ?, ?)",
            (session, cut.seq, cut.skeleton, pieces, cut.whole),
        )


def unpack_session(db: Database, session: str) -> int:
    """Write a packed session's texts out again; how many events. SESSION_LEASED as in packing."""
    count, low = 0, 0
    with db.transaction():
        while rows := named.rows(db, "packed_rows", session=session, low=low, limit=_PAGE):
            for seq, data in rows:
                db.rows(
                    "INSERT INTO packing(session_id, seq, data, pieces, whole) VALUES (?, ?, ?, NULL, ?)",
                    (session, seq, data, data),
                )
            count += len(rows)
            low = rows[-1][0] + 1
        _drop_blocks(db, session)
    return count


def _drop_blocks(db: Database, session: str) -> None:
    db.rows("INSERT INTO unpacking(session_id) VALUES (?)", (session,))


def thin_session(db: Database, session: str) -> int:
    """Leave out the streamed fragments of a session's closed turns, whose messages stay; how many events went.

    A run of them becomes one chunk `{"type":"thinned","count":N}` that stands for N seqs. SESSION_LEASED as in packing.
    """
    gone = 0
    with db.transaction():
        for first, last in named.rows(db, "thin_runs", session=session):
            db.rows("INSERT INTO thinning(session_id, first, last) VALUES (?, ?, ?)", (session, first, last))
            gone += last - first
    return gone


def thinnable(db: Database, session: str) -> int:
    """How many events `thin_session` would leave out."""
    return sum(last - first for first, last in named.rows(db, "thin_runs", session=session))


def redact_event(db: Database, session: str, seq: int, data: str) -> None:
    """Put other texts into an event of the session that wrote it; `data` is its JSON with nothing else changed.

    EVENT_NOT_FOUND, EVENT_NOT_JSON; REWRITE_INVALID where more than texts differ; SESSION_LEASED. What was there is
    gone from log and index, and from the file itself after `purge`.
    """
    redact_events(db, session, [(seq, data)])


def redact_events(db: Database, session: str, changes: Iterable[tuple[int, str]]) -> None:
    """The same for many events of one session, seq and data of each, in one transaction."""
    with db.transaction():
        fit_index(db)
        unpack_session(db, session)  # a block holds the texts of many events
        for seq, data in changes:
            db.rows("INSERT INTO redaction(session_id, seq, data) VALUES (?, ?, ?)", (session, seq, data))
        _drop_blocks(db, session)


def merge_index(db: Database) -> None:
    """Merge the pieces that the search index was written in, which makes it some hundredths smaller and faster."""
    db.rows("INSERT INTO search(search) VALUES ('optimize')")


def purge(db: Database, patience_ms: int) -> bool:
    """Have the file forget what was deleted or redacted: the index is merged, since until then it keeps words that it
    no longer finds, and every page is written anew. False if readers kept the old pages from being given back."""
    merge_index(db)
    return db.vacuum(patience_ms)
