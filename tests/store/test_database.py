"""Opening: whose file it is, migrations, modes, media that cannot be written, a full disk (PE-50 to PE-55, PE-75)."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from dsh.core.errors import DshError, StoreError
from dsh.store import functions, migrations, writes
from dsh.store.database import Database
from dsh.store.migrations import APPLICATION_ID, MIGRATIONS, Migration
from tests.session.kit import World, code, dump, raw, start_turn, whole_turn, world

NEW = 20_000  # ms a test waits for a lock that should not be there


def files(path: Path) -> dict[str, tuple[str, int]]:
    """Content and mode of the database and everything beside it that is named after it."""
    return {
        p.name: (hashlib.sha256(p.read_bytes()).hexdigest(), stat.S_IMODE(p.stat().st_mode))
        for p in sorted(path.parent.iterdir())
        if p.name.startswith(path.name) and not p.name.endswith("-shm")
    }


def stored(path: Path) -> World:
    w = world(path)
    whole_turn(w.session("s"), "hello")
    return w


# -------------------------------------------------------------------------------------------------- whose file it is


def make(path: Path, *sql: str) -> None:
    with raw(path) as db:
        for statement in sql:
            db.execute(statement).fetchall()


FOREIGN: dict[str, list[str]] = {
    "a table": ["CREATE TABLE t(x)"],
    "a view": ["CREATE VIEW v AS SELECT 1"],
    "a name like sqliteish": ["CREATE TABLE sqliteish(x)"],
    "an application id": ["CREATE TABLE t(x)", "PRAGMA application_id = 5", "DROP TABLE t"],
    "only a user version": ["PRAGMA user_version = 1"],
    "in WAL mode": ["PRAGMA journal_mode = wal", "CREATE TABLE t(x)"],
    "ours but newer": [f"PRAGMA application_id = {APPLICATION_ID}", "CREATE TABLE t(x)", "PRAGMA user_version = 99"],
    "ours but of version 0": [f"PRAGMA application_id = {APPLICATION_ID}", "CREATE TABLE t(x)"],
    "a negative version": [f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = -1"],
    "one that only SQLite made": [
        "CREATE TABLE t(x INTEGER PRIMARY KEY AUTOINCREMENT)",
        "DROP TABLE t",
        "PRAGMA user_version=3",
    ],
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.rule("PE-52", "PE-53")
def test_a_database_that_is_not_ours_is_refused_unchanged(tmp_path: Path, name: str, read_only: bool) -> None:
    path = tmp_path / "x.db"
    make(path, *FOREIGN[name])
    path.chmod(0o640)
    before = files(path)
    with pytest.raises(StoreError) as caught:
        Database.open(path, read_only=read_only)
    assert files(path) == before
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("x.db")) == ["x.db"]
    assert caught.value.code == ("DB_VERSION" if name.startswith(("ours", "a negative")) else "DB_FOREIGN")
    assert str(path) in caught.value.message
    numbers = {"ours but newer": ["99", str(len(MIGRATIONS))], "an application id": ["0x5", f"{APPLICATION_ID:#x}"]}
    assert all(n in caught.value.message for n in numbers.get(name, []))


@pytest.mark.parametrize("mode", ["wal", "delete"])
@pytest.mark.rule("PE-52", "PE-53")
def test_a_newer_schema_of_ours_is_refused_unchanged(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "x.db"
    stored(path).db.close()
    make(path, f"PRAGMA journal_mode = {mode}", "PRAGMA user_version = 99")
    before = files(path)
    assert code(Database.open, path) == "DB_VERSION"
    assert files(path) == before
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("x.db")) == ["x.db"]
    with raw(path) as db:
        assert db.pragma("journal_mode") == mode


@pytest.mark.rule("PE-52")
def test_what_another_program_left_in_its_log_file_stays_there(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    script = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA journal_mode=wal');"
        "db.execute('PRAGMA wal_autocheckpoint=0'); db.execute('CREATE TABLE t(x)'); db.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    before = files(path)
    assert path.with_name("x.db-wal").stat().st_size > 0
    assert code(Database.open, path) == "DB_FOREIGN"
    assert files(path) == before


@pytest.mark.parametrize("content", [b"hello, this is no database " * 100, b"SQLite format 3\0" + b"\xff" * 5000])
@pytest.mark.rule("PE-52")
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    before = files(path)
    assert code(Database.open, path) in ("DB_FOREIGN", "DB_DAMAGED")
    assert files(path) == before


@pytest.mark.rule("PE-54")
def test_a_path_that_cannot_be_a_database(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert code(Database.open, tmp_path / "file" / "x.db") == "DB_IO"
    assert code(Database.open, tmp_path / "folder") in ("DB_IO", "DB_FOREIGN")
    assert code(Database.open, tmp_path / "missing.db", create=False) == "DB_MISSING"
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.rule("PE-54")
def test_modes(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.db"
    old = os.umask(0)
    try:
        Database.open(path).close()
    finally:
        os.umask(old)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]
    path.chmod(0o644)
    path.parent.chmod(0o755)
    Database.open(path).close()
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent)] == [0o644, 0o755]
    empty = tmp_path / "empty.db"
    empty.touch(0o666)
    empty.chmod(0o666)
    Database.open(empty).close()
    assert stat.S_IMODE(empty.stat().st_mode) == 0o666


@pytest.mark.rule("PE-51", "PE-52", "PE-53")
def test_a_new_database(tmp_path: Path) -> None:
    one, two = (Database.open(tmp_path / name) for name in ("one.db", "two.db"))
    assert one.pragma("application_id") == APPLICATION_ID
    assert one.pragma("user_version") == len(MIGRATIONS)
    assert one.pragma("journal_mode") == "wal"
    assert one.integrity() == []
    assert one.rows("SELECT name FROM migration ORDER BY id") == [(m.name,) for m in MIGRATIONS]
    assert one.row("SELECT store_id FROM store") != two.row("SELECT store_id FROM store")
    one.close()
    two.close()


@pytest.mark.rule("PE-50", "PE-51")
def test_the_shape_of_the_rows(tmp_path: Path) -> None:
    w = stored(tmp_path / "x.db")
    names, _ = w.db.stream("SELECT * FROM event")
    wanted = ["session_id", "seq", "type", "time", "data", "source_event_seqs", "surface_op"]
    assert list(names)[:7] == wanted
    names, _ = w.db.stream("SELECT * FROM session")
    header = "id version created_at cwd parent_session seed_length delegation_depth incarnation revision"
    assert list(names)[:9] == header.split()
    incarnation = w.db.rows("SELECT incarnation FROM session")[0][0]
    assert len(incarnation) == 32
    w.db.close()


@pytest.mark.rule("PE-52")
def test_an_initialization_that_fails_leaves_an_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    whole = migrations.schema_text()
    monkeypatch.setattr(migrations, "schema_text", lambda: f"{whole}\nCREATE TABLE broken(")
    assert code(Database.open, path) == "SQL"
    assert path.read_bytes() == b""
    monkeypatch.undo()
    Database.open(path).close()


# ------------------------------------------------------------------------------------------------------- migrations

ADD = Migration("add-colour", "ALTER TABLE _store ADD COLUMN colour TEXT;")
CHANGE = Migration("paint", "UPDATE _store SET colour = 'blue';", changes_data=True)
BROKEN = Migration("broken", "UPDATE _store SET colour = 'red'; INSERT INTO nowhere VALUES (1);", changes_data=True)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the program these further migrations."""

    def given(*more: Migration) -> None:
        ours = (*MIGRATIONS, *more)
        real = migrations.migrate
        monkeypatch.setattr(
            migrations,
            "migrate",
            lambda db, backup=None: real(db, ours, backup),  # the default was bound at import
        )

    return given


def history(path: Path) -> list[Any]:
    with raw(path) as db:
        return [r[0] for r in db.execute("SELECT name FROM _migration ORDER BY id")]


def colour(path: Path) -> list[Any]:
    with raw(path) as db:
        return list(db.execute("SELECT colour FROM _store"))


def test_a_first_schema_becomes_the_present_one(tmp_path: Path) -> None:
    """Tables column by column, everything else word for word, triggers in the order that they fire in."""
    path = tmp_path / "old.db"
    with raw(path) as db:
        functions.register(db)
        migrations.run_script(db, (Path(__file__).parent / "schema-1.sql").read_text("utf-8"))
        db.execute("INSERT INTO _store(id, store_id) VALUES (1, 'x')")
        db.execute("INSERT INTO _migration VALUES (1, 'initial', 0, '0.1.0')")
        db.pragma("user_version", 1)
        db.execute("INSERT INTO session(id, cwd) VALUES ('s', '/a')")
        trigger = '{"turn":1,"trigger":{"kind":"message","source":{"kind":"user"}}}'
        db.execute("INSERT INTO event(session_id, type, data) VALUES ('s', 'turn/start', ?)", (trigger,))
    Database.open(path).close()
    Database.open(tmp_path / "new.db").close()

    def shape(file: Path) -> tuple[Any, ...]:
        with raw(file) as db:
            tables = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
            columns = {
                t: [c for c in db.execute(f"PRAGMA table_xinfo({t})") if not t.startswith("sqlite_")] for t in tables
            }
            made = "SELECT type, name, sql FROM sqlite_schema WHERE type <> 'table' AND sql IS NOT NULL ORDER BY rowid"
            return columns, list(db.execute(made))

    assert shape(path) == shape(tmp_path / "new.db")
    with raw(path) as db:
        assert list(db.execute("SELECT id, cwd, length, open_turn, pinned FROM session")) == [("s", "/a", 1, 1, None)]


# What each schema version consists of. Whoever changes schema.sql once a version is out adds a migration, an empty one
# if no table changes: only then are the views and triggers of existing databases made anew.
DIGESTS = {2: "af4f5541f327f8c3", 3: "677c5d0e83c28f5f"}


def test_a_changed_schema_is_a_new_version() -> None:
    with raw(Path(":memory:")) as db:
        functions.register(db)
        migrations.run_script(db, migrations.schema_text())
        ours = "SELECT type, name, sql FROM sqlite_schema WHERE type <> 'table' OR name GLOB '_*' ORDER BY rowid"
        texts = db.execute(ours).fetchall()
    assert hashlib.sha256(repr(texts).encode()).hexdigest()[:16] == DIGESTS[len(MIGRATIONS)]


@pytest.mark.rule("PE-52")
def test_an_older_schema_is_brought_up_to_date(tmp_path: Path, steps: Callable[..., None]) -> None:
    path = tmp_path / "x.db"
    w = stored(path)
    w.db.close()
    steps(ADD)
    db = Database.open(path)
    assert db.pragma("user_version") == len(MIGRATIONS) + 1
    assert history(path) == [*(m.name for m in MIGRATIONS), "add-colour"]
    assert colour(path) == [(None,)]
    assert db.rows("SELECT length FROM session") == [(8,)]
    db.close()
    assert not list(tmp_path.glob("x.db.before-*"))  # no data changed, no copy
    Database.open(path).close()
    assert len(history(path)) == len(MIGRATIONS) + 1


@pytest.mark.rule("PE-52")
def test_a_copy_is_made_before_data_changes(tmp_path: Path, steps: Callable[..., None]) -> None:
    path = tmp_path / "x.db"
    w = stored(path)  # stays open, with its last events in the -wal file
    before = dump(path)
    steps(ADD, CHANGE)
    db = Database.open(path)
    assert colour(path) == [("blue",)]
    copy = tmp_path / "x.db.before-paint"
    assert dump(copy) == before
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(p.name for p in tmp_path.glob("*before*")) == ["x.db.before-paint"]
    db.close()
    w.db.close()


@pytest.mark.rule("PE-52")
def test_a_migration_that_fails_changes_nothing(tmp_path: Path, steps: Callable[..., None]) -> None:
    path = tmp_path / "x.db"
    stored(path).db.close()
    before = dump(path)
    with raw(path) as raw_db:
        schema = raw_db.execute("SELECT * FROM sqlite_schema").fetchall()
    steps(ADD, CHANGE, BROKEN)
    assert code(Database.open, path) == "SQL"
    assert dump(path) == before
    with raw(path) as raw_db:
        assert raw_db.execute("SELECT * FROM sqlite_schema").fetchall() == schema
        assert raw_db.pragma("user_version") == len(MIGRATIONS)
    assert dump(tmp_path / "x.db.before-paint") == before


@pytest.mark.rule("PE-52")
def test_a_migrated_database_is_refused_by_the_older_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    stored(path).db.close()
    with raw(path) as db:
        functions.register(db)
        migrations.migrate(db, (*MIGRATIONS, ADD))
    before = files(path)
    assert code(Database.open, path) == "DB_VERSION"
    assert files(path) == before


def test_a_backup_is_whole_and_never_overwrites(tmp_path: Path) -> None:
    w = stored(tmp_path / "x.db")
    w.db.backup(tmp_path / "copy.db")
    assert dump(tmp_path / "copy.db") == dump(w.path)
    whole_turn(w.session("later"))
    kept = (tmp_path / "copy.db").read_bytes()
    assert code(w.db.backup, tmp_path / "copy.db") == "USAGE"
    assert (tmp_path / "copy.db").read_bytes() == kept
    w.db.backup(tmp_path / "new" / "copy.db")
    Database.open(tmp_path / "copy.db").close()
    w.db.close()


# ------------------------------------------------------------------------------------------------------ transactions


def test_a_transaction_joins_the_one_around_it_and_a_snapshot_too(tmp_path: Path) -> None:
    db = Database.open(tmp_path / "x.db")
    with db.transaction():
        writes.set_setting(db, "a", 1)
        with db.transaction(), db.snapshot():
            writes.set_setting(db, "b", 2)
    assert len(db.rows("SELECT 1 FROM setting")) == 2

    def fails() -> None:
        with db.transaction():
            writes.set_setting(db, "c", 3)
            with db.transaction():
                db.rows("SELECT * FROM nothing")

    assert code(fails) == "SQL"
    assert len(db.rows("SELECT 1 FROM setting")) == 2
    writes.set_setting(db, "c", 3)
    with db.snapshot():
        assert len(db.rows("SELECT 1 FROM setting")) == 3
        other = Database.open(tmp_path / "x.db")
        writes.set_setting(other, "d", 4)
        other.close()
        assert len(db.rows("SELECT 1 FROM setting")) == 3
    assert len(db.rows("SELECT 1 FROM setting")) == 4
    writes.unset_setting(db, "d")
    assert db.rows("SELECT key FROM setting ORDER BY key") == [("a",), ("b",), ("c",)]
    assert code(db.rows, "INSERT INTO setting(key, value) VALUES ('x', 'not json')") == "SQL"
    db.close()


# ------------------------------------------------------------------------- media that refuse: read-only, full, damaged


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own of 2 MB; its size can be changed."""
    if os.geteuid() != 0 or sys.platform != "linux" or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root on Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False).returncode != 0:
        pytest.skip("this machine does not let us mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@pytest.mark.rule("PE-7", "PE-16", "PE-6")
def test_a_full_disk_loses_nothing_and_the_log_goes_on(small: Path) -> None:
    w = world(small / "x.db")
    s = w.session("s")
    start_turn(s)
    told: list[str] = []
    for _ in range(500):
        try:
            s.append("note", "y" * 2000)
        except DshError as error:
            told.append(error.code)
            if len(told) == 5:
                break
    assert told == ["DB_FULL"] * 5
    length = s.length
    assert length > 20
    assert w.db.rows("SELECT length FROM session") == [(length,)]

    def several() -> None:
        with w.db.transaction():
            for _ in range(1000):
                s.append("note", "y" * 2000)

    assert code(several) == "DB_FULL"
    assert s.length == length
    assert w.db.rows("SELECT count(*), max(seq) FROM event") == [(length, length - 1)]
    remount(small, "size=8m")
    s.append("note", "room")
    s.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    w.db.sync()
    assert [e["seq"] for e in s.events()] == list(range(length + 2))
    assert w.db.integrity() == []
    w.db.close()
    again = world(small / "x.db")
    assert again.sessions.prepare_stored("s").length == length + 2
    again.db.close()


@pytest.mark.rule("PE-52", "PE-7")
def test_a_disk_that_is_full_from_the_start(small: Path) -> None:
    (small / "filler").write_bytes(b"x" * (2 * 1024 * 1024 - 64 * 1024))
    assert code(Database.open, small / "x.db") == "DB_FULL"
    (small / "filler").unlink()
    Database.open(small / "x.db").close()


@pytest.mark.rule("PE-39", "PE-54")
def test_media_that_cannot_be_written(small: Path) -> None:
    stored(small / "x.db").db.close()
    before = files(small / "x.db")
    remount(small, "ro")
    try:
        assert code(Database.open, small / "x.db") == "DB_READONLY"
        assert code(Database.open, small / "new.db") == "DB_IO"
        db = Database.open(small / "x.db", read_only=True)
        assert db.rows("SELECT length FROM session") == [(8,)]
        assert code(writes.set_setting, db, "a", 1) == "DB_READONLY"
        db.close()
        assert files(small / "x.db") == before
    finally:
        remount(small, "rw")


@pytest.mark.rule("PE-54")
def test_a_damaged_page_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    w = world(path)
    for number in range(60):
        whole_turn(w.session(f"s{number}"), "words " * 200)
    w.db.close()
    data = bytearray(path.read_bytes())
    for page in range(len(data) // 8192, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    db = Database.open(path)
    assert code(db.rows, "SELECT data FROM event") == "DB_DAMAGED"
    assert db.integrity() != []
    db.close()


def test_errors_keep_their_cause(tmp_path: Path) -> None:
    db = Database.open(tmp_path / "x.db")
    with pytest.raises(DshError) as caught:
        db.rows("SELECT nonsense")
    assert isinstance(caught.value.__cause__, apsw.SQLError)
    assert caught.value.code == "SQL"
    db.close()


# ------------------------------------------------------------------------------------------ where the file really is


@pytest.mark.rule("PE-71")
@pytest.mark.parametrize("there", [True, False])
def test_a_symlink_is_followed_to_the_file(tmp_path: Path, there: bool) -> None:
    (tmp_path / "links").mkdir()
    real, link = tmp_path / "data" / "real.db", tmp_path / "links" / "dsh.db"
    link.symlink_to(real)
    if there:
        real.parent.mkdir()
        stored(real).db.close()
    w = world(link)
    whole_turn(w.session("t"), "hello")
    real_wal = real.with_name("real.db-wal")
    w.db.sync()
    real_wal.unlink()
    assert code(w.db.sync) == "DB_IO"  # it was the very file that is synced
    w.db.close()
    assert list(link.parent.iterdir()) == [link]


@pytest.mark.rule("PE-17", "PE-71")
@pytest.mark.parametrize("lost", ["dsh.db", "dsh.db-wal"])
def test_a_file_that_is_moved_away_is_not_called_durable(tmp_path: Path, lost: str) -> None:
    w = stored(tmp_path / "dsh.db")
    w.db.sync()
    (tmp_path / lost).unlink()
    assert code(w.db.sync) == "DB_IO"
    w.db.close()
