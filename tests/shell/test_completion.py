"""What `dsh completion` answers, and that bash, zsh and fish make of it what they should."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsh.cli.completion import FILES, FOLDERS, offers, split
from dsh.cli.group import COMMANDS
from tests.history import History
from tests.shell.process import Dsh
from tests.terminal import ROOT, SHELLS, Terminal, shell


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "dsh.db")
    yield made
    made.db.close()


def values(*words: str) -> list[str]:
    return [offer.value for offer in offers(words)]


# ---------------------------------------------------------------------------------------------------------- answers


def test_commands_and_options() -> None:
    assert values("sess") == ["sessions", "session"]
    assert values("") == list(COMMANDS)
    assert {"rename", "pin", "delete"} <= set(values("session", ""))
    assert values("--d") == ["--db"]
    assert values("session", "pin", "--") == ["--db", "--help"]
    assert "--type" in values("search", "--ty")
    assert {"-n", "--limit"} <= set(values("search", "-"))
    assert values("search", "--", "-") == []  # a word of the query now
    assert values("nosuch", "x") == []
    assert values("db", "nosuch", "") == []


def test_options_tell_what_they_do() -> None:
    (offer,) = offers(["session", "rename", "--db"])
    assert offer.about == "Use this database instead of $DSH_DB"
    assert offers(["sessio"])[0].about == COMMANDS["sessions"][1].removesuffix(".")


def test_values_that_are_known() -> None:
    assert values("config", "get", "search.") == ["search.limit", "search.snippet_chars"]
    assert values("config", "set", "llm.discover", "") == ["true", "false"]
    assert values("config", "set", "bash.timeout_ms", "") == []
    assert "user" in values("search", "x", "--type", "u")
    assert values("run", "--provider", "open") == ["openai", "openrouter"]
    assert values("run", "--provider=open") == ["--provider=openai", "--provider=openrouter"]
    assert "deepseek-chat" in values("run", "-m", "deep")
    assert "deepseek-chat" in values("run", "-qm", "deep")  # the value of the last of short ones
    assert values("usage", "--by", "") == ["day", "model", "session", "cwd"]
    assert values("completion", "") == list(SHELLS)
    assert values("query", "us") == ["usage"]
    assert "--since" in values("query", "asked", "--")
    assert "--since" not in values("query", "--")
    assert values("import", "cl") == ["claude"]
    assert offers(["import", "claude", ""]) == offers(["import", "x."]) == [FILES]
    assert values("search", "--source", "c") == ["claude", "codex", "crush"]
    assert values("sync", "pu") == ["push", "pull"]
    assert offers(["sync", "push", ""]) == [FOLDERS]
    assert offers(["run", "--cwd", "x"]) == [FOLDERS]
    assert offers(["--db", ""]) == [FILES]
    assert offers(["run", "--db=/tm"]) == [FILES]


def test_sessions_newest_first_with_their_titles(history: History) -> None:
    for number, title in enumerate(["first", "second\tone\n", "third"]):
        history.say(f"s{number}", title, time=1_760_000_000_000 + number)
    history.say("other", "x")
    history.db.rows("UPDATE session SET hidden = 1 WHERE id = 's0'")
    found = offers(["show", "s"])
    assert [offer.value for offer in found] == ["s2", "s1"]
    assert [offer.about.rpartition(",")[0] for offer in found] == ["third", "second one"]
    assert values("session", "pin", "other", "s") == ["s2", "s1"]  # any number of them
    assert values("run", "--fork", "o") == ["other"]
    assert values("attach", "other", "") == []  # one only
    assert "deepseek-chat" in values("run", "--model", "")


def test_the_database_that_the_line_names(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.say("mine", "x")
    monkeypatch.setenv("DSH_DB", str(tmp_path / "none.db"))
    assert values("show", "") == []
    assert values("--db", str(history.path), "show", "") == ["mine"]
    assert values("show", "--db", str(history.path), "") == ["mine"]
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dsh", [""]), ("dsh ", [""]), ("dsh se", ["se"]), ("dsh show ", ["show", ""]),
        ('dsh show "a b', ["show", "a b"]), ("dsh show 'a' \"\"", ["show", "a", ""]),
        ("dsh a\\ b", ["a b"]), ("dsh -- #x", ["--", "#x"]),
    ],
)  # fmt: skip
def test_words_of_a_line(line: str, words: list[str]) -> None:
    assert split(line) == words


WORDS = st.lists(
    st.sampled_from(
        [*COMMANDS, "", "-", "--", "--db", "--db=x", "-n", "-nm", "show", "set", "get", "-x", "x y", "--limit"]
    )
    | st.text(max_size=3),
    min_size=1,
    max_size=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(words=WORDS)
def test_any_line_has_an_answer(history: History, words: list[str]) -> None:
    for offer in offers(words):
        assert offer in (FILES, FOLDERS) or offer.value.startswith(words[-1])
    split(" ".join(words))


def test_a_tab_imports_only_what_it_is_about(tmp_path: Path) -> None:
    for line, own in (("dsh se", set()), ("dsh run -", {"dsh.cli.run"}), ("dsh show x", {"dsh.cli.show"})):
        code = "import sys; from dsh.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
        done = subprocess.run(
            [sys.executable, "-c", code, "completion", "bash", "--", line],
            env=Dsh(tmp_path).env, capture_output=True, encoding="utf-8", check=True, cwd=ROOT,
        )  # fmt: skip
        loaded = set(done.stderr.split())
        assert not {"trio", "httpx", "dsh.session.session", "dsh.query.search"} & loaded
        assert {name for name in loaded if name.removeprefix("dsh.cli.") in COMMANDS} == own | {"dsh.cli.completion"}


# ------------------------------------------------------------------------------------------------------ real shells

_INIT = {
    "bash": 'eval "$(dsh completion bash)"\n',
    "zsh": 'eval "$(dsh completion zsh)"\n',
    "fish": "dsh completion fish | source\n",
}


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest, tmp_path: Path, history: History) -> Iterator[Terminal]:
    """Each shell, with a session to complete and files in its folder."""
    history.say("s-abc", "Where is it?")
    (tmp_path / "some file.db").touch()
    (tmp_path / "some folder").mkdir()
    with shell(request.param, tmp_path, _INIT[request.param]) as opened:
        yield opened


def completed(terminal: Terminal, typed: str, *expected: str) -> None:
    """What stands there after a TAB; the line is cleared again."""
    terminal.type(typed)
    terminal.wait_for(lambda shown: any(line.rstrip().endswith(typed.rstrip()) for line in shown))
    terminal.keys("Tab")
    terminal.wait_for(lambda shown: any(line.removeprefix("$ ").rstrip() in expected for line in shown))
    terminal.next_line()


@pytest.mark.slow
def test_shells_complete_names_values_and_files(terminal: Terminal) -> None:
    completed(terminal, "dsh doc", "dsh doctor")
    completed(terminal, "dsh config get search.l", "dsh config get search.limit")
    completed(terminal, "dsh session unp", "dsh session unpin")
    completed(terminal, "dsh run --max-steps 3 --provider=openr", "dsh run --max-steps 3 --provider=openrouter")
    completed(terminal, "dsh show s-", "dsh show s-abc")
    completed(terminal, 'dsh show "s-', 'dsh show "s-abc"')
    completed(terminal, "dsh search --cwd so", "dsh search --cwd some\\ folder/")
    completed(terminal, "dsh --db some\\ fi", "dsh --db some\\ file.db")
    completed(terminal, "dsh --db=some\\ fi", "dsh --db=some\\ file.db")
    completed(terminal, "FOO=1 dsh --db 'some file.db' doct", "FOO=1 dsh --db 'some file.db' doctor")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_shells_that_can_show_what_words_mean(name: str, tmp_path: Path, history: History) -> None:
    history.say("s-abc", "Where is it?")
    history.say("s-abd", "It: is there")
    with shell(name, tmp_path, _INIT[name]) as terminal:
        terminal.type("dsh show s-ab")
        terminal.keys("Tab")
        shown = "\n".join(terminal.wait_for("It: is there"))
        assert "Where is it?" in shown
        assert shown.index("s-abd") < shown.index("s-abc", shown.index("s-abd"))


@pytest.mark.slow
def test_zsh_takes_it_as_a_file_of_fpath(tmp_path: Path, history: History) -> None:
    folder = tmp_path / "functions"
    folder.mkdir()
    script = subprocess.run(
        Dsh(tmp_path).command("completion", "zsh"), capture_output=True, check=True, cwd=ROOT
    ).stdout
    (folder / "_dsh").write_bytes(script)
    with shell("zsh", tmp_path, f"fpath=({folder} $fpath)\nautoload -Uz compinit && compinit -u\n") as terminal:
        completed(terminal, "dsh doc", "dsh doctor")


@pytest.mark.parametrize("name", SHELLS)
def test_scripts_are_what_their_shell_can_read(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    for command in ("completion", "shell-init"):
        done = Dsh(tmp_path)(command, name)
        assert done.code == 0
        subprocess.run([name, "-n"], input=done.out, check=True, timeout=20)
