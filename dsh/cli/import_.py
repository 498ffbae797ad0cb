"""`dsh import`: the histories of other tools, and sessions that dsh export has written, into the database."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dsh.cli import output
from dsh.cli.common import db_flag, ending_on_sigterm, is_there, open_database, open_existing
from dsh.cli.group import db_option
from dsh.core.errors import DshError, UsageError
from dsh.kernel import config as configuration

if TYPE_CHECKING:
    from dsh.importing.run import Import, Report
    from dsh.store.database import Database

_DSH = "dsh"
_NAMED = 20  # records and files that are told one by one
_BAR = 20  # columns


@click.command("import", short_help="Take in sessions, also of other agents.")
@click.argument("words", metavar="[TOOL [PATH]... | FILE...]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="The history of every tool that is found.")
@click.option("--as", "as_id", metavar="ID", help="Store the exported session under this id.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what is new.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a tool.")
@db_option
@click.pass_context
def command(
    ctx: click.Context, words: tuple[str, ...], everything: bool, as_id: str | None, dry_run: bool, as_json: bool
) -> int:
    """Take in the history of another agent, or sessions that dsh export has written.

    TOOL is claude, codex, opencode, gemini, goose, crush, pi, llm or aider. Its history is looked for in its usual
    place, or at PATH, a file or folder. It is read and never changed. Importing again adds what is new.

    Records that cannot be read are skipped, counted and named. The exit code is 1 if a whole file could not be taken.

    FILE, or dsh FILE, is what dsh export has written, compressed or not, or what dsh show --json has printed; - is
    standard input. Of a folder that dsh export --to has filled, every session is taken. Their ids are printed. Each
    session is stored whole or not at all: events that break a rule of the log are refused, the first one is named.
    Lines that were cut off at the end are left out, and a turn that was open there is closed. Of several sessions those
    that are here already are passed over, so an import that was interrupted goes on when it is started again; the exit
    code is then 2.
    """
    from dsh.importing.registry import TOOLS

    tool = words[0] if words else None
    if tool is None and not everything:
        raise UsageError("nothing to import", hint=f"dsh import --all, or one of: {', '.join(TOOLS)}, dsh FILE")
    if everything and tool is not None:
        raise UsageError("--all goes without names")
    if tool is not None and tool not in TOOLS:
        files = words[1:] if tool == _DSH else words
        if not files:
            raise UsageError("name the files that dsh export has written")
        _is_there(files[0], list(TOOLS))
        if dry_run or as_json:
            raise UsageError("--dry-run and --json go with the history of another tool")
        from dsh.cli import import_dsh

        return import_dsh.take(ctx, files, as_id)
    if as_id is not None:
        raise UsageError("--as goes with a session that dsh export has written")
    return _histories(ctx, [tool] if tool else list(TOOLS), words[1:], dry=dry_run, as_json=as_json)


def _is_there(file: str, tools: list[str]) -> None:
    """Tell a tool's name that was mistyped from a file that is missing."""
    import difflib

    if not os.path.lexists(file) and (near := difflib.get_close_matches(file, tools, 1)):
        raise UsageError(f"{file} is neither a tool nor a file", hint=f"did you mean {near[0]}?")


def _histories(ctx: click.Context, tools: list[str], paths: tuple[str, ...], *, dry: bool, as_json: bool) -> int:
    from dsh.importing.model import Home
    from dsh.importing.registry import TOOLS
    from dsh.importing.run import Import

    for path in paths:
        if not os.path.exists(path):
            raise UsageError(f"{path} does not exist")
    with _progress() as progress, ending_on_sigterm():
        job = Import(Home(os.path.expanduser("~"), os.environ), progress)
        found = [job.find(tool, [os.path.abspath(path) for path in paths]) for tool in tools]
        if not any(found):
            raise DshError(_nothing(job, TOOLS[tools[0]] if len(tools) == 1 else ""), code="IMPORT_NOTHING")
        reports = job.run(lambda: _database(ctx, dry), dry=dry)
    told = [report for report in reports if report.sources]
    for report in told:
        if as_json:
            output.json_line(_object(report))
        else:
            output.line(_line(report, dry))
    _remarks(told)
    return 1 if any(report.failed for report in told) else 0


def _nothing(job: Import, tool: str) -> str:
    if not tool:
        return "no history of another tool was found"
    places = " or ".join(output.home_shortened(place) for place in job.places)
    return f"no history of {tool} was found in {places}"


def _database(ctx: click.Context, dry: bool) -> Database | None:
    if not dry:
        db = open_database(db_flag(ctx))
        db.hear_signals()
        return db
    path = configuration.database_path(db_flag(ctx))
    return open_existing(path, read_only=True) if is_there(path) else None


def _object(report: Report) -> dict[str, Any]:
    return {
        "tool": report.tool,
        "sources": report.sources,
        "new": report.new,
        "grown": report.grown,
        "unchanged": report.unchanged,
        "messages": report.messages,
        "empty": report.empty,
        "skippedRecords": report.skipped,
        "skipped": [{"path": path, "where": where, "reason": reason} for path, where, reason in report.named],
        "failed": [{"path": path, "reason": reason} for path, reason in report.failed],
        "forked": [{"from": before, "to": after} for before, after in report.moved],
    }


def _line(report: Report, dry: bool) -> str:
    would = "would be " if dry else ""
    parts = [
        f"{report.new:,} {would}new",
        f"{report.grown:,} {would}grown",
        f"{report.unchanged:,} unchanged",
        f"{report.messages:,} messages",
    ]
    if report.skipped:
        parts.append(f"{report.skipped:,} {'record' if report.skipped == 1 else 'records'} skipped")
    if report.failed:
        parts.append(f"{len(report.failed):,} {'file' if len(report.failed) == 1 else 'files'} failed")
    return f"{report.tool}: {', '.join(parts)}"


def _remarks(reports: list[Report]) -> None:
    """What was not taken over as it is, on standard error."""
    lines = [f"{path}:{where}: {reason}" for report in reports for path, where, reason in report.named]
    skipped = sum(report.skipped for report in reports)
    for line in lines[:_NAMED]:
        output.note(f"skipped {line}")
    if skipped > min(len(lines), _NAMED):
        output.note(f"and {skipped - min(len(lines), _NAMED):,} records more")
    failed = [f"{path}: {reason}" for report in reports for path, reason in report.failed]
    for line in failed[:_NAMED]:
        output.note(line)
    if len(failed) > _NAMED:
        output.note(f"and {len(failed) - _NAMED:,} files more")
    for report in reports:
        for before, after in report.moved:
            output.note(f"{before} was gone on with here or rewritten there; what is new went to {after}")


@contextmanager
def _progress() -> Iterator[Any]:
    """Draws how far an import is, on a terminal, ten times a second at most."""
    from dsh.cli.progress import FRAME_S, Progress

    living = Progress(quiet=False)
    drawn = 0.0

    def show(tool: str, done: int, total: int) -> None:
        nonlocal drawn
        now = time.monotonic()
        if living.living and now - drawn >= FRAME_S:
            drawn = now
            full = _BAR * done // max(1, total)
            bar = "█" * full + "░" * (_BAR - full)
            living.doing(f"{tool} {bar} {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
            living.draw()

    try:
        yield show
    finally:
        living.close()
