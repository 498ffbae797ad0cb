"""A log from elsewhere may hold anything in a payload: what reads it says what it can, and the other sessions stay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.history import History, text

ROUTE = {"provider": "deepseek", "model": "deepseek-flash"}
USER = {"kind": "user"}


def strange(history: History, value: Any) -> None:
    """A session whose payloads have `value` wherever the rules of the log ask for nothing."""
    session, at = history.session("odd", cwd="/odd"), {"turn": 1, "step": 1}
    history.event(session, "turn/start", {"turn": 1, "trigger": value})
    history.event(session, "user/message", {"content": [text("needle")], "source": value, "envelope": value}, "append")
    shown = {
        "content": [text("one")],
        "source": USER,
        "envelope": {"displayContent": [{"type": "text", "text": value}]},
    }
    history.event(session, "user/message", shown, "append")
    history.event(session, "step/start", at)
    header = {"config": ROUTE, "system": value, "tools": value, "messagePrefix": value}
    history.event(session, "request/header", {"header": header, "reason": value})
    for usage in ({"inputTokens": value, "outputTokens": 2}, value):
        history.event(session, "assistant/chunk", {**at, "chunk": {"type": "usage", "usage": usage}})
    history.event(session, "assistant/chunk", {**at, "chunk": value})
    answer = {**at, "content": [text("two"), {"type": "else", "text": value}], "provenance": ROUTE, "usage": value}
    history.event(session, "assistant/message", answer, "append")
    history.event(session, "prompt/blocked", {"reason": value, "content": value})
    history.event(session, "todo/write", {"todos": value})
    history.event(session, "todo/write", {"todos": [value, {"status": value, "content": value}]})
    history.event(session, "session/title", {"title": value})
    history.event(session, "turn/limit", value)
    history.event(session, "step/end", at)
    history.event(session, "turn/end", {"turn": 1, "reason": {"kind": value, "failure": value}})


COMMANDS = [
    ["sessions"],
    ["sessions", "--tree"],
    ["session", "show", "odd"],
    ["usage", "--by", "session"],
    ["show", "odd"],
    ["show", "odd", "--markdown"],
    ["show", "odd", "--messages"],
    ["show", "odd", "--request", "1.1"],
    ["tokens", "odd"],
    ["search", "needle"],
    ["export", "odd"],
    ["export", "odd", "--format", "markdown"],
    ["export", "odd", "--format", "html"],
    ["export", "odd", "--format", "json"],
    ["redact", "two", "--dry-run"],
    ["db", "check"],
]


@pytest.mark.slow
@pytest.mark.parametrize("value", [5, "1e999", [[1]], {"type": 5}, None, True], ids=repr)
def test_no_payload_keeps_a_command_from_its_work(dsh: Run, history: History, value: Any) -> None:
    history.session("fine", cwd="/fine")
    history.turn("fine", 1, "a needle")
    strange(history, value)
    for command in COMMANDS:
        done = dsh(*command)
        assert done.returncode in (0, 8), (command, done)
        assert "internal error" not in done.stderr, (command, done)
        if done.returncode == 8:  # what cannot be worked out is said in a line
            assert command[0] in ("show", "tokens"), (command, done)
            assert len(done.stderr.splitlines()) == 1


def test_one_strange_session_leaves_the_lists_whole(dsh: Run, history: History) -> None:
    history.session("fine", cwd="/fine")
    history.turn("fine", 1, "a needle")
    strange(history, 5)
    listed = {o["id"]: o for o in map(json.loads, dsh("sessions", "--json").stdout.splitlines())}
    assert (listed["odd"]["title"], listed["odd"]["status"], listed["fine"]["title"]) == (None, "5", "a needle")
    assert "\n[1] unknown\n" in dsh("show", "odd").stdout
    used = dsh("usage", "--session", "odd").stdout.splitlines()[-1].split("\t")
    assert used[:3] == ["total", "1", "0"]
