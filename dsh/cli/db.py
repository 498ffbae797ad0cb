"""`dsh db`: look after the database file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsh import query
from dsh.cli import output, sizes
from dsh.cli.common import db_flag, ending_on_sigterm, is_there, reading
from dsh.cli.db_pack import command as pack
from dsh.cli.group import db_option
from dsh.core.errors import DshError, StoreError, UsageError
from dsh.kernel import config as configuration
from dsh.store.database import Database

if TYPE_CHECKING:
    from dsh.query.check import Violation

_SHOWN = 1000  # violations
_DERIVED = frozenset({"SE-17", "SQ-70", "SQ-73"})  # rules about what follows from the events
_VACUUM_PATIENCE_MS = 5000


@click.group("db", short_help="Check, save and look after the database.")
@db_option
def command() -> None:
    """Check, save and look after the database.

    Everything dsh knows is in one SQLite file. While it is in use, the newest of it is in the file of the same name
    with -wal at the end: copy a database with dsh db backup, not with cp.
    """


@command.command("path", short_help="Print where the database is.")
@db_option
@click.pass_context
def path(ctx: click.Context) -> int:
    """Print where the database is, or will be."""
    output.line(str(configuration.database_path(db_flag(ctx))))
    return 0


# ------------------------------------------------------------------------------------------------------------ check


@command.command("check", short_help="Check the database, or one session.")
@click.argument("session", metavar="[ID]", required=False)
@click.option("--quick", is_flag=True, help="Do not read every event, and leave the search index out.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per violation.")
@db_option
@click.pass_context
def check(ctx: click.Context, session: str | None, quick: bool, as_lines: bool) -> int:
    """Check the database, or the log of one session.

    The file, references between rows and the rules of the schema; every log against the rules it was written under;
    what is kept of it against what its events say; the search index against the log. A violation is one line: session,
    seq, rule, what is wrong, with - for what does not apply. The exit code is 1 if there is any, and 8 if the file
    cannot be opened at all.
    """
    rules: set[str] = set()
    with reading(db_flag(ctx), read_only=False) as db:
        for number, violation in enumerate(_violations(db, session, quick=quick)):
            if number == _SHOWN:
                output.note(f"there are more; the first {_SHOWN} are shown")
                break
            rules.add(violation.rule)
            _print(violation, as_lines)
    if not rules:
        output.remark("no violations")
    elif rules <= _DERIVED:
        output.remark("dsh db rebuild derives this again from the events")
    else:
        output.remark("dsh db recover makes a sound database of what can be read")
    return 1 if rules else 0


def _violations(db: Database, typed: str | None, *, quick: bool) -> Iterator[Violation]:
    from dsh.query import check as checks
    from dsh.query.naming import find_session

    if typed is not None:
        yield from checks.logs(db, find_session(db, typed), quick=quick)
        return
    damaged = False
    for violation in checks.structure(db, quick=quick):
        damaged = damaged or violation.rule == "sqlite"
        yield violation
    yield from checks.logs(db, quick=quick)
    yield from checks.waiting(db)
    if damaged and not quick:  # what was not indexed yet would have to be written into a damaged file
        output.note("the search index was not checked: the file is damaged")
    elif not quick:
        try:
            yield from checks.index(db)
        except StoreError as error:
            output.note(f"the search index was not checked: {error.message}")


def _print(violation: Violation, as_lines: bool) -> None:
    if as_lines:
        output.json_line(violation._asdict())
    else:
        fields = (violation.session, violation.seq, violation.rule, violation.message)
        output.line("\t".join("-" if field is None else output.one_line(str(field)) for field in fields))


# ---------------------------------------------------------------------------------------------------- backup, recover


@command.command("backup", short_help="Copy the database while others use it.")
@click.argument("file")
@click.option("--force", is_flag=True, help="Take the place of a FILE that is there.")
@db_option
@click.pass_context
def backup(ctx: click.Context, file: str, force: bool) -> int:
    """Copy the database to FILE while others use it; with - to standard output.

    The copy is one whole file of one moment. It is checked and synced before it gets its name, and nobody who writes
    waits for it.
    """
    with reading(db_flag(ctx)) as db:
        if file == "-":
            _to_stdout(db)
            return 0
        target = Path(os.path.abspath(os.path.expanduser(file)))
        if target.is_dir():
            raise UsageError(f"{target} is a folder")
        try:
            db.backup(target, force=force)
        except UsageError as error:
            error.hint = error.hint or (None if force else "--force takes its place")
            raise
    output.remark(f"{target}: {sizes.shown(target.stat().st_size)}")
    return 0


def _to_stdout(db: Database) -> None:
    import shutil
    import tempfile

    if output.is_terminal():
        raise UsageError("a database is not for a terminal", hint="dsh db backup - > FILE, or a FILE by name")
    with tempfile.TemporaryDirectory(prefix="dsh-") as folder:
        whole = Path(folder) / "dsh.db"
        db.backup(whole)
        with open(whole, "rb") as source:
            shutil.copyfileobj(source, sys.stdout.buffer, 1 << 20)
    sys.stdout.buffer.flush()


@command.command("recover", short_help="Save what can be read of a damaged database.")
@click.option("--to", metavar="FILE", help="Where the new database goes (PATH.recovered).")
@click.option("--replace", is_flag=True, help="Put it in the place of the old one, which is kept as PATH.damaged-TIME.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per session that lost something.")
@db_option
@click.pass_context
def recover(ctx: click.Context, to: str | None, replace: bool, as_lines: bool) -> int:
    """Make a new, sound database of what can be read in a damaged one.

    Each session keeps its events up to the first one that is lost, and is closed there as after a crash; forks, marks,
    settings, trusted folders and waiting messages come along. The old file is not changed, and must not be in use.

    A session that lost something is one line: ID, events kept, events lost. The exit code is 1 if anything is lost, or
    may be because pages are damaged that held something else.
    """
    if to is not None and replace:
        raise UsageError("--to and --replace exclude each other")
    source = Path(os.path.realpath(configuration.database_path(db_flag(ctx))))
    if not is_there(source):
        raise UsageError(f"there is no database at {source}")
    default = source.with_name(f"{source.name}.recovered")
    target = default if to is None else Path(os.path.abspath(os.path.expanduser(to)))
    if not replace and (target.exists() or os.path.islink(target)):
        raise UsageError(f"{target} exists already", hint="--to FILE names another, or remove it first")
    from dsh.cli import recovery

    with ending_on_sigterm():
        return recovery.run(source, None if replace else target, as_lines)


# ---------------------------------------------------------------------------------------------------- rebuild, vacuum


@command.command("rebuild", short_help="Derive surfaces, counters and the search index again.")
@db_option
@click.pass_context
def rebuild(ctx: click.Context) -> int:
    """Derive surfaces, counters and the search index from the events again.

    A session at a time, then the index in pieces, so that whatever runs goes on. What was right stays the same. A
    session whose events do not fit together is left as it is and named; the exit code is then 8.
    """
    from dsh.store import writes

    failed: DshError | None = None
    with reading(db_flag(ctx), read_only=False) as db:
        names = query.rows(db, "session_parents_first")
        for (name,) in names:
            try:
                writes.rebuild_session(db, name)
            except DshError as error:
                if error.code == "SESSION_NOT_FOUND":  # deleted meanwhile
                    continue
                if isinstance(error, StoreError):
                    raise
                output.note(f"session {name} is left as it is: {error.message}")
                failed = error
        for _ in writes.rebuild_search(db):
            pass
    if failed is not None:
        raise StoreError("not every session could be rebuilt", code="LOG_CORRUPT", hint="dsh db check says why")
    output.remark(f"{len(names)} sessions and the search index are rebuilt")
    return 0


@command.command("vacuum", short_help="Give unused space back.")
@click.option("--json", "as_lines", is_flag=True, help="Print an object with the bytes before and after.")
@db_option
@click.pass_context
def vacuum(ctx: click.Context, as_lines: bool) -> int:
    """Give unused space back to the file system.

    Deleting sessions leaves room that later ones use; this writes the file anew without it. It needs as much free space
    as the file has, and whoever writes waits meanwhile. Prints how many bytes were given back.
    """
    with reading(db_flag(ctx), read_only=False) as db:
        before = _bytes(db.path)
        whole = db.vacuum(_VACUUM_PATIENCE_MS)
        after = _bytes(db.path)
    if not whole:
        output.note("somebody is reading: the space is given back when nobody is")
    if as_lines:
        output.json_line({"before": before, "after": after, "givenBack": before - after})
    elif output.is_terminal():
        output.line(f"{sizes.shown(before - after)} given back: {sizes.shown(before)} before, {sizes.shown(after)} now")
    else:
        output.line(str(before - after))
    return 0


def _bytes(file: Path) -> int:
    sizes = [os.path.getsize(each) for each in (file, f"{file}-wal") if os.path.exists(each)]
    return sum(sizes)


command.add_command(pack)


# ------------------------------------------------------------------------------------------------------------ stats


@command.command("stats", short_help="Tell what takes the space.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=10, metavar="N", help="List the N biggest sessions (10)."
)
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: the database, each table, each session.")
@db_option
@click.pass_context
def stats(ctx: click.Context, limit: int, as_lines: bool) -> int:
    """Tell what is in the database and what takes the space.

    In a pipe the lines begin with what they are about: a field of the database with its value; space with name, kind
    and bytes of a table or index; session with ID, events and bytes. A session's bytes are those of its events; what
    forks share is counted once, where it was written.
    """
    with reading(db_flag(ctx)) as db:
        facts = _facts(db)
        objects = _objects(db)
        sessions = query.rows(db, "space_by_session", limit=limit)
    if as_lines:
        output.json_line({"type": "database", **facts})
        for name, kind, table, size, unused in objects:
            output.json_line(
                {"type": "space", "name": name, "kind": kind, "table": table, "bytes": size, "unusedBytes": unused}
            )
        for id_, events, size, title in sessions:
            output.json_line({"type": "session", "id": id_, "events": events, "bytes": size, "title": title})
    elif output.is_terminal():
        _people(facts, objects, sessions)
    else:
        for name, value in facts.items():
            output.line(f"{name}\t{output.one_line(str(value))}")
        for name, kind, _, size, _ in objects:
            output.line(f"space\t{name}\t{kind}\t{size}")
        for id_, events, size, _ in sessions:
            output.line(f"session\t{output.one_line(id_)}\t{events}\t{size}")
    return 0


def _facts(db: Database) -> dict[str, Any]:
    state = query.row(db, "store_state")
    assert state is not None
    counted = query.row(db, "event_counts")
    wal = f"{db.path}-wal"
    return {
        "path": str(db.path),
        "storeId": state[0],
        "applicationId": f"{db.pragma('application_id'):#x}",
        "schemaVersion": db.pragma("user_version"),
        "journalMode": db.pragma("journal_mode"),
        "pageSize": db.pragma("page_size"),
        "pages": db.pragma("page_count"),
        "freePages": db.pragma("freelist_count"),
        "fileBytes": os.path.getsize(db.path),
        "walBytes": os.path.getsize(wal) if os.path.exists(wal) else 0,
        "sessions": state[2],
        "events": counted[0] if counted else 0,
    }


def _objects(db: Database) -> list[tuple[Any, ...]]:
    try:
        return query.rows(db, "space_by_object")
    except StoreError as error:
        if "dbstat" not in error.message:
            raise
        output.note("this SQLite cannot say which table takes the space: it is built without dbstat")
        return []


def _people(facts: dict[str, Any], objects: list[tuple[Any, ...]], sessions: list[tuple[Any, ...]]) -> None:
    for name, value in facts.items():
        output.line(f"{name:<14}  {sizes.shown(value) if name.endswith('Bytes') else output.one_line(str(value))}")
    output.line()
    big = [each for each in objects if each[3] * 100 >= facts["fileBytes"]]
    rows = [[name, kind, sizes.shown(size)] for name, kind, _, size, _ in big]
    if rest := objects[len(big) :]:
        rows.append([f"({len(rest)} others)", "", sizes.shown(sum(size for _, _, _, size, _ in rest))])
    output.table(["SPACE", "KIND", "SIZE"], rows, right=[2], grow=0)
    if sessions:
        output.line()
        output.table(
            ["SESSION", "EVENTS", "SIZE", "TITLE"],
            [
                [output.one_line(id_), str(events), sizes.shown(size), output.title(title)]
                for id_, events, size, title in sessions
            ],
            right=[1, 2],
        )
