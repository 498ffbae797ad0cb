"""`dsh steer`: a message that joins the turn at work before its next request."""

from __future__ import annotations

import click

from dsh.cli.group import db_option
from dsh.cli.send import deliver


@click.command("steer", short_help="Add a message to the turn at work.")
@click.argument("session", metavar="ID")
@click.argument("text", required=False)
@click.option("--wait", is_flag=True, help="Wait for the turn and print the answer, as dsh attach does.")
@db_option
@click.pass_context
def command(ctx: click.Context, session: str, text: str | None, wait: bool) -> int:
    """Add a message to the turn at work.

    The model sees it with its next request, after the answer or the tools at work now. Without a turn at work it is
    queued, as by dsh send. The message's id is printed.

    TEXT is the message; with - it is read from standard input. What is piped in beside it is appended.
    """
    return deliver(ctx, session, text, "steer", wait=wait)
