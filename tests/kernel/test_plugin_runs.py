"""Plugins of others in the real program: the example package, the folders, the faults, `dsh plugins`."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.provider import FakeProvider, text
from tests.shell.process import ROOT, Dsh, finish, on_terminal

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "dsh-example-plugin"


@pytest.fixture
def dsh(tmp_path: Path) -> Dsh:
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"text": "hello"}\n')
    return Dsh(tmp_path, DSH_PLUGINS_START_TIMEOUT_MS="1500")


def mock(dsh: Dsh, *words: str, **more: Any) -> Any:
    return dsh("run", "hi", "--mock", str(dsh.home.parent / "answers.jsonl"), *words, **more)


def user_plugin(dsh: Dsh, name: str, body: str) -> Path:
    folder = dsh.home / ".dsh" / "plugins"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(body)
    return path


def project_plugin(dsh: Dsh, name: str, body: str) -> Path:
    folder = dsh.cwd / ".dsh" / "plugins"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(body)
    return path


# ------------------------------------------------------------------------------------------------ the example package


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built as a wheel and installed into a folder, its dist-info beside it."""
    folder = tmp_path_factory.mktemp("example")
    source = folder / "source"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")],
        cwd=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    assert (folder / "site" / "dsh_example_plugin-1.0.0.dist-info" / "entry_points.txt").exists()
    return folder / "site"


@pytest.fixture
def installed(dsh: Dsh, site: Path) -> Dsh:
    dsh.env["PYTHONPATH"] = f"{site}{os.pathsep}{ROOT}"
    return dsh


@pytest.mark.rule("CO-1")
def test_the_example_adds_one_of_each(installed: Dsh) -> None:
    listed = installed("plugins", "--json")
    assert listed.code == 0, listed.errors
    assert listed.lines[-1] == {
        "name": "dice",
        "origin": "installed",
        "where": "dsh-example-plugin",
        "version": "1.0.0",
        "module": "dsh_example_plugin",
        "state": "loaded",
        "reason": None,
        "registers": {
            "session event type": ["dice/rolled"],
            "content block": ["dice/throw"],
            "tool": ["roll"],
            "adapter": ["parrot"],
            "hook": ["agent/prompt-submit"],
        },
    }
    done = installed("run", "roll 2d6", "--provider", "parrot")
    assert done.code == 0, done.errors
    ((rolled),) = installed.data("dice/rolled")
    total = sum(rolled["values"])
    said = f"2d6: {', '.join(map(str, rolled['values']))}, sum {total}"
    assert done.text == f"You threw {said}\n"
    (result,) = installed.data("tool/result")
    assert result["content"] == [{"type": "dice/throw", "sides": 6, "values": rolled["values"]}]
    sources = [m["source"] for m in installed.data("user/message")]
    assert sources == [{"kind": "user"}, {"kind": "plugin", "plugin": "dice"}]
    assert installed.data("request/header")[0]["header"]["config"] == {"provider": "parrot", "model": "grey"}
    assert f"dice/rolled\n    {said}" in installed("show", "last", env={"DSH_PLUGINS_ENABLED": "false"}).text
    again = installed("run", "-c", "just talk")
    assert again.code == 0, again.errors
    assert "just talk" in again.text


def test_a_block_of_a_plugin_reaches_a_provider_that_reads_text(installed: Dsh) -> None:
    first = installed("run", "roll 3d8", "--provider", "parrot")
    assert first.code == 0, first.errors
    said = first.text.removeprefix("You threw ").strip()
    with FakeProvider(text("seen"), text("seen")) as fake:
        installed.fake = fake
        again = installed("run", "-c", "and?", "--provider", "fake")
        assert again.text == "seen\n", again.errors
        results = [m["content"] for m in fake.requests[0].body["messages"] if m["role"] == "tool"]
        assert results == [said]
        gone = installed("run", "-c", "and now?", env={"DSH_PLUGINS_DISABLED": "dice"})  # neutral without the plugin
        assert gone.text == "seen\n", gone.errors
        results = [m["content"] for m in fake.requests[1].body["messages"] if m["role"] == "tool"]
        assert results == ["(no output)"]
    shown = installed("show", "last", env={"DSH_PLUGINS_ENABLED": "false"})
    assert "dice/throw" in shown.text
    exported = installed("show", "last", "--json", env={"DSH_PLUGINS_ENABLED": "false"})
    assert [e for e in exported.lines if e["type"] == "dice/rolled"] != []


def test_a_provider_of_a_plugin_is_chosen_like_any_other(installed: Dsh) -> None:
    alone = installed("run", "just words")
    assert (alone.code, alone.text) == (0, "just words\n"), alone.errors
    named = installed("run", "more words", "-m", "parrot/green")
    assert (named.code, named.text) == (0, "more words\n"), named.errors
    assert installed.data("request/header")[0]["header"]["config"]["model"] == "green"


def test_a_package_that_is_taken_out_is_missed_at_the_next_start(installed: Dsh, site: Path, tmp_path: Path) -> None:
    other = tmp_path / "site"
    shutil.copytree(site, other)
    installed.env["PYTHONPATH"] = f"{other}{os.pathsep}{ROOT}"

    def names() -> list[str]:
        return [line["name"] for line in installed("plugins", "--json").lines]

    assert "dice" in names()
    shutil.rmtree(other / "dsh_example_plugin-1.0.0.dist-info")
    assert "dice" not in names()


# ------------------------------------------------------------------------------------------------------------- faults


def test_bad_plugins_do_not_take_a_run_down(dsh: Dsh) -> None:
    user_plugin(dsh, "breaks", "raise RuntimeError('no luck')\n")
    user_plugin(dsh, "exits", "import sys\ndef setup(ctx): sys.exit(4)\n")
    user_plugin(dsh, "hangs", "def setup(ctx):\n    while True: pass\n")
    user_plugin(dsh, "keys", "def setup(ctx): raise KeyboardInterrupt\n")
    user_plugin(dsh, "newer", "DSH_INTERFACE = 99\ndef setup(ctx): pass\n")
    user_plugin(dsh, "works", "def setup(ctx):\n    print('loud')\n")
    done = mock(dsh)
    assert (done.code, done.text) == (0, "hello\n"), done.errors
    lines = [line for line in done.errors.splitlines() if " is not used: " in line]
    assert [line.partition(" is not used: ")[2] for line in lines] == [
        "RuntimeError: no luck",
        "it called sys.exit(4)",
        "it did not start within 1.5 s (plugins.start_timeout_ms)",
        "it raised KeyboardInterrupt",
        "it is made for plugin interface 99, this program has 1",
    ]
    assert all(line.startswith("dsh: the user plugin ") for line in lines)
    assert "Traceback" not in done.errors
    off = mock(dsh, env={"DSH_PLUGINS_DISABLED": "breaks,exits,hangs,keys,newer"})
    assert "is not used" not in off.errors
    quiet = mock(dsh, "-q", env={"DSH_PLUGINS_ENABLED": "false"})
    assert quiet.err == b""
    missing = mock(dsh, env={"DSH_PLUGINS": "nowhere", "DSH_PLUGINS_DISABLED": "hangs"})
    assert (missing.code, missing.text) == (3, "")
    assert "plugin 'nowhere' cannot be imported" in missing.errors
    listed = dsh("plugins", env={"DSH_PLUGINS_DISABLED": "hangs,keys", "DSH_PLUGINS": "nowhere"})
    assert listed.code == 1
    states = {line.split("\t")[0]: line.split("\t")[1] for line in listed.text.splitlines()}
    assert states["breaks"] == "failed"
    assert states["hangs"] == "off"
    assert states["nowhere"] == "failed"
    assert states["works"] == states["bash"] == "loaded"


def test_a_listener_that_fails_later(dsh: Dsh) -> None:
    user_plugin(
        dsh, "late",
        "def setup(ctx):\n"
        "    def notice(*args): raise ValueError('seen')\n"
        "    ctx.on('session/event', notice)\n"
        "    ctx.on('agent/status', notice)\n",
    )  # fmt: skip
    done = mock(dsh)
    assert (done.code, done.text) == (0, "hello\n"), done.errors
    assert sorted(done.errors.splitlines()) == [
        "dsh: plugin late failed at agent/status: seen",
        "dsh: plugin late failed at session/event: seen",
    ]
    assert mock(dsh, "-q").errors == ""
    told = mock(dsh, env={"DSH_DEBUG": "1"})
    assert "dsh: session/event: plugin late: seen" in told.errors
    user_plugin(
        dsh, "late",
        "def setup(ctx):\n"
        "    async def before(*args): raise ValueError('stop')\n"
        "    ctx.on('agent/pre-step', before)\n",
    )  # fmt: skip
    ended = mock(dsh)
    assert (ended.code, ended.text) == (1, "")
    assert "plugin late at agent/pre-step: stop" in ended.errors
    assert dsh.data("turn/end")[0]["reason"]["message"] == "plugin late at agent/pre-step: stop"


def test_a_plugin_that_refuses_the_session_is_named_once(dsh: Dsh) -> None:
    user_plugin(
        dsh, "veto",
        "def setup(ctx):\n"
        "    def no(session): raise ValueError('not here')\n"
        "    ctx.on('session/created', no)\n",
    )  # fmt: skip
    done = mock(dsh)
    assert (done.code, done.text, done.errors) == (1, "", "dsh: plugin veto: not here\n")


def test_failures_that_are_contained_are_told_a_handful_of_times(dsh: Dsh) -> None:
    points = "agent/created agent/session-start agent/inbox/enqueue agent/inbox/dequeue agent/status session/event"
    user_plugin(
        dsh, "all",
        "def setup(ctx):\n"
        "    def fails(*args): raise ValueError('two\\nlines')\n"
        f"    for point in {points.split()!r}: ctx.on(point, fails)\n",
    )  # fmt: skip
    done = mock(dsh)
    assert (done.code, done.text) == (0, "hello\n"), done.errors
    *lines, last = done.errors.splitlines()
    assert len(lines) == len(set(lines)) == 5
    assert all(line.startswith("dsh: plugin all failed at ") and line.endswith(": two lines") for line in lines)
    assert last == "dsh: more plugins failed (DSH_DEBUG=1 shows all)"


def test_a_plugin_that_fails_at_its_end_changes_nothing(dsh: Dsh) -> None:
    user_plugin(
        dsh, "end",
        "import sys\n"
        "def setup(ctx):\n"
        "    ctx.effect(lambda: 1 / 0)\n"
        "    ctx.effect(lambda: sys.exit(3))\n",
    )  # fmt: skip
    done = mock(dsh)
    assert (done.code, done.text) == (0, "hello\n"), done.errors
    assert (
        done.errors == "dsh: plugin end failed at its end: scope teardown [it called sys.exit(3); division by zero]\n"
    )


def test_standard_output_is_the_answers(dsh: Dsh) -> None:
    user_plugin(
        dsh, "loud",
        "print('import')\n"
        "def setup(ctx):\n"
        "    print('setup')\n"
        "    ctx.on('agent/status', lambda *args: print('hook'))\n"
        "    ctx.effect(lambda: print('end'))\n",
    )  # fmt: skip
    done = mock(dsh, "--json")
    assert done.result["answer"] == "hello"
    assert set(done.errors.split()) == {"import", "setup", "hook", "end"}
    broken = mock(dsh, "--json", "--resume", "nowhere")
    assert broken.result["error"]["code"] == "SESSION_NOT_FOUND"


def test_what_a_setup_changes_of_the_process_is_put_back(dsh: Dsh) -> None:
    user_plugin(
        dsh, "moves",
        "import os, signal\n"
        "def setup(ctx):\n"
        "    os.chdir('/')\n"
        "    for number in (signal.SIGCHLD, signal.SIGINT): signal.signal(number, signal.SIG_IGN)\n",
    )  # fmt: skip
    user_plugin(
        dsh, "tells",
        "import os, signal, sys\n"
        "def setup(ctx):\n"
        "    print(os.getcwd(), signal.getsignal(signal.SIGCHLD).name, file=sys.stderr)\n",
    )  # fmt: skip
    assert mock(dsh).errors == f"{dsh.cwd} SIG_DFL\n"


def test_a_tool_that_calls_exit_is_only_a_failed_tool(dsh: Dsh) -> None:
    user_plugin(
        dsh, "leaver",
        "from dsh.tools.definition import define\n"
        "from dsh.tools.registry import Tools\n"
        "async def leave(args, execution): raise SystemExit(5)\n"
        "def setup(ctx):\n"
        "    ctx.get(Tools).register(ctx, define(name='leave', description='x', parameters={},\n"
        "        output={'type': 'json'}, render=lambda a, v: 'x', execute=leave))\n",
    )  # fmt: skip
    answers = dsh.home.parent / "answers.jsonl"
    answers.write_text('{"calls": [{"name": "leave", "arguments": {}, "id": "c"}]}\n{"text": "still here"}\n')
    done = mock(dsh)
    assert (done.code, done.text) == (0, "still here\n"), done.errors
    assert dsh.data("tool/result")[0]["content"][0]["text"] == "Error: the tool called sys.exit(5)"


@pytest.mark.parametrize("words", [("run", "hi", "--mock", "../answers.jsonl"), ("plugins",)])
def test_ctrl_c_while_a_plugin_starts(dsh: Dsh, tmp_path: Path, words: tuple[str, ...]) -> None:
    mark = tmp_path / "begun"
    user_plugin(
        dsh, "slow",
        "import pathlib, time\n"
        f"def setup(ctx):\n    pathlib.Path({str(mark)!r}).touch()\n    time.sleep(60)\n",
    )  # fmt: skip
    process = dsh.start(*words, env={"DSH_PLUGINS_START_TIMEOUT_MS": "60000"})
    dsh.wait_for(mark.exists)
    process.send_signal(signal.SIGINT)
    done = finish(process, timeout=30)
    assert done.code == 130
    assert done.out == b""
    assert "Traceback" not in done.errors


def test_a_plugin_that_raises_what_ctrl_c_raises_is_a_failed_one(dsh: Dsh) -> None:
    user_plugin(dsh, "stops", "def setup(ctx): raise KeyboardInterrupt\n")
    done = dsh("plugins", "--json")
    assert done.code == 1, done.errors
    assert [p["state"] for p in done.lines if p["name"] == "stops"] == ["failed"]
    assert mock(dsh).code == 0


def test_lines_of_json_are_harmless_on_a_terminal_beside_a_plugin(dsh: Dsh) -> None:
    user_plugin(dsh, "quiet", "def setup(ctx): pass\n")
    answers = dsh.home.parent / "answers.jsonl"
    answers.write_text('{"text": "a\\u009bb"}\n')
    main, side = pty.openpty()
    process = dsh.start("run", "hi", "--json", "--mock", str(answers), stdout=side, stderr=subprocess.DEVNULL)
    os.close(side)
    code, shown = on_terminal(process, main)
    assert code == 0
    assert b"\\u009b" in shown
    assert "\x9b".encode() not in shown


def test_the_list_on_a_terminal_has_a_head(dsh: Dsh) -> None:
    main, side = pty.openpty()
    process = dsh.start("plugins", stdout=side)
    os.close(side)
    shown = b""
    while b"limits" not in shown:
        shown += os.read(main, 65536)
    process.communicate()
    os.close(main)
    assert b"NAME" in shown
    assert b"REGISTERS" in shown


# ------------------------------------------------------------------------------------------------------------- trust


def test_a_projects_plugins_run_once_it_is_trusted(dsh: Dsh, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    project_plugin(dsh, "mine", f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef setup(ctx): pass\n")
    (dsh.cwd / ".git").mkdir()
    below = dsh.cwd / "src"
    below.mkdir()
    done = mock(dsh, cwd=below)
    assert (done.code, done.text) == (0, "hello\n"), done.errors
    assert "its folder is not trusted: mine (dsh plugins trust" in done.errors
    assert done.errors.count("not trusted") == 1
    assert not mark.exists()
    listed = dsh("plugins", "--json").lines[-1]
    assert (listed["name"], listed["origin"], listed["state"]) == ("mine", "project", "untrusted")
    assert not mark.exists()
    trusted = dsh("plugins", "trust", cwd=below)
    assert trusted.code == 0, trusted.errors
    assert dsh("plugins", "path").text.splitlines()[-1].split("\t")[2] == "trusted"
    done = mock(dsh, cwd=below)
    assert "not trusted" not in done.errors
    assert mark.exists()
    assert dsh("plugins", "distrust", str(dsh.cwd)).code == 0
    assert "not trusted" in mock(dsh).errors
    assert dsh("plugins", "trust", str(tmp_path / "nowhere")).code == 2


def test_a_run_elsewhere_takes_the_plugins_of_that_project(dsh: Dsh, tmp_path: Path) -> None:
    project_plugin(dsh, "mine", "def setup(ctx): raise ValueError('started')\n")
    assert dsh("plugins", "trust").code == 0
    other = tmp_path / "other"
    other.mkdir()
    assert "started" not in mock(dsh, cwd=other).errors
    assert "started" in mock(dsh, "--cwd", str(dsh.cwd), cwd=other).errors


def test_nothing_is_loaded_where_there_is_nothing(dsh: Dsh) -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        *dsh.command("run", "hi", "--mock", str(dsh.home.parent / "answers.jsonl"))[1:],
    ]
    done = finish(
        subprocess.Popen(
            command, env=dsh.env, cwd=dsh.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    )
    assert done.code == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.errors.splitlines() if "import time:" in line}
    assert "dsh.kernel.found" in loaded
    assert not loaded & {"dsh.kernel.plugins", "importlib.metadata", "email"}
