"""Who drives a session (PE-72 to PE-74)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from dsh.store import locks, writes
from tests.session.kit import World, code, dump, start_turn, whole_turn


def lease(w: World, session: str = "s") -> Any:
    return w.db.row("SELECT holder, pid, boot_id, process_start, heartbeat FROM lease WHERE session_id = ?", (session,))


def forge(w: World, **change: Any) -> None:
    """Put a lease of another process, by default a live one: this one."""
    pid = os.getpid()
    row = {
        "holder": "other",
        "pid": pid,
        "boot": locks.boot_id(),
        "start": locks.process_start(pid),
        "beat": writes.now_ms(),
        **change,
    }
    w.db.rows("DELETE FROM lease")
    w.db.rows(
        "INSERT INTO lease(session_id, holder, pid, boot_id, process_start, heartbeat)"
        " VALUES ('s', :holder, :pid, :boot, :start, :beat)",
        row,
    )


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.rule("PE-72")
def test_a_driver_holds_the_row_with_its_first_event(w: World) -> None:
    s = w.session()
    s.claim("me")
    assert lease(w) is None
    start_turn(s)
    holder, pid, boot, start, beat = lease(w)
    assert (holder, pid) == ("me", os.getpid())
    assert (boot, start) == (locks.boot_id(), locks.process_start(os.getpid()))
    assert abs(beat - writes.now_ms()) < 60_000
    s.release()
    assert lease(w) is None


@pytest.mark.rule("PE-72")
def test_a_second_driver_changes_nothing(w: World) -> None:
    s = w.session()
    s.claim("me")
    start_turn(s)
    before = dump(w.path)
    other = w.reopen()
    assert code(other.sessions.prepare_stored, "s") == "SESSION_LEASED"
    assert code(writes.delete_session, other.db, "s") == "SESSION_LEASED"
    assert code(writes.insert_event, other.db, "s", 1, "x", 1, "1", None, None) == "SESSION_LEASED"
    assert code(other.db.rows, "INSERT INTO event(session_id, type, data) VALUES ('s', 'x', '1')") == "SESSION_LEASED"
    assert code(other.db.rows, "UPDATE lease SET holder = 'x'") == "SESSION_LEASED"
    assert dump(w.path) == before
    assert other.db.rows("SELECT count(*) FROM event") == [(1,)]  # reading needs none
    s.append("x", 1)


@pytest.mark.parametrize(
    ("change", "stale"),
    [
        ({}, False),
        ({"pid": "dead"}, True),
        ({"boot": "another boot"}, True),
        ({"start": "1"}, True),  # the pid is another process's now
        ({"start": "unknown"}, False),
        ({"beat": -31_000}, True),
        ({"beat": -20_000}, False),
    ],
    ids=repr,
)
@pytest.mark.rule("PE-73", "PE-72")
def test_which_leases_are_stale(w: World, change: dict[str, Any], stale: bool) -> None:
    s = w.session()
    start_turn(s)
    if "beat" in change:
        change = {"beat": writes.now_ms() + change["beat"]}
    if change.get("pid") == "dead":
        change = {"pid": dead_pid()}
    forge(w, **change)
    before = dump(w.path)
    other = w.reopen()
    if stale:
        repaired = other.sessions.prepare_stored("s", holder="new")
        assert repaired.events()[-1]["data"]["reason"] == {"kind": "interrupted"}
        assert lease(w)[0] == "new"
    else:
        assert code(other.sessions.prepare_stored, "s") == "SESSION_LEASED"
        assert dump(w.path) == before


@pytest.mark.rule("PE-73")
def test_a_stale_lease_does_not_keep_a_session_from_being_deleted(w: World) -> None:
    whole_turn(w.session())
    forge(w, pid=dead_pid())
    writes.delete_session(w.db, "s")
    assert dump(w.path)["_lease"] == []


@pytest.mark.rule("PE-73")
def test_only_the_stale_lease_itself_is_replaced(w: World) -> None:
    start_turn(w.session())
    forge(w, holder="first", pid=dead_pid())
    insert = (
        "INSERT INTO lease(session_id, holder, pid, boot_id, process_start, heartbeat, replaces)"
        " VALUES ('s', ?, 1, 'b', 's', 1, ?)"
    )
    w.db.rows(insert, ("second", "first"))
    assert code(w.db.rows, insert, ("third", "first")) == "SESSION_LEASED"
    assert lease(w)[0] == "second"


@pytest.mark.rule("PE-74")
@pytest.mark.parametrize("then", ["nothing", "appended", "released", "appended and released"])
def test_a_holder_that_was_put_aside_notices_at_its_next_write(w: World, then: str) -> None:
    s = w.session()
    s.claim("me")
    whole_turn(s)
    forge(w, holder="me", pid=dead_pid())  # as others see it
    other = w.reopen().sessions.prepare_stored("s", holder="new")
    if "appended" in then:
        start_turn(other)
    if "released" in then:
        other.release()
    before = dump(w.path)
    handle = s.length
    assert code(start_turn, s) == "SESSION_LEASED"
    assert code(s.beat) == "SESSION_LEASED"
    assert code(s.append, "x", 1) == "SESSION_LEASED"
    s.release()
    assert dump(w.path) == before
    assert s.length == handle


@pytest.mark.rule("PE-72")
def test_a_heartbeat_renews_the_row(w: World) -> None:
    s = w.session()
    s.claim("me")
    start_turn(s)
    first = lease(w)[4]
    time.sleep(0.005)
    s.beat()
    assert lease(w)[4] > first
    assert lease(w)[:4] == ("me", os.getpid(), locks.boot_id(), locks.process_start(os.getpid()))


@pytest.mark.rule("PE-73")
def test_a_stopped_process_is_not_a_gone_one() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = locks.process_start(child.pid)
        child.send_signal(signal.SIGSTOP)
        assert locks.process_start(child.pid) == started != ""
    finally:
        child.kill()
        child.wait()
    assert locks.process_start(child.pid) == ""


@pytest.mark.rule("PE-72")
def test_disposing_gives_the_lease_up(w: World) -> None:
    s = w.session()
    s.claim("me")
    start_turn(s)
    w.sessions.dispose(s)
    assert lease(w) is None


@pytest.mark.rule("PE-73")
def test_a_process_of_another_namespace_is_judged_by_its_heartbeat(w: World) -> None:
    start_turn(w.session())
    elsewhere = f"{locks.boot_id().split()[0]} pid:[1]"
    forge(w, pid=dead_pid(), boot=elsewhere)
    other = w.reopen()
    assert code(other.sessions.prepare_stored, "s") == "SESSION_LEASED"
    forge(w, boot=elsewhere, beat=writes.now_ms() - 31_000)
    other.sessions.prepare_stored("s")
    other.db.close()
