"""The answer side of chat completions: a state machine from body bytes to our chunks (LS-60 to LS-69).

Servers that call themselves compatible differ in everything the format leaves open, so the machine reads
generously and writes strictly: whatever comes in, what goes out keeps LS-1 to LS-3. It never raises. A
failure is kept in `failure` beside the chunks that came before it, because those are logged whatever happens
next; the caller raises it after passing them on. `done` says that the finish chunk is out and later bytes are
not wanted.

A body that is no event stream is recognised by its first byte, not by its content type, which proxies get
wrong: `{` is one JSON object (an error, or the whole answer of a server that ignored `stream`), `<` is a page
of markup.
"""

from __future__ import annotations

import json
from typing import Any

from dsh.core.ids import minted_call_id
from dsh.core.lossless import dumps, mend_surrogates
from dsh.core.messages import Block, Chunk, FinishReason, TokenUsage
from dsh.llm.failure import LlmError, stream_failure
from dsh.llm.sse import SseDecoder, SseEvent

_FINISH = {
    "stop": "stop",
    "tool_calls": "tool-calls",
    "length": "max-tokens",
    "function_call": "tool-calls",  # the older name of the same thing
    "eos": "stop",  # text-generation servers that pass their own name for it on
    "eos_token": "stop",
    "stop_sequence": "stop",
}
_BOM = b"\xef\xbb\xbf"
_JSON_BODY_LIMIT = 64 * 1024 * 1024
_QUOTE = 120


def _json(text: str) -> Any:
    """Parsed JSON, or raises ValueError. NaN and Infinity (some servers' logprobs) are read as null."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class _Lane:
    """The pieces of one block's text. A surrogate half at the end of a piece waits for its other half."""

    __slots__ = ("_half", "index", "kind", "pieces")

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.pieces: list[str] = []
        self._half = ""

    def add(self, piece: str) -> str:
        """Take a piece as it was decoded and return what may be passed on now."""
        if not self._half and piece.isascii():
            whole = piece
        else:
            piece = self._half + piece
            self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
            whole = mend_surrogates(piece[:-1] if self._half else piece)
        if whole:
            self.pieces.append(whole)
        return whole

    def rest(self) -> str:
        """What a half that stayed alone becomes (SE-2)."""
        left, self._half = ("\ufffd", "") if self._half else ("", "")
        if left:
            self.pieces.append(left)
        return left

    def text(self) -> str:
        return "".join(self.pieces)


class _Call(_Lane):
    """A tool call in the making; `wire` is the index the server uses for it, if it uses one."""

    __slots__ = ("id", "name", "wire", "wire_id")

    def __init__(self, index: int, wire: int | None) -> None:
        super().__init__(index, "tool-call")
        self.wire = wire
        self.wire_id = ""
        self.id = ""
        self.name = ""


class ChatStream:
    """One answer. `feed` and `close` return the chunks that the bytes complete; see `done` and `failure`.

    `content_type` is for messages only and may be set later. `where` is the base URL and `who` the provider's
    name for messages. `keep_reasoning_field` asks for a replay state that tells under which field reasoning
    came, when that field is one to be sent back.
    """

    def __init__(
        self,
        *,
        who: str = "provider",
        where: str = "the server",
        content_type: str = "",
        keep_reasoning_field: bool = False,
    ) -> None:
        self.done = False
        self.failure: LlmError | None = None
        self._who = who
        self._where = where
        self.content_type = content_type
        self._keep_reasoning_field = keep_reasoning_field
        self._sse = SseDecoder()
        self._mode = "unknown"  # then "events", "json" or "markup"
        self._body: list[bytes] = []
        self._body_size = 0
        self._bytes = 0
        self._lanes: list[_Lane] = []
        self._text: _Lane | None = None
        self._reasoning: _Lane | None = None
        self._calls: list[_Call] = []
        self._last_call: _Call | None = None
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None
        self._good = 0
        self._bad: str | None = None
        self._damaged = False
        self._reasoning_field = ""
        self._out: list[Chunk] = []

    @property
    def over(self) -> bool:
        """The answer is complete or has failed; further bytes change nothing."""
        return self.done or self.failure is not None

    # --- bytes in

    def feed(self, data: bytes) -> list[Chunk]:
        if self.over or not data:
            return []
        self._bytes += len(data)
        if self._mode == "unknown":
            data = self._recognise(data)
        if self._mode == "events":
            for event in self._sse.feed(data):
                self._event(event)
                if self.done or self.failure is not None:
                    break
        elif self._mode in ("json", "markup"):
            self._body.append(data)
            self._body_size += len(data)
            if self._body_size > _JSON_BODY_LIMIT:
                self._fail_type()
        return self._take()

    def close(self) -> list[Chunk]:
        """The body has ended (LS-61)."""
        if self.over:
            return []
        if self._mode == "unknown":
            self._mode = "events"
            self._sse.feed(b"".join(self._body))
        if self._mode == "json":
            self._whole_body()
        elif self._mode == "markup":
            self._fail_type()
        elif self._sse.pending().strip() == "[DONE]" or self._finish is not None:
            self._end()
        elif not self._bytes:
            self._fail("EMPTY_RESPONSE", f"{self._where} sent an empty answer")
        elif not self._good and self._bad is not None:
            self._fail_malformed()
        elif not self._good and not self._sse.pending() and self._other_type():
            self._fail_type()  # prose of a proxy, or JSON that is no object
        else:
            self._fail("STREAM_CLOSED", f"{self._who} stream from {self._where} ended before the answer did")
        return self._take()

    def _other_type(self) -> bool:
        return bool(self.content_type) and "event-stream" not in self.content_type.lower()

    def _take(self) -> list[Chunk]:
        out, self._out = self._out, []
        return out

    def _recognise(self, data: bytes) -> bytes:
        """Decide the mode by the first byte that is not white space; until then bytes wait, without the empty
        lines that some servers send to keep a connection alive."""
        start = b"".join([*self._body, data])
        if start in (_BOM[:1], _BOM[:2]):
            self._body = [start]
            return b""
        start = start.removeprefix(_BOM).lstrip(b"\r\n")
        seen = start.lstrip()
        if not seen:
            self._body = [start] if start else []
            return b""
        self._mode = "json" if seen[:1] == b"{" else "markup" if seen[:1] == b"<" else "events"
        self._body = []
        return start

    def _whole_body(self) -> None:
        """One JSON object instead of a stream: an error, or an answer to a request that was not heard to
        stream."""
        try:
            body = _json(b"".join(self._body).decode("utf-8", "replace"))
        except ValueError:
            self._fail_type()
            return
        self.failure = stream_failure(self._who, body)
        if self.failure is not None:
            return
        choices = _list(body.get("choices"))
        message = _object(_object(choices[0]).get("message")) if choices else {}
        if not message:
            self._fail_type()
            return
        message["tool_calls"] = [{**_object(c), "index": at} for at, c in enumerate(_list(message.get("tool_calls")))]
        self._usage = _object(body.get("usage")) or None
        self._choice({**choices[0], "delta": message})
        self._end()

    # --- failures

    def _fail(self, code: str, message: str) -> None:
        self.failure = LlmError(message, code)

    def _fail_type(self) -> None:
        kind = self.content_type.partition(";")[0].strip().lower() or "no content type"
        self.failure = LlmError(
            f"{self._where} answered with {kind} instead of an event stream",
            "MALFORMED_RESPONSE",
            hint="check the base URL: it usually ends in /v1",
        )

    def _fail_malformed(self) -> None:
        quoted = (self._bad or "").strip()[:_QUOTE]
        self._fail("MALFORMED_RESPONSE", f"{self._who} sent an event that is not JSON: {quoted!r}")

    # --- events in

    def _event(self, event: SseEvent) -> None:
        data = event.data.strip()
        if data == "[DONE]":
            if not self._good and self._bad is not None:
                self._fail_malformed()
            else:
                self._end()
            return
        try:
            body = _json(data)
        except ValueError:
            if event.name == "error" and data:
                self.failure = stream_failure(self._who, {"error": data})
                return
            # LS-62: what cannot be read is skipped, unless it may have been a piece of a tool call
            self._bad = self._bad or data
            self._damaged = self._damaged or bool(data)
            if self._calls and self._damaged:
                self._fail_malformed()
            return
        if not isinstance(body, dict):
            self._bad = self._bad or data
            return
        self._good += 1
        self.failure = stream_failure(self._who, body)
        if self.failure is None and event.name == "error":
            self.failure = stream_failure(self._who, {"error": body})
        if self.failure is not None:
            return
        usage = body.get("usage") or _object(body.get("x_groq")).get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        for choice in _list(body.get("choices")):
            if isinstance(choice, dict) and choice.get("index", 0) in (0, None):
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = _object(choice.get("delta"))
        reasoning, text = self._said(delta)
        if reasoning:
            self._reasoning = self._add(self._reasoning, "reasoning", reasoning)
        if text:
            self._text = self._add(self._text, "text", text)
        for call in _list(delta.get("tool_calls")):
            if isinstance(call, dict):
                self._tool_delta(call)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish = reason

    def _said(self, delta: dict[str, Any]) -> tuple[str, str]:
        """`(reasoning, text)` of one delta (LS-63). A refusal is text: it is what the model says instead."""
        thoughts: list[str] = []
        words: list[str] = []
        content = delta.get("content")
        if isinstance(content, str):
            words.append(content)
        for part in _list(content):
            part = _object(part)
            if part.get("type") == "text" and isinstance(part.get("text"), str):
                words.append(part["text"])
            elif part.get("type") == "thinking":
                inner = part.get("thinking")
                inner = [{"text": inner}] if isinstance(inner, str) else _list(inner)
                thoughts += [t for p in inner if isinstance(t := _object(p).get("text"), str)]
        if isinstance(delta.get("refusal"), str):
            words.append(delta["refusal"])
        # the same thought may come under up to three names at once; the first that is there counts
        for field in ("reasoning_content", "reasoning"):
            if isinstance(delta.get(field), str):
                thoughts.append(delta[field])
                if delta[field]:
                    self._reasoning_field = self._reasoning_field or field
                break
        else:
            for detail in _list(delta.get("reasoning_details")):
                said = _object(detail).get("text") or _object(detail).get("summary")
                if isinstance(said, str):
                    thoughts.append(said)
        return "".join(thoughts), "".join(words)

    def _open(self, lane: _Lane) -> None:
        self._lanes.append(lane)
        self._out.append({"type": "block-start", "index": lane.index, "blockType": lane.kind})

    def _add(self, lane: _Lane | None, kind: str, piece: str) -> _Lane:
        if lane is None:
            lane = _Lane(len(self._lanes), kind)
            self._open(lane)
        self._emit(lane, lane.add(piece))
        return lane

    def _emit(self, lane: _Lane, piece: str) -> None:
        if not isinstance(lane, _Call):
            if piece:
                kind = "text-delta" if lane.kind == "text" else "reasoning-delta"
                self._out.append({"type": kind, "index": lane.index, "text": piece})
            return
        chunk: Chunk = {
            "type": "tool-call-delta",
            "index": lane.index,
            "id": lane.id,
            "argumentsDelta": piece,
        }
        if lane.name:
            chunk["name"] = lane.name
        self._out.append(chunk)

    # --- tool calls (LS-64)

    def _tool_delta(self, delta: dict[str, Any]) -> None:
        function = _object(delta.get("function"))
        given_id = delta.get("id")
        wire_id = mend_surrogates(given_id) if isinstance(given_id, str) else ""
        given_name = function.get("name")
        name = mend_surrogates(given_name) if isinstance(given_name, str) else ""
        index = delta.get("index")
        wire = index if type(index) is int else None
        call = self._known_call(wire, wire_id, bool(name))
        if call is None:
            if self._damaged:
                self._fail_malformed()
                return
            call = _Call(len(self._lanes), wire)
            self._calls.append(call)
            self._open(call)
        self._last_call = call
        if wire_id and not call.wire_id:
            call.wire_id = wire_id
            taken = any(other.id == wire_id for other in self._calls)
            call.id = minted_call_id(call.index) if taken else wire_id
        call.name = call.name or name
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = dumps(arguments)
        self._emit(call, call.add(arguments or ""))

    def _known_call(self, wire: int | None, wire_id: str, has_name: bool) -> _Call | None:
        """The call that a delta continues, or None when it opens one.

        By index where there is one: another id together with a name on a used index is another call (some
        servers number every call 0). Without an index by id; with neither it goes on with the last call.
        """
        same_index = [c for c in self._calls if c.wire == wire]
        if wire_id:
            for call in same_index:
                if call.wire_id == wire_id:
                    return call
        if wire is None:
            return None if wire_id else self._last_call
        if not same_index:
            return None
        latest = same_index[-1]
        return None if wire_id and latest.wire_id and has_name else latest

    # --- the end

    def _end(self) -> None:
        """Block ends in opening order, usage, finish (LS-65)."""
        self.done = True
        for lane in self._lanes:
            left = lane.rest()
            if left:
                self._emit(lane, left)
        for lane in self._lanes:
            self._out.append({"type": "block-end", "index": lane.index, "block": _block(lane)})
        usage = usage_of(self._usage)
        if usage is not None:
            self._out.append({"type": "usage", "usage": usage})
        finish: Chunk = {"type": "finish", "reason": self._reason()}
        if self._keep_reasoning_field and self._reasoning_field == "reasoning_content":
            finish["replayState"] = {"reasoningField": self._reasoning_field}
        self._out.append(finish)

    def _reason(self) -> FinishReason:
        given = self._finish or "stop"
        kind = _FINISH.get(given)
        if kind is None:
            code = "".join(c if c.isascii() and c.isalnum() else "_" for c in given.upper())
            return _error(f"model stopped: {mend_surrogates(given)}", code)
        if kind != "max-tokens" and not self._lanes:
            return _error(f"{self._who} finished without an answer", "EMPTY_RESPONSE")
        return {"kind": kind}


def _error(message: str, code: str) -> FinishReason:
    return {"kind": "error", "failure": {"message": message, "code": code}}


def _block(lane: _Lane) -> Block:
    if isinstance(lane, _Call):
        made = lane.id or minted_call_id(lane.index)
        return {"type": "tool-call", "id": made, "name": lane.name, "arguments": lane.text()}
    return {"type": lane.kind, "text": lane.text()}


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != value // 1:
        return None
    return int(value)


def usage_of(wire: dict[str, Any] | None) -> TokenUsage | None:
    """Our token figures from a provider's usage object (LS-68); None when it counts neither way."""
    if wire is None:
        return None
    prompt, completion = _count(wire.get("prompt_tokens")), _count(wire.get("completion_tokens"))
    if prompt is None and completion is None:
        return None
    cached = _count(_object(wire.get("prompt_tokens_details")).get("cached_tokens"))
    if cached is None:
        cached = _count(wire.get("prompt_cache_hit_tokens"))
    usage: TokenUsage = {
        "inputTokens": max(0, (prompt or 0) - (cached or 0)),
        "outputTokens": completion or 0,
    }
    if cached is not None:
        usage["cacheReadTokens"] = cached
    reasoning = _count(_object(wire.get("completion_tokens_details")).get("reasoning_tokens"))
    if reasoning is not None:
        usage["reasoningTokens"] = reasoning
    return usage
