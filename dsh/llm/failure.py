"""Provider failures: the error type, and how an answer that is not a success becomes one stable code.

Everything here is pure. A provider says what went wrong in a status, in an error object of half a dozen
shapes and in prose; policy (retry, exit codes, compaction) routes on `code` alone, so the wording is read
exactly once, here.
"""

from __future__ import annotations

import math
import re
import time
from typing import Any

from dsh.core.errors import DshError
from dsh.core.lossless import freeze, mend_surrogates
from dsh.core.messages import LlmFailure

EXCERPT = 300


class LlmError(DshError):
    """A failed model call; `failure` is its immutable, serialisable form (LS-5, LS-7).

    `status` is an HTTP status (100 to 599), `provider_retry_after_ms` a finite number above 0, `request_id`
    and `message` are not empty. Bad values raise ValueError here, where the mistake is made.
    """

    code = "UNKNOWN"

    def __init__(
        self,
        message: str,
        code: str,
        *,
        status: int | None = None,
        provider_retry_after_ms: float | None = None,
        request_id: str | None = None,
        hint: str | None = None,
    ) -> None:
        if not message or not isinstance(message, str):
            raise ValueError("a failure has a message")
        if not code or not isinstance(code, str):
            raise ValueError("a failure has a code")
        message = mend_surrogates(message)
        super().__init__(message, code=code, hint=hint)
        facts: LlmFailure = {"message": message, "code": code}
        if status is not None:
            if type(status) is not int or not 100 <= status <= 599:
                raise ValueError(f"{status!r} is no HTTP status")
            facts["status"] = status
        if provider_retry_after_ms is not None:
            wait = provider_retry_after_ms
            if isinstance(wait, bool) or not isinstance(wait, int | float):
                raise ValueError("a retry-after is a number of milliseconds")
            if not math.isfinite(wait) or wait <= 0:
                raise ValueError(f"{wait!r} is no retry-after")
            facts["providerRetryAfterMs"] = wait
        if request_id is not None:
            if not request_id or not isinstance(request_id, str):
                raise ValueError("a request id is not empty")
            facts["requestId"] = mend_surrogates(request_id)
        self.failure: LlmFailure = freeze(facts)

    @classmethod
    def of(cls, failure: LlmFailure) -> LlmError:
        """The error that a finish chunk's `failure` describes."""
        return cls(
            failure["message"],
            failure["code"],
            status=failure.get("status"),
            provider_retry_after_ms=failure.get("providerRetryAfterMs"),
            request_id=failure.get("requestId"),
        )


# The patterns are compiled when a request has failed (`re` keeps them), not at every start.
#
# LS-72, in its order; the last three are ours: llama.cpp's error type and the words of servers behind
# gateways.
_OVERFLOW = (
    r"(?is)context[ _-](length|window)[ _-](exceeded|overflow\w*|limit[ _-]exceeded)"
    r"|max(imum)?[ _-]((allowed|supported)[ _-])?context[ _-](length|window)"
    r"|\b(request|prompt|input|messages?)\b( (is|are|was|were))? too (large|long)"
    r" for ((the|this) )?(model('s)? )?context"
    r"|\b(input|prompt|request)\b( (is|was))? too (large|long) for (this|the) model"
    r"|\b(input|prompt|request|messages?)\b.{0,40}?\b(exceeds?|overflows?|(is|are) larger than)\b.{0,40}?"
    r"\b((the )?(model('s)? )?)context"
    r"|exceed(s|ed)?_context_size"
    r"|\bprompt is too long\b"
    r"|\blonger than the maximum model length\b"
)

# LS-73
_QUOTA = (
    r"(?i)insufficient[ _-](quota|balance|credits?)"
    r"|\b(quota|usage[ _-]limit)s?[ _-]((has|have|is|was)[ _-])?(been[ _-])?(exceeded|exhausted|reached)"
    r"|\bexceed(ed|s)? ((your|the) )?(current )?quota"
    r"|\b(balance|credits?)[ _-]((is|are|has been|have been)[ _-])?(exhausted|depleted)"
    r"|\bout of (credits?|budget)\b"
)

_RATE = r"(?i)rate[ _-]?limit|too[ _-]many[ _-]requests"
_AUTH = r"(?i)\b(authentication|permission|unauthorized|invalid_api_key)(_error)?\b"
_INVALID = r"(?i)\b(invalid_request|bad_?request|not_found)(_?error)?\b"


def says_overflow(wording: str) -> bool:
    """LS-72: the words mean that the request does not fit the model's context."""
    return re.search(_OVERFLOW, wording) is not None


def says_quota(wording: str) -> bool:
    """LS-73: the words mean that credit or quota is used up (not a passing rate limit)."""
    return re.search(_QUOTA, wording) is not None


def classify(status: int, wording: str = "") -> str:
    """The code of a non-2xx answer, first match wins (LS-71)."""
    if status in (401, 403):
        return "AUTH"
    if says_quota(wording):
        return "QUOTA"
    if status == 429:
        return "RATE_LIMIT"
    if status == 400:
        return "CONTEXT_WINDOW_EXCEEDED" if says_overflow(wording) else "INVALID_REQUEST"
    return "SERVER" if status >= 500 else f"HTTP_{status}"


def classify_in_stream(status: int | None, kind: str, wording: str) -> str:
    """The code of an error object met after HTTP 200 (LS-69). `kind` is its `code` and `type` alone: prose
    may mention a rate limit that is not the trouble, those two do not."""
    if says_quota(wording):
        return "QUOTA"
    if says_overflow(wording):
        return "CONTEXT_WINDOW_EXCEEDED"
    if status is not None:
        return classify(status, wording)
    if re.search(_RATE, kind):
        return "RATE_LIMIT"
    if re.search(_AUTH, kind):
        return "AUTH"
    return "INVALID_REQUEST" if re.search(_INVALID, kind) else "SERVER"


def _error_parts(body: Any) -> tuple[Any, Any, Any] | None:
    """`(code, type, message)` of an error body in any of the shapes that servers use, or None."""
    if isinstance(body, list) and body:  # one large vendor wraps its error object in a list
        body = body[0]
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict):
        return error.get("code"), error.get("type"), error.get("message")
    if isinstance(error, str) and error:
        return body.get("code"), body.get("type"), error
    said = body.get("message") or body.get("detail")
    if isinstance(said, list | dict):  # FastAPI's validation errors
        said = str(said)
    return (body.get("code"), body.get("type"), said) if isinstance(said, str) and said else None


def _words(*parts: Any) -> str:
    return " ".join(str(p) for p in parts if isinstance(p, str | int) and not isinstance(p, bool))


def one_line(text: str, limit: int = EXCERPT) -> str:
    """The text on one line without control characters, cut to `limit` characters."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _said(message: Any) -> str:
    """What a server says of its failure, on one line; empty if that is nothing that can be read."""
    return one_line(message, 2000) if isinstance(message, str) else ""


def http_failure(
    who: str, status: int, body: Any, text: str, *, retry_after: str | None, request_id: str | None
) -> LlmError:
    """The failure of a non-2xx answer (LS-70, LS-71).

    `body` is the parsed JSON body or None, `text` the body as text: prose of a proxy is worth quoting, a page
    of markup is not.
    """
    parts = _error_parts(body)
    message = f"{who} API error (HTTP {status})"
    wording = ""
    if parts is not None:
        wording = _words(*parts)
        message = _said(parts[2]) or message
    elif (said := one_line(text)) and not text.lstrip().startswith(("<", "{", "[")):
        message += ": " + said
        wording = text[:2000]
    return LlmError(
        message,
        classify(status, wording),
        status=status if 100 <= status <= 599 else None,
        provider_retry_after_ms=parse_retry_after(retry_after),
        request_id=request_id or None,
    )


def _status_in(*values: Any) -> int | None:
    for value in values:
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:9])
        if type(value) is int and 400 <= value <= 599:
            return value
    return None


def stream_failure(who: str, event: Any) -> LlmError | None:
    """The failure that an event (or a whole JSON body) of a 200 answer reports, or None if it reports none.

    Reads `error` at the top or inside choice 0, as an object or a text, and `{"object": "error", ...}`
    (LS-69).
    """
    if not isinstance(event, dict):
        return None
    holder = event
    error = event.get("error")
    if not error:
        choices = event.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        error = first.get("error") if isinstance(first, dict) else None
        if not error and event.get("object") == "error":
            error = event
        if not error:
            return None
    fields = error if isinstance(error, dict) else {"message": str(error)}
    status = _status_in(fields.get("status_code"), fields.get("code"), fields.get("status"), holder.get("status_code"))
    kind = _words(fields.get("code"), fields.get("type"))
    message = _said(fields.get("message")) or f"{who} reported an error"
    return LlmError(message, classify_in_stream(status, kind, f"{kind} {message}"), status=status)


def parse_retry_after(value: str | None, now: float | None = None) -> float | None:
    """A `Retry-After` header in milliseconds, or None when it is absent, past or unreadable (LS-74).

    `now` is epoch seconds.
    """
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        wait: float = int(value) * 1000 if len(value) < 12 else 0
    else:
        import email.utils

        try:
            at = email.utils.parsedate_to_datetime(value).timestamp()
        except (ValueError, TypeError, OverflowError):
            return None
        wait = (at - (time.time() if now is None else now)) * 1000
    return wait if wait > 0 and math.isfinite(wait) else None
