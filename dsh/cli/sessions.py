"""`dsh sessions`: list sessions, newest first, or as the trees that forks and subagents make of them."""

from __future__ import annotations

from typing import Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, folder, reading
from dsh.cli.group import db_option
from dsh.core.errors import UsageError
from dsh.core.lossless import MAX_INT, dumps
from dsh.query.naming import find_session
from dsh.store import writes
from dsh.store.database import Database, Row

_DEPTH_OF_ALL = 2**31


@click.command("sessions", short_help="List sessions, newest first.")
@click.option("--cwd", metavar="DIR", help="Only sessions of this folder.")
@click.option("--here", is_flag=True, help="Only sessions of the current folder.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, metavar="N", help="List at most N (20).")
@click.option("--all", "with_children", is_flag=True, help="List the sessions of subagents too.")
@click.option("--hidden", is_flag=True, help="List hidden sessions too.")
@click.option("--parent", metavar="ID", help="Only forks and subagents' sessions of this one.")
@click.option("--roots", is_flag=True, help="Only sessions without a parent.")
@click.option("--tree", is_flag=True, help="Show forks and the sessions of subagents below where they came from.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per session.")
@db_option
@click.pass_context
def command(
    ctx: click.Context,
    cwd: str | None,
    here: bool,
    limit: int,
    with_children: bool,
    hidden: bool,
    parent: str | None,
    roots: bool,
    tree: bool,
    as_lines: bool,
) -> int:
    """List sessions: pinned ones first, marked with a star, then those where something happened last.

    A session that has no title shows how its first prompt begins, on a terminal dimmed.

    The status is running (a turn is open and its process is there), open (a process holds the session between turns),
    interrupted (a turn is open and its process is gone), or how the last turn ended.

    With --tree, N counts trees, and each session tells what it is to the one above it: a fork and the event it was
    forked at, or a subagent's session and its depth.

    In a pipe a session is one line: ID, last activity, status, turns, model, folder, title, separated by tabs; with
    --tree its level and what it is come before that.
    """
    if (parent is not None) + roots + tree > 1:
        raise UsageError("--parent, --roots and --tree exclude each other")
    place = folder(cwd, here)
    many = min(limit, MAX_INT - 1)
    try:
        with reading(db_flag(ctx)) as db, db.snapshot():
            if tree:
                sessions, more = _trees(db, place, hidden, many)
            else:
                depth = _DEPTH_OF_ALL if with_children or parent is not None else 0
                ids = _ids(db, parent, roots)
                rows = query.rows(
                    db, "session_list", cwd=place, depth=depth, hidden=int(hidden), ids=ids, limit=many + 1
                )
                sessions, more = [session_object(row) for row in rows[:many]], len(rows) > many
    except NoHistory as error:
        output.note(error.message)
        return 0
    if as_lines:
        for session in sessions:
            output.json_line({k: v for k, v in session.items() if k != "last"})
    else:
        _table(sessions, tree)
    if not sessions:
        output.note("no sessions" + (f" of {place}" if place else ""))
    if more:
        output.note(f"there are more; --limit N shows more than {limit}")
    return 0


def _ids(db: Database, parent: str | None, roots: bool) -> str | None:
    """The only sessions to list, as JSON; None for all. SESSION_NOT_FOUND for a parent that nobody names."""
    if parent is not None:
        found = query.rows(db, "children_named", parent=parent)
        found = found or query.rows(db, "children_named", parent=find_session(db, parent))
    elif roots:
        found = query.rows(db, "sq_roots")
    else:
        return None
    return dumps([row[0] for row in found])


def _trees(db: Database, place: str | None, hidden: bool, limit: int) -> tuple[list[dict[str, Any]], bool]:
    from dsh.query import family

    members, more = family.trees(db, cwd=place, hidden=hidden, limit=limit)
    ids = dumps([member.id for member in members])
    rows = query.rows(db, "session_list", cwd=None, depth=_DEPTH_OF_ALL, hidden=1, ids=ids, limit=max(1, len(members)))
    known = {row[0]: session_object(row) for row in rows}
    return [{**known[m.id], "level": m.level, "last": m.last} for m in members], more


def session_object(row: Row) -> dict[str, Any]:
    """A row of `session_list` as the object that --json prints; absent is null."""
    id_, title, cwd, turns, length, created, updated, open_turn, outcome, parent, model, *more = row
    pinned, hidden, seed_length, depth, forked, titled, *lease = more
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
        "seedLength": seed_length,
        "delegationDepth": depth,
        "fork": bool(forked),
        "pinned": pinned is not None,
        "hidden": hidden is not None,
        "titled": bool(titled),
    }


def relation(session: dict[str, Any]) -> str:
    """What a session is to its parent: `fork:SEQ`, `subagent:DEPTH`, `child`, or nothing for one without a parent."""
    if session["delegationDepth"]:
        return f"subagent:{session['delegationDepth']}"
    if session["fork"]:
        return f"fork:{session['seedLength'] - 1}"
    return "child" if session["parentSession"] else ""


def _table(sessions: list[dict[str, Any]], tree: bool) -> None:
    person = output.is_terminal()
    rows = []
    for s in sessions:
        cells = [
            output.one_line(s["id"]),
            output.age(s["updatedAt"]) if person else output.utc(s["updatedAt"]),
            output.one_line(s["status"]),
            str(s["turns"]),
            output.one_line(s["model"]),
            output.one_line(output.home_shortened(s["cwd"]) if person else s["cwd"]),
            output.title(s["title"]),
        ]
        if person:
            cells[-1] = ("* " if s["pinned"] else "") + ("(hidden) " if s["hidden"] else "") + cells[-1]
        if tree and person:  # the lines take the room of model and folder
            cells = [_branch(s["level"], s["last"]) + cells[0], relation(s), *cells[1:4], cells[-1]]
        elif tree:
            cells = [str(s["level"]), relation(s), *cells]
        rows.append(cells)
    untitled = {number for number, s in enumerate(sessions) if not s["titled"]}
    if rows and tree:
        output.table(["ID", "FROM", "AGE", "STATUS", "TURNS", "TITLE"], rows, right=[4], dim=untitled)
    elif rows:
        output.table(["ID", "AGE", "STATUS", "TURNS", "MODEL", "FOLDER", "TITLE"], rows, right=[3], dim=untitled)


def _branch(level: int, last: tuple[bool, ...]) -> str:
    """The lines that lead to a session of a tree, or for one very far down its level."""
    if not last:
        return f"{level} levels down: " if level else ""
    return "".join("   " if end else "│  " for end in last[:-1]) + ("└─ " if last[-1] else "├─ ")
