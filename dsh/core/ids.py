"""Ids are plain strings in JSON and distinct types in code (CO-6): each is made only by its own function here."""

from __future__ import annotations

import secrets
import time
from typing import NewType

SessionId = NewType("SessionId", str)
CallId = NewType("CallId", str)
AgentMessageId = NewType("AgentMessageId", str)

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def session_id(text: str) -> SessionId:
    """The session id `text` names; any non-empty string is one (SE-53)."""
    if not text:
        raise ValueError("a session id is not empty")
    return SessionId(text)


def new_session_id(now_ms: int | None = None) -> SessionId:
    """A fresh id: 10 characters of time and 8 of chance, so ids sort by age and a prefix is easy to type."""
    stamp = int(time.time() * 1000) if now_ms is None else now_ms
    chars = [_CROCKFORD[(stamp >> shift) & 31] for shift in range(45, -1, -5)]
    return SessionId("".join(chars) + "".join(secrets.choice(_CROCKFORD) for _ in range(8)))


def call_id(text: str) -> CallId:
    return CallId(text)


def minted_call_id(index: int) -> CallId:
    """The id of a call whose provider gave none (LS-13)."""
    return CallId(f"call-{index}")


def new_message_id() -> AgentMessageId:
    import uuid

    return AgentMessageId(str(uuid.uuid4()))
