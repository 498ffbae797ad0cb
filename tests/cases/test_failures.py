"""P2: a failure that looks like success. P11: a stream that just ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.provider import FakeProvider, Reply, delta, event, raw, status, text
from tests.shell.process import Done, Dsh


def one_line(done: Done) -> str:
    [line] = [line for line in done.errors.splitlines() if "retry" not in line]
    assert line.startswith("dsh: ")
    return line


@pytest.mark.slow
def test_p2_a_wrong_model_is_a_matter_of_configuration(tmp_path: Path) -> None:
    dsh = Dsh(tmp_path, None, DEEPSEEK_API_KEY="sk-none")
    done = dsh("run", "-m", "deepsek/deepseek-chat", "hi")
    assert (done.code, done.out) == (3, b"")
    assert "deepseek/deepseek-chat" in done.errors  # a near name
    assert "Traceback" not in done.errors
    assert dsh("run", "-m", "nosuch/model", "hi", "--json").result["status"] == "error"


@pytest.mark.rule("HD-14")
def test_p2_a_refused_key_is_one_request_and_exit_4(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(status(401, {"error": {"message": "Invalid API key", "type": "authentication_error"}}))
    done = dsh("run", "hi")
    assert (done.code, done.out, len(fake.requests)) == (4, b"", 1)
    assert "Invalid API key" in one_line(done)
    assert dsh.rows("SELECT outcome FROM turn") == [("error",)]


@pytest.mark.slow
@pytest.mark.rule("HD-14", "LS-84")
def test_p2_a_failing_server_is_asked_three_times_and_exit_5(tmp_path: Path) -> None:
    with FakeProvider(status(500), then="repeat") as fake:
        dsh = Dsh(tmp_path, fake, DSH_RETRY_INITIAL_DELAY_MS="1")
        done = dsh("run", "hi")
        assert (done.code, done.out, len(fake.requests)) == (5, b"", 3)
        assert "(SERVER)" in one_line(done)
        done = dsh("run", "hi", "--json")
        assert (done.code, done.result["status"], done.result["reason"]["kind"]) == (5, "error", "error")
        assert dsh.rows("SELECT DISTINCT outcome FROM turn") == [("error",)]


CUT = raw(
    ": keep-alive\n\n",
    delta(reasoning_content="I will"),
    delta(tool_calls=[{"index": 0, "id": "c1", "type": "function",
                       "function": {"name": "bash", "arguments": '{"command":"touch bad"}'}}]),
)  # fmt: skip


@pytest.mark.rule("LS-81")
def test_p11_a_cut_stream_is_retried_and_leaves_nothing_behind(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(CUT, text("done"))
    done = dsh("run", "x")
    assert (done.code, done.out) == (0, b"done\n")
    assert not (dsh.cwd / "bad").exists()
    assert [m["role"] for m in fake.requests[1].messages] == ["system", "user"]
    assert dsh.data("tool/call") == []


@pytest.mark.slow
@pytest.mark.rule("LS-81", "LS-88")
def test_p11_when_every_try_is_cut_there_is_no_answer(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(CUT, CUT, CUT)
    done = dsh("run", "x")
    assert (done.code, done.out) == (5, b"")
    assert not (dsh.cwd / "bad").exists()
    assert dsh.data("assistant/message") == []
    assert dsh.data("turn/end")[0]["reason"]["failure"]["code"] == "STREAM_CLOSED"


@pytest.mark.slow
@pytest.mark.rule("LS-76")
@pytest.mark.parametrize(
    "silent",
    [
        raw(delta(content="I will"), 30.0),
        raw(delta(content="I will"), *[part for _ in range(100) for part in (": keep-alive\n\n", 0.1)]),
        raw(30.0),
    ],
    ids=["silence", "keep-alive comments only", "nothing at all"],
)
def test_p11_a_silent_stream_is_a_cut_one(dsh: Dsh, fake: FakeProvider, silent: Reply) -> None:
    """Comments do not restart the clock."""
    fake.script(silent, text("done"))
    done = dsh("run", "x", env={"DSH_LLM_IDLE_TIMEOUT_MS": "400"})
    assert (done.code, done.out) == (0, b"done\n")
    assert "(TIMEOUT)" in done.errors
    assert done.seconds < 5


@pytest.mark.slow
@pytest.mark.parametrize("end", ["no [DONE]", "only [DONE]"])
def test_p11_siblings(dsh: Dsh, fake: FakeProvider, end: str) -> None:
    """A finish reason without [DONE] is a whole answer; [DONE] without a finish reason is none."""
    if end == "no [DONE]":
        fake.script(raw(delta(content="whole"), delta("stop")))
        assert dsh("run", "x").out == b"whole\n"
    else:
        fake.script(raw(delta(content="half"), event("[DONE]")), text("whole"))
        assert dsh("run", "x").out in (b"whole\n", b"half\n")
