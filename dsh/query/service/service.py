"""The session-query service: for each call the source, the thread, the turn and the end of waiting.

Sessions that are open here are read by their own connection, in the event loop, a page at a time; stored ones, lists
and searches in worker threads, by connections of their own, so that the loop never waits for them. What is asked is
checked and copied when a method is called, before anything is awaited (SQ-33).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import trio

from dsh.core.errors import DshError
from dsh.kernel.host import Host
from dsh.kernel.signal import Signal
from dsh.query.service import phrase, reads
from dsh.query.service.corpus import listing, storage
from dsh.query.service.filters import Filters, admits_session, event_filters, session_filters
from dsh.query.service.lineage import lineage
from dsh.query.service.reads import Log, Steps, finished, live_log, stored_log
from dsh.query.service.values import (
    EventDocument,
    EventPage,
    EventRecord,
    EventTrace,
    EventWindow,
    LineageTrace,
    Live,
    LogSnapshot,
    QueryError,
    SessionPage,
    SessionRecord,
    SurfaceSnapshot,
    TitleObservation,
    TitleResult,
    refuse,
)
from dsh.store import writes
from dsh.store.database import Database

T = TypeVar("T")
Clauses = Sequence[Mapping[str, Any]]

_MOST = 2**53 - 2
_PATIENCE_MS = 10_000  # for somebody else's lock: what has begun cannot be cancelled


class Limits(NamedTuple):
    """Hits of a page, characters of a snippet, events on each side of a window."""

    default_limit: int = phrase.DEFAULT_LIMIT
    max_limit: int = phrase.MAX_LIMIT
    snippet_chars: int = phrase.SNIPPET_CHARS
    read_window_max: int = reads.READ_WINDOW_MAX

    def check(self) -> None:
        """SESSION_QUERY_INVALID_CONFIG names the one that is out of its range."""
        for name, value in self._asdict().items():
            low, high = (0, _MOST) if name == "read_window_max" else (1, _MOST)
            if type(value) is not int or not low <= value <= high:
                refuse("INVALID_CONFIG", f"{name} must be a whole number from {low} on")
        if self.default_limit > self.max_limit:
            refuse("INVALID_CONFIG", "default_limit must not be greater than max_limit")


class SessionQuery:
    """Reads over all sessions. A service, made by `shared`; every failure of its own is a QueryError."""

    def __init__(self, live: Live, path: Path, limits: Limits = Limits()) -> None:  # noqa: B008 - immutable
        limits.check()
        self._live = live
        self._limits = limits
        self._reader = _Worker(path, "PERSISTENCE_FAILED", read_only=True)
        self._searcher = _Worker(path, "INDEX_FAILED", read_only=False)  # it indexes what is new, then searches

    # ------------------------------------------------------------------------------------------------- the corpus

    async def list_sessions(self) -> list[SessionRecord]:
        """Every session once, newest first, then by id (SQ-1). SESSION_QUERY_PERSISTENCE_FAILED, …_SOURCE_CONFLICT."""
        return await self._listing(hidden=False)

    def filter_sessions(self, filters: Clauses) -> Awaitable[list[SessionRecord]]:
        """Those of `list_sessions` that every clause admits. SESSION_QUERY_INVALID_FILTER."""
        return self._filtered(session_filters(filters))

    async def _filtered(self, clauses: Filters) -> list[SessionRecord]:
        return [record for record in await self.list_sessions() if admits_session(clauses, record)]

    async def trace_session(self, session_id: str) -> LineageTrace:
        """Ancestors and descendants, hidden ones too. SESSION_QUERY_SESSION_NOT_FOUND, …_INVALID_LINEAGE."""
        return lineage(await self._listing(hidden=True), session_id)

    async def _listing(self, *, hidden: bool) -> list[SessionRecord]:
        await trio.lowlevel.checkpoint()
        return await self._reader.run(lambda db: listing(db, self._live, hidden=hidden))

    # ------------------------------------------------------------------------------------------------ exact reads

    async def read_session(self, session_id: str) -> LogSnapshot:
        """Header and every event. SESSION_QUERY_SESSION_NOT_FOUND; LOG_CORRUPT and its like for a log that could not be
        opened as a session (SQ-7)."""
        return await self._read(session_id, reads.whole)

    async def list_events(self, session_id: str) -> list[EventRecord]:
        """Every event without its payload. SESSION_QUERY_INVALID_SURFACE for a log that does not fold, as for the next
        three (SQ-8)."""
        return await self._read(session_id, reads.records)

    async def read_surface(self, session_id: str) -> SurfaceSnapshot:
        """What the model sees now, in history order (SQ-9)."""
        return await self._read(session_id, reads.surface)

    def filter_events(self, session_id: str, filters: Clauses) -> Awaitable[list[EventDocument]]:
        """The events that say something and that every clause admits, by seq. SESSION_QUERY_INVALID_FILTER."""
        clauses = event_filters(filters, scan=True)
        return self._read(session_id, lambda log: reads.documents(log, clauses))

    async def trace_event(self, session_id: str, seq: int) -> EventTrace:
        """What an event replaced, was made from, was replaced by. SESSION_QUERY_EVENT_NOT_FOUND."""
        return await self._read(session_id, lambda log: reads.trace(log, seq))

    def read_event(self, session_id: str, seq: int, before: int = 0, after: int = 0) -> Awaitable[EventWindow]:
        """An event with its neighbours. SESSION_QUERY_INVALID_WINDOW, …_EVENT_NOT_FOUND."""
        reads.check_window(before, after, self._limits.read_window_max)
        return self._read(session_id, lambda log: reads.window(log, seq, before, after))

    def read_titles(self, session_ids: Iterable[str]) -> Awaitable[list[TitleResult]]:
        """The title of each different id, in the order of their first mention; one that cannot be read has its reason
        and disturbs no other (SQ-11)."""
        return self._titles(list(dict.fromkeys(session_ids)))

    async def read_title_snapshot(self, session_id: str) -> TitleObservation:
        """The title of one session; its reason is raised."""
        (result,) = await self.read_titles([session_id])
        if result.value is None:
            assert result.reason is not None
            raise result.reason
        return result.value

    async def _titles(self, session_ids: list[str]) -> list[TitleResult]:
        await trio.lowlevel.checkpoint()
        results: list[TitleResult] = []
        for session_id in session_ids:  # one after the other: each is one row, and nothing of it is kept open
            try:
                results.append(TitleResult(session_id, await self._read(session_id, _title), None))
            except DshError as error:
                results.append(TitleResult(session_id, None, error))
        return results

    async def _read(self, session_id: str, read: Callable[[Log], Steps[T]]) -> T:
        """Read a session where it is: a live one in the loop, another in the worker. What becomes live meanwhile is
        read again (SQ-5)."""

        def stored(db: Database) -> T:
            with db.snapshot():
                return finished(read(stored_log(db, session_id)))

        await trio.lowlevel.checkpoint()
        if self._live.live(session_id) is None:
            try:
                found = await self._reader.run(stored)
            except DshError:
                if self._live.live(session_id) is None:
                    raise
            else:
                if self._live.live(session_id) is None:
                    return found
        live = self._live.live(session_id)
        assert live is not None
        with storage():
            steps = read(live_log(live))
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    value: T = end.value
                    return value
                await trio.lowlevel.checkpoint()

    # -------------------------------------------------------------------------------------------------- searching

    def search_sessions(
        self,
        query: str,
        *,
        session_filters: Clauses = (),
        event_filters: Clauses = (),
        limit: int | None = None,
        cursor: str | None = None,
        signal: Signal | None = None,
    ) -> Awaitable[SessionPage]:
        """A page of the sessions in which a literal phrase stands, each with its best event (SQ-50 to SQ-65).

        Searches run one after the other. `signal` ends the wait of one, with SESSION_QUERY_ABORTED; one that has begun
        finishes first (SQ-63).
        """
        wanted = self._request(query, session_filters, event_filters, limit, cursor, None)
        return self._search(lambda db: phrase.search_sessions(db, wanted, self._live), signal)

    def search_events(
        self,
        session_id: str,
        query: str,
        *,
        filters: Clauses = (),
        limit: int | None = None,
        cursor: str | None = None,
        signal: Signal | None = None,
    ) -> Awaitable[EventPage]:
        """A page of one session's events, as `search_sessions`. SESSION_QUERY_SESSION_NOT_FOUND."""
        wanted = self._request(query, (), filters, limit, cursor, session_id)
        return self._search(lambda db: phrase.search_events(db, wanted, self._live), signal)

    def _request(
        self, text: str, sessions: Clauses, events: Clauses, limit: int | None, cursor: str | None, target: str | None
    ) -> phrase.Request:
        return phrase.request(
            text,
            sessions=sessions,
            events=events,
            limit=self._limits.default_limit if limit is None else limit,
            cursor=cursor,
            session=target,
            max_limit=self._limits.max_limit,
            snippet_chars=self._limits.snippet_chars,
        )

    async def _search(self, search: Callable[[Database], T], signal: Signal | None) -> T:
        def indexed(db: Database) -> T:
            writes.refresh_search(db)
            return search(db)

        with (signal or Signal()).scope():
            return await self._searcher.run(indexed)
        raise QueryError("the search was aborted", code="SESSION_QUERY_ABORTED")

    # ----------------------------------------------------------------------------------------------------- ending

    async def aclose(self) -> None:
        """Let what runs finish, refuse what waits and what comes (SQ-64)."""
        with trio.CancelScope(shield=True):
            await self._searcher.aclose()
            await self._reader.aclose()


def shared(host: Host, live: Live, path: Path) -> SessionQuery:
    """The program's one service, made when it is first asked for, and closed with the program."""
    found = host.find(SessionQuery)
    if found is None:
        found = SessionQuery(live, path)
        host.root.provide(SessionQuery, found)
        host.root.effect(found.aclose)
    return found


def _title(log: Log) -> Steps[TitleObservation]:
    found = TitleObservation(log.header, reads.title(log))
    yield
    return found


class _Worker:
    """A connection that is used in a thread, by one call after the other, in the order of their coming. A failure of
    the database has the code SESSION_QUERY_<failure>; one that cannot be opened is PERSISTENCE_FAILED."""

    def __init__(self, path: Path, failure: str, *, read_only: bool) -> None:
        self._path = path
        self._failure = failure
        self._read_only = read_only
        self._db: Database | None = None
        self._turn = trio.StrictFIFOLock()
        self._closed = False

    async def run(self, work: Callable[[Database], T]) -> T:
        """The result of `work(database)`. The wait for its turn can be cancelled; what has begun finishes (SQ-63)."""
        async with self._turn:
            if self._closed:
                refuse(self._failure, "the session-query service is closed")
            found = await trio.to_thread.run_sync(self._done, work)
        await trio.lowlevel.checkpoint_if_cancelled()
        return found

    def _done(self, work: Callable[[Database], T]) -> T:
        if self._db is None:
            with storage():
                self._db = Database.open(
                    self._path, busy_timeout_ms=_PATIENCE_MS, read_only=self._read_only, create=False
                )
        with storage(self._failure):
            return work(self._db)

    async def aclose(self) -> None:
        self._closed = True
        async with self._turn:
            if self._db is not None:
                self._db.close()
                self._db = None
