"""Rows of the database as headers and events, and what a log from elsewhere has to be like.

Nothing here needs a live session: read models, export and import use it without starting anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.events import ENVELOPE_KEYS, Event, SessionHeader, span
from dsh.core.lossless import MAX_INT, loads, mend_surrogates, same
from dsh.core.messages import Block, Message
from dsh.query.records import event_of as event_of
from dsh.query.records import header_of as header_of
from dsh.store.database import Database, Row


def derive_event_message(event: Event) -> Message | None:
    """The message that an event is to the model, or None if it is none (SE-20, SE-21): what the view `message` derives,
    for somebody who has the event and not the database (SE-25)."""
    kind, data = event["type"], event["data"]
    if kind in ("user/message", "steering/message"):
        return {"role": "user", "content": data["content"]}
    if kind == "assistant/message" and data["content"]:
        return {"role": "assistant", "content": data["content"], "provenance": data["provenance"]}
    if kind == "tool/result":
        answer: Block = {
            "type": "tool-result",
            "toolCallId": data["callId"],
            "content": data["content"],
            "isError": data["isError"],
        }
        return {"role": "user", "content": [answer]}
    return None


def row_span(row: Row) -> int:
    """How many seqs a row of the log stands for."""
    return span(row[1], loads(row[3])) if row[1] == "assistant/chunk" and '"thinned"' in row[3] else 1


def check_log(db: Database, id: str) -> None:
    """Refuse a stored log that is not what was written (PE-10, PE-32): LEGACY_EVENT, LOG_CORRUPT, naming the seq."""
    found = query.row(db, "resume_check", session=id)
    if found is None:
        return
    length, first, events, last_turn_event, turns, open_turn, legacy, unreadable, lost = found
    if legacy is not None:
        raise SessionError(f"event {legacy} of session {id} is of a kind that is no longer read", code="LEGACY_EVENT")
    kept = f"turn/{'end' if open_turn is None else 'start'} {turns}" if turns else None
    what = None
    if unreadable is not None:
        what = f"event {unreadable} cannot be read"
    elif events != length - (first or 0):
        what = f"{events} of {length - (first or 0)} events of its last turn are there"
    elif last_turn_event != kept:
        what = "its last events are missing"
    elif lost is not None:
        what = f"event {lost} is missing"
    if what is not None:
        raise SessionError(
            f"session {id} is damaged: {what}", code="LOG_CORRUPT", hint="dsh db check names what is wrong"
        )


def check_envelope(event: Event, index: int) -> None:
    """The envelope of a seeded event: exact keys, a type, contiguous seq, a time (SE-50)."""
    if not isinstance(event, Mapping):
        raise SessionError("is not an object", code="SEED_INVALID")
    extra = set(event) - ENVELOPE_KEYS
    missing = {"type", "seq", "time", "data"} - set(event)
    if extra or missing:
        raise SessionError(f"has wrong keys: {', '.join(sorted(extra | missing))}", code="SEED_INVALID")
    absent = [k for k in ("sourceEventSeqs", "surfaceOp") if k in event and event.get(k) is None]
    if absent or not _text(event["type"]):
        raise SessionError(f"has no valid {', '.join(absent) or 'type'}", code="SEED_INVALID")
    if not same(event["seq"], index):
        raise SessionError(f"has seq {event['seq']}", code="SEED_INVALID")
    if type(event["time"]) is not int or not 0 <= event["time"] <= MAX_INT:
        raise SessionError("has no valid time", code="SEED_INVALID")


def check_header(header: SessionHeader, unknown: Mapping[str, Any]) -> None:
    """Types of a new header that the database cannot see before the first event is stored (SE-53)."""
    bad = [*unknown]
    bad += [k for k in ("createdAt", "seedLength", "delegationDepth") if k in header and not _count(header[k])]
    bad += [k for k in ("id", "parentSession") if k in header and not _text(header[k])]
    if "cwd" in header and not (_text(header["cwd"]) and _absolute(header["cwd"])):
        bad.append("cwd")
    if bad:
        raise SessionError(f"session header: {', '.join(bad)} not valid", code="HEADER_INVALID")


def _absolute(path: str) -> bool:
    """Also where it was made on another system: a log may come from there."""
    return os.path.isabs(path) or (path[:1].isalpha() and path[1:2] == ":")


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and mend_surrogates(value) == value
