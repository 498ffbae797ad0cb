"""Looking on from another shell: `dsh attach`, `dsh wait`, `dsh ps` (HD-4, HD-14, HD-15)."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.provider import FakeProvider, hang, status, text, tool_call
from tests.shell.background import background, detach, driver, until
from tests.shell.process import Dsh, errors_of, finish, on_terminal

pytestmark = pytest.mark.slow

LONG = "word " * 1000  # more than is held back in a pipe


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with FakeProvider() as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Iterator[Dsh]:
    with background(tmp_path, fake) as made:
        yield made


def read(process: subprocess.Popen[bytes], count: int) -> bytes:
    """So many bytes of its standard output, as they come."""
    assert process.stdout is not None
    got = b""
    while len(got) < count and (piece := os.read(process.stdout.fileno(), count - len(got))):
        got += piece
    return got


# -------------------------------------------------------------------------------------------------------------- attach


@pytest.mark.rule("HD-4")
def test_the_text_is_shown_from_its_beginning_and_as_it_comes(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang(text(LONG + "half", pieces=100)))
    session = detach(dsh, "x")
    dsh.wait_for(lambda: len(dsh.data("assistant/chunk")) >= 100)
    first, second = dsh.start("attach", session), dsh.start("attach", session)
    for process in (first, second):
        assert read(process, len(LONG) + 4).decode() == LONG + "half"  # while the model is still at it
    assert dsh("cancel", session).code == 0
    for process in (first, second):
        done = finish(process)
        assert (done.code, done.text) == (1, "\n")
        assert done.errors == "dsh: turn 1: the turn ended aborted (ABORTED)\n"


def test_attaching_prints_what_the_run_would_have_printed(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    """Text before a tool call is no answer, whoever looks on; the events and the result are those of `run --json`."""
    go = tmp_path / "go"
    script = (tool_call("bash", {"command": until(go)}, text="I shall look."), text("The answer.", pieces=3))
    fake.script(*script)
    session = detach(dsh, "x")
    dsh.wait_for(lambda: dsh.data("tool/call"))
    plain, lines = dsh.start("attach", session), dsh.start("attach", "--json", session)
    go.touch()
    done, told = finish(plain), finish(lines)
    assert (done.code, done.text, done.errors) == (0, "The answer.\n", "")
    assert told.lines[:-1] == [{"sessionId": session, **event} for event in dsh.log()]
    result = told.result
    assert result["durationMs"] == dsh.log()[-1]["time"] - dsh.log()[0]["time"]

    fake.script(*script)
    ran = dsh("run", "x", "--json").result
    same = ("type", "status", "success", "turn", "answer", "result", "reason", "steps", "usage")
    assert {key: result[key] for key in same} == {key: ran[key] for key in same}
    assert result.keys() == ran.keys()


def test_a_session_that_is_not_at_work_has_its_last_turn_shown(dsh: Dsh, fake: FakeProvider) -> None:
    """So `dsh attach $(dsh run --detach …)` prints the answer, whoever comes first."""
    fake.script(text("one"), text("two"))
    session = detach(dsh, "x")
    assert dsh("wait", session).code == 0
    assert dsh("run", "--resume", session, "y").code == 0
    done = dsh("attach", session)
    assert (done.code, done.text, done.errors) == (0, "two\n", "")
    assert [
        line["data"]["turn"] for line in dsh("attach", session, "--json").lines if line["type"] == "turn/start"
    ] == [2]


def test_on_a_terminal_everything_is_shown_and_kept(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "true"}, text="I shall \x1b[31mlook."), text("The answer."))
    session = detach(dsh, "x")
    assert dsh("wait", session).code == 0
    main, side = pty.openpty()
    process = dsh.start("attach", session, stdin=side, stdout=side, stderr=side, env={"TERM": "xterm", "NO_COLOR": "1"})
    os.close(side)
    code, shown = on_terminal(process, main)
    os.close(main)
    said, tool, answer, summary, _ = shown.decode().split("\r\n")
    assert (code, said, answer) == (0, "I shall \u241b[31mlook.", "The answer.")
    assert tool.startswith("✓ bash true (")
    assert summary.startswith("2 steps · ")
    assert summary.endswith(f"session {session}")


def test_an_interruption_ends_the_looking_on_alone(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang(text(LONG)))
    session = detach(dsh, "x")
    process = dsh.start("attach", session)
    read(process, 2000)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, done.errors) == (130, f"dsh: detached; session {session} goes on\n")
    assert [row[0] for row in dsh.rows("SELECT open_turn FROM session")] == [1]
    process = dsh.start("attach", session)
    read(process, 2000)
    process.terminate()
    assert finish(process).code == 143
    assert driver(dsh)


def test_a_reader_that_leaves_does_not_disturb_the_turn(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang(text(LONG)))
    session = detach(dsh, "x")
    process = dsh.start("attach", session)
    assert process.stdout is not None
    read(process, 10)
    process.stdout.close()
    fake.script(text("more"))
    assert dsh("steer", session, "go on").code == 0
    assert dsh("cancel", "--keep-inbox", session).code == 0
    assert errors_of(process)[0] in (0, 1)  # it may have written all before the pipe broke
    done = dsh("attach", session)
    assert (done.code, done.text) == (0, "more\n")
    assert [d["reason"]["kind"] for d in dsh.data("turn/end")] == ["aborted", "completed"]


@pytest.mark.rule("PE-73")
def test_a_process_that_dies_is_noticed(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang(text(LONG)))
    session = detach(dsh, "x")
    watching, waiting = dsh.start("attach", session), dsh.start("wait", session)
    read(watching, 2000)
    pid = driver(dsh)
    os.kill(pid, signal.SIGKILL)
    line = f"dsh: turn 1: process {pid}, which drove the session, is gone, the turn was left open (INTERRUPTED)"
    for process in (watching, waiting):
        done = finish(process)
        assert (done.code, done.errors) == (1, f"{line}\ndsh: dsh run --resume {session} goes on\n")
    assert dsh("ps").text.split("\t")[4] == "crashed"
    again = dsh("attach", session, "--json")
    assert (again.code, again.result["status"], again.result["error"]["code"]) == (1, "error", "INTERRUPTED")


def test_a_failed_turn_has_the_exit_code_of_its_run(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(status(401))
    session = detach(dsh, "x")
    waited, attached = dsh("wait", session), dsh("attach", session)
    assert (waited.code, attached.code) == (4, 4)
    assert waited.errors == attached.errors
    assert "(AUTH)" in waited.errors
    fake.script(tool_call("bash", {"command": "true"}))
    session = detach(dsh, "y", "--max-steps", "1")
    waited, attached = dsh("wait", session), dsh("attach", session)
    assert (waited.code, attached.code) == (6, 6)
    assert waited.errors == attached.errors == "dsh: turn 1: stopped after 1 steps (STEP_LIMIT)\n"


# ---------------------------------------------------------------------------------------------------------------- wait


@pytest.mark.rule("SE-48")
def test_waiting_for_several_sessions(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    fake.script(text("fine"))
    good = detach(dsh, "x")
    assert dsh("wait", good).code == 0
    fake.script(status(401))
    bad = detach(dsh, "x")
    assert dsh("wait", bad).code == 4
    go = tmp_path / "go"
    fake.script(tool_call("bash", {"command": until(go)}), text("slow"))
    slow = detach(dsh, "x")
    late = dsh("wait", good, bad, slow, "--timeout", "0.2")
    assert (late.code, late.out, late.errors) == (6, b"", f"dsh: still at work after 0.2 s: {slow}\n")
    waiting = dsh.start("wait", good, slow, bad, good)
    go.touch()
    done = finish(waiting)
    assert (done.code, done.out) == (4, b"")
    assert done.errors.startswith(f"dsh: session {bad}: turn 1: ")
    assert len(done.errors.splitlines()) == 1


def test_waiting_covers_what_is_queued(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    go = tmp_path / "go"
    fake.script(tool_call("bash", {"command": until(go)}), text("one"), text("two", pieces=5, delay=0.05))
    session = detach(dsh, "x")
    dsh.wait_for(lambda: dsh.data("tool/call"))
    assert dsh("send", session, "y").code == 0
    waiting = dsh.start("wait", session)
    go.touch()
    assert finish(waiting).code == 0
    assert len(dsh.data("turn/end")) == 2


# ------------------------------------------------------------------------------------------------------------ failures


@pytest.mark.rule("HD-2", "HD-14")
@pytest.mark.parametrize("words", [("attach",), ("wait",), ("send", "x"), ("steer", "x"), ("inject", "x"), ("cancel",)])
def test_a_session_that_is_not_there(dsh: Dsh, words: tuple[str, ...]) -> None:
    command, *more = words
    done = dsh(command, "nothing", *more)
    assert (done.code, done.out) == (2, b"")
    assert done.errors.startswith("dsh: no history yet")
    assert not dsh.db.exists()
    for number in range(2):
        assert dsh("run", f"{number}").code == 0
    done = dsh(command, "nothing", *more)
    assert (done.code, done.errors) == (2, "dsh: there is no session 'nothing'\ndsh: dsh sessions lists them\n")
    ids = sorted(row[0] for row in dsh.rows("SELECT id FROM session"))
    done = dsh(command, ids[0][:4], *more)
    assert (done.code, done.out) == (2, b"")
    assert done.errors.startswith(f"dsh: several sessions begin with {ids[0][:4]!r}\ndsh: they are ")
    assert all(id_ in done.errors for id_ in ids)
    assert dsh.rows("SELECT * FROM inbox") == []
