"""Which stored session, and which of its events, a person means; and what a new one may be called."""

from __future__ import annotations

from dsh import query
from dsh.core.errors import SessionError, UsageError
from dsh.core.lossless import MAX_INT
from dsh.store.database import Database

NEWEST = ("-", "last")  # words for the newest session; no session may take one as its id
_LISTED = 5  # candidates that an ambiguous beginning names
_TITLE = 40  # characters of each one's title
_DIGITS = 100  # of a seq; a longer one is no event of any log, and int() refuses the longest


def find_session(db: Database, typed: str) -> str:
    """An id, the beginning of one, or `-` or `last` for the newest session. SESSION_NOT_FOUND; if several ids begin so,
    its hint lists them with their titles."""
    if query.row(db, "session_state", session=typed):
        return typed
    if typed in NEWEST:
        newest = query.row(db, "latest_session", cwd=None)
        if newest is None:
            raise SessionError("there is no session yet", code="SESSION_NOT_FOUND")
        return str(newest[0])
    found = query.rows(db, "sessions_like", prefix=typed) if typed else []
    if len(found) == 1:
        return str(found[0][0])
    if found:
        named = ", ".join(_candidate(id_, title) for id_, title in found[:_LISTED])
        more = ", and more" if len(found) > _LISTED else ""
        raise SessionError(
            f"several sessions begin with {typed!r}", code="SESSION_NOT_FOUND", hint=f"they are {named}{more}"
        )
    raise SessionError(f"there is no session {typed!r}", code="SESSION_NOT_FOUND", hint="dsh sessions lists them")


def find_place(db: Database, typed: str) -> tuple[str, int | None]:
    """The session of `ID` or `ID:SEQ`, and the seq if one was named. An id may itself hold a colon, so the whole is
    tried first."""
    head, colon, tail = typed.rpartition(":")
    if colon and tail.isdecimal() and not query.row(db, "session_state", session=typed):
        return find_session(db, head), int(tail) if len(tail) <= _DIGITS else MAX_INT
    return find_session(db, typed), None


def new_name(option: str, typed: str) -> str:
    """An id that a person chose: text that stands in one field of one line. UsageError names the option."""
    if not typed or len(typed) > 200 or not typed.isprintable() or typed != typed.strip() or typed in NEWEST:
        raise UsageError(f"{option} {typed!r} cannot be the id of a session")
    return typed


def _candidate(id_: str, title: str | None) -> str:
    words = " ".join((title or "").split())
    return f"{id_} ({words if len(words) <= _TITLE else words[: _TITLE - 1] + '…'})" if words else id_
