"""Full-text search over the history, for people.

Two phases, because ranking every hit of a common word costs half a second on a million documents: the index alone
finds the newest 5,000 hits and ranks those; only the best are looked at, until there are enough sessions; only what is
shown has its text read and cut. Filters are tags in the index where they can be (dsh.query.search_filters).

The rank is bm25, half as much again for a person's own words and final answers, a little less for what is old. A
session ranks by its best hits together, and is shown by the best one.

What a hidden session said is not found, unless a fork that is not hidden shares it: it is found there.

The rank here is for people. The order of the query service (SQ-54, SQ-55) and its cursors are another way of using
the same index, words and snippets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dsh import query
from dsh.core.errors import StoreError, UsageError
from dsh.core.lossless import MAX_INT, dumps, loads
from dsh.query.folding import Span
from dsh.query.search_filters import ROLES, TYPES, Filters, Typed, event_types
from dsh.query.snippet import snippet, snippet_at
from dsh.query.words import Query, parse
from dsh.store import writes
from dsh.store.database import Database
from dsh.store.functions import INDEX_VERSION

__all__ = [
    "NEWEST",
    "ROLES",
    "TYPES",
    "Filters",
    "Hit",
    "Result",
    "as_json",
    "count",
    "event_types",
    "refresh",
    "search",
    "unindexed",
]

NEWEST = 5000  # hits that are ranked
_REFRESH_WAIT_MS = 10_000  # for a lock, most likely of somebody who indexes, before searching what is indexed
# The database can be read but not written, now or at all: what is indexed is searched as it is.
UNWRITABLE = frozenset({"DB_BUSY", "DB_READONLY", "DB_FULL", "DB_IO"})

Sort = Literal["relevance", "time"]


class Hit(NamedTuple):
    """An event that matches. `time` in epoch ms; `matches` are (start, end) in code points of `snippet`; `more` is how
    many other events of the session match, if that was asked for."""

    session_id: str
    seq: int
    type: str
    time: int
    title: str | None
    cwd: str | None
    snippet: str
    matches: tuple[Span, ...]
    more: int = 0


@dataclass(slots=True)
class Result:
    """`capped`: there were more than NEWEST hits, and only the newest were ranked. `cursor` asks for the next page, if
    there is one. `notes` are for people."""

    hits: list[Hit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    capped: bool = False
    cursor: str | None = None


class Found(NamedTuple):
    """An event that matches. `session_id` is where it is found; the owner, which wrote it, is another if that one is
    hidden. `spans` are the places in its text, if they are known already."""

    id: int
    session_id: str
    owner_id: str
    seq: int
    type: str
    time: int
    spans: tuple[Span, ...] = ()


def unindexed(db: Database) -> int:
    """How many events the next `refresh` has to look at."""
    state = query.row(db, "index_lag")
    if state is None:
        return 0
    return int(state[1] if state[2] != INDEX_VERSION else state[1] - state[0])


def refresh(db: Database) -> str | None:
    """Index what was committed since the last time. If that cannot be, the reason: the search goes on without."""
    patience, db.busy.timeout_ms = db.busy.timeout_ms, min(db.busy.timeout_ms, _REFRESH_WAIT_MS)
    try:
        writes.refresh_search(db)
    except StoreError as error:
        if error.code not in UNWRITABLE:
            raise
        return error.message
    finally:
        db.busy.timeout_ms = patience
    return None


def search(
    db: Database,
    text: str,
    filters: Filters,
    *,
    limit: int,
    snippet_chars: int,
    all_hits: bool = False,
    sort: Sort = "relevance",
    exhaustive: bool = False,
    literal: bool = False,
    regex: bool = False,
    strict: bool = False,
    cursor: str | None = None,
    counted: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """The best hit of each of the `limit` best sessions, or with `all_hits` the best hits whatever their session.

    With `snippet_chars` 0 hits are only places: without title, folder and snippet. Where no event has all the words,
    sessions are found that have them in several events, unless `strict`. `exhaustive` ranks all hits, `literal` knows
    no operators, `regex` takes the text for a regular expression (UsageError if it is none), whose hits come newest
    first. `cursor` goes on where the page that gave it ended; UsageError if that was another search. `counted` fills in
    `more` of the hits. `progress` is told when something takes long.
    """
    from dsh.query.search_hits import Hits

    page = _page(db, cursor, (text, filters._replace(since=None, until=None), all_hits, sort, literal, regex))
    result = Result()
    narrowed = filters
    with db.snapshot():
        if regex:
            from dsh.query.search_regex import RegexHits

            hits: Hits = RegexHits(db, text, filters, result, page.high, progress)
        else:
            wanted, narrowed, titles = _read(db, text, filters, literal)
            result.notes = wanted.notes
            if not wanted.groups and narrowed == filters:
                return result
            if titles:
                from dsh.query.search_titles import title_hits

                found = title_hits(db, wanted, narrowed, page.offset + limit + 1, snippet_chars)
                result.hits = found[page.offset : page.offset + limit]
                result.cursor = page.next(limit) if len(found) > page.offset + limit else None
                return result
            hits = Hits(db, wanted, narrowed, result, page.high, exhaustive=exhaustive, sort=sort)
        best = hits.best(page.offset + limit + 1, all_hits)
        if not best and not strict and len(hits.wanted.groups) > 1:
            from dsh.query.search_spread import SpreadHits

            spread = SpreadHits(db, hits.wanted, narrowed, result, page.high, sort=sort)
            if spread.possible:
                hits, best = spread, spread.best(page.offset + limit + 1, all_hits)
            if best:
                result.notes.append("no event has all the words; these sessions have them in several")
        if len(best) > page.offset + limit:
            result.cursor = page.next(limit)
        best = best[page.offset : page.offset + limit]
        result.hits = _shown(db, best, hits.wanted, snippet_chars)
        if counted and not all_hits:
            totals = hits.totals([found.owner_id for found in best])
            result.hits = [
                hit._replace(more=max(0, totals.get(found.owner_id, 1) - 1))
                for hit, found in zip(result.hits, best, strict=True)
            ]
    return result


def count(db: Database, text: str, filters: Filters, *, literal: bool = False, regex: bool = False) -> int:
    """How many events match."""
    from dsh.query.search_hits import Hits

    with db.snapshot():
        if regex:
            from dsh.query.search_regex import RegexHits

            return RegexHits(db, text, filters, Result(), MAX_INT, None).count()
        wanted, narrowed, titles = _read(db, text, filters, literal)
        if not wanted.groups and narrowed == filters:
            return 0
        if titles:
            from dsh.query.search_titles import title_hits

            return len(title_hits(db, wanted, narrowed, MAX_INT, 1))
        return Hits(db, wanted, narrowed, Result(), MAX_INT, exhaustive=True, sort="time").count()


def _read(db: Database, text: str, filters: Filters, literal: bool) -> tuple[Query, Filters, bool]:
    typed = Typed(db, filters)
    wanted = parse(text, typed.take, literal=literal)
    return wanted, typed.filters, typed.titles


# --------------------------------------------------------------------------------------------------------------- pages


class _Page(NamedTuple):
    """Where a page begins, and the newest event that it and the next ones show."""

    offset: int
    high: int
    fingerprint: str

    def next(self, limit: int) -> str:
        return f"{self.offset + limit}-{self.high}-{self.fingerprint}"


def _page(db: Database, cursor: str | None, asked: object) -> _Page:
    import hashlib

    fingerprint = hashlib.sha256(repr(asked).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    if not cursor:
        newest = query.row(db, "search_state")
        return _Page(0, newest[0] if newest else 0, fingerprint)
    offset, _, rest = cursor.partition("-")
    high, _, mark = rest.partition("-")
    if not (offset.isdecimal() and high.isdecimal() and len(mark) == len(fingerprint) and len(cursor) < 64):
        raise UsageError("that is no cursor", hint="the last line of a page has the next one")
    if mark != fingerprint:
        raise UsageError("that cursor is of another search", hint="a cursor goes with the same query and filters")
    return _Page(min(int(offset), MAX_INT), min(int(high), MAX_INT), fingerprint)


# --------------------------------------------------------------------------------------------------------------- shown


def _shown(db: Database, found: list[Found], wanted: Query, limit: int) -> list[Hit]:
    if limit == 0:
        return [Hit(each.session_id, each.seq, each.type, each.time, None, None, "", ()) for each in found]
    from dsh.core.secrets import mask
    from dsh.store.functions import document_text

    places = dumps([[each.id, each.session_id] for each in found])
    rows = {row[0]: row[1:] for row in query.rows(db, "search_texts", places=places)}
    hits: list[Hit] = []
    for each in found:
        type_, data, title, cwd = rows[each.id]
        text = mask(document_text(type_, loads(data)))
        cut = snippet_at(text, each.spans, limit) if each.spans else snippet(text, wanted.terms, limit)
        titled = title and mask(title)
        hits.append(Hit(each.session_id, each.seq, type_, each.time, titled, cwd, cut.text, cut.matches))
    return hits


def as_json(hit: Hit) -> dict[str, Any]:
    """The object that `dsh search --json` prints."""
    return {
        "sessionId": hit.session_id,
        "seq": hit.seq,
        "type": hit.type,
        "time": hit.time,
        "title": hit.title,
        "cwd": hit.cwd,
        "snippet": hit.snippet,
        "matches": [list(span) for span in hit.matches],
        "more": hit.more,
    }
