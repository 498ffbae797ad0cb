"""Candidates for a reference, and the context that a message with references gets before it is sent.

What is read, it is read by the session-query service: a session that is open here as it is now, another as it is
stored. Nothing is loaded before somebody refers to something.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from dsh.core.errors import DshError
from dsh.core.lossless import MAX_INT
from dsh.core.messages import Block, HookContext

if TYPE_CHECKING:
    from dsh.agent.agent import Agent
    from dsh.kernel.host import Host
    from dsh.kernel.signal import Signal
    from dsh.query.service.service import SessionQuery
    from dsh.query.service.values import SessionRecord, SurfaceSnapshot
    from dsh.session.references import Quote, Reference
    from dsh.session.sessions import Sessions
    from dsh.store.database import Database


class Candidate(NamedTuple):
    """A session that a message may refer to; `label` is its title, or without one its id."""

    session_id: str
    label: str
    cwd: str | None
    created_at: int


class Prepared(NamedTuple):
    """A message's content, and its context: one, or none if it refers to nothing."""

    content: list[Block]
    contexts: list[HookContext]


class Limits(NamedTuple):
    """Sessions that one message may refer to, bytes of JSON for each, candidates listed."""

    max_references: int = 3
    max_reference_bytes: int = 65_536
    candidates: int = 50

    def check(self) -> None:
        """SESSION_REFERENCE_INVALID_CONFIG names the one that is out of its range."""
        from dsh.session.references import refuse

        for name, value in self._asdict().items():
            most = 3 if name == "max_references" else MAX_INT
            if type(value) is not int or not 1 <= value <= most:
                refuse("INVALID_CONFIG", f"{name} must be a whole number from 1 to {most}")


class References:
    """Every failure of its own has a code SESSION_REFERENCE_…, and comes before anything is sent."""

    def __init__(self, host: Host, sessions: Sessions, limits: Limits | None = None) -> None:
        self._host = host
        self._sessions = sessions
        self._limits = limits or Limits()
        if limits is not None:
            limits.check()

    @property
    def _query(self) -> SessionQuery:
        from dsh.query.service.service import shared

        return shared(self._host, self._sessions, self._sessions.db.path)

    async def list_candidates(self, agent: Agent, query: str = "", limit: int | None = None) -> list[Candidate]:
        """Sessions whose id, folder or title holds `query`, whatever its case: those of the agent's folder, those of
        none, those of others; each newest first (SR-3). SESSION_REFERENCE_INVALID_REFERENCE for a bad limit."""
        from dsh.session.references import refuse

        limit = self._limits.candidates if limit is None else limit
        if type(limit) is not int or not 1 <= limit <= MAX_INT:
            refuse("INVALID_REFERENCE", "limit must be a whole number from 1 on")
        here, wanted = agent.session.header.get("cwd"), query.casefold()
        groups: tuple[list[SessionRecord], ...] = ([], [], [])
        for record in await self._query.list_sessions():
            cwd = record.header.get("cwd")
            group = groups[1 if cwd is None else 0 if cwd == here else 2]
            if record.id != agent.id and len(group) < limit:
                known = any(wanted in text.casefold() for text in (record.id, cwd or ""))
                if known or wanted in ((await self._title(record.id)) or "").casefold():
                    group.append(record)
        return [await self._candidate(record) for record in [*groups[0], *groups[1], *groups[2]][:limit]]

    async def _candidate(self, record: SessionRecord) -> Candidate:
        label = await self._title(record.id) or record.id
        return Candidate(record.id, label, record.header.get("cwd"), record.header["createdAt"])

    async def _title(self, session_id: str) -> str | None:
        try:
            return (await self._query.read_title_snapshot(session_id)).title
        except DshError:  # it is known by its id, and reading it will say what is wrong
            return None

    async def prepare(
        self, agent: Agent, content: list[Block], references: Sequence[Reference], signal: Signal | None = None
    ) -> Prepared:
        """What to send with a message that refers to sessions (SR-4). `signal` ends the reading."""
        from dsh.kernel.signal import Signal
        from dsh.session.references import checked, context, refuse

        wanted = checked(references, agent.id, self._limits.max_references)
        quotes: list[Quote] = []
        ended = signal or Signal()
        with ended.scope():
            for index, reference in wanted:
                quotes.append(await self._quote(index, reference))
        if ended.cancelled:
            refuse("CANCELLED", "reading what the message refers to was cancelled")
        return Prepared(list(content), [context(quotes)] if quotes else [])

    async def _quote(self, index: int, reference: Reference) -> Quote:
        import trio

        try:
            found = await self._query.read_surface(reference.session_id)
        except DshError as error:
            _unreadable(reference, error)
        # A long one takes a while to be measured.
        return await trio.to_thread.run_sync(_quoted, found, index, reference, self._limits)


def prepare_stored(
    db: Database, session_id: str, content: list[Block], references: Sequence[Reference], limits: Limits | None = None
) -> Prepared:
    """`References.prepare` for a message that is left in the inbox of a session, from what is stored."""
    from dsh.query.service import reads
    from dsh.session.references import checked, context

    limits = limits or Limits()
    quotes: list[Quote] = []
    for index, reference in checked(references, session_id, limits.max_references):
        try:
            with db.snapshot():
                found = reads.finished(reads.surface(reads.stored_log(db, reference.session_id)))
        except DshError as error:
            _unreadable(reference, error)
        quotes.append(_quoted(found, index, reference, limits))
    return Prepared(list(content), [context(quotes)] if quotes else [])


def _quoted(found: SurfaceSnapshot, index: int, reference: Reference, limits: Limits) -> Quote:
    from dsh.session.references import conversation, quote

    cwd, captured = found.session.get("cwd"), found.captured_through_seq
    return quote(reference, index, cwd, captured, conversation(found.events), limits.max_reference_bytes)


def _unreadable(reference: Reference, error: DshError) -> NoReturn:
    from dsh.session.references import refuse

    refuse("READ_FAILED", f"session {reference.session_id} cannot be referred to: {error.message}")
