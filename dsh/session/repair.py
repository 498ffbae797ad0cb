"""Closing a turn that a crash left open (PE-30 to PE-37).

Nothing that was logged is taken back. The repair appends what is missing, in this order: one result for every tool
call of the open step that has none, the step's end, the turn's end with the reason `interrupted`. All of it carries
the time of the last real event and is written in one transaction, so repairing twice changes nothing.
"""

from __future__ import annotations

from typing import Any

from dsh import query
from dsh.session.session import APPEND, Session
from dsh.store.database import Database

_UNKNOWN_OUTCOME = (
    "This call was started, but the program stopped before its result was recorded, so it is not known whether it took"
    " effect. Repeat it only if it is read-only or safe to do twice; otherwise look at the present state first, or ask."
)
_NEVER_STARTED = "The program stopped before this call was started. It had no effect and may be made again."


def repair(db: Database, session: Session) -> int:
    """Close the open turn of a session that nobody drives any more; returns how many events were appended."""
    if session.open_turn is None:
        return 0
    turn, step = session.open_turn, session.open_step
    before = session.length
    found = query.row(db, "last_event_time", session=session.id)
    at = found[0] if found else 0
    with db.transaction():
        if step is not None:
            for call_id, call_seq in query.rows(db, "unanswered_calls", session=session.id):
                session.record(
                    "tool/result",
                    _closing_result(turn, step, call_id, started=call_seq is not None),
                    surface=APPEND,
                    sources=None if call_seq is None else [call_seq],
                    time=at,
                )
            session.record("step/end", {"turn": turn, "step": step}, time=at)
        session.record("turn/end", {"turn": turn, "reason": {"kind": "interrupted"}}, time=at)
    return session.length - before


def _closing_result(turn: int, step: int, call_id: str, *, started: bool) -> dict[str, Any]:
    name, code, text = (
        ("ToolOutcomeUnknownError", "TOOL_OUTCOME_UNKNOWN", _UNKNOWN_OUTCOME)
        if started
        else ("ToolNotStartedError", "TOOL_NOT_STARTED", _NEVER_STARTED)
    )
    return {
        "turn": turn,
        "step": step,
        "callId": call_id,
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "error": {"name": name, "code": code},
    }
