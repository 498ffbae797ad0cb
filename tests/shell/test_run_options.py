"""`dsh run` as a process: its options one by one, exit codes, and surroundings that are not as they should be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.provider import FakeProvider, Reply, cut, echo, hang, status, text, tool_call
from tests.shell.process import Dsh, finish

pytestmark = pytest.mark.slow

FAST = {"DSH_RETRY_INITIAL_DELAY_MS": "1", "DSH_RETRY_MAX_DELAY_MS": "2"}


@pytest.fixture
def fake() -> FakeProvider:  # type: ignore[misc]
    with FakeProvider() as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Dsh:
    return Dsh(tmp_path, fake, **FAST)


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
    assert "You are {{a}} pirate." in body["messages"][0]["content"]
    assert dsh("run", "x", "--effort", "high").code == 0
    assert fake.requests[1].body["reasoning_effort"] == "high"


def test_a_session_that_goes_on_keeps_its_system_text_and_tools(dsh: Dsh, fake: FakeProvider) -> None:
    def asked(*arguments: str) -> tuple[str, set[str]]:
        assert dsh("run", "x", *arguments).code == 0
        body = fake.requests[-1].body
        return body["messages"][0]["content"], {t["function"]["name"] for t in body.get("tools", [])}

    asked("--system", "You are a pirate.", "--tools", "read,grep")
    for _ in range(2):
        system, tools = asked("-c")
        assert "You are a pirate." in system
        assert tools == {"read", "grep"}
    system, tools = asked("-c", "--system", "You are a monk.", "--no-tools")
    assert "You are a monk." in system
    assert tools == set()
    system, tools = asked("-c", "--system", "", "--tools", "all")
    assert "You are" in system
    assert "monk" not in system
    assert {"bash", "read"} <= tools
    assert "monk" not in asked("-c")[0]
    assert "pirate" not in asked()[0]


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
    dsh = Dsh(tmp_path, None, **FAST)
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
    missing = tmp_path / "none"
    done = dsh("run", "x", "--mock", str(missing))
    assert done.code == 3
    assert done.errors == f"dsh: {missing} cannot be read: No such file or directory (INVALID_CONFIG)\n"
    for wrong in (b"\xff\xfe\n", b"[]\n", b"3\n", b'{"calls": 5}\n', b'{"calls": [{"id": "c"}]}\n', b'{"text": 3}\n'):
        answers.write_bytes(wrong)
        done = dsh("run", "x", "--mock", str(answers))
        assert (done.code, len(done.errors.splitlines())) == (3, 1), wrong


# --------------------------------------------------------------------------------------------------------- surroundings


def test_eight_at_once_on_a_fresh_database(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(*[echo] * 8)
    processes = [dsh.start("run", f"say {n}") for n in range(8)]
    done = [finish(p) for p in processes]
    assert [(d.code, d.out, d.err) for d in done] == [(0, f"say {n}\n".encode(), b"") for n in range(8)]
    assert dsh.rows("SELECT count(*) FROM session") == [(8,)]
    assert dsh.integrity() == []


def test_without_a_home_it_works(dsh: Dsh, fake: FakeProvider) -> None:
    done = dsh("run", "x", env={"HOME": None, "DSH_HOME": str(dsh.home)})
    assert (done.code, done.out) == (0, b"ok\n")


def test_a_folder_that_was_deleted_is_named_in_one_line(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = dsh.shell(f"cd {gone} && rmdir {gone} && {dsh.words('run', 'x')}")
    assert (done.code, done.out) == (2, b"")
    assert done.err.splitlines()[0] == b"dsh: the current folder does not exist any more (USAGE)"
    assert len(done.err.splitlines()) == 2
    again = dsh.shell(f"mkdir {gone}; cd {gone} && rmdir {gone} && {dsh.words('run', 'x', '--cwd', '/')}")
    assert again.code == 0


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


def test_odd_bytes_on_standard_input(dsh: Dsh, fake: FakeProvider) -> None:
    assert dsh("run", "-", input=b"a\0b \x1b[31m \xf0\x9f\x90\xbb\r\n").code == 0
    assert fake.requests[0].last_text == "a\0b \x1b[31m 🐻\r\n"
    assert dsh("run", "-c", "again").code == 0
    assert fake.requests[1].messages[1]["content"] == "a\0b \x1b[31m 🐻\r\n"


def test_a_long_input_is_taken_and_a_longer_one_refused(dsh: Dsh, fake: FakeProvider) -> None:
    assert dsh("run", "-q", "sum up", input=b"x" * 3_000_000).code == 0
    assert len(fake.requests[0].last_text) > 3_000_000
    done = dsh("run", "sum up", input=b"x" * 10_500_000)
    assert (done.code, done.out) == (2, b"")
    assert "longer than 10 MiB" in done.errors


@pytest.mark.rule("SE-34")
def test_a_request_that_does_not_follow_from_the_log_is_refused_under_check(
    dsh: Dsh, fake: FakeProvider, tmp_path: Path
) -> None:
    (tmp_path / "forgetful.py").write_text(
        "from dsh.session.session import Session\n"
        "derive = Session.derive_messages\n"
        "def setup(ctx):\n"
        "    Session.derive_messages = lambda self: derive(self)[1:]\n"
    )
    env: dict[str, str | None] = {"DSH_PLUGINS": "forgetful"}
    env["PYTHONPATH"] = os.pathsep.join([dsh.env["PYTHONPATH"], str(tmp_path)])
    done = dsh("run", "x", env=env)
    assert done.code == 1
    assert "(INVARIANT)" in done.errors
    assert fake.requests == []
    assert dsh("run", "x", env={**env, "DSH_CHECK": None}).code == 0
