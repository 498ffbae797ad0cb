"""Failures: what LlmError accepts, and how statuses and words become codes."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dsh.core.errors import render_chain
from dsh.llm.failure import (
    LlmError,
    classify,
    http_failure,
    parse_retry_after,
    says_overflow,
    says_quota,
    stream_failure,
)
from tests.llm.helpers import SSE


@pytest.mark.rule("LS-7")
def test_a_failure_is_what_was_given_and_cannot_be_changed() -> None:
    error = LlmError("slow down", "RATE_LIMIT", status=429, provider_retry_after_ms=1.5, request_id="r")
    assert error.failure == {
        "message": "slow down",
        "code": "RATE_LIMIT",
        "status": 429,
        "providerRetryAfterMs": 1.5,
        "requestId": "r",
    }
    assert error.code == "RATE_LIMIT"
    assert LlmError.of(error.failure).failure == error.failure
    with pytest.raises(TypeError):
        error.failure["code"] = "AUTH"
    assert LlmError("half \ud800", "X").failure["message"] == "half \ufffd"


@pytest.mark.rule("LS-7")
@pytest.mark.parametrize(
    "bad",
    [
        {"message": ""},
        {"code": ""},
        {"message": None},
        {"status": 99},
        {"status": 600},
        {"status": True},
        {"status": 200.0},
        {"provider_retry_after_ms": 0},
        {"provider_retry_after_ms": -1},
        {"provider_retry_after_ms": math.inf},
        {"provider_retry_after_ms": math.nan},
        {"provider_retry_after_ms": True},
        {"request_id": ""},
    ],
)
def test_bad_facts_are_refused_where_they_are_made(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        LlmError(**{"message": "m", "code": "C", **bad})


@pytest.mark.rule("LS-72")
@pytest.mark.parametrize(
    ("words", "overflow"),
    [
        ("context_length_exceeded", True),
        ("Context window overflowed", True),
        ("context-length limit exceeded", True),
        ("This model's maximum context length is 8192 tokens", True),
        ("max allowed context window", True),
        ("messages too long for the model's context", True),
        ("request too large for context window", True),
        ("The prompt is too long for this model", True),
        ("input too large for the model", True),
        ("your input of 9000 tokens exceeds the available context size", True),
        ("request (5010 tokens) exceeds the available context size (1024 tokens), try increasing it", True),
        ("The messages resulted in 9 tokens, which is larger than the model's context", True),
        ("messages are larger than the model's context", True),
        ("exceed_context_size_error", True),
        ("prompt is too long: 210000 tokens > 200000 maximum", True),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096", True),
        ("max_tokens exceeds maximum allowed value", False),
        ("temperature too large", False),
        ("the request exceeds " + "x" * 41 + " context", False),
        ("rate limit exceeded", False),
        ("file too large", False),
    ],
)
def test_overflow_wording(words: str, overflow: bool) -> None:
    assert says_overflow(words) is overflow
    assert says_overflow(words.upper()) is overflow


@pytest.mark.rule("LS-73")
@pytest.mark.parametrize(
    ("words", "quota"),
    [
        ("insufficient_quota", True),
        ("Insufficient Balance", True),
        ("insufficient credits", True),
        ("Quota exceeded for this project", True),
        ("usage limit reached", True),
        ("quota has been exhausted", True),
        ("You exceeded your current quota, please check your plan", True),
        ("requests exceed the quota", True),
        ("balance exhausted", True),
        ("credits are depleted", True),
        ("out of credits", True),
        ("you are out of budget", True),
        ("rate limit exceeded", False),
        ("Rate limit reached", False),
        ("quotation marks exceeded", False),
    ],
)
def test_quota_wording(words: str, quota: bool) -> None:
    assert says_quota(words) is quota


@pytest.mark.rule("LS-71")
@pytest.mark.parametrize(
    ("status", "words", "code"),
    [
        (401, "insufficient_quota", "AUTH"),
        (403, "", "AUTH"),
        (402, "Insufficient Balance", "QUOTA"),
        (500, "quota exceeded", "QUOTA"),
        (429, "insufficient_quota", "QUOTA"),
        (429, "rate limit exceeded", "RATE_LIMIT"),
        (400, "context_length_exceeded", "CONTEXT_WINDOW_EXCEEDED"),
        (400, "max_tokens exceeds maximum allowed value", "INVALID_REQUEST"),
        (500, "context_length_exceeded", "SERVER"),
        (503, "", "SERVER"),
        (413, "context_length_exceeded", "HTTP_413"),
        (404, "", "HTTP_404"),
        (302, "", "HTTP_302"),
    ],
)
def test_codes_of_statuses(status: int, words: str, code: str) -> None:
    assert classify(status, words) == code


def refused(status: int, body: Any, text: str = "", **headers: Any) -> LlmError:
    given = {"retry_after": None, "request_id": None, **headers}
    return http_failure("DeepSeek", status, body, text, **given)


@pytest.mark.rule("LS-70")
@pytest.mark.parametrize(
    ("body", "text", "message"),
    [
        ({"error": {"message": "nope"}}, "", "nope"),
        ({"error": "nope"}, "", "nope"),
        ({"detail": "nope"}, "", "nope"),
        ([{"error": {"message": "nope"}}], "", "nope"),
        ({"error": {"message": ""}}, "{}", "DeepSeek API error (HTTP 418)"),
        ({"error": {"code": 5}}, "{}", "DeepSeek API error (HTTP 418)"),
        (None, "", "DeepSeek API error (HTTP 418)"),
        (None, "<html>no tags, please</html>", "DeepSeek API error (HTTP 418)"),
        (None, "upstream \x1b[31m gone\n" + "x" * 999, "DeepSeek API error (HTTP 418): upstream [31m gone xxx"),
    ],
)
def test_the_message_of_a_refusal(body: Any, text: str, message: str) -> None:
    error = refused(418, body, text)
    assert error.message.startswith(message)
    assert len(error.message) < 400
    assert error.failure["status"] == 418


@pytest.mark.rule("LS-71")
def test_wording_is_looked_for_in_code_type_and_message() -> None:
    for part in ("code", "type", "message"):
        body = {"error": {"message": "m", part: "context_length_exceeded"}}
        assert refused(400, body).code == "CONTEXT_WINDOW_EXCEEDED"
    assert refused(400, {"error": {"code": 400, "message": "m"}}).code == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("err-401-bad-key", 401, "AUTH"),
        ("err-404", 404, "HTTP_404"),
        ("err-503-loading", 503, "SERVER"),
        ("err-bad-tools", 500, "SERVER"),
        ("err-bad-type", 400, "INVALID_REQUEST"),
        ("err-malformed-json", 400, "INVALID_REQUEST"),
        ("overflow-stream", 400, "CONTEXT_WINDOW_EXCEEDED"),
    ],
)
@pytest.mark.rule("LS-70", "LS-71")
def test_recorded_refusals(fixtures: Path, name: str, status: int, code: str) -> None:
    text = (SSE / "llama-server" / f"{name}.body").read_text("utf-8")
    error = refused(status, json.loads(text), text)
    assert error.code == code
    assert error.message == json.loads(text)["error"]["message"]


@pytest.mark.rule("LS-74")
@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("3", 3000),
        (" 3 ", 3000),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("9" * 400, None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 10_000),
        ("Thu, 01 Jan 1970 00:01:30 GMT", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", None),
        ("Thu, 99 Jan 1970 00:00:00 GMT", None),
    ],
)
def test_retry_after(header: str | None, wait: float | None) -> None:
    assert parse_retry_after(header, now=90) == wait


@pytest.mark.rule("LS-69")
@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"error": {"message": "m", "code": 429}}, "RATE_LIMIT"),
        ({"error": {"message": "m", "code": "429"}}, "RATE_LIMIT"),
        ({"error": {"message": "m", "type": "rate_limit_error"}}, "RATE_LIMIT"),
        ({"error": {"message": "the rate limit page is down"}}, "SERVER"),
        ({"error": {"message": "Insufficient Balance", "code": "invalid_request_error"}}, "QUOTA"),
        ({"error": {"message": "m", "code": "context_length_exceeded"}}, "CONTEXT_WINDOW_EXCEEDED"),
        ({"error": {"message": "m", "type": "overloaded_error"}, "status_code": 503}, "SERVER"),
        ({"error": {"message": "m", "type": "invalid_request_error"}}, "INVALID_REQUEST"),
        ({"error": {"message": "m", "type": "authentication_error"}}, "AUTH"),
        ({"error": {"message": "m", "code": 200}}, "SERVER"),
        ({"error": "boom"}, "SERVER"),
        ({"error": {}, "choices": [{"error": {"message": "m", "code": 502}}]}, "SERVER"),
        ({"object": "error", "message": "m", "code": 400}, "INVALID_REQUEST"),
        ({"error": {"nothing": 1}}, "SERVER"),
    ],
)
def test_error_objects_in_a_stream(event: Any, code: str) -> None:
    error = stream_failure("P", event)
    assert error is not None
    assert error.code == code
    assert error.message in ("m", "boom", "P reported an error") or len(error.message) > 3


def test_ordinary_events_are_no_failures() -> None:
    events: list[Any] = [{"error": None}, {"choices": []}, {"choices": [{"delta": {}, "error": None}]}, [], None]
    assert [stream_failure("P", e) for e in events] == [None] * len(events)


@pytest.mark.rule("LS-43")
def test_a_cause_chain_in_one_line() -> None:
    def chain(*errors: BaseException) -> BaseException:
        for outer, inner in pairwise(errors):
            outer.__cause__ = inner
        return errors[0]

    assert render_chain(chain(LlmError("outer", "X"), ValueError("middle"), OSError("inner"))) == "outer: middle: inner"
    assert render_chain(chain(LlmError("failed: reset", "X"), OSError("reset"))) == "failed: reset"
    assert render_chain(ExceptionGroup("two", [ValueError("a"), ValueError("b")])) == "two [a; b]"
    a, b = ValueError("a"), ValueError("b")
    assert render_chain(chain(a, b, a)) == "a: b: <circular cause>"
    assert render_chain(KeyError()) == "KeyError"


@pytest.mark.rule("LS-69", "LS-70")
@pytest.mark.parametrize("said", ["\x08", " \x1b\x00 ", "\u200b\u2028"])
def test_a_message_of_nothing_that_can_be_read_is_none(said: str) -> None:
    for event in ({"error": said}, {"error": {"message": said}}):
        error = stream_failure("P", event)
        assert error is not None
        assert error.message == "P reported an error"
        assert http_failure("P", 500, event, "", retry_after=None, request_id=None).message == "P API error (HTTP 500)"
    assert http_failure("P", 500, None, said, retry_after=None, request_id=None).message == "P API error (HTTP 500)"
