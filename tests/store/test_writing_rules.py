"""What an append takes, what a disposed session leaves, and what a flush that fails does not do."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from dsh.core.lossless import thaw
from tests.agent import kit
from tests.session.kit import code, end_turn, prompt, raw, start_turn, text, whole_turn, world


@pytest.mark.rule("PE-4")
def test_what_the_caller_changes_later_is_not_in_the_log(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    s = w.session("s")
    start_turn(s)
    data, sources, op = prompt("as it was"), [0], {"op": "replace", "start": 1, "end": 1}
    s.append("user/message", data, surface="append")
    again = prompt("replaced")
    event = s.append("user/message", again, surface=op, sources=(kept := [1]))
    data["content"].append(text("later"))
    again["content"][0]["text"] = "later"
    op["start"] = 0
    kept.append(99)
    sources.clear()
    stored = [thaw(e) for e in s.events(1, 2)]
    assert stored[0]["data"] == prompt("as it was")
    assert stored[1] == thaw(event)
    assert (stored[1]["data"], stored[1]["surfaceOp"]) == (prompt("replaced"), {"op": "replace", "start": 1, "end": 1})
    assert stored[1]["sourceEventSeqs"] == [1]
    end_turn(s)

    events = [thaw(e) for e in s.events()]
    w.sessions.create("planted", seed=events)
    events[1]["data"]["content"].append(text("later"))
    events.pop()
    planted = w.sessions.live("planted")
    assert planted is not None
    assert [thaw(e) for e in planted.events()] == [thaw(e) for e in s.events()]
    w.db.close()


@pytest.mark.rule("PE-4")
@pytest.mark.parametrize("bad", [object(), math.nan, {1: "a"}, b"bytes", {"deep": [{"x": math.inf}]}, "\ud800"])
def test_what_is_not_json_is_refused_as_it_is_given(tmp_path: Path, bad: Any) -> None:
    w = world(tmp_path / "x.db")
    s = w.session("s")
    start_turn(s)
    assert code(s.append, "note", {"value": bad}) == "EVENT_NOT_JSON"
    seed = [thaw(e) for e in s.events()]
    bad_seed = [*seed, {"type": "note", "seq": 1, "time": 1, "data": {"value": bad}}]
    assert code(w.sessions.create, "planted", seed=bad_seed) == "SEED_INVALID"
    assert w.db.rows("SELECT id, length FROM session") == [("s", 1)]
    s.append("note", {"value": 1})
    w.db.close()


@pytest.mark.rule("PE-19")
def test_a_disposed_session_is_stored_forgotten_and_free(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    s = w.session("s")
    s.claim("holder")
    whole_turn(s, "hello")
    other = world(w.path)
    assert code(other.sessions.prepare_stored, "s") == "SESSION_LEASED"
    w.sessions.dispose(s)
    assert w.sessions.live("s") is None
    assert w.db.rows("SELECT * FROM lease") == []
    assert other.sessions.prepare_stored("s").length == 8
    with raw(w.path) as db:
        assert db.execute("SELECT count(*) FROM _event").fetchall() == [(8,)]
    other.db.close()
    w.db.close()


@pytest.mark.rule("PE-20", "PE-17")
async def test_a_flush_that_fails_is_no_event_and_reopens_nothing(tmp_path: Path) -> None:
    """The -wal file goes away while the model answers, so the flush at the end of the turn fails."""

    async def answer(request: Any) -> AsyncGenerator[Any, None]:
        for chunk in kit.say("hello"):
            yield chunk
        (tmp_path / "dsh.db-wal").rename(tmp_path / "elsewhere")

    async with kit.world(answer) as w:
        agent = await w.agent()
        reason = await w.turn(agent)
        assert reason == {"kind": "completed"}
        assert [getattr(e, "code", None) for _, _, e in w.errors()] == ["DB_IO"]
        assert w.flow(agent)[-2:] == ["step/end", "turn/end"]
        assert agent.session.open_turn is None
        assert w.db.rows("SELECT open_turn, turns FROM session") == [(None, 1)]
        length = agent.session.length
        with pytest.raises(Exception, match="moved or deleted"):
            await agent.session.flush()
        assert (agent.session.length, len(w.log(agent))) == (length, length)
        (tmp_path / "elsewhere").rename(tmp_path / "dsh.db-wal")
        await agent.session.flush()
        assert len(w.log(agent)) == length
