"""`dsh attach`: look on from another shell while a session works."""

from __future__ import annotations

import os
import sys
import time

import click

from dsh import query
from dsh.cli import output
from dsh.cli.answer import Answer, write_all
from dsh.cli.common import db_flag, history, load_config
from dsh.cli.following import DRIVER_S, Changes, Turn, abandoned, activity, events, newest_turn
from dsh.cli.group import db_option
from dsh.cli.outcome import Outcome
from dsh.cli.progress import FRAME_S, Progress
from dsh.cli.watch import Watch
from dsh.core.errors import DshError
from dsh.core.lossless import MAX_INT, dumps, loads
from dsh.query.naming import find_session
from dsh.session.records import event_of
from dsh.store import writes
from dsh.store.database import Database


@click.command("attach", short_help="Watch a session work and print its answer.")
@click.argument("session", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON Lines; the last line is the result.")
@click.option("-q", "--quiet", is_flag=True, help="Keep standard error silent unless the turn fails.")
@db_option
@click.pass_context
def command(ctx: click.Context, session: str, as_json: bool, quiet: bool) -> int:
    """Watch a session work and print its answer, as dsh run would have: from the beginning of its turn to its end.

    The exit code is the turn's. Ctrl-C only ends the looking on (130); dsh cancel ends the turn. A session that does
    not work at the moment has the answer of its last turn printed, so it does not matter who comes first.
    """
    with history(db_flag(ctx)) as db:
        id_ = find_session(db, session)
        turn = _turn_of(db, id_)
        if turn is None:
            raise DshError(f"session {id_} has not been asked anything yet", code="NO_TURN")
        return look_on(db, id_, turn, as_json=as_json, quiet=quiet)


def _turn_of(db: Database, session: str) -> Turn | None:
    """The turn to show: the one at work, the one that is about to begin, else the last one."""
    changes = Changes(db)
    while True:
        now, turn = activity(db, session), newest_turn(db, session)
        if now.idle or (turn is not None and turn.end_seq is None):
            return turn
        changes.wait(DRIVER_S)


def reply_to(db: Database, session: str, message: str, known: int) -> int:
    """Wait for the turn that a sent message begins or joins, and look on; `known` is the log's length when it was sent.

    DshError ABORTED if a cancel has dropped the message, INTERRUPTED if its session is not worked on any more.
    """
    changes = Changes(db)
    while True:
        driven = activity(db, session).driven
        waits = query.row(db, "inbox_position", message=message) is not None
        # The row goes in the transaction of the event, so an event that is not there now will never be.
        for seq, type_, _, data in query.rows(db, "transcript", session=session, low=known, high=MAX_INT):
            known = seq + 1
            if type_ in ("user/message", "steering/message") and message in data:
                turn, meta = newest_turn(db, session, below=seq), loads(data).get("meta")
                if turn is not None and isinstance(meta, dict) and meta.get("message") == message:
                    return look_on(db, session, turn, as_json=False, quiet=False)
        if not waits:
            raise DshError(f"message {message} became nothing: it was cancelled, or a hook refused it", code="ABORTED")
        if not driven:
            raise DshError(f"nobody works on session {session} any more; the message waits", code="INTERRUPTED")
        changes.wait(DRIVER_S)


def look_on(db: Database, session: str, turn: Turn, *, as_json: bool, quiet: bool) -> int:
    """Print a turn from its first event to its last, waiting for what is not there yet; the exit code is the turn's."""
    began = time.monotonic() - (writes.now_ms() - turn.started_at) / 1000
    progress = Progress(quiet=quiet, began=began)
    outcome = Outcome(began)
    outcome.session, outcome.turn = session, turn.turn
    onlooker = _Onlooker(db, session, outcome, progress, as_json=as_json)
    try:
        onlooker.follow(turn)
        outcome.read_usage(db, load_config(db))
        progress.summary(outcome.summary())
        if as_json:
            onlooker.line(dumps(outcome.result()))
        for line in outcome.lines():
            progress.failure(line)
        return outcome.exit_code()
    except KeyboardInterrupt:
        onlooker.leave()
        progress.failure(f"detached; session {session} goes on")
        return 130
    finally:
        progress.close()


class _Onlooker:
    """Reads the log of one turn as it grows and shows it as a run does."""

    def __init__(self, db: Database, session: str, outcome: Outcome, progress: Progress, *, as_json: bool) -> None:
        self._db = db
        self._session = session
        self._outcome = outcome
        self._progress = progress
        self._fd = sys.stdout.fileno()
        self._answer = None if as_json else Answer(self, live=os.isatty(self._fd))
        header = query.row(db, "header_in_force", session=session)
        model = loads(header[1])["config"]["model"] if header else None
        self._watch = Watch(model, outcome, progress, self._answer)
        self._next = 0
        self._began_at = 0  # epoch ms

    def put(self, text: str) -> None:
        write_all(self._fd, text)

    def line(self, text: str) -> None:
        self.put(output.json_text(text) + "\n")

    def leave(self) -> None:
        """What follows on a terminal begins a line of its own."""
        if self._answer is not None and self._answer.live:
            self._answer.end_line()

    def follow(self, turn: Turn) -> None:
        """Until the turn is over, or whoever drove it is gone."""
        self._next, self._began_at = turn.start_seq, turn.started_at
        changes = Changes(self._db)
        looked = float("-inf")
        while not self._read():
            if time.monotonic() - looked >= DRIVER_S:
                looked = time.monotonic()
                if not activity(self._db, self._session).driven:
                    if not self._read():  # it may have ended the turn just before it went
                        self._outcome.fail(abandoned(self._db, self._session))
                    break
            self._progress.draw()
            changes.wait(FRAME_S if self._progress.living else DRIVER_S)
        self._watch.close()

    def _read(self) -> bool:
        """Show what is new; whether the turn is over."""
        for row in events(self._db, self._session, self._next):
            event = event_of(row)
            self._next = event["seq"] + 1
            if self._answer is None:
                self.line(dumps({"sessionId": self._session, **event}))
            self._watch.event(event)
            if self._outcome.reason is not None:
                self._outcome.seconds = (event["time"] - self._began_at) / 1000
                return True
        return False
