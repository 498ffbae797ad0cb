"""The live sessions of this process: creating, resuming, forking, and the announcements that go with them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from dsh import query
from dsh.core.errors import DshError, SessionError
from dsh.core.events import ENVELOPE_KEYS, Event, SessionHeader
from dsh.core.ids import new_session_id
from dsh.core.lossless import MAX_INT, mend_surrogates, same
from dsh.kernel.host import Host
from dsh.session.repair import repair
from dsh.session.session import Session, header_of
from dsh.store import writes
from dsh.store.database import Database

_META = ("cwd", "parentSession", "createdAt", "seedLength", "delegationDepth")


class Sessions:
    """A service: every live session by id."""

    def __init__(self, host: Host, db: Database) -> None:
        self.host = host
        self.db = db
        self._live: dict[str, Session] = {}
        self._announcing: dict[Session, bool] = {}  # whether their removal was asked for meanwhile

    def live(self, id: str) -> Session | None:
        return self._live.get(id)

    def __iter__(self) -> Any:
        return iter(list(self._live.values()))

    def create(
        self, id: str | None = None, *, meta: Mapping[str, Any] | None = None, seed: Sequence[Event] | None = None
    ) -> Session:
        """`prepare_new`, published at once."""
        return self.publish(self.prepare_new(id, meta=meta, seed=seed))

    def prepare_new(
        self, id: str | None = None, *, meta: Mapping[str, Any] | None = None, seed: Sequence[Event] | None = None
    ) -> Session:
        """A new private session; nothing is stored before its first event or the seed (PE-1, SE-50 to SE-53).

        SESSION_ALREADY_EXISTS, HEADER_INVALID, SEED_INVALID (naming the first bad event).
        """
        given = dict(meta or {})
        name = id if id is not None else new_session_id()
        header = SessionHeader(version=0, id=name, createdAt=given.pop("createdAt", writes.now_ms()))
        header.update({k: given.pop(k) for k in _META if given.get(k) is not None})  # type: ignore[typeddict-item]
        check_header(header, given)
        if name in self._live or query.row(self.db, "session_state", session=name):
            raise SessionError(f"session {name} exists already", code="SESSION_ALREADY_EXISTS")
        session = Session(self, header, stored=False)
        if seed:
            self._plant(session, seed)
        session.fresh = True
        return session

    def prepare_stored(self, id: str, *, holder: str | None = None) -> Session:
        """The stored session `id`, still private, with its last turn closed (PE-30, PE-73).

        SESSION_NOT_FOUND; SESSION_LEASED while another process drives it; LOG_CORRUPT, LEGACY_EVENT,
        VERSION_UNSUPPORTED. Nothing is repaired if a check fails.
        """
        if id in self._live:
            raise SessionError(f"session {id} is already live", code="SESSION_ALREADY_EXISTS")
        state = query.row(self.db, "session_state", session=id)
        if state is None:
            raise SessionError(f"there is no session {id}", code="SESSION_NOT_FOUND")
        if state[1] != 0:
            raise SessionError(f"session {id} has format version {state[1]}", code="VERSION_UNSUPPORTED")
        session = Session(self, header_of(state), stored=True)
        session.claim(holder or secrets.token_hex(8))
        try:
            session.load_state()
            check_log(self.db, id)
            repair(self.db, session)
        except BaseException:
            session.release()
            raise
        return session

    def fork(self, source: Session | str, boundary: int | None = None, child: str | None = None) -> Session:
        """A child that shares the source's events up to `boundary`, the end of a turn (SE-55, SE-56).

        SESSION_ALREADY_EXISTS, SESSION_NOT_FOUND, SESSION_NOT_LIVE, INVALID_BOUNDARY, OPEN_TURN.
        """
        name = child if child is not None else new_session_id()
        if name in self._live or query.row(self.db, "session_state", session=name):
            raise SessionError(f"session {name} exists already", code="SESSION_ALREADY_EXISTS")
        if isinstance(source, Session) and self._live.get(source.id) is not source:
            raise SessionError(f"session {source.id} is not live", code="SESSION_NOT_LIVE")
        parent = source.id if isinstance(source, Session) else source
        state = query.row(self.db, "session_state", session=parent)
        live = self._live.get(parent)
        if state is None and live is None:
            raise SessionError(f"there is no session {parent}", code="SESSION_NOT_FOUND")
        length = state[9] if state is not None else 0
        if live is not None and state is None and boundary is None:
            return self.create(name, meta=_inherited(live.header, 0))
        at = length - 1 if boundary is None else boundary
        if type(at) is not int or not 0 <= at < length:
            raise SessionError(f"session {parent} has no event {at}", code="INVALID_BOUNDARY")
        writes.insert_fork(self.db, name, parent, at, writes.now_ms(), None)
        stored = query.row(self.db, "session_state", session=name)
        assert stored is not None
        session = Session(self, header_of(stored), stored=True)
        session.load_state()
        session.fresh = True
        return self.publish(session)

    def dispose(self, session: Session) -> None:
        """Forget a live session and give up its lease; what is stored stays. While it is being announced, that waits
        until every observer has heard of it (SE-54)."""
        if session in self._announcing:
            self._announcing[session] = True
            return
        if session.disposed:
            return
        session.disposed = True
        self._live.pop(session.id, None)
        try:
            session.release()
        finally:
            self.host.hooks.notify("session/disposed", session.scope_key, session)

    def publish(self, session: Session) -> Session:
        """Make a prepared session live and announce it (SE-54).

        An observer that fails vetoes it: the session is disposed, and deleted if it was new; the failure is raised.
        """
        if session.id in self._live:
            raise SessionError(f"session {session.id} is already live", code="SESSION_ALREADY_EXISTS")
        self._live[session.id] = session
        self._announcing[session] = False
        veto = self.host.hooks.notify("session/created", session.scope_key, session)
        removed = self._announcing.pop(session)
        fresh, session.fresh = session.fresh, False
        if veto is not None or removed:
            self.dispose(session)
        if veto is not None:
            if fresh and session.length:
                writes.delete_session(self.db, session.id)
            raise veto
        return session

    def _plant(self, session: Session, seed: Sequence[Event]) -> None:
        with self.db.transaction():
            for index, event in enumerate(seed):
                try:
                    check_envelope(event, index)
                    session.record(
                        event["type"],
                        event["data"],
                        surface=event.get("surfaceOp"),
                        sources=event.get("sourceEventSeqs"),
                        time=event["time"],
                    )
                except DshError as error:
                    code = error.code if error.code == "LEGACY_EVENT" else "SEED_INVALID"  # SE-9: alike everywhere
                    raise SessionError(f"event {index} of the seed: {error}", code=code) from error


def _inherited(header: SessionHeader, seed_length: int) -> dict[str, Any]:
    meta: dict[str, Any] = {"parentSession": header["id"], "seedLength": seed_length}
    if "cwd" in header:
        meta["cwd"] = header["cwd"]
    return meta


def check_log(db: Database, id: str) -> None:
    """Refuse a stored log that is not what was written (PE-10, PE-32): LEGACY_EVENT, LOG_CORRUPT, naming the seq."""
    found = query.row(db, "log_check", session=id)
    length, events, last_turn_event, turns, open_turn, legacy, unreadable = found or (0, 0, None, 0, None, None, None)
    if legacy is not None:
        raise SessionError(f"event {legacy} of session {id} is of a kind that is no longer read", code="LEGACY_EVENT")
    kept = f"turn/{'end' if open_turn is None else 'start'} {turns}" if turns else None
    ends_as_kept = last_turn_event == kept
    if events != length or not ends_as_kept or unreadable is not None:
        what = f"{events} of {length} events are there" if events != length else "its last events are missing"
        if unreadable is not None:
            what = f"event {unreadable} cannot be read"
        raise SessionError(f"session {id} is damaged: {what}", code="LOG_CORRUPT", hint="dsh doctor checks everything")


def check_envelope(event: Event, index: int) -> None:
    """The envelope of a seeded event: exact keys, a type, contiguous seq, a time (SE-50)."""
    if not isinstance(event, Mapping):
        raise SessionError("is not an object", code="SEED_INVALID")
    extra = set(event) - ENVELOPE_KEYS
    missing = {"type", "seq", "time", "data"} - set(event)
    if extra or missing:
        raise SessionError(f"has wrong keys: {', '.join(sorted(extra | missing))}", code="SEED_INVALID")
    absent = [k for k in ("sourceEventSeqs", "surfaceOp") if k in event and event.get(k) is None]
    if absent or not _text(event["type"]):
        raise SessionError(f"has no valid {', '.join(absent) or 'type'}", code="SEED_INVALID")
    if not same(event["seq"], index):
        raise SessionError(f"has seq {event['seq']}", code="SEED_INVALID")
    if type(event["time"]) is not int or not 0 <= event["time"] <= MAX_INT:
        raise SessionError("has no valid time", code="SEED_INVALID")


def check_header(header: SessionHeader, unknown: Mapping[str, Any]) -> None:
    """Types of a new header that the database cannot see before the first event is stored (SE-53)."""
    bad = [*unknown]
    bad += [k for k in ("createdAt", "seedLength", "delegationDepth") if k in header and not _count(header[k])]
    bad += [k for k in ("id", "parentSession") if k in header and not _text(header[k])]
    if "cwd" in header and not (_text(header["cwd"]) and os.path.isabs(header["cwd"])):
        bad.append("cwd")
    if bad:
        raise SessionError(f"session header: {', '.join(bad)} not valid", code="HEADER_INVALID")


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and mend_surrogates(value) == value
