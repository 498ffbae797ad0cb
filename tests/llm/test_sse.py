"""The event-stream decoder: framing, splits anywhere, and linear work."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.llm import sse
from dsh.llm.sse import SseDecoder, SseEvent


def decode(body: bytes, cuts: list[int] | None = None) -> list[SseEvent]:
    decoder = SseDecoder()
    edges = [0, *sorted(c % (len(body) + 1) for c in cuts or []), len(body)]
    found: list[SseEvent] = []
    for a, b in pairwise(edges):
        found += decoder.feed(body[a:b])
    return found


def data(body: bytes) -> list[str]:
    return [e.data for e in decode(body)]


@pytest.mark.rule("LS-60")
@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"data: a\r\n\ndata: b\n\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),  # a mark that is not the first is part of a field name
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data\n\n", [""]),
        (b"data: a\nid: 1\nretry: 5\nfoo: x\n: comment\n\n", ["a"]),
        (b": keep-alive\n\n: again\n\n", []),
        (b"\n\n\ndata: a\n\n\n\n", ["a"]),
        (b" data: a\n\n", []),
        (b"data: a\n", []),
        (b"data: a", []),
        ("data: \u2028 \x85 x\n\n".encode(), ["\u2028 \x85 x"]),  # only LF and CR end a line
        (b"data: \xff\xfe\n\n", ["\ufffd\ufffd"]),
    ],
)
def test_framing(body: bytes, wanted: list[str]) -> None:
    assert data(body) == wanted
    pieces = SseDecoder()
    assert [e.data for i in range(len(body)) for e in pieces.feed(body[i : i + 1])] == wanted


def test_an_event_field_names_only_its_own_event() -> None:
    body = b"event: error\ndata: a\n\ndata: b\n\nevent: x\n\ndata: c\n\n"
    assert decode(body) == [("error", "a"), (None, "b"), (None, "c")]


def test_the_unfinished_event_can_be_read_without_being_taken() -> None:
    decoder = SseDecoder()
    decoder.feed(b"data: a\n\ndata: b\ndata: c")
    assert decoder.pending() == "b\nc"
    assert decoder.feed(b"d\n\n") == [(None, "b\ncd")]
    assert decoder.pending() == ""


LINES = st.lists(
    st.sampled_from(
        ["data: ", "data:é🦊", "data: x\\ud83e", ": c", "event: error", "id: 7", "", "", "nonsense", "data: {}"]
    ),
    max_size=12,
)


@pytest.mark.rule("LS-60")
@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_where_reads_end_changes_nothing(lines: list[str], end: str, cuts: list[int], bom: bool) -> None:
    body = (("\ufeff" if bom else "") + "".join(line + end for line in lines)).encode()
    assert decode(body, cuts) == decode(body)


class _Counting:
    """Stands in for the line-end pattern and counts the bytes it is asked to look at."""

    def __init__(self) -> None:
        self.seen = 0
        self._real = re.compile(rb"\r\n|\n|\r")

    def split(self, piece: bytes) -> list[bytes]:
        self.seen += len(piece)
        return self._real.split(piece)


@pytest.mark.rule("LS-60")
def test_each_byte_of_a_big_event_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = _Counting()
    monkeypatch.setattr(sse, "_LINE_END", counting)
    body = b"data: " + b"x" * (5 << 20) + b"\n\n"
    decoder = SseDecoder()
    rng = random.Random(1)
    at, found = 0, []
    while at < len(body):
        size = rng.randint(1, 4096)
        found += decoder.feed(body[at : at + size])
        at += size
    assert counting.seen == len(body)
    assert len(found) == 1
    assert len(found[0].data) == 5 << 20
