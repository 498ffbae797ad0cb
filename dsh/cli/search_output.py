"""How `dsh search` prints what it found: for people, for pipes, for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from dsh import query
from dsh.cli import output
from dsh.core.lossless import loads
from dsh.query.search import NEWEST, Hit, Result, as_json
from dsh.query.snippet import tidy
from dsh.store.database import Database

_LINE = 200  # characters of an event of context, in a pipe


class Around(NamedTuple):
    """An event of context: its text is one line."""

    seq: int
    type: str
    time: int
    text: str


def show(db: Database, result: Result, given: Mapping[str, Any]) -> None:
    """Print the hits in the form that was asked for; last, how to ask for more."""
    form = given["form"]
    if form in ("ids", "sessions"):
        end = "\0" if given["null"] else "\n"
        for hit in result.hits:
            output.write((hit.session_id if form == "sessions" else f"{hit.session_id}:{hit.seq}") + end)
        return
    before = given["context"] if given["before"] is None else given["before"]
    after = given["context"] if given["after"] is None else given["after"]
    for index, hit in enumerate(result.hits):
        around = list(_around(db, hit, before or 0, after or 0)) if before or after else []
        if form == "json":
            output.json_line(_object(hit, around, before is not None or after is not None))
        elif output.is_terminal():
            _block(hit, around, first=index == 0)
        else:
            if around and index:
                output.line("--")
            _lines(hit, around)
    if form == "json":
        if result.cursor is not None:
            output.json_line({"nextCursor": result.cursor})
    elif given["cursor"] is not None and not output.is_terminal():
        if result.cursor is not None:
            output.line(result.cursor)
    elif result.cursor is not None and given["sort"] is None and not given["cursor"]:
        output.remark(f"there is more: -n {2 * len(result.hits)}, or --cursor {result.cursor}")
    elif result.cursor is not None:
        output.remark(f"there is more: --cursor {result.cursor}")
    if result.capped:
        output.remark(f"very many hits; the newest {NEWEST} were ranked (--exhaustive ranks all)")


def _around(db: Database, hit: Hit, before: int, after: int) -> Iterator[Around]:
    """What was said before and after a hit. A call is part of its message."""
    from dsh.core.secrets import mask
    from dsh.store.functions import document_text

    place = query.row(db, "around", session=hit.session_id, seq=hit.seq, before=before, after=after)
    if place is None:
        return
    for seq, type_, time, data in query.rows(db, "transcript", session=hit.session_id, low=place[0], high=place[1]):
        if seq == hit.seq or type_ == "tool/call":
            continue
        with suppress(ValueError):  # a hole in the log says nothing (PE-55)
            text = tidy(mask(document_text(type_, loads(data))))
            if text:
                yield Around(seq, type_, time, text)


def _object(hit: Hit, around: list[Around], wanted: bool) -> dict[str, Any]:
    found = as_json(hit)
    if wanted:
        found["before"] = [each._asdict() for each in around if each.seq < hit.seq]
        found["after"] = [each._asdict() for each in around if each.seq > hit.seq]
    return found


def _lines(hit: Hit, around: list[Around]) -> None:
    def line(mark: str, seq: int, time: int, type_: str, text: str) -> None:
        place = f"{hit.session_id}{mark}{seq}"
        cells = (place, output.utc(time), type_, output.title(hit.title), hit.cwd, text)
        output.line("\t".join(map(output.one_line, cells)))

    for each in around:
        if each.seq < hit.seq:
            line("-", each.seq, each.time, each.type, output.fit(each.text, _LINE))
    line(":", hit.seq, hit.time, hit.type, hit.snippet)
    for each in around:
        if each.seq > hit.seq:
            line("-", each.seq, each.time, each.type, output.fit(each.text, _LINE))


def _block(hit: Hit, around: list[Around], *, first: bool) -> None:
    """A hit for people: where and when, then the snippet with its matches marked, and what stands around it."""
    if not first:
        output.line()
    place = output.style(output.one_line(f"{hit.session_id}:{hit.seq}"), output.HEADING)
    title = output.style(output.title(hit.title) or "(no title)", output.BOLD)
    more = f"+{hit.more} more" if hit.more else ""
    facts = (output.local(hit.time), output.one_line(output.home_shortened(hit.cwd)), more)
    output.line(f"{place}  {title}  {output.style('  '.join(filter(None, facts)), output.DIM)}")
    for each in around:
        if each.seq < hit.seq:
            _faint(each)
    text, at = "    ", 0
    for start, end in hit.matches:
        match = output.style(output.printable(hit.snippet[start:end]), output.MATCH)
        text += output.printable(hit.snippet[at:start]) + match
        at = end
    output.line(text + output.printable(hit.snippet[at:]))
    for each in around:
        if each.seq > hit.seq:
            _faint(each)


def _faint(each: Around) -> None:
    text = f"    {each.type.partition('/')[0]}: {output.one_line(each.text)}"
    output.line(output.style(output.fit(text, output.terminal_columns()), output.DIM))
