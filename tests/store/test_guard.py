"""Views only: every way round that was thought of, one line each, with its outcome (PE-70).

`pass` is what must go on working; `refused` must never reach a private table; `error` is SQLite's own refusal, where
there is nothing to find.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from dsh.core.errors import DshError, SessionError
from dsh.store import writes
from dsh.store.database import Database
from tests.session.kit import World, dump, raw, whole_turn, world

pytestmark = pytest.mark.slow  # a database for each way round that was tried

PASS = [
    # reading the views in every form
    "SELECT * FROM event",
    "SELECT count(*) FROM event",
    "SELECT count(*) FROM session",
    "SELECT 1 FROM setting",
    "SELECT seq FROM event WHERE session_id = 's' ORDER BY seq DESC LIMIT 3",
    'SELECT "seq" FROM "event" AS "e"',
    "SELECT e.seq FROM main.event e, session s WHERE e.session_id = s.id",
    "SELECT s.id, t.title FROM session s LEFT JOIN title t ON t.session_id = s.id",
    "WITH q AS (SELECT * FROM event) SELECT count(*) FROM q",
    "WITH event AS (SELECT * FROM session) SELECT id FROM event",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT * FROM n JOIN event",
    "SELECT (SELECT max(seq) FROM event), EXISTS (SELECT 1 FROM step)",
    "SELECT * FROM event UNION ALL SELECT * FROM event INTERSECT SELECT * FROM event",
    "SELECT seq, row_number() OVER (ORDER BY seq) FROM event",
    "SELECT * FROM event, json_each(data)",
    "SELECT * FROM turn NATURAL JOIN session",
    "SELECT * FROM search_document",
    "SELECT rowid, snippet(search, 0, '[', ']', '…', 5) FROM search WHERE search MATCH 'hello' ORDER BY rank",
    "SELECT bm25(search) FROM search WHERE search MATCH 'hello'",
    "SELECT text FROM search",
    "EXPLAIN SELECT * FROM event",
    "EXPLAIN QUERY PLAN SELECT * FROM event",
    "VALUES (1), (2)",
    # a private name that is only a word
    "SELECT 'the table _event is private'",
    "SELECT 'it''s _event, you know' -- _event",
    "SELECT 1 /* FROM _event */",
    "SELECT 1 -- FROM _event",
    "SELECT * FROM event WHERE data LIKE '%_session%'",
    "SELECT 'a' || ' _event ' || \"seq\" FROM event",
    "SELECT my_event FROM (SELECT 1 AS my_event)",
    "SELECT 1 AS _events, 2 AS _x",
    # what the schema is
    "SELECT name, sql FROM sqlite_schema",
    "SELECT * FROM pragma_table_info('event')",
    "SELECT * FROM pragma_function_list",
    "PRAGMA table_info(event)",
    "PRAGMA user_version",
    "PRAGMA query_only",
    "PRAGMA foreign_keys",
    "PRAGMA quick_check",
    "PRAGMA integrity_check(5)",
    "PRAGMA foreign_key_check",
    "PRAGMA wal_checkpoint(PASSIVE)",
    "PRAGMA optimize",
    "ANALYZE",
    "REINDEX",
    # writing where the views allow it
    "INSERT INTO setting(key, value) VALUES ('a', '1')",
    "INSERT INTO setting(key, value) VALUES ('a', '1') RETURNING key",
    "INSERT INTO setting(key, value) SELECT 'b', '2' FROM event",
    "DELETE FROM setting WHERE key = 'a'",
    "INSERT INTO event(session_id, type, data) VALUES ('s', 'turn/start', '{\"turn\":2}')",
    "UPDATE store SET search_indexed = last_event",
    "INSERT INTO search(search) VALUES ('optimize')",
    "INSERT INTO search(search) VALUES ('rebuild')",
    "INSERT INTO search(search, rank) VALUES ('integrity-check', 1)",
    "DELETE FROM session WHERE id = 's'",
    "SAVEPOINT x",
]

REFUSED = [
    # the plain ways
    "SELECT * FROM _event",
    "SELECT data FROM _event",
    "SELECT count(*) FROM _event",
    "SELECT 1 FROM _event",
    "SELECT * FROM main._event",
    "SELECT count(*) FROM main._event",
    "SELECT * FROM _EVENT",
    "SELECT * FROM _Event AS event",
    "SELECT event.data FROM _event event",
    'SELECT * FROM "_event"',
    "SELECT * FROM [_event]",
    "SELECT * FROM `_event`",
    "SELECT * FROM '_event'",
    'SELECT * FROM "main"."_event"',
    "SELECT * FROM main/**/./* x */_event",
    "SELECT * FROM -- a comment\n_event",
    "SELECT * FROM\t_event\n",
    "SELECT/**/data/**/FROM/**/_event",
    "SELECT * FROM event, _event",
    "SELECT * FROM event JOIN _event USING (seq)",
    "SELECT * FROM event LEFT JOIN _session ON 1",
    "SELECT * FROM (SELECT * FROM _event)",
    "SELECT * FROM (_event)",
    "SELECT (SELECT data FROM _event LIMIT 1)",
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM _event)",
    "SELECT 1 WHERE 1 IN _event",
    "SELECT 1 WHERE 'x' IN (SELECT data FROM _event)",
    "SELECT seq FROM event UNION SELECT seq FROM _event",
    "SELECT seq FROM event ORDER BY (SELECT max(seq) FROM _event)",
    "SELECT seq FROM event LIMIT (SELECT max(seq) FROM _event)",
    "SELECT count(*) FILTER (WHERE EXISTS (SELECT 1 FROM _event)) FROM event",
    "SELECT rowid FROM _event",
    "SELECT rowid FROM _session",
    "EXPLAIN SELECT * FROM _event",
    "EXPLAIN QUERY PLAN SELECT * FROM main._event",
    "SELECT 1; SELECT * FROM _event",
    "SELECT 1;;\n;SELECT * FROM _event",
    # by way of a common table expression, also one named like a view or a trigger
    "WITH q AS (SELECT * FROM _event) SELECT * FROM q",
    "WITH event AS (SELECT * FROM _event) SELECT * FROM event",
    "WITH event AS (SELECT * FROM '_event') SELECT * FROM event",
    'WITH event AS (SELECT * FROM "_event") SELECT * FROM event',
    "WITH event AS (SELECT * FROM main._event) SELECT count(*) FROM event",
    "WITH event_insert AS (SELECT * FROM _event) SELECT * FROM event_insert",
    "WITH _event_rules AS (SELECT * FROM _event) SELECT * FROM _event_rules",
    "WITH event AS MATERIALIZED (SELECT * FROM _event) SELECT * FROM event",
    "WITH event(a) AS (SELECT data FROM _event UNION ALL SELECT data FROM _event) SELECT * FROM event",
    "WITH RECURSIVE event(i) AS (SELECT id FROM _event UNION ALL SELECT 1 FROM event) SELECT * FROM event LIMIT 5",
    "WITH _event AS (SELECT 1 AS x) SELECT x FROM _event",
    "SELECT * FROM (WITH session AS (SELECT * FROM _session) SELECT * FROM session)",
    "INSERT INTO setting(key, value) WITH event AS (SELECT data FROM _event) SELECT 'k', data FROM event",
    # hidden from a check of the text
    "WITH event AS (SELECT * FROM '_event' /* ' */) SELECT * FROM event",
    "WITH event AS (SELECT '''' , * FROM _event WHERE '''' = '''') SELECT * FROM event",
    "WITH event AS (SELECT '--', * FROM _event) SELECT * FROM event",
    "WITH event AS (SELECT '/*', * FROM _event /* '*/) SELECT * FROM event",
    'WITH event AS (SELECT "/*" FROM (SELECT 1 AS "/*"), _event /* */) SELECT * FROM event',
    "WITH event AS (SELECT [--] FROM (SELECT 1 AS [--]), _event) SELECT * FROM event",
    "WITH event AS (SELECT `'` FROM (SELECT 1 AS `'`), _event -- '\n) SELECT * FROM event",
    "WITH event AS (SELECT x'27', * FROM _event -- '\n) SELECT * FROM event",
    "WITH event AS (SELECT $a('), * FROM _event WHERE 1 = $b(')) SELECT * FROM event",
    "WITH event AS (SELECT @a('), * FROM _event WHERE 1 = @b(')) SELECT * FROM event",
    "WITH event AS (SELECT :a('), * FROM _event WHERE 1 = :b(')) SELECT * FROM event",
    "WITH event AS (SELECT #a('), * FROM _event WHERE 1 = #b(')) SELECT * FROM event",
    "WITH event AS (SELECT :a::b('), * FROM _event WHERE 1 = :a::b(')) SELECT * FROM event",
    "WITH event AS (SELECT 1 -- '\n, * FROM _event -- '\n) SELECT * FROM event",
    "WITH event AS (SELECT 1 -- '\r\n, * FROM _event) SELECT * FROM event",
    "WITH event AS (SELECT 1 /* ' */, * FROM _event /* ' */) SELECT * FROM event",
    "WITH event AS (SELECT 1/1, * FROM _event WHERE 2/2 = 1) SELECT * FROM event",
    "WITH event AS (SELECT 1 - -1, * FROM _event) SELECT * FROM event",
    # other private things
    "SELECT * FROM _landmark",
    "SELECT * FROM _search_source",
    "SELECT count(*) FROM _search_source",
    "WITH event AS (SELECT * FROM _landmark) SELECT * FROM event",
    "SELECT * FROM _session",
    "SELECT holder FROM _lease",
    "SELECT * FROM _store",
    # writing
    "INSERT INTO _event VALUES (1, 1, 1, 'x', 1, '1', NULL, NULL)",
    "INSERT OR REPLACE INTO _event(id, session, seq, type, time, data) VALUES (1, 1, 0, 'x', 1, '1')",
    "REPLACE INTO _session(id, name, created_at, incarnation, updated_at) VALUES (1, 's', 1, 'x', 1)",
    "INSERT INTO _event(session, seq, type, time, data) SELECT 1, 9, 'x', 1, '1' RETURNING data",
    "INSERT INTO _setting VALUES ('a', '1') ON CONFLICT DO UPDATE SET value = '2'",
    "UPDATE _event SET data = '1'",
    "UPDATE _session SET length = 0",
    "UPDATE OR REPLACE _event SET seq = 0",
    "UPDATE _session SET length = 0 FROM event",
    "UPDATE store SET search_indexed = e.id FROM _event e",
    "DELETE FROM _event",
    "DELETE FROM _event WHERE 0 RETURNING *",
    "DELETE FROM _store",
    "DELETE FROM setting WHERE key IN (SELECT data FROM _event)",
    "INSERT INTO setting(key, value) VALUES ('a', (SELECT data FROM _event))",
    "INSERT INTO setting(key, value) VALUES ('a', '1') RETURNING (SELECT data FROM _event)",
    # making a door
    "CREATE VIEW leak AS SELECT * FROM _event",
    "CREATE TEMP VIEW leak AS SELECT * FROM main._event",
    "CREATE TEMPORARY VIEW event AS SELECT 1",
    "CREATE TABLE t AS SELECT * FROM event",
    "CREATE TEMP TABLE t(x)",
    "CREATE TRIGGER t INSTEAD OF INSERT ON turn BEGIN SELECT 1; END",
    "CREATE TEMP TRIGGER t INSTEAD OF INSERT ON main.setting BEGIN DELETE FROM _event; END",
    "CREATE INDEX i ON _event(time)",
    "CREATE VIRTUAL TABLE temp.v USING fts5vocab(main, search, row)",
    "CREATE VIRTUAL TABLE temp.v USING fts5(a, content = '_event')",
    "CREATE VIRTUAL TABLE d USING dbstat(main)",
    "DROP VIEW event",
    "DROP TRIGGER _event_rules",
    "DROP TRIGGER event_update",
    "DROP TABLE search",
    "ALTER TABLE _event RENAME TO e",
    "ALTER TABLE search RENAME TO s",
    "ATTACH ':memory:' AS m",
    "ATTACH 'sqlite_stat1' AS m",
    "ATTACH '' AS m",
    "DETACH main",
    "VACUUM",
    "VACUUM INTO '/tmp/never'",
    "REINDEX _event",
    "ANALYZE _event",
    # switching the protection off
    "PRAGMA writable_schema = 1",
    "PRAGMA writable_schema = RESET",
    "PRAGMA main.writable_schema(1)",
    "PRAGMA query_only = 0",
    "PRAGMA QUERY_ONLY(0)",
    "PRAGMA foreign_keys = 0",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA journal_mode(OFF)",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA user_version = 5",
    "PRAGMA application_id = 0",
    "PRAGMA schema_version = 1",
    "PRAGMA trusted_schema = 1",
    "PRAGMA recursive_triggers = 1",
    "PRAGMA ignore_check_constraints = 1",
    "PRAGMA defer_foreign_keys = 1",
    "PRAGMA legacy_alter_table = 1",
    "PRAGMA cell_size_check = 0",
    "PRAGMA mmap_size = 1000000",
    "PRAGMA temp_store = FILE",
    "PRAGMA page_size = 512",
    "PRAGMA encoding = 'UTF-16'",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA max_page_count = 5",
    "PRAGMA table_info(_event)",
    "SELECT * FROM pragma_table_info('_event')",
]

ERROR = [
    "UPDATE setting SET value = (SELECT data FROM _event)",
    "CREATE TEMP TABLE sqlite_stat9(x)",
    "UPDATE sqlite_schema SET sql = ''",
    "DELETE FROM sqlite_master",
    "INSERT INTO search_data VALUES (1, x'00')",
    "DELETE FROM search_docsize",
    "SELECT * FROM sqlite_dbpage",
    "SELECT * FROM sqlite_dbdata",
    "SELECT load_extension('x')",
    "SELECT fts3_tokenizer('simple', x'00')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('/tmp/never', 'x')",
    "SELECT edit('x')",
    "SELECT * FROM é_event",
    'SELECT * FROM "_ev""ent"',
    'SELECT * FROM "\\u005fevent"',
    'SELECT * FROM U&"\\005fevent"',
    "SELECT * FROM _ſession",
    "SELECT * FROM _eve\x00nt",
    "UPDATE event SET data = '1'",
    "DELETE FROM event",
    "UPDATE session SET length = 0",
    "INSERT INTO turn(session_id) VALUES ('s')",
    "INSERT INTO driver_event(holder, session_id, type, data) VALUES ('nobody', 's', 'turn/start', '{\"turn\":2}')",
]


@pytest.fixture
def w(tmp_path: Path) -> Iterator[World]:
    opened = world(tmp_path / "dsh.db")
    whole_turn(opened.session("s"), "hello", calls=1)
    opened.db.rows("INSERT INTO setting(key, value) VALUES ('x', '1')")
    writes.refresh_search(opened.db)
    yield opened
    opened.db.close()


def run(db: Database, sql: str) -> str | None:
    """None if it ran, else the code of the refusal. Variables are bound, however many there are."""
    variables = 1 if "::" in sql else 2 * any(f"{sign}a(" in sql for sign in "$@:#")
    try:
        _, rows = db.stream(sql, (1,) * variables)
        list(rows)
    except DshError as error:
        return error.code
    return None


@pytest.mark.parametrize("sql", PASS)
def test_passes(w: World, sql: str) -> None:
    assert run(w.db, sql) is None
    assert run(w.db, sql) is None or sql.startswith(("INSERT INTO event", "SAVEPOINT"))


@pytest.mark.rule("PE-70")
@pytest.mark.parametrize("sql", REFUSED)
def test_is_refused(w: World, sql: str) -> None:
    before = dump(w.path)
    for _ in range(2):  # a second time from the cache of statements
        assert run(w.db, sql) == "VIEWS_ONLY"
    assert dump(w.path) == before
    assert run(w.db, "SELECT count(*) FROM event") is None


@pytest.mark.rule("PE-70")
@pytest.mark.parametrize("sql", ERROR)
def test_is_an_error(w: World, sql: str) -> None:
    before = dump(w.path)
    try:
        code = run(w.db, sql)
    except ValueError:  # a NUL in the text
        code = "SQL"
    assert code is not None
    assert dump(w.path) == before
    assert not Path("/tmp/never").exists()


@pytest.mark.rule("PE-70")
@pytest.mark.parametrize("sql", [s for s in REFUSED if "event AS" in s or "AS (SELECT * FROM _" in s])
def test_the_refused_statements_are_real(w: World, sql: str) -> None:
    """Without the guard each of these reads the table (or binds a variable that is missing), so the table above is not
    a list of misspellings."""
    with raw(w.path) as db:
        try:
            db.execute(sql).fetchall()
        except apsw.BindingsError:
            pass
        except apsw.SQLError as error:
            assert "#" in sql or "circular" in str(error) or ":a(" in sql, error  # noqa: PT017


@pytest.mark.rule("PE-70")
def test_no_refused_statement_leaks_through_a_view_name(w: World) -> None:
    """Whatever view or trigger a common table expression is named after."""
    with raw(w.path) as db:
        names = [str(n) for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type IN ('view', 'trigger')")]
    for name in names:
        assert run(w.db, f'WITH "{name}" AS (SELECT * FROM _event) SELECT * FROM "{name}"') == "VIEWS_ONLY"


@pytest.mark.rule("PE-70")
def test_a_door_made_from_outside_stays_shut(w: World) -> None:
    """Another program may add a view to the file; our connection knows only the ones it was opened with."""
    with raw(w.path) as db:
        db.execute("CREATE VIEW leak AS SELECT * FROM _event")
        db.execute("CREATE TABLE _secret(x)")
    for sql in ("SELECT * FROM leak", "SELECT count(data) FROM leak", "SELECT * FROM _secret"):
        assert run(w.db, sql) == "VIEWS_ONLY"


@pytest.mark.rule("PE-70")
def test_a_statement_that_was_prepared_before_is_still_checked(w: World) -> None:
    sql = "SELECT data FROM leak"
    assert run(w.db, sql) == "SQL"
    with raw(w.path) as db:
        db.execute("CREATE VIEW leak AS SELECT * FROM _event")
    assert run(w.db, sql) == "VIEWS_ONLY"


@pytest.mark.rule("PE-39", "PE-70")
def test_a_reading_connection_cannot_be_made_to_write(w: World) -> None:
    reader = Database.open(w.path, read_only=True)
    before = dump(w.path)
    for sql in (
        "INSERT INTO setting(key, value) VALUES ('a', '1')",
        "DELETE FROM session",
        "PRAGMA query_only = 0",
        "PRAGMA query_only(off); DELETE FROM session",
        "INSERT INTO search(search) VALUES ('rebuild')",
        "UPDATE store SET search_indexed = 0",
    ):
        assert run(reader, sql) in ("DB_READONLY", "VIEWS_ONLY")
    assert dump(w.path) == before
    assert run(reader, "SELECT * FROM event") is None
    reader.close()


@pytest.mark.rule("PE-70")
def test_the_guard_costs_a_cached_statement_nothing(w: World) -> None:
    """Statistics make a statement with bindings prepare itself anew, unless the plan is kept stable."""
    run(w.db, "ANALYZE")
    asked = 0
    authorize = w.db._db.authorizer

    def counting(*args: object) -> int:
        nonlocal asked
        asked += 1
        assert authorize is not None
        return authorize(*args)  # type: ignore[arg-type]

    w.db._db.authorizer = counting
    sql = "SELECT data FROM event WHERE session_id = ? AND seq = ?"
    w.db.rows(sql, ("s", 1))
    first = asked
    for seq in range(50):
        w.db.rows(sql, ("s", seq % 5))
    assert first > 0
    assert asked == first


def test_a_refusal_says_what_to_do(w: World) -> None:
    with pytest.raises(SessionError, match="read the views instead"):
        w.db.rows("WITH event AS (SELECT * FROM _event) SELECT * FROM event")
