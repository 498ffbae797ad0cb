"""Keeping the history small: which sessions rest, and packing, thinning or deleting them (PE-83 to PE-86).

A session that a process drives is left alone, also if that began between the choice and the deed. Nothing here is done
by itself: somebody has asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from dsh import query
from dsh.core.errors import SessionError
from dsh.session import forks
from dsh.store import rewriting, writes
from dsh.store.database import Database

_DRIVEN_ON = frozenset({"SESSION_LEASED", "REWRITE_INVALID", "SESSION_HAS_FORKS"})


class Resting(NamedTuple):
    """A session that may be looked after. `updated_at`, `pinned` in epoch ms; `bytes` of its own events' text, None if
    nobody asked for sizes."""

    id: str
    title: str | None
    updated_at: int
    pinned: int | None
    bytes: int | None


def resting(db: Database, *, before: int | None, larger: int | None, pinned: bool) -> list[Resting]:
    """Sessions that nobody drives, without activity since `before` (epoch ms), with more than `larger` bytes of text,
    oldest activity first; with `pinned` those too that are."""
    rows = query.rows(db, "resting_sessions", before=before, larger=larger)
    resting = [Resting._make(row[:5]) for row in rows if row[5] is None or not writes.is_driven(*row[5:])]
    return [each for each in resting if pinned or each.pinned is None]


class Done(NamedTuple):
    """What became of one session: how many events were packed, left out or deleted, or why nothing was."""

    id: str
    events: int
    refused: str | None = None


def pack(db: Database, ids: Iterable[str]) -> Iterator[Done]:
    return _each(db, ids, rewriting.pack_session)


def unpack(db: Database, ids: Iterable[str]) -> Iterator[Done]:
    return _each(db, ids, rewriting.unpack_session)


def thin(db: Database, ids: Iterable[str]) -> Iterator[Done]:
    return _each(db, ids, rewriting.thin_session)


def foreseen(db: Database, ids: Iterable[str], *, deleting: bool) -> Iterator[Done]:
    """What thinning or deleting would make of these sessions; nothing is changed."""
    wanted = list(ids)
    staying = forks.staying(db, wanted) if deleting else {}
    for id_ in wanted:
        if id_ in staying:
            yield Done(id_, 0, _shown_by(staying[id_]))
        else:
            yield Done(id_, _length(db, id_) if deleting else rewriting.thinnable(db, id_))


def delete(db: Database, ids: Iterable[str]) -> Iterator[Done]:
    """Delete sessions, forks before those whose events they show. A session of whose events others that stay show some
    stays too."""
    wanted = list(ids)
    staying = forks.staying(db, wanted)
    for id_ in forks.forks_first(db, [each for each in wanted if each not in staying]):
        yield from _each(db, [id_], _delete)
    for id_, others in staying.items():
        yield Done(id_, 0, _shown_by(others))


def _shown_by(others: Sequence[str]) -> str:
    return f"its events are shown by {others[0]}" + (" and others" if len(others) > 1 else "")


def _delete(db: Database, id_: str) -> int:
    length = _length(db, id_)
    forks.delete(db, [id_])
    return length


def _length(db: Database, id_: str) -> int:
    row = query.row(db, "session_state", session=id_)
    return 0 if row is None else int(row[9])


def _each(db: Database, ids: Iterable[str], change: Callable[[Database, str], int]) -> Iterator[Done]:
    for id_ in ids:
        try:
            with db.transaction():
                writes.free_session(db, id_)
                events = change(db, id_)
        except SessionError as error:
            if error.code == "SESSION_NOT_FOUND":  # somebody else has deleted it meanwhile
                continue
            if error.code not in _DRIVEN_ON:
                raise
            yield Done(id_, 0, error.message)
        else:
            yield Done(id_, events)
