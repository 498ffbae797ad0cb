"""`dsh run`: one prompt, one turn, the answer on standard output."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from dsh.cli.group import db_option
from dsh.core.errors import UsageError

if TYPE_CHECKING:
    from dsh.core.messages import Block


@click.command("run", short_help="Ask once and print the answer.")
@click.argument("prompt", required=False)
@click.option("-m", "--model", metavar="MODEL", help="Model to ask; NAME/MODEL also chooses the provider.")
@click.option("--provider", metavar="NAME", help="Provider to ask; dsh models lists them.")
@click.option("--base-url", metavar="URL", help="Ask the OpenAI-compatible server at this URL.")
@click.option("--effort", metavar="ID", help="Reasoning effort, one of those the model offers.")
@click.option("--system", metavar="TEXT", help="Text for the system prompt of this run.")
@click.option("--cwd", metavar="DIR", help="Work in this folder instead of the current one.")
@click.option(
    "--tools",
    metavar="NAMES",
    help="Offer only these tools, as read,grep; with -NAME all but these; all offers every one.",
)
@click.option("--no-tools", is_flag=True, help="Offer no tools.")
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="End the turn after N model requests.")
@click.option("--max-cost", type=click.FloatRange(min=0, min_open=True), metavar="USD", help="Spend at most that much.")
@click.option("--max-tokens-total", type=click.IntRange(min=1), metavar="N", help="Use at most N tokens in all.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Limit the tokens of one model answer.")
@click.option("--temperature", type=float, metavar="T", help="Sampling temperature.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="End the run then.")
@click.option("-c", "--continue", "go_on", is_flag=True, help="Go on with the newest session of this folder.")
@click.option("-r", "--resume", metavar="ID", help="Go on with this session; the beginning of its id is enough.")
@click.option(
    "--fork",
    metavar="ID[:SEQ]",
    help="Go on in a copy of this session, as of event SEQ or its last whole turn; the session itself stays as it is.",
)
@click.option("--session", metavar="NAME", help="Go on with the session of exactly this id, or begin it.")
@click.option(
    "--ref",
    metavar="ID[=LABEL]",
    multiple=True,
    help="Quote this session before the prompt, as LABEL; may be given again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON Lines; the last line is the result.")
@click.option("--mock", metavar="FILE", help="Play recorded answers instead of asking a provider.")
@click.option("--title-model", metavar="P/M", help="Have this model title the session; same is the run's, off none.")
@click.option("-d", "--detach", is_flag=True, help="Go on in the background; print the session's id once it works.")
@click.option("-q", "--quiet", is_flag=True, help="Keep standard error silent unless the run fails.")
@db_option
@click.pass_context
def command(ctx: click.Context, /, prompt: str | None, detach: bool, **options: object) -> int:
    """Ask once and print the answer.

    PROMPT is the question; with - it is read from standard input. What is piped in beside a prompt is appended to it.
    Progress goes to standard error. The session is kept: dsh search finds it, dsh run -c goes on with it.

    A run can be talked to from another shell: dsh ps, dsh attach, dsh steer, dsh send, dsh cancel, dsh wait.
    """
    from dsh.cli.common import db_flag
    from dsh.cli.piped import read_prompt

    def go(content: Callable[[], list[Block]], begun: Callable[[str], None] | None = None) -> int:
        from dsh.core import lean

        lean.load_trio()  # before anything imports it whole
        from dsh.cli.choice import Options
        from dsh.cli.headless import run

        return run(Options(**options, db=db_flag(ctx)), content, begun)  # type: ignore[arg-type]

    if not detach:
        return go(lambda: read_prompt(prompt))
    if options["as_json"]:
        raise UsageError("--json and --detach exclude each other", hint="dsh attach --json ID prints the events")
    from dsh.cli.detach import run_detached

    return run_detached(read_prompt(prompt), go)
