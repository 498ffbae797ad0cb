"""`dsh import dsh`, or plain `dsh import FILE...`: take sessions that were exported into the database."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from dsh.cli import output
from dsh.cli.common import db_flag, open_database
from dsh.core.errors import SessionError, UsageError
from dsh.query.naming import NEWEST, new_name

if TYPE_CHECKING:
    from dsh.session.jsonl import LogReader
    from dsh.session.transfer import Imported
    from dsh.store.database import Database

_STDIN = "-"
_NAMED = 10  # sessions that are passed over and told one by one


def take(ctx: click.Context, files: tuple[str, ...], as_id: str | None) -> int:
    """Store each session whole or not at all, and print its id; those that are here already are passed over."""
    sources = _sources(files)
    if as_id is not None and len(sources) != 1:
        raise UsageError("--as goes with one session")
    if as_id is not None:
        new_name("--as", as_id)
    db = open_database(db_flag(ctx))
    try:
        db.hear_signals()
        here = 0
        for name in sources:
            try:
                done = _import(db, name, as_id)
            except SessionError as error:
                if error.code != "SESSION_ALREADY_EXISTS" or len(sources) == 1:
                    raise
                here += 1
                if here <= _NAMED:
                    output.note(error.message)
                continue
            output.done(output.one_line(done.id))
            _remarks(name, done)
    finally:
        db.close()
    if here:
        raise SessionError(f"{here} of {len(sources)} sessions stay as they are", code="SESSION_ALREADY_EXISTS")
    return 0


class _Source(NamedTuple):
    """A session to read, as far as its header tells; `number` tells it from the same file named again."""

    number: int
    path: str
    created: int = 0
    id: str | None = None
    parent: str | None = None


def _sources(files: tuple[str, ...]) -> list[str]:
    """What to read, parents before their forks, so that these can share events again. Unreadable files are found
    before anything is stored; what can be read only once is not looked into."""
    from dsh.session.folders import check_place, sessions_in

    if files.count(_STDIN) > 1:
        raise UsageError("standard input can be read once")
    found: list[_Source] = []
    for name in files:
        mode = 0 if name == _STDIN else os.stat(name).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            found.append(_Source(len(found), name))
            continue
        root = Path(name)
        inside = sessions_in(root) if stat.S_ISDIR(mode) else []
        if stat.S_ISDIR(mode) and not inside:
            hint = "what dsh export --to DIR has filled can be imported; what dsh sync has filled: dsh sync pull DIR"
            raise UsageError(f"{name} holds no exported session", hint=hint)
        for path in inside or [root]:
            with _opened(str(path)) as log:
                if inside and log.header is not None:
                    check_place(root, path, log.header)
                source = _Source(len(found), str(path))
                if (header := log.header) is not None:
                    parent = header.get("parentSession")
                    source = source._replace(created=header["createdAt"], id=header["id"], parent=parent)
                found.append(source)
    return _parents_first(found)


def _parents_first(found: Iterable[_Source]) -> list[str]:
    """The paths, oldest session first, but none before the one it came from: clocks are set back."""
    known = {source.id: source for source in found if source.id is not None}
    ordered: dict[_Source, None] = {}
    for source in sorted(found, key=lambda each: each.created):
        chain: dict[_Source, None] = {}
        above: _Source | None = source
        while above is not None and above not in ordered and above not in chain:
            chain[above] = None
            above = known.get(above.parent or "")
        ordered.update(reversed(chain.items()))
    return [source.path for source in ordered]


def _import(db: Database, name: str, as_id: str | None) -> Imported:
    from dsh.session.transfer import import_log

    with _opened(name) as log:
        given = log.header["id"] if log.header else log.session
        if as_id is None and given in NEWEST:  # it would stand in the way of the word
            text = f"{name}: {given!r} cannot be the id of a session"
            raise UsageError(text, hint="store it as another: --as NEWID")
        return import_log(db, log, as_id=as_id)


@contextmanager
def _opened(name: str) -> Iterator[LogReader]:
    """A session to read; failures name the file."""
    from dsh.session.transfer import read_log

    shown = "standard input" if name == _STDIN else name
    try:
        if name == _STDIN and sys.stdin is None:
            raise UsageError("standard input is closed")
        with open(0 if name == _STDIN else name, "rb", closefd=name != _STDIN) as file, _at_hand(file) as whole:
            yield read_log(whole)
    except SessionError as error:
        raise SessionError(f"{shown}: {error.message}", code=error.code, hint=error.hint) from error
    except OSError as error:
        if error.filename is None:
            error.filename = shown
        raise


@contextmanager
def _at_hand(file: BinaryIO) -> Iterator[BinaryIO]:
    """The same bytes in a file. An import keeps others from writing, so it does not wait for a slow pipe meanwhile."""
    from dsh.session.transfer import looks_exported

    if stat.S_ISREG(os.fstat(file.fileno()).st_mode) or not looks_exported(file):
        yield file  # in the second case to be refused, /dev/zero for one
        return
    import shutil
    import tempfile

    with tempfile.TemporaryFile() as whole:
        shutil.copyfileobj(file, whole, 1024 * 1024)
        whole.seek(0)
        yield whole


def _remarks(name: str, done: Imported) -> None:
    """What was not taken over as it was."""
    if done.dropped:
        output.note(f"{name}: its end is cut off or unreadable and left out ({done.dropped} lines)")
    if done.closers:
        output.note(f"{name}: its last turn was open and is closed as interrupted ({done.closers} events)")
    if done.left_out:
        output.note(f"{name}: the header's {', '.join(done.left_out)} have no place here and are left out")
