"""Views only: the connection that loop, tools and commands share cannot touch a `_table` (docs/architecture.md).

Three layers, because none is enough alone. SQLite's *authorizer* is asked when a statement is prepared and names the
view or trigger through which a table is reached; a `_table` reached through none is refused. A common table
expression counts as "through" under its own name, so one that is named like a view of ours could let a table in; the
*text* of a statement is therefore checked too: identifiers have no escapes, so a statement that wants a table must
spell its name. And *defensive* mode keeps the schema and the index's shadow tables from being written by hand.

Pragmas may be read; those that set something are refused, since they could switch off what the connection was opened
with (`query_only`, the journal mode). The ways round that were tried stand in tests/store/test_guard.py, one line
each, with their outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import apsw

_ROWS = {apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
_DDL = {
    code
    for name, code in apsw.mapping_authorizer_function.items()
    if isinstance(name, str)
    and isinstance(code, int)
    and name.startswith(("SQLITE_CREATE", "SQLITE_DROP", "SQLITE_ALTER", "SQLITE_ATTACH", "SQLITE_DETACH"))
}
# The full-text index reads its documents from here by statements of its own, which come through no view.
_INDEX_SOURCE = "_search_source"
# Pragmas whose argument is a question, not a setting.
_ASKING = {
    "foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo", "integrity_check",
    "optimize", "quick_check", "table_info", "table_list", "table_xinfo", "wal_checkpoint",
}  # fmt: skip
# What SQLite reads as one piece, and this regular expression does too as long as no variable of the Tcl form `$a(…)`
# is about, which may hold a quote: comments, then literals and quoted names (with their content).
_PIECES = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'((?:[^']|'')*)'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]""", re.DOTALL
)
_TCL_VARIABLE = re.compile(r"[$@#\0]|:[^\s(]*\(")


class Forbidden(apsw.AuthError):
    """A statement names a private table."""


def views_only(db: apsw.Connection) -> Callable[[str], None]:
    """Install the guard; the schema must exist. A refused statement raises apsw.AuthError when it is prepared.

    What is returned checks the text of a statement, and has to be called before each is run. (As a tracer of the
    connection it would cost an append a twentieth.)
    """
    inner: set[str] = set()
    private: list[str] = []
    for kind, name in db.execute("SELECT type, name FROM sqlite_schema WHERE type IN ('view', 'trigger', 'table')"):
        if kind != "table":
            inner.add(name)
        if kind != "trigger" and name.startswith("_"):
            private.append(name)
    names = _names(private)

    def authorize(op: int, table: str | None, column: str | None, schema: str | None, via: str | None) -> int:
        if op in _ROWS and table is not None and table.startswith("_") and via not in inner and table != _INDEX_SOURCE:
            # count(*) over a flattened view asks for no column, with the schema named; a direct count names none.
            counting = op == apsw.SQLITE_READ and column == "" and schema is not None
            return apsw.SQLITE_OK if counting else apsw.SQLITE_DENY
        if op in _DDL:  # ANALYZE makes its own tables
            analyzing = op == apsw.SQLITE_CREATE_TABLE and (table or "").startswith("sqlite_stat")
            return apsw.SQLITE_OK if analyzing else apsw.SQLITE_DENY
        if op == apsw.SQLITE_PRAGMA and column is not None and str(table).lower() not in _ASKING:
            return apsw.SQLITE_DENY
        return apsw.SQLITE_OK

    clean: set[str] = set()

    def check(sql: str) -> None:
        if sql not in clean:
            if names(sql):
                raise Forbidden("a statement names a private table; read the views instead")
            if len(clean) < 1000:
                clean.add(sql)

    db.authorizer = authorize
    return check


def _names(private: list[str]) -> Callable[[str], bool]:
    """Whether a statement names one of these. In comments and in longer literals a name is only a word; a literal that
    is nothing but the name may stand for the table, since SQLite takes 'name' for a name where no text can be."""
    word = re.compile(rf"(?<![A-Za-z0-9_$])(?:{'|'.join(map(re.escape, private))})(?![A-Za-z0-9_$])", re.IGNORECASE)

    def keep(piece: re.Match[str]) -> str:
        text = piece[0]
        if text.startswith(("--", "/*")):
            return " "
        return "''" if text.startswith("'") and not word.fullmatch(piece[1]) else text

    def names(sql: str) -> bool:
        if not word.search(sql):
            return False
        return _TCL_VARIABLE.search(sql) is not None or word.search(_PIECES.sub(keep, sql)) is not None

    return names
