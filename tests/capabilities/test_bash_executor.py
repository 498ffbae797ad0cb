"""The executor on real processes: limits, kills, capture, and nothing left behind."""

from __future__ import annotations

import os
import signal as signals
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from dsh.capabilities.bash.capture import Capture, SpillFolder
from dsh.capabilities.bash.executor import BashExecRequest, BashRunResult, Executor
from dsh.core.errors import ConfigError, ToolError
from dsh.kernel.config import Config
from dsh.kernel.signal import Signal

pytestmark = pytest.mark.slow  # real processes that are waited for


@pytest.fixture(autouse=True)
def _own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spill files stay where the test run cleans up."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def _executor(**settings: Any) -> Executor:
    return Executor(Config({f"bash.{key}": (value, "flag") for key, value in settings.items()}, {}))


async def _run(command: str, executor: Executor | None = None, **request: Any) -> BashRunResult:
    executor = executor or _executor()
    return await executor.run(executor.resolve(BashExecRequest(command=command, **request)))


def _living(marker: str) -> list[int]:
    """Processes that carry `marker` in their command line and are not zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        name = folder.name
        if name.isdigit():
            try:
                if marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                    found += [int(name)] if state not in "ZX" else []
            except OSError:
                continue
    return found


def _marker() -> str:
    """A sleep duration that no other process has."""
    return f"3{os.getpid()}{time.monotonic_ns() % 10**9}"


# --- resolve
# --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("BA-1", "BA-2", "BA-3", "BA-4")
def test_defaults_and_caps_are_applied_in_one_place() -> None:
    executor = _executor(timeout_ms=1000, max_timeout_ms=2000, max_output_bytes=77)
    spec = executor.resolve(BashExecRequest(command="x"))
    assert (spec.timeout_ms, spec.stdout_max_bytes, spec.workdir) == (1000, 77, str(Path.cwd()))
    spec = executor.resolve(BashExecRequest(command="x", timeout_ms=9999, stdout_max_bytes=5, workdir="/"))
    assert (spec.timeout_ms, spec.stdout_max_bytes, spec.workdir) == (2000, 5, "/")


@pytest.mark.rule("BA-2", "BA-4")
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True])
def test_limits_that_are_not_positive_and_finite_are_named(value: Any) -> None:
    with pytest.raises(ToolError, match="timeoutMs"):
        _executor().resolve(BashExecRequest(command="x", timeout_ms=value))
    with pytest.raises(ToolError, match="stdoutMaxBytes"):
        _executor().resolve(BashExecRequest(command="x", stdout_max_bytes=value))


@pytest.mark.rule("BA-5")
def test_a_default_above_the_maximum_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"bash\.timeout_ms"):
        _executor(timeout_ms=2000, max_timeout_ms=1000)


# --- environment
# ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("BA-6", "BA-7")
async def test_secrets_do_not_reach_a_command_and_pagers_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MY_api_key", "SOME_TOKEN_X", "aSecretThing", "DSH_DB", "TERM", "PLAIN"):
        monkeypatch.setenv(name, "ambient")
    result = await _run("env", env={"GIVEN_KEY": "explicit", "PAGER": "less"}, dsh_env={"DSH_SHELL": "1"})
    seen = dict(line.partition("=")[::2] for line in result.stdout.text.splitlines())
    assert not {"MY_api_key", "SOME_TOKEN_X", "aSecretThing", "DSH_DB"} & set(seen)
    assert (seen["PLAIN"], seen["TERM"], seen["NO_COLOR"], seen["GIT_PAGER"]) == ("ambient", "dumb", "1", "cat")
    assert (seen["GIVEN_KEY"], seen["PAGER"], seen["DSH_SHELL"]) == ("explicit", "less", "1")


@pytest.mark.rule("BA-8")
async def test_variables_in_the_wrong_map_are_errors_before_anything_runs(tmp_path: Path) -> None:
    wrongs: list[dict[str, Any]] = [{"env": {"DSH_X": "1"}}, {"dsh_env": {"X": "1"}}]
    for wrong in wrongs:
        with pytest.raises(ToolError, match="X"):
            await _run(f"touch {tmp_path}/ran", **wrong)
    assert list(tmp_path.glob("ran")) == []


# --- processes
# ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("BA-13")
async def test_a_call_is_a_fresh_bash_in_its_own_group() -> None:
    result = await _run("export LEFT=1; cd /; ps -o pgid= -p $$ | tr -d ' '; echo $$; echo $0")
    group, pid, name = result.stdout.text.split()
    assert (group, name) == (pid, "bash")
    assert int(group) != os.getpgid(0)
    assert (await _run("echo ${LEFT-none}; pwd")).stdout.text == f"none\n{Path.cwd()}\n"


@pytest.mark.rule("BA-18")
async def test_exit_codes_and_deaths_are_results() -> None:
    result = await _run("echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.signal, result.stdout.text, result.stderr.text) == (7, None, "out\n", "err\n")
    result = await _run("kill -USR1 $$")
    assert (result.exit_code, result.signal, result.timed_out, result.aborted) == (None, "SIGUSR1", False, False)


@pytest.mark.rule("BA-18")
async def test_only_infrastructure_faults_raise(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="working directory does not exist"):
        await _run("true", workdir=str(tmp_path / "gone"))
    with pytest.raises(ToolError, match="NUL"):
        await _run("echo a\0b")


@pytest.mark.rule("BA-14")
async def test_a_fired_cancel_spawns_nothing(tmp_path: Path) -> None:
    signal = Signal()
    signal.cancel()
    with pytest.raises(ToolError):
        await _run(f"touch {tmp_path}/ran", signal=signal)
    assert list(tmp_path.glob("ran")) == []


@pytest.mark.rule("BA-15")
async def test_standard_input_is_empty_or_what_was_given() -> None:
    assert (await _run("cat; echo end")).stdout.text == "end\n"
    assert (await _run("cat", stdin="given ü")).stdout.text == "given ü"
    result = await _run("exec <&-; sleep 0.1; exit 4", stdin="x" * 1_000_000)
    assert result.exit_code == 4


@pytest.mark.rule("BA-20", "BA-19")
async def test_a_command_that_traps_the_timeout_is_both_timed_out_and_exit_0() -> None:
    result = await _run("trap 'echo bye; exit 0' TERM; echo on; while :; do sleep 0.05; done", timeout_ms=400)
    assert (result.timed_out, result.aborted, result.exit_code) == (True, False, 0)
    assert result.stdout.text == "on\nbye\n"
    assert result.timeout_ms == 400


@LINUX
@pytest.mark.slow
@pytest.mark.rule("BA-17")
async def test_a_background_child_that_holds_the_pipe_costs_the_grace_only() -> None:
    # case P8 (a)
    mark = _marker()
    started = time.monotonic()
    result = await _run(f"sleep {mark} & echo hi")
    assert time.monotonic() - started < 3
    assert (result.stdout.text, result.exit_code, result.timed_out) == ("hi\n", 0, False)
    assert _living(mark) == []


@pytest.mark.rule("BA-17")
async def test_what_a_survivor_writes_within_the_grace_is_kept() -> None:
    result = await _run("(sleep 0.2; echo late) & echo now")
    assert result.stdout.text == "now\nlate\n"


@LINUX
@pytest.mark.slow
@pytest.mark.rule("BA-16", "BA-19")
async def test_a_grandchild_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    # case P8 (b)
    mark = _marker()
    started = time.monotonic()
    result = await _run(f"(trap '' TERM; sleep {mark}) & echo part; wait", timeout_ms=1000)
    assert time.monotonic() - started < 4
    assert (result.stdout.text, result.timed_out) == ("part\n", True)
    assert _living(mark) == []


@LINUX
@pytest.mark.rule("BA-16")
async def test_the_kill_reaches_children_in_sessions_of_their_own() -> None:
    mark = _marker()
    command = f"setsid bash -c 'trap \"\" TERM; sleep {mark}; :' & set -m; sleep {mark} & echo on; wait"
    result = await _run(command, _executor(grace_ms=200), timeout_ms=300)
    assert (result.timed_out, result.stdout.text) == (True, "on\n")
    assert _living(mark) == []


@LINUX
@pytest.mark.rule("BA-16")
async def test_a_survivor_with_closed_pipes_does_not_outlive_the_call() -> None:
    mark = _marker()
    started = time.monotonic()
    result = await _run(f"(trap '' TERM; exec sleep {mark}) >/dev/null 2>&1 & sleep 0.05; echo hi")
    assert result.stdout.text == "hi\n"
    assert time.monotonic() - started < 1.9  # less than the drain grace
    assert _living(mark) == []


@LINUX
@pytest.mark.rule("BA-17")
async def test_a_job_of_the_shell_does_not_outlive_the_call_but_a_new_session_may() -> None:
    mark, kept = _marker(), _marker()
    command = f"set -m; sleep {mark} >/dev/null 2>&1 & setsid sleep {kept} >/dev/null 2>&1 & sleep 0.1; echo hi"
    started = time.monotonic()
    result = await _run(command)
    assert result.stdout.text == "hi\n"
    assert time.monotonic() - started < 1.9  # less than the drain grace
    assert _living(mark) == []
    (pid,) = _living(kept)
    os.kill(pid, signals.SIGKILL)


@LINUX
@pytest.mark.rule("BA-16")
async def test_a_daemon_that_left_its_parents_is_still_found() -> None:
    mark = _marker()
    command = f"(setsid bash -c 'trap \"\" TERM; sleep {mark}; :' & ) >/dev/null 2>&1; echo on; sleep 60"
    result = await _run(command, _executor(grace_ms=200), timeout_ms=300)
    assert (result.timed_out, result.stdout.text) == (True, "on\n")
    assert _living(mark) == []


@LINUX
@pytest.mark.rule("BA-19", "BA-41")
async def test_a_cancel_is_reported_as_aborted_and_leaves_nothing() -> None:
    mark = _marker()
    signal = Signal()
    executor = _executor(grace_ms=200)
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            await trio.sleep(0.2)
            signal.cancel()

        nursery.start_soon(cancel)
        result = await _run(f"(trap '' TERM; sleep {mark}) & echo part; wait", executor, signal=signal)
    assert (result.aborted, result.timed_out, result.stdout.text) == (True, False, "part\n")
    assert _living(mark) == []


@LINUX
@pytest.mark.rule("BA-35")
async def test_trios_cancellation_leaves_nothing_either() -> None:
    mark = _marker()
    with trio.move_on_after(0.2):
        result = await _run(f"trap 'echo bye' TERM; sleep {mark} & echo on; wait")
    assert (result.aborted, result.stdout.text) == (True, "on\nbye\n")
    assert _living(mark) == []


@LINUX
@pytest.mark.rule("BA-35")
def test_a_killed_harness_takes_the_command_along(tmp_path: Path) -> None:
    mark = _marker()
    program = f"""
import sys, trio
from dsh.kernel.config import Config
from dsh.capabilities.bash.executor import *
executor = Executor(Config({{}}, {{}}))
command = "trap '' TERM HUP; (trap '' TERM HUP; sleep {mark}) & echo > {tmp_path}/on; wait"
trio.run(executor.run, executor.resolve(BashExecRequest(command=command)))
"""
    path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path})
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "on").exists() or not _living(f"sleep\0{mark}"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signals.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 2
    while _living(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _living(mark) == []


@LINUX
async def test_no_descriptor_and_no_zombie_is_left() -> None:
    await _run("true")
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    for _ in range(5):
        await _run("echo x; sleep 0.01 &")
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before
    stats = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    assert all("Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2] for pids in stats for pid in pids)


@pytest.mark.rule("BA-55")
async def test_overlapping_runs_do_not_mix() -> None:
    results: dict[int, str] = {}

    async def one(n: int) -> None:
        results[n] = (await _run(f"sleep 0.0{n}; echo {n}")).stdout.text

    async with trio.open_nursery() as nursery:
        for n in range(8):
            nursery.start_soon(one, n)
    assert results == {n: f"{n}\n" for n in range(8)}


# --- capture
# --------------------------------------------------------------------------------------------------------


def _capture(cap: int, spill_cap: int = 10**6, folder: SpillFolder | None = None) -> Capture:
    return Capture("stdout", cap, spill_cap, folder or SpillFolder())


@pytest.mark.rule("BA-22", "BA-23")
def test_exactly_the_cap_is_whole_and_one_byte_more_spills_from_byte_0() -> None:
    capture = _capture(10)
    capture.feed(b"01234")
    capture.feed(b"56789")
    assert capture.collected() == ("0123456789", False, None)
    capture = _capture(10)
    for chunk in (b"01234", b"56789", b"a", b"bc"):
        capture.feed(chunk)
    kept = capture.collected()
    assert (kept.text, kept.truncated) == ("3456789abc", True)
    assert kept.spill_path is not None
    assert Path(kept.spill_path).read_bytes() == b"0123456789abc"


@pytest.mark.rule("BA-22")
def test_one_chunk_larger_than_the_cap_keeps_its_own_tail() -> None:
    capture = _capture(4)
    capture.feed(b"ab")
    capture.feed(b"0123456789")
    assert capture.collected().text == "6789"


@pytest.mark.rule("BA-24")
def test_beyond_the_file_limit_there_is_no_file() -> None:
    folder = SpillFolder()
    capture = _capture(4, 8, folder)
    capture.feed(b"012345")
    first = capture._path
    assert first is not None
    capture.feed(b"6789")
    assert capture.collected() == ("6789", True, None)
    assert not Path(first).exists()
    capture = _capture(4, 8, folder)
    capture.feed(b"0123456789")
    assert capture.collected() == ("6789", True, None)


@pytest.mark.rule("BA-25")
def test_spill_files_are_private_and_hard_to_guess() -> None:
    folder = SpillFolder()
    paths = []
    for _ in range(2):
        capture = _capture(1, 100, folder)
        capture.feed(b"abc")
        paths.append(Path(capture.collected().spill_path or ""))
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(paths[0].parent.stat().st_mode) == 0o700
    assert paths[0] != paths[1]
    assert paths[0].name.startswith(f"{os.getpid()}-")
    assert paths[0].name.endswith("-stdout.txt")


@pytest.mark.rule("BA-24")
def test_a_full_disk_costs_the_file_and_not_the_command() -> None:
    class Full(SpillFolder):
        def open(self, label: str) -> Any:
            raise OSError(28, "No space left on device")

    capture = _capture(2, 100, Full())
    capture.feed(b"abcd")
    assert capture.collected() == ("cd", True, None)


@pytest.mark.rule("BA-27")
def test_a_cut_never_makes_half_a_character() -> None:
    for cap in range(1, 12):
        capture = _capture(cap)
        capture.feed("日本語é🐻".encode() * 2)
        assert "\ufffd" not in capture.collected().text
    capture = _capture(100)
    capture.feed(b"a\xff\x00b")
    assert capture.collected().text == "a\ufffd\x00b"


@pytest.mark.rule("BA-4", "BA-22")
async def test_large_output_is_read_to_the_end() -> None:
    executor = _executor(max_output_bytes=1000)
    result = await _run("head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2", executor, stdout_max_bytes=10)
    assert (result.stdout.text, result.stdout.truncated, result.stderr.text) == ("x" * 10, True, "end\n")
    assert Path(result.stdout.spill_path or "").stat().st_size == 3_000_000


async def test_a_step_costs_little_more_than_its_command() -> None:
    """Generous, since machines differ: the overhead of a run is a few milliseconds, not tens."""
    executor = _executor()
    await _run("true", executor)
    started = time.perf_counter()
    for _ in range(20):
        await _run("true", executor)
    ours = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(20):
        subprocess.run(["bash", "-c", "true"], capture_output=True, stdin=subprocess.DEVNULL, check=True)
    bare = time.perf_counter() - started
    assert (ours - bare) / 20 < 0.02
