"""What `dsh db recover` does, from the damaged file to the report."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dsh.cli import output
from dsh.core.errors import StoreError
from dsh.query.check import index, logs, structure
from dsh.session.salvage import Carried, carry
from dsh.store import recover
from dsh.store.database import Database, publish


def run(source: Path, target: Path | None, as_lines: bool) -> int:
    """Recover `source` into the new file `target`, or in its own place if that is None. 1 if anything is lost."""
    folder = (target or source).parent
    try:
        with recover.alone(source) as file, tempfile.TemporaryDirectory(dir=folder, prefix=".dsh-recover-") as scratch:
            old = recover.read(file, source, Path(scratch))
            try:
                new, lines = _made(old, Path(scratch))
                pages, refused = old.bad_pages, old.refused
            finally:
                old.close()
            kept = None
            if target is None:
                kept = recover.put_in_place(source, new)
            else:
                publish(new, target, replace=False)
    except OSError as error:
        raise StoreError(f"{error.filename or folder}: {error.strerror or error}", code="DB_IO") from error
    code = _report(lines, target or source, as_lines)
    if refused:
        output.note(f"{refused} settings or waiting messages could not be kept")
    if pages:
        output.note(f"{pages} pages of the old file are damaged")
    if kept is not None:
        output.note(f"the old database is kept as {kept}")
    return 1 if pages or refused else code


def _made(old: recover.Salvage, scratch: Path) -> tuple[Path, list[Carried]]:
    """The new database, checked and closed."""
    new = scratch / "new.db"
    db = Database.open(new)
    try:
        lines = list(carry(old, db))
        closed = (logs(db, each.id) for each in lines if each.lost)  # the others were checked as they were written
        wrong = next((v for found in (structure(db), index(db), *closed) for v in found), None)
        if wrong is not None:
            raise StoreError(f"the new database would not be sound: {wrong.session} {wrong.seq} {wrong.message}")
    finally:
        db.close()
    if os.path.exists(f"{new}-wal"):
        raise StoreError(f"{new} could not be finished", code="DB_IO")
    return new, lines


def _report(lines: list[Carried], target: Path, as_lines: bool) -> int:
    lossy = [each for each in lines if each.lost or not each.kept]
    for each in lossy:
        if as_lines:
            output.json_line({"id": each.id, "kept": each.kept, "lost": each.lost})
        elif not output.is_terminal():
            output.line(f"{output.one_line(each.id)}\t{each.kept}\t{each.lost}")
    if lossy and not as_lines and output.is_terminal():
        rows = [[output.one_line(each.id), str(each.kept), str(each.lost)] for each in lossy]
        output.table(["ID", "KEPT", "LOST"], rows, right=[1, 2], grow=0)
    whole = sum(1 for each in lines if each.kept and not each.lost)
    output.note(f"{target}: {sum(1 for each in lines if each.kept)} sessions, {whole} of them whole")
    return 1 if lossy else 0
