"""Crush's databases: one a project, found by its list of projects."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from dsh.importing import crush
from dsh.importing.model import Assistant, End, Home, Result, Summary, User
from tests.importing.stores import changed, database, imported, read, rows, sample, store, texts, told

SESSION = "0b6a5f0e-0001-4000-8000-000000000001"
CHILD = "m-2$$call_task"


def _added(id: str, role: str, parts: Any, at: int, session: str = SESSION) -> str:
    whole = json.dumps(parts).replace("'", "''")
    return f"INSERT INTO messages VALUES ('{id}', '{session}', '{role}', '{whole}', 'm', {at}, {at}, NULL, 'p', 0)"


def test_parts_are_blocks_and_each_answer_has_its_provider(tmp_path: Path) -> None:
    found = read("crush", store("crush", tmp_path))
    assert set(found) == {SESSION, CHILD}  # and not the one in which a title was made
    transcript, items = found[SESSION]
    assert (transcript.title, transcript.cwd) == ("Look into the parser", str(tmp_path))
    assert (transcript.created_at, transcript.touched) == (1780000000000, 1780000061000)
    assert texts(items[0]) == ["Which files are here? 哪些文件", "[image left out: image/png, 18 bytes]"]
    answer = items[1]
    assert isinstance(answer, Assistant)
    assert [block["type"] for block in answer.blocks] == ["reasoning", "text", "tool-call", "tool-call"]
    assert (answer.began, answer.at, answer.usage) == (1780000001000, 1780000003000, None)
    assert items[2] == Result("call_ls", [{"type": "text", "text": "README.txt\n"}], 1780000003000)
    routes = {(item.provider, item.model) for item in items if isinstance(item, Assistant)}
    assert routes == {("fake", "fake-model"), ("other", "fake-other")}
    assert found[CHILD][0].parent == SESSION
    assert [item.ends for item in found[CHILD][1] if isinstance(item, Assistant)] == ["max-tokens"]


def test_cancelled_failed_and_summarised(tmp_path: Path) -> None:
    items = read("crush", store("crush", tmp_path / "p"))[SESSION][1]
    assert End("error", 1780000051000, "Bad Request: context is too long") in items
    assert Summary("# Summary\nThe user looked for files.", 1780000060000) in items
    commands = [texts(item) for item in items if isinstance(item, User) and not item.human]
    assert commands == [["$ make\nok\n\n(exit code 0)"]]
    db = tmp_path / "dsh.db"
    imported("crush", tmp_path / "p", db)
    assert told(db, f"crush-{SESSION}") == [
        ("user", "# Summary\nThe user looked for files."),
        ("user", "go on"),
        ("assistant", "Going on."),
    ]
    outcomes = rows(db, "SELECT outcome FROM turn WHERE session_id = ? ORDER BY turn", f"crush-{SESSION}")
    assert [outcome for (outcome,) in outcomes][:3] == ["completed", "aborted", "error"]
    (child,) = rows(db, "SELECT parent_session FROM session WHERE source = 'crush' AND parent_session IS NOT NULL")
    assert child == (f"crush-{SESSION}",)


def test_a_session_that_grows(tmp_path: Path) -> None:
    place, db, now = store("crush", tmp_path / "p"), tmp_path / "dsh.db", int(time.time())
    file = place / ".crush" / "crush.db"
    imported("crush", place, db)
    assert imported("crush", place, db).unchanged == 2
    text = {"type": "text", "data": {"text": "more"}}
    half = [{"type": "text", "data": {"text": "half"}}]
    changed(file, _added("n1", "user", [text], now), _added("n2", "assistant", half, now))
    assert imported("crush", place, db).grown == 1
    assert told(db, f"crush-{SESSION}")[-1] == ("user", "more")
    whole = [{"type": "text", "data": {"text": "half and all"}}, {"type": "finish", "data": {"reason": "end_turn"}}]
    changed(file, f"UPDATE messages SET parts = '{json.dumps(whole)}' WHERE id = 'n2'")  # in the same second
    report = imported("crush", place, db)
    assert (report.grown, report.moved) == (1, [])
    assert told(db, f"crush-{SESSION}")[-1] == ("assistant", "half and all")


def test_databases_are_found_by_the_list_of_projects_and_below_a_folder(tmp_path: Path) -> None:
    one = store("crush", tmp_path / "src" / "one") / ".crush" / "crush.db"
    two = database(tmp_path / "elsewhere" / "crush.db", sample("crush/crush.sql"))
    listed = [
        {"path": str(tmp_path / "src" / "one"), "data_dir": ".crush"},
        {"path": "/x", "data_dir": str(two.parent)},
        {"path": 7},
        7,
    ]
    data = tmp_path / "home" / ".local" / "share" / "crush"
    data.mkdir(parents=True)
    (data / "projects.json").write_text(json.dumps({"projects": listed}))
    home = Home(str(tmp_path / "home"), {})
    places = list(crush.places(home))
    assert [source.path for place in places for source in crush.sources(place)] == [str(one), str(two)]
    assert [source.path for source in crush.sources(str(tmp_path / "src"))] == [str(one)]
    assert list(crush.sources(str(tmp_path / "none"))) == []
    for damaged in ("[", "[]", '{"projects":7}'):
        (data / "projects.json").write_text(damaged)
        assert list(crush.places(home)) == [str(tmp_path / "home" / ".crush")]


def test_an_older_schema_and_rows_of_any_kind(tmp_path: Path) -> None:
    old = "CREATE TABLE sessions (id TEXT, parent_session_id TEXT, title, updated_at, created_at, summary_message_id);"
    old += "CREATE TABLE messages (id TEXT, session_id TEXT, role TEXT, parts BLOB, model, created_at, updated_at);"
    parts = json.dumps([{"type": "text", "data": {"text": "the sum of it"}}, {"type": "finish", "data": {}}])
    database(
        tmp_path / "p" / "crush.db",
        old,
        "INSERT INTO sessions VALUES ('s', 's', NULL, 1700000000000, 1700000000000, 'sum'), (NULL, 7, 7, 7, 7, 7)",
        f"INSERT INTO messages VALUES ('sum', 's', 'assistant', CAST('{parts}' AS BLOB), NULL, 1700000000000, NULL)",
        "INSERT INTO messages VALUES (NULL, 's', 'user', NULL, NULL, NULL, NULL)",
        'INSERT INTO messages VALUES (\'a\', \'s\', \'user\', \'[{"type":"text","data":{"text":"hi"}}]\', 7, NULL, 7)',
        "INSERT INTO messages VALUES ('b', 's', 'poet', '[]', NULL, 'x', NULL)",
        "INSERT INTO messages VALUES ('c', 's', 'user', x'ff', NULL, -1, 1e300)",
        "INSERT INTO messages VALUES ('d', 's', 'tool', '[{\"type\":\"tool_result\",\"data\":[]},7]', 7, 7, 7)",
    )
    report = imported("crush", tmp_path / "p", tmp_path / "dsh.db")
    assert (report.new, report.skipped, report.failed) == (1, 3, [])
    assert told(tmp_path / "dsh.db", "crush-s") == [("user", "the sum of it")]  # "hi" has no time, and so comes first
    assert rows(tmp_path / "dsh.db", "SELECT parent_session FROM session") == [(None,)]
