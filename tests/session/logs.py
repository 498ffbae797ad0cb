"""Logs made by hypothesis, as rows of the database: (seq, type, time, data, source_event_seqs, surface_op)."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import strategies as st

from dsh.core.errors import DshError
from dsh.core.lossless import MAX_INT, dumps, freeze
from dsh.session.jsonl import LogReader
from dsh.session.transfer import read_log
from tests.session.kit import ROUTE, USER, call, text

Row = tuple[Any, ...]
HEADER: Any = {"version": 0, "id": "s", "createdAt": 5, "cwd": "/a"}

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
triggers = st.sampled_from([{"kind": "message", "source": USER}, {"kind": "?"}])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INT, MAX_INT) | st.floats(-1e9, 1e9).filter(lambda f: f != 0) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def logs(draw: st.DrawFn, max_turns: int = 3) -> list[Row]:
    """A legal log: turns of prompts, streamed steps, calls with results, and events that nobody knows; the last turn
    may be open."""
    rows: list[Row] = []
    clock = draw(st.integers(0, 10**12))

    def add(type_: str, data: Any, op: Any = None, sources: Any = None) -> int:
        nonlocal clock
        clock = max(0, clock + draw(st.integers(-5, 50)))
        given = None if sources is None else dumps(sources)
        rows.append((len(rows), type_, clock, dumps(freeze(data)), given, None if op is None else dumps(op)))
        return len(rows) - 1

    turns = draw(st.integers(1, max_turns))
    for turn in range(1, turns + 1):
        add("turn/start", {"turn": turn, "trigger": draw(triggers)})
        add("user/message", {"content": [text(draw(words))], "source": USER, "meta": draw(json_values)}, "append")
        for step in range(1, draw(st.integers(0, 2)) + 1):
            at = {"turn": turn, "step": step}
            add("step/start", at)
            seqs = [add("assistant/chunk", {**at, "chunk": chunk}) for chunk in draw(chunks())]
            ids = [f"c{turn}-{step}-{n}" for n in range(draw(st.integers(0, 2)))]
            content = [text(draw(words)), *map(call, ids)]
            add("assistant/message", {**at, "content": content, "provenance": ROUTE}, "append", seqs)
            for asked in ids:
                add("tool/call", {**at, "callId": asked, "name": "bash", "arguments": draw(words)})
                add("tool/result", {**at, "callId": asked, "content": [text("out")], "isError": False}, "append")
            add("step/end", at)
        if draw(st.booleans()):
            add(f"x/{draw(words)}", draw(json_values))
        if turn < turns or draw(st.booleans()):
            add("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
    return rows


@st.composite
def chunks(draw: st.DrawFn) -> list[Any]:
    """Runs of fragments of every kind, some of a shape that cannot be packed."""
    found: list[Any] = []
    for index in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["text", "reasoning", "call", "named", "odd"]))
        for _ in range(draw(st.integers(0, 6))):
            piece = draw(words)
            if kind in ("text", "reasoning"):
                found.append({"type": f"{kind}-delta", "index": index, "text": piece})
            elif kind == "odd":
                found.append({"type": "text-delta", "text": piece, "index": index, "more": draw(json_values)})
            else:
                name = {"name": "bash"} if kind == "named" else {}
                found.append({"type": "tool-call-delta", "index": index, "id": "c", "argumentsDelta": piece, **name})
    return found


def row_of(event: Any) -> Row:
    sources, op = event.get("sourceEventSeqs"), event.get("surfaceOp")
    given = None if sources is None else dumps(sources)
    return (
        event["seq"],
        event["type"],
        event["time"],
        dumps(event["data"]),
        given,
        None if op is None else dumps(op),
    )


def reader(data: bytes) -> LogReader:
    return read_log(io.BufferedReader(io.BytesIO(data)))


def rows_in(data: bytes) -> list[Row]:
    return [row_of(place.event) for place in reader(data).events()]


def read(data: bytes) -> list[Row] | str:
    """What a file holds, or the code of its refusal; any other failure is raised."""
    try:
        return rows_in(data)
    except DshError as error:
        return error.code
