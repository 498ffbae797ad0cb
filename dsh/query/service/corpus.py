"""Every logical session once: the committed rows, and what is open in this process (SQ-1 to SQ-6).

Both are one source here, since an append is a row of the database before anybody acts on it. What only a live session
knows is that it is there at all while it has no event yet; of what both know, the live one's word is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from dsh import query
from dsh.core.errors import StoreError
from dsh.core.events import SessionHeader
from dsh.core.lossless import mend_surrogates
from dsh.query.records import header_of
from dsh.query.service.values import Live, LiveSession, QueryError, SessionRecord, refuse
from dsh.store.database import Database, Row

_COMPARED = ("version", "id", "createdAt", "cwd", "parentSession", "seedLength")


class Nobody:
    """No session is open in this process: what a command sees."""

    def live(self, id: str) -> LiveSession | None:
        return None

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(())


def listing(db: Database, live: Live, *, hidden: bool = False) -> list[SessionRecord]:
    """All sessions, newest first, then by id; those that their user hid only with `hidden`, or if they are live.

    SESSION_QUERY_SOURCE_CONFLICT, SESSION_QUERY_PERSISTENCE_FAILED.
    """
    with storage():
        rows = query.rows(db, "sq_sessions")
    return merged(rows, list(live), hidden=hidden)


def merged(rows: list[Row], live: list[LiveSession], *, hidden: bool) -> list[SessionRecord]:
    """Rows of `sq_sessions` and the live sessions as one list."""
    here = {session.header["id"]: session for session in live}
    records: list[SessionRecord] = []
    for row in rows:
        header, is_hidden = header_of(row), row[7] is not None
        mine = here.pop(header["id"], None)
        if mine is not None:
            agree(mine.header, header)
            records.append(SessionRecord(mine.header, True, True))
        elif hidden or not is_hidden:
            records.append(SessionRecord(header, False, True))
    records += [SessionRecord(session.header, True, session.stored) for session in here.values()]
    records.sort(key=lambda record: (-record.header["createdAt"], record.id))
    return records


def agree(live: SessionHeader, stored: SessionHeader) -> None:
    """SESSION_QUERY_SOURCE_CONFLICT unless both are the header of one session (SQ-3)."""
    same = all(live.get(name) == stored.get(name) for name in _COMPARED)
    if not same or live.get("delegationDepth", 0) != stored.get("delegationDepth", 0):
        refuse("SOURCE_CONFLICT", f"session {live['id']} is open here with another header than the stored one")


def state_of(db: Database, session_id: object) -> Row | None:
    """The row `session_state` of a session; None for an id that is not stored, or could not be."""
    if not isinstance(session_id, str) or mend_surrogates(session_id) != session_id:
        return None
    return query.row(db, "session_state", session=session_id)


def not_found(session_id: object) -> NoReturn:
    refuse("SESSION_NOT_FOUND", f"there is no session {session_id}")


@contextmanager
def storage(code: str = "PERSISTENCE_FAILED") -> Iterator[None]:
    """In this block a failure of the database file is SESSION_QUERY_<code> (SQ-4, SQ-65); others are themselves."""
    try:
        yield
    except StoreError as error:
        raise QueryError(error.message, code=f"SESSION_QUERY_{code}", hint=error.hint) from error
