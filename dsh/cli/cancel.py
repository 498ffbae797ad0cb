"""`dsh cancel`: end what a session does, from another shell."""

from __future__ import annotations

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import db_flag, history
from dsh.cli.following import activity, ring
from dsh.cli.group import db_option
from dsh.cli.send import USER
from dsh.core.ids import new_message_id
from dsh.query.naming import find_session
from dsh.store import writes


@click.command("cancel", short_help="End the turn at work and drop what is queued.")
@click.argument("session", metavar="ID")
@click.option("--keep-inbox", is_flag=True, help="Keep what is queued; it goes on after the turn.")
@db_option
@click.pass_context
def command(ctx: click.Context, session: str, keep_inbox: bool) -> int:
    """End the turn at work and drop what is queued.

    The process is told and ends the turn by itself: what was said is kept, and dsh wait ID returns when it is over. If
    nobody works on the session, the messages that wait for it are dropped. It is no failure if there is nothing to end.
    """
    with history(db_flag(ctx), read_only=False) as db:
        id_ = find_session(db, session)
        with db.transaction():  # nobody begins to drive, or stops, between the look and what follows from it
            now = activity(db, id_)
            if now.driven:
                writes.put_message(db, id_, new_message_id(), "cancel", [], USER, meta={"keepInbox": keep_inbox})
            elif not keep_inbox:
                waiting = [row[1] for row in query.rows(db, "inbox_since", session=id_, after=0)]
                writes.drop_messages(db, id_, now.holder, waiting)
        ring(now)
    if now.driven:
        output.remark(f"process {now.pid} was told to end the turn of session {id_}")
    elif now.waiting:
        what = f"{now.waiting} waiting message{'' if now.waiting == 1 else 's'}"
        output.note(f"nobody works on session {id_}: {what} {'kept' if keep_inbox else 'dropped'}")
    else:
        output.note(f"nobody works on session {id_}, and nothing waits for it")
    return 0
