"""From chunks to the blocks of one assistant message (LS-10 to LS-14).

The assembler accepts more than the strict protocol: a source that sends deltas only, or closes a block twice,
still gives one sensible message. Text is joined when it is asked for, not per delta.
"""

from __future__ import annotations

from typing import Any

from dsh.core.errors import InvariantError
from dsh.core.ids import minted_call_id
from dsh.core.kinds import stream_chunk
from dsh.core.messages import Block, Chunk, FinishReason, Message, TokenUsage

_KIND_OF_DELTA = {"text-delta": "text", "reasoning-delta": "reasoning", "tool-call-delta": "tool-call"}


class _Open:
    """A block under construction; `closed` is its authoritative form once that has come."""

    __slots__ = ("closed", "id", "kind", "name", "pieces")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.id: str | None = None
        self.name = ""
        self.closed: Block | None = None

    def block(self, index: int) -> Block:
        if self.closed is not None:
            return self.closed
        text = "".join(self.pieces)
        if self.kind in ("text", "reasoning"):
            return {"type": self.kind, "text": text}
        if self.kind == "tool-call":
            made = minted_call_id(index) if self.id is None else self.id
            return {"type": "tool-call", "id": made, "name": self.name, "arguments": text}
        raise InvariantError(f"a {self.kind} block cannot be built from deltas")


class BlockAssembler:
    """Feed it every chunk; `usage`, `finish` and `replay_state` reflect what has come so far."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Open] = {}
        self.usage: TokenUsage | None = None
        self.finish: FinishReason = {"kind": "stop"}
        self.replay_state: Any = None

    def feed(self, chunk: Chunk) -> None:
        """Raises InvariantError TAG_UNKNOWN for a chunk of an unknown type (CO-4)."""
        kind = chunk.get("type")
        stream_chunk.require(kind)
        if kind == "usage":
            self.usage = chunk["usage"]
        elif kind == "finish":
            self.finish = chunk["reason"]
            self.replay_state = chunk.get("replayState")
        elif kind == "block-start":
            self._blocks.setdefault(chunk["index"], _Open(chunk["blockType"]))
        elif kind == "block-end":
            entry = self._blocks.setdefault(chunk["index"], _Open(chunk["block"]["type"]))
            if entry.closed is None:
                entry.closed = chunk["block"]
        else:
            self._delta(chunk, _KIND_OF_DELTA[chunk["type"]])

    def _delta(self, chunk: Chunk, kind: str) -> None:
        entry = self._blocks.setdefault(chunk["index"], _Open(kind))
        if entry.closed is not None:
            return
        if kind != "tool-call":
            entry.pieces.append(chunk["text"])
            return
        entry.pieces.append(chunk["argumentsDelta"])
        if "id" in chunk:
            entry.id = chunk["id"]
        entry.name = chunk.get("name") or entry.name

    def blocks(self) -> list[Block]:
        """One block per seen index, in first-seen order; an open block of a kind without deltas raises
        (LS-12)."""
        return [entry.block(index) for index, entry in self._blocks.items()]

    def message(self) -> Message:
        return {"role": "assistant", "content": self.blocks()}
