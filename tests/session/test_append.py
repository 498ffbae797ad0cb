"""Appending (SE-1 to SE-9) and the turn that encloses everything (SE-40 to SE-47)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dsh.core.lossless import thaw
from dsh.session.session import Session
from tests.session.kit import (
    ROUTE,
    World,
    call,
    code,
    dump,
    end_turn,
    prompt,
    replace,
    reply,
    result,
    start_step,
    start_turn,
    text,
    tool_call,
    whole_turn,
)


@pytest.mark.rule("SE-1")
def test_an_append_gets_the_next_seq_and_the_time(w: World) -> None:
    s = w.session()
    before = time.time_ns() // 1_000_000
    first = s.append("turn/start", {"turn": 1, "trigger": {"kind": "x"}})
    second = s.append("user/message", prompt(), surface="append")
    after = time.time_ns() // 1_000_000
    assert [first["seq"], second["seq"], s.length] == [0, 1, 2]
    assert before <= first["time"] <= second["time"] <= after
    assert second["surfaceOp"] == "append"
    assert set(first) == {"type", "seq", "time", "data"}
    assert s.events() == [first, second]
    assert w.reopen().db.rows("SELECT seq, time FROM event ORDER BY seq") == [(0, first["time"]), (1, second["time"])]


@pytest.mark.rule("SE-1", "SE-8", "CO-30")
def test_later_changes_reach_neither_the_log_nor_the_event(w: World) -> None:
    s = w.session()
    start_turn(s)
    data = prompt("first")
    event = s.append("user/message", data, surface="append")
    data["content"][0]["text"] = "changed"
    data["content"].append(text("more"))
    assert event["data"]["content"] == [text("first")]
    assert s.events(1)[0]["data"]["content"] == [text("first")]
    for change in (lambda: event["data"]["content"].append(1), lambda: event.__setitem__("seq", 9)):
        with pytest.raises(TypeError):
            change()


@pytest.mark.rule("SE-1")
def test_the_returned_event_shows_what_is_stored(w: World) -> None:
    s = w.session()
    start_turn(s)
    event = s.append("x", {"a": 1.0, "b": [2.0, 2.5], "ü": "漢"})
    assert repr(thaw(event["data"])) == "{'a': 1, 'b': [2, 2.5], 'ü': '漢'}"
    assert s.events(1)[0] == event
    assert w.db.row("SELECT data FROM event WHERE seq = 1") == ('{"a":1,"b":[2,2.5],"ü":"漢"}',)


@pytest.mark.rule("SE-8")
def test_a_list_of_events_does_not_grow(w: World) -> None:
    s = w.session()
    start_turn(s)
    earlier = s.events()
    s.append("x", 1)
    assert len(earlier) == 1


@pytest.mark.parametrize("data", [float("nan"), {"a": (1,)}, {1: 2}, {"a": 2**53}, ["\ud800"], {"x": set()}], ids=repr)
@pytest.mark.rule("SE-2", "SE-5")
def test_what_is_not_json_changes_nothing(w: World, data: Any) -> None:
    s = w.session()
    start_turn(s)
    before = dump(w.path)
    assert code(s.append, "x", data) == "EVENT_NOT_JSON"
    assert dump(w.path) == before
    assert s.append("x", None)["seq"] == 1


@pytest.mark.parametrize("sources", [[float("nan")], ["\ud800"], [set()], [2**60]], ids=repr)
@pytest.mark.rule("SE-2", "SE-13")
def test_sources_are_checked_like_everything_else(w: World, sources: Any) -> None:
    s = w.session()
    start_turn(s)
    assert code(s.append, "user/message", prompt(), surface="append", sources=sources) == "EVENT_NOT_JSON"
    assert code(s.append, "x\ud800", 1) == "EVENT_NOT_JSON"
    assert s.length == 1


@pytest.mark.rule("SE-3")
def test_the_deepest_payload_is_read_by_every_view(w: World) -> None:
    s = w.session()
    start_turn(s)
    deep: Any = []
    for _ in range(507):  # content > block > field, and the envelope, make it 512
        deep = [deep]
    data = {**prompt(), "content": [{"type": "text", "text": "deep", "x": [deep]}]}
    s.append("user/message", data, surface="append")
    assert code(s.append, "user/message", {**data, "content": [{"type": "x", "y": [[deep]]}]}, surface="append") == (
        "EVENT_NOT_JSON"
    )
    assert s.derive_messages()[0]["content"] == data["content"]
    for (view,) in w.db.rows("SELECT name FROM sqlite_schema WHERE type = 'view' AND name NOT LIKE '\\_%' ESCAPE '\\'"):
        w.db.rows(f"SELECT * FROM {view}")


@pytest.mark.parametrize(
    ("type_", "surface", "sources"),
    [
        ("user/message", None, None),
        ("assistant/message", None, []),
        ("steering/message", None, [0]),
        ("tool/result", None, None),
        ("x", "append", None),
        ("x", None, [0]),
        ("tool/call", "append", None),
        ("turn/end", replace(0, 0), [0]),
        ("prompt/blocked", "append", None),
        ("user/message", "prepend", None),
        ("user/message", "", None),
        ("user/message", [], None),
        ("user/message", 5, None),
        ("user/message", True, None),
    ],
)
@pytest.mark.rule("SE-5", "SE-12")
def test_surface_and_log_only_events_are_not_mixed_up(w: World, type_: str, surface: Any, sources: Any) -> None:
    s = w.session()
    start_turn(s)
    start_step(s)
    tool_call(s, "c")
    before = dump(w.path)
    data = {**prompt(), "turn": 1, "step": 1, "callId": "c", "isError": False, "provenance": ROUTE}
    assert code(s.append, type_, data, surface=surface, sources=sources) == "SURFACE_INVALID"
    assert dump(w.path) == before
    assert s.append("x", 1)["seq"] == s.length - 1


_NO_BLOCKS: list[Any] = [
    {},
    {"type": 5},
    {"type": "text"},
    {"type": "text", "text": ["a"]},
    {"type": "reasoning", "text": None},
    {**call("c"), "id": 1},
    {**call("c"), "name": -1.5},
    {**call("c"), "arguments": {}},
    {"type": "tool-result", "toolCallId": 1, "content": []},
    {"type": "tool-result", "toolCallId": "c", "content": "out"},
]


@pytest.mark.parametrize(
    "content",
    [None, "words", {}, ["words"], [[text("a")]], [text("a"), None], 5, *([text("a"), each] for each in _NO_BLOCKS)],
)
@pytest.mark.rule("SE-5", "SE-20")
def test_what_the_model_sees_is_a_list_of_blocks(w: World, content: Any) -> None:
    s = w.session()
    start_turn(s)
    shapes: list[Any] = [{"content": content}, {}, [], "x", None]
    for data in shapes:
        assert code(s.append, "user/message", data, surface="append") == "SURFACE_INVALID"
    assert s.derive_messages() == ()


@pytest.mark.rule("SE-6")
def test_an_observer_cannot_append_to_the_session_it_hears_of(w: World) -> None:
    s, other = w.session("s"), w.session("other")
    heard: list[Any] = []

    def meddle(session: Session, event: Any) -> None:
        if session is s and event["type"] == "turn/start":
            heard.append(code(s.append, "x", 1))
            heard.append(code(s.append, "x", object()))  # what is not JSON is told first
            start_turn(other)

    def listen(session: Session, event: Any) -> None:
        heard.append((session.id, event["seq"], event["type"]))

    w.host.root.on("session/event", meddle)
    w.host.root.on("session/event", listen)
    start_turn(s)
    s.append("x", 1)
    assert heard == [
        "APPEND_REENTRANT",
        "EVENT_NOT_JSON",
        ("other", 0, "turn/start"),
        ("s", 0, "turn/start"),
        ("s", 1, "x"),
    ]
    assert [e["type"] for e in s.events()] == ["turn/start", "x"]


@pytest.mark.rule("SE-7")
def test_observers_come_after_the_commit_and_their_failures_are_contained(w: World) -> None:
    s = w.session()
    stored: list[int] = []

    def broken(_: Session, event: Any) -> None:
        raise RuntimeError("no")

    def look(session: Session, event: Any) -> None:
        other = w.reopen()
        stored.append(len(other.db.rows("SELECT 1 FROM event")))
        other.db.close()

    w.host.root.on("session/event", broken)
    w.host.root.on("session/event", look)
    assert s.append("turn/start", {"turn": 1, "trigger": {}})["seq"] == 0
    assert code(s.append, "turn/start", {"turn": 2, "trigger": {}}) == "INVARIANT"
    assert s.append("x", 1)["seq"] == 1
    assert stored == [1, 2]
    assert [where for where, _ in w.host.reports] == ["session/event"] * 2


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("request/header-delta", {}),
        ("mode/set", {"mode": "x"}),
        ("request/header", {"header": {"config": ROUTE}, "reason": "fallback"}),
    ],
)
@pytest.mark.rule("SE-9", "PE-10")
def test_removed_kinds_are_refused(w: World, type_: str, data: Any) -> None:
    s = w.session()
    start_turn(s)
    before = dump(w.path)
    assert code(s.append, type_, data) == "LEGACY_EVENT"
    assert dump(w.path) == before
    seed: list[Any] = [{"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1, "trigger": {}}}]
    seed.append({"type": type_, "seq": 1, "time": 1, "data": data})
    assert code(w.sessions.create, "seeded", seed=seed) == "LEGACY_EVENT"
    assert dump(w.path) == before


# ------------------------------------------------------------------------------------------------------- enclosure


def build(s: Session, state: str) -> None:
    """Bring a session to a state: empty, balanced, a turn open, a step open, a second step open."""
    if state == "balanced":
        whole_turn(s)
    if state in ("turn", "step", "between"):
        start_turn(s)
    if state in ("step", "between"):
        start_step(s)
        tool_call(s, "c1")
    if state == "between":
        s.append("step/end", {"turn": 1, "step": 1})


T = {"turn": 1, "step": 1}
T2 = {"turn": 1, "step": 2}
CHUNK = {"chunk": {"type": "text-delta", "index": 0, "text": "x"}}
MESSAGE = {"content": [], "provenance": ROUTE}
RESULT = {"callId": "c1", "content": [], "isError": False}
NOT_STARTED = {"callId": "zz", "content": [], "isError": True, "error": {"name": "X", "code": "TOOL_NOT_STARTED"}}


@pytest.mark.parametrize(
    ("state", "type_", "data", "surface"),
    [
        # outside every turn (SE-40)
        ("empty", "x", 1, None),
        ("empty", "turn/end", {"turn": 0, "reason": {"kind": "completed"}}, None),
        ("empty", "step/start", T, None),
        ("empty", "user/message", prompt(), "append"),
        ("empty", "todo/write", {"todos": []}, None),
        ("empty", "request/header", {"header": {"config": ROUTE}, "reason": "initial"}, None),
        ("balanced", "x", 1, None),
        ("balanced", "user/message", prompt(), "append"),
        ("balanced", "assistant/chunk", {**T, **CHUNK}, None),
        ("balanced", "turn/end", {"turn": 1, "reason": {"kind": "completed"}}, None),
        ("balanced", "step/end", T, None),
        # numbers (SE-41, SE-42)
        ("empty", "turn/start", {"turn": 0, "trigger": {}}, None),
        ("empty", "turn/start", {"turn": 2, "trigger": {}}, None),
        ("empty", "turn/start", {"trigger": {}}, None),
        ("empty", "turn/start", {"turn": "1", "trigger": {}}, None),
        ("empty", "turn/start", {"turn": True, "trigger": {}}, None),
        ("empty", "turn/start", {"turn": None, "trigger": {}}, None),
        ("empty", "turn/start", [1], None),
        ("balanced", "turn/start", {"turn": 1, "trigger": {}}, None),
        ("balanced", "turn/start", {"turn": 3, "trigger": {}}, None),
        ("turn", "step/start", {"turn": 1, "step": 0}, None),
        ("turn", "step/start", {"turn": 1, "step": 2}, None),
        ("turn", "step/start", {"turn": 2, "step": 1}, None),
        ("turn", "step/start", {"turn": "1", "step": 1}, None),
        ("turn", "step/start", {"turn": True, "step": True}, None),
        ("turn", "step/start", {"turn": 1, "step": "1"}, None),
        ("between", "step/start", T, None),
        ("between", "step/start", {"turn": 1, "step": 3}, None),
        # nesting (SE-42)
        ("turn", "turn/start", {"turn": 2, "trigger": {}}, None),
        ("step", "turn/start", {"turn": 2, "trigger": {}}, None),
        ("step", "step/start", T2, None),
        ("step", "turn/end", {"turn": 1, "reason": {"kind": "completed"}}, None),
        ("turn", "turn/end", {"turn": 2, "reason": {"kind": "completed"}}, None),
        ("turn", "turn/end", {"turn": "1", "reason": {"kind": "completed"}}, None),
        ("turn", "turn/end", {"turn": True, "reason": {"kind": "completed"}}, None),
        ("turn", "turn/end", {"reason": {"kind": "completed"}}, None),
        ("turn", "step/end", T, None),
        ("step", "step/end", T2, None),
        ("step", "step/end", {"turn": 2, "step": 1}, None),
        ("step", "step/end", {"turn": 1, "step": True}, None),
        ("between", "step/end", T, None),
        # what belongs in a step (SE-43)
        ("turn", "assistant/chunk", {**T, **CHUNK}, None),
        ("turn", "assistant/message", {**T, **MESSAGE}, "append"),
        ("turn", "tool/call", {**T, "callId": "c", "name": "n", "arguments": ""}, None),
        ("turn", "tool/result", {**T, **RESULT}, "append"),
        ("between", "assistant/chunk", {**T, **CHUNK}, None),
        ("between", "tool/result", {**T, **RESULT}, "append"),
        ("step", "assistant/chunk", {**T2, **CHUNK}, None),
        ("step", "assistant/chunk", {"turn": 2, "step": 1, **CHUNK}, None),
        ("step", "assistant/chunk", {"turn": 1, "step": True, **CHUNK}, None),
        ("step", "assistant/chunk", {"turn": 1, "step": "1", **CHUNK}, None),
        ("step", "assistant/chunk", CHUNK, None),
        ("step", "assistant/message", {**T2, **MESSAGE}, "append"),
        ("step", "tool/call", {**T2, "callId": "c", "name": "n", "arguments": ""}, None),
        # results and their calls (SE-44)
        ("step", "tool/result", {**T, **RESULT, "callId": "c2"}, "append"),
        ("step", "tool/result", {**T2, **RESULT}, "append"),
        ("step", "tool/result", {**T, "content": [], "isError": False}, "append"),
        ("step", "tool/result", {**T, **RESULT, "callId": "c2", "error": {"name": "E", "code": "OTHER"}}, "append"),
        ("turn", "tool/result", {**T, **NOT_STARTED}, "append"),
    ],
)
@pytest.mark.rule("SE-40", "SE-41", "SE-42", "SE-43", "SE-44", "SE-46", "SE-47")
def test_what_is_out_of_place_is_refused(w: World, state: str, type_: str, data: Any, surface: Any) -> None:
    s = w.session()
    build(s, state)
    before = dump(w.path)
    handle = (s.length, s.turns, s.steps, s.open_turn, s.open_step, s.generation)
    assert code(s.append, type_, data, surface=surface) == "INVARIANT"
    assert dump(w.path) == before
    assert (s.length, s.turns, s.steps, s.open_turn, s.open_step, s.generation) == handle


@pytest.mark.rule("SE-41", "SE-42", "SE-43", "SE-44", "SE-46")
def test_what_is_in_place_is_taken(w: World) -> None:
    s = w.session()
    start_turn(s)
    s.append("never/heard-of", {"anything": True})
    s.append("steering/message", {**prompt(), "turn": 1}, surface="append")
    for step in (1, 2):
        at = start_step(s, step)
        s.append("assistant/chunk", {**at, **CHUNK})
        reply(s, call("a"), call("b"))
        tool_call(s, "a")  # b is never answered: tolerated
        s.append("tool/result", result(s, "a"), surface="append")
        s.append("tool/result", {**at, **NOT_STARTED}, surface="append")
        s.append("plugin/note", None)
        s.append("step/end", at)
    end_turn(s)
    start_turn(s)
    at = start_step(s)
    assert code(s.append, "tool/result", {**at, **RESULT, "callId": "b"}, surface="append") == "INVARIANT"
    assert code(s.append, "tool/result", {**at, **RESULT, "callId": "a"}, surface="append") == "INVARIANT"


@pytest.mark.rule("SE-45")
def test_rewriting_a_result_needs_only_an_open_turn(w: World) -> None:
    s = w.session()
    start_turn(s)
    at = start_step(s)
    tool_call(s, "a")
    old = s.append("tool/result", result(s, "a", "long"), surface="append")
    s.append("step/end", at)
    new = {**thaw(old["data"]), "content": [text("short")]}
    seq = s.append("tool/result", new, surface=replace(old["seq"], old["seq"]), sources=[old["seq"]])["seq"]
    end_turn(s)
    newer = {**new, "content": []}
    rewrite: dict[str, Any] = {"surface": replace(seq, seq), "sources": [seq]}
    assert code(s.append, "tool/result", newer, **rewrite) == "INVARIANT"
    start_turn(s)
    s.append("tool/result", newer, **rewrite)


@pytest.mark.rule("SE-41")
def test_counting_goes_on_in_a_resumed_session(w: World) -> None:
    s = w.session()
    whole_turn(s)
    whole_turn(s)
    again = w.reopen().sessions.prepare_stored("s")
    assert (again.turns, again.length, again.open_turn, again.open_step) == (2, s.length, None, None)
    assert code(again.append, "turn/start", {"turn": 1, "trigger": {}}) == "INVARIANT"
    assert start_turn(again) == 3


@pytest.mark.parametrize(
    ("type_", "data", "wanted"),
    [
        ("request/header", {"header": {"config": {"model": "m"}}}, "HEADER_INVALID"),
        ("request/header", {"header": {"config": {"provider": "", "model": "m"}}}, "HEADER_INVALID"),
        ("request/header", {"header": {"config": {"provider": "p", "model": 5}}}, "HEADER_INVALID"),
        ("request/header", {"header": {"config": {**ROUTE, "reasoningEffort": ""}}}, "HEADER_INVALID"),
        ("request/header", {"header": {"config": {**ROUTE, "reasoningEffort": 5}}}, "HEADER_INVALID"),
        ("request/header", {"header": None}, "HEADER_INVALID"),
        ("request/header", {}, "HEADER_INVALID"),
        ("request/header", [], "HEADER_INVALID"),
        ("assistant/message", {**T, "content": []}, "INVARIANT"),
        ("assistant/message", {**T, "content": [], "provenance": {"provider": "p"}}, "INVARIANT"),
        ("assistant/message", {**T, "content": [], "provenance": {**ROUTE, "model": ""}}, "INVARIANT"),
        ("assistant/message", {**T, "content": [], "provenance": {**ROUTE, "model": 5}}, "INVARIANT"),
        ("assistant/message", {**T, "content": [], "provenance": "p/m"}, "INVARIANT"),
    ],
)
@pytest.mark.rule("SE-51")
def test_no_route_is_ever_guessed(w: World, type_: str, data: Any, wanted: str) -> None:
    s = w.session()
    start_turn(s)
    start_step(s)
    before = dump(w.path)
    assert code(s.append, type_, data, surface="append" if type_ == "assistant/message" else None) == wanted
    assert dump(w.path) == before


@pytest.mark.rule("SE-51")
def test_an_aborted_turn_does_not_say_by_whom(w: World) -> None:
    s = w.session()
    start_turn(s)
    bad = {"turn": 1, "reason": {"kind": "aborted", "by": "user"}}
    assert code(s.append, "turn/end", bad) == "INVARIANT"
    s.append("turn/end", {"turn": 1, "reason": {"kind": "aborted"}})


@pytest.mark.rule("SE-5", "PE-7")
def test_a_refused_first_event_leaves_no_session(w: World) -> None:
    s = w.session()
    assert code(s.append, "x", 1) == "INVARIANT"
    assert code(s.append, "turn/start", {"turn": 2, "trigger": {}}) == "INVARIANT"
    assert w.db.rows("SELECT id FROM session") == []
    assert s.length == 0
    start_turn(s)
    assert w.db.rows("SELECT id, length FROM session") == [("s", 1)]


@pytest.mark.rule("PE-7")
def test_a_handle_does_not_run_ahead_of_a_transaction_that_fails(w: World) -> None:
    s = w.session()
    whole_turn(s)
    derived = s.derive_messages()
    before, handle = dump(w.path), (s.length, s.turns, s.steps, s.open_turn, s.open_step, s.generation)
    header = s.header_in_force()

    def several() -> None:
        with w.db.transaction():
            start_turn(s)
            old = s.append("user/message", prompt("lost"), surface="append")["seq"]
            s.append("user/message", prompt("also"), surface=replace(0 + 1, old), sources=[1, 5, old])
            start_step(s)
            s.append("request/header", {"header": {"config": {**ROUTE, "model": "other"}}, "reason": "change"})
            assert "lost" not in str(s.derive_messages())
            s.append("turn/start", {"turn": 9, "trigger": {}})

    assert code(several) == "INVARIANT"
    assert dump(w.path) == before
    assert (s.length, s.turns, s.steps, s.open_turn, s.open_step, s.generation) == handle
    assert s.header_in_force() == header
    assert s.derive_messages() == derived
    whole_turn(s)
    assert s.derive_messages() == w.reopen().sessions.prepare_stored("s").derive_messages()


@pytest.mark.rule("PE-6", "PE-7")
def test_a_new_session_whose_first_transaction_fails_can_begin_again(w: World) -> None:
    s = w.session()

    def several() -> None:
        with w.db.transaction():
            start_turn(s)
            s.append("x", object())

    assert code(several) == "EVENT_NOT_JSON"
    assert (s.length, s.open_turn, s.derive_messages()) == (0, None, ())
    assert w.db.rows("SELECT * FROM session") == []
    whole_turn(s)
    assert [e["seq"] for e in s.events()] == list(range(8))
