"""The surface, what is derived from it, and the header in force (SE-10 to SE-32)."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.core.lossless import thaw
from dsh.session.records import derive_event_message
from dsh.session.session import Session
from tests.session.kit import (
    ROUTE,
    World,
    call,
    code,
    dump,
    end_turn,
    messages,
    prompt,
    replace,
    reply,
    result,
    start_step,
    start_turn,
    surface,
    text,
    tool_call,
    whole_turn,
)


@pytest.fixture
def s(w: World) -> Session:
    """An open turn with five prompts on the surface: seqs 1 to 5."""
    session = w.session()
    start_turn(session)
    for number in range(5):
        session.append("user/message", prompt(f"p{number}"), surface="append")
    return session


def put(s: Session, start: int, end: int, sources: list[int] | None, words: str = "summary") -> int:
    return s.append("user/message", prompt(words), surface=replace(start, end), sources=sources)["seq"]


@pytest.mark.rule("SE-10")
def test_append_adds_to_the_tail(w: World, s: Session) -> None:
    s.append("x", 1)
    assert s.append("user/message", prompt("p5"), surface="append")["seq"] == 7
    assert surface(w.db, "s") == [1, 2, 3, 4, 5, 7]


@pytest.mark.rule("SE-11", "SE-17")
def test_positions_decide_the_range(w: World, s: Session) -> None:
    assert put(s, 2, 3, [2, 3]) == 6
    assert surface(w.db, "s") == [1, 6, 4, 5]
    assert put(s, 6, 4, [6, 4, 2]) == 7  # 6 stands before 4
    assert surface(w.db, "s") == [1, 7, 5]
    assert code(put, s, 5, 7, [5, 7]) == "SURFACE_INVALID"
    assert put(s, 1, 5, [1, 5, 7]) == 8
    assert surface(w.db, "s") == [8]
    assert put(s, 8, 8, [8]) == 9
    assert surface(w.db, "s") == [9]
    shadowed = w.db.rows("SELECT seq, replaced_by FROM surface_history WHERE replaced_by NOT NULL ORDER BY seq")
    assert shadowed == [(1, 8), (2, 6), (3, 6), (4, 7), (5, 8), (6, 7), (7, 8), (8, 9)]
    assert [m["content"] for m in s.derive_messages()] == [[text("summary")]]


@pytest.mark.parametrize(
    "op",
    [
        {"op": "replace", "start": 0, "end": 2},  # in the log, not on the surface
        {"op": "replace", "start": 1, "end": 6},
        {"op": "replace", "start": 1, "end": 99},
        {"op": "replace", "start": 3, "end": 2},
        {"op": "replace", "start": 1, "end": 2, "x": 1},
        {"op": "replace", "start": 1},
        {"op": "replace", "start": "1", "end": 2},
        {"op": "replace", "start": True, "end": 2},
        {"op": "replace", "start": 1, "end": 2.5},
        {"op": "replace", "start": -1, "end": 2},
        {"op": "replace", "start": None, "end": 2},
        {"op": "insert", "start": 1, "end": 2},
        {"start": 1, "end": 2},
        {},
        ["replace", 1, 2],
    ],
    ids=repr,
)
@pytest.mark.rule("SE-12", "SE-16")
def test_a_range_that_is_not_one_is_refused(w: World, s: Session, op: Any) -> None:
    s.append("x", 1)
    before = dump(w.path)
    assert code(s.append, "user/message", prompt(), surface=op, sources=[1, 2, 3, 4, 5]) == "SURFACE_INVALID"
    assert dump(w.path) == before
    assert s.generation == 0


@pytest.mark.rule("SE-12")
def test_a_shadowed_node_is_no_longer_on_the_surface(w: World, s: Session) -> None:
    put(s, 2, 3, [2, 3])
    for start, end in ((2, 4), (1, 3), (3, 3)):
        assert code(put, s, start, end, [1, 2, 3, 4, 6]) == "SURFACE_INVALID"


@pytest.mark.parametrize(
    "sources", [[1, 1], [-1], [6], [7], [1.5], ["1"], [True], [None], [[1]], [1, 2, 2], [{}], []], ids=repr
)
@pytest.mark.rule("SE-13")
def test_sources_are_distinct_earlier_seqs(w: World, s: Session, sources: Any) -> None:
    before = dump(w.path)
    assert code(s.append, "user/message", prompt(), surface="append", sources=sources) == "SURFACE_INVALID"
    assert dump(w.path) == before


@pytest.mark.rule("SE-13", "PE-50")
def test_absent_and_empty_sources_are_two_things(w: World, s: Session) -> None:
    start_step(s)
    data = {"turn": 1, "step": 1, "content": [], "provenance": ROUTE}
    without = s.append("assistant/message", data, surface="append")
    empty = s.append("assistant/message", data, surface="append", sources=[])
    some = s.append("assistant/message", data, surface="append", sources=[0, 5, 1.0])  # type: ignore[list-item]
    assert "sourceEventSeqs" not in without
    assert empty["sourceEventSeqs"] == []
    assert some["sourceEventSeqs"] == [0, 5, 1]
    assert s.events(without["seq"]) == [without, empty, some]
    assert w.db.rows("SELECT source_event_seqs FROM event WHERE seq >= ?", (without["seq"],)) == [
        (None,),
        ("[]",),
        ("[0,5,1]",),
    ]


@pytest.mark.parametrize("sources", [None, [2], [3], [2, 4], [0, 1]], ids=repr)
@pytest.mark.rule("SE-14", "SE-16")
def test_a_replacement_names_every_node_it_removes(w: World, s: Session, sources: Any) -> None:
    before = dump(w.path)
    assert code(put, s, 2, 3, sources) == "SURFACE_INVALID"
    assert dump(w.path) == before
    put(s, 2, 3, [0, 3, 2, 5])  # more is allowed, in any order
    assert s.generation == 1


@pytest.mark.rule("SE-16")
def test_only_replacements_count(w: World, s: Session) -> None:
    assert s.generation == 0
    put(s, 2, 3, [2, 3])
    s.append("user/message", prompt(), surface="append")
    put(s, 4, 4, [4])
    end_turn(s)
    assert s.generation == 2
    assert w.db.row("SELECT replace_generation FROM session") == (2,)
    assert w.reopen().sessions.prepare_stored("s").generation == 2


META = {"n": 1, "flag": True, "list": [1, {"deep": "x"}], "none": None, "a.b": 1, "a": {"b": 2}}
RESULT = {
    "callId": "a",
    "content": [text("long")],
    "isError": False,
    "meta": META,
}


@pytest.mark.parametrize(
    ("change", "fine"),
    [
        ({"content": []}, True),
        ({"content": [text("short")]}, True),
        ({"callId": "b"}, False),
        ({"isError": True}, False),
        ({"isError": 0}, False),
        ({"turn": 2}, False),
        ({"error": {"name": "x", "code": "X"}}, False),
        ({"meta": None}, False),
        ({"meta": {**META, "n": True}}, False),
        ({"meta": {**META, "n": "1"}}, False),
        ({"meta": {**META, "flag": 1}}, False),
        ({"meta": {**META, "list": [{"deep": "x"}, 1]}}, False),
        ({"meta": {**META, "list": []}}, False),
        ({"meta": {**META, "none": []}}, False),
        ({"meta": {**META, "a.b": 2, "a": {"b": 1}}}, False),
        ({"meta": dict(reversed(META.items()))}, True),  # key order is free
        ({"meta": {k: v for k, v in META.items() if k != "none"}}, False),
    ],
    ids=repr,
)
@pytest.mark.rule("SE-15", "CO-32")
def test_rewriting_a_result_changes_its_content_only(w: World, change: Any, fine: bool) -> None:
    s = w.session()
    start_turn(s)
    at = start_step(s)
    tool_call(s, "a")
    tool_call(s, "b")
    old = s.append("tool/result", {**at, **RESULT}, surface="append")["seq"]
    before = dump(w.path)
    new = {**at, **RESULT, **change}
    if fine:
        s.append("tool/result", new, surface=replace(old, old), sources=[old])
    else:
        refused = code(s.append, "tool/result", new, surface=replace(old, old), sources=[old])
        assert refused == "SURFACE_INVALID"
        assert dump(w.path) == before


@pytest.mark.rule("SE-15")
def test_a_result_replaces_exactly_one_result(w: World) -> None:
    s = w.session()
    start_turn(s)
    other = s.append("user/message", prompt(), surface="append")["seq"]
    start_step(s)
    tool_call(s, "a")
    one = s.append("tool/result", result(s, "a"), surface="append")
    two = s.append("tool/result", result(s, "a"), surface="append")["seq"]
    data, seq = thaw(one["data"]), one["seq"]
    for start, end in ((seq, two), (other, other), (other, seq)):
        sources = [other, seq, two]
        assert code(s.append, "tool/result", data, surface=replace(start, end), sources=sources) == "SURFACE_INVALID"
    s.append("user/message", prompt("summary"), surface=replace(other, two), sources=[other, seq, two])
    assert len(surface(w.db, "s")) == 1


# ------------------------------------------------------------------------------------------------------- messages


@pytest.mark.rule("SE-25")
def test_an_event_alone_tells_its_message(w: World) -> None:
    s = w.session()
    whole_turn(s, "one", calls=2)
    start_turn(s)
    start_step(s)
    reply(s)
    s.append("steering/message", {**prompt("steer"), "turn": 2, "meta": 1}, surface="append")
    by_event = {e["seq"]: derive_event_message(e) for e in s.events()}
    on_surface = surface(w.db, "s")
    assert all(message is None for seq, message in by_event.items() if seq not in on_surface)
    assert tuple(by_event[seq] for seq in on_surface if by_event[seq] is not None) == s.derive_messages()
    assert len(s.derive_messages()) == len(on_surface) - 1  # the empty reply is none


@pytest.mark.rule("SE-20", "SE-21", "SE-22", "SE-23")
def test_each_node_becomes_its_message(w: World) -> None:
    s = w.session()
    start_turn(s)
    odd = {"type": "image", "ref": "x", "deep": [{"a": None}]}
    hidden = {"meta": {"m": 1}, "envelope": {"displayContent": [text("shown")], "prefixContexts": []}}
    s.append("user/message", {**prompt("p"), "content": [odd, text("p")], **hidden}, surface="append")
    at = start_step(s)
    s.append("assistant/chunk", {**at, "chunk": {"type": "text-delta", "index": 0, "text": "x"}})
    route = {**ROUTE, "replayState": {"k": [1]}}
    reply(
        s, {"type": "reasoning", "text": "hm"}, call("a", "b", "not json"), usage={"inputTokens": 1}, provenance=route
    )
    tool_call(s, "a")
    s.append(
        "tool/result", result(s, "a", meta={"x": 1}, error={"name": "E", "code": "C"}, isError=True), surface="append"
    )
    tool_call(s, "b")
    s.append("tool/result", result(s, "b"), surface="append")
    reply(s)  # empty: a node, no message
    s.append("steering/message", {**prompt("steer"), "turn": 1}, surface="append")
    expected: list[dict[str, Any]] = [
        {"role": "user", "content": [odd, text("p")]},
        {
            "role": "assistant",
            "content": [{"type": "reasoning", "text": "hm"}, call("a", "b", "not json")],
            "provenance": route,
        },
        {
            "role": "user",
            "content": [{"type": "tool-result", "toolCallId": "a", "content": [text("out")], "isError": True}],
        },
        {
            "role": "user",
            "content": [{"type": "tool-result", "toolCallId": "b", "content": [text("out")], "isError": False}],
        },
        {"role": "user", "content": [text("steer")]},
    ]
    assert list(s.derive_messages()) == expected
    assert [list(m) for m in s.derive_messages()] == [list(m) for m in expected]  # and in this order of keys
    assert len(surface(w.db, "s")) == 6
    s.append("plugin/note", 1)
    s.append("step/end", at)
    end_turn(s)
    assert list(s.derive_messages()) == expected


@pytest.mark.rule("SE-20", "CO-3", "CO-10")
def test_content_is_carried_verbatim(w: World) -> None:
    s = w.session()
    start_turn(s)
    block: dict[str, Any] = {
        "type": "new",
        "z": 1,
        "a": {"é": "\u0000\u2028😀"},
        "n": [1.5, -0.25, 1e-7, 2**53 - 1, True, None],
    }
    s.append("user/message", {"content": [block, text("")], "source": {"kind": "odd", "rpcId": 5}}, surface="append")
    assert s.derive_messages()[0]["content"] == [block, text("")]
    assert list(s.derive_messages()[0]["content"][0]) == list(block)
    assert s.events(1)[0]["data"]["source"] == {"kind": "odd", "rpcId": 5}


@pytest.mark.rule("SE-24")
def test_every_list_is_fresh_and_its_messages_immutable(w: World, s: Session) -> None:
    first = s.derive_messages()
    assert s.derive_messages() == first
    s.append("user/message", prompt("new"), surface="append")
    assert len(first) == 5
    assert len(s.derive_messages()) == 6
    with pytest.raises(TypeError):
        first[0]["content"].append(text("x"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        first[0]["role"] = "assistant"


@pytest.mark.rule("SE-24", "SE-16")
def test_a_replacement_makes_the_derived_list_anew(w: World, s: Session) -> None:
    s.derive_messages()
    put(s, 1, 3, [1, 2, 3])
    s.append("user/message", prompt("tail"), surface="append")
    words = [m["content"][0]["text"] for m in s.derive_messages()]
    assert words == ["summary", "p3", "p4", "tail"]


@pytest.mark.rule("SE-23")
def test_nothing_is_derived_from_nothing(w: World) -> None:
    s = w.session()
    assert s.derive_messages() == ()
    assert s.header_in_force() is None
    assert s.events() == []


# --------------------------------------------------------------------------------------------------------- header


@pytest.mark.rule("SE-31")
def test_the_latest_header_is_in_force(w: World) -> None:
    s = w.session()
    start_turn(s)
    assert s.header_in_force() is None
    s.append("request/header", {"header": {"config": ROUTE}, "reason": "initial"})
    assert s.header_in_force() == {"config": ROUTE}
    newer = {"config": {**ROUTE, "temperature": 0}, "system": "be"}
    s.append("request/header", {"header": newer, "reason": "change"})
    assert s.header_in_force() == newer
    s.append("x", 1)
    end_turn(s)
    assert w.reopen().sessions.prepare_stored("s").header_in_force() == newer


@pytest.mark.rule("SE-30", "SE-31")
def test_empty_parts_of_a_header_are_absent(w: World) -> None:
    s = w.session()
    start_turn(s)
    loose = {"config": {**ROUTE, "stop": []}, "system": "", "tools": [], "messagePrefix": []}
    s.append("request/header", {"header": loose, "reason": "initial"})
    end_turn(s)
    wanted: Any = {"config": {**ROUTE, "stop": []}}
    assert s.header_in_force() == wanted
    assert w.reopen().sessions.prepare_stored("s").header_in_force() == wanted
    with pytest.raises(TypeError):
        s.header_in_force()["system"] = "x"  # type: ignore[index]


@pytest.mark.rule("SE-32")
def test_headers_are_equal_when_the_bytes_sent_are(w: World) -> None:
    from dsh.core.messages import same_header

    tool = {"name": "a", "description": "", "parameters": {"type": "object", "properties": {}}}
    turned = {**tool, "parameters": {"properties": {}, "type": "object"}}
    base: Any = {"config": ROUTE, "system": "s", "tools": [tool, {**tool, "name": "b"}]}
    assert same_header(base, thaw(base))
    bare: Any = {"config": ROUTE}
    assert same_header(bare, {"config": {"model": "m", "provider": "p"}, "system": "", "tools": []})
    changes: Any = (
        {"system": "t"},
        {"tools": list(reversed(base["tools"]))},
        {"tools": [turned, base["tools"][1]]},
        {"config": {**ROUTE, "stop": []}},
        {"config": {**ROUTE, "temperature": 0}},
        {"messagePrefix": [{"role": "user", "content": []}]},
    )
    for change in changes:
        other: Any = {**base, **change}
        assert not same_header(base, other)


@pytest.mark.rule("SE-20")
def test_the_view_and_the_handle_agree(w: World) -> None:
    s = w.session()
    whole_turn(s, calls=3)
    assert len(messages(w.db, "s")) == len(s.derive_messages()) == 5
