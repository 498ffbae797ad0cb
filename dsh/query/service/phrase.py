"""Full-text pages: one literal phrase, in the one order of SQ-54 and SQ-55, with cursors.

The index says of every hit how often the phrase stands in the text and how many words that has; no text is read for
it. Hits are then looked at in the order of those two, best first: a text has at least as many characters as words, so a
hit is final as soon as every one that is left has more words than it has characters. So what is read grows with the
pages that were turned and with how many short documents say the same thing as often, not with how much is stored.
SQLite sorts two integers for each hit; of documents no more are held than share a count of places.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby, islice
from typing import Any, NamedTuple

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.events import SURFACE_TYPES
from dsh.core.lossless import dumps, loads, mend_surrogates
from dsh.core.secrets import mask
from dsh.query.folding import cut
from dsh.query.records import header_of
from dsh.query.service.corpus import Nobody, agree, listing, not_found, state_of
from dsh.query.service.cursors import Place, cursor_at, fingerprint, offset_of
from dsh.query.service.filters import (
    Filters,
    admits_event,
    admits_session,
    canonical,
    check_size,
    event_filters,
    session_filters,
    values_of,
)
from dsh.query.service.values import (
    EventHit,
    EventPage,
    Live,
    LiveSession,
    SessionHit,
    SessionPage,
    SessionRecord,
    SurfaceClass,
    refuse,
)
from dsh.query.snippet import snippet, tidy
from dsh.query.words import Term
from dsh.store.database import Database, Row
from dsh.store.functions import document_text, folder_tag, session_tag, type_tag
from dsh.store.phrases import read_place
from dsh.store.spelling import segment_text

DEFAULT_LIMIT, MAX_LIMIT, SNIPPET_CHARS = 20, 100, 240
_SEARCHED_BY_TAG = 200  # sessions, or folders of sessions, that the match itself is narrowed to
_FIRST_BATCH, _LAST_BATCH = 64, 4096  # hits looked at together


class Request(NamedTuple):
    """A checked search; `session` is the target of one within a session; one over all has `sessions`, filters."""

    query: str
    sessions: Filters
    events: Filters
    limit: int
    cursor: object
    session: str | None = None
    snippet_chars: int = SNIPPET_CHARS

    @property
    def scope(self) -> str:
        return "sessions" if self.session is None else "events"

    def place(self, instance: str, generation: str) -> Place:
        filters = canonical(self.sessions), canonical(self.events)
        mark = fingerprint(self.scope, self.session, self.query, self.limit, *filters)
        return Place(instance, self.scope, mark, generation)


def request(
    text: object,
    *,
    sessions: Any = (),
    events: Any = (),
    limit: object = DEFAULT_LIMIT,
    cursor: object = None,
    session: str | None = None,
    max_limit: int = MAX_LIMIT,
    snippet_chars: int = SNIPPET_CHARS,
) -> Request:
    """Check and copy a request (SQ-33). SESSION_QUERY_INVALID_QUERY, …_INVALID_FILTER, …_INVALID_LIMIT."""
    words = _normalized(text)
    about, inside = session_filters(sessions), event_filters(events)
    check_size("sessions" if session is None else "events", about, inside)
    if type(limit) is not int or not 1 <= limit <= max_limit:
        refuse("INVALID_LIMIT", f"a page has 1 to {max_limit} hits")
    return Request(words, about, inside, limit, cursor, session, snippet_chars)


def phrase_search(
    db: Database,
    query: str,
    *,
    session_filters: Sequence[Mapping[str, Any]] = (),
    event_filters: Sequence[Mapping[str, Any]] = (),
    limit: int = DEFAULT_LIMIT,
    cursor: str | None = None,
    snippet_chars: int = SNIPPET_CHARS,
) -> SessionPage:
    """The sessions in which a literal phrase stands, each with its best event (SQ-50 to SQ-62).

    What is not indexed yet is not found: call `dsh.query.search.refresh` before. `next_cursor` is given back as
    `cursor` for the next page of the same request. QueryError, of a code SESSION_QUERY_…
    """
    wanted = request(
        query,
        sessions=session_filters,
        events=event_filters,
        limit=limit,
        cursor=cursor,
        snippet_chars=snippet_chars,
    )
    return search_sessions(db, wanted, Nobody())


def phrase_search_events(
    db: Database,
    session_id: str,
    query: str,
    *,
    filters: Sequence[Mapping[str, Any]] = (),
    limit: int = DEFAULT_LIMIT,
    cursor: str | None = None,
    snippet_chars: int = SNIPPET_CHARS,
) -> EventPage:
    """The events of one session in which a literal phrase stands, best first; as `phrase_search`.
    SESSION_QUERY_SESSION_NOT_FOUND."""
    wanted = request(query, events=filters, limit=limit, cursor=cursor, session=session_id, snippet_chars=snippet_chars)
    return search_events(db, wanted, Nobody())


def search_sessions(db: Database, wanted: Request, live: Live) -> SessionPage:
    """One page over all sessions, in one snapshot of the database (SQ-61)."""
    here = list(live)
    with db.snapshot():
        store = _store(db)
        state = f"{store.indexed}.{store.generation}.{fingerprint(sorted(s.header['id'] for s in here))}"
        place = wanted.place(store.instance, state)
        offset = offset_of(wanted.cursor, place)
        records = [r for r in listing(db, live) if admits_session(wanted.sessions, r)]
        with closing(_Search(db, wanted, records).sessions()) as found:
            hits = list(islice(found, offset, offset + wanted.limit + 1))
        by_id = {record.id: record for record in records}
        events = _shown(db, hits[: wanted.limit], wanted)
    items = tuple(SessionHit(*by_id[event.session_id], event) for event in events)
    more = len(hits) > wanted.limit
    return SessionPage(items, cursor_at(place, offset + wanted.limit) if more else None)


def search_events(db: Database, wanted: Request, live: Live) -> EventPage:
    """One page of a session's events, in one snapshot of the database. SESSION_QUERY_SESSION_NOT_FOUND comes before
    what is wrong with the cursor."""
    assert wanted.session is not None
    mine = live.live(wanted.session)
    with db.snapshot():
        store = _store(db)
        row = state_of(db, wanted.session)
        if row is None and mine is None:
            not_found(wanted.session)
        state = _log_state(db, store, wanted.session)
        record = _record(row, mine)
        place = wanted.place(store.instance, state)
        offset = offset_of(wanted.cursor, place)
        with closing(_Search(db, wanted, [record]).events()) as found:
            hits = list(islice(found, offset, offset + wanted.limit + 1))
        events = _shown(db, hits[: wanted.limit], wanted)
    more = len(hits) > wanted.limit
    return EventPage(tuple(events), cursor_at(place, offset + wanted.limit) if more else None, record.header)


# ------------------------------------------------------------------------------------------------------- the state


class _Store(NamedTuple):
    instance: str
    indexed: int
    last_event: int
    generation: int


def _store(db: Database) -> _Store:
    row = query.row(db, "store_state")
    assert row is not None
    return _Store(row[0], row[3], row[4], row[5])


def _log_state(db: Database, store: _Store, session_id: str) -> str:
    parts = query.row(db, "sq_log_state", session=session_id) or ()
    return ".".join(map(str, (*parts, _behind(db, store, session_id))))


def _behind(db: Database, store: _Store, session_id: str) -> int:
    """How many documents of a session are committed and not indexed: somebody wrote since the index was refreshed. A
    search does not find them, so the state it is of is not that of the session's last event."""
    if store.indexed == store.last_event:
        return 0
    row = query.row(db, "sq_unindexed", session=session_id, indexed=store.indexed)
    return int(row[0]) if row else 0


def _record(row: Row | None, mine: LiveSession | None) -> SessionRecord:
    if row is None:
        assert mine is not None
        return SessionRecord(mine.header, True, False)
    stored = header_of(row)
    if mine is None:
        return SessionRecord(stored, False, True)
    agree(mine.header, stored)
    return SessionRecord(mine.header, True, True)


def _normalized(text: object) -> str:
    words = tidy(mend_surrogates(text)) if isinstance(text, str) else ""
    if not words or "\0" in words:
        refuse("INVALID_QUERY", "a query is a text that is not blank and has no NUL")
    return words.translate({0xFDD0: 0xFFFD, 0xFDD1: 0xFFFD})


# -------------------------------------------------------------------------------------------------------- the search


class _Head(NamedTuple):
    """A document; `owner` is the session that wrote it. `sessions` are those in which its surface class is wanted, None
    if any will do."""

    id: int
    owner: str
    seq: int
    type: str
    time: int
    sessions: tuple[str, ...] | None = None


class _Ranked(NamedTuple):
    """What decides the order, as numbers of which smaller is better, and the document."""

    spans: int
    length: int
    time: int
    seq: int
    id: int
    head: _Head


class _Hit(NamedTuple):
    session_id: str
    head: _Head


class _Search:
    """One search in one snapshot, among the given sessions."""

    def __init__(self, db: Database, wanted: Request, records: Sequence[SessionRecord]) -> None:
        self._db = db
        self._wanted = wanted
        among = {record.id for record in records}
        self._waiting: dict[str, list[tuple[str, int]]] = {}  # by owner: sessions to find, and how far they read it
        self._folders: dict[str, str | None] = {}
        for session, owner, last, cwd in query.rows(db, "sq_lineages", session=wanted.session):
            if session in among:
                self._waiting.setdefault(owner, []).append((session, last))
                self._folders[owner] = cwd
        self._surface = values_of(wanted.events, "surface")

    def events(self) -> Generator[_Hit, None, None]:
        """The hits of the one session, best first."""
        assert self._wanted.session is not None
        for ranked in self._ranked():
            yield _Hit(self._wanted.session, ranked.head)

    def sessions(self) -> Generator[_Hit, None, None]:
        """The best hit of each session, best first. Of events that a fork shares each session finds its own best."""
        given: set[str] = set()
        for _, tied in groupby(self._ranked(), key=lambda ranked: ranked[:3]):
            best: dict[str, _Head] = {}
            for ranked in tied:  # higher seqs first
                for session in self._places(ranked.head):
                    if session not in given:
                        best.setdefault(session, ranked.head)
            for session in sorted(best):
                yield _Hit(session, best[session])
            given |= best.keys()
            for owner in {head.owner for head in best.values()}:
                self._waiting[owner] = [place for place in self._waiting[owner] if place[0] not in given]

    def _places(self, head: _Head) -> Iterable[str]:
        if head.sessions is not None:
            return head.sessions
        return [session for session, last in self._waiting[head.owner] if head.seq <= last]

    def _ranked(self) -> Iterator[_Ranked]:
        """Documents in the order of SQ-54, ties by higher seq. Of what the index puts on the same level one is final
        when those not yet looked at have more words than it has characters."""
        match = self._match()
        if match is None:
            return
        _, rows = self._db.stream(query.sql("sq_phrase_hits"), {"match": match})
        hits = ((id_, *read_place(place)) for id_, place in rows)
        level: list[_Ranked] = []
        size = _FIRST_BATCH
        ahead = next(hits, None)
        while ahead is not None:
            batch = [ahead]
            while (ahead := next(hits, None)) is not None and ahead[1] == batch[0][1] and len(batch) < size:
                batch.append(ahead)
            size = min(2 * size, _LAST_BATCH)
            for head, length in self._looked_at([id_ for id_, _, _ in batch]):
                heapq.heappush(level, _Ranked(-batch[0][1], length, -head.time, -head.seq, head.id, head))
            same_level = ahead is not None and ahead[1] == batch[0][1]
            while level and not (same_level and ahead is not None and level[0].length >= ahead[2]):
                yield heapq.heappop(level)

    def _looked_at(self, ids: list[int]) -> Iterator[tuple[_Head, int]]:
        """Those of some documents that are wanted, and the length of each one's text."""
        heads = {}
        for row in query.rows(self._db, "sq_document_heads", ids=dumps(ids)):
            head = _Head(*row)
            if admits_event(self._wanted.events, head.seq, head.type, head.time) and any(
                head.seq <= last for _, last in self._waiting.get(head.owner, ())
            ):
                heads[head.id] = head
        if self._surface is not None:
            heads = {head.id: head for head in self._of_surface(list(heads.values()))}
        for id_, text in _texts(self._db, heads):
            yield heads[id_], len(text)

    def _of_surface(self, heads: list[_Head]) -> Iterator[_Head]:
        assert self._surface is not None
        places = [(session, head) for head in heads for session in self._places(head)]
        classes = surface_classes(self._db, [(session, head.seq, head.type) for session, head in places])
        wanted: dict[int, list[str]] = {}
        for (session, head), surface in zip(places, classes, strict=True):
            if surface in self._surface:
                wanted.setdefault(head.id, []).append(session)
        return (head._replace(sessions=tuple(wanted[head.id])) for head in heads if head.id in wanted)

    def _match(self) -> str | None:
        """The expression of the index, narrowed by those filters that are words of it; None if nothing can be found."""
        if not cut(self._wanted.query) or not self._waiting:
            return None
        clauses = [f"{{text}} : {_quoted(segment_text(self._wanted.query))}"]
        types = values_of(self._wanted.events, "type")
        if types is not None and len(types) <= _SEARCHED_BY_TAG:
            if not types:
                return None
            clauses.append(_tagged(map(type_tag, sorted(types))))
        folders = set(self._folders.values())
        if len(self._waiting) <= _SEARCHED_BY_TAG:
            clauses.append(_tagged(map(session_tag, self._waiting)))
        elif len(folders) <= _SEARCHED_BY_TAG and None not in folders:
            clauses.append(_tagged(folder_tag(folder) for folder in folders if folder is not None))
        return " AND ".join(clauses)


def _quoted(text: str) -> str:
    escaped = text.replace('"', '""')
    return f'"{escaped}"'


def _tagged(tags: Iterable[str]) -> str:
    return f"{{tags}} : ({' OR '.join(map(_quoted, tags))})"


def _texts(db: Database, ids: Iterable[int]) -> Iterator[tuple[int, str]]:
    """What documents say, by id, without the keys that the index does not have either."""
    wanted = list(ids)
    for id_, type_, data in query.rows(db, "sq_document_texts", ids=dumps(wanted)) if wanted else ():
        try:
            yield id_, mask(document_text(type_, loads(data)))
        except ValueError as error:
            raise SessionError(f"document {id_} cannot be read: {error}", code="LOG_CORRUPT") from error


def surface_classes(db: Database, places: Sequence[tuple[str, int, str]]) -> list[SurfaceClass]:
    """The surface class of events, each given as session id, seq, type."""
    asked = [[session, seq] for session, seq, type_ in places if type_ in SURFACE_TYPES]
    at = [index for index, (_, _, type_) in enumerate(places) if type_ in SURFACE_TYPES]
    classes: list[SurfaceClass] = ["log-only"] * len(places)
    for key, replaced_by in query.rows(db, "sq_surface_of", places=dumps(asked)) if asked else ():
        classes[at[key]] = "current" if replaced_by is None else "shadowed"
    return classes


def _shown(db: Database, hits: Sequence[_Hit], wanted: Request) -> list[EventHit]:
    term = Term(wanted.query, cut(wanted.query))
    texts = dict(_texts(db, {hit.head.id for hit in hits}))
    classes = surface_classes(db, [(hit.session_id, hit.head.seq, hit.head.type) for hit in hits])
    return [
        EventHit(
            hit.session_id,
            hit.head.seq,
            hit.head.type,
            hit.head.time,
            surface,
            snippet(texts[hit.head.id], [term], wanted.snippet_chars).text,
        )
        for hit, surface in zip(hits, classes, strict=True)
    ]
