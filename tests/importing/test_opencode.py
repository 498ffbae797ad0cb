"""opencode's database and the files of before, as its versions 0.5, 1.1 and 1.18 wrote them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsh.importing.model import Assistant, End, Item, Result, Skipped, Summary, User
from tests.importing.stores import changed, database, imported, read, rows, sample, state, store, texts, told, tree

LISTING = "ses_dcdeadf39ffeMvCROJDpqUJyZ1"
COMPACTED = "ses_dcde7557effeAp3ibd4RXjXAIU"
ABORTED = "ses_dcde74b82ffe2XYqC8hML9HSjP"
FAILED = "ses_dcdeaa894ffetBnmIdyZpVmYGJ"
SUBAGENT = "ses_dcdea94c3ffeIGEIRv2oEk4YSD"


def _kinds(items: list[Item]) -> list[str]:
    return [type(item).__name__ for item in items]


def test_answers_calls_results_times_and_usage_are_those_of_the_database(tmp_path: Path) -> None:
    found = read("opencode", store("opencode", tmp_path))
    assert len(found) == 9
    transcript, items = found[LISTING]
    assert (transcript.title, transcript.cwd) == ("Look into the parser", "/home/ann/parser")
    assert (transcript.created_at, transcript.touched) == (1796136575174, 1796136584053)
    assert _kinds(items) == ["User", "Assistant", "Result", "Assistant", *["User", "Assistant"] * 2]
    assert items[0] == User([{"type": "text", "text": '"Please LIST the files"'}], 1796136575272)
    assert items[1] == Assistant(
        blocks=[
            {"type": "reasoning", "text": "I should look first."},
            {"type": "text", "text": "Let me look."},
            {
                "type": "tool-call",
                "id": "call_ls_1",
                "name": "bash",
                "arguments": '{"command":"ls -a; echo naïve","description":"list files"}',
            },
        ],
        at=1796136577222,
        provider="fake",
        model="fake-model",
        usage={
            "inputTokens": 120,
            "outputTokens": 20,
            "cacheReadTokens": 0,
            "cacheWriteTokens": 0,
            "reasoningTokens": 8,
        },
        began=1796136576313,
    )
    assert items[2] == Result(
        "call_ls_1", [{"type": "text", "text": ".\n..\n.git\nREADME.txt\nnaïve\n"}], 1796136577363
    )
    assert isinstance(items[3], Assistant)
    assert items[3].usage is not None
    assert (items[3].usage["inputTokens"], items[3].usage["cacheReadTokens"]) == (50, 150)  # of 200 that were sent
    assert [item.model for item in items if isinstance(item, Assistant)][-1] == "fake-other"
    assert found[SUBAGENT][0].parent == "ses_dcdea9bfaffeY8JbIXNyoi0ydg"


def test_failures_attachments_and_what_the_tool_said_itself(tmp_path: Path) -> None:
    found = read("opencode", store("opencode", tmp_path))
    *_, answer, end = found[FAILED][1]
    assert (answer.blocks, end) == ([], End("error", 1796136590862, "context is too long for fake-model"))  # type: ignore[union-attr]
    said, answer, end = found[ABORTED][1]
    assert texts(said) == ["SLOW answer", "[image left out: image/png, 72 bytes]"]
    assert texts(answer)[0].startswith("slow words")
    assert end == End("aborted", 1796136812734)
    first, context = found[COMPACTED][1][:2]
    assert isinstance(first, User)
    assert isinstance(context, User)
    assert (first.human, texts(first)) == (True, ["hello one"])
    assert (context.human, len(texts(context))) == (False, 2)
    refused = [i for _, items in found.values() for i in items if isinstance(i, Result) and i.is_error]
    assert [texts(each) for each in refused] == [["The user rejected permission to use this specific tool call."]]


def test_a_compaction_stands_for_what_was_before_and_keeps_its_tokens(tmp_path: Path) -> None:
    items = read("opencode", store("opencode", tmp_path))[COMPACTED][1]
    at = next(place for place, item in enumerate(items) if isinstance(item, Summary))
    asked = items[at - 1]
    assert isinstance(asked, Assistant)
    assert (asked.blocks, asked.usage and asked.usage["inputTokens"]) == ([], 100)
    db = tmp_path / "dsh.db"
    imported("opencode", tmp_path, db)
    assert told(db, f"opencode-{COMPACTED}")[:2] == [
        ("user", "Hello from the fake. 你好 世界"),
        ("user", "hello after compaction"),
    ]
    reasons = rows(db, "SELECT outcome FROM turn WHERE session_id = ? ORDER BY turn", f"opencode-{COMPACTED}")
    assert [reason for (reason,) in reasons][:3] == ["completed"] * 3


@pytest.mark.parametrize("version", ["1.1", "0.5"])
def test_files_of_older_versions(tmp_path: Path, version: str) -> None:
    found = read("opencode", tree(tmp_path, f"opencode/files-{version}.json"))
    listing = next((t, i) for t, i in found.values() if "LIST" in texts(i[0])[0])
    transcript, items = listing
    assert transcript.cwd == "/home/ann/parser"
    answer, result = items[1:3]
    assert isinstance(answer, Assistant)
    assert isinstance(result, Result)
    assert (answer.provider, answer.model) == ("fake", "fake-model")
    assert texts(answer) == ["I should look first.", "Let me look."]
    assert (result.call_id, texts(result)) == ("call_ls_1", [".\n..\n.git\nREADME.txt\nnaïve\n"])
    if version == "1.1":
        assert answer.usage is not None
        assert (answer.usage["inputTokens"], answer.usage["outputTokens"]) == (120, 20)
    else:  # its provider failed over the tokens, and no session had a title then
        assert (answer.usage, transcript.title) == (None, None)
        assert isinstance(items[3], End)
    children = {transcript.parent for transcript, _ in found.values()} - {None}
    assert children < set(found)


def test_a_session_that_the_database_took_over_is_not_read_from_its_files(tmp_path: Path) -> None:
    tree(tmp_path, "opencode/files-1.1.json")
    ids = set(read("opencode", tmp_path))
    assert len(ids) == 5
    taken, *_ = sorted(ids)
    schema = sample("opencode/opencode.sql").partition("INSERT")[0]
    values = "'p', NULL, NULL, 's', '/tmp', NULL, 'Of the database', 'v'"
    insert = f"INSERT INTO session (id, project_id, workspace_id, parent_id, slug, directory, path, title, version,\
 time_created, time_updated) VALUES ('{taken}', {values}, 1, 1)"
    database(tmp_path / "opencode.db", schema, insert)
    found = read("opencode", tmp_path)
    assert set(found) == ids
    assert found[taken][0].title == "Of the database"


def test_a_fork_of_opencode_is_a_fork(tmp_path: Path) -> None:
    """It names no origin, and has new ids; the time of its first message tells."""
    db = tmp_path / "dsh.db"
    imported("opencode", store("opencode", tmp_path / "data"), db)
    copy, original = "opencode-ses_dcdea8c7affeucHo1bQx7F39I8", "opencode-ses_dcdea9bfaffeY8JbIXNyoi0ydg"
    assert rows(db, "SELECT id, parent_session FROM fork") == [(copy, original)]
    prompts = [said for role, said in told(db, copy) if role == "user" and said.startswith('"')]
    assert prompts == ['"TASK with a subagent"', '"fork of it: hello"']


def test_files_that_an_upgrade_copied_are_read_once(tmp_path: Path) -> None:
    place = tree(tmp_path / "data", "opencode/files-0.5.json")
    (old,) = place.glob("project/*/storage/session")
    for file in old.rglob("*.json"):
        kind, *rest = file.relative_to(old).parts
        below = {"info": ["session", "p", *rest], "message": ["message", *rest], "part": ["part", *rest[1:]]}[kind]
        new = place.joinpath("storage", *below)
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(file.read_bytes())
    report = imported("opencode", place, tmp_path / "dsh.db")
    assert (report.sources, report.new, report.unchanged, report.failed) == (6, 3, 0, [])


def test_nothing_of_a_store_is_changed_and_a_second_import_adds_nothing(tmp_path: Path) -> None:
    place = store("opencode", tmp_path / "data")
    before = state(place)
    db = tmp_path / "dsh.db"
    first, second = imported("opencode", place, db), imported("opencode", place, db)
    assert (first.new, first.failed, first.skipped) == (9, [], 0)
    assert (second.new, second.grown, second.unchanged) == (0, 0, 9)
    assert state(place) == before
    parents = rows(db, "SELECT parent_session, source, cwd FROM session WHERE id = ?", f"opencode-{SUBAGENT}")
    assert parents == [("opencode-ses_dcdea9bfaffeY8JbIXNyoi0ydg", "opencode", "/home/ann/parser")]


def _message(session: str, number: int, at: int, data: Any, *parts: Any) -> list[str]:
    def quoted(value: Any) -> str:
        return "'" + json.dumps(value).replace("'", "''") + "'"

    made = [f"INSERT INTO message VALUES ('zmsg_{number}', '{session}', {at}, {at}, {quoted(data)})"]
    for place, part in enumerate(parts):
        name = f"zprt_{number}_{place}"
        made.append(f"INSERT INTO part VALUES ('{name}', 'zmsg_{number}', '{session}', {at}, {at}, {quoted(part)})")
    return made


def test_an_answer_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    import time

    place, db, now = store("opencode", tmp_path / "data"), tmp_path / "dsh.db", int(time.time() * 1000)
    imported("opencode", place, db)
    session = f"opencode-{LISTING}"
    (before,) = rows(db, "SELECT length FROM session WHERE id = ?", session)
    half = {"role": "assistant", "time": {"created": now + 1}, "providerID": "fake", "modelID": "fake-model"}
    running = {
        "type": "tool",
        "callID": "c9",
        "tool": "bash",
        "state": {"status": "running", "input": {"command": "w"}},
    }
    changed(
        place / "opencode.db",
        *_message(LISTING, 1, now, {"role": "user", "time": {"created": now}}, {"type": "text", "text": "wait for it"}),
        *_message(LISTING, 2, now + 1, half, {"type": "step-start"}, running),
        f"UPDATE session SET time_updated = {now} WHERE id = '{LISTING}'",
    )
    report = imported("opencode", place, db)
    assert (report.new, report.grown, report.unchanged) == (0, 1, 8)
    assert told(db, session)[-1] == ("user", "wait for it")
    whole = {**half, "time": {"created": now + 1, "completed": now + 5}, "finish": "stop"}
    done = {**running, "state": {"status": "completed", "input": {"command": "w"}, "output": "waited"}}
    changed(
        place / "opencode.db",
        f"UPDATE message SET data = '{json.dumps(whole)}', time_updated = {now + 5} WHERE id = 'zmsg_2'",
        f"UPDATE part SET data = '{json.dumps(done)}', time_updated = {now + 4} WHERE id = 'zprt_2_1'",
    )
    report = imported("opencode", place, db)
    assert (report.grown, report.moved) == (1, [])
    assert told(db, session)[-2:] == [("assistant", "bash"), ("user", "waited")]
    (after,) = rows(db, "SELECT length FROM session WHERE id = ?", session)
    assert after > before


def test_an_answer_that_was_never_finished_is_taken_when_its_session_rests(tmp_path: Path) -> None:
    place = store("opencode", tmp_path / "data")
    half = {"role": "assistant", "time": {"created": 5}, "providerID": "fake", "modelID": "fake-model"}
    changed(
        place / "opencode.db",
        *_message(SUBAGENT, 1, 2**41, half, {"type": "text", "text": "half of"}),
        *[f"UPDATE {table} SET time_updated = 1700000000000" for table in ("session", "message", "part")],
    )
    db = tmp_path / "dsh.db"
    imported("opencode", place, db)
    assert told(db, f"opencode-{SUBAGENT}")[-1] == ("assistant", "half of")


def test_records_that_cannot_be_read_are_named_and_no_more(tmp_path: Path) -> None:
    place = store("opencode", tmp_path / "data")
    changed(
        place / "opencode.db",
        f"INSERT INTO message VALUES ('zmsg_a', '{LISTING}', 2e12, 2e12, '{{\"role\":')",
        f"INSERT INTO message VALUES ('zmsg_b', '{LISTING}', 2e12, 2e12, '[1]')",
        f"INSERT INTO message VALUES ('zmsg_c', '{LISTING}', 2e12, 2e12, '{{\"role\":7}}')",
        f"INSERT INTO message VALUES ('zmsg_d', '{LISTING}', 2e12, 2e12, '{{\"role\":\"user\",\"time\":[]}}')",
        f"INSERT INTO part VALUES ('p1', 'zmsg_d', '{LISTING}', 'x', NULL, 'no json')".replace("NULL", "1"),
        f"INSERT INTO part VALUES ('p2', 'zmsg_d', '{LISTING}', 1, 1, '{{\"type\":\"text\",\"text\":\"still here\"}}')",
        f"UPDATE session SET parent_id = id, directory = 'relative/dir', title = x'ff41' WHERE id = '{LISTING}'",
    )
    db = tmp_path / "dsh.db"
    report = imported("opencode", place, db)
    assert report.skipped == 4
    assert {where for _, where, _ in report.named} == {"message zmsg_a", "message zmsg_b", "message zmsg_c", "part p1"}
    assert told(db, f"opencode-{LISTING}")[-1] == ("user", "still here")
    assert rows(db, "SELECT cwd FROM session WHERE id = ?", f"opencode-{LISTING}") == [(None,)]


def test_files_that_are_torn_or_gone_are_named_and_no_more(tmp_path: Path) -> None:
    place = tree(tmp_path / "data", "opencode/files-1.1.json")
    session = next((place / "storage" / "session").glob("*/*8d8f4*.json"))
    messages = sorted((place / "storage" / "message" / session.stem).iterdir())
    messages[1].write_bytes(messages[1].read_bytes()[:40])
    for part in (place / "storage" / "part" / messages[0].stem).iterdir():
        part.write_bytes(b"\xff\xfe\0")
    next((place / "storage" / "session").glob("*/*8ce90*.json")).write_text("[]")
    os.mkfifo(session.parent / "ses_fifo.json")
    db = tmp_path / "dsh.db"
    report = imported("opencode", place, db)
    assert (report.new, report.skipped) == (4, 2)
    assert [reason for _, reason in report.failed] == ["is no session of opencode"]
    found = read("opencode", session)
    assert [item.where.split()[0] for item in found[session.stem][1] if isinstance(item, Skipped)] == [
        "part",
        "message",
    ]


def test_a_damaged_database_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """What was read before the damage is stored, and the next import finds it there again."""
    place, db = tmp_path / "data", tmp_path / "dsh.db"
    file = database(place / "opencode.db", "PRAGMA page_size = 512", sample("opencode/opencode.sql"))
    whole = file.read_bytes()
    page = whole.rindex(b"hello after compaction") // 512 * 512  # of a session in the middle
    file.write_bytes(whole[:page] + b"\xaa" * 512 + whole[page + 512 :])
    report = imported("opencode", place, db)
    assert 0 < report.new < 9
    assert [reason.split(" (")[0] for _, reason in report.failed] == ["is damaged"]
    file.write_bytes(whole)
    again = imported("opencode", place, db)
    assert (again.failed, again.moved) == ([], [])
    assert rows(db, "SELECT count(*) FROM session") == [(9,)]


def test_a_database_of_something_else_is_one_line(tmp_path: Path) -> None:
    database(tmp_path / "data" / "opencode.db", "CREATE TABLE other(a)")
    report = imported("opencode", tmp_path / "data", tmp_path / "dsh.db")
    assert report.failed == [(str(tmp_path / "data" / "opencode.db"), "has no table session as it is known here")]
    half = database(tmp_path / "half" / "opencode.db", sample("opencode/opencode.sql"), "DROP TABLE part")
    report = imported("opencode", half.parent, tmp_path / "dsh.db")
    assert (report.new, report.failed) == (0, [(str(half), "has no table part as it is known here")])
