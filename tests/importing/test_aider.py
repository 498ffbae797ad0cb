"""aider's chat history, a Markdown file that was written for people."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dsh.importing import aider
from dsh.importing.model import Assistant, End, Home, Item, User
from tests.importing.stores import imported, read, rows, sample, state, store, texts, told


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """aider writes local times."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def _chat(folder: Path, text: str, **files: str) -> list[Item]:
    folder.mkdir(parents=True, exist_ok=True)
    history = folder / ".aider.chat.history.md"
    history.write_text(f"\n# aider chat started at 2026-01-02 03:04:05\n\n{text}", encoding="utf-8")
    for name, content in files.items():
        (folder / f".aider.{name}.history").write_text(content, encoding="utf-8")
    ((_, items),) = read("aider", folder).values()
    return items


def test_what_was_said_answered_thought_and_spent(tmp_path: Path) -> None:
    ((transcript, items),) = read("aider", store("aider", tmp_path)).values()
    assert transcript.id.startswith("20261201-145907-")
    assert (transcript.cwd, transcript.created_at) == (str(tmp_path), 1796137147000)
    prompts = [item for item in items if isinstance(item, User) and item.human]
    assert [texts(item) for item in prompts] == [
        ["EDIT the greeting"],
        ["first line\n#### second line"],
        ["hello again"],
        ["hello other"],
        ["BOOM now"],
    ]
    assert (prompts[0].at, prompts[2].at) == (1796137151488, 1796137165094)  # of the file of what was typed
    answers = [item for item in items if isinstance(item, Assistant)]
    edit = "# Plan\n\nI will change the greeting:\n\n> quoted by the model\n\n#### A heading of the model\n\nhello.py\n"
    assert texts(answers[0]) == [edit + '```python\nprint("hello, world")\n```']
    assert answers[0].usage == {"inputTokens": 726, "outputTokens": 36}
    assert [block["type"] for block in answers[1].blocks] == ["reasoning", "text"]
    assert [(each.provider, each.model) for each in answers] == [("openai", "fake-model")] * 3 + [
        ("openai", "fake-other")
    ]
    assert items[-1] == End(
        "error",
        1796137177838,
        "litellm.BadRequestError: OpenAIException - context is too long for fake-model",
    )
    context = "\n".join(text for item in items if isinstance(item, User) and not item.human for text in texts(item))
    assert "Applied edit to hello.py" in context
    assert "/run echo from the shell; echo two" in context
    assert "Aider v0.86.2\nModel" not in context


def test_tokens_are_told_in_rounded_figures(tmp_path: Path) -> None:
    told_by = (
        "> Tokens: 12k sent, 3.2k cache write, 1.5k cache hit, 987 received.\nCost: $0.01 message, $0.02 session.  \n"
    )
    items = _chat(tmp_path, f"#### hi  \n\nhello\n\n{told_by}\n#### more  \n\nCost: $5 it is\n")
    assert [texts(item) for item in items] == [["hi"], ["hello"], ["more"], ["Cost: $5 it is"]][: len(items)]
    answer = items[1]
    assert isinstance(answer, Assistant)
    assert answer.usage == {"inputTokens": 7300, "outputTokens": 987, "cacheReadTokens": 1500, "cacheWriteTokens": 3200}


def test_a_file_without_its_trailing_spaces_is_read_by_its_marks(tmp_path: Path) -> None:
    items = _chat(
        tmp_path, "> Model: gpt-4o with diff edit format\n\n#### hi\n\nhello\n\n#### more\n\nyes\n> Applied edit\n"
    )
    assert [texts(item) for item in items if isinstance(item, User)] == [["hi"], ["more"]]
    assert [texts(item) for item in items if isinstance(item, Assistant)] == [["hello"], ["yes"]]
    assert {(item.provider, item.model) for item in items if isinstance(item, Assistant)} == {("aider", "gpt-4o")}


def test_commands_ask_the_model_or_are_context(tmp_path: Path) -> None:
    chat = "#### /ask why  \n\nbecause\n\n#### /diff  \n--- a\n+++ b\n\n#### /test make  \n> failed  \n\nI see\n\n"
    chat += "> Tokens: 1 sent, 2 received.  \n\n#### <blank>  \n\n#### /undo  \n> ^C KeyboardInterrupt  \n"
    items = _chat(tmp_path, chat)
    assert [(type(item).__name__, getattr(item, "human", None), texts(item)) for item in items] == [
        ("User", True, ["/ask why"]),
        ("Assistant", None, ["because"]),
        ("User", False, ["/diff\n--- a\n+++ b"]),
        ("User", False, ["/test make\nfailed"]),
        ("Assistant", None, ["I see"]),
    ]
    aborted = _chat(tmp_path / "b", "#### hi  \n\nhalf\n\n> ^C KeyboardInterrupt  \n")
    assert [type(item).__name__ for item in aborted] == ["User", "Assistant", "End"]


def test_chats_of_one_file_are_sessions_and_only_the_last_one_grows(tmp_path: Path) -> None:
    place, db = store("aider", tmp_path / "p"), tmp_path / "dsh.db"
    history = place / ".aider.chat.history.md"
    again = "\n# aider chat started at 2026-12-01 14:59:07\n\n#### once more  \n\n"
    with history.open("a") as file:
        file.write(again + "half of the ans")
    before = state(place)
    report = imported("aider", place, db)
    assert (report.new, report.failed) == (2, [])
    assert state(place) == before
    found = rows(db, "SELECT id FROM session WHERE id LIKE 'aider-20261201-145907-2-%'")  # both began in one second
    ((second,),) = found
    assert told(db, second) == [("user", "once more")]  # an answer that is being written is waited for
    with history.open("a") as file:
        file.write("wer\n\n> Tokens: 1 sent, 2 received.  \n")
    report = imported("aider", place, db)
    assert (report.new, report.grown, report.unchanged, report.moved) == (0, 1, 1, [])
    assert told(db, second) == [("user", "once more"), ("assistant", "half of the answer")]
    assert imported("aider", place, db).unchanged == 2


def test_histories_are_found_below_a_folder_and_where_they_usually_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = store("aider", tmp_path / "src" / "a" / "b") / ".aider.chat.history.md"
    store("aider", tmp_path / "src" / "node_modules" / "x")
    (tmp_path / "src" / "link").symlink_to(tmp_path / "src" / "a")
    assert [source.path for source in aider.sources(str(tmp_path / "src"))] == [str(one)]
    named = tmp_path / "named.md"
    named.write_text(sample("aider/chat.history.md"))
    assert [source.path for source in aider.sources(str(named))] == [str(named)]
    monkeypatch.chdir(one.parent)
    home = Home(str(tmp_path), {})
    assert [source.path for place in aider.places(home) for source in aider.sources(place)] == [str(one)]
    home = Home(str(tmp_path), {"AIDER_CHAT_HISTORY_FILE": str(named)})
    assert next(iter(aider.places(home))) == str(named)


def test_what_is_no_history_gives_nothing_and_any_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# aider chat started at noon\n\n#### hello  \n")
    assert read("aider", tmp_path / "README.md") == {}
    started = b"# aider chat started at 2026-13-45 99:99:99\n"
    (tmp_path / "x.md").write_bytes(
        started + b"#### caf\xe9 \0  \r\n\r\n\xff\xfe\x00answer\r\n> Tokens: 1e9k sent, - received.  \n####\n####  \n>"
    )
    ((transcript, items),) = read("aider", tmp_path / "x.md").values()
    assert transcript.created_at is None
    assert texts(items[0]) == ["caf\ufffd \0"]
    report = imported("aider", tmp_path / "x.md", tmp_path / "dsh.db")
    assert (report.new, report.failed) == (1, [])
