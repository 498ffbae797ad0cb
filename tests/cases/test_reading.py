"""P10: search inside Chinese text. P12: a reader that leaves early."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.provider import FakeProvider, text
from tests.shell.process import Dsh

PLAN = "修改youer服务端的计划"


@pytest.mark.slow
@pytest.mark.parametrize("query", ["youer", "服务端", "服务", "端的计划", "youer 服务端 修改", "改"])
def test_p10_any_part_of_chinese_text_is_found(dsh: Dsh, fake: FakeProvider, query: str) -> None:
    fake.script(text("好"))
    dsh("run", PLAN)
    done = dsh("search", query)
    assert done.code == 0
    assert dsh.session()[:8] in done.text
    assert "\ufffd" not in done.text
    assert dsh("search", "没有的").code == 1


@pytest.fixture
def long_history(dsh: Dsh) -> Dsh:
    """5,000 messages, written by a stock SQLite through the views."""
    dsh("run", "begin")
    db = sqlite3.connect(dsh.db, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    insert = "INSERT INTO event(session_id, type, data, surface_op) VALUES (?, ?, ?, ?)"
    session = dsh.session()
    db.execute(insert, (session, "turn/start", json.dumps({"turn": 2, "trigger": {"kind": "message"}}), None))
    for number in range(5000):
        said = {"content": [{"type": "text", "text": f"a message, number {number}"}], "source": {"kind": "user"}}
        db.execute(insert, (session, "user/message", json.dumps(said), '"append"'))
    db.execute(insert, (session, "turn/end", json.dumps({"turn": 2, "reason": {"kind": "completed"}}), None))
    db.execute("COMMIT")
    db.close()
    return dsh


@pytest.mark.slow
def test_p12_search_into_a_reader_that_takes_one_line(long_history: Dsh) -> None:
    for command in ("search a --limit 5000", "search a --limit 5000 --json", "show " + long_history.session()):
        script = f"{long_history.words(*command.split())} | head -1; echo status ${{PIPESTATUS[0]}}"
        done = long_history.shell(script)
        assert done.err == b""
        assert done.text.splitlines()[-1] == "status 0"
        assert len(done.text.splitlines()) == 2


@pytest.mark.slow
@pytest.mark.rule("HD-11")
def test_p12_run_into_a_reader_that_takes_one_line(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(*[text("a line of the answer\n" * 15_000, pieces=300, delay=0.001)] * 3)
    for _ in range(3):
        done = dsh.shell(f"{dsh.words('run', 'long')} </dev/null | head -1; echo status ${{PIPESTATUS[0]}}")
        assert (done.err, done.text) == (b"", "a line of the answer\nstatus 0\n")
        assert dsh.data("turn/end")[0]["reason"]["kind"] in ("completed", "aborted")
        answers = dsh.data("assistant/message")
        assert answers == [] or len(answers[0]["content"][0]["text"]) == 21 * 15_000
