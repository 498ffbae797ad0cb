"""Claude Code's transcripts: answers in pieces, sub-agents, titles, commands, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsh.importing import claude
from dsh.importing.model import MORE, Assistant, End, Home, Item, Result, Summary, User
from tests.importing.kit import copied, ends, kinds, rest, seen, taken, write
from tests.importing.stores import SAMPLES, read, rows, texts

SESSION = "6aaf1794-44f7-4a6f-99b0-fb2b6fe59d4e"
AGENT = "agent-a349ecc181bb7b0c0"


class Lines:
    """Records of a transcript, each the child of the one before."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def add(self, kind: str, message: Any = None, **more: Any) -> str:
        number = len(self.made)
        parent = self.made[-1]["uuid"] if self.made else None
        record = {"parentUuid": parent, "type": kind, "uuid": f"u{number}", "sessionId": "s", "cwd": "/w",
                  "timestamp": f"2026-01-01T00:00:{number:02}.000Z"}  # fmt: skip
        self.made.append({**record, **({"message": message} if message is not None else {}), **more})
        return f"u{number}"

    def user(self, content: Any, **more: Any) -> str:
        return self.add("user", {"role": "user", "content": content}, **more)

    def answer(self, id: str, *blocks: dict[str, Any], stop: str | None = None, tokens: int = 7, **more: Any) -> str:
        message = {"id": id, "role": "assistant", "model": "claude-x", "content": list(blocks), "stop_reason": stop,
                   "usage": {"input_tokens": 1, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2,
                             "output_tokens": tokens}}  # fmt: skip
        return self.add("assistant", message, **more)

    def items(self, tmp_path: Path, name: str = "s.jsonl") -> list[Item]:
        path = write(tmp_path / name, *self.made)
        return read("claude", path)[name.removesuffix(".jsonl")][1]


def said(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def tool(id: str, command: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": command}}


def result(id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def test_a_real_transcript(tmp_path: Path) -> None:
    db = tmp_path / "dsh.db"
    taken("claude", copied("claude", tmp_path), db)
    assert seen(db, f"claude-{SESSION}") == [
        "user run echo hello for me",
        "assistant I send an agent.",
        'call Agent {"description":"look","prompt":"please run the shell thing","subagent_type":"general-purpose"}',
        seen(db, f"claude-{SESSION}")[3],
        "assistant All done: the command printed hello.",
        "user and again please",
        "thinks I should run echo twice.",
        "assistant Let me run it.",
        'call Bash {"command":"echo hello","description":"says hello"}',
        'call Bash {"command":"echo hello again; false"}',
        "result hello",
        "error Exit code 1\nhello again",
        "assistant All done: the command printed hello.",
    ]
    assert ends(db, f"claude-{SESSION}") == ["completed", "completed"]
    usage = "SELECT input_tokens, cache_read_tokens, cache_write_tokens, output_tokens FROM usage WHERE session_id = ?"
    assert rows(db, usage, f"claude-{SESSION}") == [(12, 400, 30, 57)] * 4  # once an answer, not once a line
    [(parent, depth, title)] = rows(
        db,
        "SELECT parent_session, delegation_depth, title FROM session JOIN title ON session_id = id WHERE id = ?",
        f"claude-{AGENT}",
    )
    assert (parent, depth, title) == (f"claude-{SESSION}", 1, "look")
    forked = rows(db, "SELECT id, parent_session FROM fork")
    assert forked == [
        ("claude-d7d48c27-f7eb-43e5-82d3-5390a9029d15", "claude-f70c1b33-fca3-4cea-aa6b-b0b193eb81d7"),
    ]


def test_an_answer_is_one_record_whatever_comes_between_its_lines(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("go")
    lines.answer("m1", {"type": "thinking", "thinking": "hm", "signature": "x"}, tokens=1)
    lines.answer("m1", tool("a", "ls"))
    lines.user([result("a", "one")])
    lines.answer("m1", tool("b", "pwd"), stop="tool_use", tokens=9)
    lines.user(
        [result("b", [said("two"), {"type": "image", "source": {"media_type": "image/png", "data": "A" * 400}}])]
    )
    lines.answer("m2", said("done"), stop="end_turn")
    _, first, one, two, last = lines.items(tmp_path)
    assert isinstance(first, Assistant)
    assert [block["type"] for block in first.blocks] == ["reasoning", "tool-call", "tool-call"]
    assert first.usage is not None
    assert (first.usage["outputTokens"], first.ends, first.partial) == (9, MORE, False)
    assert isinstance(one, Result)
    assert (one.call_id, texts(one), one.is_error) == ("a", ["one"], False)
    assert texts(two) == ["two", "[image left out: image/png, 300 bytes]"]
    assert isinstance(last, Assistant)
    assert (last.ends, last.partial) == ("completed", False)


def test_the_end_of_a_file_may_be_the_middle_of_an_answer(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("go")
    lines.answer("m1", said("so"), tool("a", "ls"), stop="tool_use")
    last = lines.items(tmp_path)[-1]
    assert isinstance(last, Assistant)
    assert last.partial
    path, db = tmp_path / "s.jsonl", tmp_path / "dsh.db"
    taken("claude", path, db)
    assert seen(db, "claude-s") == ["user go"]
    rest(path)
    taken("claude", path, db)
    assert seen(db, "claude-s")[1:3] == ["assistant so", 'call Bash {"command": "ls"}']


def test_side_chains_of_older_versions_are_sessions(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("main")
    lines.user("task one", isSidechain=True, parentUuid=None)
    lines.answer("s1", said("inner"), stop="end_turn", isSidechain=True)
    lines.answer("m1", said("outer"), stop="end_turn", parentUuid="u0")
    lines.user("task two", isSidechain=True, parentUuid=None)
    lines.answer("s2", said("second"), stop="end_turn", isSidechain=True)
    path, db = write(tmp_path / "s.jsonl", *lines.made), tmp_path / "dsh.db"
    taken("claude", path, db)
    assert seen(db, "claude-s") == ["user main", "assistant outer"]
    assert seen(db, "claude-s-agent-1") == ["user task one", "assistant inner"]
    assert seen(db, "claude-s-agent-2") == ["user task two", "assistant second"]
    assert rows(db, "SELECT DISTINCT parent_session FROM session WHERE delegation_depth = 1") == [("claude-s",)]


def test_only_a_summary_of_this_very_conversation_is_its_title(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("go")
    lines.answer("m1", said("done"), stop="end_turn")
    foreign = {"type": "summary", "summary": "Somebody else's", "leafUuid": "elsewhere"}
    own = {"type": "summary", "summary": "Going  somewhere", "leafUuid": "u1"}
    path, db = write(tmp_path / "s.jsonl", foreign, own, *lines.made), tmp_path / "dsh.db"
    taken("claude", path, db)
    title = "SELECT title, origin FROM title WHERE session_id = 'claude-s'"
    assert rows(db, title) == [("Going somewhere", "event")]
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"type": "custom-title", "customTitle": "My own", "sessionId": "s"}) + "\n")
    taken("claude", path, db)
    assert rows(db, title) == [("My own", "event")]
    assert taken("claude", path, db).grown == 0
    rest(path, 1_700_000_500)
    report = taken("claude", path, db)
    assert (report.grown, report.moved) == (0, [])


def test_commands_and_notes_are_no_prompts(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("Caveat: be careful", isMeta=True)
    lines.user("<command-name>/clear</command-name>\n<command-args></command-args>")
    lines.user("<local-command-stdout>cleared</local-command-stdout>")
    lines.user(
        "<command-message>fix</command-message>\n<command-name>/fix</command-name><command-args>bug 7</command-args>"
    )
    lines.user([said("The whole prompt of fix")], isMeta=True)
    lines.answer("m1", said("fixed"), stop="end_turn")
    items = lines.items(tmp_path)
    assert [(texts(item), item.human) for item in items if isinstance(item, User)] == [
        (["Caveat: be careful"], False),
        (["/clear"], False),
        (["<local-command-stdout>cleared</local-command-stdout>"], False),
        (["/fix bug 7"], True),
        (["The whole prompt of fix"], False),
    ]
    taken("claude", tmp_path / "s.jsonl", tmp_path / "dsh.db")
    assert rows(tmp_path / "dsh.db", "SELECT title FROM title") == [("/fix bug 7",)]


def test_a_session_in_which_nothing_was_asked_is_none(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("<command-name>/exit</command-name>")
    report = taken("claude", write(tmp_path / "s.jsonl", *lines.made), tmp_path / "dsh.db")
    assert (report.new, report.empty) == (0, 1)
    assert rows(tmp_path / "dsh.db", "SELECT id FROM session") == []


def test_interruptions_and_errors_end_the_turn(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("one")
    lines.answer("m1", tool("a", "sleep"), stop="tool_use")
    lines.user([result("a", "stopped", is_error=True)])
    lines.user([said("[Request interrupted by user for tool use]")])
    lines.user("two")
    failed = {"id": "x", "model": "<synthetic>", "role": "assistant", "content": [said("API Error: 529")]}
    lines.add("assistant", failed, isApiErrorMessage=True)
    lines.user("three")
    lines.answer("m2", said("long"), stop="max_tokens")
    path, db = write(tmp_path / "s.jsonl", *lines.made), tmp_path / "dsh.db"
    taken("claude", path, db)
    assert ends(db, "claude-s") == ["aborted", "error", "max-tokens"]
    [(reason,)] = rows(db, "SELECT reason FROM turn WHERE turn = 2")
    assert json.loads(reason)["message"] == "API Error: 529"


def test_what_was_typed_meanwhile_steers(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("one")
    lines.answer("m1", tool("a", "ls"), stop="tool_use")
    lines.user([result("a", "x")])
    lines.add("attachment", attachment={"type": "queued_command", "prompt": "also this"})
    lines.add("attachment", attachment={"type": "todo_reminder", "content": "noise"})
    lines.answer("m2", said("done"), stop="end_turn")
    path, db = write(tmp_path / "s.jsonl", *lines.made), tmp_path / "dsh.db"
    taken("claude", path, db)
    assert seen(db, "claude-s")[3:] == ["user also this", "assistant done"]
    assert "steering/message" in kinds(db, "claude-s")
    assert ends(db, "claude-s") == ["completed"]


def test_a_compaction_takes_the_place_of_what_was_before(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("one")
    lines.answer("m1", said("first"), stop="end_turn")
    lines.add("system", subtype="compact_boundary", content="Conversation compacted")
    lines.user("This session is continued: much happened", isCompactSummary=True)
    lines.user("two")
    lines.answer("m2", said("second"), stop="end_turn")
    path, db = write(tmp_path / "s.jsonl", *lines.made), tmp_path / "dsh.db"
    taken("claude", path, db)
    assert seen(db, "claude-s") == [
        "user This session is continued: much happened", "user two", "assistant second",
    ]  # fmt: skip
    assert rows(db, "SELECT 1 FROM search_document WHERE text = 'first'") == [(1,)]  # it is still found


def test_a_compaction_keeps_what_it_says_it_keeps(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("one")
    lines.answer("m1", said("first"), stop="end_turn")
    head = lines.user("two")
    lines.answer("m2", said("second"), stop="end_turn")
    lines.add("system", subtype="compact_boundary", compactMetadata={"preservedSegment": {"headUuid": head}})
    lines.user("what was", isCompactSummary=True)
    lines.user("three")
    path, db = write(tmp_path / "s.jsonl", *lines.made), tmp_path / "dsh.db"
    taken("claude", path, db)
    assert seen(db, "claude-s") == ["user what was", "user two", "assistant second", "user three"]


def test_what_the_program_says_beside_a_prompt_is_context(tmp_path: Path) -> None:
    lines = Lines()
    lines.user([said("<ide_opened_file>a.py</ide_opened_file>"), said("fix it"), said("<system-reminder>x")])
    lines.user("<task-notification>done</task-notification>")
    items = [(texts(item), item.human) for item in lines.items(tmp_path) if isinstance(item, User)]
    assert items == [
        (["<ide_opened_file>a.py</ide_opened_file>", "<system-reminder>x"], False),
        (["fix it"], True),
        (["<task-notification>done</task-notification>"], False),
    ]


def test_who_goes_back_leaves_a_branch_behind(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("one")
    at = lines.answer("m1", said("first"), stop="end_turn")
    lines.user("wrong way")
    lines.answer("m2", said("lost"), stop="end_turn")
    lines.user("right way", parentUuid=at)
    lines.answer("m3", said("found"), stop="end_turn")
    lines.user("and on")
    path, db = write(tmp_path / "s.jsonl", *lines.made), tmp_path / "dsh.db"
    taken("claude", path, db)
    assert seen(db, "claude-s") == [
        "user one", "assistant first", "user right way", "assistant found", "user and on",
    ]  # fmt: skip
    assert rows(db, "SELECT 1 FROM search_document WHERE text = 'lost'") == [(1,)]


def test_parents_in_a_circle_and_ids_that_repeat(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("a", uuid="x", parentUuid="y", isSidechain=True)
    lines.user("b", uuid="y", parentUuid="x", isSidechain=True)
    lines.user("main", uuid="z", parentUuid="z")
    lines.answer("m", tool("t", "1"), tool("t", "2"), stop="tool_use", uuid="z")
    lines.user([result("t", "r1")])
    lines.user([result("t", "r2"), result("unknown", "stray")])
    path, db = write(tmp_path / "s.jsonl", *lines.made), tmp_path / "dsh.db"
    rest(path)
    taken("claude", path, db)
    assert [text.split(" ", 1)[0] for text in seen(db, "claude-s")][:3] == ["user", "call", "call"]
    assert "user stray" in seen(db, "claude-s")


def test_the_places(tmp_path: Path) -> None:
    assert list(claude.places(Home("/h", {"CLAUDE_CONFIG_DIR": "/c"}))) == ["/c/projects"]
    assert list(claude.places(Home("/h", {}))) == ["/h/.claude/projects", "/h/.config/claude/projects"]
    found = [Path(source.path).name for source in claude.sources(str(SAMPLES / "claude"))]
    assert len(found) == 4
    assert f"{AGENT}.jsonl" in found


def test_records_are_of_their_kinds(tmp_path: Path) -> None:
    lines = Lines()
    lines.user("one")
    lines.user("sum", isCompactSummary=True)
    lines.user("[Request interrupted by user]")
    assert [type(item) for item in lines.items(tmp_path)] == [User, Summary, End]
