"""The scripts of a checkout: the launcher, its environments, lock files, lint's checks, the list of rules."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

from dsh import _boot
from scripts.lib import rules, tree
from tests.shell.onefile_files import PIP_CACHE

ROOT = Path(__file__).resolve().parent.parent.parent

# Takes the place of the program in the copies, so that what is tested here is the launcher alone.
PROGRAM = """
import os, signal, sys

def run():
    if sys.argv[1:] == ["wait"]:
        print(os.getpid(), flush=True)
        signal.pause()
    if sys.argv[1:] == ["cat"]:
        sys.stdout.buffer.write(sys.stdin.buffer.read())
        sys.exit(7)
    import apsw, click, httpx, platformdirs, trio, zstandard
    print(repr((os.environ.get("DSH_CHECKOUT"), os.environ.get("DSH_ENV_STALE"), os.getcwd(), sys.argv[1:])))
"""


def copy_checkout(to: Path) -> Path:
    """A checkout as git would give it, with the probe as its program."""
    to.mkdir()
    for name in ("scripts", ".ci"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.lock", "requirements-dev.lock", "LICENSE"):
        shutil.copyfile(ROOT / name, to / name)
    (to / "dsh/cli").mkdir(parents=True)
    for name in ("__init__.py", "__main__.py", "_boot.py", "_start.py"):
        shutil.copyfile(ROOT / "dsh" / name, to / "dsh" / name)
    (to / "dsh/cli/__init__.py").touch()
    (to / "dsh/cli/main.py").write_text(PROGRAM)
    return to


def run(*command: str | Path, **more) -> subprocess.CompletedProcess[str]:
    """Run to the end, with captured text."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **more)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone."""
    monkeypatch.setenv("PIP_CACHE_DIR", PIP_CACHE["PIP_CACHE_DIR"])
    return copy_checkout(tmp_path / "a fresh clone")


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout after its first use. Tests that change it change it back."""
    checkout = copy_checkout(tmp_path_factory.mktemp("checkout") / "a b")
    assert run(checkout / "scripts/dsh").returncode == 0
    return checkout


# scripts/dsh


@pytest.mark.slow
def test_first_use_makes_the_environment_and_says_so_on_stderr(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dsh").symlink_to("../link")
    (tmp_path / "link").symlink_to("a fresh clone/scripts/dsh")
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    first = run(tmp_path / "bin/dsh", "x y", "", cwd="/", env=environment)
    assert first.returncode == 0, first.stderr
    assert ast.literal_eval(first.stdout) == (str(fresh), None, "/", ["x y", ""])
    assert first.stderr
    assert all(line.startswith("dsh: ") for line in first.stderr.splitlines())
    second = run(tmp_path / "bin/dsh", "x y", "", cwd="/", env=environment)
    assert (second.returncode, second.stdout, second.stderr) == (0, first.stdout, "")
    assert sorted(path.name for path in fresh.iterdir() if path.name.startswith(".venv")) == [
        ".venv",
        ".venv.lock",
    ]


@pytest.mark.slow
def test_every_way_to_name_the_launcher(used: Path, tmp_path: Path) -> None:
    (tmp_path / "absolute").symlink_to(used / "scripts/dsh")
    environment = {**os.environ, "PATH": f"{used}/scripts:{os.environ['PATH']}"}
    for command, where in [
        ("scripts/dsh", used),
        ("./dsh", used / "scripts"),
        ("../scripts/dsh", used / "dsh"),
        ("sh dsh", used / "scripts"),
        ("dsh", tmp_path),
        ("./absolute", tmp_path),
    ]:
        done = run("sh", "-c", command, cwd=where, env={**environment, "CDPATH": "/"})
        assert (done.returncode, done.stderr) == (0, ""), command
        assert ast.literal_eval(done.stdout) == (str(used), None, str(where), [])


@pytest.mark.slow
def test_stdin_exit_code_and_signals_pass_through(used: Path) -> None:
    data = bytes(range(256)) * 100
    done = subprocess.run([used / "scripts/dsh", "cat"], input=data, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, data, b"")
    process = subprocess.Popen([used / "scripts/dsh", "wait"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert int(process.stdout.readline()) == process.pid
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_eight_first_uses_at_once_make_one_environment(fresh: Path) -> None:
    command = [fresh / "scripts/dsh"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = [subprocess.Popen(command, text=True, **pipes) for _ in range(8)]  # type: ignore[call-overload]
    words = ""
    for process in running:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert str(fresh) in out
        words += err
    assert words.count("first use") == 1


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["installer", "all"])
def test_a_first_use_killed_half_way_heals(fresh: Path, whom: str) -> None:
    # once while the environment is made, once while packages are being installed
    for sign in (".venv/pyvenv.cfg", ".venv/lib/python3*/site-packages/click"):
        process = subprocess.Popen(
            [fresh / "scripts/dsh"],
            start_new_session=True,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        while not list(fresh.glob(sign)):
            assert process.poll() is None
            time.sleep(0.01)
        if whom == "all":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGKILL)
        process.wait(60)
        assert not (fresh / ".venv/requirements.lock").exists()
    done = run(fresh / "scripts/dsh")
    assert done.returncode == 0, done.stderr
    assert run(fresh / "scripts/dsh").stderr == ""


@pytest.mark.slow
def test_a_changed_lock_file_is_followed_at_once(used: Path) -> None:
    lock = used / "requirements.lock"
    before, times = lock.read_bytes(), lock.stat()
    # the new version has the old time, as an archive unpacked over the checkout would give it
    lock.write_bytes(before + b"# changed\n")
    os.utime(lock, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = run(used / "scripts/dsh", "again")
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout)[1:] == (None, str(Path.cwd()), ["again"])
    assert "installing" in done.stderr
    assert "first use" not in done.stderr
    assert run(used / "scripts/dsh").stderr == ""
    lock.write_bytes(before)
    assert run(used / "scripts/dsh").returncode == 0


@pytest.mark.slow
def test_an_environment_of_another_python_is_made_anew(used: Path) -> None:
    # what a system upgrade does: the same name, bin/python, now means a newer version
    (library,) = used.glob(".venv/lib/python3*")
    library.rename(library.with_name("python3.9"))
    done = run(used / "scripts/dsh")
    assert done.returncode == 0, done.stderr
    assert "first use" in done.stderr
    assert run(used / "scripts/dsh").stderr == ""


@pytest.mark.slow
def test_a_start_costs_little_more_than_python_itself(used: Path) -> None:
    ways = {
        "scripts/dsh": [str(used / "scripts/dsh"), "cat"],
        "direct": [str(used / ".venv/bin/python"), *_boot.FLAGS, str(used / "dsh/_boot.py"), "cat"],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(20):
        for name, command in ways.items():
            before = time.perf_counter()
            subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
            times[name].append((time.perf_counter() - before) * 1000)
    launcher, direct = (statistics.median(times[name]) for name in ways)
    print(f"start: scripts/dsh {launcher:.1f} ms, direct {direct:.1f} ms")
    assert launcher - direct < 50


def test_a_checkout_is_started_again_by_its_launcher() -> None:
    assert _boot.command() == [str(ROOT / "scripts/dsh")]


def test_no_python_is_told_in_one_line(fresh: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    # one that is too old, and none else
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    done = run(fresh / "scripts/dsh", "--version", env={"PATH": str(tools)})
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"dsh: needs Python 3\.11 or newer .*\n", done.stderr)
    assert not (fresh / ".venv").exists()


def test_an_environment_that_cannot_be_made_is_told(fresh: Path) -> None:
    (fresh / ".venv.lock").mkdir()
    done = run(fresh / "scripts/dsh")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"dsh: could not make {fresh}/.venv: " in done.stderr
    assert "Traceback" not in done.stderr


# Lock files and the package


def names(requirements: list[str]) -> set[str]:
    """The names in requirement lines, in one spelling."""
    found = (re.match(r"[A-Za-z0-9._-]+", line) for line in requirements)
    return {match.group().lower().replace("_", "-") for match in found if match}


def test_lock_files_are_complete_and_hashed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins: dict[str, dict[str, str]] = {}
    for file in ("requirements.lock", "requirements-dev.lock"):
        entries = re.sub(r"\\\n\s+", "", (ROOT / file).read_text()).splitlines()
        entries = [entry for entry in entries if not entry.startswith("#")]
        assert all(re.match(r"[a-z0-9._-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
        pins[file] = dict(entry.split(" ")[0].split("==") for entry in entries)
    runtime, dev = pins["requirements.lock"], pins["requirements-dev.lock"]
    assert names(project["dependencies"]) <= set(runtime)
    assert names(project["optional-dependencies"]["dev"]) <= set(dev)
    assert runtime.items() <= dev.items()


@pytest.mark.slow
def test_the_wheel_carries_data_files_and_the_command(tmp_path: Path) -> None:
    options = ["-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("dsh-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        (entry_points,) = (name for name in inside if name.endswith("entry_points.txt"))
        assert "dsh = dsh.cli.main:run" in archive.read(entry_points).decode()
    data = {path for path in (ROOT / "dsh").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(ROOT).as_posix() for path in data} <= inside
    assert not [name for name in inside if name.startswith(("tests", "scripts"))]


# scripts/lint and its parts


def test_tree_finds_long_files_and_forbidden_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dsh").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "dsh/long.py").write_text("x = 1\n" * 601)
    (tmp_path / "dsh/right.py").write_text("x = 1\n" * 600)
    (tmp_path / "docs/long.md").write_text("x\n" * 601)
    (tmp_path / "dsh/picture").write_bytes(b"\xff\xfe/root/")
    registry = "https:" + "//index.packages.test/simple"
    wrong = [f"see {registry}", "cd /" + "work/x", "'/" + "root'", "~/.py" + "env/bin"]
    right = [
        "https://example.org/work",
        "the ${x}/root of it",
        "a/work/b",
        "/workspace",
        "pyenv-like".replace("env", ""),
    ]
    (tmp_path / "docs/words.md").write_text("\n".join(wrong + right))
    assert tree.main(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("dsh/long.py:600: 601 lines")
    assert [line.rsplit(":", 2)[0] for line in lines[:-1]] == [f"docs/words.md:{n}" for n in (1, 2, 3, 4)]


def test_tree_looks_only_at_what_git_would_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "ignored").write_text("cd /" + "work\n")
    assert tree.main(tmp_path) == 0
    (tmp_path / "new").write_text("cd /" + "work\n")
    assert tree.main(tmp_path) == 1
    assert capsys.readouterr().out.startswith("new:1: names a path of one machine")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "line", "broken"),
    [
        ("core/a.py", "import dsh.cli.main", True),
        ("store/a.py", "import dsh.kernel", True),
        ("capabilities/one/a.py", "import dsh.capabilities.two", True),
        ("capabilities/one/a.py", "import dsh.agent", False),
        ("cli/a.py", "import dsh.query", False),
    ],
)
def test_the_direction_of_imports(fresh: Path, where: str, line: str, broken: bool) -> None:
    for name in (
        "core",
        "store",
        "kernel",
        "query",
        "agent",
        "capabilities",
        "capabilities/one",
        "capabilities/two",
    ):
        (fresh / "dsh" / name).mkdir()
        (fresh / "dsh" / name / "__init__.py").touch()
    (fresh / "dsh" / where).write_text(line + "\n")
    command = Path(sys.executable).with_name("lint-imports")
    done = run(command, "--no-cache", cwd=fresh, env={**os.environ, "PYTHONPATH": str(fresh)})
    assert done.returncode == (1 if broken else 0), done.stdout


# scripts/test and .ci/run


@pytest.fixture
def suite(fresh: Path) -> Path:
    """A checkout with a suite of three tests and the environment that these tests run in."""
    environment = Path(sys.prefix)
    if not (environment / "requirements-dev.lock").exists():
        pytest.skip("not run by scripts/test")
    (fresh / ".venv-dev").symlink_to(environment)
    (fresh / "tests").mkdir()
    (fresh / "tests/test_a.py").write_text(
        "import pytest\n\ndef test_quick():\n    pass\n\n@pytest.mark.slow\ndef test_slow():\n    pass\n\n"
        "@pytest.mark.live\ndef test_live():\n    pass\n"
    )
    return fresh


@pytest.mark.slow
def test_the_suite_ends_with_its_own_closing_line(suite: Path) -> None:
    whole = run(suite / "scripts/test", cwd="/")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert re.fullmatch(r"=+ 3 passed in .* =+", whole.stdout.splitlines()[-1])
    quick = run(suite / "scripts/test", "-q")
    assert re.fullmatch(r"=+ 1 passed in .* =+", quick.stdout.splitlines()[-1])
    (suite / "tests/test_b.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    wrong = run(suite / "scripts/test", "tests/test_b.py")
    assert wrong.returncode == 1
    assert re.fullmatch(r"=+ 1 failed in .* =+", wrong.stdout.splitlines()[-1])


@pytest.mark.slow
def test_continuous_integration_runs_lint_and_the_suite(suite: Path) -> None:
    lint = suite / "scripts/lint"
    lint.write_text('#!/bin/sh\necho "lint in $(pwd), CI=$CI"\nexit "$(cat lint-code)"\n')
    (suite / "lint-code").write_text("0")
    good = run("bash", ".ci/run", cwd=suite)
    assert good.returncode == 0, good.stdout + good.stderr
    assert good.stdout.startswith(f"lint in {suite}, CI=true\n")
    assert " 3 passed in " in good.stdout.splitlines()[-1]
    (suite / "lint-code").write_text("1")
    unclean = run("bash", ".ci/run", cwd=suite)
    assert unclean.returncode == 1
    assert " 3 passed in " in unclean.stdout.splitlines()[-1]
    (suite / "tests/test_b.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    (suite / "lint-code").write_text("0")
    assert run("bash", ".ci/run", cwd=suite).returncode == 1


# scripts/rules


def test_rules_are_list_items_that_open_with_a_number() -> None:
    text = """# Title
- **AB-1** A rule; see AB-9.
- AB-2 Another.
  - AB-3 inside a list
- CDE-10a With a letter.
AB-4 no list item
| AB-5 | a table |
- not AB-6
- AB-2 named twice
"""
    assert rules.rules_of(text) == ["AB-1", "AB-2", "AB-3", "CDE-10a"]


def test_rules_named_by_marks_of_every_kind() -> None:
    source = """
import pytest
raise RuntimeError("is only parsed")
pytestmark = [pytest.mark.rule("AB-1")]
@pytest.mark.rule("AB-2", "AB-3")
def test_a(): ...
class TestB:
    @pytest.mark.rule("AB-4")
    @pytest.mark.rule("AB-5")
    async def test_b(self): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.rule("AB-6"))])
def test_c(x): "AB-7"
"""
    assert rules.named_in(source) == {f"AB-{n}" for n in range(1, 7)}


def test_rules_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs/spec").mkdir(parents=True)
    (tmp_path / "tests/core").mkdir(parents=True)
    (tmp_path / "docs/spec/README.md").write_text("no rules")
    (tmp_path / "docs/spec/one.md").write_text("- AB-1 x\n- AB-2 y\n")
    (tmp_path / "docs/spec/two.md").write_text("- **CD-1** x\n")
    (tmp_path / "tests/core/test_x.py").write_text('@pytest.mark.rule("AB-2", "ZZ-9")\ndef test_x(): ...\n')
    assert rules.main(tmp_path, []) == 0
    assert capsys.readouterr().out.splitlines() == [
        *("one: AB-1", "two: CD-1", "", "one       1/2", "two       0/1", "total     1/3", ""),
        "named by tests, in no spec file: ZZ-9",
    ]
    assert rules.main(tmp_path, ["two"]) == 0
    assert capsys.readouterr().out.startswith("two: CD-1\n\ntwo       0/1\n")
    assert rules.main(tmp_path, ["three"]) == 2


def test_rules_of_this_project_are_found() -> None:
    done = run(ROOT / "scripts/rules", "session", "persistence")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^session +\d+/5\d$", done.stdout, re.MULTILINE)
    assert re.search(r"^total +\d+/1\d\d$", done.stdout, re.MULTILINE)
