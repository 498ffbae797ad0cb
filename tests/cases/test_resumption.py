"""P3: eight first runs at once. P4: killed in the middle of a tool, then resumed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.provider import FakeProvider, Recorded, Reply, calls, text
from tests.shell.process import Dsh, end_all, finish


def done_n(request: Recorded) -> Reply:
    return text(f"done {request.last_text.split()[-1]}", pieces=20, delay=0.01)


@pytest.mark.slow
@pytest.mark.rule("HD-8")
def test_p3_eight_first_runs_on_a_database_that_somebody_holds(tmp_path: Path) -> None:
    with FakeProvider(*[done_n] * 8) as fake:
        dsh = Dsh(tmp_path, fake)
        holder = sqlite3.connect(dsh.db, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        processes = [dsh.start("run", f"say {n}") for n in range(8)]
        threading.Timer(3, holder.execute, ["ROLLBACK"]).start()
        ends = [finish(p) for p in processes]
        holder.close()
        assert [(d.code, d.out, d.err) for d in ends] == [(0, f"done {n}\n".encode(), b"") for n in range(8)]
        assert dsh.rows("SELECT count(*) FROM session") == [(8,)]
        counted = dsh.rows("SELECT type, count(*) FROM event WHERE type LIKE '%/message' GROUP BY type ORDER BY type")
        assert counted == [("assistant/message", 8), ("user/message", 8)]
        assert dsh.rows("SELECT max(n) FROM (SELECT count(*) AS n FROM migration GROUP BY name)") == [(1,)]
        assert dsh.integrity() == []
        found = dsh("search", "done", "--json")
        assert len({line["sessionId"] for line in found.lines if "sessionId" in line}) == 8


def killed_once(dsh: Dsh, process: Any, condition: Any) -> None:
    dsh.wait_for(condition)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def tool_part(request: Recorded) -> str:
    """The bytes of the messages from the first call to the last result."""
    messages = request.messages
    at = [i for i, m in enumerate(messages) if m.get("tool_calls") or m["role"] == "tool"]
    return json.dumps(messages[at[0] : at[-1] + 1])


@pytest.mark.rule("PE-30", "PE-33", "PE-34", "PE-35", "PE-36", "PE-37")
def test_p4_killed_in_the_middle_of_a_tool_and_resumed(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(
        calls(("bash", {"command": "echo a"}, "call_a"), ("bash", {"command": "sleep 474.5"}, "call_b")),
        text("ok"), text("ok again"),
    )  # fmt: skip
    process = dsh.start("run", "start")
    killed_once(dsh, process, lambda: dsh.data("tool/result") and len(dsh.data("tool/call")) == 2)
    end_all("sleep 474.5")
    went_on = dsh("run", "--continue", "go on")
    assert (went_on.code, went_on.out, went_on.err) == (0, b"ok\n", b"")
    wire = fake.requests[1].messages
    assert [m["role"] for m in wire] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [m.get("tool_call_id") for m in wire[3:5]] == ["call_a", "call_b"]
    assert wire[3]["content"] == "a\n"
    assert "not known whether it took effect" in wire[4]["content"]
    assert dsh("run", "--continue", "more").code == 0
    assert tool_part(fake.requests[2]) == tool_part(fake.requests[1])
    shared = fake.requests[1].raw.index(b'"go on"')
    assert fake.requests[2].raw[:shared] == fake.requests[1].raw[:shared]  # the prefix cache stays warm


@pytest.mark.slow
@pytest.mark.rule("PE-35", "PE-36")
def test_p4_a_call_that_was_never_started_is_said_to_be_so(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(
        calls(
            ("bash", {"command": "sleep 474.6"}, "call_a"), ("bash", {"command": "touch made"}, "call_b")
        ),
        text("ok"),
    )  # fmt: skip
    process = dsh.start("run", "start")
    killed_once(dsh, process, lambda: dsh.data("tool/call"))
    end_all("sleep 474.6")
    assert dsh("run", "-c", "go on").code == 0
    codes = [d["error"]["code"] for d in dsh.data("tool/result")]
    assert codes == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]
    assert "had no effect" in fake.requests[1].messages[4]["content"]
    assert not (dsh.cwd / "made").exists()


@pytest.mark.slow
@pytest.mark.rule("PE-33", "LS-81")
def test_p4_killed_while_the_answer_streams(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("half " * 40, pieces=40, delay=0.05), text("ok"))
    process = dsh.start("run", "start")
    killed_once(dsh, process, lambda: len(dsh.data("assistant/chunk")) > 5)
    began = len(dsh.log())
    assert dsh("run", "-c", "go on").out == b"ok\n"
    assert [m["content"] for m in fake.requests[1].messages[1:]] == ["start", "go on"]
    assert [d["reason"]["kind"] for d in dsh.data("turn/end")] == ["interrupted", "completed"]
    assert len(dsh.data("assistant/chunk")) > 5
    assert dsh.log()[began]["type"] == "step/end"
    assert dsh.log()[began]["time"] == dsh.log()[began - 1]["time"]


@pytest.mark.slow
@pytest.mark.rule("PE-73")
def test_p4_the_dead_process_does_not_hold_its_session(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("half " * 40, pieces=40, delay=0.05), text("ok"))
    process = dsh.start("run", "start")
    killed_once(dsh, process, lambda: dsh.data("assistant/chunk"))
    began = time.monotonic()
    assert dsh("run", "-c", "go on").code == 0
    assert time.monotonic() - began < 5  # no heartbeat had to run out
