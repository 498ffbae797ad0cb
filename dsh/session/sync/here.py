"""The sessions of a database as a place of `sync`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.events import SessionHeader, span
from dsh.core.ids import new_session_id
from dsh.core.lossless import dumps
from dsh.query.naming import NEWEST
from dsh.session import frames, jsonl
from dsh.session.jsonl import LogReader
from dsh.session.records import check_log, header_of
from dsh.session.sync.model import (
    TELLING,
    Fetch,
    NotWhole,
    Offer,
    Outcome,
    branch_id,
    digest_of,
    key_of,
    same_digest,
    same_event,
)
from dsh.session.transfer import read_log, readable_rows, row_of, store_log
from dsh.store import writes
from dsh.store.database import Database, Row

_TYPES = dumps(TELLING)
_PAGE = 500  # events read at a time
_TRIES = 5


class Here:
    """A database. With `deleted`, sessions that were deleted here come back."""

    def __init__(self, db: Database, *, deleted: bool = False) -> None:
        self.db = db
        self._restores = deleted
        self._families: dict[str, dict[str, Row]] = {}
        self._deleted = frozenset(str(row[0]) for row in query.rows(db, "sync_deleted"))
        for row in query.rows(db, "sync_sessions"):
            self._families.setdefault(key_of(row[0]), {})[row[0]] = row
        self._gone = frozenset(map(key_of, self._deleted)) - set(self._families)  # families of which nothing is left
        self._changed = False

    # --------------------------------------------------------------------------------------------------- giving

    def offers(self) -> Iterator[Offer]:
        for key, family in self._families.items():
            for id_, length, _, parent, _ in family.values():
                yield Offer(key, length, self.digest(id_, length), id_, parent)

    def described(self, offer: Offer) -> Offer:
        return offer

    @contextmanager
    def fetch(self, offer: Offer) -> Iterator[BinaryIO]:
        import tempfile

        name = str(offer.id)
        with tempfile.TemporaryFile() as file:
            with self.db.snapshot():
                state = query.row(self.db, "session_state", session=name)
                of = self._families.get(key_of(name), {}).get(name)
                if state is None or of is None:
                    raise SessionError(f"there is no session {name}", code="SESSION_NOT_FOUND")
                check_log(self.db, name)
                first = jsonl.header_line(header_of(state), source=of[4], incarnation=of[2])
                rows = readable_rows(self.db, name, offer.length)
                file.writelines(frames.compressed(first, jsonl.event_lines(rows)))
            file.seek(0)
            yield file

    # --------------------------------------------------------------------------------------------------- taking

    def wanted(self, offers: Iterable[Offer]) -> list[Offer]:
        return [offer for offer in offers if not self._has(offer)]

    def is_gone(self, offer: Offer) -> bool:
        """Whether the log was deleted here, and stays so."""
        if self._restores:
            return False
        return offer.key in self._gone or self._is_deleted(offer.key, offer.id)

    def _is_deleted(self, key: str, id: str | None) -> bool:
        """Whether the id is one of those that were deleted, and was not made again."""
        return not self._restores and id in self._deleted and id not in self._families.get(key, {})

    def _has(self, offer: Offer) -> bool:
        return any(
            row[1] >= offer.length and same_digest(self.digest(id_, offer.length), offer.digest)
            for id_, row in self._families.get(offer.key, {}).items()
        )

    def digest(self, id: str, length: int) -> str:
        """The digest of a log as it was at this length."""
        tail = query.rows(self.db, "sync_tail", session=id, below=length, types=_TYPES)
        return digest_of(key_of(id), length, tail)

    def put(self, offer: Offer, fetch: Fetch, *, dry_run: bool) -> Outcome:
        """Store a log, or what it has more than the copy here, in one transaction.

        SEED_INVALID, LEGACY_EVENT, LOG_CORRUPT for what breaks a rule; SYNC_INCOMPLETE for what is not the log that was
        offered; SESSION_LEASED if the copy here is driven. A refusal changes nothing.
        """
        if self.is_gone(offer):
            return Outcome("deleted", offer.id or offer.key)
        with fetch() as file:
            for _ in range(_TRIES):
                plan = self._plan(offer, file)
                if dry_run or plan.kind in ("known", "deleted"):
                    break
                with self.db.transaction():
                    if not self._holds(plan):
                        continue
                    self._carry_out(plan, offer, file)
                self._changed = True
                break
            else:
                raise SessionError(f"session {plan.id} is being written to", code="SESSION_LEASED")
        events = offer.length - plan.base_length if plan.kind == "grown" else offer.length
        return Outcome(plan.kind, plan.id, events, plan.base if plan.kind == "diverged" else None)

    def _plan(self, offer: Offer, file: BinaryIO) -> _Plan:
        log = _opened(file)
        assert log.header is not None
        name = log.header["id"]
        if key_of(name) != offer.key or (offer.id is not None and name != offer.id):
            raise NotWhole(f"it is of session {name}")
        if name in NEWEST:
            raise SessionError(f"{name!r} cannot be the id of a session", code="HEADER_INVALID")
        tracks = [_Track(self.db, each) for each in self._families.get(offer.key, {})]
        header, length = self._compared(log, tracks)
        if length != offer.length or log.dropped:
            raise NotWhole(f"it has {length} of {offer.length} events")
        if any(track.differs is None and track.length >= length for track in tracks):
            return _Plan("known", name)
        beginnings = [track for track in tracks if track.differs is None]
        if beginnings:
            base = max(beginnings, key=lambda track: track.length)
            return _Plan("grown", base.id, header, base.id, base.length)
        if not tracks:
            return _Plan("deleted" if self._is_deleted(offer.key, name) else "new", name, header)
        return self._branched(name, header, max(tracks, key=lambda track: track.differs or 0))

    def _compared(self, log: LogReader, tracks: Sequence[_Track]) -> tuple[SessionHeader, int]:
        """Read a log along those that are here: its length, and its header, in which the parent is called what the log
        that it shares events with is called here."""
        assert log.header is not None
        header, length = log.header, 0
        parent, seed = header.get("parentSession"), header.get("seedLength")
        last: dict[str, Row] = {}
        for place in log.events():
            event: Any = place.event
            if length == seed and parent is not None:
                header = self._adopted(header, parent, length, last.values())
            length = event["seq"] + span(event["type"], event["data"])
            if event["type"] == "assistant/chunk":
                continue
            row = row_of(event)
            if row[1] in TELLING:
                last[row[1]] = row
            for track in tracks:
                track.meet(row)
        for track in tracks:
            track.end(length)
        return header, length

    def _adopted(self, header: SessionHeader, parent: str, length: int, last: Iterable[Row]) -> SessionHeader:
        digest = digest_of(key_of(parent), length, last)
        names = [
            id_
            for id_, row in self._families.get(key_of(parent), {}).items()
            if row[1] >= length and same_digest(self.digest(id_, length), digest)
        ]
        if not names or parent in names:
            return header
        return SessionHeader(**{**header, "parentSession": names[0]})

    def _branched(self, id: str, header: SessionHeader, nearest: _Track) -> _Plan:
        """A log that parts from all those that are here: a fork of the one with which it has most in common."""
        assert nearest.differs is not None
        number = 0
        while (name := branch_id(id, nearest.parting, number)) in self._families[key_of(id)]:
            number += 1
        if self._is_deleted(key_of(id), name):
            return _Plan("deleted", name)
        found = query.row(self.db, "turn_ends_near", session=nearest.id, seq=nearest.differs)
        if found is not None and found[0] is not None:
            header = SessionHeader(**{**header, "parentSession": nearest.id, "seedLength": found[0] + 1})
        return _Plan("diverged", name, header, nearest.id, nearest.length)

    def _holds(self, plan: _Plan) -> bool:
        """Whether nobody has appended to what a plan was made of; what is here now is known then."""
        state = query.row(self.db, "session_state", session=plan.base or plan.id)
        length = None if state is None else state[9]
        if length == (plan.base_length if plan.base is not None else None):
            return True
        key = key_of(plan.base or plan.id)
        rows = [row for row in query.rows(self.db, "sync_sessions") if key_of(row[0]) == key]
        self._families[key] = {row[0]: row for row in rows}
        return False

    def _carry_out(self, plan: _Plan, offer: Offer, file: BinaryIO) -> None:
        log = _opened(file)
        incarnation = log.incarnation
        if plan.kind == "grown":
            incarnation = self._families[offer.key][plan.id][2]
            self._append(plan, log)
        else:
            kept = incarnation if plan.kind == "new" else None
            store_log(self.db, log, as_id=plan.id, header=plan.header, incarnation=kept, close=False, same=same_event)
        if not same_digest(self.digest(plan.id, offer.length), offer.digest):
            raise NotWhole("it is not the log that its name says")
        state = query.row(self.db, "session_state", session=plan.id)
        assert state is not None
        row = (plan.id, offer.length, state[7], state[4], log.source)
        self._families.setdefault(offer.key, {})[plan.id] = row

    def _append(self, plan: _Plan, log: LogReader) -> None:
        """Append what a log has more than the copy here, as its driver: SESSION_LEASED if there is another."""
        holder = new_session_id()
        writes.claim_lease(self.db, plan.id, holder)
        for place in log.events():
            event: Any = place.event
            after = event["seq"] + span(event["type"], event["data"])
            if after <= plan.base_length:
                continue
            row = row_of(event)
            if row[0] < plan.base_length:  # a run of fragments that was thinned there, and had begun to arrive here
                rest = {**event["data"], "chunk": {"type": "thinned", "count": after - plan.base_length}}
                row = (plan.base_length, row[1], row[2], dumps(rest), None, None)
            try:
                writes.insert_event(self.db, plan.id, *row, holder=holder)
            except SessionError as error:
                raise SessionError(
                    f"event {row[0]} (line {place.line}): {error.message}", code="SEED_INVALID"
                ) from error
        writes.release_lease(self.db, plan.id, holder)

    def close(self) -> None:
        """Index what has come, and put it on disk."""
        if self._changed:
            writes.refresh_search(self.db)
            self.db.sync()
            self._changed = False


class _Plan(NamedTuple):
    """What to do with a log: store it as `id`, append to `base`, which has `base_length` events, or nothing."""

    kind: str
    id: str
    header: SessionHeader | None = None
    base: str | None = None
    base_length: int = 0


class _Track:
    """A stored log, read along another one. `differs` is the seq from which they are not the same, None so far."""

    def __init__(self, db: Database, id: str) -> None:
        state = query.row(db, "session_state", session=id)
        self.id = id
        self.length = int(state[9]) if state is not None else 0
        self.differs: int | None = None
        self.parting: Sequence[Any] = ()
        self._rows = self._landmarks(db)
        self._next = next(self._rows, None)

    def _landmarks(self, db: Database) -> Iterator[Row]:
        after = -1
        while rows := query.rows(db, "sync_landmarks", session=self.id, after=after, limit=_PAGE):
            yield from rows
            after = rows[-1][0]

    def meet(self, row: Row) -> None:
        """The next event of the other log that is no fragment."""
        if self.differs is not None or (self._next is None and row[0] >= self.length):
            return
        if self._next is not None and same_event(self._next, row):
            self._next = next(self._rows, None)
            return
        self.differs = row[0] if self._next is None else min(row[0], self._next[0])
        self.parting = row[:4]

    def end(self, length: int) -> None:
        """The other log is over, at this length."""
        if self.differs is None and self._next is not None and self._next[0] < length:
            self.differs, self.parting = self._next[0], (self._next[0], "end", length)


def _opened(file: BinaryIO) -> LogReader:
    file.seek(0)
    log = read_log(file)
    if log.header is None:
        raise SessionError("it has no header", code="LOG_CORRUPT")
    return log
