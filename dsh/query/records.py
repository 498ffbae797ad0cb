"""Rows of the log as the values of docs/spec/session.md: a header, an event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dsh.core.errors import DshError, SessionError
from dsh.core.events import Event, SessionHeader
from dsh.core.lossless import freeze, loads


def event_of(row: Iterable[Any]) -> Event:
    """An event from a row (seq, type, time, data, source_event_seqs, surface_op); its data is frozen."""
    seq, type_, time, data, sources, op = row
    try:
        event = Event(type=type_, seq=seq, time=time, data=freeze(loads(data)))
        if sources is not None:
            event["sourceEventSeqs"] = freeze(loads(sources))
        if op is not None:
            event["surfaceOp"] = freeze(loads(op))
    except (ValueError, DshError) as error:
        raise SessionError(f"event {seq} cannot be read: {error}", code="LOG_CORRUPT") from error
    return event


def header_of(state: Sequence[Any]) -> SessionHeader:
    """A header from a row of `session_state`; absent fields are absent."""
    id_, version, created_at, cwd, parent, seed_length, depth = state[:7]
    header = SessionHeader(version=version, id=id_, createdAt=created_at)
    if cwd is not None:
        header["cwd"] = cwd
    if parent is not None:
        header["parentSession"] = parent
    if seed_length is not None:
        header["seedLength"] = seed_length
    if depth:
        header["delegationDepth"] = depth
    return header
