"""The stored sessions of one database, behind the operations of docs/spec/persistence.md.

`Sessions` and `Session` create, append and flush; here are the reads. `inspect`, `list` and `list_snapshots` give what
is stored as it is and keep nothing: each is over before anything else of this process runs (PE-41), so it cannot be
cancelled half-way and holds nobody up. `load` gives a balanced log: of a session that nobody drives it closes the turn
that a crash left open, of a live one of this process it waits until everything is on disk.
"""

from __future__ import annotations

from typing import Any, TypedDict

import trio

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.events import Event, SessionHeader
from dsh.core.lossless import thaw
from dsh.session.records import check_log, event_of, header_of
from dsh.session.sessions import Sessions
from dsh.session.transfer import stored_rows
from dsh.store.identity import file_identity


class Stored(TypedDict):
    """A header and its log, copies that the caller may change."""

    meta: SessionHeader
    events: list[Event]


class Snapshot(TypedDict):
    """A header, and an opaque text that names this state of this log in this database (PE-45)."""

    header: SessionHeader
    revision: str


class Archive:
    """Reads of one database, in a process that may have some of its sessions live."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._db = sessions.db

    def locate(self, header: SessionHeader) -> None:
        """The file of a session of its own; here there is none, all are in one database."""

    async def load(self, id: str) -> Stored:
        """Header and balanced log, everything of it on disk (PE-30, PE-38).

        SESSION_NOT_FOUND; LIVE_TURN_OPEN for a live session in the middle of a turn; SESSION_LEASED where another
        process is; LEGACY_EVENT, LOG_CORRUPT, VERSION_UNSUPPORTED. Loads of one id follow each other (PE-9).
        """
        while (running := self._sessions.loading.get(id)) is not None:
            await running.wait()
        if (live := self._sessions.live(id)) is not None:
            if live.open_turn is not None:
                raise SessionError(f"session {id} is in the middle of a turn", code="LIVE_TURN_OPEN")
            stored = self.inspect(id)
            await live.flush()
            return stored
        done = self._sessions.loading[id] = trio.Event()
        try:
            return await self._load_cold(id)
        finally:
            del self._sessions.loading[id]
            done.set()

    async def _load_cold(self, id: str) -> Stored:
        stored = self.inspect(id)  # every check comes before the repair
        state = query.row(self._db, "session_state", session=id)
        if state is not None and state[13] is not None:
            session = self._sessions.prepare_stored(id, loading=True)
            try:
                stored = self.inspect(id)
            finally:
                session.release()
        await trio.to_thread.run_sync(self._db.sync)
        return stored

    def inspect(self, id: str) -> Stored:
        """Header and log as stored, an open turn too (PE-39). SESSION_NOT_FOUND, LEGACY_EVENT, LOG_CORRUPT,
        VERSION_UNSUPPORTED."""
        with self._db.snapshot():
            state = query.row(self._db, "session_state", session=id)
            if state is None:
                raise SessionError(f"there is no session {id}", code="SESSION_NOT_FOUND")
            if state[1] != 0:
                raise SessionError(f"session {id} has format version {state[1]}", code="VERSION_UNSUPPORTED")
            check_log(self._db, id)
            events: list[Any] = [thaw(event_of(row)) for row in stored_rows(self._db, id, state[9])]
        return Stored(meta=header_of(state), events=events)

    def list_snapshots(self) -> list[Snapshot]:
        """Every stored session's header, oldest first, with the revision of its log (PE-45)."""
        with self._db.snapshot():
            store = query.row(self._db, "store_state")
            rows = query.rows(self._db, "session_headers")
        here = f"{file_identity(self._db.path)}:{store[0] if store else ''}"
        return [Snapshot(header=header_of(row), revision=f"{here}:{row[7]}:{row[8]}") for row in rows]

    def list(self) -> list[SessionHeader]:
        """The same headers alone (PE-40)."""
        return [header_of(row) for row in query.rows(self._db, "session_headers")]
