"""What the commands share that reach a session from outside the process that drives it.

They read the log and the lease, and never wait for the driver itself: whether it works is told by its lease, what it
does by the events it appends. A change is noticed by `PRAGMA data_version`, which is one look at shared memory, asked
20 times a second while there is something new and 4 times a second while there is not; only then is a query made. That
a process died changes nothing in the database, so once a second the lease is asked for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from dsh import query
from dsh.cli import output
from dsh.cli.outcome import Outcome
from dsh.core.errors import DshError, SessionError
from dsh.core.lossless import MAX_INT, loads
from dsh.store import writes
from dsh.store.database import Database, Row

FAST_S, SLOW_S = 0.05, 0.25
DRIVER_S = 1.0  # how often a driver that says nothing is looked for


class Activity(NamedTuple):
    """What a session does; `length` is the next seq of its log, `holder` and `pid` are those of its lease, `driven` is
    whether that process is there, `silent` whether it is and its heartbeat is overdue."""

    length: int
    open_turn: int | None
    waking: int
    waiting: int
    holder: str | None
    pid: int | None
    driven: bool
    silent: bool

    @property
    def idle(self) -> bool:
        """Nobody is at work on the session, or will be before something else comes."""
        return not (self.driven and (self.open_turn is not None or self.waking))


def activity(db: Database, session: str) -> Activity:
    row = query.row(db, "session_activity", session=session)
    if row is None:
        raise SessionError(f"session {session} has been deleted", code="SESSION_NOT_FOUND")
    length, open_turn, waking, waiting, holder, *lease = row
    driven = holder is not None and writes.is_driven(*lease)
    silent = driven and writes.is_silent(lease[-1])
    return Activity(length, open_turn, waking, waiting, holder, lease[0], driven, silent)


def ring(now: Activity) -> None:
    """Tell the driver to look at the inbox, once what is there for it is committed."""
    if now.driven and now.holder is not None:
        from dsh.store import wake

        wake.ring(now.holder)
        if now.silent:
            output.note(f"process {now.pid} is silent: it hears of this when it goes on, if it was stopped or asleep")


class Changes:
    """Notices what other processes commit to the database."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._seen: int | None = None
        self._pause = FAST_S

    def wait(self, seconds: float) -> bool:
        """Return True when something was committed since the last call, False after `seconds` without it."""
        end = time.monotonic() + seconds
        while True:
            version = int(self._db.pragma("data_version"))
            if version != self._seen:
                self._seen, self._pause = version, FAST_S
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(self._pause, left))
            self._pause = min(self._pause * 1.25, SLOW_S)


class Turn(NamedTuple):
    """A turn that a message has begun; the end is None while it is open."""

    turn: int
    start_seq: int
    end_seq: int | None
    started_at: int
    ended_at: int | None
    reason: str | None
    limit: int | None


def newest_turn(db: Database, session: str, below: int = MAX_INT) -> Turn | None:
    """The last turn that a message has begun below a seq (SE-48)."""
    row = query.row(db, "message_turn", session=session, below=below)
    return Turn(*row) if row else None


def outcome_of(db: Database, session: str, turn: Turn | None) -> Outcome:
    """How a run would have reported this turn. One that nobody drives to its end is a failure."""
    outcome = Outcome(time.monotonic())
    outcome.session = session
    if turn is None:
        outcome.reason = {"kind": "completed"}  # nothing was asked for, so nothing failed
    else:
        outcome.turn = turn.turn
        outcome.reason = loads(turn.reason) if turn.reason is not None else None
        if turn.limit is not None:
            outcome.limit = ("STEP_LIMIT", f"stopped after {turn.limit} steps")
        if turn.end_seq is None:
            outcome.fail(abandoned(db, session))
    return outcome


def abandoned(db: Database, session: str) -> DshError:
    """What became of a turn whose process is not there any more."""
    pid = activity(db, session).pid
    who = f"process {pid}, which drove the session," if pid is not None else "the process that drove the session"
    return DshError(
        f"{who} is gone, the turn was left open", code="INTERRUPTED", hint=f"dsh run --resume {session} goes on"
    )


def events(db: Database, session: str, low: int) -> Iterator[Row]:
    """Everything in the log from a seq on, in pages, as rows of `events_page`."""
    while page := query.rows(db, "events_page", session=session, low=low, limit=500):
        yield from page
        low = page[-1][0] + 1
