"""`dsh show ID:SEQ --trace`: what an event replaced or was made from, and what came of it (SQ-20 to SQ-22)."""

from __future__ import annotations

from typing import Any

from dsh.cli import output
from dsh.query.service.reads import finished, stored_log, trace
from dsh.query.service.values import EventTrace
from dsh.store.database import Database


def show(db: Database, session_id: str, seq: int, *, as_json: bool) -> None:
    """Print the trace, as lines or as one line of JSON. SESSION_QUERY_EVENT_NOT_FOUND, …_INVALID_SURFACE (exit 2)."""
    found = finished(trace(stored_log(db, session_id), seq))
    if as_json:
        output.json_line(_object(found))
        return
    target = found.target
    lines = [
        ("event", f"{target.seq}  {output.one_line(target.type)}  {target.surface}  {output.utc(target.time)}"),
        ("replaced by", _seqs(found.replacement_chain, " → ")),
        ("replaces", _seqs(found.replaced_event_seqs)),
        ("made from", _seqs(found.source_event_seqs)),
        ("named by", _seqs(found.derived_event_seqs)),
    ]
    for name, value in lines:
        output.line(f"{output.style(f'{name}:', output.DIM)} {value}")


def _seqs(seqs: tuple[int, ...], between: str = ", ") -> str:
    return between.join(map(str, seqs)) or "-"


def _object(found: EventTrace) -> dict[str, Any]:
    target = found.target
    return {
        "sessionId": target.session_id,
        "target": {"seq": target.seq, "type": target.type, "time": target.time, "surface": target.surface},
        "replacedBy": found.replaced_by,
        "replacementChain": found.replacement_chain,
        "replacedEventSeqs": found.replaced_event_seqs,
        "sourceEventSeqs": found.source_event_seqs,
        "derivedEventSeqs": found.derived_event_seqs,
    }
