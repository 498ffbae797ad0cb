"""`dsh ps`: which sessions a process works on, since when, and what it does."""

from __future__ import annotations

from typing import Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, reading
from dsh.cli.group import db_option
from dsh.cli.progress import call_title
from dsh.store import writes
from dsh.store.database import Database, Row

_CHUNKS = {"reasoning-delta": "thinking", "tool-call-delta": "writing a tool call"}
_EVENTS = {"step/start": "asking model", "request/header": "asking model", "llm/retry": "waiting to retry"}


@click.command("ps", short_help="List the sessions that are at work.")
@click.option("--all", "everything", is_flag=True, help="List sessions with messages that nobody takes up, too.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per session.")
@db_option
@click.pass_context
def command(ctx: click.Context, everything: bool, as_lines: bool) -> int:
    """List the sessions that are at work.

    The state is asking model, thinking, streaming, writing a tool call, tool NAME ARGUMENT, waiting to retry, working
    (in between), idle (no turn is open), silent (the process is there without a sign of life, as when it is stopped),
    crashed (the process is gone, dsh run --resume ID goes on), or with --all queued (nobody works on the session, and
    messages wait for the next dsh run --resume ID).

    In a pipe a session is one line: ID, process, start of the process, start of the turn, state, messages that wait,
    model, folder, title, separated by tabs.
    """
    try:
        with reading(db_flag(ctx)) as db, db.snapshot():
            sessions = [_session(db, row) for row in query.rows(db, "sessions_at_work", all=int(everything))]
    except NoHistory as error:
        output.note(error.message)
        return 0
    if as_lines:
        for session in sessions:
            output.json_line(session)
    else:
        _table(sessions)
    if not sessions:
        output.note("nothing is at work")
    return 0


def _session(db: Database, row: Row) -> dict[str, Any]:
    """One session as the object that --json prints; absent is null."""
    id_, title, cwd, model, open_turn, waiting, sent_at, since, *lease = row
    driven = lease[0] is not None and writes.is_driven(*lease)
    now = query.row(db, "activity", session=id_)
    silent = driven and writes.is_silent(lease[-1])
    working = now is not None and driven and not silent
    call = now[3:] if now is not None and working and now[1] in ("tool/call", "tool/result") else None
    return {
        "id": id_,
        "pid": lease[0],
        "since": since,
        "turn": open_turn,
        "turnStartedAt": now[0] if now is not None else None,
        "state": "silent" if silent else _state(driven=driven, leased=lease[0] is not None, now=now),
        "tool": {"name": call[0], "arguments": call[1]} if call else None,
        "queued": waiting,
        "queuedSince": sent_at,
        "model": model,
        "cwd": cwd,
        "title": title,
    }


def _state(*, driven: bool, leased: bool, now: Row | None) -> str:
    if not driven:
        return "crashed" if leased else "queued"
    if now is None:
        return "idle"
    _, last_type, last_chunk, *_ = now
    if last_type == "assistant/chunk":
        return _CHUNKS.get(last_chunk, "streaming")
    return "tool" if last_type in ("tool/call", "tool/result") else _EVENTS.get(last_type, "working")


def _table(sessions: list[dict[str, Any]]) -> None:
    person = output.is_terminal()
    rows = [
        [
            output.one_line(s["id"]),
            str(s["pid"] or ""),
            _time(s["since"], person),
            _time(s["turnStartedAt"], person),
            output.fit(_what(s), 40 if person else 200),
            str(s["queued"]),
            output.one_line(s["model"]),
            output.one_line(output.home_shortened(s["cwd"]) if person else s["cwd"]),
            output.title(s["title"]),
        ]
        for s in sessions
    ]
    if rows:
        output.table(["ID", "PID", "SINCE", "TURN", "STATE", "QUEUED", "MODEL", "FOLDER", "TITLE"], rows, right=[1, 5])


def _time(ms: int | None, person: bool) -> str:
    if ms is None:
        return ""
    return output.age(ms) if person else output.utc(ms)


def _what(session: dict[str, Any]) -> str:
    tool = session["tool"]
    if tool is None:
        return str(session["state"])
    return output.one_line(f"tool {call_title(tool['name'], tool['arguments'])}")
