"""A request that was made, put together again from the log alone (SE-33, CO-20).

The boundary is the surface as of the step's start; the surface keeps what was replaced, so nothing is folded. What
the request was on the wire depends on one thing more, the dialect of its route: `dsh show ID --request` takes it from
the configuration.
"""

from __future__ import annotations

from dsh import query
from dsh.core.errors import UsageError
from dsh.core.lossless import freeze, loads
from dsh.core.messages import EpochHeader, Message, Request
from dsh.session.records import derive_event_message, event_of
from dsh.store.database import Database


def request(db: Database, session: str, turn: int, step: int) -> Request:
    """The request of a step, as the loop made it; the attempts that failed are steps, too. USAGE if there is none."""
    found = query.row(db, "step_request", session=session, turn=turn, step=step)
    if found is None or found[1] is None:
        raise UsageError(f"session {session} made no request in step {step} of turn {turn}")
    start, text = found
    header: EpochHeader = freeze(loads(text))
    return Request(
        config=header["config"],
        messages=(*header.get("messagePrefix", ()), *messages(db, session, start)),
        system=header.get("system"),
        tools=tuple(header.get("tools", ())),
        session_id=session,
    )


def messages(db: Database, session: str, before: int) -> list[Message]:
    """What the model saw just before the event `before`, frozen."""
    derived = (derive_event_message(event_of(r)) for r in query.rows(db, "messages_at", session=session, before=before))
    return [freeze(m) for m in derived if m is not None]
