"""The `dsh` command group: a table of commands, each imported only when it is named.

Help lists them from the table, so it costs no more than click itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from dsh import __version__

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("dsh.cli.run", "Ask once and print the answer."),
    "search": ("dsh.cli.search", "Find what was said in any session."),
    "sessions": ("dsh.cli.sessions", "List sessions, newest first."),
    "show": ("dsh.cli.show", "Print a session."),
    "title": ("dsh.cli.title", "Show, make or give the title of a session."),
    "session": ("dsh.cli.session", "Rename, pin, hide, repair or delete sessions."),
    "fork": ("dsh.cli.fork", "Begin a session as a copy of another."),
    "ps": ("dsh.cli.ps", "List the sessions that are at work."),
    "attach": ("dsh.cli.attach", "Watch a session work and print its answer."),
    "send": ("dsh.cli.send", "Queue a message for a session: a turn of its own."),
    "steer": ("dsh.cli.steer", "Add a message to the turn at work."),
    "inject": ("dsh.cli.inject", "Add to what the model sees without asking it."),
    "cancel": ("dsh.cli.cancel", "End the turn at work and drop what is queued."),
    "wait": ("dsh.cli.wait", "Wait until sessions are idle."),
    "usage": ("dsh.cli.usage", "Show tokens used and what they cost."),
    "tokens": ("dsh.cli.tokens", "Show how full a session's context is."),
    "export": ("dsh.cli.export", "Write sessions to files."),
    "import": ("dsh.cli.import_", "Take in sessions, also of other agents."),
    "redact": ("dsh.cli.redact", "Take text out of the history for good."),
    "prune": ("dsh.cli.prune", "Make old sessions smaller, or delete them."),
    "sync": ("dsh.cli.sync", "Bring the sessions of several machines together."),
    "sql": ("dsh.cli.sql", "Query the history with SQL."),
    "query": ("dsh.cli.query", "Run a report or a saved statement."),
    "models": ("dsh.cli.models", "List models; install the local one."),
    "plugins": ("dsh.cli.plugins", "List plugins; trust a project's."),
    "config": ("dsh.cli.config", "Read and change settings."),
    "db": ("dsh.cli.db", "Check, save and look after the database."),
    "completion": ("dsh.cli.completion", "Print what makes a shell complete commands."),
    "shell-init": ("dsh.cli.shell_init", "Print what binds a key of a shell to the search."),
    "doctor": ("dsh.cli.doctor", "Check the installation and the database."),
}


class Hinted(click.UsageError):
    """Wrong usage with a way on that is better than --help."""

    def __init__(self, message: str, ctx: click.Context | None, hint: str | None) -> None:
        super().__init__(message, ctx)
        if hint:
            self.hint = hint


class LazyGroup(click.Group):
    """Finds commands in COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS:
            return name, self.get_command(ctx, name), args[1:]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        if " " in name.strip():
            raise Hinted(f"there is no command {name!r}", ctx, 'to ask a question: dsh run "QUESTION"')
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, 2)
        known = f"did you mean {' or '.join(near)}?" if near else f"commands: {', '.join(COMMANDS)}"
        raise Hinted(f"there is no command {name!r}", ctx, known)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _set_db(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(dict)["db"] = value


def db_option(command: Any) -> Any:
    """`--db PATH`, the same before and after the name of a command."""
    return click.option(
        "--db", metavar="PATH", expose_value=False, callback=_set_db, help="Use this database instead of $DSH_DB."
    )(command)


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"dsh {__version__}")
        ctx.exit()


@click.command(
    "dsh",
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Start with: dsh run "QUESTION". Everything is kept: dsh search WORDS finds it again.',
)
@click.option(
    "-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
@db_option
@click.pass_context
def dsh(ctx: click.Context) -> int:
    """dsh asks language models from the shell and keeps every session in one searchable database."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
    return 2


def invoke(arguments: list[str]) -> int:
    """Run a command line and return its exit code; click's errors, ours and signals are raised."""
    try:
        with dsh.make_context("dsh", list(arguments)) as ctx:
            code = dsh.invoke(ctx)
            return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
