"""The stock sqlite3 shell reads what we read and may append what we may append (PE-70)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh.store import writes
from tests.session.kit import (
    World,
    code,
    dump,
    prompt,
    replace,
    shell,
    shell_refusal,
    start_step,
    start_turn,
    surface,
    tool_call,
    whole_turn,
    world,
)

pytestmark = pytest.mark.slow  # each test starts programs, some many times


@pytest.fixture
def w(tmp_path: Path) -> Iterator[World]:
    opened = world(tmp_path / "dsh.db")
    s = opened.session("s", cwd="/folder")
    whole_turn(s, "hello", calls=2)
    opened.sessions.fork(s, child="child")
    s.claim("me")
    start_turn(s)
    s.append("todo/write", {"todos": [{"status": "pending", "content": "wash"}]})
    start_step(s)
    tool_call(s, "c")
    s.release()
    opened.db.rows("INSERT INTO setting(key, value) VALUES ('x', '1')")
    writes.refresh_search(opened.db)
    yield opened
    opened.db.close()


def json_rows(w: World, sql: str) -> list[dict[str, object]]:
    done = shell(w.path, f".mode json\n{sql};\n")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, object]] = json.loads(done.stdout or "[]")
    return rows


@pytest.mark.rule("PE-70", "PE-39")
def test_it_reads_every_public_view_as_we_do(w: World) -> None:
    public = "SELECT name FROM sqlite_schema WHERE type = 'view' AND substr(name, 1, 1) <> '_' ORDER BY name"
    views = [name for (name,) in w.db.rows(public)]
    assert {"event", "session", "message", "surface", "turn", "step", "tool_call", "usage", "title"} <= set(views)
    before = dump(w.path)
    for view in views:
        names, rows = w.db.stream(f"SELECT * FROM {view}")
        ours = [dict(zip(names, row, strict=True)) for row in rows]
        assert json_rows(w, f"SELECT * FROM {view}") == ours, view
    for view in ("event", "session", "message", "tool_call", "turn", "step", "todo", "search_document", "title"):
        assert json_rows(w, f"SELECT * FROM {view}"), view
    found = json_rows(w, "SELECT rowid FROM search WHERE search MATCH 'hello'")
    assert len(found) == 2
    assert dump(w.path) == before


@pytest.mark.rule("PE-70", "SE-1", "SE-10")
def test_it_appends_what_is_legal(w: World) -> None:
    length = w.sessions.live("s").length  # type: ignore[union-attr]
    done = shell(
        w.path,
        "INSERT INTO event(session_id, type, data) VALUES ('s', 'plugin/note', '{\"from\":\"shell\"}');\n"
        f"INSERT INTO event(session_id, seq, type, data, surface_op) VALUES ('s', {length + 1}, 'user/message',"
        """ '{"content":[{"type":"text","text":"typed by hand"}],"source":{"kind":"user"}}', '"append"');\n"""
        "SELECT length, revision FROM session WHERE id = 's';\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("|")[0] == str(length + 2)
    assert surface(w.db, "s")[-1] == length + 1
    times = w.db.rows("SELECT time FROM event WHERE session_id = 's' AND seq >= ?", (length,))
    assert all(abs(t - writes.now_ms()) < 60_000 for (t,) in times)
    # and what a stock shell wrote is found after the next refresh
    writes.refresh_search(w.db)
    assert len(w.db.rows("SELECT 1 FROM search WHERE search MATCH 'typed hand'")) == 1
    other = w.reopen().sessions.prepare_stored("s")
    assert other.events()[length + 1]["data"]["content"][0]["text"] == "typed by hand"


def event(seq: str = "NULL", type_: str = "x", data: str = "1", source: str = "NULL", op: str = "NULL") -> str:
    columns = "session_id, seq, type, data, source_event_seqs, surface_op"
    return f"INSERT INTO event({columns}) VALUES ('s', {seq}, '{type_}', '{data}', {source}, {op});"


MESSAGE = json.dumps(prompt())
ON_TABLE = "INSERT OR REPLACE INTO _event(id, session, seq, type, time, data)"


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (event("0"), "SEQ_MISMATCH"),
        (event("99"), "SEQ_MISMATCH"),
        (event("-1"), "SEQ_MISMATCH"),
        (event("'x'"), "cannot store TEXT"),
        (event("99", "mode/set"), "SEQ_MISMATCH"),
        ("INSERT INTO event(session_id, type, data) VALUES ('nobody', 'x', '1');", "SESSION_NOT_FOUND"),
        (event(data="{oops"), "EVENT_NOT_JSON"),
        (event(data=""), "EVENT_NOT_JSON"),
        (event(type_=""), "EVENT_NOT_JSON"),
        (event(type_="assistant/message", data="{oops", op="'\"append\"'"), "EVENT_NOT_JSON"),
        (event(type_="request/header", data="{oops"), "EVENT_NOT_JSON"),
        ("INSERT INTO event(session_id, type, data) VALUES ('s', 'x', NULL);", "EVENT_NOT_JSON"),
        ("INSERT INTO event(session_id, type, data, time) VALUES ('s', 'x', '1', -1);", "EVENT_NOT_JSON"),
        ("INSERT INTO event(session_id, type, data, time) VALUES ('s', 'x', '1', 'noon');", "cannot store TEXT"),
        (event(type_="mode/set"), "LEGACY_EVENT"),
        (event(type_="turn/end", data='{"turn":2}'), "INVARIANT"),
        (event(type_="user/message", data=MESSAGE), "SURFACE_INVALID"),
        (event(type_="user/message", data=MESSAGE, op="'append'"), "SURFACE_INVALID"),
        (event(type_="user/message", data=MESSAGE, op="' \"append\"'"), "SURFACE_INVALID"),
        (event(type_="user/message", data=MESSAGE, op="'\"append\"'", source="'[ ]'"), "SURFACE_INVALID"),
        (event(type_="user/message", data=MESSAGE, op="'\"append\"'", source="'[1.0]'"), "SURFACE_INVALID"),
        (event(type_="user/message", data=MESSAGE, op="'\"append\"'", source="'{}'"), "SURFACE_INVALID"),
        (
            event(type_="user/message", data=MESSAGE, op='\'{"op":"replace","start":1.0,"end":1}\'', source="'[1]'"),
            "SURFACE_INVALID",
        ),
        (
            event(
                type_="user/message",
                data=MESSAGE,
                op='\'{"op":"replace","start":1,"start":1,"end":1}\'',
                source="'[1]'",
            ),
            "SURFACE_INVALID",
        ),
        ("UPDATE event SET data = '1' WHERE seq = 1;", "EVENT_IMMUTABLE"),
        ("UPDATE event SET time = 1;", "EVENT_IMMUTABLE"),
        ("DELETE FROM event WHERE seq = 9;", "EVENT_IMMUTABLE"),
        ("UPDATE _event SET data = '1';", "EVENT_IMMUTABLE"),
        ("UPDATE OR REPLACE _event SET seq = 0 WHERE seq = 1;", "EVENT_IMMUTABLE"),
        ("DELETE FROM _event;", "EVENT_IMMUTABLE"),
        ("DELETE FROM _event WHERE seq = 12;", "EVENT_IMMUTABLE"),
        ("INSERT OR REPLACE INTO event(session_id, seq, type, data) VALUES ('s', 1, 'x', '1');", "SEQ_MISMATCH"),
        ("REPLACE INTO event(session_id, seq, type, data) VALUES ('s', 0, 'x', '1');", "SEQ_MISMATCH"),
        (
            f"{ON_TABLE} SELECT 1, session, length, 'x', 1, '1' FROM _length;",
            "SEQ_MISMATCH",
        ),
        (
            "INSERT OR REPLACE INTO _event(session, seq, type, time, data) SELECT id, 1, 'x', 1, '1' FROM _session;",
            "SEQ_MISMATCH",
        ),
        ("UPDATE session SET length = 0;", "SESSION_IMMUTABLE"),
        ("UPDATE lease SET holder = 'x';", None),
        ("INSERT INTO session(id, cwd) VALUES ('s', '/x');", "SESSION_ALREADY_EXISTS"),
        ("INSERT INTO session(id, cwd) VALUES ('t', 'x');", "HEADER_INVALID"),
        ("INSERT INTO session(id, version) VALUES ('t', 1);", "HEADER_INVALID"),
        ("INSERT INTO session(id) VALUES ('');", "HEADER_INVALID"),
        ("INSERT INTO session(id) VALUES (NULL);", "HEADER_INVALID"),
        ("INSERT INTO session(id, created_at) VALUES ('t', 'now');", "HEADER_INVALID"),
        ("INSERT INTO fork(id, parent_session, boundary) VALUES ('s', 's', 1);", "SESSION_ALREADY_EXISTS"),
        ("INSERT INTO fork(id, parent_session, boundary) VALUES ('f', 'nobody', 1);", "SESSION_NOT_FOUND"),
        ("INSERT INTO fork(id, parent_session, boundary) VALUES ('f', 's', 999);", "INVALID_BOUNDARY"),
        ("INSERT INTO fork(id, parent_session, boundary) VALUES ('f', 's', 1);", "OPEN_TURN"),
        ("INSERT INTO fork(id, parent_session, boundary) VALUES ('f', 's', '1');", "INVALID_BOUNDARY"),
    ],
    ids=lambda v: v and str(v)[:60],
)
@pytest.mark.rule("PE-70", "PE-3", "SE-8", "SE-9", "SE-12", "SE-13", "SE-55", "SE-56")
def test_it_is_told_the_code(w: World, sql: str, wanted: str | None) -> None:
    before = dump(w.path)
    if wanted is not None:
        assert wanted in shell_refusal(w.path, sql)
    else:
        shell(w.path, sql)
    assert dump(w.path) == before


@pytest.mark.rule("PE-70", "PE-3")
def test_conflict_clauses_do_not_soften_a_refusal(w: World) -> None:
    before = dump(w.path)
    for clause in ("OR IGNORE", "OR FAIL", "OR ROLLBACK", "OR ABORT"):
        sql = f"INSERT {clause} INTO event(session_id, seq, type, data) VALUES ('s', 1, 'x', '1');"
        assert "SEQ_MISMATCH" in shell_refusal(w.path, sql)
    assert dump(w.path) == before


@pytest.mark.rule("PE-72")
def test_it_may_not_write_into_a_session_that_is_driven(w: World) -> None:
    s = w.sessions.live("s")
    assert s is not None
    s.claim("me")
    before, length = dump(w.path), s.length
    assert "SESSION_LEASED" in shell_refusal(w.path, event())
    assert dump(w.path) == before
    s.append("x", 1)
    s.release()
    assert shell(w.path, event()).returncode == 0
    assert code(s.append, "x", 1) == "SEQ_MISMATCH"  # an undriven handle that is behind is told so
    assert s.length == length + 1


@pytest.mark.rule("PE-70", "SE-14")
def test_it_makes_forks_and_replacements(w: World) -> None:
    end = w.db.rows("SELECT end_seq FROM turn WHERE session_id = 's' AND turn = 1")[0][0]
    nodes = surface(w.db, "s")
    op = json.dumps(replace(nodes[0], nodes[1]))
    done = shell(
        w.path,
        f"INSERT INTO fork(id, parent_session, boundary) VALUES ('f', 's', {end});\n"
        "INSERT INTO event(session_id, type, data) VALUES ('f', 'turn/start', '{\"turn\":2}');\n"
        "INSERT INTO event(session_id, type, data, source_event_seqs, surface_op) VALUES ('f', 'user/message',"
        f" '{MESSAGE}', '{nodes[:2]}', '{op}');\n",
    )
    assert done.returncode == 0, done.stderr
    assert surface(w.db, "f") == [end + 2, *nodes[2:]]
    assert surface(w.db, "s") == nodes
