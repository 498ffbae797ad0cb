"""`dsh show`: print a session, for people or for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from dsh.session.render.facts import facts_of
from dsh.store.database import Database, Row

_LAST = 2**53 - 1


@click.command("show", short_help="Print a session.")
@click.argument("session", metavar="ID[:SEQ]")
@click.option("--json", "form", flag_value="json", help="Print JSON Lines: the events as logged, with sessionId.")
@click.option("--messages", "form", flag_value="messages", help="Print JSON Lines: the messages that the model sees.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown, nothing left out.")
@click.option("--request", "sent", metavar="TURN.STEP", help="Print the request that a step sent to its model.")
@click.option("--full", is_flag=True, help="Do not shorten tool results, arguments and thinking.")
@click.option("-C", "--context", type=click.IntRange(min=0), metavar="N", help="With SEQ: N events before and after.")
@click.option("--trace", "traced", is_flag=True, help="With SEQ: what the event replaced, came from, and led to.")
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
    context: int | None,
    traced: bool,
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
        elif context is not None or traced:
            raise UsageError(f"{'--trace' if traced else '--context'} goes with ID:SEQ")
        if tail is not None:
            found = query.row(db, "tail_start", session=id_, turns=min(tail, _LAST))
            low = found[0] if found else None
        _check_range(db, id_, seq)
        if seq is not None and not context:
            _check_there(db, id_, seq)
        if traced and seq is not None:
            if form not in (None, "json") or sent is not None or context is not None:
                raise UsageError("--trace goes with no other form than --json")
            from dsh.cli.traced import show

            show(db, id_, seq, as_json=form == "json")
            return 0
        if sent is not None:
            from dsh.cli.sent import body

            output.line(output.json_text(body(db, id_, sent, load_config(db))))
            return 0
        first, last = min(low or 0, _LAST), _LAST if high is None else min(high, _LAST)
        if seq is not None and context:
            first, last = around(db, id_, seq, context, context)[:2]
            if form is None:
                _transcript(db, id_, first, last, full=full, at=place(db, id_, seq))
                return 0
        _print(db, id_, form, first, last, full=full or seq is not None)
    return 0


def around(db: Database, id_: str, seq: int, before: int, after: int) -> tuple[int, int, int | None]:
    """The seqs to read around an event, and that of the event where it is read itself (a call in its message)."""
    found = query.row(db, "around", session=id_, seq=seq, before=before, after=after)
    assert found is not None
    return found[0], found[1], found[2]


def place(db: Database, id_: str, seq: int) -> int | None:
    """Where an event is read: its seq, a call's message's, or that of what stands before."""
    return around(db, id_, seq, 0, 0)[2]


def _check_range(db: Database, id_: str, seq: int | None) -> None:
    state = query.row(db, "session_state", session=id_)
    length = state[9] if state else 0
    if seq is not None and seq >= length:
        raise UsageError(f"session {id_} has no event {seq}; its last is {length - 1}")


def _check_there(db: Database, id_: str, seq: int) -> None:
    over = query.row(db, "event_over", session=id_, seq=seq)
    if over is not None and over[0] < seq < over[0] + over[1]:
        hint = f"the message that it was a piece of: dsh show {id_}:{seq} -C 1"
        raise UsageError(f"event {seq} of session {id_} was left out by dsh prune", hint=hint)


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
        for entry in read(db, id_, low, high):
            output.write(markdown(_safe(entry, output.shown)))
    else:
        _transcript(db, id_, low, high, full=full)


def event_line(session: str, row: Row) -> str:
    """An event as one line of JSON, its data byte for byte as logged."""
    return f'{event_text(row)[:-1]},"sessionId":{dumps(session)}}}'


def read(db: Database, id_: str, low: int, high: int) -> Iterator[Entry]:
    """The entries of a range of a session's log, both seqs included."""
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


Style = Callable[[str, str], str]


def pieces(
    db: Database,
    id_: str,
    low: int,
    high: int,
    *,
    full: bool = False,
    at: int | None = None,
    mark: Callable[[str], str] = str,
    style: Style = output.style,
    safe: Callable[[str], str] = output.shown,
) -> Iterator[tuple[int, str]]:
    """The transcript piece by piece, each with its event's seq; every piece ends in a newline.

    The event `at` is shown in full, its name marked, its text as `mark` returns it. `style` puts colours around a text,
    `safe` is what makes stored text fit for where it goes.
    """
    for entry in read(db, id_, low, high):
        if entry.kind == "turn":
            yield entry.seq, style(f"── {entry.label} ── {output.local(entry.time)}", output.DIM) + "\n\n"
            continue
        found = entry.seq == at
        heading, faint = _styled(style, output.MATCH if found else output.HEADING), _styled(style, output.DIM)
        shown = _safe(entry, safe)
        if found:
            shown, faint = replace(shown, text=mark(shown.text)), str
        yield entry.seq, plain(shown, full=full or found, heading=heading, faint=faint)


def _styled(style: Style, code: str) -> Callable[[str], str]:
    return lambda text: style(text, code)


def _transcript(db: Database, id_: str, low: int, high: int, *, full: bool, at: int | None = None) -> None:
    single = low == high
    if not single:
        output.write(head(db, id_))
    nothing = True
    for _, text in pieces(db, id_, low, high, full=full, at=at):
        output.write(text)
        nothing = nothing and not text
    if single and nothing:
        for row in query.rows(db, "events_between", session=id_, low=low, high=high):
            output.line(output.shown(event_line(id_, row)))


def _safe(entry: Entry, safe: Callable[[str], str]) -> Entry:
    """What may go where it goes; done before colours are put around it."""
    return replace(entry, label=output.one_line(entry.label), text=safe(entry.text))


def _facts(db: Database, id_: str) -> tuple[str, list[tuple[str, str]]]:
    """The title, and what the heads of both readable forms tell."""
    facts = facts_of(db, id_, usage=False)
    return output.title(facts.title) or "(no title)", [(name, output.one_line(value)) for name, value in facts.known]


def head(db: Database, id_: str, style: Style = output.style) -> str:
    """What stands above a transcript."""
    title, facts = _facts(db, id_)
    return style(title, output.BOLD) + "\n" + style(" · ".join(v for _, v in facts), output.DIM) + "\n\n"


def _markdown_head(db: Database, id_: str) -> str:
    title, facts = _facts(db, id_)
    return f"# {title}\n\n" + "".join(f"- {key}: `{value}`\n" for key, value in facts) + "\n"
