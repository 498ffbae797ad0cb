"""`dsh run` as a process: prompts, answers, options, exit codes (HD-1 to HD-9, HD-13 to HD-15)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.provider import FakeProvider, Reply, calls, cut, hang, status, text, tool_call
from tests.shell.process import Dsh, finish

FAST = {"DSH_RETRY_INITIAL_DELAY_MS": "1", "DSH_RETRY_MAX_DELAY_MS": "2"}


@pytest.fixture
def fake() -> FakeProvider:  # type: ignore[misc]
    with FakeProvider() as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Dsh:
    return Dsh(tmp_path, fake, **FAST)


# ------------------------------------------------------------------------------------------------------------- prompts


@pytest.mark.rule("HD-2", "HD-4", "HD-8")
def test_the_answer_and_nothing_else_is_on_standard_output(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("An answer.", reasoning="a thought", pieces=3))
    done = dsh("run", "a question")
    assert (done.code, done.out, done.err) == (0, b"An answer.\n", b"")
    assert fake.requests[0].last_text == "a question"
    assert dsh.rows("SELECT search_indexed = last_event FROM store") == [(1,)]  # flushed, and searchable


@pytest.mark.rule("HD-1")
def test_a_dash_reads_the_prompt_from_standard_input(dsh: Dsh, fake: FakeProvider) -> None:
    assert dsh("run", "-", input="línea\n".encode()).code == 0
    assert dsh("run", input=b"no dash needed").code == 0
    assert [r.last_text for r in fake.requests] == ["línea\n", "no dash needed"]


def test_what_is_piped_in_beside_a_prompt_is_appended(dsh: Dsh, fake: FakeProvider) -> None:
    dsh("run", "sum up", input=b"one\ntwo")
    dsh("run", "sum up", input=b"one\ntwo\n")
    assert [r.last_text for r in fake.requests] == ["sum up\n\n<stdin>\none\ntwo\n</stdin>"] * 2


def test_bytes_that_are_no_utf_8_are_mended(dsh: Dsh, fake: FakeProvider) -> None:
    assert dsh("run", b"caf\xe9", input=b"\xff\xfe").code == 0
    assert fake.requests[0].last_text == "caf\ufffd\n\n<stdin>\n\ufffd\ufffd\n</stdin>"


@pytest.mark.slow
def test_a_slow_neighbour_is_waited_for(dsh: Dsh, fake: FakeProvider) -> None:
    done = dsh.shell(f"(sleep 1; echo late) | {dsh.words('run', 'q')}")
    assert done.code == 0
    assert fake.requests[0].last_text == "q\n\n<stdin>\nlate\n</stdin>"


@pytest.mark.slow
def test_an_open_pipe_that_nobody_writes_to_is_left_alone(dsh: Dsh, fake: FakeProvider) -> None:
    """As from a program that starts us with a pipe for input and never closes it."""
    process = dsh.start("run", "q", stdin=subprocess.PIPE)
    assert process.wait(timeout=20) == 0
    assert fake.requests[0].last_text == "q"
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["/dev/null", "an empty file", "an empty pipe", "closed"])
def test_nothing_on_standard_input_is_no_input(dsh: Dsh, fake: FakeProvider, tmp_path: Path, form: str) -> None:
    (tmp_path / "empty").touch()
    source = {"/dev/null": "< /dev/null", "an empty file": f"< {tmp_path}/empty", "closed": "<&-"}.get(form)
    command = dsh.words("run", "q")
    done = dsh.shell(f"{command} {source}" if source else f"true | {command}")
    assert (done.code, done.err) == (0, b"")
    assert fake.requests[0].last_text == "q"


@pytest.mark.slow
def test_a_file_on_standard_input_is_read(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("from a file")
    with (tmp_path / "notes").open("rb") as notes:
        assert dsh("run", "-", stdin=notes).code == 0
    assert fake.requests[0].last_text == "from a file"


@pytest.mark.slow
@pytest.mark.rule("HD-1", "HD-2")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run"], "there is no prompt"),
        (["run", "-"], "there is no prompt"),
        (["run", "  "], "the prompt is empty"),
        (["run", "one", "two"], "two"),
        (["run", "x", "--max-steps", "0"], "max-steps"),
        (["run", "x", "--timeout", "0"], "timeout"),
        (["run", "x", "--nonsense"], "no such option"),
        (["run", "x", "-c", "-r", "abc"], "exclude each other"),
        (["run", "x", "--tools", "read", "--no-tools"], "exclude each other"),
        (["run", "x", "--tools", "raed"], "raed"),
        (["run", "x", "--cwd", "/no/such/folder"], "/no/such/folder"),
        (["run", "x", "-r", "nothing"], "there is no session"),
        (["run", "x", "-c"], "no session in"),
    ],
)
def test_wrong_usage(dsh: Dsh, fake: FakeProvider, arguments: list[str], says: str) -> None:
    done = dsh(*arguments)
    assert (done.code, done.out) == (2, b"")
    assert says in done.errors
    assert all(line.startswith("dsh: ") for line in done.errors.splitlines())
    assert "Traceback" not in done.errors
    assert fake.requests == []


# ------------------------------------------------------------------------------------------------------------- answers


@pytest.mark.rule("HD-4")
def test_remarks_before_tool_calls_are_not_the_answer(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "echo 1"}, text="Let me look."), text("It is 1."))
    assert dsh("run", "x").out == b"It is 1.\n"


@pytest.mark.slow
@pytest.mark.rule("HD-4")
def test_an_answer_without_text_leaves_the_last_one_that_had_some(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "true"}, text="Doing it."), text("", reasoning="no more to say"))
    done = dsh("run", "x")
    assert (done.code, done.out) == (0, b"Doing it.\n")


@pytest.mark.slow
@pytest.mark.rule("HD-4")
def test_an_empty_answer_is_a_newline(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("", reasoning="nothing to say"))
    done = dsh("run", "x")
    assert (done.code, done.out) == (0, b"\n")


@pytest.mark.slow
@pytest.mark.rule("HD-4")
def test_a_trailing_newline_is_not_doubled(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("line\n"))
    assert dsh("run", "x").out == b"line\n"


@pytest.mark.slow
@pytest.mark.rule("HD-9")
def test_what_an_interrupted_answer_had_said_goes_out(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang(text("half an answer", pieces=2)))
    done = dsh("run", "x", "--timeout", "0.7")
    assert (done.code, done.out) == (6, b"half an answer\n")
    assert "TIME_LIMIT" in done.errors
    assert "turn 1" in done.errors


@pytest.mark.rule("HD-4", "LS-81")
def test_a_try_that_failed_is_not_in_the_answer(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(cut(text("first try", pieces=2)), text("second try"))
    done = dsh("run", "x")
    assert (done.code, done.out) == (0, b"second try\n")
    assert done.errors.startswith("dsh: retry 1/2 in 0.0 s (STREAM_CLOSED)\n")


@pytest.mark.slow
@pytest.mark.rule("HD-4")
def test_a_long_answer_flows_before_it_is_complete(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang(text("x" * 5000, pieces=50)))
    process = dsh.start("run", "x")
    assert process.stdout is not None
    assert len(os.read(process.stdout.fileno(), 2000)) == 2000
    process.terminate()
    assert finish(process).code == 143


# ---------------------------------------------------------------------------------------------------------------- JSON


@pytest.mark.rule("HD-5", "HD-7", "HD-15")
def test_json_prints_the_log_and_then_the_result(dsh: Dsh, fake: FakeProvider) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    fake.script(cut(text("lost")), tool_call("bash", {"command": "echo 1"}, usage=usage), text("one", usage=usage))
    done = dsh("run", "x", "--json")
    assert done.code == 0
    stored = [{"sessionId": dsh.session(), **e} for e in dsh.log()]
    assert done.lines[:-1] == stored
    result = done.result
    assert result.pop("durationMs") > 0
    assert result == {
        "type": "result", "status": "completed", "success": True, "sessionId": dsh.session(), "turn": 1,
        "answer": "one", "result": "one", "reason": {"kind": "completed"}, "steps": 3,
        "usage": {"inputTokens": 12, "outputTokens": 10, "cacheReadTokens": 8},
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.rule("HD-7")
def test_usage_counts_failed_steps_and_is_absent_when_nobody_told(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("no figures", usage=None))
    assert "usage" not in dsh("run", "x", "--json").result


@pytest.mark.slow
@pytest.mark.rule("HD-15")
@pytest.mark.parametrize(
    ("arguments", "replies", "code", "status_", "error"),
    [
        (["x"], [status(401)], 4, "error", "AUTH"),
        (["x"], [status(500)] * 3, 5, "error", "SERVER"),
        (["x"], [text("cut", finish="length")], 6, "limit", "MAX_TOKENS"),
        (["x", "--timeout", "0.5"], [hang()], 6, "limit", "TIME_LIMIT"),
        (["x", "-r", "nothing"], [], 2, "error", "SESSION_NOT_FOUND"),
        (["x", "-c", "-r", "y"], [], 2, "error", "USAGE"),
        ([" "], [], 2, "error", "USAGE"),
        (["x", "--tools", "none-such"], [], 2, "error", "USAGE"),
    ],
)
def test_json_always_ends_with_the_result(
    dsh: Dsh, fake: FakeProvider, arguments: list[str], replies: list[Reply], code: int, status_: str, error: str
) -> None:
    fake.script(*replies)
    done = dsh("run", "--json", *arguments)
    assert done.code == code
    result = done.result
    assert (result["status"], result["success"], result["error"]["code"]) == (status_, False, error)
    assert result["error"]["retryable"] is (code == 5)
    assert error in done.errors or code == 2


@pytest.mark.slow
@pytest.mark.rule("HD-15")
def test_json_tells_of_a_missing_model_and_a_broken_database(tmp_path: Path) -> None:
    dsh = Dsh(tmp_path)
    assert dsh("run", "--json", "x").result["error"]["code"] == "NO_MODEL"
    dsh.db.write_bytes(b"this is no database, and long enough to be taken for one" * 20)
    done = dsh("run", "--json", "x")
    assert (done.code, done.result["error"]["code"]) == (8, "DB_FOREIGN")


@pytest.mark.rule("HD-3")
def test_what_plugins_begin_at_start_up_is_not_the_task(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text(
        "def setup(ctx):\n"
        "    def start(agent, source):\n"
        "        agent.inject([{'type': 'text', 'text': 'a note'}])\n"
        "        agent.followup([{'type': 'text', 'text': 'warm up'}], source={'kind': 'plugin', 'plugin': 'g'})\n"
        "    ctx.on('agent/session-start', start)\n"
    )
    fake.script(text("warmed up"), text("the answer"))
    path = os.pathsep.join([dsh.env["PYTHONPATH"], str(tmp_path)])
    done = dsh("run", "the task", "--json", env={"DSH_PLUGINS": "greeter", "PYTHONPATH": path})
    assert done.code == 0
    assert (done.result["turn"], done.result["result"], done.result["steps"]) == (3, "the answer", 1)
    assert [line["type"] for line in done.lines].count("turn/start") == 3
    assert fake.requests[1].last_text == "the task"


@pytest.mark.slow
@pytest.mark.rule("HD-8", "HD-10", "AL-26")
def test_an_answer_that_could_not_be_stored_safely_is_a_failure(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    """The disk fails only at the last sync: the answer goes out, the exit code tells."""
    (tmp_path / "failing.py").write_text(
        "from dsh.core.errors import StoreError\n"
        "from dsh.session.session import Session\n"
        "flush = Session.flush\n"
        "async def failing(self):\n"
        "    if self.open_turn is None:\n"
        "        raise StoreError('the disk is gone', code='DB_IO')\n"
        "    await flush(self)\n"
        "def setup(ctx):\n"
        "    Session.flush = failing\n"
    )
    fake.script(text("an answer"), hang())
    env: dict[str, str | None] = {"DSH_PLUGINS": "failing"}
    env["PYTHONPATH"] = os.pathsep.join([dsh.env["PYTHONPATH"], str(tmp_path)])
    done = dsh("run", "x", env=env)
    assert (done.code, done.out) == (8, b"an answer\n")
    assert done.errors == "dsh: turn 1: the disk is gone (DB_IO)\n"
    process = dsh.start("run", "x", env=env)
    fake.wait_for(2)
    process.terminate()
    assert finish(process).code == 143  # HD-10: whatever else happened


@pytest.mark.slow
def test_the_last_line_of_a_run_with_many_calls_counts_them(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(calls(("bash", {"command": "echo 1"}), ("bash", {"command": "exit 3"})), text("done"))
    done = dsh("run", "x", "--json")
    results = [json.dumps(line["data"]) for line in done.lines if line["type"] == "tool/result"]
    assert len(results) == 2
    assert "[exit code: 3]" in results[1]
