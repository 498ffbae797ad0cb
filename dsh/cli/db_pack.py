"""`dsh db pack`: compress the texts of sessions that rest."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import db_flag, ending_on_sigterm, history, point_in_time, reading
from dsh.cli.group import db_option
from dsh.core.errors import UsageError
from dsh.core.lossless import dumps
from dsh.query.naming import find_session

_PATIENCE_MS = 5000


@click.command("pack", short_help="Compress the texts of old sessions.")
@click.argument("sessions", metavar="[ID...]", nargs=-1)
@click.option("--older-than", metavar="AGE", help="Sessions without activity since: 30d, 6w, 2026-01-31.")
@click.option("--all", "all_of_them", is_flag=True, help="Every session that nobody drives.")
@click.option("--unpack", is_flag=True, help="Write packed texts out again.")
@click.option("--vacuum", is_flag=True, help="Give the space back to the file system, too.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per session.")
@db_option
@click.pass_context
def command(
    ctx: click.Context,
    sessions: Sequence[str],
    older_than: str | None,
    all_of_them: bool,
    unpack: bool,
    vacuum: bool,
    as_lines: bool,
) -> int:
    """Compress the texts of sessions, which stay what they are: found, shown, exported and gone on with as before.

    Only a stock sqlite3 shell sees the difference: there packed texts are empty. Nothing is packed by itself. A session
    at work is left as it is; if it was named, the exit code is 8.

    What was packed is one line: ID, events, separated by a tab.
    """
    from dsh.session import upkeep
    from dsh.store import rewriting

    if (bool(sessions) + (older_than is not None) + all_of_them) != 1:
        raise UsageError("which sessions?", hint="some by ID, or --older-than 30d, or --all")
    before = point_in_time(older_than, int(time.time() * 1000), end=False) if older_than is not None else None
    count = code = 0
    with (history if sessions else reading)(db_flag(ctx), read_only=False) as db:
        ids = [find_session(db, each) for each in sessions]
        if not ids:
            ids = [each.id for each in upkeep.resting(db, before=before, larger=None, pinned=True)]
        with ending_on_sigterm():
            db.hear_signals()
            for done in (upkeep.unpack if unpack else upkeep.pack)(db, ids):
                if done.refused is not None:
                    output.note(f"session {done.id} stays as it is: {done.refused}")
                    code = 8
                elif done.events:
                    count += 1
                    if as_lines:
                        output.done(output.json_text(dumps({"id": done.id, "events": done.events})))
                    else:
                        output.done(f"{output.one_line(done.id)}\t{done.events}")
            if count and not unpack:
                rewriting.merge_index(db)
            if vacuum and not db.vacuum(_PATIENCE_MS):
                output.note("somebody is reading: the space is given back when nobody is")
        held = query.row(db, "packed_bytes")
    output.remark(f"{count} sessions {'unpacked' if unpack else 'packed'}; {held[0] if held else 0} are packed now")
    if count and not vacuum:
        output.remark("later sessions use the space; dsh db vacuum gives it back to the file system")
    return code
