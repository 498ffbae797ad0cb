"""A run in the background, talked to from other shells: `run --detach`, `steer`, `send`, `attach`, `cancel`, `wait`,
`ps` as people type them."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.provider import FakeProvider, hang, text, tool_call
from tests.shell.background import background, detach, driver, until
from tests.shell.process import Done, Dsh, finish

pytestmark = pytest.mark.slow


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with FakeProvider() as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Iterator[Dsh]:
    with background(tmp_path, fake) as made:
        yield made


def contents(fake: FakeProvider, request: int) -> list[str]:
    """What the person and the model have said, as the provider got it."""
    return [str(m["content"]) for m in fake.requests[request].messages if m["role"] != "system"]


# ------------------------------------------------------------------------------------------------------- the two shells


@pytest.mark.rule("AL-5", "AL-7", "AL-30")
def test_two_shells(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    go = tmp_path / "go"
    fake.script(
        tool_call("bash", {"command": until(go)}),
        text("Done, and steered.", pieces=4, delay=0.02),
        text("The second answer."),
        hang(text("never ends")),
    )
    first = dsh.shell(f'id=$({dsh.words("run", "--detach", "a long task")}); echo "$? $id"')
    assert (first.code, first.errors) == (0, "")
    code, session = first.text.split()
    assert (code, session) == ("0", dsh.session())  # and this shell is gone
    dsh.wait_for(lambda: dsh.data("tool/call"))
    begin = session[:-1]  # the beginning of an id is enough

    second = dsh.shell(
        f"{dsh.words('ps')}; {dsh.words('steer', begin, 'be quick')} && {dsh.words('send', begin, 'one more thing')}"
    )
    assert (second.code, second.errors) == (0, "")
    line, steered, sent = second.text.splitlines()
    assert line.split("\t")[0] == session
    assert line.split("\t")[4:7] == [f"tool bash {until(go)}", "0", "fake-model"]
    assert line.split("\t")[8] == "a long task"
    assert dsh.rows("SELECT count(*) FROM event WHERE type = 'steering/message'") == [(0,)]  # the tool is at work

    watching = dsh.start("attach", begin)
    go.touch()
    attached = finish(watching)
    assert (attached.code, attached.text, attached.errors) == (0, "Done, and steered.\n", ""), attached.errors
    assert contents(fake, 1)[-1] == "be quick"

    waited = dsh.shell(f"{dsh.words('wait', '--timeout', '60', begin)}; echo $?; {dsh.words('ps')}")
    assert (waited.text, waited.errors) == ("0\n", "dsh: nothing is at work\n")
    assert contents(fake, 2)[-2:] == ["Done, and steered.", "one more thing"]
    delivered = [d["meta"]["message"] for d in dsh.data("steering/message") + dsh.data("user/message") if "meta" in d]
    assert delivered == [steered, sent]

    third = dsh.shell(f"{dsh.words('run', '--detach', '--resume', begin, 'go on')}")
    assert third.text == f"{session}\n"
    fake.wait_for(4)
    ended = dsh.shell(f"{dsh.words('cancel', begin)} && {dsh.words('wait', begin)}")
    assert (ended.code, ended.text) == (1, "")
    assert ended.errors == "dsh: turn 3: the turn ended aborted (ABORTED)\n"
    assert dsh.data("turn/end")[-1]["reason"] == {"kind": "aborted"}
    assert dsh.rows("SELECT * FROM lease") == dsh.rows("SELECT * FROM inbox") == []


def test_the_run_outlives_its_terminal(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    go = tmp_path / "go"
    fake.script(tool_call("bash", {"command": until(go)}), text("survived"))
    main, side = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "-i"], stdin=side, stdout=side, stderr=side, env=dsh.env, cwd=dsh.cwd,
        start_new_session=True, preexec_fn=lambda: os.close(main),
    )  # fmt: skip
    os.close(side)
    os.write(main, f"shopt -s huponexit; {dsh.words('run', '--detach', 'a task')}\n".encode())
    dsh.wait_for(lambda: dsh.data("tool/call"))
    pid = driver(dsh)
    assert os.getsid(pid) == pid  # a session of its own, so no terminal's
    os.close(main)  # the window is closed
    shell.send_signal(signal.SIGHUP)
    shell.wait(30)
    os.kill(pid, signal.SIGHUP)
    go.touch()
    done = dsh("attach", dsh.session())
    assert (done.code, done.text) == (0, "survived\n")


# ------------------------------------------------------------------------------------------------------------ detaching


def test_what_is_piped_in_is_part_of_the_prompt(dsh: Dsh, fake: FakeProvider) -> None:
    session = detach(dsh, "sum up", input=b"one\ntwo\n")
    assert dsh("wait", session).code == 0
    session = detach(dsh, "-", input=b"only this")
    assert dsh("wait", session).code == 0
    assert [r.last_text for r in fake.requests] == ["sum up\n\n<stdin>\none\ntwo\n</stdin>", "only this"]


def test_the_shell_gets_its_prompt_back_although_the_run_goes_on(dsh: Dsh, fake: FakeProvider) -> None:
    """Nothing of the run holds the pipes of `$(…)`, and it needs none of the three standard descriptors."""
    fake.script(hang())
    done = dsh.shell(f"id=$({dsh.words('run', '--detach', 'x')} 2>&1 <&-); echo $id; {dsh.words('cancel')} $id")
    assert (done.code, done.text) == (0, f"{dsh.session()}\n")
    assert dsh("wait", dsh.session()).code == 1


def test_the_run_keeps_nothing_that_the_shell_had_open(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    """A substitution waits for all who can write into it, a lock of flock lasts as long as its descriptor."""
    fake.script(hang())
    done = dsh.shell(f"exec 9>'{tmp_path}/lock'; flock 9; x=$({dsh.words('run', '-d', 'x')} 7>&1); echo $x")
    assert (done.code, done.text) == (0, f"{dsh.session()}\n")
    assert dsh.shell(f"flock -n '{tmp_path}/lock' echo free").text == "free\n"
    assert dsh("ps").text.startswith(dsh.session())


def test_an_id_that_cannot_be_printed_is_told(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang())
    with Path("/dev/full").open("wb") as full:
        done = dsh("run", "-d", "x", stdout=full)
        sent = dsh("send", dsh.session(), "y", stdout=full)
    assert done.code == 1
    why = ", but standard output cannot be written: No space left on device\n"
    assert done.errors == f"dsh: session {dsh.session()} is at work{why}"
    assert (sent.code, sent.errors) == (1, f"dsh: the message is in the inbox of session {dsh.session()}{why}")


def test_a_fork_whose_id_cannot_be_printed_is_told(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("fine"))
    assert dsh("run", "x").code == 0
    with Path("/dev/full").open("wb") as full:
        done = dsh("fork", "last", stdout=full)
    ((fork,),) = dsh.rows("SELECT id FROM fork")
    why = ", but standard output cannot be written: No space left on device\n"
    assert (done.code, done.errors) == (1, f"dsh: session {fork} is made{why}")


def test_a_note_that_cannot_be_written_fails_nothing(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("fine"))
    assert dsh("run", "x").code == 0
    with Path("/dev/full").open("wb") as full:
        sent = dsh("send", dsh.session(), "y", stderr=full)
        assert (sent.code, len(sent.out.split())) == (0, 1)
        assert dsh("cancel", dsh.session(), stderr=full).code == 0
    assert dsh.rows("SELECT * FROM inbox") == []


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("--resume", "nothing", "x"), 2, "there is no session 'nothing'"),
        (("x", "--tools", "hammer"), 2, "--tools: no tool is called hammer"),
        (("x", "--mock", "absent.json"), 3, "absent.json"),
        ((" ",), 2, "the prompt is empty"),
        (("x", "--json"), 2, "--json and --detach exclude each other"),
    ],
)
def test_a_run_that_cannot_begin_says_so_at_once(dsh: Dsh, words: tuple[str, ...], code: int, error: str) -> None:
    done = dsh("run", "--detach", *words)
    assert (done.code, done.out) == (code, b"")
    assert error in done.errors.splitlines()[0]
    assert not dsh.db.exists() or dsh.rows("SELECT * FROM session") == []


def test_a_session_that_is_driven_cannot_be_resumed(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang())
    session = detach(dsh, "x")
    done = dsh("run", "--detach", "--resume", session, "y")
    assert (done.code, done.out) == (8, b"")
    assert "is driven by process" in done.errors
    assert dsh("cancel", session).code == 0
    assert dsh("wait", session).code == 1


def test_interrupting_the_start_ends_the_run(dsh: Dsh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # asked which models it has, it says nothing
        process = dsh.start("run", "--detach", "x", "--base-url", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        asked, _ = silent.accept()
        starting = _child(process.pid)
        process.send_signal(signal.SIGINT)
        done = finish(process)
        asked.close()
    assert (done.code, done.out, done.errors) == (130, b"", "dsh: interrupted by SIGINT (ABORTED)\n")
    dsh.wait_for(lambda: not Path(f"/proc/{starting}").exists())
    assert dsh.rows("SELECT * FROM session") == []


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


# ------------------------------------------------------------------------------------------------------------ the inbox


def test_eight_messages_at_once_are_delivered_in_order(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    go = tmp_path / "go"
    fake.script(tool_call("bash", {"command": until(go)}), text("first"))
    session = detach(dsh, "begin")
    dsh.wait_for(lambda: dsh.data("tool/call"))
    sending = [dsh.start("send", session, f"message {n}") for n in range(8)]
    sent: list[Done] = [finish(process) for process in sending]
    assert {(done.code, done.errors) for done in sent} == {(0, "")}
    order = [row[0] for row in dsh.rows("SELECT message_id FROM inbox ORDER BY position")]
    assert sorted(order) == sorted(done.text.strip() for done in sent)
    go.touch()
    assert dsh("wait", session).code == 0
    assert [d["meta"]["message"] for d in dsh.data("user/message")[1:]] == order
    assert [d["reason"]["kind"] for d in dsh.data("turn/end")] == ["completed"] * 9
    assert dsh.rows("SELECT * FROM inbox") == []


def test_a_message_is_noticed_before_the_next_heartbeat(dsh: Dsh, fake: FakeProvider) -> None:
    """The driver is rung, it does not wait for the moment when it looks anyway: that leaves the lease as it was."""
    fake.script(hang(text("half an answer")))
    session = detach(dsh, "x")
    fake.wait_for(1)
    rung = False
    for _ in range(5):  # a heartbeat may fall into any one of the attempts
        before = dsh.rows("SELECT heartbeat FROM lease")
        assert dsh("inject", session, "a note").code == 0
        dsh.wait_for(lambda: dsh.rows("SELECT * FROM inbox") == [])
        rung = rung or before == dsh.rows("SELECT heartbeat FROM lease")
    assert rung
    assert len(dsh.data("user/message")) == 6
    assert dsh("cancel", session).code == 0
    assert dsh("wait", session).code == 1
    assert len(fake.requests) == 1  # an injection asks nobody
