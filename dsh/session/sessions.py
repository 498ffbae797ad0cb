"""The live sessions of this process: creating, resuming, forking, and the announcements that go with them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from dsh import query
from dsh.core.errors import DshError, SessionError, StoreError
from dsh.core.events import SURFACE_TYPES, Event, SessionHeader, event_type
from dsh.core.ids import new_session_id
from dsh.kernel.host import Host
from dsh.kernel.scope import Context
from dsh.session.records import check_envelope, check_header, check_log, header_of
from dsh.session.repair import repair
from dsh.session.session import Session
from dsh.store import writes
from dsh.store.database import Database

Participant = Callable[[Session], Awaitable[None]]
_META = ("cwd", "parentSession", "createdAt", "seedLength", "delegationDepth")


class Sessions:
    """A service: every live session by id."""

    def __init__(self, host: Host, db: Database) -> None:
        self.host = host
        self.db = db
        self._live: dict[str, Session] = {}
        self._announcing: dict[Session, bool] = {}  # whether their removal was asked for meanwhile
        self._settling: dict[Session, bool] = {}  # the same, while an event is written out of band
        self._participants: list[tuple[object | None, Participant]] = []
        self.loading: dict[str, trio.Event] = {}  # ids whose stored log `Archive.load` is making durable (PE-38)

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

    def prepare_stored(self, id: str, *, holder: str | None = None, loading: bool = False) -> Session:
        """The stored session `id`, still private, with its last turn closed (PE-30, PE-73).

        SESSION_NOT_FOUND; SESSION_LEASED while another process drives it; ID_LOADING, unless it is the load itself
        that asks; LOG_CORRUPT, LEGACY_EVENT, VERSION_UNSUPPORTED. Nothing is repaired if a check fails.
        """
        if not loading:
            self._check_not_loading(id)
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
        from dsh.session import forks  # few runs make one

        name = child if child is not None else new_session_id()
        if name in self._live or query.row(self.db, "session_state", session=name):
            raise SessionError(f"session {name} exists already", code="SESSION_ALREADY_EXISTS")
        if isinstance(source, Session) and self._live.get(source.id) is not source:
            raise SessionError(f"session {source.id} is not live", code="SESSION_NOT_LIVE")
        parent = source.id if isinstance(source, Session) else source
        state = query.row(self.db, "session_state", session=parent)
        live = self._live.get(parent)
        if state is None and live is not None:  # it has no events yet
            if boundary is not None:
                raise SessionError(f"session {parent} has no event {boundary}", code="INVALID_BOUNDARY")
            return self.create(name, meta=_inherited(live.header, 0))
        forks.store(self.db, parent, state[9] - 1 if state is not None and boundary is None else boundary, name)
        stored = query.row(self.db, "session_state", session=name)
        assert stored is not None
        session = Session(self, header_of(stored), stored=True)
        session.load_state()
        session.fresh = True
        return self.publish(session)

    def dispose(self, session: Session) -> None:
        """Forget a live session and give up its lease; what is stored stays. While it is being announced, that waits
        until every observer has heard of it (SE-54), while it is written to out of band, until that is done (SE-58)."""
        for busy in (self._announcing, self._settling):
            if session in busy:
                busy[session] = True
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
        try:
            self._check_not_loading(session.id)
        except SessionError:
            session.release()  # it was never live, so nobody is told
            if session.fresh and session.length:
                writes.delete_session(self.db, session.id)
            raise
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

    def _check_not_loading(self, id: str) -> None:
        if id in self.loading:
            raise SessionError(f"session {id} is being loaded", code="ID_LOADING")

    # ------------------------------------------------------------------------------- flushing, writing out of band

    def on_flush(self, ctx: Context, participant: Participant) -> None:
        """Have `await participant(session)` take part in every flush of the sessions that `ctx` hears of (SE-59)."""
        entry = (ctx.key, participant)
        ctx.effect(lambda: self._participants.remove(entry))
        self._participants.append(entry)

    async def flush(self, session: Session) -> None:
        """Let everybody who keeps the session make it safe, the database first of all; wait for all of them, then raise
        the first failure in the order of their registration (SE-59). SESSION_NOT_LIVE."""
        self._require_live(session)
        others = [p for key, p in self._participants if key is None or key is session.scope_key]
        if not others:
            await session.sync()
            return
        failures: dict[int, Exception] = {}

        async def take_part(number: int, participant: Participant) -> None:
            try:
                await participant(session)
            except Exception as error:  # noqa: BLE001 - the others go on; the first in order is raised below
                failures[number] = error

        async with trio.open_nursery() as nursery:
            for number, participant in enumerate([Session.sync, *others]):
                nursery.start_soon(take_part, number, participant)
        if failures:
            raise failures[min(failures)]

    async def append_out_of_band(self, session: Session, type: str, data: Any, trigger: Mapping[str, Any]) -> Event:
        """Append an event that belongs to no turn of the agent's: to the open turn if there is one, else in a turn of
        its own, which begins with `trigger` and is flushed (SE-57, SE-58).

        INVARIANT for a type that was not declared `out_of_band`, SESSION_NOT_LIVE, OUT_OF_BAND_BUSY. A refusal of the
        event itself is raised when the turn is closed and flushed; it is preferred to a failure of those.
        """
        self._require_live(session)
        if type in SURFACE_TYPES or not event_type.facet(type, "out_of_band"):
            raise SessionError(f"{type} is not of the kinds that are written out of band", code="INVARIANT")
        if session in self._settling:
            raise SessionError(f"session {session.id} is being written to out of band", code="OUT_OF_BAND_BUSY")
        if session.open_turn is not None:
            return session.append(type, data)
        self._settling[session] = False
        try:
            turn = session.append("turn/start", {"turn": session.turns + 1, "trigger": trigger})["data"]["turn"]
            failures: list[Exception] = []
            event: Event | None = None
            try:
                event = session.append(type, data)
            except Exception as error:  # noqa: BLE001 - the turn is closed first
                failures.append(error)
            try:
                session.append("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
            except Exception as error:  # noqa: BLE001
                failures.append(error)
            with trio.CancelScope(shield=True):
                try:
                    await self.flush(session)
                except Exception as error:  # noqa: BLE001
                    failures.append(error)
        finally:
            if self._settling.pop(session):
                self.dispose(session)
        if failures:
            raise failures[0]
        assert event is not None
        return event

    def _require_live(self, session: Session) -> None:
        if self._live.get(session.id) is not session:
            raise SessionError(f"session {session.id} is not live", code="SESSION_NOT_LIVE")

    # ------------------------------------------------------------------------------------------------------- seeds

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
                except StoreError:  # a full disk is no fault of the seed
                    raise
                except DshError as error:
                    code = error.code if error.code == "LEGACY_EVENT" else "SEED_INVALID"  # SE-9: alike everywhere
                    raise SessionError(f"event {index} of the seed: {error}", code=code) from error


def _inherited(header: SessionHeader, seed_length: int) -> dict[str, Any]:
    meta: dict[str, Any] = {"parentSession": header["id"], "seedLength": seed_length}
    if "cwd" in header:
        meta["cwd"] = header["cwd"]
    return meta
