"""`dsh run` that is interrupted, whose reader leaves, and what it shows on a terminal (HD-9 to HD-11)."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh.cli.output import width_of
from tests.agent.legal import problems
from tests.provider import FakeProvider, hang, status, text, tool_call
from tests.shell.process import Dsh, alive, end_all, errors_of, finish, on_terminal

pytestmark = pytest.mark.slow

NAMES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with FakeProvider() as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Dsh:
    return Dsh(tmp_path, fake)


def reason(dsh: Dsh) -> str:
    kind: str = dsh.data("turn/end")[-1]["reason"]["kind"]
    return kind


# ------------------------------------------------------------------------------------------------------------- signals


@pytest.mark.rule("HD-10", "HD-14", "AL-40")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_stream(dsh: Dsh, fake: FakeProvider, number: signal.Signals) -> None:
    fake.script(hang(text("half an answer", pieces=2)))
    process = dsh.start("run", "x", "--json")
    dsh.wait_for(lambda: dsh.data("assistant/chunk"))
    process.send_signal(number)
    done = finish(process, timeout=10)
    assert done.code == NAMES[number]
    assert (done.result["status"], done.result["error"]["code"]) == ("interrupted", "ABORTED")
    assert done.result["reason"] == {"kind": "aborted"}
    assert done.errors == f"dsh: turn 1: interrupted by {number.name} (ABORTED)\n"
    assert reason(dsh) == "aborted"
    assert fake.requests[0].gone.wait(5)  # the connection was closed
    assert problems(dsh.log()) == []


@pytest.mark.rule("HD-9", "HD-10")
def test_a_signal_lets_out_what_was_said(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang(text("half an answer", pieces=2)))
    process = dsh.start("run", "x")
    dsh.wait_for(lambda: dsh.data("assistant/chunk"))
    process.send_signal(signal.SIGINT)
    done = finish(process, timeout=10)
    assert done.out in (b"half an answer\n", b"half an\n", b"half a\n", b"")
    assert done.code == 130


@pytest.mark.rule("HD-10", "AL-59")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_tool(dsh: Dsh, fake: FakeProvider, number: signal.Signals) -> None:
    fake.script(tool_call("bash", {"command": "echo begun; sleep 471.5"}))
    process = dsh.start("run", "x")
    dsh.wait_for(lambda: alive("sleep 471.5"))
    process.send_signal(number)
    done = finish(process, timeout=10)
    assert done.code == NAMES[number]
    assert alive("sleep 471.5") == []
    assert dsh.data("tool/result")[0]["error"]["code"] == "ABORTED"
    assert reason(dsh) == "aborted"
    fake.script(text("went on"))
    assert dsh("run", "-c", "go on").out == b"went on\n"


@pytest.mark.rule("HD-10")
def test_a_signal_that_was_ignored_from_the_start_stays_so(dsh: Dsh, fake: FakeProvider) -> None:
    """As under nohup, or in the background of a script."""
    fake.script(text("a patient answer", pieces=10, delay=0.1))
    script = f"trap '' INT HUP; {dsh.words('run', 'x')} & sleep 0.8; kill -INT $!; kill -HUP $!; wait $!"
    done = dsh.shell(script)
    assert (done.code, done.out, done.err) == (0, b"a patient answer\n", b"")


@pytest.mark.rule("HD-10", "LS-86")
def test_a_signal_during_the_wait_before_a_retry(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(status(500))
    process = dsh.start("run", "x", env={"DSH_RETRY_INITIAL_DELAY_MS": "60000", "DSH_RETRY_MAX_DELAY_MS": "60000"})
    dsh.wait_for(lambda: dsh.data("llm/retry"))
    process.send_signal(signal.SIGINT)
    done = finish(process, timeout=10)
    assert (done.code, done.out) == (130, b"")
    assert reason(dsh) == "aborted"
    assert len(fake.requests) == 1


def unread(pipe: int) -> int:
    """Bytes in a pipe that its reader has not taken yet."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, struct.pack("i", 0)))[0]


@pytest.mark.rule("HD-10", "HD-15")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_is_a_prompt(dsh: Dsh, fake: FakeProvider, number: signal.Signals) -> None:
    process = dsh.start("run", "-", "--json", stdin=subprocess.PIPE)
    stdin = process.stdin
    assert stdin is not None
    stdin.write(b"never finished")
    stdin.flush()
    dsh.wait_for(lambda: unread(stdin.fileno()) == 0)
    process.send_signal(number)
    process.stdin = None
    done = finish(process, timeout=10)
    stdin.close()
    assert done.code == NAMES[number]
    assert (done.result["status"], done.result["turn"]) == ("interrupted", None)
    assert fake.requests == []
    assert "Traceback" not in done.errors


@pytest.mark.rule("HD-10")
def test_a_second_signal_ends_at_once(dsh: Dsh, fake: FakeProvider) -> None:
    """A command that takes its time to end holds the first one up; the session is closed by the next run."""
    fake.script(tool_call("bash", {"command": "trap '' TERM; echo begun; sleep 472.5 & wait; sleep 472.5"}))
    process = dsh.start("run", "x", env={"DSH_BASH_GRACE_MS": "20000"})
    dsh.wait_for(lambda: alive("sleep 472.5"))
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert finish(process, timeout=10).code == 130  # the first signal names the exit
    assert time.monotonic() - began < 3
    end_all("sleep 472.5")
    fake.script(text("went on"))
    done = dsh("run", "-c", "go on")
    assert (done.code, done.out) == (0, b"went on\n")
    assert [d["reason"]["kind"] for d in dsh.data("turn/end")] == ["interrupted", "completed"]


@pytest.mark.rule("HD-10", "PE-71")
def test_a_signal_ends_the_wait_for_a_locked_database(dsh: Dsh, fake: FakeProvider) -> None:
    dsh("run", "x")
    fake.script(hang(text("half", pieces=2)))
    process = dsh.start("run", "y")
    fake.wait_for(2)
    holder = sqlite3.connect(dsh.db, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        process.send_signal(signal.SIGINT)  # closing the turn now has to wait
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert finish(process, timeout=10).code == 130
        assert time.monotonic() - began < 3
    finally:
        holder.close()
    assert dsh("run", "-c", "again").code == 0


@pytest.mark.rule("HD-10", "HD-11")
def test_a_reader_that_does_not_read_cannot_hold_up_an_interrupted_run(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("x" * 300_000, pieces=100))
    process = dsh.start("run", "x")
    dsh.wait_for(lambda: dsh.data("turn/end"))
    time.sleep(0.3)
    assert process.poll() is None  # the pipe is full
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=8) == 130
    process.communicate()
    assert reason(dsh) == "completed"


@pytest.mark.rule("HD-14")
def test_a_time_limit_ends_a_tool(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "sleep 473.5"}))
    done = dsh("run", "x", "--timeout", "1")
    assert (done.code, done.out) == (6, b"")
    assert done.errors == "dsh: turn 1: stopped after 1 s (TIME_LIMIT)\n"
    assert alive("sleep 473.5") == []


# -------------------------------------------------------------------------------------------------------------- readers


@pytest.mark.rule("HD-11")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_has_seen_enough(dsh: Dsh, fake: FakeProvider, options: list[str]) -> None:
    fake.script(text("line\n" * 60_000, pieces=200, delay=0.005))
    process = dsh.start("run", "x", *options)
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 100)
    process.stdout.close()
    assert errors_of(process) == (0, "")
    assert reason(dsh) == "aborted"
    assert problems(dsh.log()) == []


@pytest.mark.rule("HD-11")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_was_never_there(dsh: Dsh, fake: FakeProvider, options: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = dsh.start("run", "x", *options, stdout=writing)
    os.close(writing)
    assert errors_of(process) == (0, "")


@pytest.mark.rule("HD-11")
@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_is_a_failure(dsh: Dsh, fake: FakeProvider, options: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        process = dsh.start("run", "x", *options, stdout=full)
    code, err = errors_of(process)
    assert code == 1
    assert len(err.splitlines()) == 1
    assert "standard output cannot be written: No space left on device" in err
    assert dsh.data("turn/end") != []


@pytest.mark.rule("HD-2")
def test_a_closed_standard_error_changes_nothing(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(status(500), text("done"))
    reading, writing = os.pipe()
    os.close(reading)
    process = dsh.start("run", "x", stderr=writing, env={"DSH_RETRY_INITIAL_DELAY_MS": "1"})
    os.close(writing)
    assert process.communicate(timeout=20)[0] == b"done\n"
    assert process.returncode == 0


@pytest.mark.rule("HD-2")
def test_no_standard_error_at_all(dsh: Dsh, fake: FakeProvider) -> None:
    """Closed by whoever started us, as `2>&-` does; not a pipe that broke."""
    fake.script(text("done"), text("again"))
    for options in ([], ["--json"]):
        words = [os.fsdecode(word) for word in dsh.command("run", "x", *options)]
        shell = ["sh", "-c", 'exec "$@" 2>&- </dev/null', "sh", *words]
        done = subprocess.run(shell, cwd=dsh.cwd, env=dsh.env, stdout=subprocess.PIPE, timeout=20)
        assert done.returncode == 0
        assert (b'"answer":"again"' in done.stdout) if options else (done.stdout == b"done\n")


# ------------------------------------------------------------------------------------------------------------ terminals


def on_pty(dsh: Dsh, *words: str, side: str = "both", **env: str) -> tuple[int, str, bytes]:
    """Run with standard error, and standard output unless `side` is "err", on a terminal."""
    import pty
    import termios

    main, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, int(env.pop("COLUMNS", "80"))))
    out: int = slave if side == "both" else subprocess.PIPE
    process = dsh.start("run", *words, stdin=slave, stdout=out, stderr=slave, env={"TERM": "xterm", **env})
    os.close(slave)
    code, shown = on_terminal(process, main)
    os.close(main)
    rest = process.stdout.read() if process.stdout is not None else b""
    if process.stdout is not None:
        process.stdout.close()
    return code, shown.decode(), rest


def visible(shown: str) -> list[str]:
    """The lines that stay on the screen: what was erased is gone, colours are off."""
    lines = []
    for line in shown.replace("\r\n", "\n").split("\n"):
        kept = line.rpartition("\r\x1b[2K")[2]
        lines.append(re.sub(r"\x1b\[[0-9;]*m", "", kept))
    return lines


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_shows_progress_and_takes_it_back(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "sleep 0.3; echo 1"}), text("The answer."))
    code, shown, _ = on_pty(dsh, "x")
    assert code == 0
    assert re.search("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", shown)
    assert "bash sleep 0.3; echo 1" in shown
    assert shown.count("\r\x1b[2K") >= 2
    lines = [line for line in visible(shown) if line]
    assert re.fullmatch(r"✓ bash sleep 0\.3; echo 1 \(\d\.\d s\)", lines[0])
    assert lines[1] == "The answer."
    assert re.fullmatch(r"2 steps · \d\.\d s · 20 tokens in, 10 out · session \w+", lines[2])
    assert len(lines) == 3


@pytest.mark.parametrize("columns", [12, 25, 60])
def test_the_living_line_fits_a_narrow_terminal(dsh: Dsh, fake: FakeProvider, columns: int) -> None:
    """A line that wraps cannot be erased, and every frame would scroll the screen."""
    fake.script(tool_call("bash", {"command": f"sleep 0.4; : {'修改' * 12}"}), text("The answer."))
    code, shown, _ = on_pty(dsh, "x", COLUMNS=str(columns))
    assert code == 0
    frames = [re.sub(r"\x1b\[[0-9;]*m", "", f) for f in shown.split("\r\x1b[2K") if "\n" not in f]
    assert any("⠙" in frame for frame in frames)
    assert max(width_of(frame) for frame in frames) <= columns


def test_an_answer_in_a_pipe_leaves_the_terminal_its_progress(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("The answer.", pieces=5, delay=0.1))
    code, shown, out = on_pty(dsh, "x", side="err")
    assert (code, out) == (0, b"The answer.\n")
    assert "characters" in shown
    assert "The answer." not in shown


@pytest.mark.parametrize(
    ("env", "moves", "colours"),
    [({"TERM": "dumb"}, False, False), ({"NO_COLOR": "1"}, True, False), ({}, True, True)],
)
def test_terminals_that_want_less(
    dsh: Dsh, fake: FakeProvider, env: dict[str, str], moves: bool, colours: bool
) -> None:
    fake.script(tool_call("bash", {"command": "sleep 0.3"}), text("The answer."))
    code, shown, _ = on_pty(dsh, "x", **env)
    assert code == 0
    assert ("\x1b[2K" in shown) is moves
    assert (re.search(r"\x1b\[\d+m", shown) is not None) is colours
    assert "The answer." in shown


def test_quiet_shows_nothing_on_a_terminal_either(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "sleep 0.3"}), text("The answer."))
    code, shown, _ = on_pty(dsh, "x", "-q")
    assert (code, shown.replace("\r\n", "\n")) == (0, "The answer.\n")


def test_ctrl_c_on_a_terminal(dsh: Dsh, fake: FakeProvider) -> None:
    """The key, not the signal: the terminal sends it to the whole foreground group."""
    import pty

    fake.script(hang(text("half", pieces=2)))
    pid, main = pty.fork()
    if pid == 0:
        os.chdir(dsh.cwd)
        os.execvpe(sys.executable, [os.fsdecode(w) for w in dsh.command("run", "x")], {**dsh.env, "TERM": "xterm"})
    try:
        dsh.wait_for(lambda: dsh.data("assistant/chunk"))
        os.write(main, b"\x03")
        shown = b""
        try:
            while piece := os.read(main, 65536):
                shown += piece
        except OSError:
            pass
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    finally:
        os.close(main)
    assert "interrupted by SIGINT" in shown.decode()
    assert "Traceback" not in shown.decode()
    assert reason(dsh) == "aborted"
