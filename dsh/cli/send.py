"""`dsh send`, and what `dsh steer` and `dsh inject` share with it: a message for a session, from any shell.

The message is a row in the session's inbox. Whether somebody drives the session is read in the same transaction, and
a driver gives its lease back in one in which it has looked for messages: so either the driver takes this one up, or
the command says that it waits.
"""

from __future__ import annotations

import click

from dsh.cli import output
from dsh.cli.common import db_flag, history
from dsh.cli.following import activity, ring
from dsh.cli.group import db_option
from dsh.cli.piped import read_prompt
from dsh.core.errors import UsageError
from dsh.core.ids import new_message_id
from dsh.core.messages import Block, HookContext
from dsh.query.naming import find_session
from dsh.store import writes
from dsh.store.database import Database

USER = {"kind": "user"}  # who types a command is a person


@click.command("send", short_help="Queue a message for a session: a turn of its own.")
@click.argument("session", metavar="ID")
@click.argument("text", required=False)
@click.option("--queue", is_flag=True, help="Let it wait until another message starts a turn.")
@click.option("--wait", is_flag=True, help="Wait for its turn and print the answer, as dsh attach does.")
@db_option
@click.pass_context
def command(ctx: click.Context, session: str, text: str | None, queue: bool, wait: bool) -> int:
    """Queue a message for a session: a turn of its own.

    The process that works on the session takes it up after the turn at work and what was queued before. If there is
    none the message waits for the next dsh run --resume ID. The message's id is printed.

    TEXT is the message; with - it is read from standard input. What is piped in beside it is appended.
    """
    if queue and wait:
        raise UsageError("--queue and --wait exclude each other")
    return deliver(ctx, session, text, "queue" if queue else "followup", wait=wait)


def deliver(ctx: click.Context, typed: str, text: str | None, route: str, *, wait: bool = False) -> int:
    """Put a message into the inbox of a session, wake its driver, print the message's id; the exit code."""
    with history(db_flag(ctx), read_only=False) as db:
        session = find_session(db, typed)
        command = str(ctx.command.name)
        content = read_prompt(text, what="message", hint=f'dsh {command} {session} "TEXT", or pipe one in')
        contexts: list[HookContext] = []
        if route != "inject" and "dsh-session:" in content[0]["text"]:
            content, contexts = _quoting(db, session, content)
        message = new_message_id()
        with db.transaction():
            writes.put_message(
                db, session, message, route, content, USER, contexts, meta={"via": command, "message": message}
            )
            now = activity(db, session)
        ring(now)
        if not now.driven:
            output.note(f"nobody works on session {session}: the message waits for the next dsh run --resume {session}")
        elif wait:
            from dsh.cli.attach import reply_to

            return reply_to(db, session, message, now.length)
        output.told(message, f"the message is in the inbox of session {session}")
    return 1 if wait else 0


def _quoting(db: Database, session: str, content: list[Block]) -> tuple[list[Block], list[HookContext]]:
    """The message, and what goes before it of the sessions that it mentions."""
    from dsh.capabilities.references.service import prepare_stored
    from dsh.session.references import mentions

    text, mentioned = mentions(content[0]["text"])
    first: Block = {**content[0], "text": text}
    return prepare_stored(db, session, [first, *content[1:]], mentioned)
