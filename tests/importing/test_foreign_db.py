"""Databases of other programs: read while in use, never touched, and whatever is in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from dsh.core.errors import StoreError
from dsh.importing.foreign_db import database_source, document, opened
from dsh.importing.model import ReadError
from dsh.store import foreign as module
from dsh.store.foreign import TOO_LONG, foreign
from tests.importing.stores import changed, database, state

TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, said TEXT); INSERT INTO t VALUES (1, 'one'), (2, 'two');"


def _said(path: Path) -> list[object]:
    with foreign(str(path)) as db:
        return [said for (said,) in db.rows("t", ("said",), order=("id",))]


@contextmanager
def _owner(path: Path, *statements: str) -> Iterator[subprocess.Popen[str]]:
    """Another process with the database open, which has done something and answers each line with one more row."""
    code = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(50)
for statement in sys.argv[2:]: db.execute(statement)
print("ready", flush=True)
for line in sys.stdin:
    try: db.execute(line); print("done", flush=True)
    except apsw.Error as error: print(error, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), *statements],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()


def _does(owner: subprocess.Popen[str], statement: str) -> str:
    assert owner.stdin is not None
    assert owner.stdout is not None
    owner.stdin.write(statement + "\n")
    owner.stdin.flush()
    return owner.stdout.readline().strip()


def test_what_is_in_the_wal_file_of_nobody_is_read_and_nothing_is_touched(tmp_path: Path) -> None:
    path = database(tmp_path / "a" / "x.db", TABLE, wal=True)
    before = state(path.parent)
    assert set(before) == {"x.db", "x.db-wal", "x.db-shm"}
    assert _said(path) == ["one", "two"]
    assert state(path.parent) == before


def test_a_closed_database_in_wal_mode_gets_no_files_beside_it(tmp_path: Path) -> None:
    path = database(tmp_path / "a" / "x.db", "PRAGMA journal_mode = wal;" + TABLE)
    before = state(path.parent)
    assert set(before) == {"x.db"}
    assert _said(path) == ["one", "two"]
    assert state(path.parent) == before


def test_a_wal_file_without_its_index_is_read_from_a_copy(tmp_path: Path) -> None:
    path = database(tmp_path / "a" / "x.db", TABLE, wal=True)
    (tmp_path / "a" / "x.db-shm").unlink()
    before = state(path.parent)
    assert _said(path) == ["one", "two"]
    assert state(path.parent) == before


def test_an_owner_in_wal_mode_is_seen_and_does_not_wait(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with _owner(path, "PRAGMA journal_mode = wal", *TABLE.split("; ")) as owner, foreign(str(path)) as db:
        first = next(rows := db.rows("t", ("said",), order=("id",)))
        assert _does(owner, "INSERT INTO t VALUES (3, 'three')") == "done"
        assert _does(owner, "PRAGMA wal_checkpoint(PASSIVE)") == "done"
        assert [first, *rows] == [("one",), ("two",)]  # one state, that of the beginning
    assert _said(path) == ["one", "two", "three"]


def test_an_owner_with_a_rollback_journal_does_not_wait_between_reads(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with _owner(path, "PRAGMA journal_mode = delete", *TABLE.split("; ")) as owner, foreign(str(path)) as db:
        next(rows := db.rows("t", ("said",)))
        assert _does(owner, "INSERT INTO t VALUES (3, 'three')") == "done"
        assert len(list(rows)) == 1


def test_a_database_that_its_owner_keeps_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_MS", 30)
    path = database(tmp_path / "x.db", TABLE)
    with _owner(path, "BEGIN EXCLUSIVE"), pytest.raises(StoreError, match="is locked by its owner"):
        _said(path)


def test_half_a_transaction_that_a_crash_left_is_told(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", TABLE)
    crash = "import apsw, os, sys; db = apsw.Connection(sys.argv[1]); db.execute('PRAGMA cache_size = 1; BEGIN');"
    crash += "[db.execute('INSERT INTO t VALUES (?, ?)', (i, 'x' * 900)) for i in range(10, 400)]; os._exit(0)"
    subprocess.run([sys.executable, "-c", crash, str(path)], check=True)
    before = state(tmp_path)
    with pytest.raises(StoreError, match="has yet to undo"):
        _said(path)
    assert state(tmp_path) == before


def test_a_closed_database_that_is_changed_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", "PRAGMA journal_mode = wal;" + TABLE)
    with foreign(str(path)) as db:
        assert len(list(db.rows("t", ("id",)))) == 2
        changed(path, "INSERT INTO t VALUES (3, 'three')")
        with pytest.raises(StoreError, match="was changed by its owner"):
            list(db.rows("t", ("id",)))


def test_what_is_no_database_or_a_damaged_one_is_told(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"SQLite format 3\0" + b"\0" * 50, b"\xff" * 5000):
        path = tmp_path / "no.db"
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"is not an SQLite database|is damaged"):
            _said(path)
    whole = database(tmp_path / "x.db", TABLE + "INSERT INTO t SELECT NULL, hex(zeroblob(2000)) FROM t, t, t;")
    data = bytearray(whole.read_bytes())
    data[4096:8192] = b"\xaa" * 4096
    whole.write_bytes(data)
    with pytest.raises(ReadError, match="is damaged"), opened(str(whole), t=("id",)) as db:
        list(db.rows("t", ("id", "said")))
    with pytest.raises(OSError, match="No such file"):
        _said(tmp_path / "none.db")


def test_only_ordinary_tables_are_read_and_what_is_missing_is_null(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n"
    path = database(
        tmp_path / "x.db",
        TABLE,
        f"CREATE VIEW endless AS {endless}",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
        "CREATE TABLE w(a PRIMARY KEY) WITHOUT ROWID; INSERT INTO w VALUES (3), (1)",
    )
    with foreign(str(path)) as db:
        assert db.has("t", "id", "said")
        assert not db.has("t", "other")
        assert list(db.rows("t", ("id", "other", "rowid"), where=("id", 2))) == [(2, None, 2)]
        assert list(db.rows("t", ("id",), where=("other", 2))) == []
        assert list(db.rows("endless", ("id",))) == list(db.rows("f", ("a",))) == list(db.rows("none", ("a",))) == []
        assert list(db.rows("w", ("a", "rowid"), order=("rowid", "a"))) == [(1, None), (3, None)]
        assert list(db.rows("t", ("id",), order=("other", "id"), last=True)) == [(2,)]
        assert db.count("t", ("said", "one")) == 1
        assert db.count("t", ("other", 1)) == db.count("endless", ("id", 1)) == 0
    with pytest.raises(ReadError, match="no table endless"), opened(str(path), endless=("id",)):
        pass


def test_text_that_is_no_utf8_and_values_that_are_too_long_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VALUE", 1000)
    values = (
        "(3, CAST(x'61ff62' AS TEXT)), (4, hex(zeroblob(600))), (5, zeroblob(1001)), (6, NULL), (7, x'7b7d'), (8, 1.5)"
    )
    path = database(tmp_path / "x.db", TABLE, f"INSERT INTO t VALUES {values}")
    assert _said(path) == ["one", "two", "a\ufffdb", TOO_LONG, TOO_LONG, None, "{}", "1.5"]
    assert repr(TOO_LONG) == "TOO_LONG"
    with pytest.raises(ValueError, match="longer than"):
        document(TOO_LONG)
    with pytest.raises(ValueError, match="is not text"):
        document(4)
    assert document(None) is None


def test_a_database_in_utf16_is_read(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", "PRAGMA encoding = 'UTF-16le'", TABLE, "UPDATE t SET said = '你好' WHERE id = 1")
    assert _said(path) == ["你好", "two"]


def test_a_link_and_a_name_of_any_signs_are_followed(tmp_path: Path) -> None:
    path = database(tmp_path / "a?b#c%41" / "x.db", TABLE, wal=True)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    assert _said(link) == ["one", "two"]
    before = database_source(str(link))
    changed(path, "INSERT INTO t VALUES (3, 'three')")
    assert database_source(str(link)) != before
    assert apsw.Connection(str(path)).execute("SELECT count(*) FROM t").get == 3
