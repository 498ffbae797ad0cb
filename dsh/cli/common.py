"""What commands share: opening the database, loading settings, naming sessions and times."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from dsh import query
from dsh.cli import output
from dsh.core.errors import ConfigError, DshError, SessionError, StoreError, UsageError
from dsh.core.lossless import loads
from dsh.kernel import config as configuration
from dsh.kernel.config import Config
from dsh.query.moment import point_in_time as point_in_time
from dsh.store.database import Database


class NoHistory(DshError):
    """There is no database yet, so there is nothing to find (exit 1)."""

    code = "DB_MISSING"


def db_flag(ctx: click.Context) -> str | None:
    """What `--db` said, before or after the command's name."""
    given = (ctx.obj or {}).get("db")
    return None if given is None else str(given)


def busy_timeout_ms() -> int:
    """How long to wait for a lock. The value stored in the database cannot be known before it is open."""
    return int(configuration.load()["store.busy_timeout_ms"])


def open_database(flag: str | None) -> Database:
    """The database, made if it is not there yet. StoreError names the file (exit 8)."""
    return Database.open(configuration.database_path(flag), busy_timeout_ms=busy_timeout_ms())


@contextmanager
def reading(flag: str | None, *, read_only: bool = True) -> Iterator[Database]:
    """The existing database, for commands that only read; NoHistory if there is none.

    While it is open SIGTERM ends the program with 143, and Ctrl-C is heard inside a long statement.
    """
    path = configuration.database_path(flag)
    if not is_there(path):
        raise NoHistory(f"no history yet: {path} does not exist", hint='it is made by: dsh run "QUESTION"')
    with ending_on_sigterm():
        db = open_existing(path, read_only=read_only)
        try:
            db.hear_signals()
            yield db
        finally:
            db.close()


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the program with 143, and what was begun is cleared away."""
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def history(flag: str | None, *, read_only: bool = True) -> Iterator[Database]:
    """The database of a session that was named: without one there is no such session (exit 2)."""
    try:
        with reading(flag, read_only=read_only) as db:
            yield db
    except NoHistory as error:
        raise SessionError(error.message, code="SESSION_NOT_FOUND", hint=error.hint) from error


def somebody_to_ask(otherwise: str) -> None:
    """Make sure that a person can answer a question; UsageError, which says what to do instead, if there is none."""
    if not (sys.stdin is not None and output.is_terminal(sys.stdin) and output.errors_on_terminal()):
        raise UsageError(otherwise)


def is_there(path: Path) -> bool:
    """Whether there is a database; StoreError DB_IO if its folder does not let us know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}", code="DB_IO") from error
    return True


def open_existing(path: Path, *, read_only: bool) -> Database:
    """With `read_only` false the database may be written if it can be; on read-only media it is read all the same."""
    timeout = busy_timeout_ms()
    if not read_only:
        try:
            return Database.open(path, busy_timeout_ms=timeout, create=False)
        except StoreError as error:
            if error.code not in ("DB_READONLY", "DB_IO"):
                raise
    return Database.open(path, busy_timeout_ms=timeout, read_only=True, create=False)


def _terminated(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


def load_config(db: Database | None) -> Config:
    """The settings in force, those stored in the database included."""
    return configuration.load(stored_settings(db) if db is not None else None)


def stored_settings(db: Database) -> dict[str, Any]:
    stored = {}
    for key, value in query.rows(db, "settings"):
        try:
            stored[key] = loads(value)
        except ValueError:
            raise ConfigError(f"the stored setting {key} is not readable", hint=f"dsh config unset {key}") from None
    return stored


def folder(typed: str | None, here: bool) -> str | None:
    """The absolute folder of `--cwd DIR` or `--here`."""
    if typed is not None and here:
        raise UsageError("--cwd and --here exclude each other")
    if typed is not None:
        return os.path.abspath(os.path.expanduser(typed))
    return current_folder() if here else None


def current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder does not exist any more", hint="name another with --cwd DIR") from None
