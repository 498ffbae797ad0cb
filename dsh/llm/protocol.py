"""Strict checker of the chunk protocol, for tests and debugging (LS-1 to LS-3)."""

from __future__ import annotations

from dsh.core.errors import InvariantError
from dsh.core.kinds import stream_chunk
from dsh.core.messages import Chunk

_DELTA_OF = {"text-delta": "text", "reasoning-delta": "reasoning", "tool-call-delta": "tool-call"}


class ProtocolChecker:
    """Give it every chunk, then `close()`; the first violation raises InvariantError."""

    def __init__(self) -> None:
        self._kinds: dict[int, str] = {}
        self._open: set[int] = set()
        self._usage = False
        self._finished = False

    def feed(self, chunk: Chunk) -> None:
        stream_chunk.require(chunk.get("type"))
        if self._finished:
            raise InvariantError(f"a {chunk['type']} chunk follows finish")
        kind = chunk["type"]
        if kind == "usage":
            if self._usage:
                raise InvariantError("a second usage chunk")
            self._usage = True
        elif kind == "finish":
            if self._open:
                raise InvariantError(f"finish while blocks {sorted(self._open)} are open")
            self._finished = True
        else:
            self._block(chunk, kind)

    def _block(self, chunk: Chunk, kind: str) -> None:
        index = chunk.get("index")
        if type(index) is not int or index < 0:
            raise InvariantError(f"{kind} has the index {index!r}")
        if kind == "block-start":
            if index in self._kinds:
                raise InvariantError(f"block {index} is started twice")
            if index != len(self._kinds):
                raise InvariantError(f"block {index} is not numbered by first appearance")
            self._kinds[index] = chunk["blockType"]
            self._open.add(index)
            return
        if index not in self._open:
            raise InvariantError(f"{kind} addresses block {index}, which is not open")
        opened = self._kinds[index]
        named = chunk["block"]["type"] if kind == "block-end" else _DELTA_OF[kind]
        if named != opened:
            raise InvariantError(f"{kind} of a {named} block addresses block {index}, a {opened}")
        if kind == "block-end":
            self._open.discard(index)

    def close(self) -> None:
        """The stream ended without raising."""
        if not self._finished:
            raise InvariantError("the stream ended without finish")
