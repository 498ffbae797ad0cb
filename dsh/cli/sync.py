"""`dsh sync`: the sessions of several machines in each of their databases."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, ending_on_sigterm, is_there, open_database, open_existing
from dsh.cli.group import db_option
from dsh.core.errors import UsageError
from dsh.core.lossless import dumps
from dsh.kernel import config as configuration
from dsh.store.database import Database

if TYPE_CHECKING:
    from dsh.cli.progress import Progress
    from dsh.session.sync.here import Here
    from dsh.session.sync.model import Outcome, Place

_REMOTE = re.compile(r"ssh:(?P<host>[^:/]+)(?::(?P<path>.*))?|(?P<name>[^:/]+):(?P<file>.*)", re.DOTALL)
_TOLD = ("new", "grown", "diverged", "sent")
_WAYS = {"pull": "pulled", "push": "pushed"}


@click.command("sync", short_help="Bring the sessions of several machines together.")
@click.argument("words", metavar="[push|pull] TARGET", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only tell what would be copied.")
@click.option("--deleted", is_flag=True, help="Take sessions in again that were deleted here.")
@click.option("--dsh", "program", default="dsh", metavar="COMMAND", help="How dsh is called on an ssh host (dsh).")
@click.option(
    "--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per session, the last is the total."
)
@db_option
@click.pass_context
def command(
    ctx: click.Context, words: tuple[str, ...], dry_run: bool, deleted: bool, program: str, as_lines: bool
) -> int:
    """Bring the sessions of several machines together: pull takes in what TARGET has, push gives it what is here,
    without either word both are done.

    TARGET is a folder (on a share, on a stick, or in what a cloud service copies), an ssh host as HOST: or ssh:HOST
    (HOST:PATH names its database) where dsh is installed, or another database file whose name ends in .db.

    What is copied is whole logs, or what a log has more; nothing is changed or deleted on either side. A session that
    somebody went on with in two places stays as it is in each, and the other's log arrives beside it as ID~XXXXXXXX.
    What was deleted here stays deleted here; pins and hidden marks are of one machine. docs/sync.md says more.

    A copied session is one line: pulled or pushed, new, grown, diverged or sent, ID, events, separated by tabs. The
    exit code is 1 if a session could not be taken.
    """
    if words == ("serve",):
        return _serve(db_flag(ctx))
    ways, target = _parsed(words)
    if not target:
        raise UsageError("the target is empty", hint="a folder, HOST:, or a database FILE.db")
    if ways == ["push"] and not is_there(configuration.database_path(db_flag(ctx))):
        raise NoHistory("no history yet, so there is nothing to push", hint='it is made by: dsh run "QUESTION"')
    failed = False
    total: dict[str, dict[str, int]] = {}
    with ending_on_sigterm(), _opened(db_flag(ctx), deleted=deleted) as here:
        pushing = "push" in ways
        with _target(target, here, program, pushing=pushing, dry_run=dry_run) as place, _shown() as line:
            for way in ways:
                counts = _copy(way, here, place, line, dry_run=dry_run, as_lines=as_lines)
                total[_WAYS[way]] = counts
                failed = failed or counts["failed"] > 0
            if pushing and not dry_run:
                place.close()
        here.close()
    if ways == ["pull"] and not any(total["pulled"].values()):
        output.note(f"{target} holds no session that dsh sync could take")
    if as_lines:
        output.json_line({"total": True, "dryRun": dry_run, **total})
    else:
        output.note("; ".join(_summary(way, counts, dry_run=dry_run) for way, counts in total.items()))
    return int(failed)


def _parsed(words: tuple[str, ...]) -> tuple[list[str], str]:
    if len(words) == 2 and words[0] in _WAYS:
        return [words[0]], words[1]
    if len(words) == 1 and words[0] not in _WAYS:
        return list(_WAYS), words[0]
    hint = "dsh sync push TARGET, dsh sync pull TARGET, or dsh sync TARGET for both"
    raise UsageError("name one target" if len(words) == 1 else f"unexpected {words[-1]!r}", hint=hint)


@contextmanager
def _opened(flag: str | None, *, deleted: bool = False) -> Iterator[Here]:
    from dsh.session.sync.here import Here

    db = open_database(flag)
    try:
        db.hear_signals()
        yield Here(db, deleted=deleted)
    finally:
        db.close()


@contextmanager
def _target(target: str, here: Here, program: str, *, pushing: bool, dry_run: bool) -> Iterator[Place]:
    remote = None if os.path.lexists(target) else _REMOTE.fullmatch(target)
    if remote:
        from dsh.session.sync.remote import Remote

        other = Remote(_ssh(remote["host"] or remote["name"], remote["path"] or remote["file"] or "", program))
        try:
            yield other
        finally:
            other.end()
        return
    path = Path(os.path.abspath(os.path.expanduser(target)))
    if target.endswith(".db") or path.is_file():
        from dsh.session.sync.here import Here as Beside

        with _database(path, here.db, create=pushing, dry_run=dry_run) as db:
            yield Beside(db)
        return
    from dsh.session.sync.folder import Folder

    store = query.row(here.db, "store_state")
    yield Folder(path, here.digest, str(store[0])[:8] if store else "", create=pushing)


def _ssh(host: str, path: str, program: str) -> list[str]:
    """The words of an ssh command that starts dsh on a host."""
    import shlex

    if host.startswith("-"):
        raise UsageError(f"{host!r} is no host")
    serve = f"{program} sync serve" + (f" --db {shlex.quote(path)}" if path else "")
    return ["ssh", "-T", host, serve]


@contextmanager
def _database(path: Path, ours: Database, *, create: bool, dry_run: bool) -> Iterator[Database]:
    import tempfile

    there = is_there(path)
    if not there and not (create and path.parent.is_dir()):
        raise UsageError(f"there is no database {path}")
    if there and os.path.samefile(path, ours.path):
        raise UsageError(f"{path} is the database that is synced", hint="name another one")
    with tempfile.TemporaryDirectory(prefix="dsh-") as folder:
        if not there:
            db = open_database(str(Path(folder) / "dsh.db" if dry_run else path))
        else:
            db = open_existing(path, read_only=False)
        try:
            yield db
        finally:
            db.close()


@contextmanager
def _shown() -> Iterator[Progress]:
    from dsh.cli.progress import Progress

    line = Progress(quiet=False)
    try:
        yield line
    finally:
        line.close()


def _copy(way: str, here: Here, place: Place, line: Progress, *, dry_run: bool, as_lines: bool) -> dict[str, int]:
    from dsh.session.sync.copying import Copy
    from dsh.session.sync.model import KINDS

    source, target = (place, here) if way == "pull" else (here, place)
    line.doing("comparing")
    line.draw()
    copy = Copy(source, target, dry_run=dry_run)
    counts: Counter[str] = Counter()
    for number, outcome in enumerate(copy, 1):
        counts[outcome.kind] += 1
        if outcome.kind not in ("known", "deleted"):
            line.text_flows(True)
            _tell(_WAYS[way], outcome, as_lines=as_lines)
            line.text_flows(False)
        line.doing(f"{way}: {number} of {len(copy)} sessions")
        line.draw()
    counts["known"] += copy.counts.known
    return {kind: counts[kind] for kind in KINDS}


def _tell(way: str, outcome: Outcome, *, as_lines: bool) -> None:
    if as_lines:
        fields: dict[str, Any] = {k: v for k, v in outcome._asdict().items() if v is not None}
        output.done(output.json_text(dumps({"way": way, **fields})))
        return
    id_ = output.one_line(outcome.id)
    if outcome.kind == "failed":
        output.note(f"{id_}: {outcome.reason}")
        return
    output.done(f"{way}\t{outcome.kind}\t{id_}\t{outcome.events}")
    if outcome.beside is not None:
        output.note(f"{output.one_line(outcome.beside)} went on in two places; the other log is now {id_}")


def _summary(way: str, counts: dict[str, int], *, dry_run: bool) -> str:
    told = sum(counts[kind] for kind in _TOLD)
    parts = [f"{counts[kind]} {kind}" for kind in _TOLD if counts[kind]]
    text = f"{'would have ' if dry_run else ''}{way} {told}" + (f" ({', '.join(parts)})" if parts else "")
    deleted = "deleted here" if way == _WAYS["pull"] else "deleted there"
    rest = {"known": "there already", "deleted": deleted, "failed": "could not be taken"}
    return ", ".join([text, *(f"{counts[kind]} {words}" for kind, words in rest.items() if counts[kind])])


def _serve(flag: str | None) -> int:
    from dsh.session.sync.remote import serve

    if sys.stdin is None:
        raise UsageError("standard input is closed", hint="dsh sync HOST: starts this on HOST and talks to it")
    with ending_on_sigterm(), _opened(flag) as here:
        sys.stdout.flush()
        serve(here, sys.stdin.buffer, sys.stdout.buffer)
    return 0
