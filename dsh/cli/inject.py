"""`dsh inject`: something for the model to see with the next request, without making one."""

from __future__ import annotations

import click

from dsh.cli.group import db_option
from dsh.cli.send import deliver


@click.command("inject", short_help="Add to what the model sees without asking it.")
@click.argument("session", metavar="ID")
@click.argument("text", required=False)
@db_option
@click.pass_context
def command(ctx: click.Context, session: str, text: str | None) -> int:
    """Add to what the model sees without asking it.

    The text joins the conversation at once, or when the tools at work are done; the model sees it with its next
    request, whatever that is for. The message's id is printed.

    TEXT is what to add; with - it is read from standard input. What is piped in beside it is appended.
    """
    return deliver(ctx, session, text, "inject")
