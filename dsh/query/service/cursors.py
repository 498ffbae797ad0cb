"""Cursors: where a page ended, for which request, in which state of the history (SQ-58 to SQ-60).

One is the text of a JSON object in base64url. It can be read, and changed, by whoever holds it; all it can reach are
later hits of the same request.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple

from dsh.core.lossless import MAX_INT, dumps, loads
from dsh.query.service.values import refuse

_VERSION = 1


class Place(NamedTuple):
    """What a cursor belongs to: a database, a kind of search, one request, and the state that was searched."""

    instance: str
    scope: str
    fingerprint: str
    generation: str


def fingerprint(*request: Any) -> str:
    """A short name for a request, the same for equal ones."""
    import hashlib

    return hashlib.sha256(dumps(request).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def cursor_at(place: Place, offset: int) -> str:
    text = dumps({"version": _VERSION, **place._asdict(), "offset": offset})
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def offset_of(cursor: object, place: Place) -> int:
    """How many hits were given before; 0 without a cursor. SESSION_QUERY_INVALID_CURSOR for one of another request or
    database, or of none; SESSION_QUERY_STALE_CURSOR if what it pages through has changed since (SQ-59)."""
    if cursor is None:
        return 0
    found = _read(cursor)
    expected = {"version": _VERSION, **place._asdict()}
    if not isinstance(found, dict) or any(
        type(found.get(name)) is not type(value) or found[name] != value
        for name, value in expected.items()
        if name != "generation"
    ):
        refuse("INVALID_CURSOR", "the cursor does not belong to this search")
    offset = found.get("offset")
    if type(offset) is not int or not 0 <= offset <= MAX_INT:
        refuse("INVALID_CURSOR", "the cursor has no valid offset")
    if found.get("generation") != place.generation:
        refuse("STALE_CURSOR", "what the cursor pages through has changed; search again")
    return offset


def _read(cursor: object) -> Any:
    if not isinstance(cursor, str) or not re.fullmatch("[A-Za-z0-9_-]+", cursor):
        return None
    try:
        return loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode())
    except (binascii.Error, ValueError):
        return None
