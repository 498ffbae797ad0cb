"""`dsh search`: find what was said in any session."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import click

from dsh.cli import output
from dsh.cli.common import db_flag, folder, load_config, point_in_time, reading
from dsh.cli.group import db_option
from dsh.core.errors import UsageError
from dsh.query.naming import find_session
from dsh.query.search import NEWEST, Filters, Hit, Result, as_json, event_types, refresh, search, unindexed

# -word is a word to leave out, not a heap of short options; -n5 stays one.
_LEFT_OUT = re.compile(r"-(?!n\d|-)(?:\w\w+|\w*[^\w\s].*|[^\x00-\x7f].*|[^hn])")


_MANY = 20_000  # events that take more than a second to index


class _SearchCommand(click.Command):
    """Takes `-word` for a word of the query."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, rest = args[:at], args[at + 1 :]
        else:
            rest = []
        takes_value = {o for p in self.params if isinstance(p, click.Option) and not p.is_flag for o in p.opts}
        options: list[str] = []
        words: list[str] = []
        for index, arg in enumerate(args):
            value = index > 0 and args[index - 1] in takes_value
            (words if not value and _LEFT_OUT.fullmatch(arg) else options).append(arg)
        return super().parse_args(ctx, [*options, "--", *words, *rest] if words or rest else options)


@click.command("search", cls=_SearchCommand, short_help="Find what was said in any session.")
@click.argument("query", nargs=-1, required=True)
@click.option("--session", metavar="ID", help="Show every hit in this session; the beginning of its id is enough.")
@click.option("--cwd", metavar="DIR", help="Only in sessions of this folder.")
@click.option("--here", is_flag=True, help="Only in sessions of the current folder.")
@click.option(
    "--type", "types", multiple=True, metavar="T", help="Only user, assistant, tool, ...; may be given again."
)
@click.option("--since", metavar="TIME", help="Only what is newer: 2026-01-31, 2026-01-31T09:30, 2h, 3d, yesterday.")
@click.option("--until", metavar="TIME", help="Only what is older.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Show at most N. [setting search.limit]")
@click.option("--all-hits", is_flag=True, help="Show every event that matches, not only the best of each session.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per hit.")
@db_option
@click.pass_context
def command(
    ctx: click.Context,
    query: Sequence[str],
    session: str | None,
    cwd: str | None,
    here: bool,
    types: Sequence[str],
    since: str | None,
    until: str | None,
    limit: int | None,
    all_hits: bool,
    as_lines: bool,
) -> int:
    """Find what was said in any session, best first.

    All words of the QUERY must be in one event. "two words" stand next to each other, -word must not be there, a OR b
    finds either, conf* any word that begins so; everything else is literal. Case and accents do not count.

    In a pipe a hit is one line: SESSION:SEQ, time, type, title, folder, snippet, separated by tabs. dsh show
    SESSION:SEQ prints the event. The exit code is 1 if nothing is found.
    """
    now = int(time.time() * 1000)
    low = point_in_time(since, now, end=False) if since is not None else None
    high = point_in_time(until, now, end=True) if until is not None else None
    if low is not None and high is not None and low > high:
        raise UsageError("--since is later than --until")
    kinds = event_types(types)
    place = folder(cwd, here)
    with reading(db_flag(ctx), read_only=False) as db:
        config = load_config(db)
        waiting = unindexed(db)
        if waiting > _MANY:
            output.remark(f"{waiting} events are indexed first")
        missed = refresh(db)
        if missed is not None:
            output.note(f"the newest events are not searched: {missed}")
        filters = Filters(find_session(db, session) if session is not None else None, place, kinds, low, high)
        result = search(
            db,
            " ".join(query),
            filters,
            limit=limit or config["search.limit"],
            snippet_chars=config["search.snippet_chars"],
            all_hits=all_hits or session is not None,
        )
    return _print(result, as_lines)


def _print(result: Result, as_lines: bool) -> int:
    if not result.hits:
        output.note("; ".join(["nothing found", *result.notes]))
        return 1
    for text in result.notes:
        output.note(text)
    for index, hit in enumerate(result.hits):
        if as_lines:
            output.json_line(as_json(hit))
        elif output.is_terminal():
            _block(hit, first=index == 0)
        else:
            place = f"{hit.session_id}:{hit.seq}"
            cells = (place, output.utc(hit.time), hit.type, output.title(hit.title), hit.cwd, hit.snippet)
            output.line("\t".join(map(output.one_line, cells)))
    if result.capped:
        output.remark(f"very many hits; the newest {NEWEST} were ranked")
    return 0


def _block(hit: Hit, *, first: bool) -> None:
    """A hit for people: where and when, then the snippet with its matches marked."""
    if not first:
        output.line()
    place = output.style(output.one_line(f"{hit.session_id}:{hit.seq}"), output.HEADING)
    title = output.style(output.title(hit.title) or "(no title)", output.BOLD)
    about = "  ".join(filter(None, (output.local(hit.time), output.one_line(output.home_shortened(hit.cwd)))))
    output.line(f"{place}  {title}  {output.style(about, output.DIM)}")
    text, at = "    ", 0
    for start, end in hit.matches:
        match = output.style(output.printable(hit.snippet[start:end]), output.MATCH)
        text += output.printable(hit.snippet[at:start]) + match
        at = end
    output.line(text + output.printable(hit.snippet[at:]))
