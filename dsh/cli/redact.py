"""`dsh redact`: take text out of the history for good."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from dsh.cli import output
from dsh.cli.common import db_flag, ending_on_sigterm, history, point_in_time, reading, somebody_to_ask
from dsh.cli.group import db_option
from dsh.core.errors import StoreError, UsageError
from dsh.query.naming import find_session

if TYPE_CHECKING:
    from dsh.session.masking import Masker
    from dsh.session.redaction import Change
    from dsh.store.database import Database

_PATIENCE_MS = 5000


@click.command("redact", short_help="Take text out of the history for good.")
@click.argument("pattern", required=False)
@click.option("--regex", is_flag=True, help="PATTERN is a regular expression.")
@click.option("--secrets", "known", is_flag=True, help="Redact keys and passwords of known shapes.")
@click.option("--session", "sessions", metavar="ID", multiple=True, help="Only in this session; may be given again.")
@click.option("--since", metavar="TIME", help="Only in what is newer: 2026-01-31, 2h, 3d, yesterday.")
@click.option("-n", "--dry-run", is_flag=True, help="Only list what would change.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where nobody can answer.")
@db_option
@click.pass_context
def command(
    ctx: click.Context,
    pattern: str | None,
    regex: bool,
    known: bool,
    sessions: Sequence[str],
    since: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Take text out of the history for good: PATTERN as it is written, wherever it stands in an event.

    [redacted] takes its place in prompts, answers and the pieces they came in, in calls and results; the rest of the
    log stays as it is. Afterwards neither the log nor the search index nor the file holds the text any more. Copies
    that were made before (backups, exports, other machines) still do.

    What a fork shares with the session it came from is redacted for both. A session at work is left as it is, and the
    exit code is 8. At a terminal you are asked first; the exit code is 1 if you say no, or if nothing is found.

    With --dry-run an event is one line: SESSION:SEQ, type, snippet, separated by tabs.
    """
    from dsh.session import redaction

    if (pattern is None) != known:
        raise UsageError("name a PATTERN, or say --secrets" if pattern is None else "--secrets goes without a PATTERN")
    if regex and known:
        raise UsageError("--regex is for a PATTERN")
    after = point_in_time(since, int(time.time() * 1000), end=False) if since is not None else None
    masker = redaction.masker(pattern, regex=regex)
    with (history if sessions else reading)(db_flag(ctx), read_only=dry_run) as db:
        parts = redaction.parts(db, [find_session(db, typed) for typed in sessions] if sessions else None)
        if dry_run or not yes:
            looked = redaction.masker(pattern, regex=regex)
            with db.snapshot():
                found = [each for part in parts for each in redaction.changes(db, part, looked, after)]
            if not found:
                return _nothing(db, looked)
            if dry_run:
                _list(found)
                _rest(db, looked)
                output.remark(f"would redact {looked.summary()}")
                return 0
            if not _agreed(found, looked):
                output.note("nothing was changed")
                return 1
        with ending_on_sigterm():
            db.hear_signals()
            done = list(redaction.redact(db, parts, masker, after))
            if not done:
                return _nothing(db, masker)
            refused = [each for each in done if each.refusal is not None]
            for each in refused:
                output.note(f"session {each.session} stays as it is: {each.refusal}")
            _rest(db, masker)
            if len(refused) < len(done):
                events = sum(each.events for each in done)
                output.note(f"redacted {masker.summary()} in {events} event{'' if events == 1 else 's'}")
                _forget(db)
    return 8 if refused else 0


def _list(found: Iterable[Change]) -> None:
    lines = [(f"{each.session}:{each.seq}", each.type, output.one_line(each.snippet)) for each in found if each.snippet]
    cells = [tuple(map(output.one_line, line)) for line in lines]
    if output.is_terminal():
        output.table(["EVENT", "TYPE", "BECOMES"], cells)
    else:
        for line in cells:
            output.line("\t".join(line))


def _agreed(found: Sequence[Change], masker: Masker) -> bool:
    """What a person at the terminal says; UsageError if there is none."""
    somebody_to_ask("nobody can be asked whether to redact; --yes does without asking")
    sessions = len({each.session for each in found})
    where = f"{len(found)} event{'' if len(found) == 1 else 's'} of {sessions} session{'' if sessions == 1 else 's'}"
    return click.confirm(f"dsh: redact {masker.summary()} in {where} for good?", err=True)


def _nothing(db: Database, masker: Masker) -> int:
    _rest(db, masker)
    output.note("nothing found")
    return 1


def _rest(db: Database, masker: Masker) -> None:
    """What is not redacted and holds it all the same."""
    from dsh.session.redaction import waiting

    if masker.left:
        output.note(f"{masker.left} places stay: names of fields, or what events refer to each other by")
    for session in waiting(db, masker):
        output.note(f"a message that waits holds it, too: dsh cancel {session} drops it")


def _forget(db: Database) -> None:
    """Make index and file forget the text."""
    from dsh.store.rewriting import purge

    still = "the log is redacted, but the file still holds the text"
    way = "dsh db rebuild, then dsh db vacuum"
    try:
        if not purge(db, _PATIENCE_MS):
            output.note("somebody is reading: the file forgets it when nobody is")
    except StoreError as error:
        raise StoreError(f"{still}: {error.message}", code=error.code, hint=way) from error
    except BaseException:  # Ctrl-C, SIGTERM
        output.note(f"{still}: {way}, make it forget")
        raise
