"""Writing what was salvaged from a damaged database into a new one, through its rules (PE-77).

Sessions come parents first, each with its events in order up to the first one that is missing, unreadable or refused:
what comes after a hole has lost its meaning. A log that was cut short is closed as a crash would be (PE-34). Forks go
on sharing rows with their parents; one whose shared part was cut is cut at the last end of a turn before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dsh import query
from dsh.core.errors import DshError, SessionError, StoreError
from dsh.core.lossless import loads
from dsh.kernel.config import Config
from dsh.kernel.host import Host
from dsh.query.check import logs
from dsh.session.records import row_span
from dsh.session.sessions import Sessions
from dsh.store import writes
from dsh.store.database import Database
from dsh.store.recover import Found, Salvage


class Carried(NamedTuple):
    """A session in the new database: how many events of its log it has now, and how many of its old log are lost, as
    far as that is known. A session without any event left is not there."""

    id: str
    kept: int
    lost: int


class _Cut(Exception):
    """The log has to end before this event, which a check does not accept."""

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


def carry(old: Salvage, db: Database) -> Iterator[Carried]:
    """Write everything into a new, empty database; one line for each session, parents first."""
    for key, value in old.settings:
        old.refused += not _taken(_setting, db, key, value)
    for folder, at in old.folders:
        writes.trust_folder(db, folder, at)
    for name, sql, about in old.queries:
        writes.save_query(db, name, sql, about)
    done: dict[int, Carried] = {}
    names: set[str] = set()
    for id_, found in sorted(old.sessions.items()):
        if found.name in names or found.name == "":
            found.name = f"recovered-{id_}"
        kept = _session(old, db, found, done)
        if kept:
            names.add(found.name)
            writes.pin_session(db, found.name, found.pinned)
            writes.hide_session(db, found.name, found.hidden)
        done[id_] = Carried(found.name, kept, max(0, found.length - kept))
        yield done[id_]
    for message in old.inbox:
        old.refused += not _taken(_message, db, done, message)
    for name, at in old.deleted:
        writes.note_deleted(db, name, at)
    for each in done.values():
        if each.kept and each.lost:
            Sessions(Host(Config({}, {})), db).prepare_stored(each.id).release()
    writes.refresh_search(db)


def _taken(write: Callable[..., Any], *arguments: Any) -> bool:
    """Carry something over if the rules take it; a full disk is still an error."""
    try:
        write(*arguments)
    except (DshError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, StoreError):
            raise
        return False
    return True


def _setting(db: Database, key: str, value: str) -> None:
    writes.set_setting(db, key, loads(value))


def _message(db: Database, done: dict[int, Carried], message: tuple[Any, ...]) -> None:
    _, session, id_, route, content, source, contexts, meta, sent_at = message
    owner = done.get(session)
    if owner is not None and owner.kept:  # else it is lost with its session
        told = None if meta is None else loads(meta)
        writes.put_message(db, owner.id, id_, route, loads(content), loads(source), loads(contexts), told, sent_at)


def _session(old: Salvage, db: Database, found: Found, done: dict[int, Carried]) -> int:
    """Write one session; how many events its log has now, 0 if there is none to write."""
    below = found.length
    while True:
        try:
            with db.transaction():
                kept = _written(old, db, found, done, below)
                wrong = min((v.seq for v in logs(db, found.name) if v.seq is not None), default=kept) if kept else 0
                if wrong < kept:
                    raise _Cut(wrong)
                return kept
        except _Cut as cut:
            below = cut.seq


def _written(old: Salvage, db: Database, found: Found, done: dict[int, Carried], below: int) -> int:
    if found.start == 0:
        return _append(old, db, found, 0, below)
    parent = done.get(found.parent)
    if parent is None:
        return 0
    shared = min(found.start, below, parent.kept)
    row = query.row(db, "last_turn_end", session=parent.id, below=shared)
    if row is None or row[0] is None:
        return 0
    start: int = row[0] + 1
    created, cwd = found.header.get("createdAt", 0), found.header.get("cwd")
    writes.insert_fork(db, found.name, parent.id, start - 1, created, cwd, source=found.source)
    return _append(old, db, found, start, below) if start == found.start else start


def _append(old: Salvage, db: Database, found: Found, start: int, below: int) -> int:
    """Write events from `start` on, the header before the first; where the log ends then."""
    following = start
    for seq, type_, at, data, sources, op in old.events(found.id):
        if seq < start:
            continue
        if seq != following or seq >= below:
            break
        if seq == 0:
            _header(db, found, at)
        try:
            writes.insert_event(db, found.name, seq, type_, at, data, sources, op)
        except SessionError as error:
            if seq == 0:  # no header without an event
                raise _Cut(0) from error
            break
        following += row_span((seq, type_, at, data))
    return following


def _header(db: Database, found: Found, at: int) -> None:
    """Store the header, without the fields that came out of the damage as what no header has."""
    try:
        header = {"createdAt": at, **found.header, "id": found.name, "version": 0}
        writes.insert_session(db, header, source=found.source)
    except SessionError:
        found.header = {}
        writes.insert_session(db, {"createdAt": max(0, at), "id": found.name, "version": 0})
