"""What the public views are for, and each of their columns: the database's own list beside the words of views.toml.

The file describes what a version of the schema has; a test holds the two together.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dsh.core.errors import UsageError
from dsh.query import rows
from dsh.store.database import Database

_FILE = Path(__file__).parent / "views.toml"


class Column(NamedTuple):
    """`type` is what SQLite knows of it, '' where it is computed."""

    name: str
    type: str
    comment: str


class View(NamedTuple):
    name: str
    about: str
    example: str
    columns: list[Column]


@cache
def described() -> dict[str, dict[str, Any]]:
    """views.toml: of each view `about`, `example` (a statement that answers something) and `columns`."""
    import tomllib

    return tomllib.loads(_FILE.read_text("utf-8"))


def views(db: Database) -> list[View]:
    """The public views of a database, in the order of schema.sql."""
    found: dict[str, View] = {}
    for name, column, type_ in rows(db, "public_views"):
        told = described().get(name, {})
        view = found.setdefault(name, View(name, told.get("about", ""), told.get("example", ""), []))
        view.columns.append(Column(column, type_, told.get("columns", {}).get(column, "")))
    return list(found.values())


def view(db: Database, name: str) -> View:
    """One of them. UsageError names those that there are."""
    known = {each.name: each for each in views(db)}
    if name.lower() not in known:
        raise UsageError(f"there is no view {name!r}", hint=f"views: {', '.join(known)}")
    return known[name.lower()]
