"""Statements that have a name: those of the folder saved/, which come with the program, and the user's own.

A statement may begin with comments: what it answers, then a line for each parameter, `-- :name = default  what it is`.
A parameter without a default has to be given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dsh.core.errors import UsageError
from dsh.query import rows, statement
from dsh.store.database import Database

_FOLDER = Path(__file__).parent / "saved"
_PARAMETER = re.compile(r"--\s*:(?P<name>\w+)(?:\s*=\s*(?P<default>'(?:[^']|'')*'|\S+))?(?:\s+(?P<about>.*))?")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Parameter(NamedTuple):
    """`default` is what somebody would type; None has to be given."""

    name: str
    default: str | None
    about: str


class Saved(NamedTuple):
    """`own` tells the user's statements from the shipped ones; `hides` one of the user's that has the name of a shipped
    one, which a later version of the program brought."""

    name: str
    sql: str
    about: str
    parameters: Sequence[Parameter]
    own: bool
    hides: bool = False

    @property
    def defaults(self) -> dict[str, str]:
        return {p.name: p.default for p in self.parameters if p.default is not None}


@cache
def shipped() -> dict[str, Saved]:
    """Those that come with the program, by name."""
    files = sorted(_FOLDER.glob("*.sql"))
    return {file.stem: read(file.stem, file.read_text("utf-8").strip(), own=False) for file in files}


def every(db: Database | None) -> dict[str, Saved]:
    """All of them by name, the shipped ones first. The user's own is taken where both have the name."""
    found = dict(shipped())
    for name, sql, about, _ in rows(db, "saved_queries") if db is not None else ():
        found[name] = read(name, sql, own=True, about=about)._replace(hides=name in shipped())
    return found


def find(db: Database | None, name: str) -> Saved:
    """One of them. UsageError names those that are near, or all."""
    known = every(db)
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, 3)
        raise UsageError(
            f"there is no query {name!r}",
            hint=f"did you mean {' or '.join(near)}?" if near else "dsh query lists them",
        )
    return known[name]


def read(name: str, sql: str, *, own: bool, about: str | None = None) -> Saved:
    """A statement with what its first comments say about it; `about` comes before them."""
    words: list[str] = []
    told: dict[str, Parameter] = {}
    for line in sql.splitlines():
        if not line.startswith("--"):
            break
        if found := _PARAMETER.fullmatch(line.rstrip()):
            told[found["name"]] = Parameter(found["name"], found["default"], found["about"] or "")
        else:
            words.append(line.removeprefix("--").strip())
    names = statement.parameters(sql)
    parameters = [told.get(each, Parameter(each, None, "")) for each in names]
    return Saved(name, sql, about if about is not None else " ".join(words).strip(), parameters, own)


def check_new(db: Database, name: str, sql: str) -> None:
    """Refuse a name that cannot be one or is a shipped query's, and what is no statement that only reads. UsageError,
    SessionError with what SQLite says."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a query", hint="small letters, digits, - and _, up to 64 of them"
        )
    if name in shipped():
        raise UsageError(f"{name} is a query that comes with dsh", hint="choose another name")
    statement.check_single(sql)
    program = db.rows(f"EXPLAIN {sql}", dict.fromkeys(statement.parameters(sql)))
    if any(opcode == "Transaction" and writes for _, opcode, _, writes, *_ in program):
        raise UsageError("a saved query only reads")
