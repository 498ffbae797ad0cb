"""`dsh usage`: how many tokens were used, and what they cost at today's prices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, load_config, point_in_time, reading
from dsh.cli.group import db_option
from dsh.core.errors import SessionError, UsageError
from dsh.llm.prices import Prices, dollars, how_to_set
from dsh.query.naming import find_session
from dsh.store.database import Database, Row

_GROUPS = ("day", "model", "session", "cwd")
_FIELDS = ("requests", "inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")
_SHOWN = ("requests", "inputTokens", "cacheReadTokens", "cacheWriteTokens", "outputTokens", "reasoningTokens")
_COLUMNS = ("REQUESTS", "INPUT", "READ", "WRITE", "OUTPUT", "THOUGHT", "COST")
_TOTAL = "total"
_UNKNOWN = "unknown"


class _Group:
    """Figures of one group of requests; `cost` is of those whose price is known, `unpriced` names the other models."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.figures = dict.fromkeys(_FIELDS, 0)
        self.cost = 0.0
        self.unpriced: dict[tuple[str, str], None] = {}

    def add(self, row: Row, prices: Prices) -> None:
        _, _, _, provider, model, *figures = row
        for field, figure in zip(_FIELDS, figures, strict=True):
            self.figures[field] += int(figure)
        cost = prices.cost([(provider, model, *(int(f) for f in figures[1:5]))])
        if cost is None:
            self.unpriced[provider or "", model or ""] = None
        else:
            self.cost += cost

    @property
    def tokens(self) -> int:
        return sum(self.figures[field] for field in _FIELDS[1:5])

    def as_object(self, key: str, name: str | None) -> dict[str, Any]:
        priced = {"cost": self.cost} if not self.unpriced else {"cost": None, "pricedCost": self.cost}
        unpriced = ["/".join(model) for model in self.unpriced]
        return {key: name, **self.figures, **priced, **({"unpriced": unpriced} if unpriced else {})}


@click.command("usage", short_help="Show tokens used and what they cost.")
@click.option("--by", type=click.Choice(_GROUPS), default="day", help="Group by day, model, session or folder (day).")
@click.option("--since", metavar="TIME", help="Only requests from then on: 2026-01-31, 2h, 3d, yesterday.")
@click.option("--until", metavar="TIME", help="Only requests up to then.")
@click.option("--session", metavar="ID", help="Only requests of this session; the beginning of its id is enough.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per group, the last is the total.")
@db_option
@click.pass_context
def command(
    ctx: click.Context, by: str, since: str | None, until: str | None, session: str | None, as_lines: bool
) -> int:
    """Show tokens used and what they cost.

    Requests are those that the provider reported tokens for, failed ones too. INPUT is what was not cached, READ and
    WRITE is the provider's cache, THOUGHT is part of OUTPUT. COST is in USD at the prices known now: those of the
    settings prices.PROVIDER/MODEL.FIELD, else built-in ones; local models are free. Days are local ones. What a fork
    shares with its parent counts for the parent. Hidden sessions count; deleted ones are gone.

    In a pipe a group is one line: GROUP, requests, input, cache read, cache write, output, thought, cost, separated by
    tabs. The last line is the total.
    """
    now = int(time.time() * 1000)
    low = None if since is None else point_in_time(since, now, end=False)
    high = None if until is None else point_in_time(until, now, end=True)
    if low is not None and high is not None and low > high:
        raise UsageError("--since is later than --until")
    try:
        with reading(db_flag(ctx)) as db, db.snapshot():
            id_ = None if session is None else find_session(db, session)
            prices = Prices(load_config(db))
            rows = query.rows(db, "usage_report", since=low, until=high, session=id_)
            groups, total = _groups(rows, prices, by)
            titles = _titles(db, groups) if by == "session" and not as_lines else None
    except NoHistory as error:
        if session is not None:
            raise SessionError(error.message, code="SESSION_NOT_FOUND", hint=error.hint) from error
        output.note(error.message)
        return 0
    if as_lines:
        for group in groups:
            output.json_line(group.as_object(by, group.name))
        output.json_line(total.as_object(_TOTAL, None) | {_TOTAL: True})
    elif groups:
        _table(groups, total, by, titles)
    if not groups:
        output.note("no requests that reported tokens")
    for model in list(total.unpriced)[:3]:
        output.note(f"the price of {'/'.join(model)} is not known; {how_to_set(*model)}")
    return 0


def _groups(rows: Iterable[Row], prices: Prices, by: str) -> tuple[list[_Group], _Group]:
    groups: dict[str | None, _Group] = {}
    total = _Group(None)
    for row in rows:
        day, session, cwd, provider, model = row[:5]
        name = {"day": day, "session": session, "cwd": cwd, "model": f"{provider or '?'}/{model or '?'}"}[by]
        groups.setdefault(name, _Group(name)).add(row, prices)
        total.add(row, prices)
    found = list(groups.values())
    if by != "day":  # the most expensive first; days in their order
        found.sort(key=lambda g: (-g.cost, -g.tokens, g.name or ""))
    return found, total


def _titles(db: Database, groups: Sequence[_Group]) -> dict[str | None, str]:
    found = {}
    for group in groups:
        row = query.row(db, "session_title", session=group.name)
        found[group.name] = output.title(row[0] if row else None)
    return found


def _table(groups: Sequence[_Group], total: _Group, by: str, titles: dict[str | None, str] | None) -> None:
    person = output.is_terminal()
    rows = []
    for group in [*groups, total]:
        name = _TOTAL if group is total else group.name or "-"
        name = output.home_shortened(name) if person and by == "cwd" else name
        figures = [f"{group.figures[f]:,}" if person else str(group.figures[f]) for f in _SHOWN]
        title = [] if titles is None else [titles.get(group.name, "")]
        rows.append([output.one_line(name), *figures, _cost(group, person), *title])
    header = ["FOLDER" if by == "cwd" else by.upper(), *_COLUMNS, *([] if titles is None else ["TITLE"])]
    if person:  # what no provider here reports needs no column
        empty = {column for column, field in enumerate(_SHOWN, 1) if not total.figures[field] and column > 2}
        header, *rows = ([c for i, c in enumerate(row) if i not in empty] for row in [header, *rows])
    output.table(header, rows, right=range(1, header.index("COST") + 1), grow=0 if titles is None else -1)


def _cost(group: _Group, person: bool) -> str:
    if not person:
        return _UNKNOWN if group.unpriced else f"{group.cost:.10f}".rstrip("0").rstrip(".")
    if not group.unpriced:
        return dollars(group.cost)
    return f"{dollars(group.cost)} + {_UNKNOWN}" if group.cost else _UNKNOWN
