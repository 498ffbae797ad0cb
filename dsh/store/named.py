"""Named SELECTs: the files of dsh/query/, read once and asked by name. Python never spells a SELECT."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dsh.store.database import Database, Row

_FOLDER = Path(__file__).parent.parent / "query"


@cache
def sql(name: str) -> str:
    """The text of a named query, without its header comment."""
    lines = (_FOLDER / f"{name}.sql").read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def rows(db: Database, name: str, **parameters: Any) -> list[Row]:
    return db.rows(sql(name), parameters)


def row(db: Database, name: str, **parameters: Any) -> Row | None:
    return db.row(sql(name), parameters)
