"""pi's session trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsh.importing import pi
from dsh.importing.model import Home, User
from tests.importing.kit import copied, ends, seen, taken, write
from tests.importing.stores import SAMPLES, read, rows, texts

ID = "01a23225-ff34-7614-bfed-10c951aa67f2"
HEAD = {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/w"}


def entry(id: str, parent: str | None, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:01.000Z", **fields}


def user(id: str, parent: str | None, said: str) -> dict[str, Any]:
    return entry(id, parent, "message", message={"role": "user", "content": said})


def answer(id: str, parent: str, said: str, stop: str = "stop", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "text", "text": said}], "provider": "p", "model": "m",
               "stopReason": stop, "usage": {"input": 1, "output": 2, "cacheRead": 3}, **more}  # fmt: skip
    return entry(id, parent, "message", message=message)


def test_a_real_session(tmp_path: Path) -> None:
    db = tmp_path / "dsh.db"
    taken("pi", copied("pi", tmp_path), db)
    once = [
        "thinks I will run echo.", "assistant Running it.", 'call bash {"command":"echo hello"}', "result hello\n",
        "assistant The command printed hello.",
    ]  # fmt: skip
    assert seen(db, f"pi-{ID}") == ["user run echo hello for me", *once, "user and again please", *once]
    assert ends(db, f"pi-{ID}") == ["completed", "completed"]
    usage = "SELECT provider, model, input_tokens, cache_read_tokens, output_tokens FROM usage"
    assert rows(db, usage) == [("fake", "fake-model", 200, 1000, 80)] * 4


def test_a_branch_leaves_the_other_behind(tmp_path: Path) -> None:
    db = tmp_path / "dsh.db"
    path = write(
        tmp_path / "x_s.jsonl", HEAD,
        user("1", None, "one"), answer("2", "1", "first"), user("3", "2", "wrong"), answer("4", "3", "lost"),
        entry("5", "2", "branch_summary", fromId="4", summary="tried the wrong way"),
        entry("6", "5", "label", targetId="2", label="here"),
        user("7", "6", "right"), answer("8", "7", "found"),
    )  # fmt: skip
    taken("pi", path, db)
    assert seen(db, "pi-s") == [
        "user one", "assistant first", "user right", "user tried the wrong way", "assistant found",
    ]  # fmt: skip
    assert rows(db, "SELECT 1 FROM search_document WHERE text = 'lost'") == [(1,)]


def test_a_compaction_keeps_what_it_says_it_keeps(tmp_path: Path) -> None:
    db = tmp_path / "dsh.db"
    path = write(
        tmp_path / "x_s.jsonl", HEAD,
        user("1", None, "one"), answer("2", "1", "first"), user("3", "2", "two"), answer("4", "3", "second"),
        entry("5", "4", "compaction", summary="what was", firstKeptEntryId="3", tokensBefore=9),
        user("6", "5", "three"), answer("7", "6", "third"),
        entry("8", "7", "session_info", name="Named"),
    )  # fmt: skip
    taken("pi", path, db)
    assert seen(db, "pi-s") == [
        "user what was", "user two", "assistant second", "user three", "assistant third",
    ]  # fmt: skip
    assert rows(db, "SELECT title FROM title") == [("Named",)]


def test_ends_and_what_stands_beside(tmp_path: Path) -> None:
    db = tmp_path / "dsh.db"
    image = {"type": "image", "mimeType": "image/png", "data": "A" * 400}
    shell = {"role": "bashExecution", "command": "ls", "output": "a", "exitCode": 0}
    path = write(
        tmp_path / "x_s.jsonl", HEAD,
        entry("0", None, "message", message={"role": "user", "content": [image]}),
        answer("1", "0", "cut", "length"), user("2", "1", "b"), answer("3", "2", "half", "aborted"),
        entry("4", "3", "message", message=shell),
        user("5", "4", "c"), answer("6", "5", "", "error", content=[], errorMessage="overloaded"),
        entry("7", "6", "custom_message", customType="x", content="injected", display=True),
    )  # fmt: skip
    taken("pi", path, db)
    assert ends(db, "pi-s") == ["max-tokens", "aborted", "error"]
    items = read("pi", path)["s"][1]
    assert [texts(each) for each in items if isinstance(each, User) and not each.human] == [["$ ls\na"], ["injected"]]
    assert texts(items[0]) == ["[image left out: image/png, 300 bytes]"]


def test_a_forked_session_shares(tmp_path: Path) -> None:
    place, db = tmp_path / "p", tmp_path / "dsh.db"
    common = [user("1", None, "one"), answer("2", "1", "first")]
    write(place / "1_s.jsonl", HEAD, *common)
    write(place / "2_t.jsonl", {**HEAD, "id": "t", "parentSession": "1_s.jsonl"}, *common, user("9", "2", "on"))
    taken("pi", place, db)
    assert rows(db, "SELECT id, parent_session FROM fork") == [("pi-t", "pi-s")]
    assert seen(db, "pi-t") == ["user one", "assistant first", "user on"]


def test_the_places() -> None:
    assert list(pi.places(Home("/h", {}))) == ["/h/.pi/agent/sessions"]
    assert list(pi.places(Home("/h", {"PI_CODING_AGENT_DIR": "/x"}))) == ["/x/sessions"]
    assert len(list(pi.sources(str(SAMPLES / "pi")))) == 1
