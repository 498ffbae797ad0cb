"""Databases with a history, made event by event through the writing side of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsh.core.lossless import dumps
from dsh.store import writes
from dsh.store.database import Database


class History:
    """A database and a short way of filling it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = Database.open(path)
        self.clock = 1_760_000_000_000
        self._seq: dict[str, int] = {}

    def session(
        self, id: str, *, cwd: str | None = None, depth: int = 0, parent: str | None = None, source: str | None = None
    ) -> str:
        header = {"id": id, "version": 0, "createdAt": self.clock, "cwd": cwd, "delegationDepth": depth}
        writes.insert_session(self.db, {**header, "parentSession": parent}, source=source)
        self._seq[id] = 0
        return id

    def event(
        self, session: str, type: str, data: Any, surface: Any = None, time: int | None = None, sources: Any = None
    ) -> int:
        seq = self._seq[session]
        self.clock += 1000
        op = dumps(surface) if surface is not None else None
        named = dumps(sources) if sources is not None else None
        writes.insert_event(self.db, session, seq, type, time or self.clock, dumps(data), named, op)
        self._seq[session] += 1
        return seq

    def turn(
        self,
        session: str,
        number: int,
        prompt: str,
        *blocks: dict[str, Any],
        results: dict[str, str] | None = None,
        end: dict[str, Any] | None = None,
        time: int | None = None,
    ) -> None:
        """A whole turn of one step; `end` {} leaves it open."""
        if time is not None:
            self.clock = time
        user = {"kind": "user"}
        self.event(session, "turn/start", {"turn": number, "trigger": {"kind": "message", "source": user}})
        self.event(session, "user/message", {"content": [text(prompt)], "source": user}, "append")
        at = {"turn": number, "step": 1}
        self.event(session, "step/start", at)
        header = {"config": {"provider": "deepseek", "model": "deepseek-chat"}}
        self.event(session, "request/header", {"header": header, "reason": "initial"})
        self.event(session, "assistant/chunk", {**at, "chunk": {"type": "text-delta", "index": 0, "text": "…"}})
        provenance = {"provider": "deepseek", "model": "deepseek-chat"}
        self.event(session, "assistant/message", {**at, "content": list(blocks), "provenance": provenance}, "append")
        for block in blocks:
            if block["type"] == "tool-call":
                call = {"callId": block["id"], "name": block["name"], "arguments": block["arguments"]}
                self.event(session, "tool/call", {**at, **call})
                answer = {"callId": block["id"], "content": [text((results or {})[block["id"]])], "isError": False}
                self.event(session, "tool/result", {**at, **answer}, "append")
        if end == {}:
            return
        self.event(session, "step/end", at)
        self.event(session, "turn/end", {"turn": number, "reason": end or {"kind": "completed"}})

    def fork(self, child: str, parent: str) -> str:
        """A session that goes on from the end of another."""
        writes.insert_fork(self.db, child, parent, self._seq[parent] - 1, self.clock, None)
        self._seq[child] = self._seq[parent]
        return child

    def say(
        self, id: str, prompt: str, answer: str = "yes", *, cwd: str | None = None, time: int | None = None,
        source: str | None = None,
    ) -> str:  # fmt: skip
        """A session of one turn."""
        if time is not None:
            self.clock = time
        self.session(id, cwd=cwd, source=source)
        self.turn(id, 1, prompt, text(answer))
        return id


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool-call", "id": id, "name": name, "arguments": arguments}
