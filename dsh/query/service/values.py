"""What the service takes and gives. Values are detached: nothing that is appended later changes them (SQ-2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, NoReturn, Protocol

from dsh.core.errors import DshError
from dsh.core.events import Event, SessionHeader
from dsh.store.database import Database

SurfaceClass = Literal["current", "shadowed", "log-only"]
SURFACE_CLASSES = ("current", "shadowed", "log-only")


class QueryError(DshError):
    """A refusal of the service; its code is one of the table in docs/spec/session-query.md."""

    code = "SESSION_QUERY_INDEX_FAILED"


def refuse(code: str, message: str) -> NoReturn:
    """Raise SESSION_QUERY_<code>."""
    raise QueryError(message, code=f"SESSION_QUERY_{code}")


class LiveSession(Protocol):
    """What the service needs of a session that is open in this process."""

    @property
    def header(self) -> SessionHeader: ...
    @property
    def db(self) -> Database: ...
    @property
    def stored(self) -> bool: ...
    @property
    def length(self) -> int: ...


class Live(Protocol):
    """The sessions that are open in this process (dsh.session.sessions.Sessions)."""

    def live(self, id: str) -> LiveSession | None: ...
    def __iter__(self) -> Iterator[LiveSession]: ...


class SessionRecord(NamedTuple):
    """A session and where it is: `live` if it is open in this process, `persisted` if it has committed rows."""

    header: SessionHeader
    live: bool
    persisted: bool

    @property
    def id(self) -> str:
        return self.header["id"]


class EventRecord(NamedTuple):
    """An event without its payload; `time` in epoch ms."""

    session_id: str
    seq: int
    type: str
    time: int
    surface: SurfaceClass


class EventDocument(NamedTuple):
    """An event that says something, and what it says (SQ-40)."""

    session_id: str
    seq: int
    type: str
    time: int
    surface: SurfaceClass
    text: str


class EventHit(NamedTuple):
    """An event that a search found, and a piece of its text (SQ-57)."""

    session_id: str
    seq: int
    type: str
    time: int
    surface: SurfaceClass
    snippet: str


class SessionHit(NamedTuple):
    """A session that a search found, with its best event."""

    header: SessionHeader
    live: bool
    persisted: bool
    best_match: EventHit


class SessionPage(NamedTuple):
    items: tuple[SessionHit, ...]
    next_cursor: str | None


class EventPage(NamedTuple):
    items: tuple[EventHit, ...]
    next_cursor: str | None
    session: SessionHeader


class LogSnapshot(NamedTuple):
    session: SessionHeader
    events: tuple[Event, ...]


class SurfaceSnapshot(NamedTuple):
    """What the model sees, in history order, with all that was appended up to `captured_through_seq`; that is None only
    for an empty log."""

    session: SessionHeader
    captured_through_seq: int | None
    events: tuple[Event, ...]


class TitleObservation(NamedTuple):
    session: SessionHeader
    title: str | None


class TitleResult(NamedTuple):
    """A session's title, or why it could not be read."""

    session_id: str
    value: TitleObservation | None
    reason: Exception | None

    @property
    def status(self) -> Literal["fulfilled", "rejected"]:
        return "rejected" if self.value is None else "fulfilled"


class EventWindow(NamedTuple):
    """An event and its neighbours, whatever their types; `start_seq` and `end_seq` are both included."""

    session: SessionHeader
    target: Event
    events: tuple[Event, ...]
    start_seq: int
    end_seq: int


class EventTrace(NamedTuple):
    """Where an event stands between those it replaced or was made from, and those that came of it (SQ-21, SQ-22)."""

    session: SessionHeader
    target: EventRecord
    replaced_by: int | None
    replacement_chain: tuple[int, ...]
    replaced_event_seqs: tuple[int, ...]
    source_event_seqs: tuple[int, ...]
    derived_event_seqs: tuple[int, ...]


class LineageNode(NamedTuple):
    session: SessionRecord
    descendants: tuple[LineageNode, ...]


class LineageTrace(NamedTuple):
    """A session's family. `root` is there if the chain of parents is `complete`, else the id that is missing."""

    target: SessionRecord
    ancestors: tuple[SessionRecord, ...]
    descendants: tuple[LineageNode, ...]
    complete: bool
    root: SessionRecord | None
    unresolved_parent_id: str | None
