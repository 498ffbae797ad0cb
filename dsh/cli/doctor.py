"""`dsh doctor`: check the installation and the database."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import click

from dsh import __version__, query
from dsh.cli import output
from dsh.cli.common import db_flag, is_there, load_config, open_existing
from dsh.cli.group import db_option
from dsh.core.errors import DshError, StoreError
from dsh.kernel import config as configuration
from dsh.kernel.config import Config
from dsh.query import check as checks
from dsh.store.database import Database


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `ok` is None for a plain fact and for what may be missing."""

    name: str
    detail: str
    ok: bool | None = None


@click.command("doctor", short_help="Check the installation and the database.")
@click.option("--full", is_flag=True, help="Read the whole database and compare the search index with the log.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per finding.")
@db_option
@click.pass_context
def command(ctx: click.Context, full: bool, as_lines: bool) -> int:
    """Check the installation and the database.

    Without --full the structure of the file is checked, not the search index. Keys and secrets are named, never
    shown. The exit code is 1 if something is broken.
    """
    broken = False
    for finding in _findings(db_flag(ctx), full=full):
        broken = broken or finding.ok is False
        if as_lines:
            output.json_line({"name": finding.name, "ok": finding.ok, "detail": finding.detail})
        elif output.is_terminal():
            mark = {True: "ok", False: "BROKEN", None: ""}[finding.ok]
            code = output.MATCH if finding.ok is False else output.DIM
            output.line(f"{finding.name:<16}  {output.style(f'{mark:<6}', code)}  {output.one_line(finding.detail)}")
        else:
            mark = {True: "ok", False: "broken", None: "-"}[finding.ok]
            output.line(f"{finding.name}\t{mark}\t{output.one_line(finding.detail)}")
    return 1 if broken else 0


def _findings(flag: str | None, *, full: bool) -> Iterator[Finding]:
    import apsw

    yield Finding("dsh", __version__)
    yield Finding("python", f"{sys.version.split()[0]} ({sys.executable})")
    yield Finding("sqlite", apsw.sqlite_lib_version())
    path = configuration.database_path(flag)
    yield Finding("database", str(path))
    db: Database | None = None
    try:
        if not is_there(path):
            yield Finding("database file", "not there yet; the first run makes it")
        else:
            yield _file(path)
            db = open_existing(path, read_only=False)
    except DshError as error:
        yield Finding("database opens", error.message, False)
    try:
        if db is not None:
            try:
                yield from _contents(db, full=full)
            except DshError as error:
                yield Finding("integrity", error.message, False)
        yield from _configuration(db)
    finally:
        if db is not None:
            db.close()
    yield from _programs()


def _file(path: Path) -> Finding:
    info = path.stat()
    mode = stat.S_IMODE(info.st_mode)
    detail = f"{info.st_size / 1e6:.1f} MB, mode {mode:04o}"
    if mode & 0o077:
        return Finding("database file", f"{detail}; others may read it (chmod 600 closes it)")
    if info.st_nlink > 1:  # each name has a -wal file of its own
        return Finding("database file", f"{detail}; has {info.st_nlink} names (hard links): use it by one of them only")
    return Finding("database file", detail, True)


def _contents(db: Database, *, full: bool) -> Iterator[Finding]:
    state = query.row(db, "store_state")
    assert state is not None
    store_id, version, sessions, indexed, last, _ = state
    yield Finding("schema", f"version {version}, store {store_id}, journal mode {db.pragma('journal_mode')}", True)
    yield Finding("history", f"{sessions} sessions, last event {last}")
    lag = last - indexed
    behind = f", {lag} to index at the next search" if lag else ""
    yield Finding("search index", f"up to event {indexed}{behind}", True)
    complaints = [v.message for v in islice(checks.structure(db, quick=not full), 3)]
    yield Finding("integrity", "; ".join(complaints) or ("whole file" if full else "structure"), not complaints)
    if full:
        wrong = checks.check(db, limit=3)
        told = "; ".join(f"{v.session}{'' if v.seq is None else f':{v.seq}'} {v.rule} {v.message}" for v in wrong)
        yield Finding("log follows its rules", told or "every session", not wrong)
        yield _index(db)


def _index(db: Database) -> Finding:
    try:
        wrong = next(checks.index(db), None)
    except StoreError as error:
        return Finding("index matches log", f"not checked: {error.message}")
    return Finding("index matches log", "every document" if wrong is None else wrong.message, wrong is None)


def _configuration(db: Database | None) -> Iterator[Finding]:
    place = configuration.config_path()
    yield Finding("config file", f"{place}{'' if place.exists() else ' (none)'}")
    try:
        config = load_config(db)
        changed = [f"{key} ({config.origin(key)})" for key in configuration.SETTINGS if config.origin(key) != "default"]
        yield Finding("settings", ", ".join(changed) or "all at their defaults", True)
        yield from _providers(config)
    except DshError as error:
        yield Finding("configuration", error.message, False)


def _providers(config: Config) -> Iterator[Finding]:
    from dsh.llm.local import is_installed, model_dir
    from dsh.llm.routes import configured

    routes = configured(config)
    usable = [name for name, route in routes.items() if route.missing is None]
    yield Finding("providers", ", ".join(usable) or "none configured", bool(usable) or None)
    missing = [route.missing for route in routes.values() if route.missing]
    if missing:
        yield Finding("keys not set", ", ".join(missing))
    yield Finding("local model", str(model_dir()) if is_installed() else "not installed (dsh models install local)")


def _programs() -> Iterator[Finding]:
    found = shutil.which("rg")
    yield Finding("rg", found or "not found; needed by the grep and glob tools", True if found else None)
    shell = os.environ.get("SHELL", "")
    bash = shutil.which("bash")
    yield Finding("bash", bash or f"not found; SHELL is {shell or 'not set'}", bash is not None)
