"""Codex's rollouts, of several years and compressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zstandard

from dsh.importing import codex
from dsh.importing.model import Assistant, End, Home, Result, Summary, User
from tests.importing.kit import copied, ends, rest, seen, taken, write
from tests.importing.stores import SAMPLES, read, rows, texts

ID = "01a23225-fb20-75c0-9d95-409519dad3ff"


def line(kind: str, payload: dict[str, Any], second: int = 0) -> dict[str, Any]:
    return {"timestamp": f"2025-10-01T10:00:{second:02}.000Z", "type": kind, "payload": payload}


def message(role: str, said: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return line("response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": said}]})


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return line("response_item", {"type": kind, **fields})


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return line("event_msg", {"type": kind, **fields})


META = line("session_meta", {"id": "s1", "cwd": "/w", "timestamp": "2025-10-01T10:00:00.000Z", "source": "cli"})
TURN = line("turn_context", {"cwd": "/w", "model": "gpt-5"})


def spent(number: int) -> dict[str, Any]:
    used = {"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": number, "reasoning_output_tokens": 5}
    return event("token_count", info={"last_token_usage": used, "total_token_usage": used})


def rollout(tmp_path: Path, *records: Any) -> list[Any]:
    path = write(tmp_path / "rollout-x.jsonl", META, TURN, *records)
    return read("codex", path)["s1"][1]


def test_a_real_rollout(tmp_path: Path) -> None:
    db = tmp_path / "dsh.db"
    taken("codex", copied("codex", tmp_path), db)
    found = [each for each in seen(db, f"codex-{ID}") if not each.startswith("user <")]
    assert found[:4] == [
        "user run echo hello for me", "thinks I will run echo.", "assistant Running it.",
        'call exec_command {"cmd": "echo hello"}',
    ]  # fmt: skip
    assert found[4].startswith("result Chunk ID")
    assert found[5:7] == ["assistant The command printed hello.", "user and again please"]
    assert ends(db, f"codex-{ID}") == ["completed", "completed"]
    usage = "SELECT provider, model, input_tokens, cache_read_tokens, output_tokens, reasoning_tokens FROM usage"
    assert rows(db, usage) == [("fake", "gpt-5.1-codex", 200, 1000, 80, 30)] * 4
    assert rows(db, "SELECT title FROM title") == [("run echo hello for me",)]


def test_tokens_may_stand_behind_the_results(tmp_path: Path) -> None:
    items = rollout(
        tmp_path,
        message("user", "<environment_context>\n  <cwd>/w</cwd>"),
        message("user", "go"),
        spent(1),  # of the turn before
        item("reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="x"),
        item("function_call", name="shell", arguments='{"command":["ls"]}', call_id="c1"),
        item("function_call_output", call_id="c1", output='{"output":"a\\n","metadata":{"exit_code":1}}'),
        spent(11),
        item("custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="c2"),
        item("custom_tool_call_output", call_id="c2", output="Done"),
        spent(22),
        message("assistant", "all good"),
        spent(33),
        event("task_complete", last_agent_message="all good"),
    )
    assert [type(each) for each in items] == [User, User, Assistant, Result, Assistant, Result, Assistant, End]
    assert [each.human for each in items[:2]] == [False, True]
    answers = [each for each in items if isinstance(each, Assistant)]
    assert [each.usage and each.usage["outputTokens"] for each in answers] == [11, 22, 33]
    assert answers[0].usage == {"inputTokens": 40, "cacheReadTokens": 60, "outputTokens": 11, "reasoningTokens": 5}
    assert [block["type"] for block in answers[0].blocks] == ["reasoning", "tool-call"]
    assert (items[3].is_error, texts(items[3])) == (True, ["a\n"])
    assert answers[1].blocks[0]["arguments"] == "*** Begin Patch"
    assert (answers[2].model, answers[2].provider) == ("gpt-5", "openai")


def test_turns_end_as_they_ended(tmp_path: Path) -> None:
    db = tmp_path / "dsh.db"
    path = write(
        tmp_path / "rollout-x.jsonl", META, TURN,
        message("user", "one"), message("assistant", "1"), event("task_complete"),
        message("user", "two"), item("function_call", name="shell", arguments="{}", call_id="c"), event("turn_aborted"),
        message("user", "three"), event("error", message="quota"),
        event("thread_name_updated", thread_name="A name"),
        line("compacted", {"message": "", "replacement_history": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "the summary"}]}]}),
        message("user", "four"),
    )  # fmt: skip
    taken("codex", path, db)
    assert ends(db, "codex-s1")[:3] == ["completed", "aborted", "error"]
    assert seen(db, "codex-s1") == ["user the summary", "user four"]
    assert rows(db, "SELECT title FROM title") == [("A name",)]


def test_images_are_left_out_and_searches_told(tmp_path: Path) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 378}
    items = rollout(
        tmp_path,
        item("message", role="user", content=[image, {"type": "input_text", "text": "what is it"}]),
        item("web_search_call", action={"type": "search", "query": "cats"}),
        item("function_call_output", call_id="none", output=[{"type": "input_text", "text": "x"}, image]),
    )
    assert texts(items[0]) == ["[image left out: image/png, 300 bytes]", "what is it"]
    assert texts(items[1]) == ['[web search {"type":"search","query":"cats"}]']
    assert texts(items[2]) == ["x", "[image left out: image/png, 300 bytes]"]


def test_a_compressed_rollout_is_the_same_session(tmp_path: Path) -> None:
    place = copied("codex", tmp_path)
    [path] = place.rglob("*.jsonl")
    taken("codex", place, tmp_path / "plain.db")
    packed = path.with_name(path.name + ".zst")
    content, half = path.read_bytes(), len(path.read_bytes()) // 2
    packer = zstandard.ZstdCompressor()
    packed.write_bytes(packer.compress(content[:half]) + packer.compress(content[half:]))  # several frames
    path.unlink()
    taken("codex", place, tmp_path / "packed.db")
    assert seen(tmp_path / "packed.db", f"codex-{ID}") == seen(tmp_path / "plain.db", f"codex-{ID}")
    assert taken("codex", place, tmp_path / "plain.db").new == 0  # the same under another name
    packed.write_bytes(packed.read_bytes()[:-40])
    assert taken("codex", place, tmp_path / "torn.db").failed == []
    packed.write_bytes(b"no zstd at all")
    [(name, reason)] = taken("codex", place, tmp_path / "foreign.db").failed
    assert name.endswith(".zst")
    assert "cannot be decompressed" in reason


def test_rollouts_of_early_2025(tmp_path: Path) -> None:
    head = {"id": "old", "timestamp": "2025-06-01T08:00:00.000Z", "instructions": "be good"}
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    back = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    path = write(tmp_path / "rollout-2025-06-01-old.jsonl", head, said, {"record_type": "state"}, back)
    db = tmp_path / "dsh.db"
    path.touch()
    taken("codex", path, db)
    assert seen(db, "codex-old") == ["user hello"]  # the answer may still grow
    assert rows(db, "SELECT created_at FROM session") == [(1748764800000,)]


def test_sub_agents_have_a_parent(tmp_path: Path) -> None:
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "s0", "depth": 1}}}
    path = write(
        tmp_path / "rollout-x.jsonl", line("session_meta", {"id": "s1", "source": source}), message("user", "go"),
        message("assistant", "ok"), event("task_complete"),
    )  # fmt: skip
    taken("codex", path, tmp_path / "dsh.db")
    sql = "SELECT parent_session, delegation_depth, cwd FROM session"
    assert rows(tmp_path / "dsh.db", sql) == [("codex-s0", 1, None)]


def test_a_forked_rollout_shares(tmp_path: Path) -> None:
    place, db = tmp_path / "p", tmp_path / "dsh.db"
    common = [message("user", "one"), message("assistant", "first"), event("task_complete")]
    rest(write(place / "rollout-a.jsonl", META, TURN, *common), 1_700_000_000)
    fork = line("session_meta", {"id": "s2", "cwd": "/w", "forked_from_id": "s1"})
    rest(write(place / "rollout-b.jsonl", fork, META, TURN, *common, message("user", "on")), 1_700_000_100)
    taken("codex", place, db)
    assert rows(db, "SELECT id, parent_session FROM fork") == [("codex-s2", "codex-s1")]
    assert seen(db, "codex-s2") == ["user one", "assistant first", "user on"]


def test_a_compaction_and_its_summary(tmp_path: Path) -> None:
    items = rollout(tmp_path, message("user", "a"), line("compacted", {"message": "short"}), message("user", "b"))
    assert [type(each) for each in items] == [User, Summary, User]


def test_the_places() -> None:
    assert list(codex.places(Home("/h", {"CODEX_HOME": "/c"}))) == ["/c/sessions", "/c/archived_sessions"]
    assert len(list(codex.sources(str(SAMPLES / "codex")))) == 1
