"""Sessions as lines of JSON (PE-60 to PE-62), and what is torn and what is damaged in them (PE-32)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.core.lossless import MAX_INT, dumps
from dsh.session.jsonl import MAX_RUN, event_lines, header_line
from tests.session.logs import HEADER, Row, logs, read, reader, rows_in

AT = {"turn": 1, "step": 1}


def file(rows: list[Row], *, packed: bool = True) -> bytes:
    return (header_line(HEADER) + "".join(event_lines(rows, packed=packed))).encode()


def fragments(
    *chunks: dict[str, Any], times: list[int] | None = None, at: list[dict[str, Any]] | None = None
) -> list[Row]:
    """Events of chunks; seqs begin at 0."""
    return [
        (n, "assistant/chunk", times[n] if times else n, dumps({**(at[n] if at else AT), "chunk": c}), None, None)
        for n, c in enumerate(chunks)
    ]


def says(text: str, index: int = 0, kind: str = "text") -> dict[str, Any]:
    return {"type": f"{kind}-delta", "index": index, "text": text}


def asks(arguments: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool-call-delta", "index": 0, "id": "c", "argumentsDelta": arguments, **more}


def written(rows: list[Row]) -> list[Any]:
    return [json.loads(line) for line in event_lines(rows)]


@pytest.mark.rule("PE-60")
def test_the_header_comes_first_and_then_an_event_a_line() -> None:
    rows: list[Row] = [
        (0, "turn/start", 7, '{"turn":1,"trigger":{"kind":"?"}}', None, None),
        (1, "user/message", 8, '{"content":[],"é":"\\u2028"}', "[0]", '"append"'),
    ]
    assert file(rows).decode() == (
        '{"type":"session","version":0,"id":"s","createdAt":5,"cwd":"/a","delegationDepth":0}\n'
        '{"type":"turn/start","seq":0,"time":7,"data":{"turn":1,"trigger":{"kind":"?"}}}\n'
        '{"type":"user/message","seq":1,"time":8,"data":{"content":[],"é":"\\u2028"},'
        '"sourceEventSeqs":[0],"surfaceOp":"append"}\n'
    )
    full = {**HEADER, "parentSession": "p", "seedLength": 3, "delegationDepth": 2}
    assert json.loads(header_line(full)) == {"type": "session", **full}  # type: ignore[arg-type]
    assert reader(header_line(full).encode()).header == full  # type: ignore[arg-type]
    assert reader(file(rows)).header == HEADER


@pytest.mark.rule("PE-60")
def test_a_last_line_without_its_end_is_torn() -> None:
    rows = fragments(says("a"), says("b"))
    whole = file(rows)
    assert rows_in(whole) == rows
    assert rows_in(whole[:-1]) == rows[:1]
    assert read(whole[: whole.index(b"\n")]) == "LOG_CORRUPT"


@pytest.mark.rule("PE-61")
def test_a_run_of_fragments_is_one_row() -> None:
    rows = fragments(says("a"), says("b\n"), says(""), times=[9, 7, 12])
    data = {**AT, "index": 0, "dt": [-2, 5], "texts": ["a", "b\n", ""]}
    assert written(rows) == [{"type": "text-chunks", "seq0": 0, "time0": 9, "data": data}]
    [row] = written(fragments(*(says(t, 3, "reasoning") for t in "xyz")))
    assert row["type"] == "reasoning-chunks"
    assert row["data"] == {**AT, "index": 3, "dt": [1, 1], "texts": ["x", "y", "z"]}
    [row] = written(fragments(*(asks(t, name="bash") for t in "xyz")))
    assert row["type"] == "tool-call-chunks"
    assert row["data"] == {**AT, "index": 0, "id": "c", "name": "bash", "dt": [1, 1], "args": ["x", "y", "z"]}
    [row] = written(fragments(*(asks(t) for t in "xyz")))
    assert "name" not in row["data"]


APART: dict[str, list[Row]] = {
    "two": fragments(says("a"), says("b")),
    "another turn": fragments(*map(says, "abcd"), at=[AT, AT, {"turn": 2, "step": 1}, {"turn": 2, "step": 1}]),
    "another step": fragments(*map(says, "abcd"), at=[AT, AT, {"turn": 1, "step": 2}, {"turn": 1, "step": 2}]),
    "another block": fragments(says("a"), says("b"), says("c", 1), says("d", 1)),
    "another kind": fragments(says("a"), says("b"), says("c", kind="reasoning"), says("d", kind="reasoning")),
    "another id": fragments(asks("a"), asks("b"), asks("c", id="d"), asks("d", id="d")),
    "name here and not there": fragments(asks("a"), asks("b"), asks("c", name="x"), asks("d", name="x")),
    "another name": fragments(asks("a", name="x"), asks("b", name="x"), asks("c", name="y"), asks("d", name="y")),
    "a further field": fragments(*({**says(t), "x": 1} for t in "abc")),
    "a field beside": fragments(*map(says, "abc"), at=[{**AT, "x": 1}] * 3),
    "another shape": fragments(*({**says("a"), "index": index} for index in (True, 1.5, "0"))),
    "a time beyond": fragments(*map(says, "abc"), times=[0, MAX_INT + 1, 2]),
    "a gap": [row for row in fragments(*map(says, "abcde")) if row[0] != 2],
}  # fmt: skip


@pytest.mark.rule("PE-61")
@pytest.mark.parametrize("rows", APART.values(), ids=APART.keys())
def test_what_differs_stays_apart(rows: list[Row]) -> None:
    assert [row["seq"] for row in written(rows)] == [row[0] for row in rows]


def test_a_long_run_is_several_rows() -> None:
    rows = fragments(*(says(str(n)) for n in range(MAX_RUN + 3)))
    assert [len(row["data"]["texts"]) for row in written(rows)] == [MAX_RUN, 3]
    assert rows_in(file(rows)) == rows


ROW: dict[str, Any] = {"seq0": 1, "time0": 5}
PACKED = {"type": "text-chunks", **ROW, "data": {**AT, "index": 0, "dt": [1, 1], "texts": ["a", "b", "c"]}}
CALLS = {"type": "tool-call-chunks", **ROW, "data": {**AT, "index": 0, "id": "c", "dt": [1], "args": ["a", "b"]}}


def changed(row: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {**row, "data": {**row["data"], **data}}


MALFORMED: dict[str, Any] = {
    "a key more": {**PACKED, "x": 1},
    "a key less": {k: v for k, v in PACKED.items() if k != "time0"},
    "data with a key more": changed(PACKED, name="x"),
    "data with a key less": {**CALLS, "data": {k: v for k, v in CALLS["data"].items() if k != "id"}},
    "no data": {**PACKED, "data": []},
    "empty": changed(PACKED, texts=[], dt=[]),
    "a gap too few": changed(PACKED, dt=[1]),
    "a gap too many": changed(PACKED, dt=[1, 1, 1]),
    "a gap of half": changed(PACKED, dt=[1, 0.5]),
    "a gap that is true": changed(PACKED, dt=[1, True]),
    "a text that is none": changed(PACKED, texts=["a", "b", 3]),
    "a turn that is none": changed(PACKED, turn="1"),
    "a name that is none": changed(CALLS, name=None),
    "an id that is none": changed(CALLS, id=3),
    "seq below 0": {**PACKED, "seq0": -1},
    "seq beyond": {**PACKED, "seq0": MAX_INT - 1},
    "time below 0": changed(PACKED, dt=[-6, 1]),
    "time beyond": changed(PACKED, dt=[MAX_INT, 1]),
    "seqs that do not fit": {**PACKED, "seq0": 2},
}  # fmt: skip


@pytest.mark.rule("PE-62")
@pytest.mark.parametrize("row", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_row_is_a_hole(row: dict[str, Any]) -> None:
    before: list[Row] = [(0, "turn/start", 4, '{"turn":1}', None, None)]
    ends = '{"type":"turn/end","seq":4,"time":9,"data":{"turn":1}}\n'
    torn = reader(file(before) + (dumps(row) + "\n").encode())
    assert [place.event["seq"] for place in torn.events()] == [0]
    assert torn.dropped == 1
    assert read(file(before) + (dumps(row) + "\n" + ends).encode()) == "LOG_CORRUPT"


@pytest.mark.rule("PE-62")
def test_both_layouts_are_read_mixed() -> None:
    lines = [
        '{"type":"turn/start","seq":0,"time":4,"data":{"turn":1}}',
        dumps(PACKED),
        '{"type":"assistant/chunk","seq":4,"time":1,"data":1}',
        dumps({**CALLS, "seq0": 5}),
        '{"seq":7,"data":null,"time":1,"type":"text-chunks"}',  # an event that is only named so
    ]
    rows = rows_in((header_line(HEADER) + "\n".join(lines) + "\n").encode())
    assert [row[0] for row in rows] == list(range(8))
    assert [row[2] for row in rows] == [4, 5, 6, 7, 1, 5, 6, 1]
    assert rows[3][3] == dumps({**AT, "chunk": says("c")})
    assert rows[6][3] == dumps({**AT, "chunk": asks("b")})
    assert rows[7][1] == "text-chunks"


HOLES = {
    "not UTF-8": b'{"type":"x","seq":2,"time":1,"data":"\xff"}\n',
    "not JSON": b'{"type":"x","seq":2,"time":1,"data":}\n',
    "not a number": b'{"type":"x","seq":2,"time":1,"data":NaN}\n',
    "no object": b"[2]\n",
    "empty": b"\n",
    "a seq left out": b'{"type":"x","seq":3,"time":1,"data":1}\n',
    "a seq again": b'{"type":"x","seq":1,"time":1,"data":1}\n',
    "no seq": b'{"type":"x","time":1,"data":1}\n',
    "a seq that is true": b'{"type":"x","seq":true,"time":1,"data":1}\n',
}


@pytest.mark.rule("PE-32")
@pytest.mark.parametrize("hole", HOLES.values(), ids=HOLES.keys())
def test_the_last_turn_end_tells_a_torn_tail_from_damage(hole: bytes) -> None:
    lines = [b'{"type":"turn/start","seq":0,"time":4,"data":{"turn":1}}\n', b'{"type":"x","seq":1,"time":4,"data":1}\n']
    head = header_line(HEADER).encode() + b"".join(lines)
    more = b'{"type":"x","seq":3,"time":1,"data":1}\n'
    end = b'{"type":"turn/end","seq":%d,"time":1,"data":{"turn":1}}\n'
    torn = reader(head + hole + more)
    assert [place.event["seq"] for place in torn.events()] == [0, 1]
    assert torn.dropped == 2
    assert read(head + hole + more + end % 4) == "LOG_CORRUPT"
    assert len(rows_in(head + end % 2 + more + hole)) == 4
    assert read(head + hole + more + (end % 4)[:-1]) == rows_in(head)  # its own end is torn, so it counts for nothing


REFUSED = {
    "empty": (b"", "LOG_CORRUPT"),
    "no session": (b'{"a":1}\n', "LOG_CORRUPT"),
    "newer": (b'{"type":"session","version":1,"id":"s","createdAt":1}\n', "VERSION_UNSUPPORTED"),
    "no version": (b'{"type":"session","id":"s","createdAt":1}\n', "LOG_CORRUPT"),
    "no id": (b'{"type":"session","version":0,"createdAt":1}\n', "LOG_CORRUPT"),
    "a time that is none": (b'{"type":"session","version":0,"id":"s","createdAt":-1}\n', "LOG_CORRUPT"),
    "a relative folder": (b'{"type":"session","version":0,"id":"s","createdAt":1,"cwd":"a"}\n', "LOG_CORRUPT"),
    "half a character": (b'{"type":"x","seq":0,"time":1,"data":"\\ud800"}\n', "SEED_INVALID"),
    "a key that is unknown": (b'{"type":"x","seq":0,"time":1,"data":1,"more":1}\n', "SEED_INVALID"),
    "a time that is text": (b'{"type":"x","seq":0,"time":"1","data":1}\n', "SEED_INVALID"),
    "two sessions": (
        b'{"type":"x","seq":0,"time":1,"data":1,"sessionId":"a"}\n'
        b'{"type":"x","seq":1,"time":1,"data":1,"sessionId":"b"}\n',
        "SEED_INVALID",
    ),
}


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_a_session_is_refused(data: bytes, code: str) -> None:
    assert read(data) == code


def test_a_field_of_the_header_without_a_place_is_named() -> None:
    log = reader(b'{"type":"session","version":0,"id":"s","createdAt":1,"origin":"subagent","agentPreset":null}\n')
    assert log.left_out == ["agentPreset", "origin"]
    assert log.header == {"version": 0, "id": "s", "createdAt": 1}


# ------------------------------------------------------------------------------------------------------- properties


@pytest.mark.rule("PE-61", "PE-62")
@settings(max_examples=50, deadline=None)
@given(logs())
def test_a_log_comes_back_as_it_was(rows: list[Row]) -> None:
    assert rows_in(file(rows)) == rows
    assert rows_in(file(rows, packed=False)) == rows


@pytest.mark.rule("PE-32", "PE-60")
@settings(max_examples=50, deadline=None)
@given(logs(), st.booleans(), st.data())
def test_a_file_cut_anywhere_is_torn_and_never_damaged(rows: list[Row], packed: bool, data: st.DataObject) -> None:
    whole = file(rows, packed=packed)
    cut = data.draw(st.integers(0, len(whole)))
    kept = whole[: whole.rindex(b"\n", 0, cut) + 1] if b"\n" in whole[:cut] else b""
    assert read(whole[:cut]) == (rows_in(kept) if kept else "LOG_CORRUPT")
    if kept:
        assert rows_in(kept) == rows[: len(rows_in(kept))]


@pytest.mark.rule("PE-32")
@settings(max_examples=100, deadline=None)
@given(logs(), st.data())
def test_a_changed_byte_is_told_apart_by_where_it_is(rows: list[Row], data: st.DataObject) -> None:
    lines = file(rows).split(b"\n")[:-1]
    number = data.draw(st.integers(0, len(lines) - 1))
    at = data.draw(st.integers(0, len(lines[number]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != lines[number][at]))
    bad = lines[number][:at] + bytes([byte]) + lines[number][at + 1 :]
    found = read(b"\n".join([*lines[:number], bad, *lines[number + 1 :], b""]))
    before = rows_in(b"\n".join([*lines[:number], b""])) if number else []
    try:
        json.loads(bad.decode())
        readable = True
    except ValueError:
        readable = False
    if number == 0 or readable:  # another value in the same place: what it is decides, but nothing crashes
        assert isinstance(found, str) or found[: len(before)] == before
    elif any(b'"type":"turn/end"' in line for line in lines[number + 1 :]):
        assert found == "LOG_CORRUPT"
    else:
        assert found == before
