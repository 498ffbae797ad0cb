"""Opening the one SQLite file, and turning what SQLite reports into our errors.

`Database.open` is the only way to our own database. It makes the file (0600, in a 0700 folder), brings its schema up to
date, sets the pragmas, registers the functions and installs the views-only guard. Appends are autocommitted INSERTs
into views: in WAL mode with `synchronous=NORMAL` one costs some 30 us and no disk write; `sync()` is the checkpoint
that makes everything so far survive a power loss.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from dsh.core.errors import DshError, SessionError, StoreError, UsageError
from dsh.store import functions, guard, locks, migrations, packed, phrases, relevance

Row = tuple[Any, ...]

AT_ONCE_S = 0.001
_STEP_PAGES = 1000
_TOO_BIG = f"a number is larger than {2**63 - 1}"
DAMAGED = "dsh db check says where, dsh db recover saves what can be read"


class Database:
    """One guarded connection. Made by `open`; every method raises our own errors only."""

    def __init__(self, db: apsw.Connection, path: Path, busy: BusyWait) -> None:
        self._db = db
        self._check: Callable[[str], None] = lambda sql: None
        self.path = path
        self.busy = busy
        self._file = _identity(path)
        self._wal_fd: int | None = None
        self.syncs_at_once = False  # the last sync was too short to be worth a worker thread
        self._undo: dict[object, Callable[[], None]] = {}

    @classmethod
    def open(
        cls, path: Path, *, busy_timeout_ms: int = 30_000, read_only: bool = False, create: bool = True
    ) -> Database:
        """Open or create the database.

        `read_only` refuses every write, also of the schema; `create=False` raises StoreError DB_MISSING where there is
        no file. DB_FOREIGN, DB_VERSION, DB_DAMAGED, DB_BUSY, DB_IO name the file (exit 8).
        """
        if os.path.islink(path):  # SQLite keeps -wal and -shm beside the file itself, and so do we look for them there
            path = Path(os.path.realpath(path))
        busy = BusyWait(path, busy_timeout_ms)
        with _our_errors(path, busy):
            if not path.exists():
                if not create:
                    raise StoreError(f"there is no database at {path} yet", code="DB_MISSING")
                _create_file(path)
            sealed = read_only and _sealed(path)
            name = f"{path.absolute().as_uri()}?immutable=1" if sealed else str(path)
            uri = apsw.SQLITE_OPEN_URI if sealed else 0
            db = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX | uri)
            try:
                _prepare(db, path, busy, sealed=sealed)
                database = cls(db, path, busy)
                if read_only:
                    db.execute("PRAGMA query_only = 1")
                database._check = guard.views_only(db)
            except BaseException:
                db.close()
                raise
        return database

    def rows(self, sql: str, bindings: Any = ()) -> list[Row]:
        """Run one statement and return all its rows."""
        try:  # not `_our_errors`: a context manager would cost as much as a small statement
            self._check(sql)
            return self._db.execute(sql, bindings).fetchall()
        except apsw.Error as error:
            raise translate(error, self.path, self.busy) from error
        except UnicodeDecodeError as error:
            raise not_text(self.path) from error
        except OverflowError:
            raise UsageError(_TOO_BIG) from None

    def many(self, sql: str, bindings: Iterable[Any]) -> None:
        """Run one statement that returns nothing with each of many bindings, in the transaction that is open."""
        with _our_errors(self.path, self.busy):
            self._check(sql)
            self._db.executemany(sql, bindings)

    def row(self, sql: str, bindings: Any = ()) -> Row | None:
        found = self.rows(sql, bindings)
        return found[0] if found else None

    def stream(self, sql: str, bindings: Any = ()) -> tuple[Sequence[str], Iterator[Row]]:
        """Column names and rows of one statement, read as they are asked for (`dsh sql`)."""
        with _our_errors(self.path, self.busy):
            self._check(sql)
            cursor = self._db.cursor()
            names: list[str] = []

            def begin(at: apsw.Cursor, *_: Any) -> bool:  # one that has no rows is complete after its first step
                names.extend(column[0] for column in at.get_description())
                return True

            cursor.exec_trace = begin
            cursor.execute(sql, bindings)

        def read() -> Iterator[Row]:
            with _our_errors(self.path, self.busy):
                yield from cursor

        return names, read()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One write transaction, taken with BEGIN IMMEDIATE: a deferred one that reads first and then writes is
        refused outright when another process wrote in between. Nested use joins the outer one."""
        with _our_errors(self.path, self.busy):
            joined = self._db.in_transaction
            if joined:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                for undo in self._undo.values():
                    undo()
                raise
            finally:
                self._undo.clear()

    def on_rollback(self, owner: object, undo: Callable[[], Callable[[], None]]) -> None:
        """Call what `undo()` returns if the present transaction is not committed. Outside one nothing is asked for,
        and inside one an owner is asked once."""
        if self._db.in_transaction and owner not in self._undo:
            self._undo[owner] = undo()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads of one state of the database; inside a transaction, of its state."""
        if self._db.in_transaction:
            yield
            return
        with _our_errors(self.path, self.busy):
            self._db.execute("BEGIN")
        try:
            yield  # an error of the block, a broken pipe for example, is none of the database's
        finally:
            with _our_errors(self.path, self.busy):
                self._db.execute("COMMIT")

    def sync(self) -> None:
        """Make every commit so far survive a power loss (PE-71). Blocks for one fsync; safe in a worker thread.

        In WAL mode the commits since the last checkpoint are in the -wal file, and a checkpoint syncs by itself, so
        syncing that file is enough. It carries no locks, so our own descriptor does not disturb SQLite's.

        DB_IO also if the database or that file was moved or deleted meanwhile: SQLite then goes on writing to what
        nobody will find again.
        """
        if self._wal_fd is None:
            try:
                self._wal_fd = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # another journal mode, or nothing written yet
                return
        began = time.perf_counter()
        try:
            os.fsync(self._wal_fd)
            self.syncs_at_once = time.perf_counter() - began < AT_ONCE_S
            now = (_identity(self.path), _identity(f"{self.path}-wal"))
            lost = now != (self._file, _identity(self._wal_fd))
        except OSError as error:
            raise StoreError(f"{self.path} cannot be synced: {error.strerror}", code="DB_IO") from error
        if lost:
            raise StoreError(f"{self.path} or its -wal file was moved or deleted while in use", code="DB_IO")

    def backup(self, target: Path, *, force: bool = False) -> None:
        """Copy the whole database to a new file (0600), while others go on writing (PE-78).

        The copy is of one moment, is checked and synced, and only then gets its name. USAGE if there is a file of that
        name already, unless `force`; DB_DAMAGED if what was copied is not sound.
        """
        with _our_errors(self.path, self.busy):
            if target.exists() and target.samefile(self.path):
                raise UsageError(f"{target} is the database itself", hint="name another file")
            if target.exists() and not force:
                raise UsageError(f"{target} exists already")
            if force and _has_wal(target):  # it would be taken for the new file's
                raise UsageError(f"{target} is a database in use: it has a -wal file")
            # A reader's snapshot: the steps of the copy see one state, and in WAL mode no writer waits for it.
            self._db.execute("BEGIN")
            try:
                self._db.pragma("schema_version")
                _copy(self._db, target, self.busy, replace=force)
            finally:
                self._db.execute("COMMIT")

    def integrity(self, *, quick: bool = False) -> list[str]:
        """Complaints of SQLite's own check; empty if the file is sound."""
        with _our_errors(self.path, self.busy):
            return _complaints(self._db, "quick_check" if quick else "integrity_check")

    def schema_drift(self) -> list[str]:
        """Where tables, views, triggers and indexes are not those of schema.sql; empty if they all are."""
        with _our_errors(self.path, self.busy):
            return migrations.drift(self._db)

    def vacuum(self, patience_ms: int) -> bool:
        """Write the file anew without its unused pages (PE-80); False if readers kept the space from being given
        back for so long, which then happens at the next checkpoint without them. DB_FULL changes nothing."""
        guarded, patience = self._db.authorizer, self.busy.timeout_ms
        with _our_errors(self.path, self.busy):
            self._db.authorizer = None  # VACUUM reads the tables themselves
            try:
                self._db.execute("PRAGMA temp_store = FILE")  # the whole database passes through a temporary one
                self._db.execute("VACUUM")
            finally:
                self._db.execute("PRAGMA temp_store = MEMORY")
                self._db.authorizer = guarded
            self.busy.timeout_ms = min(patience, patience_ms)
            try:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                return False
            finally:
                self.busy.timeout_ms = patience
        return True

    def hear_signals(self, ask: Callable[[], bool] = lambda: False) -> None:
        """Let Python serve signals while a long statement runs: Ctrl-C then ends it, as the exception it raises. `ask`
        is called as often, and may raise to the same effect."""
        self._db.set_progress_handler(ask, 100_000)

    def pragma(self, name: str) -> Any:
        with _our_errors(self.path, self.busy):
            return self._db.pragma(name)

    def close(self) -> None:
        if self._wal_fd is not None:
            os.close(self._wal_fd)
            self._wal_fd = None
        with _our_errors(self.path, self.busy):
            self._db.close()


def _identity(file: Path | str | int) -> tuple[int, int] | None:
    """Which file a path names now, or a descriptor; None if there is none."""
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class BusyWait:
    """The wait for a lock. Runs as SQLite's busy handler, in slices, so that signals are served in between.

    `give_up` may be set by a signal handler: the wait then ends at once.
    """

    def __init__(self, path: Path, timeout_ms: int) -> None:
        self.path = path
        self.timeout_ms = timeout_ms
        self.give_up = False
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._since = now
        if self.give_up or (now - self._since) * 1000 >= self.timeout_ms:
            return False
        # Not longer after each try: who has waited long would find the lock taken again by who has not. Only a wait
        # that others' commits cannot explain is spaced out.
        time.sleep(min(0.001 * (1 + tries // 32), 0.02))
        return True


def _create_file(path: Path) -> None:
    """Make an empty file only its owner can read, and its folder; what exists keeps its mode (PE-54)."""
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(f"{path} is not a regular file", code="DB_FOREIGN") from None


def _sealed(path: Path) -> bool:
    """Whether this is a finished database where nothing can be written, like one on a CD or in a snapshot. SQLite
    wants to make its -shm file there even to read, unless it is told that the file will not change."""
    return not os.access(path.parent, os.W_OK) and not os.path.exists(f"{path}-wal")


def _prepare(db: apsw.Connection, path: Path, busy: BusyWait, *, sealed: bool) -> None:
    db.set_busy_handler(busy)
    # What another program left in a -wal file is not to be moved into a database that turns out not to be ours.
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(_has_wal(path)))
    # A statement re-prepares itself when it is bound again and statistics exist, which would run the guard anew on
    # every execution; with a stable query plan a cached statement pays nothing.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # "text" in double quotes is a name that does not exist, not a string that was meant differently.
    db.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    db.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
    # Only functions marked innocuous run inside views and triggers: a database from elsewhere cannot call others.
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    functions.register(db)
    packed.register(db)

    def backup(name: str) -> None:
        # A connection with a write transaction cannot be copied from, so a second one reads what is committed.
        source = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            source.set_busy_handler(busy)
            _copy(source, path.with_name(f"{path.name}.before-{name}"), busy, replace=True)
        finally:
            source.close()

    migrations.migrate(db, backup=backup)
    db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # what is damaged says so here; of FTS5 it would not
    phrases.register(db)  # asks the file, so only once it is known to be ours; so does the next
    relevance.register(db)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    # Readers never wait for the writer and the writer never for readers. Set after the schema check, so that a
    # database that is not ours keeps its mode (PE-53).
    if not sealed and db.pragma("journal_mode") != "wal":
        _retry(busy, lambda: db.pragma("journal_mode", "wal"))
    # A commit reaches the operating system at once and the disk at the next checkpoint or sync(): a killed process
    # loses nothing, and chunks do not cost a disk write each.
    db.execute("PRAGMA synchronous = NORMAL")
    # References are checked; the rules delete by hand, since cascades run outside every view.
    db.execute("PRAGMA foreign_keys = 1")
    # Sorting and trigger bookkeeping in memory: with files for it an append costs half as much again.
    db.execute("PRAGMA temp_store = MEMORY")
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)


def _has_wal(path: Path) -> bool:
    try:
        return os.path.getsize(f"{path}-wal") > 0
    except OSError:
        return False


def _retry(busy: BusyWait, action: Callable[[], Any]) -> None:
    """Switching to WAL needs the file alone and does not ask the busy handler in every case."""
    tries = 0
    while True:
        try:
            action()
            return
        except apsw.BusyError:
            if not busy(tries):
                raise
            tries += 1


def _copy(source: apsw.Connection, target: Path, busy: BusyWait, *, replace: bool) -> None:
    """Copy a database beside its target and give it its name when it is whole, sound and on disk."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    with _our_errors(target, busy):
        part.unlink(missing_ok=True)  # of a process that had our number and was killed
        _create_file(part)
        try:
            copy = apsw.Connection(str(part))
            try:
                copy.pragma("synchronous", "off")  # synced once, at the end
                with copy.backup("main", source, "main") as backup:
                    while not backup.done:
                        backup.step(_STEP_PAGES)  # in between, signals are served
                copy.pragma("journal_mode", "delete")  # one file, complete in itself
                complaints = _complaints(copy, "quick_check")
            finally:
                copy.close()
            if complaints:
                raise StoreError(f"the copy is not sound: {complaints[0]}", hint="dsh db check says what is damaged")
            publish(part, target, replace=replace)
        finally:
            for left in (part, Path(f"{part}-journal")):
                left.unlink(missing_ok=True)


def publish(part: Path, target: Path, *, replace: bool) -> None:
    """Sync a finished file and give it its name, which is taken from another only with `replace` (PE-65)."""
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    if replace:
        os.replace(part, target)
    else:
        try:
            os.link(part, target)
        except FileExistsError:
            raise UsageError(f"{target} exists already") from None
        except OSError:  # a file system without hard links
            if target.exists():
                raise UsageError(f"{target} exists already") from None
            os.rename(part, target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _complaints(db: apsw.Connection, pragma: str) -> list[str]:
    found = [str(r[0]) for r in db.execute(f"PRAGMA {pragma}(20)")]
    return [] if found == ["ok"] else found


@contextmanager
def _our_errors(path: Path, busy: BusyWait) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path, busy) from error
    except UnicodeDecodeError as error:
        raise not_text(path) from error
    except OverflowError:
        raise UsageError(_TOO_BIG) from None
    except StoreError as error:
        if error.message.startswith(("is not", "has schema")):
            error.message = f"{path} {error.message}"
            error.args = (error.message,)
        raise
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}", code="DB_IO") from error


# What the rules of schema.sql raise, in words; the code itself routes.
_REFUSALS = {
    "SEQ_MISMATCH": "the event's seq is not the next one of its session",
    "EVENT_NOT_JSON": "the event's data is not JSON",
    "SURFACE_INVALID": "the event does not fit the surface",
    "LEGACY_EVENT": "the event is of a type that is no longer written",
    "HEADER_INVALID": "the header is not valid",
    "INVARIANT": "the event is out of place in its turn or step",
    "EVENT_IMMUTABLE": "an event cannot be changed or deleted",
    "EVENT_NOT_FOUND": "there is no such event",
    "REWRITE_INVALID": "the stored events cannot be rewritten so",
    "SESSION_IMMUTABLE": "a session's header cannot be changed",
    "SESSION_NOT_FOUND": "there is no such session",
    "SESSION_ALREADY_EXISTS": "a session with this id exists",
    "SESSION_HAS_FORKS": "the session has forks that read its events",
    "SESSION_LEASED": "another process drives this session",
    "INVALID_BOUNDARY": "the fork's boundary is not an event of its parent",
    "OPEN_TURN": "the fork's boundary is not the end of a turn",
    "INPUT_INVALID": "the message is not of the shape that an inbox takes",
    "INPUT_NOT_JSON": "the message is not JSON",
}


def not_text(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged (a text in it is not UTF-8)", code="DB_DAMAGED", hint=DAMAGED)


def translate(error: apsw.Error, path: Path, busy: BusyWait) -> DshError:
    """Our error for one of SQLite's."""
    text = str(error)
    if isinstance(error, apsw.ConstraintError) and text in _REFUSALS:
        return SessionError(_REFUSALS[text], code=text)
    if isinstance(error, (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)):
        holder = locks.holder_of(path)
        by = f" by process {holder}" if holder else ""
        return StoreError(f"{path} is locked{by}; waited {busy.timeout_ms / 1000:g} s", code="DB_BUSY")
    if isinstance(error, apsw.NotADBError):
        return StoreError(f"{path} is not an SQLite database", code="DB_FOREIGN")
    if isinstance(error, apsw.CorruptError) or (isinstance(error, apsw.SQLError) and text.startswith("invalid fts5")):
        return StoreError(f"{path} is damaged ({text})", code="DB_DAMAGED", hint=DAMAGED)
    if isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
        return StoreError(f"{path} cannot grow: the disk is full", code="DB_FULL")
    if isinstance(error, apsw.CantOpenError) and os.path.exists(path) and not os.access(path, os.R_OK):
        return StoreError(f"{path} cannot be read: permission denied", code="DB_IO")
    cannot_open = isinstance(error, apsw.CantOpenError) and not os.access(path.parent, os.W_OK)
    if isinstance(error, apsw.ReadOnlyError) or cannot_open:
        return StoreError(f"{path} cannot be written", code="DB_READONLY")
    if isinstance(error, (apsw.IOError, apsw.CantOpenError, apsw.PermissionsError)):
        return StoreError(f"{path} cannot be read or written ({text})", code="DB_IO")
    if isinstance(error, (apsw.AuthError, apsw.ExecTraceAbort)):
        return SessionError(f"not allowed: {text}", code="VIEWS_ONLY")
    if isinstance(error, apsw.SQLError) and text == "malformed JSON":
        return SessionError(f"{path} has an event that is not JSON", code="LOG_CORRUPT", hint="dsh db check names it")
    return SessionError(text, code="SQL")
