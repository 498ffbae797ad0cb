"""A whole turn of the real program with a real model: it asks for a tool, reads the result, answers, and goes on.

The model is small and says what it likes, so forms are asserted, never what an answer means. Whether it asks for a
tool depends on the words; several questions are tried until one makes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.legal import problems
from tests.shell.process import Done, Dsh

pytestmark = [pytest.mark.live, pytest.mark.slow]

QUESTIONS = (
    ("read", "Read the file notes.txt"),
    ("glob", "Read the file notes.txt"),
    ("read", "What does the file notes.txt say?"),
    ("glob", "Find the file notes.txt"),
    ("read", "Please read notes.txt and tell me what it says."),
    ("bash", "Run this command with the bash tool: cat notes.txt"),
)
SAMPLING = ("--temperature", "0", "--max-tokens", "60", "--max-steps", "3")


def asked(dsh: Dsh, url: str) -> Done:
    """The first run in which the model called a tool."""
    for tool, question in QUESTIONS:
        done = dsh("run", question, "--base-url", url, "--tools", tool, "--json", *SAMPLING, timeout=120)
        assert done.code in (0, 6), done.errors  # 6: the answer was as long as it may be
        if dsh.data("tool/call"):
            return done
    raise AssertionError("the model called no tool whatever it was asked")


def test_a_turn_with_a_tool_and_what_the_shell_finds_of_it(real_model: str, tmp_path: Path) -> None:
    dsh = Dsh(tmp_path)
    (dsh.cwd / "notes.txt").write_text("The pelican eats fish.\n")
    done = asked(dsh, real_model)
    log = dsh.log()
    assert problems(log) == []
    assert done.lines[:-1] == [{"sessionId": dsh.session(), **event} for event in log]
    result = done.result
    assert result["status"] in ("completed", "limit")
    assert result["steps"] >= 2
    assert result["usage"]["inputTokens"] > 0
    assert result["usage"]["outputTokens"] > 0
    kinds = [e["type"] for e in log if e["type"] != "assistant/chunk"]
    for before, after in (
        ("assistant/message", "tool/call"),
        ("tool/call", "tool/result"),
        ("tool/result", "step/end"),
    ):
        assert kinds.index(before) < kinds.index(after)
    assert sum(e["type"] == "assistant/chunk" for e in log) > 10  # it was streamed

    shown = dsh("show", dsh.session())
    assert shown.code == 0
    assert "notes.txt" in shown.text
    found = dsh("search", "notes.txt")
    assert (found.code, found.err) == (0, b"")
    assert dsh.session()[:8] in found.text

    stored = len(log)
    went_on = dsh("run", "-c", "Thank you.", "--base-url", real_model, "--no-tools", *SAMPLING, timeout=120)
    assert went_on.code in (0, 6)
    assert dsh.log()[:stored] == log
    assert problems(dsh.log()) == []
    assert [e["data"]["turn"] for e in dsh.log() if e["type"] == "turn/start"] == [1, 2]


def test_a_plain_answer_is_on_standard_output(real_model: str, tmp_path: Path) -> None:
    dsh = Dsh(tmp_path)
    done = dsh("run", "Say hello.", "--base-url", real_model, "--no-tools", *SAMPLING, timeout=120)
    assert done.code in (0, 6)
    assert done.text.strip()
    assert done.text.endswith("\n")
    assert dsh.data("assistant/message")[-1]["content"][-1]["text"].strip() == done.text.strip()


def test_an_interrupted_answer_of_a_real_server(real_model: str, tmp_path: Path) -> None:
    dsh = Dsh(tmp_path)
    question = "Write a very long story about a pelican."
    process = dsh.start("run", question, "--base-url", real_model, "--no-tools", "--temperature", "0")
    dsh.wait_for(lambda: len(dsh.data("assistant/chunk")) > 3, timeout=60)
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 143
    assert problems(dsh.log()) == []
    assert dsh.data("turn/end")[0]["reason"] == {"kind": "aborted"}
    assert isinstance(out, bytes)
    assert dsh("run", "-c", "Shorter.", "--base-url", real_model, "--no-tools", *SAMPLING).code in (0, 6)
