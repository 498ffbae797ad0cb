"""The provider `parrot`: a model that repeats what it is told, and throws dice when asked to roll 2d6."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from itertools import takewhile

from dsh.core.lossless import dumps
from dsh.core.messages import Block, Chunk, Request, model_text
from dsh.llm.adapter import BaseAdapter, ModelInfo


class Parrot(BaseAdapter):
    """An adapter streams one answer as chunks: blocks that start, grow and end, then `finish`."""

    async def list_models(self, provider: str) -> list[ModelInfo]:
        return [{"provider": provider, "id": "grey", "name": "Grey parrot"}]

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        block = _answer(request)
        yield {"type": "block-start", "index": 0, "blockType": block["type"]}
        if block["type"] == "text":
            for word in re.findall(r"\S+\s*", block["text"]):
                yield {"type": "text-delta", "index": 0, "text": word}
        yield {"type": "block-end", "index": 0, "block": block}
        yield {"type": "finish", "reason": {"kind": "tool-calls" if block["type"] == "tool-call" else "stop"}}


def _answer(request: Request) -> Block:
    results = [b for b in request.messages[-1]["content"] if b["type"] == "tool-result"]
    if results:
        return {"type": "text", "text": "You threw " + "; ".join(model_text(b["content"]) for b in results)}
    newest = takewhile(lambda message: message["role"] == "user", reversed(request.messages))
    said = " ".join(reversed([model_text(message["content"]) for message in newest]))
    wanted = re.search(r"roll (\d+)d(\d+)", said)
    if wanted and any(tool["name"] == "roll" for tool in request.tools):
        arguments = dumps({"dice": int(wanted[1]), "sides": int(wanted[2])})
        return {"type": "tool-call", "id": "call-0", "name": "roll", "arguments": arguments}
    return {"type": "text", "text": said}
