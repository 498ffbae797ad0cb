"""`dsh shell-init`: the key, in real shells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh.cli.shell_init import spelt
from dsh.core.errors import UsageError
from tests.history import History
from tests.shell.process import Dsh
from tests.terminal import SHELLS, Terminal, shell


def init(name: str, *options: str) -> str:
    words = " ".join(["dsh", "shell-init", name, *options])
    return f"{words} | source\n" if name == "fish" else f'eval "$({words})"\n'


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "dsh.db")
    made.say("s-tree", "grow a tree")
    made.say("s-pear", "peel the pear")
    yield made
    made.db.close()


def command_line(terminal: Terminal, expected: str) -> None:
    terminal.wait_for(lambda shown: any(line.rstrip() == f"$ {expected}".rstrip() for line in shown))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHELLS)
def test_the_key_opens_the_search(name: str, history: History, tmp_path: Path) -> None:
    with shell(name, tmp_path, init(name)) as terminal:
        terminal.type("pee")  # what stands there is the query
        terminal.keys("C-x", "C-r")
        shown = terminal.wait_for("1  everywhere")
        assert shown[0].startswith("> pee ")
        terminal.keys("Enter")
        command_line(terminal, 'dsh run -r s-pear ""')
        terminal.type("how, $USER?")  # between the quotes, and nothing was run
        command_line(terminal, 'dsh run -r s-pear "how, $USER?"')
        terminal.next_line()

        terminal.keys("C-x", "C-r")
        terminal.wait_for("2  everywhere")
        terminal.keys("Down", "C-o")
        command_line(terminal, "dsh show s-tree")
        terminal.next_line()

        terminal.type("dsh fork  --as new")  # into a command of dsh comes the id
        terminal.keys(*["Left"] * 9, "C-x", "C-r")
        terminal.wait_for("2  everywhere")
        terminal.keys("Enter")
        command_line(terminal, "dsh fork s-pear --as new")
        terminal.next_line()

        terminal.type("tree")  # leaving changes nothing
        terminal.keys("C-x", "C-r")
        terminal.wait_for("1  everywhere")
        terminal.keys("C-c")
        command_line(terminal, "tree")
        terminal.next_line()
        terminal.run("echo still $((40+2))" if name != "fish" else "echo still (math 40 + 2)")
        terminal.wait_for("still 42")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHELLS)
def test_the_shells_own_search_is_taken_only_when_asked(name: str, history: History, tmp_path: Path) -> None:
    with shell(name, tmp_path, init(name, "--bind", "ctrl-r")) as terminal:
        terminal.keys("C-r")
        terminal.wait_for("2  everywhere")
        terminal.keys("Escape")
        command_line(terminal, "")
    if name != "fish":
        (tmp_path / "other").mkdir()
        with shell(name, tmp_path / "other", init(name)) as terminal:
            terminal.keys("C-r")
            terminal.wait_for("reverse-i-search" if name == "bash" else "bck-i-search")


def test_keys_as_shells_write_them() -> None:
    assert [spelt("ctrl-x ctrl-r", name) for name in SHELLS] == ["\\C-x\\C-r", "^x^r", "\\cx\\cr"]
    assert [spelt("Ctrl-R", name) for name in SHELLS] == ["\\C-r", "^r", "\\cr"]
    assert [spelt("alt-s", name) for name in SHELLS] == ["\\es", "^[s", "\\es"]
    for wrong in ("", "r", "ctrl", "ctrl-", "ctrl-1", "f1", "ctrl-a ctrl-b ctrl-c", "ctrl-a; rm", "alt-'", "ctrl-é"):
        with pytest.raises(UsageError):
            spelt(wrong, "bash")


def test_a_key_that_is_none(tmp_path: Path) -> None:
    done = Dsh(tmp_path)("shell-init", "zsh", "--bind", "'; touch x'")
    assert (done.code, done.out) == (2, b"")
    assert len(done.errors.splitlines()) == 2
