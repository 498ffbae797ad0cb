"""Plays recorded answers instead of asking a provider: `dsh run --mock FILE`, demonstrations and tests.

FILE is one of

- a folder: its `*.sse` files in name order are the answers, one a call;
- `*.jsonl`: one JSON object a line is the answer to one call, one of

      {"text": "hello"}                                    with "reasoning": "..." if wanted
      {"calls": [{"name": "bash", "arguments": {}, "id": "c1"}]}   with "text" and "reasoning" if wanted
      {"chunks": [{"type": "block-start"}]}                our own chunks, as `assistant/chunk` holds them
      {"sse": "recorded.sse"}                              a recorded body, beside this file
      {"error": {"message": "...", "code": "RATE_LIMIT"}}  a failure (LlmFailure)

  plus, in any of them, "delayMs": N (a wait before each chunk) and "purpose": "session-title" or "compaction"
  (the line answers only auxiliary calls of that purpose, which do not use up other lines);
- any other file: one recorded body of chat-completions events, the answer to every call.

Each session id has its own cursor, so a parent and its children play side by side (CO-29). A call after the
last answer fails with INVALID_REQUEST.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import trio

from dsh.core.errors import ConfigError
from dsh.core.ids import minted_call_id
from dsh.core.lossless import dumps, freeze
from dsh.core.messages import Block, Chunk, Request
from dsh.llm.adapter import BaseAdapter, ModelInfo
from dsh.llm.adapters.chat_stream import ChatStream
from dsh.llm.failure import LlmError

ROUTE = "mock"
MODEL = "recorded"
_SHAPES: dict[str, type | tuple[type, ...]] = {
    "text": str, "reasoning": str, "sse": str, "calls": list, "chunks": list, "error": dict, "delayMs": (int, float),
}  # fmt: skip


class ReplayAdapter(BaseAdapter):
    """Answers from FILE; a file that cannot be read or understood is ConfigError at once."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._repeat = False
        try:
            self._answers = self._load()
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ConfigError(f"{self._path} is not UTF-8") from None
        self._cursors: Counter[tuple[str | None, str | None]] = Counter()

    def _load(self) -> list[dict[str, Any]]:
        if self._path.is_dir():
            return [{"bytes": file.read_bytes()} for file in sorted(self._path.glob("*.sse"))]
        if self._path.suffix != ".jsonl":
            self._repeat = True
            return [{"bytes": self._path.read_bytes()}]
        lines = self._path.read_text("utf-8").splitlines()
        return [self._line(at, line) for at, line in enumerate(lines, 1) if line.strip()]

    def _line(self, number: int, line: str) -> dict[str, Any]:
        where = f"{self._path} line {number}"
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where} is not JSON: {error}") from None
        known = ("text", "calls", "chunks", "sse", "error", "reasoning")
        if not isinstance(answer, dict) or not any(k in answer for k in known):
            raise ConfigError(f"{where} is no answer: it needs one of {', '.join(known)}")
        for key, shape in _SHAPES.items():
            if key in answer and not isinstance(answer[key], shape):
                raise ConfigError(f"{where}: {key} has the wrong type")
        if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in answer.get("calls", [])):
            raise ConfigError(f"{where}: a call is an object with a name")
        if "sse" in answer:
            answer["bytes"] = (self._path.parent / answer["sse"]).read_bytes()
        return answer

    async def list_models(self, provider: str) -> list[ModelInfo]:
        return [{"provider": provider, "id": MODEL, "name": "recorded answers"}]

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        answer = self._next(request)
        if "error" in answer:
            raise LlmError.of(answer["error"])
        chunks, failure = _chunks(answer)
        for chunk in chunks:
            await trio.sleep(answer.get("delayMs", 0) / 1000)
            yield freeze(chunk)
        if failure is not None:
            raise failure

    def _next(self, request: Request) -> dict[str, Any]:
        wanted = [a for a in self._answers if a.get("purpose") == request.purpose]
        cursor = (request.session_id, request.purpose)
        at = self._cursors[cursor]
        self._cursors[cursor] += 1
        if self._repeat and request.purpose is None:
            at = 0
        if at >= len(wanted):
            raise LlmError(f"{self._path} has no answer left for call {at + 1}", "INVALID_REQUEST")
        return wanted[at]


def _chunks(answer: dict[str, Any]) -> tuple[list[Chunk], LlmError | None]:
    if "chunks" in answer:
        return answer["chunks"], None
    if "bytes" in answer:
        stream = ChatStream(who="recorded", where="the recording")
        return stream.feed(answer["bytes"]) + stream.close(), stream.failure
    blocks: list[Block] = []
    if answer.get("reasoning"):
        blocks.append({"type": "reasoning", "text": answer["reasoning"]})
    if answer.get("text"):
        blocks.append({"type": "text", "text": answer["text"]})
    for call in answer.get("calls", []):
        arguments = call.get("arguments", {})
        blocks.append(
            {
                "type": "tool-call",
                "id": call.get("id") or minted_call_id(len(blocks)),
                "name": call["name"],
                "arguments": arguments if isinstance(arguments, str) else dumps(arguments),
            }
        )
    chunks: list[Chunk] = []
    for index, block in enumerate(blocks):
        chunks.append({"type": "block-start", "index": index, "blockType": block["type"]})
        if block["type"] == "tool-call":
            chunks.append(
                {
                    "type": "tool-call-delta",
                    "index": index,
                    "id": block["id"],
                    "name": block["name"],
                    "argumentsDelta": block["arguments"],
                }
            )
        else:
            chunks.append({"type": f"{block['type']}-delta", "index": index, "text": block["text"]})
        chunks.append({"type": "block-end", "index": index, "block": block})
    chunks.append({"type": "finish", "reason": {"kind": "tool-calls" if answer.get("calls") else "stop"}})
    return chunks, None
