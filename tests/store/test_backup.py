"""Copies of a database in use, and giving space back (PE-78, PE-80)."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import apsw
import pytest

from dsh.core.errors import StoreError, UsageError
from dsh.query.check import check, index, logs, structure
from dsh.store import database, writes
from dsh.store.database import Database
from tests.session.kit import code, damage, dump, fill, raw, whole_turn, world
from tests.store.test_processes import actor, line


@pytest.mark.slow
@pytest.mark.rule("PE-78")
def test_copies_made_while_others_write_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_STEP_PAGES", 3)  # so that there are many steps to write between
    path = tmp_path / "x.db"
    with actor("drive", path, "a") as one:
        assert line(one) == "ready"
        with actor("drive", path, "b") as two:
            assert line(two) == "ready"
            db = Database.open(path)
            lengths: list[int] = []
            for number in range(8):
                copy = tmp_path / f"copy{number}.db"
                db.backup(copy)
                with_copy = Database.open(copy)
                assert check(with_copy) == []
                assert list(structure(with_copy)) == []
                lengths.append(sum(n for (n,) in with_copy.rows("SELECT length FROM session")))
                with_copy.close()
                before = db.rows("SELECT sum(length) FROM session")
                end = time.monotonic() + 20
                while db.rows("SELECT sum(length) FROM session") == before and time.monotonic() < end:
                    time.sleep(0.01)  # they go on
            assert one.poll() is None
            assert two.poll() is None
            assert lengths == sorted(set(lengths))
            db.close()


@pytest.mark.slow
@pytest.mark.rule("PE-76")
def test_checking_and_rebuilding_what_others_write(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with actor("drive", path, "a") as one, actor("drive", path, "b") as two:
        assert [line(one), line(two)] == ["ready", "ready"]
        db = Database.open(path)
        while len(db.rows("SELECT 1 FROM session")) < 2:
            time.sleep(0.01)
        for _ in range(4):
            assert [*structure(db), *logs(db), *logs(db, quick=True), *index(db)] == []
            for name in "ab":
                writes.rebuild_session(db, name)
            list(writes.rebuild_search(db))
        before = db.rows("SELECT sum(length) FROM session")
        end = time.monotonic() + 20
        while db.rows("SELECT sum(length) FROM session") == before and time.monotonic() < end:
            time.sleep(0.01)
        assert [one.poll(), two.poll()] == [None, None]
        db.close()


@pytest.mark.rule("PE-78")
def test_nobody_waits_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of it, and when it is checked, another connection writes at once; the copy is of the moment it
    began."""
    w = world(tmp_path / "x.db")
    whole_turn(w.session("s"), "words " * 5000)
    other = world(w.path, busy_timeout_ms=0)
    written: list[str] = []
    real = database._complaints

    def meanwhile(db: apsw.Connection, pragma: str) -> list[str]:
        whole_turn(other.session(f"later{len(written)}"))
        written.append(pragma)
        assert not (tmp_path / "copy.db").exists()
        return real(db, pragma)

    monkeypatch.setattr(database, "_complaints", meanwhile)
    w.db.backup(tmp_path / "copy.db")
    assert written == ["quick_check"]
    with raw(tmp_path / "copy.db") as copy:
        assert list(copy.execute("SELECT id FROM session")) == [("s",)]
        assert copy.pragma("journal_mode") == "delete"
    other.db.close()
    w.db.close()


@pytest.mark.rule("PE-78")
def test_a_copy_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(tmp_path / "x.db")
    whole_turn(w.session("s"))
    (tmp_path / "copy.db").write_text("older")

    def interrupted(db: apsw.Connection, pragma: str) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(database, "_complaints", interrupted)
    with pytest.raises(KeyboardInterrupt):
        w.db.backup(tmp_path / "copy.db", force=True)
    assert sorted(p.name for p in tmp_path.glob("copy*")) == ["copy.db"]
    assert (tmp_path / "copy.db").read_text() == "older"
    whole_turn(w.session("t"))
    w.db.close()


@pytest.mark.rule("PE-78")
def test_a_name_is_taken_only_when_asked(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    whole_turn(w.session("s"))
    target = tmp_path / "copy.db"
    target.write_text("mine")
    assert code(w.db.backup, target) == "USAGE"
    assert target.read_text() == "mine"
    w.db.backup(target, force=True)
    assert dump(target) == dump(w.path)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    (tmp_path / "link.db").symlink_to(w.path)
    os.link(w.path, tmp_path / "hard.db")
    for same in (w.path, tmp_path / "link.db", tmp_path / "hard.db"):
        assert code(w.db.backup, same, force=True) == "USAGE"
    used = world(tmp_path / "used.db")
    whole_turn(used.session("other"))
    with pytest.raises(UsageError, match="in use"):
        w.db.backup(used.path, force=True)
    assert used.db.rows("SELECT id FROM session") == [("other",)]
    assert not list(tmp_path.glob("*.part*"))
    used.db.close()
    w.db.close()


@pytest.mark.rule("PE-78")
def test_what_is_not_sound_is_no_backup(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    for number in range(60):
        whole_turn(w.session(f"s{number}"), "words " * 200)
    w.db.close()
    data = bytearray(w.path.read_bytes())
    for page in range(len(data) // 8192, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    w.path.write_bytes(data)
    db = Database.open(w.path)
    with pytest.raises(StoreError, match="the copy is not sound") as caught:
        db.backup(tmp_path / "copy.db")
    assert caught.value.code == "DB_DAMAGED"
    assert sorted(p.name for p in tmp_path.iterdir() if "copy" in p.name) == []
    db.close()


@pytest.mark.rule("PE-80")
def test_space_is_given_back(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    for name in ("a", "b"):
        note = ("note", "x" * 2000, None)
        fill(w.db, name, ("turn/start", {"turn": 1}, None), *[note] * 300, ("turn/end", {"turn": 1}, None))
    writes.delete_session(w.db, "a")
    before = dump(w.path)
    assert w.db.vacuum(0)
    size = w.path.stat().st_size
    assert 300 * 2000 < size < 500 * 2000
    assert w.path.with_name("x.db-wal").stat().st_size == 0
    assert dump(w.path) == before
    assert w.db.pragma("freelist_count") == 0
    assert code(w.db.rows, "SELECT * FROM _event") == "VIEWS_ONLY"  # the guard is back
    whole_turn(w.session("c"))
    w.db.close()


@pytest.mark.rule("PE-80", "PE-75")
def test_readers_keep_the_space_and_writers_are_waited_for(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db", busy_timeout_ms=200)
    fill(w.db, "a", ("turn/start", {"turn": 1}, None), *[("note", "x" * 2000, None)] * 300)
    reader = Database.open(w.path)
    with reader.snapshot():
        assert reader.rows("SELECT count(*) FROM event") == [(301,)]
        writes.delete_session(w.db, "a")
        began = time.monotonic()
        assert not w.db.vacuum(100)
        assert time.monotonic() - began < 10
        assert reader.rows("SELECT count(*) FROM event") == [(301,)]
    assert w.db.vacuum(5000)
    assert w.path.stat().st_size < 300_000
    with reader.transaction():
        assert code(w.db.vacuum, 100) == "DB_BUSY"
    reader.close()
    w.db.close()


@pytest.mark.rule("PE-76")
def test_rules_that_were_changed_are_told(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    assert list(structure(w.db)) == []
    with raw(w.path) as db:
        db.execute("DROP TRIGGER _event_kept")
        db.execute("CREATE TRIGGER mine AFTER INSERT ON _event BEGIN SELECT 1; END")
        db.execute("DROP VIEW todo")
        db.execute("CREATE VIEW todo AS SELECT 1 AS x")
        db.execute("ALTER TABLE _store ADD COLUMN more TEXT")
        db.execute("CREATE TABLE theirs(x)")
    assert sorted(v.message for v in structure(w.db, quick=True)) == [
        "table _store has other columns",
        "trigger _event_kept is missing",
        "trigger mine is none of ours",
        "view todo is not as it was made",
    ]
    w.db.close()


@pytest.mark.rule("PE-76")
def test_references_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    whole_turn(w.session("s"))
    damage(w.path, "PRAGMA foreign_keys = 0", "DELETE FROM _session")
    assert {(v.rule, v.session) for v in structure(w.db)} == {("reference", None)}
    w.db.close()
