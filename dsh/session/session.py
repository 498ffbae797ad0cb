"""One session: a handle over its rows in the log, and the only way the program appends to it.

The log is the truth, and the database refuses what does not belong there; the handle keeps no second copy of the
events. It remembers three things so that a step costs the same however long the session is: the next seq, the
messages derived so far (extended by new surface nodes, rebuilt only after a replacement), and the header in force.

An append goes straight to SQLite and returns when it is committed: some 50 us in WAL mode, where a commit is not
synced. `flush` makes all of it durable; the loop calls it at every checkpoint (PE-22 to PE-24, PE-71).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import trio

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.events import Event, SessionHeader
from dsh.core.ids import SessionId
from dsh.core.lossless import FrozenDict, dumps, freeze, loads
from dsh.core.messages import EpochHeader, Message, canonical
from dsh.session.records import event_of
from dsh.store import writes
from dsh.store.database import Database

if TYPE_CHECKING:
    from dsh.session.sessions import Sessions

APPEND: str = "append"


class Session:
    """A live session. Made by `Sessions`; one per id in a process, and one process per id by its lease (PE-72)."""

    def __init__(self, owner: Sessions, header: SessionHeader, *, stored: bool) -> None:
        self._owner = owner
        self._db: Database = owner.db
        self.header: SessionHeader = freeze(dict(header))
        self.id = SessionId(header["id"])
        self.length = 0
        self.generation = 0
        self.turns = 0
        self.open_turn: int | None = None
        self.open_step: int | None = None
        self.steps = 0  # of the open turn, or of the last one
        self.disposed = False
        self.fresh = False  # made in this process and not announced yet: a veto takes back what it stored (SE-54)
        self.scope_key: object | None = None  # the agent that drives it: whose scoped observers hear of it (SC-15)
        self._stored = stored
        self._holder: str | None = None
        self._announcing = False
        self._messages: list[Message] = []
        self._derived = 0  # messages cover the log below this seq
        self._derived_generation = 0
        self._header_in_force: EpochHeader | None = None

    @property
    def cwd(self) -> str | None:
        return self.header.get("cwd")

    @property
    def db(self) -> Database:
        return self._db

    @property
    def stored(self) -> bool:
        """Whether it has an event, and so exists for others (PE-1)."""
        return self._stored

    @property
    def holder(self) -> str | None:
        """The token of the lease under which this process drives it."""
        return self._holder

    @property
    def announcing(self) -> bool:
        """Whether an append is being announced; another is then refused (SE-6)."""
        return self._announcing

    # ------------------------------------------------------------------------------------------------ appending

    def append(
        self,
        type: str,
        data: Any,
        *,
        surface: str | dict[str, Any] | None = None,
        sources: Sequence[int] | None = None,
        takes: str | None = None,
    ) -> Event:
        """Append one event, tell the observers, and return it, frozen, as it is stored (SE-1 to SE-7).

        `surface` is "append" or a replace object on the four surface types; `sources` are earlier seqs; `takes` is the
        id of the inbox message that the event delivers, which leaves the inbox in the same transaction. A refusal
        (EVENT_NOT_JSON, SURFACE_INVALID, INVARIANT, LEGACY_EVENT, …) leaves log and inbox as they were.
        """
        event = self.record(type, data, surface=surface, sources=sources, takes=takes)
        self._announcing = True
        try:
            self._owner.host.hooks.notify("session/event", self.scope_key, self, event)
        finally:
            self._announcing = False
        return event

    def record(
        self,
        type: str,
        data: Any,
        *,
        surface: str | dict[str, Any] | None = None,
        sources: Sequence[int] | None = None,
        time: int | None = None,
        takes: str | None = None,
    ) -> Event:
        """Append without telling observers: for seeds and repairs, which happen before anybody observes (SE-50)."""
        frozen = freeze(data)
        text = dumps(frozen)
        source_list = None if sources is None else freeze(list(sources))
        op = freeze(surface)
        if self._announcing:
            raise SessionError("an observer of an append may not append to the same session", code="APPEND_REENTRANT")
        at = writes.now_ms() if time is None else time
        self._db.on_rollback(self, self._state)  # of several appends: the handle must not run ahead of the log
        self._store(
            freeze(type),
            at,
            text,
            None if source_list is None else dumps(source_list),
            None if op is None else dumps(op),
            takes,
        )
        event = FrozenDict(type=type, seq=self.length, time=at, data=frozen)
        if source_list is not None:
            dict.__setitem__(event, "sourceEventSeqs", source_list)
        if op is not None:
            dict.__setitem__(event, "surfaceOp", op)
        self._follow(cast(Event, event))
        return cast(Event, event)

    def _store(self, type: str, at: int, data: str, sources: str | None, op: str | None, takes: str | None) -> None:
        if self._stored:
            if takes is None:
                writes.insert_event(self._db, self.id, self.length, type, at, data, sources, op, self._holder)
                return
            with self._db.transaction():  # delivered once, whenever the process ends
                writes.insert_event(self._db, self.id, self.length, type, at, data, sources, op, self._holder)
                writes.take_message(self._db, takes)
            return
        with self._db.transaction():  # the header exists only together with a first event (PE-1, PE-6)
            writes.insert_session(self._db, self.header)
            if self._holder is not None:
                writes.claim_lease(self._db, self.id, self._holder)
            writes.insert_event(self._db, self.id, self.length, type, at, data, sources, op, self._holder)
        self._stored = True

    def _state(self) -> Callable[[], None]:
        """How to go back to the present state of the handle; what was derived meanwhile is derived anew."""
        kept = (self.length, self.generation, self.turns, self.steps, self.open_turn, self.open_step)
        stored, header = self._stored, self._header_in_force

        def restore() -> None:
            self.length, self.generation, self.turns, self.steps, self.open_turn, self.open_step = kept
            self._stored, self._header_in_force = stored, header
            self._messages, self._derived, self._derived_generation = [], 0, self.generation

        return restore

    def _follow(self, event: Event) -> None:
        self.length += 1
        kind, data = event["type"], event["data"]
        if kind == "turn/start":
            self.turns = self.open_turn = data["turn"]
            self.steps = 0
        elif kind == "turn/end":
            self.open_turn = None
        elif kind == "step/start":
            self.open_step = self.steps = data["step"]
        elif kind == "step/end":
            self.open_step = None
        elif kind == "request/header":
            self._header_in_force = canonical(data["header"])
        if event.get("surfaceOp", APPEND) != APPEND:
            self.generation += 1

    # ------------------------------------------------------------------------------------------------- deriving

    def derive_messages(self) -> tuple[Message, ...]:
        """What the model sees now (SE-20 to SE-24): the view `message`, read only where it is new."""
        if not self._stored:
            return ()
        if self.generation != self._derived_generation:
            self._messages = []
            self._derived = 0
        if self._derived < self.length:
            for _, role, content, provenance in query.rows(
                self._db, "messages_since", session=self.id, seq=self._derived
            ):
                message: dict[str, Any] = {"role": role, "content": loads(content)}
                if provenance is not None:
                    message["provenance"] = loads(provenance)
                self._messages.append(freeze(message))
            self._derived = self.length
            self._derived_generation = self.generation
        return tuple(self._messages)

    def header_in_force(self) -> EpochHeader | None:
        """The latest logged request header (SE-31), or None before the first."""
        return self._header_in_force

    def events(self, low: int = 0, high: int | None = None) -> list[Event]:
        """Stored events from `low` to `high`, both included."""
        top = self.length - 1 if high is None else high
        return [event_of(r) for r in query.rows(self._db, "events_between", session=self.id, low=low, high=top)]

    # ------------------------------------------------------------------------------------------ lease and flush

    def claim(self, holder: str) -> None:
        """Become this session's driver (PE-72, PE-73); a session without events claims with its first one."""
        self._holder = holder
        if self._stored:
            writes.claim_lease(self._db, self.id, holder)

    def beat(self) -> None:
        if self._stored and self._holder is not None:
            writes.beat_lease(self._db, self.id, self._holder)

    def release(self) -> None:
        if self._stored and self._holder is not None:
            writes.release_lease(self._db, self.id, self._holder)
        self._holder = None

    async def flush(self) -> None:
        """Return when everything appended is safe: on disk, and wherever else a plugin keeps it (SE-59)."""
        await self._owner.flush(self)

    async def sync(self) -> None:
        """Return when everything appended is on disk; after the end of a turn it is in the search index, too (SQ-70).

        A disk that syncs faster than a worker thread can be asked to is not left to one.
        """
        if not self._stored:
            return
        if self.open_turn is None:
            writes.refresh_search(self._db)
        if self._db.syncs_at_once:
            await trio.lowlevel.checkpoint()
            self._db.sync()
        else:
            await trio.to_thread.run_sync(self._db.sync)

    # -------------------------------------------------------------------------------------------------- loading

    def load_state(self) -> None:
        """Take over what the database knows about a stored session."""
        state = query.row(self._db, "session_state", session=self.id)
        if state is None:
            raise SessionError(f"there is no session {self.id}", code="SESSION_NOT_FOUND")
        self.length, self.generation, self.turns = state[9], state[10], state[11]
        self.open_turn, self.open_step = state[13], state[14]
        found = query.row(self._db, "header_in_force", session=self.id)
        self._header_in_force = canonical(freeze(loads(found[1]))) if found else None
