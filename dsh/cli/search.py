"""`dsh search`: find what was said in any session."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from dsh.cli import output
from dsh.cli.common import db_flag, folder, load_config, point_in_time, reading
from dsh.cli.group import db_option
from dsh.core.errors import UsageError
from dsh.query.naming import find_session
from dsh.query.search import ROLES, Filters, Result, event_types, refresh, search, unindexed
from dsh.query.search_filters import both
from dsh.store.database import Database

# -word is a word to leave out, not a heap of short options; -n5 stays one.
_LEFT_OUT = re.compile(r"-(?!-|[nABC]\d+$)(?:\w\w+|\w*[^\w\s].*|[^\x00-\x7f].*|\w*\s.*|[^hniABClc0])", re.DOTALL)

_MANY = 20_000  # events that take more than a second to index
_ALL = 10**9  # hits


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


_several = partial(click.option, multiple=True)
_events = partial(click.option, type=click.IntRange(min=0), metavar="N")


@click.command("search", cls=_SearchCommand, short_help="Find what was said in any session.")
@click.argument("query", nargs=-1, metavar="QUERY...")
@click.option("-i", "--interactive", is_flag=True, help="Choose on the terminal, with results as you type.")
@click.option("--open", "open_", is_flag=True, help="Show the best hit in $DSH_PAGER, $PAGER or less.")
@click.option("--print", "printed", is_flag=True, help="With -i: print the command for what is chosen.")
@click.option("--session", metavar="ID", help="Show every hit in this session; the beginning of its id is enough.")
@click.option("--here", is_flag=True, help="Only in sessions of the current folder and those below it.")
@click.option("--cwd", metavar="DIR", help="Only in sessions of this folder and those below it.")
@click.option("--exact-cwd", is_flag=True, help="With --here or --cwd: not those below it.")
@click.option("--role", type=click.Choice(list(ROLES)), help="Only what a person, a model or a tool said.")
@_several("--tool", "tools", metavar="NAME", help="Only calls of this tool and their results.")
@_several(
    "--model", "models", metavar="NAME", help="Only in sessions that used this model; a part of its name is enough."
)
@_several(
    "--source",
    "sources",
    metavar="NAME",
    help="Only in sessions imported from this program; dsh for those that were not.",
)
@_several("--type", "types", metavar="T", help="Only user, assistant, tool, ...; may be given again.")
@click.option(
    "--since", metavar="TIME", help="Only what is newer: 2026-01-31, 2026-01-31T09:30, 2h, 3d, 2w, yesterday."
)
@click.option("--until", metavar="TIME", help="Only what is older.")
@click.option("--phrase", is_flag=True, help="Take QUERY for one phrase, in the order that programs get: no operators.")
@click.option("--literal", is_flag=True, help="Take every word as text: no operators, no filters.")
@click.option("--regex", is_flag=True, help="Take QUERY for a regular expression (Python's); case counts.")
@click.option("--sort", type=click.Choice(["relevance", "time"]), help="Best first, or newest first.")
@click.option("--exhaustive", is_flag=True, help="Rank all hits, not only the newest 5000.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Show at most N. [setting search.limit]")
@click.option("--all-hits", is_flag=True, help="Show every event that matches, not only the best of each session.")
@click.option("--cursor", metavar="CURSOR", help='Go on where a page ended; "" is the first page, and names the next.')
@_events("-A", "after", help="Show N events after each hit.")
@_events("-B", "before", help="Show N events before each hit.")
@_events("-C", "context", help="Show N events before and after each hit.")
@click.option("--json", "form", flag_value="json", help="Print JSON Lines: one object per hit.")
@click.option("--ids", "form", flag_value="ids", help="Print SESSION:SEQ of each hit, nothing else.")
@click.option("-l", "form", flag_value="sessions", help="Print the ids of sessions with a hit, nothing else.")
@click.option("-c", "form", flag_value="count", help="Print how many events match.")
@click.option("-0", "null", is_flag=True, help="With --ids or -l: end each with NUL, for xargs -0.")
@db_option
@click.pass_context
def command(ctx: click.Context, /, query: Sequence[str], **given: Any) -> int:
    """Find what was said in any session, best first.

    All words of the QUERY must be in one event; if none has them, in one session. "two words" stand next to each other,
    a NEAR b or NEAR/5 close to each other, -word must not be there, a OR b finds either, conf* any word that begins so.
    role:user, tool:bash, type:T, session:ID, model:M, source:S, cwd:DIR, since:2w, until:TIME narrow it like the
    options; in:title looks into titles. Everything else is literal. Case and accents do not count; parts of names like
    camelCase or snake_case, beginnings of hexadecimal ids, any piece of Chinese, Japanese, Korean or Thai are found.

    In a pipe a hit is one line: SESSION:SEQ, time, type, title, folder, snippet, separated by tabs; events of context
    have SESSION-SEQ. dsh show SESSION:SEQ prints the event. --ids and -l print all there are, newest first, unless -n
    is given. The exit code is 0 if something is found, 1 if nothing, and larger after a failure, as grep's.

    With -i Enter goes on with the session that is chosen; in $(...) it prints its id. Ctrl-R resumes, Ctrl-T goes on
    in a fork, Ctrl-O shows it in the pager, Ctrl-Y prints its id. Tab changes between all sessions, those of this
    folder, and the one that is chosen; Shift-Up and Shift-Down move the preview. dsh shell-init binds it to a key.
    """
    _check(ctx, query, given)
    return _search(ctx, " ".join(query), given)


def _check(ctx: click.Context, query: Sequence[str], given: dict[str, Any]) -> None:
    interactive, open_, form = given["interactive"], given["open_"], given["form"]
    if not query and not interactive:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
    if (interactive and (open_ or form)) or (open_ and form) or (given["printed"] and not interactive):
        raise UsageError("-i, --open and --json exclude each other, and --print goes with -i")
    if interactive and given["phrase"]:
        raise UsageError("-i and --phrase exclude each other")
    if sum(map(bool, (given["phrase"], given["literal"], given["regex"]))) > 1:
        raise UsageError("--phrase, --literal and --regex exclude each other")
    if given["null"] and form not in ("ids", "sessions"):
        raise UsageError("-0 goes with --ids or -l")
    if given["exact_cwd"] and not given["here"] and given["cwd"] is None:
        raise UsageError("--exact-cwd goes with --here or --cwd")


def _filters(db: Database, given: dict[str, Any]) -> Filters:
    now = int(time.time() * 1000)
    low = point_in_time(given["since"], now, end=False) if given["since"] is not None else None
    high = point_in_time(given["until"], now, end=True) if given["until"] is not None else None
    if low is not None and high is not None and low > high:
        raise UsageError("--since is later than --until")
    return Filters(
        session=find_session(db, given["session"]) if given["session"] is not None else None,
        cwd=folder(given["cwd"], given["here"]),
        types=both(event_types(given["types"]), ROLES.get(given["role"], ())),
        since=low,
        until=high,
        exact_cwd=given["exact_cwd"],
        models=given["models"],
        tools=given["tools"],
        sources=given["sources"],
    )


def _search(ctx: click.Context, text: str, given: dict[str, Any]) -> int:
    form, limit = given["form"], given["limit"]
    event_types(given["types"])  # what is wrong with the command line is told before a history is looked for
    with reading(db_flag(ctx), read_only=False) as db:
        filters = _filters(db, given)
        if given["interactive"]:
            from dsh.cli.picking import pick

            how = {name: given[name] for name in ("sort", "exhaustive", "literal", "regex") if given[name]}
            return pick(db, text, filters, db_flag=db_flag(ctx), printed=given["printed"], **how)
        config = load_config(db)
        waiting = unindexed(db)
        if waiting > _MANY:
            output.remark(f"{waiting} events are indexed first")
        missed = refresh(db)
        if missed is not None:
            output.note(f"the newest events are not searched: {missed}")
        if form == "count":
            return _print_count(db, text, filters, given)
        everything = form in ("ids", "sessions") and limit is None and given["cursor"] is None
        limit = 1 if given["open_"] else _ALL if everything else limit or config["search.limit"]
        if given["phrase"]:
            from dsh.cli.search_phrase import phrase

            result = phrase(db, text, filters, given, min(limit, 100), config["search.snippet_chars"])
        else:
            result = search(
                db,
                text,
                filters,
                limit=limit,
                snippet_chars=0 if form in ("ids", "sessions") else config["search.snippet_chars"],
                all_hits=(given["all_hits"] or filters.session is not None) and form != "sessions",
                sort=given["sort"] or ("time" if everything else "relevance"),
                exhaustive=given["exhaustive"] or everything,
                literal=given["literal"],
                regex=given["regex"],
                strict=form is not None and form != "json",
                cursor=given["cursor"],
                counted=form in (None, "json") and not given["open_"],
                progress=output.remark,
            )
        if given["open_"] and result.hits:
            from dsh.cli import pager
            from dsh.cli.searcher import matcher

            hit = result.hits[0]
            pager.show(db, hit.session_id, hit.seq, matcher(hit))
            return 0
        return _print(db, result, given)


def _print_count(db: Database, text: str, filters: Filters, given: dict[str, Any]) -> int:
    from dsh.query.search import count

    if given["phrase"]:
        text = '"' + text.replace('"', " ") + '"'
    found = count(db, text, filters, literal=given["literal"], regex=given["regex"])
    output.line(str(found))
    return 0 if found else 1


def _print(db: Database, result: Result, given: dict[str, Any]) -> int:
    if not result.hits:
        output.note("; ".join(["nothing found", *result.notes]))
        return 1
    from dsh.cli import search_output

    for text in result.notes:
        output.note(text)
    search_output.show(db, result, given)
    return 0
