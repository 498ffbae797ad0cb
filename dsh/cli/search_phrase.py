"""`dsh search --phrase`: what programs get for the same words (SQ-50 to SQ-60), printed like any other search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsh import query
from dsh.core.errors import UsageError
from dsh.query.search import Filters, Hit, Result
from dsh.query.service.phrase import phrase_search, phrase_search_events
from dsh.query.service.values import EventHit
from dsh.query.snippet import marked
from dsh.query.words import Term, literal_phrase
from dsh.store.database import Database


def phrase(
    db: Database, text: str, filters: Filters, given: Mapping[str, Any], limit: int, snippet_chars: int
) -> Result:
    """One page of the query service. UsageError for filters that it does not know; its own errors (SESSION_QUERY_…)."""
    other = filters.models or filters.tools or filters.sources or given["sort"] or given["exhaustive"]
    if other or given["all_hits"]:
        raise UsageError("--phrase goes with --session, --cwd, --type, --role, --since, --until, and no other filter")
    cursor = given["cursor"] or None
    events: list[dict[str, Any]] = []
    if filters.types:
        events.append({"kind": "type", "values": list(filters.types)})
    if filters.timed:
        span = {"from": filters.since, "to": filters.until}
        events.append({"kind": "time", **{key: at for key, at in span.items() if at is not None}})
    if filters.session is not None:
        page = phrase_search_events(
            db, filters.session, text, filters=events, limit=limit, cursor=cursor, snippet_chars=snippet_chars
        )
        found, following = page.items, page.next_cursor
    else:
        sessions = [] if filters.cwd is None else [{"kind": "cwd", "values": [filters.cwd]}]
        pages = phrase_search(
            db, text, session_filters=sessions, event_filters=events, limit=limit, cursor=cursor,
            snippet_chars=snippet_chars,
        )  # fmt: skip
        found, following = tuple(hit.best_match for hit in pages.items), pages.next_cursor
    term = literal_phrase(text)
    return Result([_hit(db, each, term) for each in found], cursor=following)


def _hit(db: Database, found: EventHit, term: Term | None) -> Hit:
    titled = query.row(db, "session_title", session=found.session_id)
    state = query.row(db, "session_state", session=found.session_id)
    return Hit(
        found.session_id, found.seq, found.type, found.time, titled[0] if titled else None,
        state[3] if state else None, found.snippet, marked(found.snippet, [term] if term else []),
    )  # fmt: skip
