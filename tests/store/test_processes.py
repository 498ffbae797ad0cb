"""Several processes on one file: making it, writing, waiting, driving, dying (PE-9, PE-52, PE-70 to PE-75)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dsh.core.errors import StoreError
from dsh.query.check import check
from dsh.store import locks, writes
from dsh.store.database import Database
from dsh.store.migrations import MIGRATIONS
from tests.session.kit import code, dump, end_turn, start_turn, whole_turn, world

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def actor(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Another process, known to have started; killed at the end if it still runs."""
    command = [sys.executable, "-m", "tests.store.actors", *map(str, words)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
@pytest.mark.rule("PE-52", "PE-53")
def test_eight_processes_make_one_database(tmp_path: Path) -> None:
    for attempt in range(3):
        path, go = tmp_path / f"x{attempt}.db", tmp_path / f"go{attempt}"
        with ExitStack() as stack:
            openers = [stack.enter_context(actor("open_once", path, go)) for _ in range(8)]
            assert [line(p) for p in openers] == ["ready"] * 8
            go.touch()
            stores = [line(p) for p in openers]
            assert [p.wait(30) for p in openers] == [0] * 8
        db = Database.open(path)
        assert len(set(stores)) == 1
        assert db.rows("SELECT store_id FROM store") == [(stores[0],)]
        assert db.rows("SELECT id, name FROM migration ORDER BY id") == [
            (n, m.name) for n, m in enumerate(MIGRATIONS, 1)
        ]
        assert db.integrity() == []
        db.close()


@pytest.mark.slow
@pytest.mark.rule("PE-9", "PE-70")
def test_eight_writers_on_sessions_of_their_own(tmp_path: Path) -> None:
    path, go = tmp_path / "x.db", tmp_path / "go"
    with ExitStack() as stack:
        writers = [stack.enter_context(actor("write", path, f"s{n}", 15, go)) for n in range(8)]
        assert [line(p) for p in writers] == ["ready"] * 8
        go.touch()
        assert [line(p) for p in writers] == [str(15 * 10)] * 8
        assert [p.wait(30) for p in writers] == [0] * 8
    w = world(path)
    assert w.db.rows("SELECT length, turns FROM session") == [(150, 15)] * 8
    assert check(w.db) == []
    assert w.db.integrity() == []
    writes.refresh_search(w.db)
    w.db.rows("INSERT INTO search(search, rank) VALUES ('integrity-check', 1)")
    assert len(w.db.rows("SELECT 1 FROM search WHERE search MATCH 's3'")) == 30
    w.db.close()


@pytest.mark.rule("PE-72", "PE-39")
def test_two_drivers_of_one_session(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    whole_turn(w.session("s"))
    go = tmp_path / "go"
    go.touch()
    with actor("claim", w.path, "s", go) as driver:
        assert line(driver) == "ready"
        assert line(driver) == "mine 8"
        before = dump(w.path)
        other = world(w.path)
        assert code(other.sessions.prepare_stored, "s") == "SESSION_LEASED"
        assert code(writes.delete_session, other.db, "s") == "SESSION_LEASED"
        assert dump(w.path) == before
        assert other.db.rows("SELECT pid FROM lease") == [(driver.pid,)]
        assert len(other.db.rows("SELECT * FROM event")) == 8
        driver.kill()
        driver.wait()
        taken = other.sessions.prepare_stored("s")  # its process is gone
        start_turn(taken)
        end_turn(taken)
        other.db.close()
    w.db.close()


@pytest.mark.slow
@pytest.mark.rule("PE-73")
def test_of_several_claimants_of_a_stale_lease_one_wins(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    for attempt in range(5):
        name, go = f"s{attempt}", tmp_path / f"go{attempt}"
        session = w.session(name)
        start_turn(session)
        w.db.rows(
            "INSERT INTO lease(session_id, holder, pid, boot_id, process_start, heartbeat)"
            " VALUES (?, 'gone', 1, '', '', 1)",
            (name,),
        )
        with ExitStack() as stack:
            claimants = [stack.enter_context(actor("claim", w.path, name, go)) for _ in range(4)]
            assert [line(p) for p in claimants] == ["ready"] * 4
            go.touch()
            answers = sorted(line(p) for p in claimants)
        assert answers == ["SESSION_LEASED"] * 3 + ["mine 2"]
        assert w.db.rows("SELECT count(*) FROM event WHERE session_id = ?", (name,)) == [(2,)]
    w.db.close()


@pytest.mark.rule("PE-75")
def test_a_busy_database_is_named_with_its_holder(tmp_path: Path) -> None:
    db = Database.open(tmp_path / "x.db", busy_timeout_ms=150)
    with actor("hold", db.path, 30) as holder:
        assert line(holder) == "held"
        begun = time.monotonic()
        with pytest.raises(StoreError) as caught:
            writes.set_setting(db, "a", 1)
        waited = time.monotonic() - begun
        assert caught.value.code == "DB_BUSY"
        assert str(db.path) in caught.value.message
        assert str(holder.pid) in caught.value.message
        assert 0.1 < waited < 5
        assert db.rows("SELECT * FROM setting") == []  # readers do not wait
        begun = time.monotonic()
        assert code(db.transaction().__enter__) == "DB_BUSY"
        db.busy.give_up = True
        assert code(writes.set_setting, db, "a", 1) == "DB_BUSY"
        db.busy.give_up = False
    writes.set_setting(db, "a", 1)
    db.close()


@pytest.mark.slow
@pytest.mark.rule("PE-75", "PE-52")
def test_a_lock_on_the_empty_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.touch(0o600)
    with actor("hold", path, 3) as holder:
        assert line(holder) == "held"
        begun = time.monotonic()
        assert code(Database.open, path, busy_timeout_ms=200) == "DB_BUSY"
        db = Database.open(path)
        assert time.monotonic() - begun > 1.5
        assert holder.wait(10) == 0
    assert db.integrity() == []
    db.close()


@pytest.mark.rule("PE-73")
def test_the_holder_of_a_lock_is_found(tmp_path: Path) -> None:
    db = Database.open(tmp_path / "x.db")
    assert locks.holder_of(db.path) is None
    with actor("hold", db.path, 30) as holder:
        line(holder)
        if sys.platform == "linux":
            assert locks.holder_of(db.path) == holder.pid
    assert locks.holder_of(tmp_path / "missing.db") is None
    db.close()


def kill_and_look(path: Path, rounds: int, seed: int) -> None:
    """A driver is killed at a random moment, again and again; after each time the log is whole and goes on."""
    chance = random.Random(seed)
    for number in range(rounds):
        name = f"s{number % 3}"
        with actor("drive", path, name) as driver:
            assert line(driver) == "ready"
            time.sleep(chance.uniform(0, 0.06))
            driver.send_signal(signal.SIGKILL)
            driver.wait()
        w = world(path)
        if number % 10 == 0:
            assert w.db.integrity() == []
        stored = w.db.rows("SELECT length FROM session WHERE id = ?", (name,))
        assert check(w.db, name) == []  # length, surface, open turn: all as the events have it
        if stored:
            session = w.sessions.prepare_stored(name)
            assert session.open_turn is None
            assert session.length >= stored[0][0]
            assert [e["seq"] for e in session.events()] == list(range(session.length))
            assert session.length == stored[0][0] or session.events()[-1]["data"]["reason"] == {"kind": "interrupted"}
            assert check(w.db, name) == []
            derived = session.derive_messages()
            asked = [b["id"] for m in derived for b in m["content"] if b["type"] == "tool-call"]
            answered = [b["toolCallId"] for m in derived for b in m["content"] if b["type"] == "tool-result"]
            assert set(asked) <= set(answered)
            session.release()
        w.db.close()
    w = world(path)
    assert w.db.integrity() == []
    assert check(w.db) == []
    writes.refresh_search(w.db)
    w.db.rows("INSERT INTO search(search, rank) VALUES ('integrity-check', 1)")
    w.db.close()


@pytest.mark.rule("PE-6", "PE-33", "PE-71", "PE-30")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    kill_and_look(tmp_path / "x.db", 5, 1)


@pytest.mark.slow
@pytest.mark.rule("PE-6", "PE-33", "PE-71", "PE-30")
def test_killed_at_any_moment_many_times(tmp_path: Path) -> None:
    kill_and_look(tmp_path / "x.db", 50, 2)
