"""Databases of other agents as readers want them: any failure is a ReadError, JSON in a column may be anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from dsh.core.messages import Block
from dsh.importing.clean import json_text, parsed
from dsh.importing.model import ReadError, Source, left_out, source_of
from dsh.store.foreign import MAX_VALUE, TOO_LONG, Foreign, foreign

SETTLED_MS = 3_600_000  # a record that was not touched for so long is not being written


@contextmanager
def opened(path: str, **tables: tuple[str, ...]) -> Iterator[Foreign]:
    """A database that has tables with these columns; ReadError if it has not, or cannot be read (to the end)."""
    with foreign(path, ReadError) as db:
        for table, columns in tables.items():
            if not db.has(table, *columns):
                raise ReadError(f"has no table {table} as it is known here")
        yield db


def database_source(path: str) -> Source | None:
    """The source that a database is, with what its owner has written and not yet moved into it."""
    return source_of(path, f"{os.path.realpath(path)}-wal")


@cache
def ids(path: str, stamp: str, table: str) -> frozenset[str]:
    """The ids in a table of a database, as of a stamp of its source; none where it cannot be read."""
    try:
        with opened(path, **{table: ("id",)}) as db:
            return frozenset(each for (each,) in db.rows(table, ("id",)) if isinstance(each, str))
    except (ReadError, OSError):
        return frozenset()


def below(folder: str, wanted: str, depth: int = 6) -> Iterator[str]:
    """Files of a name below a folder. Links are not followed, and what tools install is not looked through."""
    folders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == wanted:
                    yield entry.path
                elif depth and entry.name not in _PASSED_OVER and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    except OSError:
        return
    for each in sorted(folders):
        yield from below(each, wanted, depth - 1)


_PASSED_OVER = frozenset({"node_modules", ".git", ".hg", ".venv", "venv", "site-packages", "__pycache__", ".cache"})


def document(value: Any) -> Any:
    """The JSON value in a column, None for NULL. ValueError says what is wrong with it."""
    if value is None:
        return None
    if value is TOO_LONG:
        raise ValueError(f"is longer than {MAX_VALUE // 2**20} MiB")
    if not isinstance(value, str):
        raise ValueError("is not text")
    return parsed(value)


def fields(value: Any) -> dict[str, Any]:
    """The object in a column; an empty one where there is none that can be read."""
    try:
        found = document(value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def known_text(value: Any) -> str:
    """Text as it is; "" for anything else."""
    return value if isinstance(value, str) else ""


def attachment(mime: Any, base64: Any = "") -> Block:
    """The mark in the place of a file that was attached."""
    kind = known_text(mime)
    return left_out("image" if kind.startswith("image/") else "file", kind, len(known_text(base64)) * 3 // 4)


def shown(value: Any) -> str:
    """Text as it is, any other value as JSON, nothing for null."""
    if isinstance(value, str):
        return value
    return "" if value is None or value is TOO_LONG else json_text(value)
