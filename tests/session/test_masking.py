"""Masking a log: texts only, the same events, and a key that was streamed in pieces is found."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.core import secrets
from dsh.core.lossless import dumps, loads
from dsh.session.masking import Masker
from tests.core.test_secrets import TOKENS, chance
from tests.session.kit import text

KEY = "ghp_" + chance(36)
MARK = "[redacted:github]"


def row(seq: int, type_: str, data: Any) -> tuple[Any, ...]:
    return (seq, type_, 5, dumps(data), None, None)


def fragment(seq: int, words: str, *, index: int = 0, kind: str = "text-delta") -> tuple[Any, ...]:
    field = "argumentsDelta" if kind == "tool-call-delta" else "text"
    chunk = {"type": kind, "index": index, **({"id": "c"} if field != "text" else {}), field: words}
    return row(seq, "assistant/chunk", {"turn": 1, "step": 1, "chunk": chunk})


def masked(rows: list[Any], **options: Any) -> tuple[list[Any], Masker]:
    masker = Masker(**options)
    return list(masker.rows(rows)), masker


def pieces(rows: list[Any], index: int = 0) -> list[str]:
    chunks = [loads(data[3])["chunk"] for data in rows if data[1] == "assistant/chunk"]
    return [
        c.get("text", c.get("argumentsDelta"))
        for c in chunks
        if c.get("index") == index and c["type"].endswith("delta")
    ]


@given(
    st.text(max_size=20).map(lambda t: t + " "),
    st.sampled_from(TOKENS),
    st.text(max_size=20).map(lambda t: " " + t),
    st.lists(st.integers(0, 200), max_size=12),
    st.sampled_from(["text-delta", "reasoning-delta", "tool-call-delta"]),
)
def test_a_key_streamed_in_pieces_is_masked(
    before: str, sample: tuple[str, str], after: str, cuts: list[int], kind: str
) -> None:
    whole = before + sample[1] + after
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    texts = [whole[a:b] for a, b in pairwise(edges)]
    rows = [fragment(seq, piece, kind=kind) for seq, piece in enumerate(texts)]
    found, masker = masked(rows)
    assert "".join(pieces(found)) == secrets.mask(whole)
    assert [(r[0], r[1], r[2]) for r in found] == [(r[0], r[1], r[2]) for r in rows]
    assert masker.counts[sample[0]] == 1


def test_each_block_and_each_attempt_is_a_text_of_its_own() -> None:
    half, rest = KEY[:20], KEY[20:]
    start = row(
        2, "assistant/chunk", {"turn": 1, "step": 1, "chunk": {"type": "block-start", "index": 0, "blockType": "text"}}
    )
    again, masker = masked([fragment(1, half), start, fragment(3, rest)])
    assert pieces(again) == [half, rest]
    assert not masker.counts
    mixed, _ = masked([fragment(1, half), fragment(2, "a", index=1), fragment(3, rest), fragment(4, "b", index=1)])
    assert pieces(mixed) == [MARK, ""]
    assert pieces(mixed, 1) == ["a", "b"]
    apart, _ = masked([fragment(1, half), row(2, "step/end", {}), fragment(3, rest)])
    assert pieces(apart) == [half, rest]
    between, _ = masked([fragment(1, half), row(2, "x/y", {"text": KEY}), fragment(3, rest)])
    assert pieces(between) == [MARK, ""]
    assert loads(between[1][3]) == {"text": MARK}


def test_everything_else_of_a_payload_stays_byte_for_byte() -> None:
    odd = '{\n "text": "no key", "n": 1.0,\n "e": "\\u00e9"}'
    rows: list[Any] = [
        row(0, "user/message", {"content": [text("nothing")]}),
        (1, "x/y", 5, odd, "[0]", '"append"'),
        fragment(2, "nothing"),
        row(3, "user/message", {"content": [text(f"a {KEY}"), {"n": 1, KEY: [KEY, None]}], "source": {"kind": "user"}}),
    ]
    found, masker = masked(rows)
    assert found[:3] == rows[:3]
    assert all(new is old for new, old in zip(found[:3], rows[:3], strict=True))
    assert loads(found[3][3]) == {
        "content": [text(f"a {MARK}"), {"n": 1, MARK: [MARK, None]}],
        "source": {"kind": "user"},
    }
    assert masker.counts == {"github": 3}
    assert masker.summary() == "3 places (github 3)"


def test_two_fields_never_become_one() -> None:
    other = "ghp_" + chance(36, seed=5)
    value = {KEY: 1, other: 2, MARK: 3}
    assert sorted(Masker().value(value).values()) == [1, 2, 3]
    assert len(Masker().value(value)) == 3


def test_with_texts_only_names_and_references_stay_and_are_counted() -> None:
    data = {KEY: KEY, "callId": KEY, "type": "text", "content": [{"id": KEY, "text": KEY}]}
    masker = Masker(texts_only=True)
    assert masker.value(data) == {KEY: MARK, "callId": KEY, "type": "text", "content": [{"id": KEY, "text": MARK}]}
    assert (masker.counts, masker.left) == ({"github": 2}, 3)


def test_escapes_of_another_writer_hide_nothing() -> None:
    written = dumps({"text": KEY}).replace("ghp_", "ghp\\u005f")
    assert loads(Masker().data(written)) == {"text": MARK}
    deep: Any = KEY
    for _ in range(500):
        deep = [deep]
    assert MARK in Masker().data(dumps(deep))


def test_what_is_held_is_not_counted() -> None:
    masker = Masker()
    assert masker.holds(dumps({"text": KEY}))
    assert not masker.holds(dumps({"text": "no"}))
    assert not masker.counts


@pytest.mark.parametrize(("count", "said"), [(1, "1 place"), (2, "2 places")])
def test_somebodys_own_words_have_no_kind(count: int, said: str) -> None:
    masker = Masker(lambda t: [(at, at + 1, "") for at, c in enumerate(t) if c == "x"])
    assert masker.text("x" * count) == "[redacted]" * count
    assert masker.summary() == said
