"""The answer side against every recorded stream, and the cases no recording has."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.llm.adapters.chat_stream import ChatStream, usage_of
from tests.llm.helpers import RECORDED, Answer, body_of, content_type, deltas, events, expectation, parse

# fixture -> the failure wanted by its line in the fixtures' README
FAILS = {
    "groq/gpt-oss-tool-use-failed": "INVALID_REQUEST",
    "huggingface/together-deepseek-r1-CUT": "STREAM_CLOSED",
    "llama-server/client-disconnect": "STREAM_CLOSED",
    "openrouter/minimax-stream-error": "INVALID_REQUEST",
    "nasty/empty-body": "EMPTY_RESPONSE",
    "nasty/done-only": "EMPTY_RESPONSE",
    "nasty/error-event": "SERVER",
    "nasty/error-in-choice": "SERVER",
    "nasty/error-json-200": "QUOTA",
    "nasty/error-object-midstream": "RATE_LIMIT",
    "nasty/html-200": "MALFORMED_RESPONSE",
    "nasty/ndjson-200": "MALFORMED_RESPONSE",
    "nasty/no-done-no-finish": "STREAM_CLOSED",
    "nasty/reset-mid-chunk": "STREAM_CLOSED",  # on the wire it is TRANSPORT: test_chat_adapter
    "nasty/truncated-json": "STREAM_CLOSED",
    "nasty/truncated-tool-args": "STREAM_CLOSED",
}
FINISH = {None: "stop", "stop": "stop", "tool_calls": "tool-calls", "length": "max-tokens"}


def by_id(calls: list[Any]) -> list[Any]:
    return sorted(calls, key=lambda c: c["id"])


def check(name: str, answer: Answer) -> None:
    wanted = expectation(name)
    text = "whole" if name == "nasty/json-200" else wanted["text"] + wanted.get("refusal", "")
    assert answer.text == text
    assert answer.reasoning == wanted["reasoning"]
    calls = [{"type": "tool-call", **c, "id": c["id"] or f"call-{i}"} for i, c in enumerate(wanted["toolCalls"])]
    # wire indices 3 and 1: blocks are numbered by first appearance (LS-2), the expectation sorts
    order = by_id if name == "nasty/tool-index-gap" else list
    if name not in FAILS or answer.error is None:
        assert order(answer.calls) == order(calls)
    assert answer.code == FAILS.get(name)
    if answer.code is None:
        assert answer.assembler.finish == {"kind": FINISH[wanted["finish"]]}
        given = wanted["usage"]
        if name == "nasty/json-200":
            given = {"prompt_tokens": 7, "completion_tokens": 5}
        assert answer.assembler.usage == usage_of(given)
        if given:
            counted = answer.assembler.usage
            assert counted is not None
            assert counted["outputTokens"] == given["completion_tokens"]
            assert counted["inputTokens"] + counted.get("cacheReadTokens", 0) == given["prompt_tokens"]


@pytest.mark.rule("LS-1", "LS-2", "LS-3", "LS-60", "LS-61", "LS-63", "LS-64", "LS-65", "LS-66", "LS-69")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_stream(fixtures: Path, name: str) -> None:
    check(name, parse([body_of(name)], content_type=content_type(name)))


@pytest.mark.rule("LS-60")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_stream_byte_by_byte(fixtures: Path, name: str) -> None:
    body = body_of(name)
    whole = parse([body], content_type=content_type(name))
    pieces = [body[i : i + 1] for i in range(len(body))]
    answer = parse(pieces, content_type=content_type(name))
    assert answer.chunks == whole.chunks
    assert (answer.error and answer.error.failure) == (whole.error and whole.error.failure)


@pytest.mark.rule("LS-60")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_stream_in_random_pieces(fixtures: Path, name: str) -> None:
    body = body_of(name)
    rng = random.Random(name)
    whole = parse([body], content_type=content_type(name))
    for _ in range(5):
        edges = sorted({0, len(body), *(rng.randint(0, len(body)) for _ in range(rng.randint(1, 30)))})
        pieces = [body[a:b] for a, b in pairwise(edges)]
        assert parse(pieces, content_type=content_type(name)).chunks == whole.chunks


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nasty/html-200", "text/html"),
        ("nasty/ndjson-200", "application/x-ndjson"),
        ("nasty/error-in-choice", "Upstream error"),
        ("nasty/error-event", "Overloaded"),
        ("nasty/error-json-200", "Insufficient Balance"),
        ("openrouter/minimax-stream-error", "Token limit reached"),
    ],
)
@pytest.mark.rule("LS-69")
def test_the_failure_says_what_happened(fixtures: Path, name: str, said: str) -> None:
    error = parse([body_of(name)], content_type=content_type(name)).error
    assert error is not None
    assert said in error.message
    assert "<" not in error.message


def test_partial_text_comes_before_the_failure(fixtures: Path) -> None:
    for name in ("nasty/error-object-midstream", "nasty/truncated-json", "nasty/no-done-no-finish"):
        assert parse([body_of(name)]).text == expectation(name)["text"] != ""


# --- tool calls


@pytest.mark.rule("LS-64")
def test_call_in_odd_pieces() -> None:  # case P6
    answer = parse(
        [
            deltas(
                {"tool_calls": [{"index": 0, "id": "call_123", "function": {"arguments": '{"comm'}}]},
                {"tool_calls": [{"index": 0, "id": "", "function": {"name": "bash", "arguments": 'and":"ls'}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": ' -la"}'}}]},
                finish="tool_calls",
            )
        ]
    )
    assert answer.calls == [
        {"type": "tool-call", "id": "call_123", "name": "bash", "arguments": '{"command":"ls -la"}'}
    ]
    assert [c for c in answer.chunks if c["type"] == "tool-call-delta"] == [
        {"type": "tool-call-delta", "index": 0, "id": "call_123", "argumentsDelta": '{"comm'},
        {"type": "tool-call-delta", "index": 0, "id": "call_123", "name": "bash", "argumentsDelta": 'and":"ls'},
        {"type": "tool-call-delta", "index": 0, "id": "call_123", "name": "bash", "argumentsDelta": ' -la"}'},
    ]


def test_a_call_that_never_gets_a_name_is_kept() -> None:
    answer = parse([deltas({"tool_calls": [{"index": 0, "id": "c"}]}, finish="tool_calls")])
    assert answer.calls == [{"type": "tool-call", "id": "c", "name": "", "arguments": ""}]


def test_two_calls_under_one_id_get_different_ids() -> None:
    def call(index: int) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "id": "call_0", "function": {"name": "a", "arguments": "{}"}}]}

    answer = parse([deltas({"content": "x"}, call(0), call(1), finish="tool_calls")])
    assert [c["id"] for c in answer.calls] == ["call_0", "call-2"]


def test_calls_without_index_are_told_apart_by_id() -> None:
    def piece(call_id: str | None, arguments: str, name: str | None = None) -> dict[str, Any]:
        return {"tool_calls": [{"id": call_id, "function": {"name": name, "arguments": arguments}}]}

    answer = parse(
        [deltas(piece("a", "1", "x"), piece("b", "2", "y"), piece("a", "3"), piece(None, "4"), finish="tool_calls")]
    )
    assert [(c["id"], c["arguments"]) for c in answer.calls] == [("a", "134"), ("b", "2")]


@pytest.mark.rule("LS-64")
def test_empty_fragments_still_make_a_chunk() -> None:
    body = deltas({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "a", "arguments": ""}}]})
    assert [c["argumentsDelta"] for c in parse([body]).chunks if c["type"] == "tool-call-delta"] == [""]


@pytest.mark.rule("LS-62")
def test_a_call_from_a_damaged_stream_does_not_count() -> None:
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "rm", "arguments": '{"path":"/tmp'}}]}
    more = {"tool_calls": [{"index": 0, "function": {"arguments": '/x"}'}}]}

    def choice(delta: Any) -> Any:
        return {"choices": [{"delta": delta}]}

    for body in (events(choice(call), "{oops", choice(more), "[DONE]"), events("{oops", choice(call), "[DONE]")):
        answer = parse([body])
        assert answer.code == "MALFORMED_RESPONSE"
        assert answer.error is not None
        assert "{oops" in answer.error.message


@pytest.mark.rule("LS-62")
def test_nothing_but_bad_events() -> None:
    answer = parse([events("x" * 500, "42", "[DONE]")])
    assert answer.code == "MALFORMED_RESPONSE"
    assert answer.error is not None
    assert "x" * 120 in answer.error.message
    assert "x" * 121 not in answer.error.message
    assert parse([events("[1]")]).code == "MALFORMED_RESPONSE"
    assert parse([events("[" * 100_000, "[DONE]")]).code == "MALFORMED_RESPONSE"


# --- text


@pytest.mark.parametrize("kind", ["content", "reasoning_content", "arguments"])
def test_surrogate_halves(kind: str) -> None:  # case P7 and its variants
    def delta(text: str) -> dict[str, Any]:
        if kind != "arguments":
            return {kind: text}
        return {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "a", "arguments": text}}]}

    def said(answer: Answer) -> str:
        return answer.calls[0]["arguments"] if answer.calls else answer.text or answer.reasoning

    assert said(parse([deltas(delta("bear \ud83d"), delta("\udc3b!"))])) == "bear 🐻!"
    assert said(parse([deltas(delta("bear \ud83d"))])) == "bear \ufffd"
    assert said(parse([deltas(delta("\udc3b"), delta("a\ud83d"), delta("b"))])) == "\ufffda\ufffdb"
    for answer in (parse([deltas(delta("x\ud83d"), delta("\ud83d"), delta("\udc3b"))]),):
        assert said(answer) == "x\ufffd🐻"
        json.dumps(answer.chunks, ensure_ascii=False).encode()


@pytest.mark.rule("LS-63")
def test_order_within_one_delta_and_empty_pieces() -> None:
    answer = parse(
        [
            deltas(
                {"role": "assistant", "content": "", "reasoning_content": ""},
                {"content": None, "reasoning_content": None},
                {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "a"}}], "content": "t", "reasoning": "r"},
                finish="tool_calls",
            )
        ]
    )
    assert [b["type"] for b in answer.assembler.blocks()] == ["reasoning", "text", "tool-call"]
    assert [c["index"] for c in answer.chunks if c["type"] == "block-start"] == [0, 1, 2]


@pytest.mark.rule("LS-64", "LS-65")
def test_blocks_end_together_before_usage_and_finish() -> None:
    answer = parse(
        [deltas({"content": "a"}, {"reasoning": "b"}, {"content": "c"}, {"reasoning": "d"}), b"data: {}\n\n"]
    )
    assert [c["type"] for c in answer.chunks[-3:]] == ["block-end", "block-end", "finish"]
    assert (answer.text, answer.reasoning) == ("ac", "bd")


def test_the_field_that_reasoning_came_under_is_kept_when_asked_for() -> None:
    body = deltas({"reasoning_content": "r"}, {"content": "t"})
    assert parse([body], keep_reasoning_field=True).assembler.replay_state == {"reasoningField": "reasoning_content"}
    assert parse([body]).assembler.replay_state is None
    other = deltas({"reasoning": "r"}, {"content": "t"})
    assert parse([other], keep_reasoning_field=True).assembler.replay_state is None


# --- the end


@pytest.mark.rule("LS-66")
@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("content_filter", "CONTENT_FILTER"),
        ("insufficient_system_resource", "INSUFFICIENT_SYSTEM_RESOURCE"),
        ("odd value!", "ODD_VALUE_"),
    ],
)
def test_other_finish_reasons_are_failures(reason: str, code: str) -> None:
    answer = parse([deltas({"content": "a"}, finish=reason)])
    assert answer.error is None
    assert answer.assembler.finish == {
        "kind": "error",
        "failure": {"message": f"model stopped: {reason}", "code": code},
    }


@pytest.mark.rule("LS-66")
def test_no_finish_reason_but_done_is_a_stop() -> None:
    assert parse([deltas({"content": "a"}, finish=None)]).assembler.finish == {"kind": "stop"}


@pytest.mark.rule("LS-67")
def test_empty_answers() -> None:
    usage = events({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}})
    answer = parse([usage + deltas()])
    assert answer.code == "EMPTY_RESPONSE"
    assert [c["type"] for c in answer.chunks] == ["usage", "finish"]
    assert parse([deltas(finish="length")]).assembler.finish == {"kind": "max-tokens"}
    assert parse([deltas({"reasoning_content": "r"})]).code is None
    assert parse([deltas(finish="tool_calls")]).code == "EMPTY_RESPONSE"


@pytest.mark.rule("LS-61")
def test_what_ends_a_stream() -> None:
    finished = events({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]})
    assert parse([finished]).code is None
    assert parse([finished, b"data: [DONE]"]).code is None
    assert parse([finished, b"data: [DONE]\n\n", events({"error": {"message": "late"}})]).code is None
    unfinished = events({"choices": [{"delta": {"content": "a"}}]})
    assert parse([unfinished]).code == "STREAM_CLOSED"
    assert parse([unfinished, b"data: [DONE]"]).code is None
    assert parse([b": keep-alive\n\n"]).code == "STREAM_CLOSED"
    assert parse([]).code == "EMPTY_RESPONSE"


def test_bytes_after_the_end_give_nothing() -> None:
    stream = ChatStream()
    stream.feed(deltas({"content": "a"}))
    assert stream.over
    assert stream.feed(deltas({"content": "b"})) == []
    assert stream.close() == []


@pytest.mark.rule("LS-65")
def test_the_last_usage_that_is_not_null_counts() -> None:
    def usage(tokens: int | None) -> Any:
        return {"choices": [], "usage": tokens and {"prompt_tokens": tokens, "completion_tokens": tokens}}

    body = events(usage(1), usage(2), usage(None)) + deltas({"content": "a"})
    assert parse([body]).assembler.usage == {"inputTokens": 2, "outputTokens": 2}


@pytest.mark.rule("LS-68")
@pytest.mark.parametrize(
    ("wire", "ours"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens": None}, None),
        (
            {"prompt_tokens": 10, "completion_tokens": 4, "prompt_cache_hit_tokens": 3, "prompt_cache_miss_tokens": 7},
            {"inputTokens": 7, "outputTokens": 4, "cacheReadTokens": 3},
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 0},
                "prompt_cache_hit_tokens": 3,
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            {"inputTokens": 10, "outputTokens": 4, "cacheReadTokens": 0, "reasoningTokens": 2},
        ),
        (
            {"prompt_tokens": 1, "completion_tokens": 4.0, "prompt_tokens_details": {"cached_tokens": None}},
            {"inputTokens": 1, "outputTokens": 4},
        ),
        (
            {"prompt_tokens": 1, "completion_tokens": True, "prompt_tokens_details": None},
            {"inputTokens": 1, "outputTokens": 0},
        ),
    ],
)
def test_usage(wire: Any, ours: Any) -> None:
    assert usage_of(wire) == ours


# --- whole bodies


def test_a_json_body_with_calls_becomes_an_answer() -> None:
    calls = [{"function": {"name": n, "arguments": {"a": n}}} for n in ("x", "y")]
    body = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    answer = parse([b"  \n", json.dumps(body, indent=1).encode()])
    assert answer.calls == [
        {"type": "tool-call", "id": "call-0", "name": "x", "arguments": '{"a":"x"}'},
        {"type": "tool-call", "id": "call-1", "name": "y", "arguments": '{"a":"y"}'},
    ]


def test_a_json_body_that_is_no_answer_is_named() -> None:
    answer = parse([b'{"hello": 1}'], content_type="application/json", where="http://h/v1")
    assert answer.error is not None
    assert answer.error.message == "http://h/v1 answered with application/json instead of an event stream"


def test_events_under_a_wrong_content_type_are_read() -> None:
    assert parse([deltas({"content": "a"})], content_type="application/json").text == "a"


def test_empty_lines_before_the_stream_do_not_pile_up() -> None:
    stream = ChatStream()
    for _ in range(1000):
        assert stream.feed(b"\r\n") == []
    assert b"".join(stream._body) == b""
    assert stream.feed(deltas({"content": "a"}))[0]["type"] == "block-start"


# --- whatever comes

# fmt: off
KEYS = [
    "choices", "delta", "index", "content", "reasoning", "reasoning_content", "reasoning_details", "tool_calls",
    "function", "name", "arguments", "id", "finish_reason", "usage", "error", "message", "type", "text",
    "thinking", "code", "status_code", "x_groq", "refusal", "prompt_tokens", "object",
]
# fmt: on
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 700) | st.text(max_size=5) | st.sampled_from(["stop", "error", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=50, deadline=None)
@given(st.lists(JSON_VALUES, max_size=5), st.booleans())
@pytest.mark.rule("LS-1", "LS-3", "LS-5")
def test_no_answer_breaks_the_protocol_or_raises(payloads: list[Any], done: bool) -> None:
    chunks = [p if isinstance(p, dict) and "choices" in p else {"choices": [{"delta": p}]} for p in payloads]
    parse([events(*chunks, *(["[DONE]"] if done else []))])  # Answer() checks the protocol
    parse([json.dumps(p).encode() for p in payloads])
