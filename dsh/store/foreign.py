"""Databases of other programs, which are only ever read, also while their owners write them.

Nothing of them is changed, no file is made beside them, and no owner waits: SQLite is told as much as each case needs.
A database in WAL mode that is in use, or was left so, has its -wal file read through a -shm file that is not written.
One that was closed, and therefore has no -wal file, is read as if it could not change, and looked at after each read to
be sure that it did not. Any other is locked for the moment of each read.

Text comes back as `str` whatever its bytes are, so a store with some damaged characters is read all the same.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw

from dsh.core.errors import DshError, StoreError

MAX_VALUE = 64 * 1024 * 1024  # bytes of one value; a longer one comes as TOO_LONG and is never held

_MAGIC = b"SQLite format 3\0"
_PATIENCE_MS = 2000  # for a lock that an owner holds for a moment
_ROWS = 200  # read at once
_MARK = b"\0"  # what a statement gives in the place of a value that is too long


class TooLong:
    """The one value TOO_LONG stands where a text or blob was longer than MAX_VALUE."""

    def __repr__(self) -> str:
        return "TOO_LONG"


TOO_LONG: Final = TooLong()


class Foreign:
    """One database, open for reading. Made by `foreign`."""

    def __init__(
        self,
        db: apsw.Connection,
        path: str,
        failure: type[DshError],
        *,
        still: tuple[int, ...] | None = None,
        locks: bool = False,
    ) -> None:
        self._db = db
        self._path = path
        self._failure = failure
        self._still = still  # what stat said of a file that nobody has open
        self._locks = locks  # each read keeps writers out
        self._utf8 = db.pragma("encoding") == "UTF-8"
        self.tables: dict[str, frozenset[str]] = {}  # the columns of each ordinary table
        for _, name, kind, _, without_rowid, _ in db.execute("PRAGMA main.table_list").fetchall():
            if kind == "table":
                found = db.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall()
                columns = {str(column) for (column,) in found} | (set() if without_rowid else {"rowid"})
                self.tables[str(name)] = frozenset(columns)

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is an ordinary table with these columns among others."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def rows(
        self,
        table: str,
        columns: Sequence[str],
        *,
        where: tuple[str, Any] | None = None,
        order: Sequence[str] = (),
        last: bool = False,
    ) -> Iterator[tuple[Any, ...]]:
        """These columns of a table, in ascending order, read as they are asked for; with `last` the last row alone.

        A column or a table that is not there gives NULLs, or no rows: schemas of other versions are read as far as they
        go. `rowid` is a column too. DB_CHANGED if the file was changed by its owner meanwhile, else as for `foreign`.
        """
        there = self.tables.get(table)
        if there is None or (where is not None and where[0] not in there):
            return
        wanted = ", ".join(self._value(column) if column in there else "NULL" for column in columns)
        sql = f"SELECT {wanted} FROM {_name(table)}"
        if where is not None:
            sql += f" WHERE {_name(where[0])} = ?"
        by = [_name(column) for column in order if column in there]
        if by:
            sql += " ORDER BY " + ", ".join(f"{column} DESC" if last else column for column in by)
        if last:
            sql += " LIMIT 1"
        bindings = () if where is None else (where[1],)
        with _our_errors(self._path, self._failure):
            cursor = self._db.execute(sql, bindings)
            while chunk := cursor.fetchall() if self._locks else list(islice(cursor, _ROWS)):
                self._unmoved()
                for row in chunk:
                    yield tuple([_read(value) for value in row])

    def count(self, table: str, where: tuple[str, Any]) -> int:
        """How many rows have this value in a column; 0 where there is no such table or column."""
        if not self.has(table, where[0]):
            return 0
        with _our_errors(self._path, self._failure):
            sql = f"SELECT count(*) FROM {_name(table)} WHERE {_name(where[0])} = ?"
            found: Any = self._db.execute(sql, (where[1],)).get
            return int(found)

    def _value(self, column: str) -> str:
        """A column as SQL. Text is given as its bytes, since they need not be UTF-8, which apsw insists on."""
        name = _name(column)
        if column == "rowid":
            return name
        text = f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" if self._utf8 else name
        return f"CASE WHEN octet_length({name}) > {MAX_VALUE} THEN x'00' ELSE {text} END"

    def _unmoved(self) -> None:
        if self._still is not None and _stat(self._path) != self._still:
            raise StoreError("was changed by its owner while it was being read", code="DB_CHANGED")


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _read(value: Any) -> Any:
    if isinstance(value, bytes):
        return TOO_LONG if value == _MARK else value.decode("utf-8", "replace")
    return value


@contextmanager
def foreign(path: str, failure: type[DshError] = StoreError) -> Iterator[Foreign]:
    """Open another program's database. Then and at any read, `failure` says in a few words, which leave out the path,
    why it or the rest of it cannot be read: DB_FOREIGN, DB_DAMAGED, DB_BUSY, DB_IO, DB_CHANGED."""
    path = os.path.realpath(path)  # SQLite keeps -wal and -shm beside the file itself
    with _our_errors(path, failure):
        wal_mode = _wal_mode(path)
        wal = _size(f"{path}-wal") > 0
        if wal and not os.path.exists(f"{path}-shm"):  # nobody has it open; SQLite would make one
            with _copied(path) as copy, _opened(copy, "mode=ro", snapshot=True) as db:
                yield Foreign(db, copy, failure)
        elif wal:
            with _opened(path, "mode=ro&readonly_shm=1", snapshot=True) as db:
                yield Foreign(db, path, failure)
        elif wal_mode:
            still = _stat(path)
            with _opened(path, "mode=ro&immutable=1", snapshot=True) as db:
                yield Foreign(db, path, failure, still=still)
        else:
            with _opened(path, "mode=ro", snapshot=False) as db:
                yield Foreign(db, path, failure, locks=True)


@contextmanager
def _opened(path: str, how: str, *, snapshot: bool) -> Iterator[apsw.Connection]:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX
    db = apsw.Connection(f"{Path(path).as_uri()}?{how}", flags=flags)
    try:
        db.set_busy_timeout(_PATIENCE_MS)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # Nothing that a schema from elsewhere calls is run, nor can it hide what it is.
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        db.execute("PRAGMA query_only = 1")
        db.execute("PRAGMA cell_size_check = 1")
        if snapshot:
            db.execute("BEGIN")
        db.pragma("schema_version")
        yield db
    finally:
        db.close()


@contextmanager
def _copied(path: str) -> Iterator[str]:
    """A copy of a database that somebody left with a -wal file, for SQLite to work on."""
    with tempfile.TemporaryDirectory(prefix="dsh-", ignore_cleanup_errors=True) as folder:
        copy = os.path.join(folder, "copy.db")
        shutil.copyfile(path, copy)
        shutil.copyfile(f"{path}-wal", f"{copy}-wal")
        yield copy


def _wal_mode(path: str) -> bool:
    with open(path, "rb") as file:
        head = file.read(100)
    if not head.startswith(_MAGIC):
        raise StoreError("is not an SQLite database", code="DB_FOREIGN")
    return head[18:20] == b"\x02\x02"


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _stat(path: str) -> tuple[int, ...]:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def _our_errors(path: str, failure: type[DshError]) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise failure(error.message, code=error.code) from error
    except apsw.NotADBError as error:
        raise failure("is not an SQLite database", code="DB_FOREIGN") from error
    except (apsw.BusyError, apsw.LockedError, apsw.ProtocolError) as error:
        raise failure("is locked by its owner", code="DB_BUSY") from error
    except (apsw.CantOpenError, apsw.IOError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
        if _size(f"{path}-journal"):  # half of a transaction that only a writer can undo
            raise failure("has a transaction that its owner has yet to undo", code="DB_BUSY") from error
        raise failure(f"cannot be read ({error})", code="DB_IO") from error
    except apsw.Error as error:
        raise failure(f"is damaged ({error})", code="DB_DAMAGED") from error
