"""`dsh export`: sessions as files that other programs read and `dsh import` takes back, and as documents to read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, reading
from dsh.cli.group import db_option
from dsh.core.errors import SessionError, UsageError
from dsh.query.naming import find_session
from dsh.store.database import Database

if TYPE_CHECKING:
    from dsh.core.events import SessionHeader
    from dsh.session.masking import Masker

_DOCUMENTS = ("markdown", "html", "json")


class _Form(NamedTuple):
    """What to write: `name` jsonl or one of _DOCUMENTS; `packed` and `zstd` only concern jsonl."""

    name: str
    packed: bool
    zstd: bool
    masker: Masker | None


@click.command("export", short_help="Write sessions to files.")
@click.argument("sessions", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every session.")
@click.option(
    "--format",
    "name",
    type=click.Choice(("jsonl", *_DOCUMENTS)),
    default="jsonl",
    help="jsonl, which dsh import takes back; or a document: markdown, html (one page), json (the messages).",
)
@click.option("--with-secrets", is_flag=True, help="Keep keys and passwords of known shapes.")
@click.option("--raw", is_flag=True, help="One event a line, streamed fragments too.")
@click.option("--zstd", is_flag=True, help="Compress with Zstandard.")
@click.option(
    "-o", "--output", "target", metavar="FILE", help="Write one session to this new file; - is standard output."
)
@click.option(
    "--to", "root", metavar="DIR", help="Write each session to DIR/PROJECT/SESSION/session.jsonl (or .md, …)."
)
@db_option
@click.pass_context
def command(
    ctx: click.Context,
    sessions: tuple[str, ...],
    everything: bool,
    name: str,
    with_secrets: bool,
    raw: bool,
    zstd: bool,
    target: str | None,
    root: str | None,
) -> int:
    """Write sessions as JSON Lines: the header, then the events. Or, with --format, as documents to read.

    One session goes to standard output, or with -o to a file; several go to a folder. A file that is there already is
    never written over. A fork is written with the events that it shares. dsh import takes all of it back.

    Keys and passwords of known shapes are replaced by [redacted:KIND], and a line on standard error says how many. What
    dsh show prints, one's own log, is never masked.

    With --to a line is printed for each session: ID, file, separated by a tab.
    """
    _check(sessions, everything, target, root)
    if name != "jsonl" and (raw or zstd):
        raise UsageError(f"--{'raw' if raw else 'zstd'} is for --format jsonl")
    target = None if target == "-" else target
    if zstd and target is None and root is None and output.is_terminal():
        raise UsageError("compressed data is not for a terminal", hint="name a file with -o FILE")
    form = _Form(name, not raw, zstd, None if with_secrets else _masker())
    try:
        with reading(db_flag(ctx)) as db, db.snapshot():
            ids = _ids(db, sessions, everything)
            if root is not None:
                _to_folder(db, ids, Path(root), form)
            elif target is not None:
                with _new_file(Path(target)) as file:
                    _write(db, ids[0], file, form)
            elif zstd:
                sys.stdout.flush()
                _write(db, ids[0], sys.stdout.buffer, form)
            else:
                _print(db, ids[0], form)
    except NoHistory as error:
        if everything:
            output.note(error.message)
            return 0
        raise SessionError(error.message, code="SESSION_NOT_FOUND", hint=error.hint) from error
    if form.masker is not None and form.masker.counts:
        output.note(f"masked: {form.masker.summary()}; --with-secrets keeps them")
    return 0


def _masker() -> Masker:
    from dsh.session.masking import Masker

    return Masker()


def _check(sessions: tuple[str, ...], everything: bool, target: str | None, root: str | None) -> None:
    if bool(sessions) == everything:
        raise UsageError("name sessions, or say --all" if not sessions else "--all goes without ids")
    if "" in (target, root):
        raise UsageError(f"{'-o' if target == '' else '--to'} is empty", hint="-o FILE, --to DIR")
    if target is not None and root is not None:
        raise UsageError("-o and --to exclude each other")
    if (everything or len(sessions) > 1) and root is None:
        raise UsageError("several sessions go to a folder", hint="name one with --to DIR")


def _ids(db: Database, sessions: tuple[str, ...], everything: bool) -> list[str]:
    if everything:
        return [str(row[0]) for row in query.rows(db, "session_headers")]
    return list(dict.fromkeys(find_session(db, typed) for typed in sessions))


def _print(db: Database, id: str, form: _Form) -> None:
    shown: Callable[[str], str] = output.json_text
    if form.name == "jsonl":
        from dsh.session.jsonl import header_line
        from dsh.session.transfer import export_lines

        header, lines = export_lines(db, id, packed=form.packed, masker=form.masker)
        output.write(shown(header_line(header)))
    else:
        from dsh.session.render import rendered

        lines = rendered(db, id, form.name, form.masker)
        shown = shown if form.name == "json" else output.shown
    for line in lines:
        output.write(shown(line))


def _write(db: Database, id: str, out: BinaryIO, form: _Form) -> None:
    if form.name == "jsonl":
        from dsh.session.transfer import write_export

        write_export(db, id, out, packed=form.packed, zstd=form.zstd, masker=form.masker)
    else:
        from dsh.session.render import rendered

        out.writelines(piece.encode("utf-8", "backslashreplace") for piece in rendered(db, id, form.name, form.masker))


def _new_file(path: Path, *, folders: bool = False) -> AbstractContextManager[BinaryIO]:
    from dsh.session.folders import published

    return published(path, folders=folders)


def _to_folder(db: Database, ids: list[str], root: Path, form: _Form) -> None:
    from dsh.session.records import header_of

    headers = [header_of(state) for each in ids for state in query.rows(db, "session_state", session=each)]
    for header, path in zip(headers, _places(root, headers, form), strict=True):
        with _new_file(path, folders=True) as file:
            _write(db, header["id"], file, form)
        output.done(f"{output.one_line(header['id'])}\t{output.one_line(str(path))}")


def _places(root: Path, headers: list[SessionHeader], form: _Form) -> list[Path]:
    from dsh.session.folders import path_of, places, taken_by

    if form.name == "jsonl":
        return places(root, headers, zstd=form.zstd)
    from dsh.session.render import SUFFIX

    paths = [path_of(root, header, zstd=False).with_name(f"session.{SUFFIX[form.name]}") for header in headers]
    for path in paths:
        if os.path.lexists(path):
            raise taken_by(path)
    return paths
