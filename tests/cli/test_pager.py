"""`dsh search --open`, and `dsh show ID:SEQ --context`."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.history import History, call, text

pytestmark = pytest.mark.slow  # each test starts programs, some many times

Shown = Callable[..., tuple[int, str]]


def long(history: History) -> None:
    history.session("long", cwd="/a")
    for number in range(1, 41):
        history.turn("long", number, f"question {number}", text("the needle\x1b[31m\n" * 2 if number == 30 else "hay"))


def pager(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_pipe_gets_the_text_from_the_place_on(dsh: Run, history: History) -> None:
    long(history)
    done = dsh("search", "--open", "needle", env={"PAGER": "false"})
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].endswith(" assistant")
    assert lines[1] == "    the needle\x1b[31m"  # verbatim, as dsh show
    assert "    question 40" in lines
    assert "question 29" not in done.stdout
    assert done.stderr == "dsh: from event 237 on; the whole session: dsh show long\n"
    assert dsh("search", "--open", "nosuchword").returncode == 1


def test_what_follows_is_what_show_prints(dsh: Run, history: History) -> None:
    long(history)
    opened, shown = dsh("search", "--open", "question 35").stdout, dsh("show", "long").stdout
    assert shown.endswith(opened)
    assert opened.splitlines()[1] == "    question 35"


def test_less_is_told_where_to_begin(terminal: Shown, history: History, tmp_path: Path) -> None:
    long(history)
    less = pager(tmp_path, "less", f'printf "%s\\n" "$@" >{tmp_path}/words; cat >{tmp_path}/text')
    code, _ = terminal("search", "--open", "needle", DSH_PAGER=f"{less} -S", PAGER="false")
    assert code == 0
    *words, place = (tmp_path / "words").read_text().splitlines()
    assert words == ["-S", "-R"]
    lines = (tmp_path / "text").read_text().splitlines()
    at = int(place.removeprefix("+"))
    (found,) = [number for number, line in enumerate(lines, 1) if "needle" in line and "\x1b[1;31mneedle" in line][:1]
    assert at == found - 3
    assert lines[found - 2].endswith("\x1b[1;31massistant\x1b[0m")
    assert "the \x1b[1;31mneedle\x1b[0m␛[31m" in lines[found - 1]  # ours drive the terminal, the text's do not
    assert lines[0].endswith("question 1\x1b[0m")
    assert any("question 40" in line for line in lines)


def test_another_pager_gets_the_text_from_the_place_on(terminal: Shown, history: History, tmp_path: Path) -> None:
    long(history)
    other = pager(tmp_path, "other", f'echo "$#" >{tmp_path}/words; cat >{tmp_path}/text')
    code, shown = terminal("search", "--open", "needle", PAGER=other, NO_COLOR="1")
    assert (code, (tmp_path / "words").read_text()) == (0, "0\n")
    lines = (tmp_path / "text").read_text().splitlines()
    assert lines[:2] == ["[237] assistant", "    the needle␛[31m"]
    assert "from event 237 on" in shown


@pytest.mark.parametrize("named", ["", "no-such-pager -x", '"'])
def test_without_a_pager_it_is_printed(terminal: Shown, history: History, named: str) -> None:
    long(history)
    code, shown = terminal("search", "--open", "needle", PAGER=named)
    assert code == 0
    assert "the \x1b[1;31mneedle\x1b[0m␛[31m" in shown
    assert "question 40" in shown


def test_a_pager_that_is_left_early_is_no_failure(terminal: Shown, history: History, tmp_path: Path) -> None:
    history.session("big")
    history.turn("big", 1, "the needle", text("x" * 300_000))
    code, shown = terminal("search", "--open", "needle", PAGER=pager(tmp_path, "less", "exec true"))
    assert (code, shown) == (0, "")


def test_a_call_is_opened_where_it_was_made(dsh: Run, history: History) -> None:
    history.session("s")
    blocks = [text("I look"), call("c1", "read", '{"path":"needle.py"}')]
    history.turn("s", 1, "look", *blocks, results={"c1": "found it"})
    done = dsh("search", "--open", "needle.py", "--type", "call")
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == [
        "[5] assistant", "[5] read", "[7] read result",
    ]  # fmt: skip


def test_show_with_context(dsh: Run, history: History) -> None:
    long(history)

    def shown(*arguments: str) -> list[str]:
        done = dsh("show", *arguments)
        assert done.returncode == 0
        return [line.strip() for line in done.stdout.splitlines() if line.startswith("    ")]

    assert shown("long:237", "-C", "1") == ["question 30", *["the needle\x1b[31m"] * 2, "question 31"]
    needle = ["the needle\x1b[31m"] * 2
    assert shown("long:237", "--context", "3") == [
        "question 29", "hay", "question 30", *needle, "question 31", "hay", "question 32",
    ]  # fmt: skip
    assert shown("long:1", "-C", "1") == ["question 1", "hay"]
    assert shown("long:237", "-C", "0") == shown("long:237")
    assert len(dsh("show", "long:237", "-C", "1", "--json").stdout.splitlines()) > 3
    done = dsh("show", "long", "-C", "1")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "dsh: --context goes with ID:SEQ")
