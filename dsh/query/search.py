"""Full-text search over the history, for people.

Two phases, because ranking every hit of a common word costs half a second on a million documents: the index alone
finds the newest 5,000 hits and ranks those by bm25; only the best are looked at, until there are enough sessions; only
what is shown has its text read and cut. Session, folder and type are tags in the index, so a filter by them is one
more term of the match. Time is checked at each event, and narrowed beforehand to the sessions that reach into it.

What a hidden session said is not found, unless a fork that is not hidden shares it: it is found there.

The rank here is for people. The order of the query service (SQ-54, SQ-55) and its cursors are another way of using
the same index, words and snippets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from dsh import query
from dsh.core.errors import StoreError, UsageError
from dsh.core.lossless import dumps
from dsh.query.folding import Span
from dsh.query.snippet import snippet
from dsh.query.words import Query, expression, parse
from dsh.store import writes
from dsh.store.database import Database
from dsh.store.functions import DOCUMENT_TYPES, folder_tag, session_tag, type_tag

NEWEST = 5000  # hits that are ranked
_LOOK = 400  # ranked hits looked at for more sessions, before those found are left out of the match
_ROUNDS = 4
_BATCH = 50
_GROUP = 100  # sessions searched together for a span of time: each is a term that every hit is asked about
_REFRESH_WAIT_MS = 10_000  # for a lock, most likely of somebody who indexes, before searching what is indexed
# The database can be read but not written, now or at all: what is indexed is searched as it is.
UNWRITABLE = frozenset({"DB_BUSY", "DB_READONLY", "DB_FULL", "DB_IO"})

TYPES: Mapping[str, tuple[str, ...]] = {
    "user": ("user/message",),
    "assistant": ("assistant/message",),
    "steering": ("steering/message",),
    "tool": ("tool/call", "tool/result"),
    "call": ("tool/call",),
    "result": ("tool/result",),
    "todo": ("todo/write",),
    "blocked": ("prompt/blocked",),
    "error": ("turn/end",),
    **{name: (name,) for name in DOCUMENT_TYPES},
}


class Filters(NamedTuple):
    """What to search in: a session and, for a fork, what it inherited; sessions of exactly this folder (absolute
    path); event types; a span of time in epoch ms, both ends included."""

    session: str | None = None
    cwd: str | None = None
    types: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None

    def admits(self, time: int) -> bool:
        return (self.since is None or time >= self.since) and (self.until is None or time <= self.until)

    @property
    def timed(self) -> bool:
        return self.since is not None or self.until is not None


class Hit(NamedTuple):
    """An event that matches. `time` in epoch ms; `matches` are (start, end) in code points of `snippet`."""

    session_id: str
    seq: int
    type: str
    time: int
    title: str | None
    cwd: str | None
    snippet: str
    matches: tuple[Span, ...]


@dataclass(slots=True)
class Result:
    """`capped`: there were more than NEWEST hits, and only the newest were ranked. `notes` are for people."""

    hits: list[Hit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    capped: bool = False


def event_types(names: Iterable[str]) -> tuple[str, ...]:
    """Event types from short or full names; UsageError for an unknown one."""
    found: dict[str, None] = {}
    for name in names:
        if name not in TYPES:
            raise UsageError(f"no type of event is called {name!r}", hint=f"known: {', '.join(TYPES)}")
        found.update(dict.fromkeys(TYPES[name]))
    return tuple(found)


def unindexed(db: Database) -> int:
    """How many events the next `refresh` has to look at."""
    state = query.row(db, "store_state")
    return 0 if state is None else int(state[4] - state[3])


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
    db: Database, text: str, filters: Filters, *, limit: int, snippet_chars: int, all_hits: bool = False
) -> Result:
    """The best hit of each of the `limit` best sessions, or with `all_hits` the best hits whatever their session."""
    wanted = parse(text)
    result = Result(notes=wanted.notes)
    if not wanted.groups:
        return result
    with db.snapshot():
        found = _Search(db, wanted, filters, result).best(limit, all_hits)
        result.hits = _shown(db, found, wanted, snippet_chars)
    return result


class _Head(NamedTuple):
    """An event that matches. `session_id` is where it is found; the owner, which wrote it, is another if that one is
    hidden."""

    id: int
    session_id: str | None
    owner_id: str
    seq: int
    type: str
    time: int


class _Search:
    """One search in one snapshot."""

    def __init__(self, db: Database, wanted: Query, filters: Filters, result: Result) -> None:
        self._db = db
        self._filters = filters
        self._result = result
        self._owners: dict[str, int] = {}
        if filters.session is not None:
            self._owners = dict(query.rows(db, "search_lineage", session=filters.session))
        self._match = expression(wanted, partial(_words, db), self._tags())
        if filters.session is None:
            unseen = [row[0] for row in query.rows(db, "search_unseen", limit=_GROUP)]
            if unseen:  # not needed for what is found, but they would take the place of others among the newest hits
                self._match = f"({self._match}) NOT {_tagged(unseen)}"
        self._found: dict[int, _Head] = {}
        self._sessions: dict[str, None] = {}

    def best(self, limit: int, all_hits: bool) -> list[_Head]:
        """The heads of the hits to show, best first."""
        for group in self._groups():
            match = self._match
            if group:
                match = f"{_tagged(group)} AND ({match})"
            if self._collect(match, limit, all_hits):
                break
        return list(self._found.values())

    def _groups(self) -> Iterator[list[str]]:
        """The sessions to search, one group after the other; an empty group is all there are.

        Few sessions reach into most spans of time, and their tags keep the search to them. If many do, all are
        searched first: either hits are few and each is looked at, or hits are many and groups of sessions, newest
        first, soon have enough of them.
        """
        filters = self._filters
        if not filters.timed or self._owners:
            yield []
            return
        rows = query.rows(self._db, "sessions_in_time", since=filters.since, until=filters.until)
        if len(rows) > _GROUP:
            yield []
            if not self._result.capped:
                return
        for at in range(0, len(rows), _GROUP):
            yield [row[0] for row in rows[at : at + _GROUP]]

    def _collect(self, match: str, limit: int, all_hits: bool) -> bool:
        """Find hits until there are `limit`; whether there are."""
        for _ in range(_ROUNDS):
            rest = match
            if self._sessions and not all_hits:
                rest = f"({match}) NOT {_tagged(self._sessions)}"
            ids, capped = self._ranked(rest, max(limit, _LOOK))
            before = len(self._sessions)
            for head in self._heads(ids):
                if head.session_id is not None and (all_hits or head.session_id not in self._sessions):
                    self._found[head.id] = head
                    self._sessions[head.session_id] = None
                    if len(self._found) == limit:
                        return True
            if all_hits or not capped or len(self._sessions) == before:
                break
        return False

    def _ranked(self, match: str, look: int) -> tuple[list[int], bool]:
        """Ids of the best of the newest hits, best first, and whether there are older ones too. If there are, `look`
        ids are enough, since more can be asked for; otherwise these are all."""
        bound = query.row(self._db, "search_bound", match=match, newest=NEWEST)
        self._result.capped = self._result.capped or bound is not None
        low = bound[0] + 1 if bound else 0
        limit = look if bound and not self._owners else NEWEST
        rows = query.rows(self._db, "search_ranked", match=match, low=low, limit=limit)
        rows.sort(key=lambda row: (row[1], -row[0]))
        return [row[0] for row in rows], bound is not None

    def _heads(self, ids: list[int]) -> Iterator[_Head]:
        for at in range(0, len(ids), _BATCH):
            for row in query.rows(
                self._db, "search_heads", ids=dumps(ids[at : at + _BATCH]), session=self._filters.session
            ):
                head = _Head(*row)
                last = self._owners.get(head.owner_id, -1) if self._owners else head.seq
                if head.seq <= last and self._filters.admits(head.time):
                    yield head

    def _tags(self) -> list[list[str]]:
        """Clauses of tags for everything but time."""
        filters = self._filters
        clauses: list[list[str]] = []
        if self._owners:
            clauses.append([session_tag(owner) for owner in self._owners])
        if filters.cwd is not None:
            clauses.append([folder_tag(filters.cwd)])
        if filters.types:
            clauses.append([type_tag(type_) for type_ in filters.types])
        return clauses


def _words(db: Database, prefix: str, limit: int) -> list[str]:
    """The most frequent indexed words that begin with `prefix`, folded as the index folds."""
    after = prefix[:-1] + chr(min(ord(prefix[-1]) + 1, 0x10FFFF))
    return [str(row[0]) for row in query.rows(db, "search_words", low=prefix, high=after, limit=limit)]


def _tagged(sessions: Iterable[str]) -> str:
    return f"(tags : ({' OR '.join(map(session_tag, sessions))}))"


def _shown(db: Database, heads: list[_Head], wanted: Query, limit: int) -> list[Hit]:
    places = dumps([[head.id, head.session_id] for head in heads])
    texts = {row[0]: row[1:] for row in query.rows(db, "search_texts", places=places)}
    hits: list[Hit] = []
    for head in heads:
        text, title, cwd = texts[head.id]
        cut = snippet(text, wanted.terms, limit)
        place = head.session_id or head.owner_id
        hits.append(Hit(place, head.seq, head.type, head.time, title, cwd, cut.text, cut.matches))
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
    }
