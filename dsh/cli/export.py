"""`dsh export`: sessions as files that other programs read and `dsh import` takes back."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, reading
from dsh.cli.group import db_option
from dsh.core.errors import SessionError, UsageError
from dsh.query.naming import find_session
from dsh.store.database import Database


@click.command("export", short_help="Write sessions to files.")
@click.argument("sessions", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every session.")
@click.option("--raw", is_flag=True, help="One event a line, streamed fragments too.")
@click.option("--zstd", is_flag=True, help="Compress with Zstandard.")
@click.option("-o", "--output", "target", metavar="FILE", help="Write one session to this new file.")
@click.option("--to", "root", metavar="DIR", help="Write each session to DIR/PROJECT/SESSION/session.jsonl.")
@db_option
@click.pass_context
def command(
    ctx: click.Context,
    sessions: tuple[str, ...],
    everything: bool,
    raw: bool,
    zstd: bool,
    target: str | None,
    root: str | None,
) -> int:
    """Write sessions as JSON Lines: the header, then the events.

    One session goes to standard output, or with -o to a file; several go to a folder. A file that is there already is
    never written over. A fork is written with the events that it shares. dsh import takes all of it back.

    With --to a line is printed for each session: ID, file, separated by a tab.
    """
    _check(sessions, everything, target, root)
    if zstd and target is None and root is None and output.is_terminal():
        raise UsageError("compressed data is not for a terminal", hint="name a file with -o FILE")
    try:
        with reading(db_flag(ctx)) as db, db.snapshot():
            ids = _ids(db, sessions, everything)
            if root is not None:
                _to_folder(db, ids, Path(root), packed=not raw, zstd=zstd)
            elif target is not None:
                with _new_file(Path(target)) as file:
                    _write(db, ids[0], file, packed=not raw, zstd=zstd)
            elif zstd:
                sys.stdout.flush()
                _write(db, ids[0], sys.stdout.buffer, packed=not raw, zstd=True)
            else:
                _print(db, ids[0], packed=not raw)
    except NoHistory as error:
        if everything:
            output.note(error.message)
            return 0
        raise SessionError(error.message, code="SESSION_NOT_FOUND", hint=error.hint) from error
    return 0


def _check(sessions: tuple[str, ...], everything: bool, target: str | None, root: str | None) -> None:
    if bool(sessions) == everything:
        raise UsageError("name sessions, or say --all" if not sessions else "--all goes without ids")
    if target is not None and root is not None:
        raise UsageError("-o and --to exclude each other")
    if (everything or len(sessions) > 1) and root is None:
        raise UsageError("several sessions go to a folder", hint="name one with --to DIR")


def _ids(db: Database, sessions: tuple[str, ...], everything: bool) -> list[str]:
    if everything:
        return [str(row[0]) for row in query.rows(db, "session_headers")]
    return list(dict.fromkeys(find_session(db, typed) for typed in sessions))


def _print(db: Database, id: str, *, packed: bool) -> None:
    from dsh.session.jsonl import header_line
    from dsh.session.transfer import export_lines

    header, lines = export_lines(db, id, packed=packed)
    output.write(output.json_text(header_line(header)))
    for line in lines:
        output.write(output.json_text(line))


def _write(db: Database, id: str, out: BinaryIO, *, packed: bool, zstd: bool) -> None:
    from dsh.session.transfer import write_export

    write_export(db, id, out, packed=packed, zstd=zstd)


def _new_file(path: Path, *, folders: bool = False) -> AbstractContextManager[BinaryIO]:
    from dsh.session.folders import published

    return published(path, folders=folders)


def _to_folder(db: Database, ids: list[str], root: Path, *, packed: bool, zstd: bool) -> None:
    from dsh.session.folders import places
    from dsh.session.records import header_of

    headers = [header_of(state) for each in ids for state in query.rows(db, "session_state", session=each)]
    for header, path in zip(headers, places(root, headers, zstd=zstd), strict=True):
        with _new_file(path, folders=True) as file:
            _write(db, header["id"], file, packed=packed, zstd=zstd)
        output.line(f"{output.one_line(header['id'])}\t{output.one_line(str(path))}")
