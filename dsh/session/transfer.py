"""A stored session to lines and back: what `dsh export` and `dsh import` do.

Both ways go event by event and hold a window of the log at most. An import is one transaction: every event is checked
by the rules it would have been appended under (SE-50), and the first bad one leaves nothing behind.

A fork is exported whole, with the events it shares. When it comes back and its parent is there, its first events are
compared with the parent's as they are read; if all are equal it is stored as a fork again, which shares them, else as
a session with events of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.events import Event, SessionHeader, span
from dsh.core.ids import new_session_id
from dsh.core.lossless import dumps, loads
from dsh.session import frames, jsonl
from dsh.session.jsonl import LogReader, Place
from dsh.session.masking import Masker
from dsh.session.records import check_header, check_log, header_of, row_span
from dsh.store import writes
from dsh.store.database import Database, Row

_WINDOW = 1000  # events read at a time


def stored_rows(db: Database, session: str, length: int) -> Iterator[Row]:
    """The rows of a log below `length`, in order. LOG_CORRUPT at the first that is missing or cannot be read."""
    expected = 0
    for low in range(0, length, _WINDOW):
        high = min(low + _WINDOW, length) - 1
        for row in query.rows(db, "events_between", session=session, low=low, high=high):
            if row[0] != expected:
                break
            expected += row_span(row)
            yield row
        if expected <= high:
            raise SessionError(f"event {expected} of session {session} is missing", code="LOG_CORRUPT")


def export_lines(
    db: Database, session: str, *, packed: bool = True, masker: Masker | None = None
) -> tuple[SessionHeader, Iterator[str]]:
    """The header of a stored session, and the lines of its events, masked if somebody masks them. Read all of it inside
    one `db.snapshot()`.

    SESSION_NOT_FOUND; LEGACY_EVENT, LOG_CORRUPT for a log that is not what was written.
    """
    state = query.row(db, "session_state", session=session)
    if state is None:
        raise SessionError(f"there is no session {session}", code="SESSION_NOT_FOUND")
    check_log(db, session)
    rows = readable_rows(db, session, state[9])
    return header_of(state), jsonl.event_lines(masker.rows(rows) if masker else rows, packed=packed)


def readable_rows(db: Database, session: str, length: int) -> Iterator[Row]:
    """The same, and LOG_CORRUPT at the first whose data is not JSON."""
    for row in stored_rows(db, session, length):
        try:
            loads(row[3])
        except ValueError as error:
            raise SessionError(f"event {row[0]} of session {session} cannot be read", code="LOG_CORRUPT") from error
        yield row


def write_export(
    db: Database,
    session: str,
    out: BinaryIO,
    *,
    packed: bool = True,
    zstd: bool = False,
    masker: Masker | None = None,
) -> None:
    """Write a session to a binary stream."""
    header, lines = export_lines(db, session, packed=packed, masker=masker)
    first = jsonl.header_line(header)
    if zstd:
        out.writelines(frames.compressed(first, lines))
        return
    out.write(first.encode())
    out.writelines(line.encode() for line in lines)


class Imported(NamedTuple):
    """What an import stored: `closers` events were added to close an open turn, `dropped` lines were a torn tail,
    `left_out` are fields of the header that have no place here; `shared` tells a fork that reads its parent's rows."""

    id: str
    events: int
    closers: int
    dropped: int
    left_out: list[str]
    shared: bool


def read_log(stream: BinaryIO) -> LogReader:
    """The session in a stream, plain or compressed; its first line is read. `stream` must be buffered."""
    if not looks_exported(stream):
        raise SessionError("line 1 is neither a session's header nor an event", code="LOG_CORRUPT")
    packed = stream.peek(1)[:1] == frames.FIRST_BYTE  # type: ignore[attr-defined]
    return LogReader(frames.unpacked_lines(stream) if packed else jsonl.plain_lines(stream))


def looks_exported(stream: BinaryIO) -> bool:
    """Whether a buffered stream may be a session, by its first byte, which is not taken."""
    return stream.peek(1)[:1] in (frames.FIRST_BYTE, jsonl.FIRST_BYTE)  # type: ignore[attr-defined]


def import_log(db: Database, log: LogReader, *, as_id: str | None = None) -> Imported:
    """Store a session, in one transaction, with its last turn closed; it is on disk and can be searched then.

    SESSION_ALREADY_EXISTS; SEED_INVALID or LEGACY_EVENT naming the first bad event; LOG_CORRUPT for a damaged file.
    """
    with db.transaction():
        done = store_log(db, log, as_id=as_id)
    writes.refresh_search(db)
    db.sync()
    return done


def store_log(
    db: Database,
    log: LogReader,
    *,
    as_id: str | None = None,
    header: SessionHeader | None = None,
    incarnation: str | None = None,
    close: bool = True,
    same: Callable[[Row, Row], bool] | None = None,
) -> Imported:
    """What `import_log` does, inside the caller's transaction: neither indexed nor synced yet.

    A copy of a session that is kept elsewhere too has another `header` perhaps, keeps the `incarnation`, and does not
    `close` a turn that is open there. Where its parent's events were redacted or thinned here, `same` says of two that
    they are one; then it shares what is here. Streamed fragments are not compared.
    """
    planted = _Planted(db, log, as_id, header, incarnation, same)
    for place in log.events():
        planted.take(place)
    return planted.finish(close=close)


class _Planted:
    """The session that an import is storing."""

    def __init__(
        self,
        db: Database,
        log: LogReader,
        as_id: str | None,
        header: SessionHeader | None = None,
        incarnation: str | None = None,
        same: Callable[[Row, Row], bool] | None = None,
    ) -> None:
        self.db = db
        self.log = log
        self.same = same
        self.incarnation = incarnation
        self.length = 0
        self.id = as_id or (log.header["id"] if log.header else log.session) or new_session_id()
        self.header: SessionHeader | None = header or log.header
        self.shared = False
        self._parent: Iterator[Row] | None = None  # whose rows were equal so far; nothing is stored yet then
        check_header(SessionHeader(version=0, id=self.id, createdAt=0), {})
        if query.row(db, "session_state", session=self.id) is not None:
            taken = f"session {self.id} exists already"
            raise SessionError(taken, code="SESSION_ALREADY_EXISTS", hint="store it as another: --as NEWID")

    def take(self, place: Place) -> None:
        event: Any = place.event
        try:
            if self.length == 0:
                self._begin(event)
            row = row_of(event)
            if self._parent is not None and not self._as_parent(row):
                self._store_alone()
            if self._parent is None:
                writes.insert_event(self.db, self.id, *row)
        except SessionError as error:
            code = error.code if error.code in ("LEGACY_EVENT", "LOG_CORRUPT") else "SEED_INVALID"
            text = f"event {self.length} (line {place.line}): {error.message}"
            raise SessionError(text, code=code) from error
        self.length += span(event["type"], event["data"])
        if self._parent is not None and self.header is not None and self.length == self.header.get("seedLength"):
            self._share(self.header, event["type"])

    def finish(self, *, close: bool = True) -> Imported:
        if self.length == 0:
            raise SessionError("there is no event in it, so there is no session", code="SEED_INVALID")  # PE-1
        if self._parent is not None:  # it ends before the part that is its own
            self._store_alone()
        state = query.row(self.db, "session_state", session=self.id)
        assert state is not None
        closers = 0 if state[13] is None or not close else _close(self.db, self.id) - self.length
        return Imported(self.id, self.length, closers, self.log.dropped, self.log.left_out, self.shared)

    def _begin(self, first: dict[str, Any]) -> None:
        if self.header is None:  # lines of `dsh show --json`
            self.header = SessionHeader(version=0, id=self.id, createdAt=first["time"])
        self.header = SessionHeader(**{**self.header, "id": self.id})
        parent, length = self.header.get("parentSession"), self.header.get("seedLength", 0)
        state = query.row(self.db, "session_state", session=parent) if parent and length else None
        # A fork has no depth of its own, and without a folder of its own its parent's.
        alike = "delegationDepth" not in self.header and ("cwd" in self.header or (state and state[3] is None))
        if state is not None and state[9] >= length and alike:
            self._parent = stored_rows(self.db, str(parent), length)
            return
        self._insert_header()

    def _insert_header(self) -> None:
        assert self.header is not None
        writes.insert_session(self.db, self.header, source=self.log.source, incarnation=self.incarnation)

    def _as_parent(self, row: Row) -> bool:
        assert self._parent is not None
        if self.same is None:
            return next(self._parent, None) == row
        if row[1] == "assistant/chunk":
            return True
        other = next((each for each in self._parent if each[1] != "assistant/chunk"), None)
        return other is not None and self.same(other, row)

    def _store_alone(self) -> None:
        """The parent's first events were equal and this session's, up to here; they are stored as its own."""
        self._parent = None
        self._insert_header()
        assert self.header is not None
        for row in stored_rows(self.db, self.header["parentSession"], self.length):
            writes.insert_event(self.db, self.id, *row)

    def _share(self, header: SessionHeader, last_type: str) -> None:
        if last_type != "turn/end":
            self._store_alone()
            return
        self._parent = None
        boundary = header["seedLength"] - 1
        writes.insert_fork(self.db, self.id, header["parentSession"], boundary, header["createdAt"], header.get("cwd"))
        self.shared = True


def row_of(event: Event) -> tuple[int, str, int, str, str | None, str | None]:
    """An event as a row of the log."""
    sources, op = event.get("sourceEventSeqs"), event.get("surfaceOp")
    return (
        event["seq"],
        event["type"],
        event["time"],
        dumps(event["data"]),
        None if sources is None else dumps(sources),
        None if op is None else dumps(op),
    )


def _close(db: Database, id: str) -> int:
    """Close the open turn of a session that was cut off (PE-34); its length then."""
    from dsh.kernel.config import Config
    from dsh.kernel.host import Host
    from dsh.session.sessions import Sessions

    session = Sessions(Host(Config({}, {})), db).prepare_stored(id)
    session.release()
    return session.length
