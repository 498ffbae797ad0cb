"""The edge: version, help, wrong usage, streams that break, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsh import __version__
from dsh.cli.group import COMMANDS
from tests.cli.conftest import DSH, ROOT, Run
from tests.history import History

pytestmark = pytest.mark.slow  # each test starts the program, some many times

BASH = ["bash", "-o", "pipefail", "-c"]


def modules_of(*arguments: str) -> set[str]:
    """What a command imports, in a process of its own."""
    script = (
        "import sys; from dsh.cli.main import main; code = main(sys.argv[1:]); "
        "print(*sorted(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-S", "-c", script, *arguments]
    paths = os.pathsep.join([str(ROOT), *[p for p in sys.path if p.endswith("site-packages")]])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=False)
    return set(done.stderr.splitlines()[-1].split())


def test_version(dsh: Run) -> None:
    for flag in ("--version", "-V"):
        done = dsh(flag)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"dsh {__version__}\n", "")
    assert dsh("--db", "x", "--version").stdout == f"dsh {__version__}\n"


def test_version_imports_nothing() -> None:
    loaded = modules_of("--version")
    assert not {"click", "apsw", "json", "dsh.cli.group"} & loaded


def test_search_loads_neither_trio_nor_httpx(history: History) -> None:
    history.say("s", "needle")
    loaded = modules_of("search", "need*", "--json")
    assert {"click", "apsw", "dsh.query.search"} <= loaded
    assert not {"trio", "httpx", "platformdirs", "zstandard", "importlib.metadata", "tomllib"} & loaded
    assert not {"dsh.cli.run", "dsh.cli.show", "dsh.session.session", "dsh.llm.service"} & loaded


def test_help_imports_no_command(dsh: Run) -> None:
    done = dsh("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)
    assert not {f"dsh.cli.{name}" for name in COMMANDS} & modules_of("--help")


def test_the_table_of_commands_says_what_the_commands_say() -> None:
    import importlib

    for name, (module, text) in COMMANDS.items():
        command = importlib.import_module(module).command
        assert command.name == name
        assert command.short_help == text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(dsh: Run, name: str) -> None:
    done = dsh(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: dsh {name}")
    assert done.stderr == ""


@pytest.mark.rule("HD-2", "HD-14")
@pytest.mark.parametrize(
    ("arguments", "line", "hint"),
    [
        (["serch", "x"], "there is no command 'serch'", "did you mean search or steer?"),
        (["zzz"], "there is no command 'zzz'", "commands: run, search"),
        (["fix the bug"], "there is no command 'fix the bug'", 'dsh run "QUESTION"'),
        (["--nope"], "no such option: --nope", "see dsh --help"),
        (["search", "--lmit", "3", "x"], "no such option: --lmit (did you mean --limit", "see dsh search --help"),
        (["run", "-5 + 3?"], "no such option: -5", "goes behind two: dsh run -- TEXT"),
        (["search"], "missing argument 'QUERY...'", "see dsh search --help"),
        (["search", "-n", "0", "x"], "invalid value for '-n' / '--limit': 0 is not in the range x>=1", "see dsh"),
        (["search", "x", "--since", "whenever"], "'whenever' is not a point in time", "for example"),
        (["search", "x", "--type", "nope"], "no type of event is called 'nope'", "known: user"),
        (["search", "x", "--here", "--cwd", "/"], "--cwd and --here exclude each other", None),
        (["config", "set", "nope", "1"], "no setting is called 'nope'", "dsh config list"),
        (["config", "set", "search.limt", "1"], "no setting is called 'search.limt'", "did you mean search.limit?"),
        (["show", "x", "--from", "3", "--to", "2"], "--from is later than --to", None),
        (["sql", ""], "the query is empty", None),
        (["sql", "-"], "the query is empty", None),
        (["config"], "dsh config needs a command", "see dsh config --help"),
        (["run", "x", "--timeout", "nan"], "--timeout must be a finite number (USAGE)", None),
        (["run", "x", "--temperature", "inf"], "--temperature must be a finite number (USAGE)", None),
        (["run", "x", "--max-tokens", "1" + "0" * 20], "--max-tokens must be at most 9007199254740991 (USAGE)", None),
    ],
)
def test_wrong_usage_is_one_line_and_a_hint(
    dsh: Run, history: History, arguments: list[str], line: str, hint: str | None
) -> None:
    done = dsh(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"dsh: {line}")
    assert len(lines) == (1 if hint is None else 2)
    assert hint is None or hint in lines[1]


@pytest.mark.rule("HD-14")
def test_no_command_prints_help_to_stderr(dsh: Run) -> None:
    done = dsh()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: dsh" in done.stderr
    assert "dsh run" in done.stderr


@pytest.mark.rule("HD-14")
def test_an_unexpected_failure_is_one_line_unless_debugging(dsh: Run, tmp_path: Path) -> None:
    (tmp_path / "apsw.py").write_text("raise RuntimeError('out of cheese')")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = dsh("search", "x", env=env)
    assert done.returncode == 1
    assert done.stderr == "dsh: internal error: RuntimeError: out of cheese (DSH_DEBUG=1 shows the traceback)\n"
    debugged = dsh("search", "x", env={**env, "DSH_DEBUG": "1"})
    assert "Traceback" in debugged.stderr


def test_a_failure_cannot_command_the_terminal(dsh: Run) -> None:
    done = dsh("--db", "/nosuch/\x1b[2J\n.db", "search", "x")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "dsh: no history yet: /nosuch/␛[2J .db does not exist"


# streams that break


@pytest.fixture
def long_history(history: History) -> History:
    with history.db.transaction():
        for number in range(300):
            history.session(f"s{number:03d}")
            history.turn(f"s{number:03d}", 1, "a word and another " * 20, {"type": "text", "text": "a " * 400})
    return history


def through_bash(command: str) -> subprocess.CompletedProcess[str]:
    program = f"{sys.executable} -m dsh"
    return subprocess.run(
        [*BASH, command.replace("dsh ", f"{program} ")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        "search a -n 300",
        "search a -n 300 --all-hits --json",
        "sessions -n 300",
        "show s000 --full",
        "show s000 --json",
        "sql 'select * from event, session limit 100000'",
        "sql --json 'select * from event, session limit 100000'",
        "sql --csv 'select * from event, session limit 100000'",
        "config list",
        "--help",
        "search --help",
        "--version",
    ],
)
def test_a_reader_that_leaves_is_no_failure(long_history: History, command: str) -> None:
    done = through_bash(f'dsh {command} | head -1; echo "${{PIPESTATUS[0]}}"')
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


def test_a_reader_that_was_never_there(long_history: History) -> None:
    done = through_bash('dsh search a -n 300 | true; echo "${PIPESTATUS[0]}"')
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["search", "a"], ["sessions"], ["--version"], ["--help"], ["config", "list"]])
def test_a_full_disk_is_one_line(dsh: Run, long_history: History, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = dsh(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "dsh: the output cannot be written: No space left on device\n"


def test_closed_streams(long_history: History) -> None:
    done = through_bash("dsh search a >&-; echo $?")
    assert (done.stdout, done.stderr) == ("1\n", "dsh: standard output is closed\n")
    done = through_bash("dsh search nosuchword 2>&-; echo $?")
    assert (done.stdout, done.stderr) == ("1\n", "")
    done = through_bash("dsh sql - <&-; echo $?")
    assert (done.stdout, done.stderr) == ("2\n", "dsh: the query is empty\n")
    done = through_bash("dsh search a -n 1 <&- | wc -l")
    assert done.stdout.strip() == "1"


# locales and terminals


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_text_is_utf8_in_every_locale(dsh: Run, history: History, locale: str) -> None:
    history.say("s", "修改 café 🐻")
    done = dsh("search", "cafe", env={"LC_ALL": locale, "LANG": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert done.returncode == 0
    assert "修改 café 🐻" in done.stdout


def test_an_argument_that_is_no_text(history: History) -> None:
    history.say("s", "needle")
    for arguments in ([b"search", b"\xff\xfe"], [b"show", b"\xff"], [b"search", b"needle", b"--session", b"\xff"]):
        done = subprocess.run(
            [*[os.fsencode(a) for a in DSH], *arguments],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode in (1, 2)
        assert done.stderr.count(b"\n") <= 2
        assert b"Traceback" not in done.stderr
        assert b"internal" not in done.stderr


# signals


@pytest.mark.slow
@pytest.mark.rule("HD-14")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_long_statement(history: History, number: int, code: int) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    process = subprocess.Popen(
        [*DSH, "sql", endless],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(1.0)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert out == b""
    assert b"Traceback" not in err
