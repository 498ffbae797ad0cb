"""Gemini CLI's sessions: the journal of today, the JSON file of before, and whose folder a hash is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dsh.importing import gemini
from dsh.importing.model import Assistant, Home, Result, User
from tests.importing.kit import copied, ends, rest, seen, taken, write
from tests.importing.stores import SAMPLES, read, rows, texts

ID = "731eb06b-04ca-4482-84f9-386feb5515d3"


def hashed(folder: str) -> str:
    return hashlib.sha256(folder.encode()).hexdigest()


def head(**more: Any) -> dict[str, Any]:
    return {"sessionId": "g", "projectHash": hashed("/w"), "startTime": "2026-01-01T00:00:00.000Z", **more}


def record(id: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": id, "timestamp": "2026-01-01T00:00:01.000Z", "type": kind, "content": content, **more}


def ran(id: str, output: str, status: str = "success") -> dict[str, Any]:
    response = {"functionResponse": {"id": id, "name": "sh", "response": {"output": output}}}
    return {"id": id, "name": "sh", "args": {"command": "ls"}, "result": [response], "status": status}


def test_a_real_journal(tmp_path: Path) -> None:
    place, db = copied("gemini", tmp_path), tmp_path / "dsh.db"
    rest(place)
    taken("gemini", place, db)
    once = [
        "thinks I will run echo.", "assistant Running it.", 'call run_shell_command {"command":"echo hello"}',
    ]  # fmt: skip
    found = [each for each in seen(db, f"gemini-{ID}") if not each.startswith(("user <session", "result"))]
    done = "assistant The command printed hello."
    assert found == ["user run echo hello for me", *once, done, "user and again please", *once, done]
    assert ends(db, f"gemini-{ID}") == ["completed", "completed"]
    usage = "SELECT provider, model, input_tokens, cache_read_tokens, output_tokens, reasoning_tokens FROM usage"
    assert rows(db, usage) == [("google", "gemini-2.5-pro", 200, 1000, 80, 30)] * 4
    assert rows(db, "SELECT cwd FROM session") == [("/home/user/project",)]


def test_a_json_file_of_2025_that_is_written_anew_as_it_grows(tmp_path: Path) -> None:
    path, db = tmp_path / "x" / "chats" / "session-1.json", tmp_path / "dsh.db"
    path.parent.mkdir(parents=True)
    messages = [
        record("1", "user", "list them"),
        record("2", "gemini", "", thoughts=[{"subject": "Look", "description": "at it"}], model="gemini-x",
               toolCalls=[ran("c1", "a.txt"), ran("c2", "no", "error")], tokens={"input": 10, "output": 2}),
        record("3", "gemini", "One file.", model="gemini-x"),
        record("4", "info", "a note of the program"),
    ]  # fmt: skip
    path.write_text(json.dumps(head(messages=messages[:2])), encoding="utf-8")
    taken("gemini", path, db)
    assert seen(db, "gemini-g") == ["user list them"]
    path.write_text(json.dumps(head(messages=messages, summary="Files")), encoding="utf-8")
    rest(path)
    assert taken("gemini", path, db).moved == []
    assert seen(db, "gemini-g") == [
        "user list them", "thinks **Look**\nat it", 'call sh {"command":"ls"}', 'call sh {"command":"ls"}',
        "result a.txt", "error no", "assistant One file.",
    ]  # fmt: skip
    assert rows(db, "SELECT title FROM title") == [("Files",)]


def test_an_answer_is_written_again_with_its_results(tmp_path: Path) -> None:
    asked = {"functionCall": {"id": "c1", "name": "sh", "args": {"command": "ls"}}}
    path = write(
        tmp_path / "session-1.jsonl", head(), record("1", "user", [{"text": "go"}]),
        record("2", "gemini", [{"text": "hm", "thought": True}, {"text": "so"}, asked]),
        {"$set": {"lastUpdated": "x"}},
        record("3", "user", [{"text": "meanwhile"}]),
        record("2", "gemini", "so", toolCalls=[ran("c1", "late")]),
        record("4", "user", [{"functionResponse": {"id": "c1", "response": {"output": "again"}}}]),
    )  # fmt: skip
    items = read("gemini", path)["g"][1]
    assert [type(each) for each in items] == [User, Assistant, User, Result]
    assert [block["type"] for block in items[1].blocks] == ["reasoning", "text", "tool-call"]  # type: ignore[union-attr]
    assert texts(items[3]) == ["late"]


def test_rewinding_and_resuming(tmp_path: Path) -> None:
    path = write(
        tmp_path / "session-1.jsonl", head(),
        record("1", "user", "one"), record("2", "gemini", "first"), record("3", "user", "wrong"),
        record("4", "gemini", "lost"), {"$rewindTo": "3"}, record("5", "user", "right"), record("6", "gemini", "found"),
        head(), {"$set": {"messages": [record("1", "user", "one"), record("6", "gemini", "found")]}},
        record("7", "user", "on"), record("8", "error", "quota"),
    )  # fmt: skip
    db = tmp_path / "dsh.db"
    rest(path)
    taken("gemini", path, db)
    assert seen(db, "gemini-g") == ["user one", "assistant first", "user right", "assistant found", "user on"]
    assert ends(db, "gemini-g")[-1] == "error"


def test_a_compression_takes_the_place_of_what_was_before(tmp_path: Path) -> None:
    path = write(
        tmp_path / "session-1.jsonl", head(), record("1", "user", "one"), record("2", "gemini", "first"),
        {"$set": {"messages": [record("s", "user", "<state_snapshot>so far</state_snapshot>")]}},
        record("3", "user", "two"),
    )  # fmt: skip
    taken("gemini", path, tmp_path / "dsh.db")
    assert seen(tmp_path / "dsh.db", "gemini-g") == ["user <state_snapshot>so far</state_snapshot>", "user two"]


def test_the_folder_of_a_hash_is_found_where_somebody_names_it(tmp_path: Path) -> None:
    root = tmp_path / ".gemini"
    chats = root / "tmp" / "abc" / "chats"
    path = write(chats / "session-1.jsonl", head(), record("1", "user", "one"), record("2", "user", "two"))

    def folder() -> str | None:
        return read("gemini", root / "tmp")["g"][0].cwd

    assert folder() is None
    (root / "projects.json").write_text(json.dumps({"projects": {"/other": "o", "/w": "w"}}), encoding="utf-8")
    assert folder() == "/w"
    (root / "projects.json").unlink()
    (root / "trustedFolders.json").write_text(json.dumps({"/w": "TRUST_FOLDER"}), encoding="utf-8")
    assert folder() == "/w"
    (root / "trustedFolders.json").write_text("{", encoding="utf-8")
    assert folder() is None
    (chats.parent / ".project_root").write_text("/w\n", encoding="utf-8")
    assert folder() == "/w"
    (chats.parent / ".project_root").write_text("/elsewhere", encoding="utf-8")
    write(path, head(), record("1", "user", "<session_context>\nWorkspace:\n  - /w\n</session_context>"))
    assert folder() == "/w"


def test_sub_agents_have_a_parent_and_attachments_are_left_out(tmp_path: Path) -> None:
    data = {"inlineData": {"mimeType": "image/png", "data": "A" * 400}}
    path = tmp_path / "tmp" / "p" / "chats" / "g0" / "agent7.jsonl"
    write(path, head(sessionId="agent7", kind="subagent"), record("1", "user", [data, {"text": "go"}]))
    found = read("gemini", tmp_path / "tmp")["agent7"]
    assert found[0].parent == "g0"
    assert texts(found[1][0]) == ["[attachment left out: image/png, 300 bytes]", "go"]


def test_the_places() -> None:
    assert list(gemini.places(Home("/h", {}))) == ["/h/.gemini/tmp"]
    assert len(list(gemini.sources(str(SAMPLES / "gemini")))) == 1
