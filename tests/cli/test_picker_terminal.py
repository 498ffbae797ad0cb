"""The interactive search on a real terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.history import History, call, text
from tests.provider import FakeProvider
from tests.provider import text as answer
from tests.terminal import Terminal, with_dsh

Begin = Callable[..., Terminal]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """A shell in a terminal of some size, that has been told something."""
    opened: list[Terminal] = []
    program = with_dsh(tmp_path)

    def start(line: str, columns: int = 100, lines: int = 24, **env: str) -> Terminal:
        terminal = Terminal(
            ["bash", "--norc", "--noprofile"], {**program, **env}, tmp_path, columns=columns, lines=lines
        )
        opened.append(terminal)
        terminal.wait_for("$")
        terminal.run(line)
        return terminal

    yield start
    for terminal in opened:
        terminal.close()


def stocked(history: History) -> None:
    history.say("apple", "grow an apple tree", "water it", cwd="/usr")
    history.say("pear", "peel the pear", "with a knife", cwd="/tmp")
    history.say("plum", "plum jam with apple", "sugar", cwd="/tmp")


def listed(shown: list[str]) -> list[str]:
    """Titles in the list, the selected one with its marker."""
    return [line[:24].rstrip() for line in shown[1:-1] if line[:2] in ("> ", "  ") and line[2:3].strip()]


@pytest.mark.slow
def test_results_come_while_typing_and_the_id_alone_goes_to_stdout(begin: Begin, history: History) -> None:
    stocked(history)
    terminal = begin('ID=$(dsh search -i); echo "code $? <$ID>"', columns=60, lines=20)
    shown = terminal.wait_for("3  everywhere")
    assert listed(shown) == ["> plum jam with apple", "  peel the pear", "  grow an apple tree"]
    terminal.type("app")  # the beginning of a word is enough while it is typed
    shown = terminal.wait_for("2  everywhere")
    assert shown[0].startswith("> app ")
    assert "peel the pear" not in "\n".join(shown)
    assert terminal.cursor == (0, 5)
    terminal.keys("Down")
    chosen = terminal.wait_for(lambda s: not s[1].startswith(">") and any(line.startswith("> ") for line in s[2:]))
    expected = next(line for line in chosen[1:] if line.startswith("> "))
    terminal.keys("Enter")
    shown = terminal.wait_for("code 0 <")
    assert ("<plum>" if "plum" in expected else "<apple>") in "\n".join(shown)
    assert "everywhere" not in "\n".join(shown)  # the screen is as it was


@pytest.mark.slow
def test_leaving_prints_nothing_and_leaves_the_terminal_as_it_was(begin: Begin, history: History) -> None:
    stocked(history)
    terminal = begin("stty -a >before")
    for key, code in (("Escape", 1), ("C-g", 1), ("C-c", 130)):
        terminal.run(f"clear; dsh search -i >out; echo code $? by {key}; stty -a | diff - before && wc -c <out")
        terminal.wait_for("everywhere")
        terminal.keys(key)
        shown = terminal.wait_for(lambda s, key=key: f"by {key}" in "\n".join(s[:3]))  # type: ignore[misc]
        terminal.wait_for(lambda s: "0" in s)
        assert f"code {code} by {key}" in "\n".join(shown)


def child(terminal: Terminal) -> int:
    """The program that the shell runs."""
    shell = terminal.pid
    return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[-1])


@pytest.mark.slow
def test_signals_give_the_terminal_back(begin: Begin, history: History) -> None:
    stocked(history)
    terminal = begin("stty -a >before; dsh search -i")
    terminal.wait_for("everywhere")
    os.kill(child(terminal), signal.SIGTERM)
    terminal.wait_for("$")
    terminal.run("echo code $?; stty -a | diff - before && echo same")
    shown = terminal.wait_for(lambda s: "same" in s)
    assert "code 143" in shown
    terminal.run("clear; dsh search -i peel")
    terminal.wait_for("1  everywhere")
    for stop in ("key", "signal"):  # Ctrl-Z, and somebody else's kill -TSTP
        if stop == "key":
            terminal.keys("C-z")
        else:
            os.kill(child(terminal), signal.SIGTSTP)
        terminal.wait_for("Stopped")
        terminal.run("clear; stty -a | diff - before && echo same")
        terminal.wait_for(lambda s: "same" in s)
        terminal.run("clear; fg")
        shown = terminal.wait_for("1  everywhere")
        assert shown[0].startswith("> peel ")
    terminal.type(" kn")
    terminal.wait_for("> peel kn ")
    os.kill(child(terminal), signal.SIGINT)
    terminal.wait_for("$")
    terminal.run("echo code $?")
    terminal.wait_for("code 130")


@pytest.mark.slow
def test_ctrl_z_where_no_shell_could_take_over_is_nothing(begin: Begin, history: History) -> None:
    stocked(history)
    terminal = begin('ID=$(dsh search -i); echo "<$ID>"')
    terminal.wait_for("3  everywhere")
    terminal.keys("C-z", "Down", "Enter")
    terminal.wait_for("<pear>")


@pytest.mark.slow
def test_every_size_and_a_resize(begin: Begin, history: History) -> None:
    stocked(history)
    history.say("evil", "\x1b[31mred\x1b]0;title\x07 中文 🎉 \u202eapple", "x\x9b2Jy", cwd="/a\nb")
    terminal = begin("dsh search -i apple", columns=100, lines=30)
    shown = terminal.wait_for(lambda s: "3  everywhere" in s[0] and "│" in s[1] and "you" in "\n".join(s))
    assert "␛[31mred␛]0;title␇ 中文 🎉" in "\n".join(shown)
    terminal.resize(70, 30)
    shown = terminal.wait_for(lambda s: "─" * 70 in s and s[0].endswith("everywhere"))
    assert shown[-1].startswith("Enter resume")
    terminal.resize(40, 10)
    shown = terminal.wait_for(lambda s: len(s) == 10 and s[0].endswith("everywhere") and s[9].startswith("Enter"))
    assert "│" not in "\n".join(shown)
    terminal.resize(10, 2)
    terminal.wait_for(lambda s: s[0] == "> apple" and s[1].startswith("> "))
    terminal.resize(100, 24)
    terminal.wait_for(lambda s: s[0].endswith("everywhere") and "│" in s[1] and s[-1].startswith("Enter"))


@pytest.mark.slow
def test_a_slow_search_blocks_no_typing(begin: Begin, history: History) -> None:
    stocked(history)
    terminal = begin("dsh search -i", columns=60, lines=20)
    terminal.wait_for("3  everywhere")
    with history.db.transaction():  # the index cannot be brought up to date before this ends
        terminal.type("pear")
        shown = terminal.wait_for("> pear ")
        assert "…  everywhere" in shown[0]
        assert listed(shown) == ["> plum jam with apple", "  peel the pear", "  grow an apple tree"]
        terminal.keys("C-w")
        terminal.type("knife")
        terminal.wait_for("> knife ")
        terminal.keys("Down")
        terminal.wait_for(lambda s: listed(s)[1] == "> peel the pear")
    shown = terminal.wait_for("1  everywhere")
    assert "with a knife" in "\n".join(shown)


@pytest.mark.slow
def test_resuming_asks_for_a_prompt_and_runs_it(begin: Begin, history: History) -> None:
    stocked(history)
    with FakeProvider(answer("as jam")) as fake:
        terminal = begin("dsh search -i peel", DSH_BASE_URL=fake.base_url, DSH_MODEL="fake-model")
        terminal.wait_for("1  everywhere")
        terminal.keys("Enter")
        terminal.wait_for("resume: ")
        terminal.type("and --then?")
        terminal.keys("Enter")
        shown = terminal.wait_for("as jam")
        assert "everywhere" not in "\n".join(shown)
        terminal.run("dsh show pear")
        terminal.wait_for(lambda s: "turn 2" in "\n".join(s) and "and --then?" in "\n".join(s))


@pytest.mark.slow
def test_fork_leaves_the_session_as_it_is(begin: Begin, history: History, dsh: Run) -> None:
    stocked(history)
    with FakeProvider(answer("as jam")) as fake:
        terminal = begin("dsh search -i peel", DSH_BASE_URL=fake.base_url, DSH_MODEL="fake-model")
        terminal.wait_for("1  everywhere")
        terminal.keys("C-t")
        terminal.wait_for("fork: ")
        terminal.type("-x")
        terminal.keys("Enter")
        terminal.wait_for("as jam")
    rows = [line.split("\t") for line in dsh("sessions").stdout.splitlines()]
    assert {row[0]: row[3] for row in rows if row[0] == "pear"} == {"pear": "1"}
    assert any(row[0] not in ("apple", "pear", "plum") and row[3] == "2" for row in rows)


@pytest.mark.slow
def test_show_opens_the_pager_there_and_comes_back(begin: Begin, history: History) -> None:
    history.session("long")
    for number in range(1, 41):
        history.turn("long", number, f"question {number}", text("needle" if number == 30 else "hay"))
    terminal = begin('ID=$(dsh search -i needle); echo "<$ID>"', PAGER="less")
    terminal.wait_for("1  everywhere")
    terminal.keys("C-o")
    shown = terminal.wait_for(lambda s: s[-1].startswith(":"))  # less
    assert any("needle" in line for line in shown[:8])
    assert "question 28" not in "\n".join(shown)
    terminal.keys("q")
    terminal.wait_for("1  everywhere")
    terminal.keys("Enter")
    terminal.wait_for("<long>")


@pytest.mark.slow
def test_scopes_are_turned_with_tab(begin: Begin, history: History, tmp_path: Path) -> None:
    history.say("there", "needle one", "a needle", cwd="/elsewhere")
    history.say("here", "needle two", "no", cwd=str(tmp_path))
    terminal = begin("dsh search -i needle")
    terminal.wait_for("2  everywhere")
    terminal.keys("Tab")
    shown = terminal.wait_for("1  this folder")
    assert shown[1].startswith("> needle two")
    terminal.keys("BTab")
    terminal.wait_for("2  everywhere")
    terminal.keys("C-End")
    terminal.wait_for(lambda s: s[1].startswith("  needle"))
    terminal.keys("C-Home" if "needle one" in terminal.screen()[1] else "C-End", "BTab")
    shown = terminal.wait_for("2  this session")  # both of its events that match
    assert {line[2:].split("  ")[0] for line in shown[1:4:2]} == {"user/message 1", "assistant/message 5"}


@pytest.mark.slow
def test_options_hold_for_all_searches(begin: Begin, history: History) -> None:
    stocked(history)
    terminal = begin("dsh search -i --cwd /tmp")
    shown = terminal.wait_for("2  as narrowed")
    assert "grow an apple tree" not in "\n".join(shown)
    terminal.type("apple")
    terminal.wait_for("1  as narrowed")
    terminal.keys("Tab")
    terminal.wait_for("1  this session")
    terminal.keys("Tab")
    terminal.wait_for("1  as narrowed")
    terminal.keys("C-c")
    terminal.wait_for(lambda s: s[1].strip() == "$")
    terminal.next_line()
    terminal.run("dsh search -i --regex '^(pee|wat)'")
    terminal.wait_for("2  everywhere")
    terminal.keys("C-u")
    terminal.type("(")
    terminal.wait_for("!  everywhere")  # no regular expression yet


@pytest.mark.slow
def test_a_paste_is_no_key(begin: Begin, history: History) -> None:
    stocked(history)
    terminal = begin("dsh search -i")
    terminal.wait_for("3  everywhere")
    terminal.paste("peel\n\x1bpear")
    terminal.wait_for("> peel ␛pear ")


@pytest.mark.slow
def test_without_colours(begin: Begin, history: History) -> None:
    stocked(history)
    terminal = begin("dsh search -i apple", NO_COLOR="1")
    terminal.wait_for("2  everywhere")
    assert "\x1b[" not in "\n".join(terminal.screen(codes=True))


@pytest.mark.slow
def test_printing_the_command(begin: Begin, history: History) -> None:
    stocked(history)
    history.say("it's", "odd name")
    terminal = begin("dsh search -i --print odd")
    for key, line in (
        ("Enter", """dsh run -r 'it'"'"'s' \"\""""),
        ("C-t", """dsh run --fork 'it'"'"'s' \"\""""),
        ("C-o", """dsh show 'it'"'"'s:1'"""),
        ("C-y", "it's"),
    ):
        terminal.wait_for("1  everywhere")
        terminal.keys(key)
        terminal.wait_for(lambda s, line=line: line in s)  # type: ignore[misc]
        terminal.run("clear; dsh search -i --print odd")


@pytest.mark.slow
def test_the_named_database_is_named_again(begin: Begin, history: History, tmp_path: Path) -> None:
    stocked(history)
    history.db.backup(tmp_path / "other.db")
    terminal = begin("dsh --db other.db search -i --print peel", DSH_DB=str(tmp_path / "none.db"))
    terminal.wait_for("1  everywhere")
    terminal.keys("Enter")
    terminal.wait_for(lambda s: 'dsh --db other.db run -r pear ""' in s)


@pytest.mark.slow
def test_calls_are_shown_where_they_were_made(begin: Begin, history: History) -> None:
    history.session("s")
    history.turn("s", 1, "look", text("so"), call("c1", "read", '{"path":"needle.py"}'), results={"c1": "found"})
    terminal = begin("dsh search -i needle", columns=120)
    shown = terminal.wait_for(lambda s: "found" in "\n".join(s))
    assert any("needle.py" in line.partition("│")[2] for line in shown)


def test_no_terminal_is_told_in_one_line(dsh: Run, history: History) -> None:
    history.say("s", "x")
    for env, why in ({"TERM": "xterm"}, "there is no terminal"), ({"TERM": "dumb"}, "TERM is dumb"):
        done = dsh("search", "-i", env=env, start_new_session=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr.splitlines()[0]
        assert len(done.stderr.splitlines()) == 2


def test_options_that_do_not_go_together(dsh: Run, history: History) -> None:
    for options in (["-i", "--open"], ["-i", "--json"], ["--open", "--json"], ["--print"]):
        done = dsh("search", "x", *options)
        assert (done.returncode, done.stdout) == (2, "")
    assert dsh("search").returncode == 2
