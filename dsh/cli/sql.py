"""`dsh sql`: the history as a database, for reading."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import click

from dsh import query as named
from dsh.cli import output
from dsh.cli.common import db_flag, reading
from dsh.cli.group import db_option
from dsh.core.errors import DshError, StoreError, UsageError
from dsh.store.database import DAMAGED, Database, Row

_LOOK_AHEAD = 200  # rows that decide the widths of the columns
_WIDEST = 60


@click.command("sql", short_help="Query the history with SQL.")
@click.argument("query", required=False)
@click.option("--json", "form", flag_value="json", help="Print JSON Lines: one object per row.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV with a header.")
@db_option
@click.pass_context
def command(ctx: click.Context, query: str | None, form: str | None) -> int:
    """Query the history with SQL.

    QUERY is one SELECT over the views; with - it is read from standard input. Without a QUERY the views and their
    columns are listed. Nothing can be changed. docs/schema.md describes the views.

    Rows are printed as they come: aligned on a terminal, separated by tabs in a pipe (there without a header, and with
    tabs and newlines inside a value as \\t and \\n).
    """
    with reading(db_flag(ctx)) as db:
        if query is None:
            for view, columns in _views(db).items():
                output.line(f"{output.style(view, output.BOLD)}({', '.join(columns)})")
            return 0
        text = query if query != "-" else sys.stdin.read() if sys.stdin is not None else ""
        _check_single(text)
        try:
            names, rows = db.stream(text)
            _print(names, rows, form)
        except DshError as error:
            raise _explained(error, db) from error
    return 0


_PIECE = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<end>;)|.""",
    re.DOTALL,
)


def _check_single(text: str) -> None:
    """Refuse nothing at all, and a second statement, whose rows would come out as if they were the first one's."""
    ended, empty = False, True
    for piece in _PIECE.finditer(text):
        if piece["comment"] or piece[0].isspace():
            continue
        if piece["end"]:
            ended = True
        elif ended and not empty:
            raise UsageError("more than one statement; dsh sql runs one at a time")
        else:
            empty = False
    if empty:
        raise UsageError("the query is empty")


def _views(db: Database) -> dict[str, list[str]]:
    views: dict[str, list[str]] = {}
    for view, column in named.rows(db, "public_views"):
        views.setdefault(view, []).append(column)
    return views


def _explained(error: DshError, db: Database) -> DshError:
    """What SQLite says of a query, as wrong usage; trouble with the file stays what it is."""
    if error.code == "DB_READONLY":
        return UsageError("dsh sql only reads", hint="dsh config, dsh run and stock sqlite3 change things")
    if error.message.startswith("no such") and (drift := db.schema_drift()):
        return StoreError(f"{db.path} is damaged: {drift[0]}", hint=DAMAGED)
    if error.code == "VIEWS_ONLY" or error.message.startswith("no such table"):
        message = error.message.replace("not allowed:", "only the views can be queried:")
        return UsageError(message, hint=f"views: {', '.join(_views(db))}")
    if error.code.startswith("DB_") or error.code == "LOG_CORRUPT":
        return error
    return UsageError(error.message, hint="dsh sql without a query lists views and columns")


def _print(names: Sequence[str], rows: Iterator[Row], form: str | None) -> None:
    if form == "json":
        for row in rows:
            output.json_line({name: _json(value) for name, value in zip(names, row, strict=True)})
    elif form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows([_cell(value) for value in row] for row in rows)
    elif output.is_terminal():
        _aligned(names, rows)
    else:
        for row in rows:
            output.line("\t".join(_cell(value).translate(_ESCAPES) for value in row))


_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value - value != 0:
        return None  # infinity
    return value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value.hex() if isinstance(value, bytes) else str(value)


def _aligned(names: Sequence[str], rows: Iterator[Row]) -> None:
    """Columns as wide as the first rows need; later rows that need more push their own line out, none is held back."""
    first = [_texts(row) for row in islice(rows, _LOOK_AHEAD)]
    widths = [
        min(_WIDEST, max([output.width_of(name), *(output.width_of(row[i]) for row in first)]))
        for i, name in enumerate(names)
    ]
    numeric = [bool(first) and all(_is_number(row[i]) for row in first) for i in range(len(names))]

    def print_row(row: list[str], code: str = "") -> None:
        cells = []
        for cell, width, right in zip(row, widths, numeric, strict=True):
            blank = " " * (width - output.width_of(cell))
            cells.append(blank + cell if right else cell + blank)
        output.line(output.style("  ".join(cells).rstrip(), code) if code else "  ".join(cells).rstrip())

    if names:
        print_row(list(names), output.BOLD)
    for row in first:
        print_row(row)
    for more in rows:
        print_row(_texts(more))


def _texts(row: Row) -> list[str]:
    return [output.fit(output.one_line(_cell(value)), _WIDEST) for value in row]


def _is_number(text: str) -> bool:
    return text == "" or text.replace(".", "", 1).removeprefix("-").isdigit()
