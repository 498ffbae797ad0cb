"""What the tests of the model side share: requests, collected streams, folded answers, the list of fixtures."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsh.core.lossless import freeze
from dsh.core.messages import Block, Chunk, Message, Request
from dsh.kernel.config import Config
from dsh.kernel.host import Host
from dsh.llm.adapter import BaseAdapter
from dsh.llm.adapters.chat import ChatAdapter, Endpoint
from dsh.llm.adapters.chat_stream import ChatStream
from dsh.llm.assembler import BlockAssembler
from dsh.llm.failure import LlmError
from dsh.llm.protocol import ProtocolChecker
from dsh.llm.service import LlmService

SSE = Path(os.environ.get("DSH_FIXTURES") or Path(__file__).parents[3] / "shared" / "fixtures") / "sse"
RECORDED = sorted(str(f.relative_to(SSE).with_suffix("")) for f in SSE.rglob("*.sse")) if SSE.is_dir() else []


def expectation(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SSE / f"{name}.expect.json").read_text("utf-8"))
    return found


def body_of(name: str) -> bytes:
    return (SSE / f"{name}.sse").read_bytes()


def content_type(name: str) -> str:
    kind: str = expectation(name).get("serve", {}).get("contentType", "text/event-stream")
    return kind


@dataclass
class Answer:
    """A whole answer: its chunks, checked against the protocol, what they fold to, and how it ended."""

    chunks: list[Chunk] = field(default_factory=list)
    error: LlmError | None = None

    def __post_init__(self) -> None:
        self.assembler = BlockAssembler()
        checker = ProtocolChecker()
        for chunk in self.chunks:
            checker.feed(chunk)
            self.assembler.feed(chunk)
        if self.error is None:
            checker.close()

    def joined(self, kind: str) -> str:
        return "".join(b["text"] for b in self.assembler.blocks() if b["type"] == kind)

    @property
    def text(self) -> str:
        return self.joined("text")

    @property
    def reasoning(self) -> str:
        return self.joined("reasoning")

    @property
    def calls(self) -> list[Block]:
        return [b for b in self.assembler.blocks() if b["type"] == "tool-call"]

    @property
    def code(self) -> str | None:
        """The failure's code, raised or in the finish chunk."""
        if self.error is not None:
            return self.error.code
        failure = self.assembler.finish.get("failure")
        return None if failure is None else failure["code"]


def parse(pieces: Iterable[bytes], **keywords: Any) -> Answer:
    stream = ChatStream(**keywords)
    chunks: list[Chunk] = []
    for piece in pieces:
        chunks += stream.feed(piece)
    chunks += stream.close()
    return Answer(chunks, stream.failure)


def events(*payloads: Any) -> bytes:
    """An event-stream body; a str goes in as it is, anything else as JSON."""
    return b"".join(b"data: " + (p if isinstance(p, str) else json.dumps(p)).encode() + b"\n\n" for p in payloads)


def deltas(*parts: dict[str, Any], finish: str | None = "stop") -> bytes:
    """A whole body of these deltas of choice 0."""
    wire: list[Any] = [{"choices": [{"index": 0, "delta": p}]} for p in parts]
    if finish is not None:
        wire.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return events(*wire, "[DONE]")


def user(text: str = "hi") -> Message:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def request(*messages: Message, provider: str = "p", model: str = "m", **keywords: Any) -> Request:
    """A frozen request; `config` adds to provider and model."""
    config = {"provider": provider, "model": model, **keywords.pop("config", {})}
    return Request(freeze(config), tuple(freeze(m) for m in messages or (user(),)), **keywords)


async def collect(chunks: AsyncGenerator[Chunk, None]) -> Answer:
    got: list[Chunk] = []
    try:
        async with aclosing(chunks):
            async for chunk in chunks:  # not extend(): what came before a failure is wanted
                got.append(chunk)  # noqa: PERF401
    except LlmError as error:
        return Answer(got, error)
    return Answer(got)


@asynccontextmanager
async def adapter(base_url: str, **keywords: Any) -> AsyncIterator[ChatAdapter]:
    made = ChatAdapter(Endpoint("p", base_url, "Prov", **keywords))
    try:
        yield made
    finally:
        await made.aclose()


def host(**settings: Any) -> Host:
    """A host with an LlmService; `a__b` stands for the setting `a.b`."""
    made = Host(Config({}, {}).with_flags(**settings))
    made.root.provide(LlmService, LlmService(made))
    return made


class Scripted(BaseAdapter):
    """An adapter that yields given chunks, raises a given error, and keeps the requests it saw."""

    def __init__(self, *chunks: Chunk, error: BaseException | None = None) -> None:
        self.chunks = chunks
        self.error = error
        self.requests: list[Request] = []
        self.closed = 0

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        try:
            for chunk in self.chunks:
                yield chunk
            if self.error is not None:
                raise self.error
        finally:
            self.closed += 1


def text_chunks(text: str) -> list[Chunk]:
    return [
        {"type": "block-start", "index": 0, "blockType": "text"},
        {"type": "text-delta", "index": 0, "text": text},
        {"type": "block-end", "index": 0, "block": {"type": "text", "text": text}},
        {"type": "finish", "reason": {"kind": "stop"}},
    ]
