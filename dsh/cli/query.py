"""`dsh query`: statements with a name, shipped ones and the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, open_database, reading
from dsh.cli.group import db_option
from dsh.cli.sql import assignments, explained, run, typed_statement
from dsh.cli.tabular import form_options, print_described, print_rows
from dsh.core.errors import DshError, UsageError
from dsh.query import shelf
from dsh.query.shelf import Parameter, Saved
from dsh.store import writes
from dsh.store.database import Database


@click.command(
    "query", short_help="Run a report or a saved statement.", context_settings={"ignore_unknown_options": True}
)
@click.argument("words", metavar="[NAME] [--PARAMETER VALUE]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-p", "--param", "given", metavar="NAME=VALUE", multiple=True, help="The same as --NAME VALUE.")
@click.option("--save", metavar="NAME", help="Keep the statement that follows under this name.")
@click.option("--about", metavar="TEXT", help="With --save: what it answers.")
@click.option("--force", is_flag=True, help="With --save: take the place of your query of that name.")
@click.option("--show", metavar="NAME", help="Print the statement.")
@click.option("--delete", metavar="NAME", help="Forget your query of that name.")
@form_options
@db_option
@click.pass_context
def command(
    ctx: click.Context,
    words: tuple[str, ...],
    given: tuple[str, ...],
    save: str | None,
    about: str | None,
    force: bool,
    show: str | None,
    delete: str | None,
    form: str | None,
    header: bool,
) -> int:
    """Run a report, or a statement that you saved.

    Without a NAME the queries are listed: those that come with dsh, then yours. A query's parameters are its options:
    dsh query asked --since 2d. They take the same values as -p of dsh sql.

    dsh query --save NAME "SELECT ... :who ..." keeps a statement (@FILE and - work as for dsh sql), and --who is its
    option from then on. Comments at its beginning may say what it answers, and give defaults: -- :who = 'me'
    """
    if sum(each is not None for each in (save, show, delete)) > 1:
        raise UsageError("--save, --show and --delete exclude each other")
    if save is None and (about is not None or force):
        raise UsageError("--about and --force go with --save")
    flag = db_flag(ctx)
    if save is not None:
        _save(flag, save, words, about, force=force)
    elif show is not None or delete is not None:
        if words:
            raise UsageError(f"unexpected {words[0]!r}")
        if show is not None:
            with _shelf(flag) as db:
                output.line(output.shown(shelf.find(db, show).sql))
        else:
            _delete(flag, str(delete))
    elif not words:
        with _shelf(flag) as db:
            _list(db, form, header=header)
    else:
        with reading(flag) as db:
            _run(db, words, given, form, header=header)
    return 0


@contextmanager
def _shelf(flag: str | None) -> Iterator[Database | None]:
    """The database if there is one: the shipped queries are there without."""
    opened = reading(flag)
    try:
        db = opened.__enter__()
    except NoHistory:
        yield None
        return
    try:
        yield db
    finally:
        opened.__exit__(None, None, None)


def _list(db: Database | None, form: str | None, *, header: bool) -> None:
    saved = shelf.every(db).values()
    if form is None and output.is_terminal():
        print_described(("name", "about"), [(s.name, _told(s)) for s in saved])
        return
    rows = ((s.name, " ".join(map(_shown, s.parameters)), s.about, "yours" if s.own else "dsh") for s in saved)
    print_rows(("name", "parameters", "about", "from"), rows, form, header=header)


def _told(saved: Saved) -> str:
    about = output.one_line(saved.about) + (" (yours)" if saved.own else "")
    return "\n".join(filter(None, [about.strip(), " ".join(map(_shown, saved.parameters))]))


def _shown(parameter: Parameter) -> str:
    default = "" if parameter.default is None else f"={parameter.default}"
    return f"{_option(parameter.name)}{default}"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _run(db: Database, words: Sequence[str], given: Sequence[str], form: str | None, *, header: bool) -> None:
    name, *rest = words
    if name.startswith("-"):
        raise UsageError(f"there is no option {name!r}", hint="the name of a query comes first: dsh query lists them")
    saved = shelf.find(db, name)
    if saved.hides:
        output.note(f"{name} is your own; the query of that name that comes with dsh is not run")
    typed = _typed(saved, rest)
    for key, value in assignments(given).items():
        if key in typed:
            raise UsageError(f"the parameter {key} is given twice")
        typed[key] = value
    if missing := [p.name for p in saved.parameters if p.name not in typed and p.default is None]:
        raise UsageError(f"{name} needs {' and '.join(map(_option, missing))}", hint=_usage(saved))
    run(db, saved.sql, typed, form, header=header, defaults=saved.defaults)


def _typed(saved: Saved, rest: Sequence[str]) -> dict[str, str]:
    """The values of `--name VALUE` and `--name=VALUE`."""
    known = {_option(p.name): p.name for p in saved.parameters}
    found: dict[str, str] = {}
    words = iter(rest)
    for word in words:
        option, equals, value = word.partition("=")
        name = known.get(option.replace("_", "-"))
        if name is None:
            what = f"option {option!r}" if word.startswith("-") else f"{word!r}"
            raise UsageError(f"{saved.name} takes no {what}", hint=_usage(saved))
        if not equals:
            following = next(words, None)
            if following is None:
                raise UsageError(f"{option} needs a value")
            value = following
        if name in found:
            raise UsageError(f"{option} is given twice")
        found[name] = value
    return found


def _usage(saved: Saved) -> str:
    options = " ".join(f"[{_shown(p)}]" if p.default is not None else f"{_shown(p)} VALUE" for p in saved.parameters)
    return f"dsh query {saved.name} {options}".rstrip()


def _save(flag: str | None, name: str, words: Sequence[str], about: str | None, *, force: bool) -> None:
    if len(words) != 1:
        raise UsageError("--save NAME takes one statement", hint='dsh query --save NAME "SELECT ..."')
    sql = typed_statement(words[0]).strip()
    db = open_database(flag)
    try:
        try:
            shelf.check_new(db, name, sql)
        except DshError as error:
            raise explained(error, db) from error
        _check_options(name, sql)
        with db.transaction():
            if not force and name in shelf.every(db):
                raise UsageError(f"there is a query {name} already", hint="--force takes its place")
            writes.save_query(db, name, sql, about)
    finally:
        db.close()


def _check_options(name: str, sql: str) -> None:
    """A parameter that is an option of the command itself can only be given with -p."""
    own = {option for parameter in command.params for option in parameter.opts}
    for parameter in shelf.read(name, sql, own=True).parameters:
        if _option(parameter.name) in own:
            output.note(f"{_option(parameter.name)} is an option of dsh query: give it with -p {parameter.name}=VALUE")


def _delete(flag: str | None, name: str) -> None:
    with reading(flag, read_only=False) as db, db.transaction():
        saved = shelf.find(db, name)
        if not saved.own:
            raise UsageError(f"{name} comes with dsh and stays")
        writes.delete_query(db, name)
