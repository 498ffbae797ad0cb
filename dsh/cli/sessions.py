"""`dsh sessions`: list sessions, newest first."""

from __future__ import annotations

from typing import Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, folder, reading
from dsh.cli.group import db_option
from dsh.core.lossless import MAX_INT
from dsh.store import writes
from dsh.store.database import Row

_DEPTH_OF_ALL = 2**31


@click.command("sessions", short_help="List sessions, newest first.")
@click.option("--cwd", metavar="DIR", help="Only sessions of this folder.")
@click.option("--here", is_flag=True, help="Only sessions of the current folder.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, metavar="N", help="List at most N (20).")
@click.option("--all", "with_children", is_flag=True, help="List the sessions of subagents too.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per session.")
@db_option
@click.pass_context
def command(ctx: click.Context, cwd: str | None, here: bool, limit: int, with_children: bool, as_lines: bool) -> int:
    """List sessions, newest first.

    The status is running (a turn is open and its process is there), open (a process holds the session between turns),
    interrupted (a turn is open and its process is gone), or how the last turn ended.

    In a pipe a session is one line: ID, last activity, status, turns, model, folder, title, separated by tabs.
    """
    place = folder(cwd, here)
    try:
        with reading(db_flag(ctx)) as db:
            depth = _DEPTH_OF_ALL if with_children else 0
            rows = query.rows(db, "session_list", cwd=place, depth=depth, limit=min(limit, MAX_INT) + 1)
    except NoHistory as error:
        output.note(error.message)
        return 0
    sessions = [_session(row) for row in rows[:limit]]
    if as_lines:
        for session in sessions:
            output.json_line(session)
    else:
        _table(sessions)
    if not sessions:
        output.note("no sessions" + (f" of {place}" if place else ""))
    if len(rows) > limit:
        output.note(f"there are more; --limit N shows more than {limit}")
    return 0


def _session(row: Row) -> dict[str, Any]:
    """One row as the object that --json prints; absent is null."""
    id_, title, cwd, turns, length, created, updated, open_turn, outcome, parent, model, *lease = row
    driven = lease[0] is not None and writes.is_driven(*lease)
    if open_turn is not None:
        status = "running" if driven else "interrupted"
    else:
        status = "open" if driven else outcome or "empty"
    return {
        "id": id_,
        "title": title,
        "cwd": cwd,
        "turns": turns,
        "events": length,
        "model": model,
        "status": status,
        "createdAt": created,
        "updatedAt": updated,
        "parentSession": parent,
    }


def _table(sessions: list[dict[str, Any]]) -> None:
    person = output.is_terminal()
    rows = [
        [
            output.one_line(s["id"]),
            output.age(s["updatedAt"]) if person else output.utc(s["updatedAt"]),
            output.one_line(s["status"]),
            str(s["turns"]),
            output.one_line(s["model"]),
            output.one_line(output.home_shortened(s["cwd"]) if person else s["cwd"]),
            output.title(s["title"]),
        ]
        for s in sessions
    ]
    if rows:
        output.table(["ID", "AGE", "STATUS", "TURNS", "MODEL", "FOLDER", "TITLE"], rows, right=[3])
