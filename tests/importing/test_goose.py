"""goose's database of version 17 of its schema, older ones, and the JSONL files of before."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from dsh.importing.model import Assistant, Result, Summary, User
from tests.importing.stores import changed, database, imported, read, rows, sample, state, store, texts, told

SESSION = "20261130_1"


def _added(session: str, role: str, content: Any, at: int, metadata: Any = None) -> str:
    def quoted(value: Any) -> str:
        return "'" + json.dumps(value).replace("'", "''") + "'"

    about = "NULL" if metadata is None else quoted(metadata)
    return f"INSERT INTO messages (session_id, role, content_json, created_timestamp, metadata_json) \
VALUES ('{session}', '{role}', {quoted(content)}, {at}, {about})"


def test_rows_of_one_answer_are_one_and_usage_and_model_are_its_own(tmp_path: Path) -> None:
    found = read("goose", store("goose", tmp_path))
    transcript, items = found[SESSION]
    assert (transcript.title, transcript.cwd, transcript.created_at) == (
        "Parser files",
        "/home/ann/parser",
        1796032800000,
    )
    first, answer, result, *_ = items
    assert texts(first) == ["Which files are here? 哪些文件", "[image left out: image/png, 18 bytes]"]
    assert answer == Assistant(
        blocks=[
            {"type": "reasoning", "text": "I should look first."},
            {"type": "text", "text": "Let me look."},
            {"type": "tool-call", "id": "call_1", "name": "developer__shell", "arguments": '{"command":"ls"}'},
        ],
        at=1796032802000,
        provider="fake",
        model="fake-model-2026",
        usage={"inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 1000, "cacheWriteTokens": 100},
        began=1796032802000,
    )
    assert result == Result("call_1", [{"type": "text", "text": "README.txt"}], 1796032802000)  # what the model saw
    failed = [item for item in items if isinstance(item, Result) and item.is_error]
    assert [texts(each) for each in failed] == [["-32602: no such tool"]]
    assert found["20261130_2"][0].parent == SESSION
    assert (found["20261130_3"][0].title, found["20261130_3"][1]) == (None, [])


def test_a_compaction_leaves_its_summary_and_what_the_user_said_last(tmp_path: Path) -> None:
    items = read("goose", store("goose", tmp_path / "data"))[SESSION][1]
    assert [texts(item) for item in items if isinstance(item, User) and item.human][-1] == ["and now go on"]
    assert len([item for item in items if isinstance(item, Summary)]) == 1
    db = tmp_path / "dsh.db"
    imported("goose", tmp_path / "data", db)
    assert told(db, f"goose-{SESSION}") == [
        ("user", "# Summary\nThe user looked for files."),
        ("user", "and now go on"),
        ("assistant", "Going on."),
    ]


def test_a_compaction_after_an_import_changes_nothing_of_what_was_imported(tmp_path: Path) -> None:
    place, db = store("goose", tmp_path / "data"), tmp_path / "dsh.db"
    imported("goose", place, db)
    unseen = {"userVisible": False, "agentVisible": True}
    changed(
        place / "sessions.db",
        "UPDATE messages SET metadata_json = json_set(metadata_json, '$.agentVisible', json('false'))",
        _added(SESSION, "user", [{"type": "text", "text": "# Second summary"}], 1796032900, unseen),
        _added(SESSION, "assistant", [{"type": "text", "text": "Go on from it."}], 1796032900, unseen),
        _added(SESSION, "user", [{"type": "text", "text": "more"}], 1796032910, {"userVisible": True}),
        f"UPDATE sessions SET updated_at = '2026-11-30 10:09:00' WHERE id = '{SESSION}'",
    )
    report = imported("goose", place, db)
    assert (report.new, report.grown, report.moved) == (0, 1, [])
    assert told(db, f"goose-{SESSION}") == [("user", "# Second summary"), ("user", "more")]


def test_an_answer_of_a_moment_ago_is_waited_for(tmp_path: Path) -> None:
    place, db, now = store("goose", tmp_path / "data"), tmp_path / "dsh.db", int(time.time())
    begun = [
        _added(SESSION, "user", [{"type": "text", "text": "look"}], now),
        _added(SESSION, "assistant", [{"type": "text", "text": "I look"}], now),
        f"UPDATE sessions SET updated_at = datetime('now') WHERE id = '{SESSION}'",
    ]
    changed(place / "sessions.db", *begun)
    imported("goose", place, db)
    assert told(db, f"goose-{SESSION}")[-1] == ("user", "look")
    call = {"type": "toolRequest", "id": "c", "toolCall": {"status": "success", "value": {"name": "shell"}}}
    changed(
        place / "sessions.db",
        _added(SESSION, "assistant", [call], now),
        _added(SESSION, "user", [{"type": "toolResponse", "id": "c", "toolResult": {"status": "success"}}], now + 1),
    )
    assert imported("goose", place, db).grown == 1
    assert told(db, f"goose-{SESSION}")[-3:] == [("assistant", "I look"), ("assistant", "shell"), ("user", "")]
    steps = rows(
        db, "SELECT count(*) FROM step WHERE session_id = ? AND turn = (SELECT max(turn) FROM step)", f"goose-{SESSION}"
    )
    assert steps == [(1,)]


def test_a_database_of_the_first_version_and_files(tmp_path: Path) -> None:
    schema = "CREATE TABLE sessions (id TEXT PRIMARY KEY, description TEXT, working_dir TEXT, created_at TIMESTAMP);"
    schema += "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content_json TEXT,"
    schema += " created_timestamp INTEGER);"
    place = tmp_path / "data"
    database(
        place / "sessions.db",
        schema,
        "INSERT INTO sessions VALUES ('20250901_1', 'Of old', '/home/ann', '2025-09-01 10:00:00')",
        _added("20250901_1", "user", [{"type": "text", "text": "hello"}], 1756720800)
        .replace(", metadata_json", "")
        .replace(", NULL)", ")"),
    )
    (place / "20250320_152628.jsonl").write_text(
        sample("goose/20250320_152628.jsonl") + '{"role":"assistant","created":174'
    )
    found = read("goose", place)
    assert set(found) == {"20250901_1", "20250320_152628"}
    assert (found["20250901_1"][0].title, texts(found["20250901_1"][1][0])) == ("Of old", ["hello"])
    transcript, items = found["20250320_152628"]
    assert (transcript.title, transcript.cwd) == ("Parser in the old days", "/home/ann/parser")
    assert [type(item).__name__ for item in items] == ["User", "Assistant", "Result", "Assistant"]
    assert texts(items[2]) == ["README.txt", "[image left out: image/png, 6 bytes]"]
    changed(place / "sessions.db", "INSERT INTO sessions (id) VALUES ('20250320_152628')")  # goose has taken it over
    assert read("goose", place)["20250320_152628"][1] == []


def test_what_is_not_as_it_should_be_is_named_and_no_more(tmp_path: Path) -> None:
    place, db = store("goose", tmp_path / "data"), tmp_path / "dsh.db"
    broken = [
        _added(SESSION, "user", {"type": "text"}, 1796032950),
        _added(SESSION, "tool", [], 1796032951),
        f"INSERT INTO messages (session_id, role, content_json, created_timestamp) VALUES ('{SESSION}', 7, '[', 'x')",
        _added(
            SESSION,
            "user",
            [7, {"type": "text", "text": 7}, {"type": "toolResponse", "id": 7, "toolResult": 7}],
            1796032952,
        ),
        _added(
            SESSION,
            "assistant",
            [{"type": "toolRequest"}, {"type": "text", "text": "at last"}],
            1796032953,
            {"usage": 7},
        ),
        f"UPDATE sessions SET parent_session_id = '20261130_2', model_config_json = '[' WHERE id = '{SESSION}'",
        f"UPDATE sessions SET created_at = 'x', working_dir = x'ff' WHERE id = '{SESSION}'",
    ]
    changed(place / "sessions.db", *broken)
    before = state(place)
    (place / "20250320_152628.jsonl").write_bytes(
        b'{"role":"user","content":[{"type":"text","text":"caf\xe9"}]}\n7\n\xff\n'
    )
    report = imported("goose", place, db)
    assert {where for _, where, _ in report.named} == {"message 16", "message 17", "message 18", "line 2", "line 3"}
    assert ("assistant", "at last") in told(db, f"goose-{SESSION}")
    assert set(state(place)) == set(before)
    assert ("user", "caf\ufffd") in told(db, "goose-20250320_152628")
