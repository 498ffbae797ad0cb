"""`dsh sql`: the history as a database, for reading."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import click

from dsh.cli import output
from dsh.cli.common import db_flag, point_in_time, reading
from dsh.cli.group import db_option
from dsh.cli.tabular import JSON, form_options, print_described, print_rows
from dsh.core.errors import DshError, StoreError, UsageError
from dsh.query import catalog, statement
from dsh.query.naming import find_session
from dsh.query.statement import Value
from dsh.store.database import DAMAGED, Database

_TIMES = {"since": False, "until": True}  # whether a day stands for its end


@click.command("sql", short_help="Query the history with SQL.")
@click.argument("query", required=False)
@click.option("-p", "--param", "given", metavar="NAME=VALUE", multiple=True, help="Value of the parameter :NAME.")
@click.option("--schema", is_flag=True, help="List the views; with the name of one, its columns.")
@form_options
@db_option
@click.pass_context
def command(
    ctx: click.Context, query: str | None, given: tuple[str, ...], schema: bool, form: str | None, header: bool
) -> int:
    """Query the history with SQL.

    QUERY is one SELECT over the views; @FILE reads it from a file, - from standard input. Without a QUERY the views and
    their columns are listed. Nothing can be changed. dsh sql --schema VIEW says what is in a view, dsh query keeps
    statements.

    A VALUE is a number, NULL or text; 'text' in quotes is text also if it looks like a number. The parameters since,
    until, session and cwd take what these options take elsewhere: 2d, yesterday, the beginning of an id, a folder.

    Rows are printed as they come: as a table on a terminal, separated by tabs in a pipe (there without a header, and
    with tabs and newlines inside a value as \\t and \\n).
    """
    with reading(db_flag(ctx)) as db:
        if schema:
            if given:
                raise UsageError("--schema takes no parameters")
            _print_schema(db, query, form, header=header)
        elif query is None:
            if given or form is not None:
                raise UsageError("there is no query")
            for view in catalog.views(db):
                columns = ", ".join(column.name for column in view.columns)
                output.line(f"{output.style(view.name, output.BOLD)}({columns})")
        else:
            run(db, typed_statement(query), assignments(given), form, header=header)
    return 0


def typed_statement(typed: str) -> str:
    """The one statement that was typed, or is in @FILE or with - on standard input. UsageError, OSError."""
    text = typed
    if typed == "-":
        text = sys.stdin.read() if sys.stdin is not None else ""
    elif typed.startswith("@"):
        try:
            with open(os.path.expanduser(typed[1:]), encoding="utf-8") as file:
                text = file.read()
        except UnicodeDecodeError:
            raise UsageError(f"{typed[1:]} is not text") from None
    statement.check_single(text)
    return text


def assignments(given: Iterable[str]) -> dict[str, str]:
    """The values of `-p NAME=VALUE`, as typed; NAME with or without its sign."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        name = name.strip().lstrip(":@$")
        if not equals or not name:
            raise UsageError(f"-p {each!r} is not NAME=VALUE")
        if name in found:
            raise UsageError(f"the parameter {name} is given twice")
        found[name] = value
    return found


def run(
    db: Database,
    sql: str,
    typed: Mapping[str, str],
    form: str | None,
    *,
    header: bool,
    defaults: Mapping[str, str] | None = None,
) -> None:
    """Run a statement with the values that were typed for its parameters, and print its rows."""
    values = _bound(db, statement.parameters(sql), typed, defaults or {})
    try:
        names, rows = db.stream(sql, values)
        print_rows(names, rows, form, header=header)
    except DshError as error:
        raise explained(error, db) from error


def _bound(
    db: Database, names: Sequence[str], typed: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, Value]:
    if unknown := [name for name in typed if name not in names]:
        known = f"its parameters: {', '.join(names)}" if names else "it has no parameters"
        raise UsageError(f"the query has no parameter {unknown[0]!r}", hint=known)
    if missing := [name for name in names if name not in typed and name not in defaults]:
        raise UsageError(
            f"the parameter {missing[0]!r} has no value", hint=f"give it with -p {missing[0]}=VALUE; NULL is none"
        )
    return {name: value_of(db, name, typed.get(name, defaults.get(name, ""))) for name in names}


def value_of(db: Database, name: str, typed: str) -> Value:
    """The value of a parameter. since, until, session and cwd are read as the options of these names."""
    value = statement.literal(typed)
    if not isinstance(value, str) or value != typed:  # a number, NULL, or in quotes
        return value
    if name in _TIMES:
        return point_in_time(typed, int(time.time() * 1000), end=_TIMES[name])
    if name == "session":
        return find_session(db, typed)
    if name == "cwd":
        return os.path.abspath(os.path.expanduser(typed))
    return value


def explained(error: DshError, db: Database) -> DshError:
    """What SQLite says of a query, as wrong usage; trouble with the file stays what it is."""
    if isinstance(error, UsageError):
        return error
    if error.code == "DB_READONLY":
        return UsageError("dsh sql only reads", hint="dsh config, dsh run and stock sqlite3 change things")
    if error.message.startswith("no such") and (drift := db.schema_drift()):
        return StoreError(f"{db.path} is damaged: {drift[0]}", hint=DAMAGED)
    if error.code == "VIEWS_ONLY" or error.message.startswith("no such table"):
        message = error.message.replace("not allowed:", "only the views can be queried:")
        return UsageError(message, hint=f"views: {', '.join(view.name for view in catalog.views(db))}")
    if error.code.startswith("DB_") or error.code == "LOG_CORRUPT":
        return error
    if error.message == "datatype mismatch":  # of LIMIT and OFFSET
        return UsageError("a number of rows is not a whole number")
    return UsageError(error.message, hint="dsh sql without a query lists views and columns")


def _print_schema(db: Database, name: str | None, form: str | None, *, header: bool) -> None:
    person = form is None and output.is_terminal()
    if name is None:
        rows = [(view.name, view.about) for view in catalog.views(db)]
        if person:
            print_described(("view", "about"), rows)
        else:
            print_rows(("view", "about"), rows, form, header=header)
        return
    view = catalog.view(db, name)
    if person:
        output.line(f"{output.style(view.name, output.BOLD)}: {view.about}\n")
        print_described(catalog.Column._fields, view.columns)
        output.line(f'\ndsh sql "{view.example}"')
    elif form == JSON:
        columns = [column._asdict() for column in view.columns]
        output.json_line({"view": view.name, "about": view.about, "columns": columns, "example": view.example})
    else:
        print_rows(catalog.Column._fields, view.columns, form, header=header)
