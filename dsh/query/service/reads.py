"""Reads of one session's log up to where it was when the read began.

Each is a generator that pauses after a page, so that the same code serves two callers: a worker thread runs it to its
end inside one snapshot, the event loop lets others run at every pause. A log only grows, so both see one state of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, NoReturn, TypeVar

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.events import Event, SessionHeader
from dsh.core.lossless import dumps, loads
from dsh.query import check
from dsh.query.records import event_of, header_of
from dsh.query.service.corpus import not_found, state_of
from dsh.query.service.filters import Filters, admits_event, values_of
from dsh.query.service.surface import Surface
from dsh.query.service.values import (
    EventDocument,
    EventRecord,
    EventTrace,
    EventWindow,
    LiveSession,
    LogSnapshot,
    SurfaceSnapshot,
    refuse,
)
from dsh.store.database import Database, Row
from dsh.store.functions import DOCUMENT_TYPES, document_text

T = TypeVar("T")
Steps = Generator[None, None, T]

READ_WINDOW_MAX = 50
_PAGE = 500
_CODES = {"SE-9": "LEGACY_EVENT", "PE-31": "VERSION_UNSUPPORTED"}


class Log(NamedTuple):
    """A session's log: the events below `length`, in `db`."""

    db: Database
    header: SessionHeader
    length: int
    live: bool

    @property
    def id(self) -> str:
        return self.header["id"]


def stored_log(db: Database, session_id: str) -> Log:
    """The log as committed. SESSION_QUERY_SESSION_NOT_FOUND."""
    state = state_of(db, session_id)
    if state is None:
        not_found(session_id)
    return Log(db, header_of(state), state[9], False)


def live_log(session: LiveSession) -> Log:
    """The log of a session that is open here: its header from memory, its events by its own connection (SQ-4)."""
    return Log(session.db, session.header, session.length, True)


def finished(steps: Steps[T]) -> T:
    """Run a read to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


def whole(log: Log) -> Steps[LogSnapshot]:
    """Every event. A stored log is first held against all rules of a log; a live one was when it was opened (SQ-7).
    LOG_CORRUPT, LEGACY_EVENT, VERSION_UNSUPPORTED."""
    if not log.live:
        for found in check.check(log.db, log.id, limit=1):
            where = f"event {found.seq} of session {log.id}" if found.seq is not None else f"session {log.id}"
            raise SessionError(f"{where} {found.message}", code=_CODES.get(found.rule, "LOG_CORRUPT"))
    events: list[Event] = []
    for page in _pages(log, "events_between"):
        events += map(event_of, page)
        yield
    return LogSnapshot(log.header, tuple(events))


def records(log: Log) -> Steps[list[EventRecord]]:
    """Every event, without payloads. SESSION_QUERY_INVALID_SURFACE, as the next three."""
    surface, heads = yield from _folded(log)
    return [EventRecord(log.id, seq, type_, time, surface.class_of(seq)) for seq, (type_, time) in heads.items()]


def surface(log: Log) -> Steps[SurfaceSnapshot]:
    """What the model sees, with every append up to one, and none after (SQ-9)."""
    folded, _ = yield from _folded(log)
    nodes = list(folded.nodes())
    events: list[Event] = []
    for low in range(0, len(nodes), _PAGE):
        events += _picked(log, nodes[low : low + _PAGE])
        yield
    return SurfaceSnapshot(log.header, log.length - 1 if log.length else None, tuple(events))


def documents(log: Log, filters: Filters) -> Steps[list[EventDocument]]:
    """The events that say something and fit the clauses, by seq (SQ-34)."""
    folded = Surface(log.id)
    found: list[tuple[int, str, int, str]] = []
    patterns = [clause.pattern for clause in filters if clause.pattern]
    for page in _pages(log, "sq_log_page"):
        for seq, type_, time, data, sources, op, span in page:
            folded.add(seq, type_, sources, op, span)
            if type_ in DOCUMENT_TYPES and admits_event(filters, seq, type_, time):
                text = _text(seq, type_, data)
                if text and all(pattern.found_in(text) for pattern in patterns):
                    found.append((seq, type_, time, text))
        yield
    _complete(log, folded)
    wanted = values_of(filters, "surface")
    made = (EventDocument(log.id, seq, type_, time, folded.class_of(seq), text) for seq, type_, time, text in found)
    return [document for document in made if wanted is None or document.surface in wanted]


def trace(log: Log, seq: object) -> Steps[EventTrace]:
    """Where an event stands among those it replaced or came of. SESSION_QUERY_EVENT_NOT_FOUND comes before what is
    wrong with the log (SQ-20)."""
    at = _position(log, seq)
    if not query.rows(log.db, "events_between", session=log.id, low=at, high=at):
        _no_event(log, seq)
    folded, heads = yield from _folded(log)
    type_, time = heads[at]
    return EventTrace(
        log.header,
        EventRecord(log.id, at, type_, time, folded.class_of(at)),
        folded.replaced_by.get(at),
        folded.chain(at),
        folded.removed.get(at, ()),
        folded.sources.get(at, ()),
        tuple(later for later, named in folded.sources.items() if at in named),
    )


def check_window(before: object, after: object, most: int = READ_WINDOW_MAX) -> None:
    """SESSION_QUERY_INVALID_WINDOW unless both are counts up to the most that a window has on a side."""
    for side in (before, after):
        if type(side) is not int or not 0 <= side <= most:
            refuse("INVALID_WINDOW", f"a window has 0 to {most} events before and after")


def window(log: Log, seq: object, before: int, after: int) -> Steps[EventWindow]:
    """An event and its neighbours (SQ-10). SESSION_QUERY_EVENT_NOT_FOUND."""
    at = _position(log, seq)
    start, end = max(0, at - before), min(log.length - 1, at + after)
    events = tuple(map(event_of, query.rows(log.db, "events_between", session=log.id, low=start, high=end)))
    target = next((event for event in events if event["seq"] == at), None)
    if target is None:
        _no_event(log, seq)
    yield
    return EventWindow(log.header, target, events, start, end)


def title(log: Log) -> str | None:
    """The newest title that was logged. LOG_CORRUPT if it cannot be read."""
    found = query.row(log.db, "sq_title", session=log.id) if log.length else None
    if found is not None and found[0] is None:
        raise SessionError(f"the title of session {log.id} cannot be read", code="LOG_CORRUPT")
    return str(found[0]) if found else None


def _position(log: Log, seq: object) -> int:
    if type(seq) is not int or not 0 <= seq < log.length:
        _no_event(log, seq)
    return seq


def _no_event(log: Log, seq: object) -> NoReturn:
    refuse("EVENT_NOT_FOUND", f"session {log.id} has no event {seq}")


def _pages(log: Log, name: str) -> Iterator[list[Row]]:
    for low in range(0, log.length, _PAGE):
        yield query.rows(log.db, name, session=log.id, low=low, high=min(low + _PAGE, log.length) - 1)


def _folded(log: Log) -> Steps[tuple[Surface, dict[int, tuple[str, int]]]]:
    folded = Surface(log.id)
    heads: dict[int, tuple[str, int]] = {}
    for page in _pages(log, "sq_envelopes"):
        for seq, type_, time, sources, op, span in page:
            folded.add(seq, type_, sources, op, span)
            heads[seq] = (type_, time)
        yield
    _complete(log, folded)
    return folded, heads


def _complete(log: Log, folded: Surface) -> None:
    if folded.length != log.length:
        refuse("INVALID_SURFACE", f"the log of session {log.id} is not valid: its last events are missing")


def _picked(log: Log, seqs: Sequence[int]) -> Iterable[Event]:
    return map(event_of, query.rows(log.db, "sq_events_at", session=log.id, seqs=dumps(list(seqs))))


def _text(seq: int, type_: str, data: str) -> str:
    try:
        return document_text(type_, loads(data))
    except ValueError as error:
        raise SessionError(f"event {seq} cannot be read: {error}", code="LOG_CORRUPT") from error
