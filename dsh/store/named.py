"""Named SELECTs: the files of dsh/query/, read once and asked by name. Python never spells a SELECT."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dsh.core.errors import SessionError, StoreError
from dsh.store.database import DAMAGED, Database, Row

_FOLDER = Path(__file__).parent.parent / "query"


@cache
def sql(name: str) -> str:
    """The text of a named query, without its header comment."""
    lines = (_FOLDER / f"{name}.sql").read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def rows(db: Database, name: str, **parameters: Any) -> list[Row]:
    try:
        return db.rows(sql(name), parameters)
    except SessionError as error:
        if error.code == "SQL" and error.message.startswith("no such"):  # our queries name what our schema has
            raise StoreError(f"{db.path} is damaged (its schema: {error.message})", hint=DAMAGED) from error
        raise


def row(db: Database, name: str, **parameters: Any) -> Row | None:
    found = rows(db, name, **parameters)
    return found[0] if found else None
