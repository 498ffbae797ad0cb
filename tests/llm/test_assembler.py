"""The block assembler and the strict protocol checker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.core.errors import InvariantError
from dsh.core.messages import Chunk
from dsh.llm.assembler import BlockAssembler
from dsh.llm.protocol import ProtocolChecker


def assemble(*chunks: Any) -> BlockAssembler:
    made = BlockAssembler()
    for chunk in chunks:
        made.feed(chunk)
    return made


def start(index: int, kind: str = "text") -> Chunk:
    return {"type": "block-start", "index": index, "blockType": kind}


def text(index: int, piece: str, kind: str = "text") -> Chunk:
    return {"type": f"{kind}-delta", "index": index, "text": piece}


def call(index: int, piece: str, **rest: Any) -> Any:
    return {"type": "tool-call-delta", "index": index, "argumentsDelta": piece, **rest}


def end(index: int, **block: Any) -> Any:
    return {"type": "block-end", "index": index, "block": block}


FINISH: Any = {"type": "finish", "reason": {"kind": "stop"}}


@pytest.mark.rule("LS-10")
def test_a_repeated_start_is_ignored_and_deltas_open_blocks() -> None:
    made = assemble(
        text(4, "a", "reasoning"), start(4, "text"), text(4, "b", "reasoning"), end(7, type="text", text="c")
    )
    assert made.blocks() == [{"type": "reasoning", "text": "ab"}, {"type": "text", "text": "c"}]


@pytest.mark.rule("LS-11")
def test_the_first_close_wins_verbatim() -> None:
    block = {"type": "text", "text": "whole", "extra": [1]}
    made = assemble(start(0), text(0, "x"), end(0, **block), text(0, "late"), end(0, type="text", text="late"))
    assert made.blocks() == [block]


@pytest.mark.rule("LS-12")
def test_blocks_stand_in_first_seen_order_and_open_ones_are_built() -> None:
    made = assemble(start(2, "tool-call"), text(0, "a"), call(2, "{", id="c", name="n"), text(0, "b"), call(2, "}"))
    assert made.blocks() == [
        {"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"},
        {"type": "text", "text": "ab"},
    ]
    assert made.message() == {"role": "assistant", "content": made.blocks()}
    with pytest.raises(InvariantError):
        assemble(start(0, "hologram")).blocks()
    assert assemble(start(0, "hologram"), end(0, type="hologram", x=1)).blocks() == [{"type": "hologram", "x": 1}]


@pytest.mark.rule("LS-13")
@pytest.mark.parametrize(
    ("pieces", "call_id", "name"),
    [
        ([{}], "call-3", ""),
        ([{"id": "a"}, {"id": "b"}], "b", ""),
        ([{"id": "a"}, {"id": ""}], "", ""),
        ([{"id": "a", "name": "x"}, {"name": ""}], "a", "x"),
        ([{"name": "x"}, {"name": "y"}, {}], "call-3", "y"),
    ],
)
def test_an_open_call(pieces: list[Any], call_id: str, name: str) -> None:
    made = assemble(*(call(3, "p", **p) for p in pieces))
    assert made.blocks() == [{"type": "tool-call", "id": call_id, "name": name, "arguments": "p" * len(pieces)}]


@pytest.mark.rule("LS-14")
def test_usage_and_finish() -> None:
    made = assemble()
    assert (made.usage, made.finish, made.replay_state) == (None, {"kind": "stop"}, None)
    first: Any = {"inputTokens": 1, "outputTokens": 1}
    last: Any = {"inputTokens": 2, "outputTokens": 2}
    made = assemble(
        {"type": "usage", "usage": first},
        {"type": "usage", "usage": last},
        {"type": "finish", "reason": {"kind": "stop"}, "replayState": {"a": 1}},
        {"type": "finish", "reason": {"kind": "max-tokens"}},
    )
    assert (made.usage, made.finish, made.replay_state) == (last, {"kind": "max-tokens"}, None)
    assert assemble({"type": "finish", "reason": {"kind": "stop"}, "replayState": 0}).replay_state == 0


@pytest.mark.rule("CO-4")
def test_an_unknown_chunk_is_a_programming_error() -> None:
    for reader in (BlockAssembler(), ProtocolChecker()):
        with pytest.raises(InvariantError) as caught:
            reader.feed({"type": "image-delta"})
        assert caught.value.code == "TAG_UNKNOWN"


PIECES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["text", "reasoning", "tool-call"]), st.text(max_size=4)),
    max_size=20,
)


@pytest.mark.rule("LS-10", "LS-12")
@given(PIECES, st.booleans())
def test_starting_blocks_or_not_gives_the_same_message(pieces: list[tuple[int, str, str]], sent: bool) -> None:
    kinds: dict[int, str] = {}
    bare: list[Any] = []
    full: list[Any] = []
    for index, kind, piece in pieces:
        if index not in kinds:
            full.append(start(index, kind))
        kind = kinds.setdefault(index, kind)
        delta = call(index, piece) if kind == "tool-call" else text(index, piece, kind)
        bare.append(delta)
        full.append(delta)
    made = assemble(*bare)
    assert made.blocks() == assemble(*full).blocks()
    assert [b["type"] for b in made.blocks()] == list(kinds.values())
    said = "".join(b.get("text", "") + b.get("arguments", "") for b in made.blocks())
    assert len(said) == sum(len(p) for _, _, p in pieces)
    if sent:
        closed = assemble(*full, *(end(i, **b) for i, b in zip(kinds, made.blocks(), strict=True)))
        assert closed.blocks() == made.blocks()


GOOD: list[Any] = [
    start(0),
    text(0, "a"),
    start(1, "tool-call"),
    call(1, "{}", id="c"),
    end(1, type="tool-call", id="c", name="", arguments="{}"),
    end(0, type="text", text="a"),
    {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 1}},
    FINISH,
]


@pytest.mark.rule("LS-3")
def test_the_checker_passes_a_correct_stream() -> None:
    checker = ProtocolChecker()
    for chunk in GOOD:
        checker.feed(chunk)
    checker.close()


@pytest.mark.rule("LS-1", "LS-2", "LS-3")
@pytest.mark.parametrize(
    "chunks",
    [
        [FINISH, FINISH],
        [FINISH, {"type": "usage", "usage": {}}],
        [{"type": "usage", "usage": {}}, {"type": "usage", "usage": {}}],
        [start(0), start(0)],
        [start(1)],
        [start(-1)],
        [start(True)],
        [text(0, "a")],
        [start(0), text(0, "a", "reasoning")],
        [start(0), call(0, "a")],
        [start(0), end(0, type="reasoning", text="")],
        [start(0), end(0, type="text", text=""), text(0, "a")],
        [start(0), end(0, type="text", text=""), end(0, type="text", text="")],
        [start(0), FINISH],
        [end(0, type="text", text="")],
    ],
)
def test_the_checker_raises(chunks: list[Any]) -> None:
    checker = ProtocolChecker()
    for chunk in chunks[:-1]:
        checker.feed(chunk)
    with pytest.raises(InvariantError):
        checker.feed(chunks[-1])


@pytest.mark.rule("LS-3")
def test_the_checker_wants_a_finish() -> None:
    with pytest.raises(InvariantError):
        ProtocolChecker().close()
