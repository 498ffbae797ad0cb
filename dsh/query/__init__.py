"""Named SELECTs, one `.sql` file each, whose header comment says what it answers, its parameters and its columns.

Python calls them by name and never spells SQL: `rows(db, "messages_since", session="…", seq=17)`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dsh.store.database import Database, Row


@cache
def sql(name: str) -> str:
    """The text of a named query, without its header comment."""
    lines = (Path(__file__).parent / f"{name}.sql").read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def rows(db: Database, name: str, **parameters: Any) -> list[Row]:
    return db.rows(sql(name), parameters)


def row(db: Database, name: str, **parameters: Any) -> Row | None:
    return db.row(sql(name), parameters)
