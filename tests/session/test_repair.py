"""Loading, and closing what a crash left open (PE-8, PE-30 to PE-40); the checkpoint (PE-17, PE-22 to PE-24, PE-71)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dsh import query
from dsh.core.lossless import thaw
from dsh.query.check import check
from dsh.session.session import Session
from dsh.store import writes
from tests.session.kit import (
    World,
    call,
    code,
    damage,
    dump,
    end_turn,
    prompt,
    raw,
    replace,
    reply,
    result,
    start_step,
    start_turn,
    text,
    tool_call,
    whole_turn,
    world,
)


def crash(w: World, id: str = "s") -> World:
    """What another process finds: the file, and no lease of a live process."""
    other = w.reopen()
    other.db.rows("DELETE FROM lease")
    return other


def tail(session: Session, low: int) -> list[Any]:
    return [thaw(dict(e)) for e in session.events(low)]


@pytest.mark.rule("PE-30", "PE-33", "PE-34", "PE-35", "PE-36")
def test_what_is_missing_is_appended_in_order(w: World) -> None:
    s = w.session()
    whole_turn(s)
    start_turn(s)
    s.append("user/message", prompt(), surface="append")
    at = start_step(s)
    reply(s, text("let me"), call("done"), call("started"), call("never"))
    tool_call(s, "stray")  # no block asks for it: ignored
    tool_call(s, "done")
    s.append("tool/result", result(s, "done"), surface="append")
    started = tool_call(s, "started")
    last = s.append("x", 1)
    before = tail(s, 0)

    repaired = crash(w).sessions.prepare_stored("s")
    assert tail(repaired, 0)[: s.length] == before
    closers = tail(repaired, s.length)
    assert [(e["type"], e["data"].get("callId")) for e in closers] == [
        ("tool/result", "started"),
        ("tool/result", "never"),
        ("step/end", None),
        ("turn/end", None),
    ]
    assert {e["time"] for e in closers} == {last["time"]}
    unknown, never, step_end, turn_end = closers
    assert unknown["data"]["isError"] is never["data"]["isError"] is True
    assert unknown["data"]["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    assert never["data"]["error"] == {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    assert unknown["sourceEventSeqs"] == [started]
    assert "sourceEventSeqs" not in never
    assert unknown["surfaceOp"] == never["surfaceOp"] == "append"
    assert "not known" in unknown["data"]["content"][0]["text"]
    assert "may be made again" in never["data"]["content"][0]["text"]
    assert step_end["data"] == at
    assert turn_end["data"] == {"turn": 2, "reason": {"kind": "interrupted"}}
    assert (repaired.open_turn, repaired.open_step, repaired.turns) == (None, None, 2)
    answers = [
        m["content"][0]["toolCallId"] for m in repaired.derive_messages() if m["content"][0]["type"] == "tool-result"
    ]
    assert answers == ["done", "started", "never"]


@pytest.mark.rule("PE-34", "PE-35")
@pytest.mark.parametrize("state", ["turn", "between", "step", "answered", "two messages"])
def test_only_the_open_step_is_closed(w: World, state: str) -> None:
    s = w.session()
    start_turn(s)
    if state != "turn":
        start_step(s)
        reply(s, call("a"))
        if state != "step":
            tool_call(s, "a")
        if state == "answered":
            s.append("tool/result", result(s, "a"), surface="append")
        if state == "two messages":
            s.append("tool/result", result(s, "a"), surface="append")
            reply(s, call("b"), call("c"))
        if state == "between":
            s.append("step/end", {"turn": 1, "step": 1})
    length = s.length
    repaired = crash(w).sessions.prepare_stored("s")
    wanted = {
        "turn": ["turn/end"],
        "between": ["turn/end"],  # calls of an ended step stay unanswered
        "step": ["tool/result", "step/end", "turn/end"],
        "answered": ["step/end", "turn/end"],
        "two messages": ["tool/result", "tool/result", "step/end", "turn/end"],
    }[state]
    assert [e["type"] for e in repaired.events(length)] == wanted


@pytest.mark.rule("PE-35")
def test_an_answer_of_an_earlier_step_answers_nothing_now(w: World) -> None:
    s = w.session()
    start_turn(s)
    for step in (1, 2):
        at = start_step(s, step)
        reply(s, call("same"))
        if step == 1:
            tool_call(s, "same")
            s.append("tool/result", result(s, "same"), surface="append")
            s.append("step/end", at)
    length = s.length
    repaired = crash(w).sessions.prepare_stored("s")
    closers = tail(repaired, length)
    assert [e["type"] for e in closers] == ["tool/result", "step/end", "turn/end"]
    assert closers[0]["data"]["error"]["code"] == "TOOL_NOT_STARTED"
    assert closers[0]["data"]["step"] == 2


@pytest.mark.rule("PE-34", "PE-37")
def test_loading_again_changes_nothing(w: World) -> None:
    s = w.session()
    start_turn(s)
    start_step(s)
    reply(s, call("a"))
    crash(w).sessions.prepare_stored("s").release()
    before = dump(w.path)
    again = w.reopen().sessions.prepare_stored("s")
    again.release()
    assert dump(w.path) == before
    assert again.events()[-1]["type"] == "turn/end"


@pytest.mark.rule("PE-8", "PE-30")
def test_a_repaired_session_goes_on(w: World) -> None:
    s = w.session()
    start_turn(s)
    repaired = crash(w).sessions.prepare_stored("s")
    whole_turn(repaired)
    assert [e["seq"] for e in repaired.events()] == list(range(10))
    assert repaired.turns == 2


@pytest.mark.rule("PE-30", "PE-6")
def test_a_repair_that_fails_repairs_nothing(w: World) -> None:
    s = w.session()
    start_turn(s)
    start_step(s)
    reply(s, call("a"), call("b"))
    with raw(w.path) as db:
        db.execute(
            "CREATE TRIGGER _veto BEFORE INSERT ON _event WHEN new.type = 'turn/end'"
            " BEGIN SELECT RAISE(ABORT, 'INVARIANT'); END"
        )
    other = crash(w)
    before = dump(w.path)
    assert code(other.sessions.prepare_stored, "s") == "INVARIANT"
    assert dump(w.path) == before  # the lease was given up too


@pytest.mark.rule("PE-39")
def test_reading_repairs_nothing(w: World) -> None:
    s = w.session()
    start_turn(s)
    start_step(s)
    s.claim("me")
    before = dump(w.path)
    other = world(w.path, read_only=True)
    rows = query.rows(other.db, "events_between", session="s", low=0, high=99)
    assert [r[1] for r in rows] == ["turn/start", "step/start"]
    assert other.db.rows("SELECT turn, end_seq FROM turn") == [(1, None)]
    state = query.row(other.db, "session_state", session="s")
    assert state is not None
    assert state[13:15] == (1, 1)
    assert dump(w.path) == before


@pytest.mark.rule("PE-40")
def test_what_is_not_stored_is_not_found(w: World) -> None:
    w.session("empty")
    other = w.reopen()
    for name in ("nobody", "empty", ""):
        assert code(other.sessions.prepare_stored, name) == "SESSION_NOT_FOUND"
    assert code(w.sessions.prepare_stored, "empty") == "SESSION_ALREADY_EXISTS"
    assert dump(w.path)["_lease"] == []


@pytest.mark.rule("PE-42")
def test_a_stored_log_is_not_claimed_by_another_session_of_its_id(w: World) -> None:
    whole_turn(w.session("s", cwd="/a"))
    before = dump(w.path)
    other = w.reopen()
    seed = [thaw(dict(e)) for e in w.sessions.live("s").events()]  # type: ignore[union-attr]
    assert code(other.sessions.create, "s", meta={"cwd": "/a"}, seed=seed) == "SESSION_ALREADY_EXISTS"
    assert dump(w.path) == before


@pytest.mark.rule("PE-31", "PE-30")
def test_another_format_version_is_refused(w: World) -> None:
    start_turn(w.session())
    damage(w.path, "UPDATE _session SET version = 1")
    before = dump(w.path)
    assert code(w.reopen().sessions.prepare_stored, "s") == "VERSION_UNSUPPORTED"
    assert dump(w.path) == before


@pytest.mark.rule("PE-32")
def test_a_whole_turn_that_is_gone_from_the_end_is_missed(w: World) -> None:
    s = w.session()
    whole_turn(s)
    first = s.length
    whole_turn(s)
    damage(w.path, f"DELETE FROM _event WHERE seq >= {first}")
    before = dump(w.path)
    assert code(crash(w).sessions.prepare_stored, "s") == "LOG_CORRUPT"
    assert dump(w.path) == before


def test_a_session_that_a_shell_made_without_events_can_be_driven(w: World) -> None:
    w.db.rows("INSERT INTO session(id) VALUES ('bare')")
    session = w.sessions.prepare_stored("bare")
    whole_turn(session)
    assert (session.turns, session.open_turn) == (1, None)


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("UPDATE _event SET data = '{oops' WHERE seq = 9", "LOG_CORRUPT"),
        ("DELETE FROM _event WHERE seq = 9", "LOG_CORRUPT"),
        ("DELETE FROM _event WHERE seq = 1", "LOG_CORRUPT"),
        ("DELETE FROM _event WHERE seq >= 8", "LOG_CORRUPT"),
        ("UPDATE _event SET type = 'mode/set' WHERE seq = 9", "LEGACY_EVENT"),
        ("UPDATE _event SET type = 'request/header-delta' WHERE seq = 3", "LEGACY_EVENT"),
        (
            "UPDATE _event SET data = json_set(data, '$.reason', 'fallback') WHERE type = 'request/header'",
            "LEGACY_EVENT",
        ),
    ],
)
@pytest.mark.rule("PE-32", "PE-30", "PE-55", "SE-9", "PE-10")
def test_a_hole_is_refused_and_nothing_is_repaired(w: World, statement: str, wanted: str) -> None:
    s = w.session()
    whole_turn(s)
    start_turn(s)  # seq 8
    s.append("x", 1)
    s.append("x", 2)
    damage(w.path, statement)
    before = dump(w.path)
    assert code(crash(w).sessions.prepare_stored, "s") == wanted
    assert dump(w.path) == before


@pytest.mark.rule("PE-32")
def test_a_hole_that_neither_the_model_nor_a_repair_would_see_is_found_by_reading(w: World) -> None:
    s = w.session()
    whole_turn(s)
    whole_turn(s)
    damage(w.path, "DELETE FROM _event WHERE seq = 4")  # loading costs the same however long a log is
    other = crash(w)
    other.sessions.prepare_stored("s").release()
    assert [(v.seq, v.rule) for v in check(other.db, "s")]


@pytest.mark.rule("PE-55")
def test_a_stored_payload_that_is_not_json_is_a_hole_not_a_crash(w: World) -> None:
    s = w.session()
    whole_turn(s)
    for bad in ("{oops", "[1e999]", '{"content":[' + "[" * 600 + "]" * 600 + "]}"):
        damage(w.path, f"UPDATE _event SET data = '{bad}' WHERE seq = 1")
        other = crash(w)
        assert code(other.sessions.prepare_stored("s").events) == "LOG_CORRUPT"
    damage(w.path, "UPDATE _event SET data = '{oops' WHERE seq = 1")
    assert code(crash(w).sessions.prepare_stored("s").derive_messages) == "LOG_CORRUPT"
    writes.refresh_search(crash(w).db)  # and the index goes on


@pytest.mark.rule("PE-22", "PE-24", "PE-71", "PE-17")
async def test_flush_syncs_the_log_file_and_makes_it_searchable(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def spy(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", spy)
    s = w.session()
    await s.flush()
    assert synced == []  # nothing is stored
    whole_turn(s, "needle")
    await s.flush()
    assert synced == [f"{w.path}-wal"]
    found = w.reopen().db.rows("SELECT count(*) FROM search WHERE search MATCH 'needle'")
    assert found == [(2,)]


@pytest.mark.rule("PE-53", "PE-71")
def test_how_the_connection_is_set(w: World) -> None:
    wanted = {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "temp_store": 2, "recursive_triggers": 0}
    assert {name: w.db.pragma(name) for name in wanted} == wanted


@pytest.mark.rule("SE-55", "PE-34")
def test_a_fork_is_repaired_like_any_other(w: World) -> None:
    s = w.session()
    whole_turn(s)
    child = w.sessions.fork(s, child="child")
    start_turn(child)
    start_step(child)
    reply(child, call("a"))
    inherited = child.events(0, 7)
    start = child.events(1, 1)[0]["seq"]
    child.append("user/message", prompt("sum"), surface=replace(start, start), sources=[start])
    repaired = crash(w).sessions.prepare_stored("child")
    assert repaired.events(0, 7) == inherited
    assert [e["type"] for e in repaired.events(12)] == ["tool/result", "step/end", "turn/end"]
    assert repaired.generation == 1
    end = repaired.events()[-1]
    assert end["data"]["turn"] == 2
    start_turn(repaired)
    end_turn(repaired)
