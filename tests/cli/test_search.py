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
from tests.history import History, call, text

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


@pytest.mark.slow
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


@pytest.mark.slow
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


# ------------------------------------------------------------------------------------------------------------- forms


@pytest.fixture
def walruses(history: History) -> History:
    for number in range(5):
        answer = "walrus too" if number % 2 else "no"
        history.say(f"s{number}", "walrus", answer, time=1_750_000_000_000 + number * 10**6)
    return history


@pytest.mark.slow
def test_ids_sessions_and_counts(dsh: Run, walruses: History) -> None:
    assert sorted(dsh("search", "walrus", "-l").stdout.split("\n")) == ["", "s0", "s1", "s2", "s3", "s4"]
    places = dsh("search", "walrus", "--ids", "--all-hits").stdout.splitlines()
    assert sorted(places) == ["s0:1", "s1:1", "s1:5", "s2:1", "s3:1", "s3:5", "s4:1"]
    assert len(dsh("search", "walrus", "--ids").stdout.splitlines()) == 5
    assert len(dsh("search", "walrus", "-l", "-n2").stdout.splitlines()) == 2
    assert len(dsh("search", "walrus", "-l", env={"DSH_SEARCH_LIMIT": "1"}).stdout.splitlines()) == 5
    assert dsh("search", "walrus", "-c").stdout == "7\n"
    done = dsh("search", "nosuch", "-c")
    assert (done.returncode, done.stdout) == (1, "0\n")
    assert dsh("search", "--ids", "-0", "walrus", "--role", "assistant", "--sort", "time").stdout == "s3:5\0s1:5\0"
    assert dsh("search", "--regex", "w.lrus too", "-c").stdout == "2\n"
    assert dsh("search", "--phrase", "walrus too", "-c").stdout == "2\n"


@pytest.mark.slow
@pytest.mark.rule("HD-14")
def test_exit_codes_are_those_of_grep(dsh: Run, history: History, tmp_path: Path) -> None:
    history.say("s", "walrus")
    assert dsh("search", "walrus").returncode == 0
    assert dsh("search", "nosuch").returncode == 1
    assert dsh("search", "--regex", "(").returncode == 2
    assert dsh("search", "walrus", "--role", "chef").returncode == 2
    assert dsh("search", "walrus", "--session", "nosuch").returncode == 2
    assert dsh("search", "walrus", "--cursor", "nonsense").returncode == 2
    for options in (["--phrase", "--regex"], ["-0"], ["--exact-cwd"], ["--phrase", "--model", "m"], ["-c", "--open"]):
        assert dsh("search", "walrus", *options).returncode == 2, options
    foreign = tmp_path / "foreign.db"
    foreign.write_text("no database at all, but a text that is long enough to be taken for one " * 20)
    done = dsh("search", "walrus", env={"DSH_DB": str(foreign)})
    assert (done.returncode, done.stdout) == (8, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_context(dsh: Run, history: History) -> None:
    history.session("s")
    history.turn("s", 1, "first", text("before it"))
    history.turn("s", 2, "the walrus", call("c", "bash", '{"command":"ls"}'), results={"c": "after\nit"})
    lines = [line.split("\t") for line in dsh("search", "walrus", "-C", "1").stdout.splitlines()]
    assert [(line[0], line[5]) for line in lines] == [
        ("s-5", "before it"),
        ("s:9", "the walrus"),
        ("s-13", 'bash {"command":"ls"}'),
    ]
    hit = json.loads(dsh("search", "walrus", "-B", "2", "-A", "0", "--json").stdout)
    assert [(each["seq"], each["text"]) for each in hit["before"]] == [(1, "first"), (5, "before it")]
    assert hit["after"] == []
    after = dsh("search", "walrus", "-A2").stdout.splitlines()
    assert [line.split("\t")[0] for line in after] == ["s:9", "s-13", "s-15"]
    assert after[2].endswith("\tafter it")


@pytest.mark.slow
def test_pages(dsh: Run, walruses: History) -> None:
    whole = dsh("search", "walrus", "--json").stdout.splitlines()
    found: list[str] = []
    cursor = ""
    for _ in range(3):
        *page, last = dsh("search", "walrus", "--json", "-n2", "--cursor", cursor).stdout.splitlines()
        if "nextCursor" not in last:
            found += [*page, last]
            break
        found += page
        cursor = json.loads(last)["nextCursor"]
    assert found == whole
    lines = dsh("search", "walrus", "-n", "2", "--cursor", "").stdout.splitlines()
    assert len(lines) == 3
    assert dsh("search", "walrus", "-n", "2").stdout.splitlines() == lines[:2]
    more = dsh("search", "walrus", "-n", "2", "--cursor", lines[2]).stdout.splitlines()
    assert more[0] == dsh("search", "walrus").stdout.splitlines()[2]


def test_a_terminal_is_told_how_many_more_there_are(
    walruses: History, terminal: Callable[..., tuple[int, str]]
) -> None:
    code, shown = terminal("search", "walrus", "-n", "2", "--sort", "time", NO_COLOR="1")
    assert code == 0
    assert shown.count("+1 more") == 1
    assert "there is more: --cursor 2-" in shown


@pytest.mark.rule("SQ-51", "SQ-54", "SQ-57")
@pytest.mark.slow
def test_a_phrase_gives_what_programs_get(dsh: Run, history: History) -> None:
    history.say("often", "one OR two, one OR two")
    history.say("once", "a one OR two")
    history.say("apart", "one two OR")
    done = dsh("search", "--phrase", "one OR two")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["often:1", "once:1"]
    first, cursor = dsh("search", "--phrase", "one OR two", "-n1", "--json").stdout.splitlines()
    assert json.loads(first)["matches"] == [[0, 10], [12, 22]]
    after = dsh("search", "--phrase", "one OR two", "-n1", "--json", "--cursor", json.loads(cursor)["nextCursor"])
    assert [json.loads(line)["sessionId"] for line in after.stdout.splitlines()] == ["once"]
    assert dsh("search", "--phrase", "one two OR", "--session", "apart").stdout.startswith("apart:1\t")


@pytest.mark.slow
def test_literal_and_regular_expressions(dsh: Run, history: History) -> None:
    history.say("s", 'say -x OR "y z" now')
    history.say("t", "say x y z")
    assert dsh("search", "--literal", '-x "y').stdout.count("\n") == 2
    assert dsh("search", "--literal", "OR").stdout.startswith("s:1")
    assert dsh("search", "--regex", r"-x\s+OR").stdout.startswith("s:1")
    assert dsh("search", "--regex", "SAY").returncode == 1
    assert dsh("search", "--regex", "(?i)SAY", "-l").stdout.count("\n") == 2


@pytest.mark.slow
def test_filters_by_what_sessions_are(dsh: Run, history: History) -> None:
    history.say("ours", "walrus", cwd="/w/a")
    history.say("theirs", "walrus", cwd="/w/a/b", source="codex")

    def found(*arguments: str) -> list[str]:
        return sorted(dsh("search", "walrus", "-l", *arguments).stdout.split())

    assert found("--source", "codex") == found("source:codex") == ["theirs"]
    assert found("--source", "dsh") == found("--cwd", "/w/a", "--exact-cwd") == ["ours"]
    assert found("--source", "dsh", "--source", "codex") == found("--cwd", "/w") == ["ours", "theirs"]
    assert found("--model", "deepseek") == ["ours", "theirs"]
    assert found("--model", "gpt") == found("--tool", "bash") == found("--role", "tool") == []


@pytest.mark.slow
def test_a_reader_that_leaves_early(walruses: History) -> None:
    for number in range(600):
        walruses.say(f"more{number}", "walrus " * 30)
    done = through_bash("dsh search walrus -n 5000 | head -1; echo ${PIPESTATUS[0]}")
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] in ("0", "141")
