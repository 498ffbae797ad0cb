"""The bash tool through the whole pipeline."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from dsh.agent.prompt import AssembleContext, Prompt
from dsh.capabilities.bash import exit_status, render
from dsh.capabilities.bash.environment import ShellEnvironment
from dsh.core.errors import InvariantError
from dsh.kernel.signal import Signal
from dsh.tools.present import call_view, result_view
from tests.tools.kit import Bench, code, make_agent, text

BASH = ("dsh.tools.policies", "dsh.capabilities.bash")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    work = tmp_path / "work"
    work.mkdir()
    return Bench(work, BASH)


async def _bash(bench: Bench, command: str, **more: Any) -> Any:
    return await bench.call("bash", command=command, description="test", **more)


@pytest.mark.rule("BA-41", "BA-43", "BA-47", "BA-48")
async def test_a_foreground_run_is_a_success_whatever_the_exit_code(bench: Bench) -> None:
    result = await _bash(bench, "printf out; echo err >&2; exit 3")
    assert text(result) == "out\n[stderr]\nerr\n[exit code: 3]"
    assert not result.is_error
    assert result.value == {
        "kind": "foreground",
        "exitCode": 3,
        "signal": None,
        "timedOut": False,
        "aborted": False,
        "timeoutMs": 120000,
        "stdout": {"text": "out", "truncated": False},
        "stderr": {"text": "err\n", "truncated": False},
    }
    assert text(await _bash(bench, "true")) == "(no output)"
    assert text(await _bash(bench, "kill -9 $$")) == "(no output)\n[killed by signal: SIGKILL]"


@pytest.mark.rule("BA-48", "BA-41")
async def test_a_timeout_is_a_result_with_its_marker(bench: Bench) -> None:
    result = await _bash(bench, "echo part; sleep 30", timeoutMs=300)
    assert not result.is_error
    assert text(result) == "part\n[timed out after 300ms]\n[killed by signal: SIGTERM]"


@pytest.mark.rule("BA-47")
async def test_truncated_output_names_the_file_with_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bench = Bench(tmp_path, BASH, bash__max_output_bytes=8)
    result = await _bash(bench, "seq 1 100")
    path = result.value["stdout"]["spillPath"]
    assert text(result) == "8\n99\n100\n"[-8:] + f"[output truncated; full output: {path}]"
    assert Path(path).read_text().startswith("1\n2\n")
    lost = render(
        {
            "stdout": {"text": "x", "truncated": True},
            "stderr": {"text": "", "truncated": False},
            "timedOut": False,
            "signal": None,
            "exitCode": 0,
        }
    )
    assert lost == "x\n[output truncated; full output: (unavailable)]"


@pytest.mark.rule("BA-36", "TC-2")
@pytest.mark.parametrize(
    "args",
    [
        {"command": " ", "description": "d"},
        {"command": "true", "description": ""},
        {"command": "true", "description": "d", "timeoutMs": 0},
        {"command": "true", "description": "d", "timeoutMs": -5},
    ],
)
async def test_arguments_a_schema_cannot_judge_are_refused_without_a_code(bench: Bench, args: Any) -> None:
    assert code(await bench.call("bash", **args)) is None


@pytest.mark.rule("BA-42", "BA-38", "TC-1")
@pytest.mark.parametrize(
    "extra",
    [{"run_in_background": True}, {"sandbox_permissions": "danger-full-access"}, {"justification": "please"}],
)
async def test_what_is_not_offered_is_refused_before_anything_runs(bench: Bench, extra: Any) -> None:
    offered = bench.tools.schemas(None)[0]["parameters"]["properties"]
    assert not set(extra) & set(offered)
    result = await _bash(bench, "touch ran", **extra)
    assert result.is_error
    assert not Path(bench.agent.session.cwd, "ran").exists()


@pytest.mark.rule("BA-9")
async def test_a_model_cannot_set_input_environment_or_capture(bench: Bench) -> None:
    result = await _bash(bench, "cat; echo ${X-unset}", stdin="in", env={"X": "1"}, stdoutMaxBytes=1)
    assert text(result) == "unset\n"


@pytest.mark.rule("BA-37")
async def test_the_working_directory_is_the_real_session_directory(bench: Bench, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(bench.agent.session.cwd)
    (tmp_path / "work" / "sub").mkdir()
    agent = make_agent(link)
    assert text(await bench.call("bash", agent=agent, command="pwd", description="d")) == f"{tmp_path}/work\n"
    inner = await bench.call("bash", agent=agent, command="pwd", description="d", workdir="sub")
    assert text(inner) == f"{tmp_path}/work/sub\n"
    assert text(await _bash(bench, "pwd", workdir="/")) == "/\n"
    assert code(await _bash(bench, "pwd", workdir="gone")) is None


@pytest.mark.rule("BA-10")
async def test_the_harness_tells_a_command_where_it_is(bench: Bench, tmp_path: Path) -> None:
    result = await _bash(bench, "env | grep ^DSH_ | sort")
    home = os.environ["HOME"] + "/.dsh"
    assert text(result) == f"DSH_HOME={home}\nDSH_SESSION_ID=s1\nDSH_SHELL=1\n"
    alone = await bench.call("bash", agent=None, command="echo ${DSH_SESSION_ID-none}", description="d")
    assert text(alone) == "none\n"


@pytest.mark.rule("BA-11", "BA-12")
async def test_contributors_declare_what_they_add(bench: Bench) -> None:
    service = bench.host.get(ShellEnvironment)
    root = bench.host.root
    service.contribute(root, "db", {"DSH_SESSION_DB": "the database"}, lambda agent: {"DSH_SESSION_DB": "/x"})
    assert text(await _bash(bench, "echo $DSH_SESSION_DB")) == "/x\n"
    for name, keys in (
        (" ", {"DSH_A": "d"}),
        ("db", {"DSH_A": "d"}),
        ("b", {"DSH_HOME": "d"}),
        ("b", {"DSH_SESSION_DB": "d"}),
        ("b", {"dsh_a": "d"}),
        ("b", {"DSH_OK": "d", "DSH_B": " "}),
    ):
        with pytest.raises(InvariantError):
            service.contribute(root, name, keys, lambda agent: {})
    assert service.declarations() == {"DSH_SESSION_DB": "the database"}
    service.contribute(root, "a", {"DSH_A": "d"}, lambda agent: {"DSH_OTHER": "x"})
    assert list(service.declarations()) == ["DSH_A", "DSH_SESSION_DB"]
    assert (await _bash(bench, "true")).is_error


@pytest.mark.rule("BA-41", "AL-59")
async def test_a_cancelled_command_is_an_error_within_the_grace(bench: Bench) -> None:
    signal = Signal()
    started = time.monotonic()
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            await trio.sleep(0.2)
            signal.cancel()

        nursery.start_soon(cancel)
        result = await _bash(bench, "echo part; sleep 60", signal=signal)
    assert (code(result), text(result)) == ("ABORTED", "Error: command aborted")
    assert time.monotonic() - started < 2


async def test_a_command_needs_no_caption(bench: Bench) -> None:
    assert text(await bench.call("bash", command="echo hi")) == "hi\n"
    assert call_view(bench.tools.visible(None)["bash"], "bash", {"command": "ls"}) == {
        "card": "terminal",
        "title": "ls",
    }


@pytest.mark.rule("BA-45")
def test_no_call_budget_is_declared(bench: Bench) -> None:
    assert bench.tools.visible(None)["bash"].timeout_ms is None


@pytest.mark.rule("BA-46")
def test_the_prompt_section_has_its_place(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    prompt = Prompt(bench.host)
    bench.host.root.provide(Prompt, prompt)
    prompt.section(bench.host.root, name="after", order=106, text="after")
    prompt.section(bench.host.root, name="before", order=104, text="before")
    bench.host.start(["dsh.capabilities.bash"])
    names = [name for name, _ in prompt.assemble(AssembleContext()).sections]
    assert names == ["before", "tool:bash", "after"]


@pytest.mark.rule("BA-49")
@pytest.mark.parametrize(
    ("stored", "status"),
    [
        ("out\n", (0, None)),
        ("out\n[exit code: 3]", (3, None)),
        ("[exit code: 3]", (3, None)),
        ("x\n[killed by signal: SIGTERM]", (None, "SIGTERM")),
        ("x\n[exit code: 3]\nmore", (0, None)),
        ("see [exit code: 3]", (0, None)),
    ],
)
def test_the_status_is_read_back_from_stored_text(stored: str, status: Any) -> None:
    assert exit_status(stored) == status


@pytest.mark.rule("BA-51")
async def test_a_run_is_shown_as_a_terminal(bench: Bench) -> None:
    tool = bench.tools.visible(None)["bash"]
    args = {"command": "ls", "description": "list", "workdir": "sub"}
    assert call_view(tool, "bash", args) == {
        "card": "terminal",
        "title": "ls",
        "description": "list",
        "cwd": "sub",
    }
    result = await _bash(bench, "echo x; exit 2")
    assert result_view(tool, args, result.content, False) == {
        "card": "terminal",
        "output": "x\n[exit code: 2]",
        "exitCode": 2,
    }
    assert result_view(tool, args, result.content, True)["card"] == "generic"


async def test_odd_bytes_never_break_the_result(bench: Bench) -> None:
    result = await _bash(bench, r"printf 'a\x00\xff\xed\xa0\xbd\x1b[31mred\r\n'")
    assert not result.is_error
    text(result).encode()
    assert "a\x00\ufffd" in text(result)
