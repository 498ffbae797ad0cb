"""Bringing a database to the schema of this program.

A new file gets `schema.sql` as it stands, and the names of all migrations as its history. An older one gets the
missing migrations with their records in one transaction, after a copy of the file was made beside it if one of them
changes data. A migration changes tables only: views, triggers and indexes hold no data, so they are dropped and made
anew from `schema.sql`, and cannot drift from it. A newer or a foreign file is refused before anything is changed
(PE-52). Eight processes that open one new file together are put in a row by `BEGIN IMMEDIATE`: the first makes the
schema, the others find it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from dsh import __version__
from dsh.core.errors import StoreError

APPLICATION_ID = 0x64736864


class Migration(NamedTuple):
    """A named step to the next schema version: what it does to tables. The first has none: it made schema.sql."""

    name: str
    sql: str = ""
    changes_data: bool = False


MIGRATIONS: tuple[Migration, ...] = (
    Migration("initial"),
    Migration(
        "inbox",  # messages from other processes; the user's marks on sessions; plugins
        """
        ALTER TABLE _session ADD COLUMN pinned INTEGER;
        ALTER TABLE _session ADD COLUMN hidden INTEGER;
        ALTER TABLE _lease ADD COLUMN since INTEGER;
        DELETE FROM _surface WHERE died IS NULL  -- nodes that a fork had copied and now reads where they are
          AND seq < (SELECT start FROM _session WHERE id = _surface.session);
        CREATE TABLE _inbox(
          id INTEGER PRIMARY KEY AUTOINCREMENT,
          session INTEGER NOT NULL REFERENCES _session(id),
          message TEXT NOT NULL UNIQUE,
          route TEXT NOT NULL CHECK (route IN ('followup', 'queue', 'steer', 'inject', 'cancel')),
          content TEXT NOT NULL,
          source TEXT NOT NULL,
          contexts TEXT NOT NULL DEFAULT '[]',
          meta TEXT,
          sent_at INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE _cache(
          key TEXT PRIMARY KEY, value TEXT NOT NULL CHECK (json_valid(value))
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE _trust(folder TEXT PRIMARY KEY, trusted_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
        """,
    ),
    Migration(
        "history",  # imports, saved queries; the index has other words and tags
        """
        ALTER TABLE _store ADD COLUMN index_version INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE _store ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE _session ADD COLUMN source TEXT;
        ALTER TABLE _session ADD COLUMN changes INTEGER NOT NULL DEFAULT 0;
        CREATE TABLE _import(
          tool TEXT NOT NULL, path TEXT NOT NULL,
          stamp TEXT NOT NULL,
          state TEXT NOT NULL CHECK (json_valid(state)),
          imported_at INTEGER NOT NULL,
          PRIMARY KEY (tool, path)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE _query(
          name TEXT PRIMARY KEY, sql TEXT NOT NULL, about TEXT, saved_at INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
        ALTER TABLE _store ADD COLUMN rewriting INTEGER;
        ALTER TABLE _event ADD COLUMN frame INTEGER;
        ALTER TABLE _event ADD COLUMN cut INTEGER;
        ALTER TABLE _event ADD COLUMN span INTEGER;
        CREATE TABLE _frame(
          id INTEGER PRIMARY KEY, head TEXT NOT NULL, tail TEXT NOT NULL,
          turn TEXT, step TEXT,
          UNIQUE (head, tail)
        ) STRICT;
        CREATE TABLE _block(
          id INTEGER PRIMARY KEY,
          session INTEGER REFERENCES _session(id),
          body ANY NOT NULL
        ) STRICT;
        CREATE TABLE _piece(
          event INTEGER NOT NULL REFERENCES _event(id),
          at INTEGER NOT NULL,
          rest INTEGER NOT NULL,
          block INTEGER NOT NULL REFERENCES _block(id),
          start INTEGER NOT NULL, size INTEGER,
          PRIMARY KEY (event, at)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE _redaction(
          session INTEGER NOT NULL REFERENCES _session(id), seq INTEGER NOT NULL, at INTEGER NOT NULL,
          PRIMARY KEY (session, seq)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE _deleted(
          name TEXT PRIMARY KEY, deleted_at INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
        DROP TABLE search_word;
        DROP TABLE search;
        CREATE VIRTUAL TABLE search USING fts5(text, parts, tags, content = '_search_source', content_rowid = 'id',
          tokenize = 'unicode61');
        INSERT INTO search(search, rank) VALUES ('hashsize', 8388608);
        CREATE VIRTUAL TABLE search_word USING fts5vocab(search, row);
        UPDATE _store SET indexed = 0;
        """,
    ),
)


def schema_text() -> str:
    """Tables and views, then the rules that stand on them."""
    home = Path(__file__).parent.parent
    return "\n".join((home / name).read_text("utf-8") for name in ("schema.sql", "rules.sql"))


def run_script(db: apsw.Connection, sql: str) -> None:
    """Run every statement. A cursor runs as far as it is read, so it has to be drained."""
    for _ in db.execute(sql):
        pass


def scalar(db: apsw.Connection, sql: str) -> int:
    for row in db.execute(sql):
        return int(row[0])
    return 0


def migrate(
    db: apsw.Connection,
    migrations: Sequence[Migration] = MIGRATIONS,
    backup: Callable[[str], None] | None = None,
) -> None:
    """Check whose database this is and make its schema current. `backup(name)` copies the file before data changes.

    Raises StoreError DB_FOREIGN or DB_VERSION with both numbers, having changed nothing.
    """
    db.execute("BEGIN")  # one state of the file: another process may be making the schema between two reads
    try:
        if _current(db, len(migrations)):
            return
    finally:
        if db.in_transaction:
            db.execute("COMMIT")
    db.execute("BEGIN IMMEDIATE")
    try:
        if not _current(db, len(migrations)):
            version = scalar(db, "PRAGMA user_version")
            if version == 0:
                run_script(db, schema_text())
                db.execute("INSERT INTO _store(id, store_id) VALUES (1, lower(hex(randomblob(16))))")
            # Copied under the write lock: it is the very state that the migrations start from.
            changing = next((m for m in migrations[version:] if m.changes_data and version > 0), None)
            if changing is not None and backup is not None:
                backup(changing.name)
            for number, migration in enumerate(migrations[version:], version + 1):
                if version > 0:
                    run_script(db, migration.sql)
                    if number == len(migrations):
                        _remake(db)
                db.execute(
                    "INSERT INTO _migration(id, name, applied_at, program) VALUES (?, ?, ?, ?)",
                    (number, migration.name, int(time.time() * 1000), __version__),
                )
            db.execute(f"PRAGMA user_version = {len(migrations)}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _remake(db: apsw.Connection) -> None:
    """Views, triggers, indexes as schema.sql has them, and in its order: the last trigger made is the first to fire."""
    with _fresh() as fresh:
        wanted = [sql for (sql,) in fresh.execute(_MADE.format(column="sql"))]
    for kind, name in list(db.execute(_MADE.format(column="type, name"))):
        db.execute(f'DROP {kind} IF EXISTS "{name}"')
    for sql in wanted:
        run_script(db, sql)


@contextmanager
def _fresh() -> Iterator[apsw.Connection]:
    """An empty database with the schema of schema.sql."""
    fresh = apsw.Connection(":memory:")
    try:
        run_script(fresh, schema_text())
        yield fresh
    finally:
        fresh.close()


def drift(db: apsw.Connection) -> list[str]:
    """What is not as schema.sql has it, one line each: a rule that was changed by hand or by damage. Tables and
    indexes that somebody added do no harm; a view or a trigger may."""
    with _fresh() as fresh:
        wanted, found = ({name: (kind, sql) for kind, name, sql in each.execute(_TEXTS)} for each in (fresh, db))
        lines = [f"{kind} {name} is missing" for name, (kind, _) in wanted.items() if name not in found]
        for name, (kind, sql) in found.items():
            if name not in wanted:
                lines += [f"{kind} {name} is none of ours"] if kind in ("view", "trigger") else []
            elif kind == "table":
                lines += [f"{kind} {name} has other columns"] if _columns(db, name) != _columns(fresh, name) else []
            elif (kind, sql) != wanted[name]:
                lines.append(f"{kind} {name} is not as it was made")
        orders = [list(each.execute(_TRIGGERS)) for each in (fresh, db)]
    if not lines and orders[0] != orders[1]:
        lines.append("the triggers of a table are not in their order")
    return lines


def _columns(db: apsw.Connection, table: str) -> list[tuple[Any, ...]]:
    return list(db.execute("SELECT * FROM pragma_table_xinfo(?)", (table,)))


_TEXTS = (
    r"SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\_%' ESCAPE '\'"
    " ORDER BY rowid"
)
_TRIGGERS = "SELECT tbl_name, name FROM sqlite_schema WHERE type = 'trigger' ORDER BY tbl_name, rowid"
# Not the indexes that SQLite makes for itself: they have no text.
_MADE = (
    "SELECT {column} FROM sqlite_schema WHERE type IN ('view', 'trigger', 'index') AND sql IS NOT NULL ORDER BY rowid"
)


def _current(db: apsw.Connection, wanted: int) -> bool:
    """Whether the schema is this program's; refuses one that is not ours or is newer."""
    application = scalar(db, "PRAGMA application_id")
    version = scalar(db, "PRAGMA user_version")
    if application == 0 and version == 0:
        # Anything a user made counts, views and names like "sqliteish" included; SQLite's own begin with "sqlite_".
        objects = scalar(db, r"SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'")
        if objects == 0:
            return False
    if application != APPLICATION_ID:
        raise StoreError(
            f"is not a dsh database (application id {application:#x}, ours is {APPLICATION_ID:#x})", code="DB_FOREIGN"
        )
    if version > wanted:
        raise StoreError(
            f"has schema version {version}, made by a newer dsh; this program knows {wanted}", code="DB_VERSION"
        )
    if version < 1:
        raise StoreError(f"has schema version {version}; this program knows {wanted}", code="DB_VERSION")
    return version == wanted
