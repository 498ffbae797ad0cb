"""The log entry and the catalogue of event types (docs/spec/session.md)."""

from __future__ import annotations

import builtins
from typing import Any, Final, TypedDict

from dsh.core.kinds import OpenKind

SURFACE_TYPES: Final = frozenset({"user/message", "assistant/message", "tool/result", "steering/message"})

# `out_of_band`: True for a log-only type that may be appended outside a turn (SE-57).
event_type = OpenKind(
    "session event type",
    "turn/start",
    "turn/end",
    "step/start",
    "step/end",
    "user/message",
    "steering/message",
    "prompt/blocked",
    "assistant/chunk",
    "assistant/message",
    "tool/call",
    "tool/result",
    "todo/write",
    "request/header",
    facets=("out_of_band",),
)
event_type.declare("session/title", out_of_band=True)
event_type.declare("session/title-llm-request", out_of_band=True)


class Event(TypedDict, total=False):
    """One immutable log entry. `type`, `seq`, `time` (epoch ms) and `data` are always there; the other two only on
    the four surface types."""

    type: str
    seq: int
    time: int
    data: Any
    sourceEventSeqs: list[int]
    surfaceOp: Any


def span(type: str, data: Any) -> int:
    """How many seqs an event stands for: one, but for a run of chunks that was thinned (SE-3)."""
    chunk = data.get("chunk") if type == "assistant/chunk" and isinstance(data, dict) else None
    if not isinstance(chunk, dict) or chunk.get("type") != "thinned":
        return 1
    count = chunk.get("count")
    return count if builtins.type(count) is int and count > 1 else 1


ENVELOPE_KEYS: Final = frozenset({"type", "seq", "time", "data", "sourceEventSeqs", "surfaceOp"})


class SessionHeader(TypedDict, total=False):
    """What is kept beside the log; `version` (0), `id`, `createdAt` (epoch ms) are always there."""

    version: int
    id: str
    createdAt: int
    cwd: str
    parentSession: str
    seedLength: int
    delegationDepth: int
