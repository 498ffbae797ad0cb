"""`dsh prune`: make old sessions smaller, or delete them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from dsh.cli import output, sizes
from dsh.cli.common import db_flag, ending_on_sigterm, point_in_time, reading, somebody_to_ask
from dsh.cli.group import db_option
from dsh.core.errors import UsageError
from dsh.core.lossless import dumps

if TYPE_CHECKING:
    from dsh.session.upkeep import Done, Resting

_PATIENCE_MS = 5000
_NAMED = 20  # sessions that are told one by one before they are deleted


@click.command("prune", short_help="Make old sessions smaller, or delete them.")
@click.option("--older-than", metavar="AGE", help="Sessions without activity since: 90d, 6w, 2026-01-31.")
@click.option("--larger-than", metavar="SIZE", help="Sessions with more text of their own: 500k, 20MB.")
@click.option(
    "--keep-pinned/--also-pinned", "keep_pinned", default=True, help="Leave pinned sessions alone (so it is by itself)."
)
@click.option("--delete", "delete_them", is_flag=True, help="Delete the sessions for good instead of thinning them.")
@click.option("-n", "--dry-run", is_flag=True, help="Only tell what would become of which sessions.")
@click.option("-y", "--yes", is_flag=True, help="Delete without asking; needed where nobody can answer.")
@click.option("--vacuum", is_flag=True, help="Give the space back to the file system, too.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per session.")
@db_option
@click.pass_context
def command(
    ctx: click.Context,
    older_than: str | None,
    larger_than: str | None,
    keep_pinned: bool,
    delete_them: bool,
    dry_run: bool,
    yes: bool,
    vacuum: bool,
    as_lines: bool,
) -> int:
    """Make old or large sessions smaller, or delete them. Nothing is ever pruned without being asked.

    What a model streamed is kept twice: in the pieces in which it arrived, and as the message that they became. By
    itself this command leaves out the pieces; every message, call and result stays, is found, shown and gone on with
    as before. With --delete the sessions go for good: at a terminal you are asked first, and the exit code is 1 if you
    say no.

    A session at work is left alone, and one whose events a fork shows that stays. A session that gets smaller or goes
    is one line: ID, events left out or deleted, last activity, title, separated by tabs.
    """
    from dsh.session import upkeep

    if older_than is None and larger_than is None:
        raise UsageError("which sessions?", hint="--older-than 90d, --larger-than 20MB, or both")
    now = int(time.time() * 1000)
    before = point_in_time(older_than, now, end=False) if older_than is not None else None
    larger = sizes.typed("--larger-than", larger_than) if larger_than is not None else None
    with reading(db_flag(ctx), read_only=dry_run) as db:
        chosen = upkeep.resting(db, before=before, larger=larger, pinned=not keep_pinned)
        ids = [each.id for each in chosen]
        if dry_run:
            would = _told(upkeep.foreseen(db, ids, deleting=delete_them), chosen, as_lines)
            events, done = _counted(would)
            output.remark(f"{events} events of {done} sessions would be {'deleted' if delete_them else 'left out'}")
            return 0
        if delete_them and chosen and not yes and not _agreed(chosen):
            output.note("nothing was deleted")
            return 1
        with ending_on_sigterm():
            db.hear_signals()
            change = upkeep.delete if delete_them else upkeep.thin
            events, done = _counted(_told(change(db, ids), chosen, as_lines))
            if vacuum and not db.vacuum(_PATIENCE_MS):
                output.note("somebody is reading: the space is given back when nobody is")
    output.remark(f"{events} events of {done} sessions {'were deleted' if delete_them else 'were left out'}")
    if events and not vacuum:
        output.remark("later sessions use the space; dsh db vacuum gives it back to the file system")
    return 0


def _counted(done: Iterable[Done]) -> tuple[int, int]:
    """Events and sessions."""
    events = [each.events for each in done]
    return sum(events), len(events)


def _agreed(chosen: Sequence[Resting]) -> bool:
    somebody_to_ask("nobody can be asked whether to delete; --yes deletes without asking")
    for each in chosen[:_NAMED]:
        output.note(f"{each.id} {output.title(each.title)}")
    if len(chosen) > _NAMED:
        output.note(f"and {len(chosen) - _NAMED:,} more; --dry-run tells them all")
    return click.confirm(f"dsh: delete {len(chosen)} session{'s' if len(chosen) > 1 else ''} for good?", err=True)


def _told(done: Iterable[Done], chosen: Sequence[Resting], as_lines: bool) -> Iterator[Done]:
    """Say of each session what becomes of it, as it happens; those that something becomes of."""
    known = {each.id: each for each in chosen}
    for each in done:
        if each.refused is not None:
            output.note(f"session {each.id} stays as it is: {each.refused}")
        elif each.events:
            about = known[each.id]
            fields: dict[str, Any] = {"id": each.id, "events": each.events, "bytes": about.bytes}
            fields |= {"updatedAt": about.updated_at, "title": about.title}
            cells = (each.id, str(each.events), output.utc(about.updated_at), output.title(about.title))
            output.done(output.json_text(dumps(fields)) if as_lines else "\t".join(map(output.one_line, cells)))
            yield each
