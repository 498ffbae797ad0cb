"""`dsh search` as people and programs use it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import DSH, ROOT, Run
from tests.cli.test_main import through_bash
from tests.history import History

CHINESE = "修改youer服务端的计划"


@pytest.mark.parametrize("query", ["youer", "服务端", "服务", "端的计划", "youer 服务端 修改", "改"])
def test_chinese_text_is_found_by_any_part(dsh: Run, history: History, query: str) -> None:
    history.say("zh", CHINESE)
    done = dsh("search", query)
    assert done.returncode == 0
    assert done.stdout.startswith("zh:1\t")
    assert CHINESE in done.stdout


def test_a_line_in_a_pipe(dsh: Run, history: History) -> None:
    history.say("s1", "where is the needle?\nhere", cwd="/a", time=1_760_000_000_000)
    done = dsh("search", "needle")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "s1:1\t2025-10-09T08:53:22Z\tuser/message\twhere is the needle? here\t/a\twhere is the needle? here\n"
    )


def test_json_lines(dsh: Run, history: History) -> None:
    history.say("s1", "one needle, two needles, one needle\n", cwd="/a", time=1_760_000_000_000)
    history.say("s2", 'a "needle" in quotes\x1b[31m')
    done = dsh("search", "needle", "--json", "--since", "2025-01-01")
    hits = {hit["sessionId"]: hit for hit in map(json.loads, done.stdout.splitlines())}
    assert hits["s1"] == {
        "sessionId": "s1",
        "seq": 1,
        "type": "user/message",
        "time": 1_760_000_002_000,
        "title": "one needle, two needles, one needle\n",
        "cwd": "/a",
        "snippet": "one needle, two needles, one needle",
        "matches": [[4, 10], [29, 35]],
        "more": 0,
    }
    assert hits["s2"]["snippet"] == 'a "needle" in quotes\x1b[31m'


@pytest.mark.rule("HD-14")
def test_nothing_found_is_exit_1_and_one_line(dsh: Run, history: History) -> None:
    history.say("s", "yes")
    done = dsh("search", "nosuchword")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "dsh: nothing found\n")
    done = dsh("search", "***")
    assert done.returncode == 1
    assert done.stderr.startswith("dsh: nothing found; *** has no letter or digit")
    assert done.stderr.count("\n") == 1


def test_no_history_yet(dsh: Run, tmp_path: Path) -> None:
    done = dsh("search", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dsh: no history yet: ")
    assert not (tmp_path / "dsh.db").exists()


def test_words_that_look_like_options(dsh: Run, history: History) -> None:
    history.say("a", "apple pear")
    history.say("b", "apple plum")
    for arguments in (["apple", "-pear"], ["-pear", "apple"], ["apple -pear"], ["--", "apple", "-pear"]):
        done = dsh("search", *arguments)
        assert [line[0] for line in done.stdout.splitlines()] == ["b"], arguments
    assert dsh("search", "apple", '-"pear"').stdout.startswith("b:")
    assert len(dsh("search", "apple", "-n1").stdout.splitlines()) == 1
    assert len(dsh("search", "apple", "-n", "1", "-nothing").stdout.splitlines()) == 1


@pytest.mark.slow
def test_filters(dsh: Run, history: History, tmp_path: Path) -> None:
    here = tmp_path / "work"
    here.mkdir()
    now = int(time.time() * 1000)
    history.say("old", "apple", cwd="/a", time=now - 10 * 86_400_000)
    history.say("new", "apple", cwd=str(here), time=now - 60_000)

    def found(*arguments: str) -> list[str]:
        done = dsh("search", "apple", *arguments, cwd=here)
        return sorted(line.partition(":")[0] for line in done.stdout.splitlines())

    assert found() == ["new", "old"]
    assert found("--here") == ["new"]
    assert found("--cwd", "/a") == ["old"]
    assert found("--cwd", ".") == ["new"]
    assert found("--session", "ol") == ["old"]
    assert found("--since", "2d") == ["new"]
    assert found("--since", "2 days ago") == ["new"]
    assert found("--until", "2d") == ["old"]
    assert found("--since", "3w", "--until", "1 week ago") == ["old"]
    assert found("--type", "user") == ["new", "old"]
    assert found("--type", "assistant", "--type", "tool") == []
    assert found("--until", "1999-12-31") == []
    assert found("--since", "9" * 30 + "d") == ["new", "old"]
    here.rmdir()
    done = through_bash(f"mkdir {here}; cd {here} && rmdir {here} && dsh search apple --here")
    assert (done.returncode, done.stderr.splitlines()[-2:]) == (
        2, ["dsh: the current folder does not exist any more", "dsh: name another with --cwd DIR"],
    )  # fmt: skip


def test_the_setting_limits(dsh: Run, history: History) -> None:
    for number in range(4):
        history.say(f"s{number}", "apple")
    assert dsh("config", "set", "search.limit", "3").returncode == 0
    assert len(dsh("search", "apple").stdout.splitlines()) == 3
    assert len(dsh("search", "apple", env={"DSH_SEARCH_LIMIT": "2"}).stdout.splitlines()) == 2
    done = dsh("search", "apple", env={"DSH_SEARCH_SNIPPET_CHARS": "4"})
    assert done.stdout.splitlines()[0].endswith("\tapp…")


def test_a_terminal_gets_colours_and_no_foreign_escapes(
    history: History, terminal: Callable[..., tuple[int, str]]
) -> None:
    history.say("s", "a needle \x1b]0;owned\x07 and \x1b[31mred \u202eevil")
    code, shown = terminal("search", "needle")
    assert code == 0
    assert "\x1b[1;31mneedle\x1b[0m" in shown
    assert "\x1b]0" not in shown
    assert "\x1b[31m" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert "␛]0;owned␇" in shown
    code, plain = terminal("search", "needle", NO_COLOR="1")
    assert code == 0
    assert "\x1b" not in plain
    assert "needle" in plain


def test_a_pipe_gets_no_colours(dsh: Run, history: History) -> None:
    history.say("s", "a needle")
    assert "\x1b" not in dsh("search", "needle", env={"TERM": "xterm", "FORCE_COLOR": "1"}).stdout


@pytest.mark.slow
def test_eight_at_once_on_a_history_not_indexed_yet(history: History) -> None:
    with history.db.transaction():
        for number in range(200):
            history.say(f"s{number}", f"needle {number} " + "hay " * 200)
    processes = [
        subprocess.Popen(
            [*DSH, "search", "needle", "-n", "200"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(8)
    ]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert {err for _, err in answers} == {b""}
    assert {out.count(b"\n") for out, _ in answers} == {200}
