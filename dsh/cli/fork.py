"""`dsh fork`: a session that begins as a copy of another one."""

from __future__ import annotations

import click

from dsh.cli import output
from dsh.cli.common import db_flag, history
from dsh.cli.group import db_option
from dsh.core.errors import UsageError
from dsh.query.naming import find_place, new_name


@click.command("fork", short_help="Begin a session as a copy of another.")
@click.argument("session", metavar="ID[:SEQ]")
@click.option("--at", type=click.IntRange(min=0), metavar="SEQ", help="Copy up to this event, the end of a turn.")
@click.option("--as", "name", metavar="NEWID", help="Give the new session this id.")
@db_option
@click.pass_context
def command(ctx: click.Context, session: str, at: int | None, name: str | None) -> int:
    """Begin a session as a copy of another, and print its id.

    The copy goes as far as the last turn that has ended, or as far as SEQ says. It shares what it copies, so it takes
    no room and no time, and from then on neither sees what the other does. A session at work can be forked, too.

    To ask something in the copy at once: dsh run --fork ID[:SEQ] "QUESTION".
    """
    from dsh.session import forks

    chosen = new_name("--as", name) if name is not None else None
    with history(db_flag(ctx), read_only=False) as db:
        id_, seq = find_place(db, session)
        if seq is not None and at is not None:
            raise UsageError("--at does not go with ID:SEQ")
        fork = forks.store(db, id_, seq if at is None else at, chosen)
    output.told(fork, f"session {fork} is made")
    return 0
