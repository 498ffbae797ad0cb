"""Which stored session a person means."""

from __future__ import annotations

from dsh import query
from dsh.core.errors import SessionError
from dsh.store.database import Database


def find_session(db: Database, typed: str) -> str:
    """An id, the beginning of one, or `-` or `last` for the newest session. SESSION_NOT_FOUND names near ids."""
    if query.row(db, "session_state", session=typed):
        return typed
    if typed in ("-", "last"):
        newest = query.row(db, "latest_session", cwd=None)
        if newest is None:
            raise SessionError("there is no session yet", code="SESSION_NOT_FOUND")
        return str(newest[0])
    found = [str(row[0]) for row in query.rows(db, "sessions_like", prefix=typed)] if typed else []
    if len(found) == 1:
        return found[0]
    if found:
        raise SessionError(
            f"several sessions begin with {typed!r}", code="SESSION_NOT_FOUND", hint=f"they are {', '.join(found)}"
        )
    raise SessionError(f"there is no session {typed!r}", code="SESSION_NOT_FOUND", hint="dsh sessions lists them")
