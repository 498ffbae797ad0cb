"""`dsh show`: print a session, for people or for programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import db_flag, history, load_config
from dsh.cli.group import db_option
from dsh.cli.transcript import Entry, entries, markdown, plain
from dsh.core.errors import UsageError
from dsh.core.lossless import dumps, loads
from dsh.query.naming import find_place
from dsh.session.jsonl import event_text, one_line
from dsh.store.database import Database, Row

_LAST = 2**53 - 1


@click.command("show", short_help="Print a session.")
@click.argument("session", metavar="ID[:SEQ]")
@click.option("--json", "form", flag_value="json", help="Print JSON Lines: the events as logged, with sessionId.")
@click.option("--messages", "form", flag_value="messages", help="Print JSON Lines: the messages that the model sees.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown, nothing left out.")
@click.option("--request", "sent", metavar="TURN.STEP", help="Print the request that a step sent to its model.")
@click.option("--full", is_flag=True, help="Do not shorten tool results, arguments and thinking.")
@click.option("--tail", type=click.IntRange(min=1), metavar="N", help="Only the last N turns.")
@click.option("--from", "low", type=click.IntRange(min=0), metavar="SEQ", help="Begin with this event.")
@click.option("--to", "high", type=click.IntRange(min=0), metavar="SEQ", help="End with this event.")
@db_option
@click.pass_context
def command(
    ctx: click.Context,
    session: str,
    form: str | None,
    sent: str | None,
    full: bool,
    tail: int | None,
    low: int | None,
    high: int | None,
) -> int:
    """Print a session.

    ID may be the beginning of an id; - or last is the newest session. ID:SEQ prints one event, as dsh search names it.
    """
    if low is not None and high is not None and low > high:
        raise UsageError("--from is later than --to")
    if tail is not None and low is not None:
        raise UsageError("--tail and --from exclude each other")
    if sent is not None and (form, low, high, tail) != (None, None, None, None):
        raise UsageError("--request goes with no other form and no range")
    with history(db_flag(ctx)) as db, db.snapshot():
        id_, seq = find_place(db, session)
        if seq is not None:
            if (low, high, tail) != (None, None, None):
                raise UsageError("--from, --to and --tail do not go with ID:SEQ")
            low = high = seq
        if tail is not None:
            found = query.row(db, "tail_start", session=id_, turns=min(tail, _LAST))
            low = found[0] if found else None
        _check_range(db, id_, seq)
        if sent is not None:
            from dsh.cli.sent import body

            output.line(output.json_text(body(db, id_, sent, load_config(db))))
            return 0
        first, last = min(low or 0, _LAST), _LAST if high is None else min(high, _LAST)
        _print(db, id_, form, first, last, full=full or seq is not None)
    return 0


def _check_range(db: Database, id_: str, seq: int | None) -> None:
    state = query.row(db, "session_state", session=id_)
    length = state[9] if state else 0
    if seq is not None and seq >= length:
        raise UsageError(f"session {id_} has no event {seq}; its last is {length - 1}")


def _print(db: Database, id_: str, form: str | None, low: int, high: int, *, full: bool) -> None:
    if form == "json":
        _, rows = db.stream(query.sql("events_between"), {"session": id_, "low": low, "high": high})
        for row in rows:
            output.line(output.json_text(event_line(id_, row)))
    elif form == "messages":
        _, rows = db.stream(query.sql("messages_since"), {"session": id_, "seq": low})
        for seq, role, content, provenance in rows:
            if seq <= high:
                more = f',"provenance":{one_line(provenance)}' if provenance is not None else ""
                line = f'{{"role":{dumps(role)},"content":{one_line(content)}{more}}}'
                output.line(output.json_text(line))
    elif form == "markdown":
        output.write(_markdown_head(db, id_))
        for entry in _entries(db, id_, low, high):
            output.write(markdown(_safe(entry)))
    else:
        _transcript(db, id_, low, high, full=full)


def event_line(session: str, row: Row) -> str:
    """An event as one line of JSON, its data byte for byte as logged."""
    return f'{event_text(row)[:-1]},"sessionId":{dumps(session)}}}'


def _entries(db: Database, id_: str, low: int, high: int) -> Iterator[Entry]:
    calls: dict[str, str] = {}
    if low > 0:  # names of tools whose calls lie before the range
        for row in query.rows(db, "call_names", session=id_, below=low):
            calls[row[0]] = row[1]
    _, rows = db.stream(query.sql("transcript"), {"session": id_, "low": low, "high": high})
    for seq, type_, time, data in rows:
        value = None
        with suppress(ValueError):  # a hole in the log says nothing (PE-55)
            value = loads(data)
        yield from entries(seq, type_, time, value, calls)


def _transcript(db: Database, id_: str, low: int, high: int, *, full: bool) -> None:
    single = low == high
    if not single:
        output.write(_head(db, id_))
    nothing = True
    for entry in _entries(db, id_, low, high):
        if entry.kind == "turn":
            output.line(output.style(f"── {entry.label} ── {output.local(entry.time)}", output.DIM) + "\n")
            nothing = False
            continue
        text = plain(_safe(entry), full=full, heading=_heading, faint=_faint)
        output.write(text)
        nothing = nothing and not text
    if single and nothing:
        for row in query.rows(db, "events_between", session=id_, low=low, high=high):
            output.line(output.shown(event_line(id_, row)))


def _safe(entry: Entry) -> Entry:
    """What may go to standard output; done before colours are put around it."""
    return replace(entry, label=output.one_line(entry.label), text=output.shown(entry.text))


def _heading(text: str) -> str:
    return output.style(text, output.HEADING)


def _faint(text: str) -> str:
    return output.style(text, output.DIM)


def _facts(db: Database, id_: str) -> tuple[str, list[tuple[str, str]]]:
    """The title, and what the heads of both readable forms tell."""
    state = query.row(db, "session_state", session=id_)
    titled = query.row(db, "session_title", session=id_)
    header = query.row(db, "header_in_force", session=id_)
    assert state is not None
    config = loads(header[1]).get("config", {}) if header else {}
    model = "/".join(str(config[k]) for k in ("provider", "model") if k in config)
    facts = [
        ("session", id_),
        ("folder", state[3] or ""),
        ("model", model),
        ("created", output.utc(state[2])),
        ("parent", state[4] or ""),
    ]
    return output.title(titled[0] if titled else None) or "(no title)", [(k, output.one_line(v)) for k, v in facts if v]


def _head(db: Database, id_: str) -> str:
    title, facts = _facts(db, id_)
    return output.style(title, output.BOLD) + "\n" + output.style(" · ".join(v for _, v in facts), output.DIM) + "\n\n"


def _markdown_head(db: Database, id_: str) -> str:
    title, facts = _facts(db, id_)
    return f"# {title}\n\n" + "".join(f"- {key}: `{value}`\n" for key, value in facts) + "\n"
