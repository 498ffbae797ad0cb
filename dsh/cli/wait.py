"""`dsh wait`: return when sessions are idle, with the exit code that their runs would have had."""

from __future__ import annotations

import time

import click

from dsh.cli import output
from dsh.cli.common import db_flag, history
from dsh.cli.following import DRIVER_S, Changes, activity, newest_turn, outcome_of
from dsh.cli.group import db_option
from dsh.core.errors import DshError
from dsh.query.naming import find_session
from dsh.store.database import Database

_NAMED = 5  # sessions in one line


@click.command("wait", short_help="Wait until sessions are idle.")
@click.argument("sessions", metavar="ID...", nargs=-1, required=True)
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up then, with exit code 6.")
@db_option
@click.pass_context
def command(ctx: click.Context, sessions: tuple[str, ...], timeout: float | None) -> int:
    """Wait until sessions are idle: no process works on them, and no message that one would take up is queued.

    The exit code is the one that dsh run would have had for the last turn that a message began; of several sessions it
    is that of the first that did not complete. Each such session has a line on standard error.
    """
    with history(db_flag(ctx)) as db:
        ids = list(dict.fromkeys(find_session(db, typed) for typed in sessions))
        _until_idle(db, ids, timeout)
        code = 0
        for id_ in ids:
            outcome = outcome_of(db, id_, newest_turn(db, id_))
            lines = outcome.lines()
            for line in lines if len(ids) == 1 else (f"session {id_}: {line}" for line in lines[:1]):
                output.note(line)
            code = code or outcome.exit_code()
    return code


def _until_idle(db: Database, ids: list[str], timeout: float | None) -> None:
    """DshError TIME_LIMIT (exit 6) if one is still at work when the time is up."""
    end = None if timeout is None else time.monotonic() + timeout
    changes = Changes(db)
    while busy := [id_ for id_ in ids if not activity(db, id_).idle]:
        left = DRIVER_S if end is None else min(DRIVER_S, end - time.monotonic())
        if left <= 0:
            more = f" and {len(busy) - _NAMED} more" if len(busy) > _NAMED else ""
            raise DshError(f"still at work after {timeout:g} s: {', '.join(busy[:_NAMED])}{more}", code="TIME_LIMIT")
        changes.wait(left)
