"""Forks in storage: making one, and deleting what shares events with others.

Nothing here needs a live session, so any process can fork what another one drives: a fork reads turns that have ended,
and those do not change any more. Making one writes a header and a row for each ancestor, however long the log is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from dsh import query
from dsh.core.errors import DshError, SessionError
from dsh.core.ids import new_session_id
from dsh.core.lossless import MAX_INT
from dsh.store import writes
from dsh.store.database import Database


def store(db: Database, parent: str, boundary: int | None = None, child: str | None = None) -> str:
    """A new session that shares the parent's events up to `boundary`, by default the end of its last turn; its id.

    SESSION_ALREADY_EXISTS, SESSION_NOT_FOUND, INVALID_BOUNDARY, OPEN_TURN; the hint of the last two names the nearest
    ends of turns (SE-55, SE-56).
    """
    name = child if child is not None else new_session_id()
    with db.snapshot():
        if query.row(db, "session_state", session=name):
            raise SessionError(f"session {name} exists already", code="SESSION_ALREADY_EXISTS")
        state = query.row(db, "session_state", session=parent)
        if state is None:
            raise SessionError(f"there is no session {parent}", code="SESSION_NOT_FOUND")
        at = boundary if boundary is not None else _near(db, parent, MAX_INT)[0]
        if at is None:
            raise SessionError(f"no turn of session {parent} has ended yet", code="OPEN_TURN")
        if type(at) is not int or not 0 <= at < state[9]:
            what = f"session {parent} has no event {at}"
            raise SessionError(what, code="INVALID_BOUNDARY", hint=_nearest(db, parent, at))
        before, after = _near(db, parent, at)
    try:
        writes.insert_fork(db, name, parent, at, writes.now_ms(), None)
    except SessionError as error:
        if error.code != "OPEN_TURN":
            raise
        what = f"event {at} of session {parent} is not the end of a turn"
        raise SessionError(what, code="OPEN_TURN", hint=_ends(before, after)) from None
    return name


@contextmanager
def taken_back_unused(db: Database, fork: str) -> Iterator[None]:
    """Delete the fork again if what it was made for ended before it had an event of its own."""
    try:
        yield
    finally:
        state = query.row(db, "session_state", session=fork)
        if state is not None and state[5] == state[9]:
            with suppress(DshError):  # it is in use or cannot be written to: it stays, and does no harm
                writes.delete_session(db, fork)


def delete(
    db: Database, ids: Sequence[str], *, with_forks: bool = False, hide: bool = False
) -> tuple[list[str], list[str]]:
    """Delete sessions, all in one transaction; returns which were deleted and which were hidden.

    One whose events others show cannot go without them: with `with_forks` they are deleted too, with `hide` it is
    hidden instead, else SESSION_HAS_FORKS. SESSION_NOT_FOUND, SESSION_LEASED. A refusal changes nothing.
    """
    with db.transaction():
        depths: dict[str, int] = {}
        shown_by: dict[str, list[str]] = {}
        for id_ in ids:
            rows = query.rows(db, "sharers", session=id_)
            if not rows:
                raise SessionError(f"there is no session {id_}", code="SESSION_NOT_FOUND")
            depths.update(rows if with_forks else [row for row in rows if row[0] == id_])
            shown_by[id_] = [row[0] for row in rows]
        hidden = _still_shown(shown_by, depths) if not with_forks else {}
        if hidden and not hide:
            raise _has_forks(hidden)
        for id_ in hidden:
            del depths[id_]
            writes.hide_session(db, id_, writes.now_ms())
        for id_ in sorted(depths, key=lambda each: -depths[each]):  # no session goes before those that read it
            _delete_one(db, id_)
    return list(depths), list(hidden)


def staying(db: Database, ids: Sequence[str]) -> dict[str, list[str]]:
    """Which of some sessions cannot be deleted even with the others, and who shows their events and stays."""
    shown_by = {id_: [row[0] for row in query.rows(db, "sharers", session=id_)] for id_ in ids}
    return _still_shown(shown_by, dict.fromkeys(ids, 0))


def forks_first(db: Database, ids: Sequence[str]) -> list[str]:
    """Sessions in an order in which they can be deleted: none before those that show its events."""
    depths: dict[str, int] = {}
    for id_ in ids:
        depths.update(query.rows(db, "sharers", session=id_))
    return sorted(ids, key=lambda each: -depths.get(each, 0))


def _still_shown(shown_by: Mapping[str, Sequence[str]], doomed: Mapping[str, int]) -> dict[str, list[str]]:
    """Which of the sessions must stay for others that stay, and those others."""
    staying: dict[str, list[str]] = {}
    while True:
        found = {
            id_: forks
            for id_, sharers in shown_by.items()
            if id_ not in staying and (forks := [s for s in sharers if s != id_ and (s not in doomed or s in staying)])
        }
        if not found:
            return staying
        staying.update(found)


def _has_forks(staying: Mapping[str, Sequence[str]]) -> SessionError:
    id_, others = next(iter(staying.items()))
    named = ", ".join(others[:10]) + (f" and {len(others) - 10} more" if len(others) > 10 else "")
    return SessionError(
        f"session {id_} stays: its forks show its events: {named}",
        code="SESSION_HAS_FORKS",
        hint="--with-forks deletes them all; --hide leaves it out of lists and searches instead",
    )


def _delete_one(db: Database, id_: str) -> None:
    try:
        writes.delete_session(db, id_)
    except SessionError as error:
        lease = query.row(db, "lease", session=id_)
        if error.code != "SESSION_LEASED" or lease is None:
            raise
        raise SessionError(f"session {id_} is driven by process {lease[1]}", code="SESSION_LEASED") from None


def _near(db: Database, session: str, seq: int) -> tuple[int | None, int | None]:
    found = query.row(db, "turn_ends_near", session=session, seq=seq)
    assert found is not None
    return found[0], found[1]


def _nearest(db: Database, session: str, at: object) -> str:
    inside = at if type(at) is int and -1 <= at <= MAX_INT else MAX_INT
    return _ends(*_near(db, session, inside))


def _ends(before: int | None, after: int | None) -> str:
    """The ends of turns near a seq, in words."""
    if before is not None and after is not None:
        return f"the nearest ends of turns are {before} and {after}"
    if before is not None:
        return f"the last end of a turn before it is {before}"
    return "no turn has ended yet" if after is None else f"the first end of a turn is {after}"
