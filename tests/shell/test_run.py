"""`dsh run` as a process: prompts, answers, options, exit codes (HD-1 to HD-9, HD-13 to HD-15)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.provider import FakeProvider, Reply, calls, cut, echo, hang, status, text, tool_call
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


def test_a_slow_neighbour_is_waited_for(dsh: Dsh, fake: FakeProvider) -> None:
    done = in_shell(dsh, f"(sleep 1; echo late) | {words(dsh, 'run', 'q')}")
    assert done.returncode == 0
    assert fake.requests[0].last_text == "q\n\n<stdin>\nlate\n</stdin>"


def test_an_open_pipe_that_nobody_writes_to_is_left_alone(dsh: Dsh, fake: FakeProvider) -> None:
    """As from a program that starts us with a pipe for input and never closes it."""
    process = dsh.start("run", "q", stdin=subprocess.PIPE)
    assert process.wait(timeout=20) == 0
    assert fake.requests[0].last_text == "q"
    process.communicate()


@pytest.mark.parametrize("form", ["/dev/null", "an empty file", "an empty pipe", "closed"])
def test_nothing_on_standard_input_is_no_input(dsh: Dsh, fake: FakeProvider, tmp_path: Path, form: str) -> None:
    (tmp_path / "empty").touch()
    source = {"/dev/null": "< /dev/null", "an empty file": f"< {tmp_path}/empty", "closed": "<&-"}.get(form)
    command = words(dsh, "run", "q")
    done = in_shell(dsh, f"{command} {source}" if source else f"true | {command}")
    assert (done.returncode, done.stderr) == (0, b"")
    assert fake.requests[0].last_text == "q"


def test_a_file_on_standard_input_is_read(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("from a file")
    with (tmp_path / "notes").open("rb") as notes:
        assert dsh("run", "-", stdin=notes).code == 0
    assert fake.requests[0].last_text == "from a file"


def test_a_folder_on_standard_input_is_wrong_usage(dsh: Dsh, fake: FakeProvider) -> None:
    done = in_shell(dsh, f"{words(dsh, 'run', 'q')} < /")
    assert done.returncode == 2
    assert done.stderr.startswith(b"dsh: standard input cannot be read: ")
    assert fake.requests == []


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


@pytest.mark.rule("HD-4")
def test_an_answer_without_text_leaves_the_last_one_that_had_some(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "true"}, text="Doing it."), text(""))
    done = dsh("run", "x")
    assert (done.code, done.out) == (0, b"Doing it.\n")


@pytest.mark.rule("HD-4")
def test_an_empty_answer_is_a_newline(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text(""))
    done = dsh("run", "x", env={"DSH_RETRY_MAX_TRANSIENT_RETRIES": "0"})
    assert (done.code, done.out) in [(0, b"\n"), (5, b"")]
    if done.code == 5:  # the adapter takes a wholly empty answer for a failure
        assert "EMPTY_RESPONSE" in done.errors


@pytest.mark.rule("HD-4")
def test_a_trailing_newline_is_not_doubled(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("line\n"))
    assert dsh("run", "x").out == b"line\n"


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


@pytest.mark.rule("HD-4")
def test_a_long_answer_flows_before_it_is_complete(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang(text("x" * 5000, pieces=50)))
    process = dsh.start("run", "x")
    assert process.stdout is not None
    assert len(os.read(process.stdout.fileno(), 2000)) == 2000
    process.terminate()
    assert finish(process).code == 143


# ------------------------------------------------------------------------------------------------------------- options


def test_a_session_goes_on(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(echo, echo, echo, echo, echo)
    dsh("run", "one")
    first = dsh.session()
    dsh("run", "-c", "two")
    dsh("run", "-r", first, "three")
    dsh("run", "-r", first[:14], "four")
    dsh("run", "new")
    assert [m["content"] for m in fake.requests[3].messages[1:]] == [
        "one", "one", "two", "two", "three", "three", "four",
    ]  # fmt: skip
    assert len(fake.requests[4].messages) == 2
    assert dsh.rows("SELECT count(*) FROM session") == [(2,)]


def test_continue_means_this_folder(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    dsh("run", "here")
    here = dsh.session()
    dsh("run", "there", cwd=other)
    dsh("run", "-c", "here again")
    assert {m["content"] for m in fake.requests[2].messages[1:]} == {"here", "ok", "here again"}
    assert dsh("run", "-c", "there again", "--cwd", str(other)).code == 0
    assert "there" in {m["content"] for m in fake.requests[3].messages}
    assert dsh.rows("SELECT length > 0 FROM session WHERE id = ?", here) == [(1,)]


def test_a_beginning_that_several_sessions_share_is_refused(dsh: Dsh, fake: FakeProvider) -> None:
    dsh("run", "one")
    dsh("run", "two")
    done = dsh("run", "-r", dsh.session()[:2], "x")
    assert done.code == 2
    assert "several" in done.errors


def test_a_resumed_session_works_in_its_own_folder(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    dsh("run", "one")
    fake.script(tool_call("bash", {"command": "pwd"}), text("done"))
    dsh("run", "-r", dsh.session(), "where?", cwd=tmp_path)
    assert fake.requests[-1].messages[-1]["content"].strip() == str(dsh.cwd)


def test_the_folder_may_be_chosen(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    fake.script(tool_call("bash", {"command": "pwd"}), text("done"))
    dsh("run", "where?", "--cwd", str(tmp_path))
    assert fake.requests[-1].messages[-1]["content"].strip() == str(tmp_path)
    assert dsh.rows("SELECT cwd FROM session") == [(str(tmp_path),)]


def test_sampling_and_system_text_reach_the_provider(dsh: Dsh, fake: FakeProvider) -> None:
    dsh("run", "x", "--temperature", "0", "--max-tokens", "77", "--system", "You are {{a}} pirate.", "-m", "other")
    body = fake.requests[0].body
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0, 77, "other")
    assert "pirate" in body["messages"][0]["content"]
    assert dsh("run", "x", "--effort", "high").code == 0
    assert fake.requests[1].body["reasoning_effort"] == "high"


def test_tools_may_be_chosen(dsh: Dsh, fake: FakeProvider) -> None:
    def offered(*arguments: str) -> set[str]:
        assert dsh("run", "x", *arguments).code == 0
        return {t["function"]["name"] for t in fake.requests[-1].body.get("tools", [])}

    everything = offered()
    assert {"bash", "read", "edit"} <= everything
    assert offered("--tools", "read, grep") == {"read", "grep"}
    assert offered("--tools=-bash") == everything - {"bash"}
    assert offered("--no-tools") == set()


def test_a_tool_that_is_not_offered_cannot_be_called(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "touch made"}), text("done"))
    assert dsh("run", "x", "--no-tools").code == 0
    assert not (dsh.cwd / "made").exists()
    assert "unknown tool" in fake.requests[1].messages[-1]["content"]


@pytest.mark.rule("HD-14")
def test_max_steps_ends_the_run_with_6(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(*[tool_call("bash", {"command": "echo again"}, text="a remark")] * 9)
    done = dsh("run", "x", "--max-steps", "2", "--json")
    assert done.code == 6
    assert len(fake.requests) == 2
    assert (done.result["status"], done.result["error"]["code"], done.result["steps"]) == ("limit", "STEP_LIMIT", 2)
    assert "STEP_LIMIT" in done.errors


def test_max_steps_that_are_enough_change_nothing(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "echo 1"}), text("done"))
    assert dsh("run", "x", "--max-steps", "2").code == 0


@pytest.mark.rule("HD-14", "AL-46")
def test_an_answer_at_its_token_limit_ends_with_6(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("cut off he", finish="length"))
    done = dsh("run", "x")
    assert (done.code, done.out) == (6, b"cut off he\n")
    assert "MAX_TOKENS" in done.errors


@pytest.mark.rule("HD-14")
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (status(401), 4), (status(402), 4), (status(404), 4), (status(418), 4),
        (status(429), 5), (status(500), 5), (cut(), 5),
        (status(400, {"error": {"message": "maximum context length is 8 tokens"}}), 6),
    ],
)  # fmt: skip
def test_failures_of_the_provider_have_exit_codes(dsh: Dsh, fake: FakeProvider, reply: Reply, code: int) -> None:
    fake.script(*[reply] * 3)
    done = dsh("run", "x")
    assert (done.code, done.out) == (code, b"")
    assert len([line for line in done.errors.splitlines() if "retry" not in line]) == 1
    assert "Traceback" not in done.errors


@pytest.mark.rule("HD-14")
def test_a_server_that_is_not_there_is_a_failure_of_today(tmp_path: Path) -> None:
    dsh = Dsh(tmp_path, **FAST)
    done = dsh("run", "x", "--base-url", "http://127.0.0.1:9/v1", "-m", "m")
    assert (done.code, done.out) == (5, b"")
    assert "TRANSPORT" in done.errors


@pytest.mark.rule("HD-14")
def test_without_a_model_there_are_three_ways_on(tmp_path: Path) -> None:
    done = Dsh(tmp_path)("run", "x")
    assert (done.code, done.out) == (3, b"")
    assert done.errors.startswith("dsh: no model is configured")
    for way in ("DEEPSEEK_API_KEY", "--base-url", "dsh models install local"):
        assert way in done.errors


@pytest.mark.rule("HD-2")
def test_quiet_is_silent_unless_the_run_fails(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(status(500), text("done"), *[status(401)] * 3)
    assert dsh("run", "x", "-q").err == b""
    done = dsh("run", "x", "-q")
    assert done.code == 4
    assert len(done.errors.splitlines()) == 1


def test_nothing_in_a_pipe_is_coloured(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "echo 1"}), status(500), text("done"))
    done = dsh("run", "x", env={"TERM": "xterm-256color", "FORCE_COLOR": "1"})
    assert b"\x1b" not in done.out + done.err


def test_an_error_message_cannot_write_escape_sequences_or_lines(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(status(401, {"error": {"message": "bad\x1b[31m key\nsecond line"}}))
    done = dsh("run", "x")
    assert b"\x1b" not in done.err
    assert len(done.errors.splitlines()) == 1


def test_recorded_answers_need_no_provider(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"calls": [{"name": "bash", "arguments": {"command": "echo 7"}}]}\n{"text": "seven"}\n')
    dsh = Dsh(tmp_path)
    assert dsh("run", "x", "--mock", str(answers)).out == b"seven\n"
    assert dsh("run", "x", "--mock", str(tmp_path / "none")).code == 3


# ---------------------------------------------------------------------------------------------------------------- JSON


@pytest.mark.rule("HD-5", "HD-7", "HD-15")
def test_json_prints_the_log_and_then_the_result(dsh: Dsh, fake: FakeProvider) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    fake.script(
        cut(text("lost")), tool_call("bash", {"command": "echo 1"}, usage=usage), text("one", usage=usage)
    )
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


@pytest.mark.rule("HD-7")
def test_usage_counts_failed_steps_and_is_absent_when_nobody_told(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("no figures", usage=None))
    assert "usage" not in dsh("run", "x", "--json").result


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


@pytest.mark.rule("HD-13", "HD-14")
def test_a_call_that_needs_approval_is_refused_without_waiting(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    (tmp_path / "careful.py").write_text(
        "def setup(ctx):\n"
        "    async def ask(execution, next_):\n"
        "        return {'kind': 'ask', 'reason': 'it runs a command'}\n"
        "    ctx.on('tools/pre-execute', ask)\n"
    )
    fake.script(tool_call("bash", {"command": "echo hi > a.txt"}), text("ok"))
    path = os.pathsep.join([dsh.env["PYTHONPATH"], str(tmp_path)])
    done = dsh("run", "x", env={"DSH_PLUGINS": "careful", "PYTHONPATH": path}, timeout=20)
    assert done.code == 0
    assert not (dsh.cwd / "a.txt").exists()
    refusal = fake.requests[1].messages[-1]
    assert (refusal["role"], refusal["tool_call_id"]) == ("tool", "call_1")
    assert "nobody can be asked" in refusal["content"]


# --------------------------------------------------------------------------------------------------------- surroundings


def test_eight_at_once_on_a_fresh_database(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(*[echo] * 8)
    processes = [dsh.start("run", f"say {n}") for n in range(8)]
    done = [finish(p) for p in processes]
    assert [(d.code, d.out, d.err) for d in done] == [(0, f"say {n}\n".encode(), b"") for n in range(8)]
    assert dsh.rows("SELECT count(*) FROM session") == [(8,)]
    assert dsh.rows("PRAGMA integrity_check") == [("ok",)]


def test_without_a_home_it_works(dsh: Dsh, fake: FakeProvider) -> None:
    done = dsh("run", "x", env={"HOME": None, "DSH_HOME": str(dsh.home)})
    assert (done.code, done.out) == (0, b"ok\n")


def test_a_folder_that_was_deleted_is_named_in_one_line(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = in_shell(dsh, f"cd {gone} && rmdir {gone} && {words(dsh, 'run', 'x')}")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.splitlines()[0] == b"dsh: the current folder does not exist any more (USAGE)"
    assert len(done.stderr.splitlines()) == 2
    again = in_shell(dsh, f"mkdir {gone}; cd {gone} && rmdir {gone} && {words(dsh, 'run', 'x', '--cwd', '/')}")
    assert again.returncode == 0


def test_the_folder_of_a_session_that_is_gone_is_named(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    dsh("run", "x", cwd=gone)
    gone.rmdir()
    done = dsh("run", "x", "-r", dsh.session())
    assert done.code == 2
    assert str(gone) in done.errors


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_full_disk_is_one_line(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", small], check=False).returncode:
        if os.environ.get("CI"):
            pytest.fail("cannot mount a tmpfs")
        pytest.skip("cannot mount a tmpfs")
    try:
        fake.script(text("x" * 2_000_000, pieces=40))
        done = dsh("run", "x", env={"DSH_DB": str(small / "dsh.db")})
        assert done.code == 8
        assert len(done.errors.splitlines()) == 1
        assert "the disk is full" in done.errors
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_database_that_cannot_be_written(dsh: Dsh, fake: FakeProvider) -> None:
    dsh("run", "x")
    if os.getuid() != 0:
        dsh.db.chmod(0o400)
        done = dsh("run", "x")
        assert (done.code, len(done.errors.splitlines())) == (8, 1)
    folder = dsh.cwd / "folder.db"
    folder.mkdir()
    done = dsh("run", "x", env={"DSH_DB": str(folder)})
    assert (done.code, done.out) == (8, b"")
    assert str(folder) in done.errors


def test_a_locked_database_is_waited_for_and_then_named(dsh: Dsh, fake: FakeProvider) -> None:
    import sqlite3

    dsh("run", "x")
    holder = sqlite3.connect(dsh.db, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        began = time.monotonic()
        done = dsh("run", "x", env={"DSH_STORE_BUSY_TIMEOUT_MS": "300"})
        assert time.monotonic() - began < 10
        assert (done.code, done.out) == (8, b"")
        assert len(done.errors.splitlines()) == 1
        assert f"{dsh.db} is locked" in done.errors
        assert str(os.getpid()) in done.errors
        process = dsh.start("run", "patient")
        time.sleep(0.8)
        holder.execute("COMMIT")
        assert finish(process).code == 0
    finally:
        holder.close()


def test_a_session_that_another_process_drives_is_refused(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("first"), hang())
    dsh("run", "x")
    process = dsh.start("run", "-c", "busy")
    fake.wait_for(2)
    done = dsh("run", "-c", "me too")
    assert (done.code, done.out) == (8, b"")
    assert f"process {process.pid}" in done.errors
    process.terminate()
    assert finish(process).code == 143
    assert dsh("run", "-c", "now me").code == 0


# -------------------------------------------------------------------------------------------------------------- helpers


def words(dsh: Dsh, *arguments: str) -> str:
    """The command as a shell writes it."""
    import shlex

    return shlex.join(str(w) for w in dsh.command(*arguments))


def in_shell(dsh: Dsh, script: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", script], env=dsh.env, cwd=dsh.cwd, capture_output=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_the_last_line_of_a_run_with_many_calls_counts_them(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(calls(("bash", {"command": "echo 1"}), ("bash", {"command": "exit 3"})), text("done"))
    done = dsh("run", "x", "--json")
    results = [json.dumps(line["data"]) for line in done.lines if line["type"] == "tool/result"]
    assert len(results) == 2
    assert "[exit code: 3]" in results[1]
