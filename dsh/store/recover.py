"""Reading what can be read of a damaged database (PE-77), and putting a new one in its place.

The old file is only ever read: it is copied with its -wal file, under a lock that keeps others out, and SQLite applies
the -wal to the copy. The copy's rows are then read page by page (`pages`), so that a bad page costs what was on it and
no more. What rows mean is not decided here: `Salvage` offers sessions and events as they were found, and whoever writes
them into a new database puts them through its rules.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import apsw

from dsh.core.errors import StoreError
from dsh.store import locks, packed
from dsh.store.database import publish
from dsh.store.migrations import APPLICATION_ID, MIGRATIONS
from dsh.store.pages import MAGIC, Entry, Pages, Value

# Where SQLite's own locks on a file are: whoever has a database open holds a shared one on this range.
_SHARED_LOCKS = (0x40000002, 510)
_EVENT_COLUMNS = (8, 11)  # of an event's row, before and since texts may be stored apart from it
_OWN = 2**63 - 1  # the `hi` of a session's own events in _lineage


_PIECES = "SELECT at, start, size, body FROM piece JOIN block ON block.id = piece.block WHERE event = ? ORDER BY at"


@dataclass(slots=True)
class Found:
    """A session as it was found. `header` has the fields of a header that are of the right type; `start` is the first
    seq of its own, below which it reads the events of `parent` (an internal id, 0 if it is not known)."""

    id: int
    name: str
    header: dict[str, Any]
    start: int = 0
    parent: int = 0
    pinned: int | None = None
    hidden: int | None = None
    source: str | None = None
    length: int = 0  # as far as it is known, by the highest seq of any row that speaks of it


class Salvage:
    """What is readable in a file. Events are kept on disk, in a scratch database, by session and seq."""

    def __init__(self, copy: Path) -> None:
        self.sessions: dict[int, Found] = {}
        self.settings: list[tuple[str, str]] = []
        self.folders: list[tuple[str, int]] = []
        self.deleted: list[tuple[str, int]] = []
        self.queries: list[tuple[str, str, str | None]] = []
        self.inbox: list[tuple[Value, ...]] = []
        self.bad_pages = 0
        self.refused = 0  # settings and messages that were found and then not taken, counted by who writes them
        self._frames: dict[int, tuple[str, str]] = {}
        self._scratch = apsw.Connection(str(copy.with_name("rows.db")))
        for statement in (
            "PRAGMA journal_mode = off",
            "PRAGMA synchronous = off",
            "CREATE TABLE event(session INTEGER, seq INTEGER, type TEXT, time INTEGER, data TEXT, source TEXT, op TEXT,"
            " PRIMARY KEY (session, seq)) WITHOUT ROWID",
            "CREATE TABLE block(id INTEGER PRIMARY KEY, body)",
            "CREATE TABLE piece(event INTEGER, at INTEGER, rest INTEGER, block INTEGER, start INTEGER, size INTEGER,"
            " PRIMARY KEY (event, at)) WITHOUT ROWID",
        ):
            self._scratch.execute(statement)
        pages = Pages(copy)
        try:
            self._read(pages)
        finally:
            pages.close()

    def events(self, session: int) -> Iterator[tuple[Any, ...]]:
        """seq, type, time, data, source, op of a session's own events, in order; there may be holes."""
        sql = "SELECT seq, type, time, data, source, op FROM event WHERE session = ? ORDER BY seq"
        yield from self._scratch.execute(sql, (session,))

    def close(self) -> None:
        self._scratch.close()

    def _read(self, pages: Pages) -> None:
        roots = {e.values[1]: e.values[3] for e in pages.tree(1) if len(e.values) == 5 and type(e.values[3]) is int}

        def rows(name: str) -> Iterator[Entry]:
            root = roots.get(name)
            return pages.tree(root) if isinstance(root, int) else iter(())

        versions = [e.rowid for e in rows("_migration") if len(e.values) == 4]
        if versions and max(versions) > len(MIGRATIONS):
            raise StoreError(
                f"has schema version {max(versions)}, made by a newer dsh; this program knows {len(MIGRATIONS)}",
                code="DB_VERSION",
            )
        self._take_sessions(rows("_session"))
        for name in ("_frame", "_block", "_piece"):
            self._take_texts(rows(name))
        self._take_events(rows("_event"))
        waiting = {e.rowid: (e.rowid, *e.values[1:]) for e in rows("_inbox") if len(e.values) == 9}
        self.inbox = [waiting[position] for position in sorted(waiting)]
        self.settings = [(k, v) for k, v in _pairs(rows("_setting")) if isinstance(k, str) and isinstance(v, str)]
        self.queries = list(_queries(rows("_query")))
        self.folders = [(k, v) for k, v in _pairs(rows("_trust")) if isinstance(k, str) and type(v) is int]
        self.deleted = [(k, v) for k, v in _pairs(rows("_deleted")) if isinstance(k, str) and type(v) is int]
        names = [e.values for e in rows("sqlite_autoindex__session_1") if len(e.values) == 2]
        lineage = [e.values for e in rows("_lineage") if len(e.values) == 3 and all(type(v) is int for v in e.values)]
        known = [e.values for e in rows("sqlite_autoindex__event_1") if len(e.values) == 3]
        # What no tree leads to comes last, and gives way to what one did.
        self._take_texts(pages.strays(indexes=True))
        strays = [e for e in self._split_strays(pages) if e.values[0] is None]
        self._take_sessions(strays)
        self._name_the_rest(names)
        self._measure(lineage, known)
        self.bad_pages = len(pages.bad)

    def _split_strays(self, pages: Pages) -> Iterator[Entry]:
        """Takes the events among the stray rows, and gives the others."""
        batch: list[Entry] = []
        for entry in pages.strays():
            if len(entry.values) not in _EVENT_COLUMNS:
                yield entry
                continue
            batch.append(entry)
            if len(batch) == 1000:
                self._take_events(batch)
                batch = []
        self._take_events(batch)

    def _take_sessions(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            v = entry.values
            if not 16 <= len(v) <= 20 or not isinstance(v[1], str) or entry.rowid in self.sessions:
                continue
            fields = {"createdAt": v[3], "seedLength": v[6], "delegationDepth": v[7]}
            header: dict[str, Any] = {k: x for k, x in fields.items() if type(x) is int and x >= 0}
            header |= {k: x for k, x in (("cwd", v[4]), ("parentSession", v[5])) if isinstance(x, str)}
            pinned, hidden = (x if type(x) is int else None for x in (*v[16:], None, None)[:2])
            source = v[18] if len(v) > 18 and isinstance(v[18], str) else None
            start = v[9] if type(v[9]) is int else 0
            if start >= 0:  # one that was just being deleted is gone
                self.sessions[entry.rowid] = Found(entry.rowid, v[1], header, start, 0, pinned, hidden, source)

    def _take_events(self, entries: Iterable[Entry]) -> None:
        with self._scratch:
            self._scratch.executemany(
                "INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?, ?, ?)",
                (row for entry in entries if _is_event(entry.values) and (row := self._whole(entry)) is not None),
            )

    def _take_texts(self, entries: Iterable[Entry]) -> None:
        """What stands around streamed fragments, and the texts that are stored apart from their events; told by their
        shape, as no other row of ours has it."""
        with self._scratch:
            for rowid, v in entries:
                match v:
                    case (None, str(head), str(tail), _, _):
                        self._frames.setdefault(rowid, (head, tail))
                    case (None, None | int(), str(body) | bytes(body)):
                        self._scratch.execute("INSERT OR IGNORE INTO block VALUES (?, ?)", (rowid, body))
                    case (int(), int(), int(), int(), int(), int() | None):
                        self._scratch.execute("INSERT OR IGNORE INTO piece VALUES (?, ?, ?, ?, ?, ?)", v)
                    case _:
                        pass

    def _whole(self, entry: Entry) -> tuple[Value, ...] | None:
        """An event's row with its data as it was logged; None if a part of that is lost."""
        v = entry.values
        data, frame, cut = str(v[5]), *(*v[8:], None, None)[:2]
        if isinstance(frame, int):
            around = self._frames.get(frame)
            return None if around is None else (*v[1:5], f"{around[0]}{data}{around[1]}", *v[6:8])
        if cut is None:
            return v[1:8]
        pieces: list[tuple[int, int, int | None, str | bytes]] = list(self._scratch.execute(_PIECES, (entry.rowid,)))
        parts: list[str] = []
        end = 0
        for at, start, size, body in pieces:
            text = packed.part(body, start, size)
            if text is None:
                return None
            parts += [data[end:at], text]
            end = at
        return (*v[1:5], "".join([*parts, data[end:]]), *v[6:8]) if pieces and pieces[0][0] == cut else None

    def _name_the_rest(self, names: Iterable[tuple[Value, ...]]) -> None:
        """Sessions whose own row is lost, by the index of names; else under a name that says so."""
        by_id = {id_: name for name, id_ in names if isinstance(name, str) and type(id_) is int}
        for (id_,) in self._scratch.execute("SELECT DISTINCT session FROM event"):
            by_id.setdefault(int(id_), f"recovered-{id_}")
        for id_, name in by_id.items():
            if id_ not in self.sessions:
                self.sessions[id_] = Found(id_, name, {})

    def _measure(self, lineage: Iterable[tuple[Any, ...]], known: Iterable[tuple[Value, ...]]) -> None:
        for session, hi, owner in sorted(lineage, reverse=True):  # the one before its own is the boundary's writer
            found = self.sessions.get(session)
            if found is not None and hi != _OWN and not found.parent:
                found.start = found.start or hi
                found.parent = owner
        for session, seq, _ in known:
            found = self.sessions.get(session) if type(session) is int else None
            if found is not None and type(seq) is int:
                found.length = max(found.length, seq + 1)
        for session, last in self._scratch.execute("SELECT session, max(seq) FROM event GROUP BY session"):
            found = self.sessions.get(session)
            if found is not None:
                found.length = max(found.length, int(last) + 1)
        by_name = {found.name: found.id for found in self.sessions.values()}
        for found in self.sessions.values():
            found.length = max(found.length, found.start)
            if found.start:
                found.parent = by_name.get(found.header.get("parentSession", ""), found.parent)


def _pairs(entries: Iterable[Entry]) -> Iterator[tuple[Value, Value]]:
    for entry in entries:
        if len(entry.values) == 2:
            yield entry.values[0], entry.values[1]


def _queries(entries: Iterable[Entry]) -> Iterator[tuple[str, str, str | None]]:
    for entry in entries:
        v = entry.values
        if len(v) == 4 and isinstance(v[0], str) and isinstance(v[1], str):
            yield v[0], v[1], v[2] if isinstance(v[2], str) else None


def _is_event(v: tuple[Value, ...]) -> bool:
    return (
        len(v) in _EVENT_COLUMNS
        and v[0] is None
        and all(type(v[i]) is int for i in (1, 2, 4))
        and all(isinstance(v[i], str) for i in (3, 5))
        and all(v[i] is None or isinstance(v[i], str) for i in (6, 7))
    )


@contextmanager
def alone(path: Path) -> Iterator[BinaryIO]:
    """The file, with everybody else kept out as SQLite keeps them out; StoreError DB_BUSY if somebody has it open.

    The lock is this process's and this descriptor's: no connection of ours may be open on the file, and closing any
    other descriptor of it would give up the lock.
    """
    writable = os.access(path, os.W_OK)
    try:
        file: BinaryIO = open(path, "r+b" if writable else "rb")  # noqa: SIM115 - in the `with` below
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}", code="DB_IO") from error
    with file:
        try:  # without the right to write a shared lock is all that can be had
            lock = fcntl.LOCK_EX if writable else fcntl.LOCK_SH
            fcntl.lockf(file, lock | fcntl.LOCK_NB, _SHARED_LOCKS[1], _SHARED_LOCKS[0])
        except OSError as error:
            holder = locks.holder_of(path, reading=True)
            by = f" by process {holder}" if holder else ""
            raise StoreError(f"{path} is in use{by}", code="DB_BUSY", hint="end what uses it first") from error
        yield file


def read(file: BinaryIO, path: Path, scratch: Path) -> Salvage:
    """Everything readable in a database that `alone` gave. `scratch` is an empty folder with room for three times its
    size. StoreError DB_FOREIGN if there is nothing of ours, DB_VERSION if a newer program made it."""
    copy = scratch / "old.db"
    try:
        file.seek(0)
        with open(copy, "xb") as target:
            shutil.copyfileobj(file, target, 1 << 20)
        with suppress(FileNotFoundError):
            shutil.copyfile(f"{path}-wal", f"{copy}-wal")
        if os.path.getsize(copy) < 512 and not os.path.exists(f"{copy}-wal"):
            raise StoreError(f"nothing in {path} can be read as a dsh database", code="DB_FOREIGN")
        _mend_header(copy)
        _apply_wal(copy)
        salvage = Salvage(copy)
    except OSError as error:
        raise StoreError(f"{error.filename or scratch}: {error.strerror or error}", code="DB_IO") from error
    except apsw.FullError:
        raise StoreError(f"{scratch} cannot take a copy: the disk is full", code="DB_FULL") from None
    except StoreError as error:
        if error.code == "DB_VERSION":
            raise StoreError(f"{path} {error.message}", code=error.code) from None
        raise
    if not salvage.sessions and not salvage.settings and not (_is_ours(copy) and not salvage.bad_pages):
        salvage.close()
        raise StoreError(f"nothing in {path} can be read as a dsh database", code="DB_FOREIGN")
    return salvage


def _is_ours(copy: Path) -> bool:
    with open(copy, "rb") as file:
        return int.from_bytes(file.read(100)[68:72], "big") == APPLICATION_ID


def _mend_header(copy: Path) -> None:
    """Give SQLite a first page that it opens; what the fields say else is not used."""
    with open(copy, "r+b") as file:
        header = bytearray(file.read(100).ljust(100, b"\0"))
        size = int.from_bytes(header[16:18], "big")
        if header[:16] != MAGIC or size not in (1, 512, 1024, 2048, 4096, 8192, 16384, 32768):
            header[:18] = MAGIC + (4096).to_bytes(2, "big")
        header[18:20] = b"\x02\x02"  # WAL, or its -wal file would not be read
        header[20:24] = b"\x00\x40\x20\x20"
        file.seek(0)
        file.write(header)


def _apply_wal(copy: Path) -> None:
    """Bring what is committed in the -wal file into the copy, up to its first damaged frame."""
    db = apsw.Connection(str(copy))
    try:
        db.execute("PRAGMA writable_schema = 1")  # a schema that cannot be parsed, a file too short: read on
        with suppress(apsw.Error):
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        with suppress(apsw.CorruptError, apsw.NotADBError, apsw.SQLError):
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    finally:
        db.close()


def put_in_place(path: Path, new: Path) -> Path:
    """Give a new file the name of the old one, which becomes `….damaged-TIME`, its -wal file with it; its new name.

    With hard links there is a database of this name at every moment; without, another process may find none.
    """
    kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    try:
        if kept.exists():
            raise StoreError(f"{kept} exists already", code="DB_IO")
        try:
            os.link(path, kept)
        except OSError:  # a file system without hard links
            os.rename(path, kept)
        with suppress(FileNotFoundError):
            os.rename(f"{path}-wal", f"{kept}-wal")
        with suppress(FileNotFoundError):
            os.unlink(f"{path}-shm")
        publish(new, path, replace=True)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}", code="DB_IO") from error
    return kept
