"""Rows of a query on a screen or in a pipe: an aligned table, tab-separated lines, CSV, JSON.

Rows are printed as they come. A table takes the widths of its columns from the first of them; on a terminal what is
wider is cut, and rows that have more columns than fit are shown one value a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import click

from dsh.cli import output
from dsh.store.database import Row

TABLE, TABS, CSV, JSON, JSONL = "table", "tabs", "csv", "json", "jsonl"

_LOOK_AHEAD = 200  # rows that decide the widths of the columns
_NARROWEST = 8  # columns of a terminal that a column of a table gets at least, if it needs them
_GAP = "  "
_NULL = "∅"


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that prints rows: `form` and `header`."""
    for option in (
        click.option("--no-header", "header", flag_value=False, default=True, help="Leave out the names of columns."),
        click.option("--jsonl", "form", flag_value=JSONL, help="Print JSON Lines: one object per row."),
        click.option("--json", "form", flag_value=JSON, help="Print one JSON array of objects."),
        click.option("--csv", "form", flag_value=CSV, help="Print CSV with a header."),
        click.option("--table", "form", flag_value=TABLE, help="Print an aligned table, also in a pipe."),
    ):
        command = option(command)
    return command


def print_rows(names: Sequence[str], rows: Iterable[Row], form: str | None, *, header: bool = True) -> None:
    """Print rows as `form` says; None is a table on a terminal, and lines of tab-separated values in a pipe.

    Bytes are shown in hex, NULL is ∅ in a table, null in JSON, nothing in a line, and in CSV nothing where empty text
    is "". A number that JSON does not have is null there. A second column of one name is `name:1` in JSON.
    """
    form = form or (TABLE if output.is_terminal() else TABS)
    if form == JSONL:
        for item in _objects(names, rows):
            output.json_line(item)
    elif form == JSON:
        _array(_objects(names, rows))
    elif form == CSV:
        for row in chain([tuple(names)] if header else [], rows):
            output.write(output.shown(",".join(map(_csv, row))) + ("\n" if output.is_terminal() else "\r\n"))
    elif form == TABLE:
        _table(names, iter(rows), header=header)
    else:
        for row in rows:
            output.line("\t".join(text(value).translate(_ESCAPES) for value in row))


def print_described(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows on a terminal whose last column is text to read: it is wrapped, and a newline in it kept."""
    import textwrap

    titles, *rest = ([*names], *([*row] for row in rows))
    widths = [max(map(output.width_of, column)) for column in zip(*(row[:-1] for row in (titles, *rest)), strict=True)]
    indent = sum(widths) + len(_GAP) * len(widths)
    for number, (*cells, last) in enumerate((titles, *rest)):
        first = _GAP.join(
            cell + " " * (width - output.width_of(cell)) for cell, width in zip(cells, widths, strict=True)
        )
        lines = [
            piece
            for line in last.split("\n")
            for piece in textwrap.wrap(line, max(20, output.terminal_columns() - indent)) or [""]
        ]
        whole = first + _GAP + f"\n{' ' * indent}".join(lines)
        output.line(output.style(whole.rstrip(), output.BOLD) if number == 0 else whole.rstrip())


_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def text(value: Any) -> str:
    """A value as text; NULL is empty."""
    if value is None:
        return ""
    return value.hex() if isinstance(value, bytes) else str(value)


def _csv(value: Any) -> str:
    cell = text(value)
    if value == "" or any(c in cell for c in ',"\r\n'):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _objects(names: Sequence[str], rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    unique: dict[str, None] = {}
    for name in names:
        number, key = 0, name
        while key in unique:
            number += 1
            key = f"{name}:{number}"
        unique[key] = None
    return ({name: _json(value) for name, value in zip(unique, row, strict=True)} for row in rows)


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value - value != 0:
        return None  # infinity
    return value


def _array(items: Iterable[dict[str, Any]]) -> None:
    from dsh.core.lossless import dumps

    before = "["
    for item in items:
        output.write(before + output.json_text(dumps(item)))
        before = ",\n"
    output.line("]" if before != "[" else "[]")


def _table(names: Sequence[str], rows: Iterator[Row], *, header: bool) -> None:
    room = output.terminal_columns() if output.is_terminal() else None
    first = list(islice(rows, _LOOK_AHEAD))
    if not names:
        return
    cells = [[_cell(value, room) for value in row] for row in first]
    titles = [output.one_line(name) for name in names]
    widths = [max(map(output.width_of, column)) for column in zip(*([titles] if header else []), *cells, strict=True)]
    if not widths:
        return
    if room is not None:
        fitted = _fitted(widths, room - len(_GAP) * (len(widths) - 1))
        if fitted is None:
            _one_a_line(titles, chain(first, rows), room)
            return
        widths = fitted
    right = [any(v is not None for v in c) and all(_number(v) for v in c) for c in zip(*first, strict=True)]

    def line(row: Sequence[str], code: str = "") -> None:
        shown = []
        for cell, width, to_right in zip(row, widths, right or [False] * len(row), strict=True):
            cell = cell if room is None else output.fit(cell, width)
            blank = " " * (width - output.width_of(cell))
            shown.append(blank + cell if to_right else cell + blank)
        whole = _GAP.join(shown).rstrip()
        output.line(output.style(whole, code) if code else whole)

    if header:
        line(titles, output.BOLD)
    for row in cells:
        line(row)
    for more in rows:
        line([_cell(value, room) for value in more])


def _fitted(widths: Sequence[int], room: int) -> list[int] | None:
    """Widths that fit: the widest columns are cut to one width; None if that would leave too little to read."""
    if sum(widths) <= room:
        return list(widths)
    left, columns = room, len(widths)
    for width in sorted(widths):
        if width * columns > left:
            share = left // columns
            return [min(each, share) for each in widths] if share >= _NARROWEST else None
        left, columns = left - width, columns - 1
    return list(widths)


def _one_a_line(titles: Sequence[str], rows: Iterable[Row], room: int) -> None:
    longest = min(max(map(output.width_of, titles)), room // 2)
    labels = [t + " " * (longest - output.width_of(t)) for t in (output.fit(title, longest) for title in titles)]
    space = max(1, room - longest - len(_GAP))
    for number, row in enumerate(rows):
        if number:
            output.line()
        for label, value in zip(labels, row, strict=True):
            output.line(f"{output.style(label, output.BOLD)}{_GAP}{output.fit(_cell(value, room), space)}".rstrip())


def _cell(value: Any, room: int | None) -> str:
    if value is None:
        return _NULL
    shown = text(value)
    if room is not None:
        shown = shown[: 50 * room]  # a line shows no more of it, and runs of blanks are one
    return output.one_line(shown)


def _number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))
