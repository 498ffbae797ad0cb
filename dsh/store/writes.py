"""Every statement that changes the database, as functions over views. The rules themselves are in schema.sql."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsh.core.errors import SessionError, StoreError
from dsh.core.lossless import dumps, loads
from dsh.store import locks, named
from dsh.store.database import Database, Row
from dsh.store.functions import INDEX_VERSION

_INSERT_EVENT = (
    "INSERT INTO driver_event(holder, session_id, seq, type, time, data, source_event_seqs, surface_op, pieces)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SHARED = 512  # characters from which on a part of a request header is worth a row of its own
_INSERT_SESSION = (
    "INSERT INTO session(id, version, created_at, cwd, parent_session, seed_length, delegation_depth, source,"
    " incarnation) VALUES (:id, :version, :createdAt, :cwd, :parentSession, :seedLength, :delegationDepth, :source,"
    " :incarnation)"
)
_HEADER_FIELDS = ("id", "version", "createdAt", "cwd", "parentSession", "seedLength", "delegationDepth")

_INDEX_EVENTS = 20_000  # indexed in one transaction
LEASE_STALE_MS = 30_000
LEASE_HEARTBEAT_S = 5.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def insert_session(
    db: Database, header: Mapping[str, Any], *, source: str | None = None, incarnation: str | None = None
) -> None:
    """Store a header. SESSION_ALREADY_EXISTS, HEADER_INVALID. Only together with a first event (PE-1).

    `source` names the tool that a session was imported from; `incarnation` is given for a copy of the same log.
    """
    fields = {f: header.get(f) for f in _HEADER_FIELDS}
    db.rows(_INSERT_SESSION, {**fields, "source": source, "incarnation": incarnation})


def insert_fork(
    db: Database,
    child: str,
    parent: str,
    boundary: int,
    created_at: int,
    cwd: str | None,
    *,
    source: str | None = None,
) -> None:
    """A session that shares the parent's events up to `boundary`, inclusive (SE-55); `source` as for a new one."""
    db.rows(
        "INSERT INTO fork(id, parent_session, boundary, created_at, cwd, source) VALUES (?, ?, ?, ?, ?, ?)",
        (child, parent, boundary, created_at, cwd, source),
    )


def insert_event(
    db: Database,
    session_id: str,
    seq: int,
    type_: str,
    at: int,
    data: str,
    sources: str | None,
    op: str | None,
    holder: str | None = None,
) -> None:
    """Append one event; `data`, `sources`, `op` are JSON text. SESSION_LEASED unless `holder` is who holds the lease,
    or None and nobody does (PE-74)."""
    pieces = None
    if type_ == "request/header":
        data, pieces = _shared(data)
    db.rows(_INSERT_EVENT, (holder, session_id, seq, type_, at, data, sources, op, pieces))


def insert_events(
    db: Database, session_id: str, first: int, rows: Iterable[tuple[str, int, str, str | None, str | None]]
) -> None:
    """Append many events to a session that nobody drives, from seq `first` on, all or none; a row is type, time, data,
    source seqs and surface op, the last three JSON text. A header in it is stored whole."""
    bound = ((None, session_id, seq, *row, None) for seq, row in enumerate(rows, first))
    with db.transaction():
        db.many(_INSERT_EVENT, bound)


def _shared(data: str) -> tuple[str, str | None]:
    """A request header without its system prompt and tools, and these: most sessions have them in common, and the
    database stores each once. What is not written as we write it is left whole."""
    header: Any = None
    try:
        body = loads(data)
        header = body.get("header") if isinstance(body, dict) else None
    except ValueError:
        pass  # refused with its code where it is stored
    if not isinstance(header, dict):
        return data, None
    found: list[tuple[int, str]] = []
    for name in ("system", "tools"):
        value = header.get(name)
        text = dumps(value) if isinstance(value, str | list) else ""
        at = data.find(f'"{name}":{text}') if len(text) >= _SHARED else -1
        if at >= 0:
            found.append((at + len(name) + 4, text[1:-1]))
    pieces: list[list[Any]] = []
    rest, end = "", 0
    for at, text in sorted(found):
        rest += data[end:at]
        pieces.append([len(rest), text])
        end = at + len(text)
    return rest + data[end:], dumps(pieces) if pieces else None


def delete_session(db: Database, session_id: str) -> None:
    """Remove a whole session. SESSION_NOT_FOUND, SESSION_HAS_FORKS, SESSION_LEASED; a stale lease protects nothing."""
    with db.transaction():
        if named.row(db, "session_state", session=session_id) is None:
            raise SessionError(f"there is no session {session_id}", code="SESSION_NOT_FOUND")
        lease = _lease_of(db, session_id)
        if lease is not None and _stale(*lease[1:]):
            release_lease(db, session_id, lease[0])
        fit_index(db)
        db.rows("DELETE FROM session WHERE id = ?", (session_id,))


def note_deleted(db: Database, session_id: str, at: int) -> None:
    """Remember that a session was deleted (PE-87), unless there is one of that id."""
    db.rows("INSERT INTO deleted_session(id, deleted_at) VALUES (?, ?)", (session_id, at))


def fit_index(db: Database) -> None:
    """Empty an index that other functions made than today's: it is then made anew, as anything not indexed yet. To be
    called before documents go, since FTS5 has to be told what they were (SQ-73)."""
    row = named.row(db, "index_lag")
    if row is not None and row[2] != INDEX_VERSION:
        db.rows("UPDATE store SET index_version = ?", (INDEX_VERSION,))


def refresh_search(db: Database) -> None:
    """Bring the full-text index up to the newest event. Nothing is written when it already is."""
    row = named.row(db, "index_lag")
    if row and (row[0] < row[1] or row[2] != INDEX_VERSION):
        with db.transaction():
            fit_index(db)
            db.rows("UPDATE store SET search_indexed = last_event")


def index_search(db: Database) -> Iterator[int]:
    """Bring the full-text index up to the newest event as `refresh_search` does, a piece for each value that is asked
    for: how many events are left. For many events at once: others can write in between."""
    fit_index(db)
    while (row := named.row(db, "index_lag")) is not None and row[0] < row[1]:
        db.rows("UPDATE store SET search_indexed = ?", (row[0] + _INDEX_EVENTS,))
        yield max(0, row[1] - row[0] - _INDEX_EVENTS)


def rebuild_search(db: Database) -> Iterator[int]:
    """Make the full-text index anew from the log (SQ-73), a piece for each value that is asked for: how many events
    are left. Each piece is a transaction of its own, so others can write, and search what is indexed, in between."""
    db.rows("INSERT INTO rebuild(session_id) VALUES (NULL)")
    yield from index_search(db)


def rebuild_session(db: Database, session_id: str) -> None:
    """Derive surface and counters of a session from its events again (PE-79); its parent's first. SESSION_NOT_FOUND;
    SURFACE_INVALID or LOG_CORRUPT where its events do not give any, and then all stays as it was."""
    db.rows("INSERT INTO rebuild(session_id) VALUES (?)", (session_id,))


def check_search(db: Database) -> str | None:
    """Compare the full-text index with the log it was made from; the complaint, or None. Reads every document."""
    try:
        db.rows("INSERT INTO search(search, rank) VALUES ('integrity-check', 1)")
    except StoreError as error:
        if error.code != "DB_DAMAGED":
            raise
        return error.message
    return None


def set_setting(db: Database, key: str, value: Any) -> None:
    db.rows("INSERT INTO setting(key, value) VALUES (?, ?)", (key, dumps(value)))


def unset_setting(db: Database, key: str) -> None:
    db.rows("DELETE FROM setting WHERE key = ?", (key,))


def set_cache(db: Database, key: str, value: Any) -> None:
    """Keep what would take long to find out again."""
    db.rows("INSERT INTO cache(key, value) VALUES (?, ?)", (key, dumps(value)))


def trust_folder(db: Database, folder: str, at: int | None = None) -> None:
    db.rows("INSERT INTO trusted_folder(folder, trusted_at) VALUES (?, ?)", (folder, now_ms() if at is None else at))


def distrust_folder(db: Database, folder: str) -> None:
    db.rows("DELETE FROM trusted_folder WHERE folder = ?", (folder,))


def note_import(db: Database, tool: str, path: str, stamp: str, state: Any) -> None:
    """Remember what was read of a file of another tool."""
    db.rows(
        "INSERT INTO import_source(tool, path, stamp, state, imported_at) VALUES (?, ?, ?, ?, ?)",
        (tool, path, stamp, dumps(state), now_ms()),
    )


def save_query(db: Database, name: str, sql: str, about: str | None) -> None:
    db.rows("INSERT INTO saved_query(name, sql, about, saved_at) VALUES (?, ?, ?, ?)", (name, sql, about, now_ms()))


def delete_query(db: Database, name: str) -> None:
    db.rows("DELETE FROM saved_query WHERE name = ?", (name,))


def pin_session(db: Database, session_id: str, at: int | None) -> None:
    """Pin, or with None unpin."""
    db.rows("UPDATE session SET pinned = ? WHERE id = ?", (at, session_id))


def hide_session(db: Database, session_id: str, at: int | None) -> None:
    """Leave a session out of lists and searches, or with None take it in again; its events stay."""
    db.rows("UPDATE session SET hidden = ? WHERE id = ?", (at, session_id))


def put_message(
    db: Database,
    session_id: str,
    message_id: str,
    route: str,
    content: Any,
    source: Any,
    contexts: Any = (),
    meta: Any = None,
    sent_at: int | None = None,
) -> int:
    """Leave a message in a session's inbox; its position there.

    `route` is followup, queue, steer, inject or cancel. SESSION_NOT_FOUND, INPUT_INVALID, INPUT_NOT_JSON.
    """
    with db.transaction():
        db.rows(
            "INSERT INTO inbox(session_id, message_id, route, content, source, contexts, meta, sent_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (session_id, message_id, route, dumps(content), dumps(source), dumps(list(contexts)),
             None if meta is None else dumps(meta), now_ms() if sent_at is None else sent_at),
        )  # fmt: skip
        row = named.row(db, "inbox_position", message=message_id)
    assert row is not None
    return int(row[0])


def take_message(db: Database, message_id: str) -> None:
    """Remove a message; in the transaction that appends the event it becomes, so that it is delivered once."""
    db.rows("DELETE FROM inbox WHERE message_id = ?", (message_id,))


def drop_messages(db: Database, session_id: str, holder: str | None, message_ids: Iterable[str]) -> None:
    """Remove messages that nobody will get, unless another driver than `holder` has the session: they are its now."""
    with db.transaction():
        lease = _lease_of(db, session_id)
        if lease is None or lease[0] == holder:
            for message_id in message_ids:
                take_message(db, message_id)


def claim_lease(db: Database, session_id: str, holder: str) -> None:
    """Become the driver of a session, taking over a stale lease; SESSION_LEASED if another process holds it (PE-72)."""
    with db.transaction():  # a lease found stale is still so when it is replaced (PE-73)
        row = _lease_of(db, session_id)
        replaces = None
        if row is not None and row[0] != holder:
            if not _stale(*row[1:]):
                raise SessionError(
                    f"session {session_id} is driven by process {row[1]}",
                    code="SESSION_LEASED",
                    hint=f"dsh send {session_id} TEXT reaches it, dsh attach {session_id} shows what it does",
                )
            replaces = row[0]
        _write_lease(db, session_id, holder, replaces)


def _lease_of(db: Database, session_id: str) -> Row | None:
    return named.row(db, "lease", session=session_id)


def _write_lease(db: Database, session_id: str, holder: str, replaces: str | None) -> None:
    pid = os.getpid()
    db.rows(
        "INSERT INTO lease(session_id, holder, pid, boot_id, process_start, heartbeat, replaces)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (session_id, holder, pid, locks.boot_id(), locks.process_start(pid), now_ms(), replaces),
    )


def beat_lease(db: Database, session_id: str, holder: str) -> None:
    """Renew the lease; SESSION_LEASED if it was taken over meanwhile, also by one that is gone again (PE-74)."""
    with db.transaction():
        row = _lease_of(db, session_id)
        if row is None or row[0] != holder:
            raise SessionError(f"session {session_id} was taken over by another process", code="SESSION_LEASED")
        _write_lease(db, session_id, holder, None)


def release_lease(db: Database, session_id: str, holder: str) -> None:
    db.rows("DELETE FROM lease WHERE session_id = ? AND holder = ?", (session_id, holder))


def free_session(db: Database, session_id: str) -> None:
    """Give up the lease of a driver that is gone, as the next run of the session would (PE-73)."""
    lease = _lease_of(db, session_id)
    if lease is not None and not is_driven(*lease[1:]):
        release_lease(db, session_id, lease[0])


def is_driven(pid: int, boot: str, start: str, heartbeat: int) -> bool:
    """Whether the process of a lease row is still there (PE-73). One that is silent, as it is stopped or this machine
    has just slept, is there and will go on; where a process cannot be asked, as in a container, silence counts."""
    there = _is_there(pid, boot, start)
    return not is_silent(heartbeat) if there is None else there


def is_silent(heartbeat: int) -> bool:
    """Whether a driver has missed so many heartbeats that another may take its session over."""
    return heartbeat < now_ms() - LEASE_STALE_MS


def _stale(pid: int, boot: str, start: str, heartbeat: int) -> bool:
    """Whether a lease may be taken over (PE-73)."""
    return _is_there(pid, boot, start) is False or is_silent(heartbeat)


def _is_there(pid: int, boot: str, start: str) -> bool | None:
    """Whether a process runs; None where it cannot be asked."""
    here = locks.boot_id()
    if boot.split()[:1] != here.split()[:1]:
        return False
    if boot != here:
        return None
    now = locks.process_start(pid)
    if now == "":
        return False
    return None if "unknown" in (now, start) else now == start
