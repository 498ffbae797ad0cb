"""llm's log, as its version 0.26 wrote it and 0.36 went on with it: responses, then turns over hashed messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsh.importing import llm
from dsh.importing.model import Assistant, Home, Result, Skipped, User
from tests.importing.stores import changed, database, imported, read, rows, state, store, texts, told

OLD, OLD_CALL, BOTH = "01m8s2q5jjzekfhh53zj831qen", "01m8s2q700267c33ar2c5d6sdx", "01m8s2q7jh0mafttt5ct4de89k"
NEW, NEW_CALL, SYSTEM = "01m8s2qavtgpcshdg84awsyj2p", "01m8s2qcxht6zr8nh5nder99gb", "01m8s2qc1gjsasg4bc6vyrs6e1"
HELLO = "Hello from the fake. 你好 世界"


def test_responses_and_turns_give_the_same_records(tmp_path: Path) -> None:
    found = read("llm", store("llm", tmp_path))
    assert len(found) == 8
    for name, first in ((OLD, "hello one"), (NEW, "hello new")):
        transcript, items = found[name]
        assert (transcript.title, transcript.cwd) == (first, None)
        assert [texts(item) for item in items] == [[first], [HELLO], ["hello again"], [HELLO]]
        assert [item.model for item in items if isinstance(item, Assistant)] == ["fake", "other"]
        answer = items[1]
        assert isinstance(answer, Assistant)
        assert answer.usage == {"inputTokens": 100, "outputTokens": 7, "reasoningTokens": 3}
        assert answer.began is not None
        assert answer.at is not None
        assert 0 < answer.at - answer.began < 1000
    for name in (OLD_CALL, NEW_CALL):
        said, asking, result, answer = found[name][1]
        assert texts(said) == ["LIST the files please"]
        assert isinstance(asking, Assistant)
        assert asking.blocks[-1]["name"] == "list_dir"
        assert isinstance(result, Result)
        assert (result.call_id, texts(result)) == ("call_ls_1", ["README.txt"])
        assert isinstance(answer, Assistant)
        assert answer.usage is not None
        assert (answer.usage["inputTokens"], answer.usage["cacheReadTokens"]) == (50, 150)


def test_fragments_system_prompts_and_attachments(tmp_path: Path) -> None:
    found = read("llm", store("llm", tmp_path))
    system, said, _ = found[SYSTEM][1]
    assert isinstance(system, User)
    assert (system.human, texts(system)) == (False, ["You are terse"])
    assert texts(said) == ["some fragment text\n\nhello with a fragment"]
    first = found[BOTH][1][0]
    assert texts(first) == ["hello image", "[image left out: image/png]"]


def test_a_conversation_goes_on_as_a_thread_after_an_upgrade(tmp_path: Path) -> None:
    place, db = store("llm", tmp_path / "data"), tmp_path / "dsh.db"
    after = read("llm", place)[BOTH][1]
    assert [texts(item)[0] for item in after] == ["hello image", HELLO, "hello after the upgrade", HELLO]
    upgraded = (place / "logs.db").read_bytes()
    changed(place / "logs.db", *[f"DELETE FROM {table}" for table in ("threads", "turns", "messages", "parts")])
    first = imported("llm", place, db)
    assert first.new == 4
    (place / "logs.db").write_bytes(upgraded)
    second = imported("llm", place, db)
    assert (second.new, second.grown, second.moved) == (4, 1, [])
    assert told(db, f"llm-{BOTH}")[-2:] == [("user", "hello after the upgrade"), ("assistant", HELLO)]


def test_a_thread_that_was_forked_becomes_a_fork(tmp_path: Path) -> None:
    place, db = store("llm", tmp_path / "data"), tmp_path / "dsh.db"
    file = place / "logs.db"
    first, _ = _rows(file, "SELECT tip_message_hash FROM turns WHERE thread_id = ? ORDER BY id", NEW)
    changed(
        file,
        f"INSERT INTO threads VALUES ('branch', 'elsewhere', 'b2', '{NEW}', '2026-12-02 00:00:00')",
        f"INSERT INTO messages VALUES ('b1', '{first[0]}', 'user', NULL), ('b2', 'b1', 'assistant', NULL)",
        "INSERT INTO parts VALUES (1001, 'b1', 0, 'text', NULL, 'another way', NULL)",
        "INSERT INTO parts VALUES (1002, 'b2', 0, 'text', NULL, 'as you like', NULL)",
        "INSERT INTO turns (id, thread_id, parent_message_hash, tip_message_hash, model, datetime_utc)"
        " VALUES ('t', 'branch', 'b1', 'b2', 'fake', '2026-12-02T00:00:00')",
    )
    report = imported("llm", place, db)
    assert (report.new, report.failed) == (9, [])
    assert told(db, "llm-branch") == [
        ("user", "hello new"),
        ("assistant", HELLO),
        ("user", "another way"),
        ("assistant", "as you like"),
    ]
    assert rows(db, "SELECT parent_session FROM fork WHERE id = 'llm-branch'") == [(f"llm-{NEW}",)]
    assert imported("llm", place, db).unchanged == 9


def _rows(path: Path, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
    import apsw

    db = apsw.Connection(str(path))
    found = db.execute(sql, bindings).fetchall()
    db.close()
    return found


def test_a_second_import_adds_what_is_new_and_nothing_is_changed(tmp_path: Path) -> None:
    place, db = store("llm", tmp_path / "data"), tmp_path / "dsh.db"
    before = state(place)
    assert imported("llm", place, db).new == 8
    assert imported("llm", place, db).unchanged == 8
    assert state(place) == before
    (last,) = _rows(place / "logs.db", "SELECT tip_message_hash FROM turns WHERE thread_id = ? ORDER BY id DESC", NEW)[
        :1
    ]
    changed(
        place / "logs.db",
        f"INSERT INTO messages VALUES ('c1', '{last[0]}', 'user', NULL), ('c2', 'c1', 'assistant', NULL)",
        "INSERT INTO parts VALUES (1001, 'c1', 0, 'text', NULL, 'and then', NULL)",
        "INSERT INTO parts VALUES (1002, 'c2', 0, 'text', NULL, 'so', NULL)",
        "INSERT INTO turns (id, thread_id, parent_message_hash, tip_message_hash, model, datetime_utc)"
        f" VALUES ('zz', '{NEW}', 'c1', 'c2', 'fake', '2026-12-03T00:00:00')",
    )
    report = imported("llm", place, db)
    assert (report.new, report.grown, report.unchanged, report.messages) == (0, 1, 7, 2)
    assert told(db, f"llm-{NEW}")[-2:] == [("user", "and then"), ("assistant", "so")]


def test_the_first_schema_with_responses_has_no_tokens_and_no_tools(tmp_path: Path) -> None:
    schema = "CREATE TABLE _llm_migrations (name TEXT); CREATE TABLE conversations (id TEXT, name TEXT, model TEXT);"
    schema += "CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, prompt_json TEXT,"
    schema += (
        " options_json TEXT, response TEXT, response_json TEXT, conversation_id TEXT, duration_ms, datetime_utc TEXT)"
    )
    row = "'gpt-4', 'why?', 'be brief', NULL, NULL, 'because', NULL"
    database(
        tmp_path / "data" / "logs.db",
        schema,
        "INSERT INTO conversations VALUES ('c', 'why?', 'gpt-4')",
        f"INSERT INTO responses VALUES ('r1', {row}, 'c', 500, '2023-09-01T10:00:00.5')",
        f"INSERT INTO responses VALUES ('r2', {row}, 'c', 'x', NULL), ('r3', {row}, NULL, NULL, '2023-09-02T10:00:00')",
    )
    found = read("llm", tmp_path / "data")
    assert set(found) == {"c", "r3"}
    assert [texts(item) for item in found["c"][1]] == [["be brief"], *[["why?"], ["because"]] * 2]
    answer = found["r3"][1][-1]
    assert isinstance(answer, Assistant)
    assert (answer.provider, answer.model, answer.usage) == ("llm", "gpt-4", None)
    assert found["c"][1][-1] == Assistant(
        [{"type": "text", "text": "because"}], 1693562401000, "llm", "gpt-4", began=1693562400500
    )


def test_rings_of_messages_and_rows_of_any_kind(tmp_path: Path) -> None:
    pieces = '{"text_ref":[7,{"fragment":99},{"literal":"and"}]}'
    place, db = store("llm", tmp_path / "data"), tmp_path / "dsh.db"
    changed(
        place / "logs.db",
        "INSERT INTO threads VALUES ('ring', NULL, 'r1', 'ring', 'x'), (NULL, 7, 7, 7, 7)",
        "INSERT INTO threads VALUES ('lone', x'ff', 'gone', 'none', 0)",
        "INSERT INTO messages VALUES ('r1', 'r2', 'user', NULL), ('r2', 'r1', 'assistant', NULL)",
        "INSERT INTO parts VALUES (1001, 'r1', 0, 'text', NULL, 'round', '[')",
        "INSERT INTO parts VALUES (1002, 'r2', 0, 'text', NULL, NULL, '[7]')",
        "INSERT INTO parts VALUES (1003, 'r1', 1, 'tool_call', 7, 7, '{\"arguments\":[7],\"tool_call_id\":7}')",
        f"INSERT INTO parts VALUES (1004, 'r1', 2, 'text', NULL, NULL, '{pieces}')",
        "INSERT INTO turns (id, thread_id, parent_message_hash, tip_message_hash) VALUES ('a', 'ring', 'r1', 'r2')",
        "INSERT INTO turns (id, thread_id, parent_message_hash, tip_message_hash) VALUES ('b', 'ring', 'r1', NULL)",
        "INSERT INTO turns (id, thread_id, parent_message_hash, datetime_utc) VALUES ('c', 'lone', 'gone', 7)",
        "UPDATE responses SET token_details = '[', datetime_utc = 'x', input_tokens = 'x', prompt = x'ff'",
        "UPDATE tool_calls SET arguments = NULL, tool_call_id = NULL",
    )
    found = read("llm", place)
    skipped = [item.where for _, items in found.values() for item in items if isinstance(item, Skipped)]
    assert set(skipped) == {"part 1001", "turn b", "turn c"}
    report = imported("llm", place, db)
    assert report.failed == []
    assert ("user", "and") in told(db, "llm-ring")


def test_the_log_is_where_llm_keeps_it(tmp_path: Path) -> None:
    store("llm", tmp_path / "own")
    (place,) = llm.places(Home("/nowhere", {"LLM_USER_PATH": str(tmp_path / "own")}))
    assert [source.path for source in llm.sources(place)] == [str(tmp_path / "own" / "logs.db")]
    (place,) = llm.places(Home(str(tmp_path), {}))
    assert place.endswith("io.datasette.llm")
    assert list(llm.sources(place)) == []
