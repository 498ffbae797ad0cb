"""`dsh session`, `dsh fork`, trees, hidden sessions, `dsh show --tail`."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from dsh import query
from dsh.core.lossless import dumps
from dsh.query import search
from dsh.query.family import trees
from dsh.store import writes
from tests.cli.conftest import DSH, ROOT, Run
from tests.history import History, text

pytestmark = pytest.mark.slow  # each test starts the program, some many times

Terminal = Callable[..., tuple[int, str]]


@pytest.fixture
def family(history: History) -> History:
    """root (2 turns) with the fork a, whose fork is b; a subagent's session of root; and one of nobody's."""
    history.session("root", cwd="/r")
    history.turn("root", 1, "about whales", text("they sing"))
    history.turn("root", 2, "about squid", text("they do not"))
    history.fork("a", "root")
    history.turn("a", 3, "about krill", text("small"))
    history.fork("b", "a")
    history.turn("b", 4, "about eels", text("long"))
    history.session("sub", depth=1, parent="root")
    history.turn("sub", 1, "count them", text("seven"))
    history.say("other", "about birds")
    writes.refresh_search(history.db)
    return history


def lines(dsh: Run, *arguments: str) -> list[list[str]]:
    done = dsh(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split("\t") for line in done.stdout.splitlines()]


def objects(dsh: Run, *arguments: str) -> dict[str, dict[str, Any]]:
    return {o["id"]: o for o in map(json.loads, dsh(*arguments, "--json").stdout.splitlines())}


def refusal(dsh: Run, *arguments: str, code: int = 2) -> list[str]:
    done = dsh(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done
    return [line.removeprefix("dsh: ") for line in done.stderr.splitlines()]


# fork


@pytest.mark.rule("SE-55")
def test_a_fork_is_named_and_nothing_else(dsh: Run, family: History) -> None:
    done = dsh("fork", "root")
    assert (done.returncode, done.stderr) == (0, "")
    name = done.stdout.strip()
    assert re.fullmatch("[0-9a-z]{18}", name)
    assert dsh("show", name, "--messages").stdout == dsh("show", "root", "--messages").stdout
    assert dsh("fork", "roo", "--at", "7", "--as", "early").stdout == "early\n"
    assert dsh("fork", "root:7").returncode == 0
    assert objects(dsh, "sessions")["early"]["seedLength"] == 8
    # of a session that a process drives and whose turn is open: up to its last whole turn
    family.turn("root", 3, "still at it", text("x"), end={})
    writes.claim_lease(family.db, "root", "them")
    again = dsh("fork", "root").stdout.strip()
    assert objects(dsh, "sessions")[again]["events"] == 16


@pytest.mark.rule("SE-55", "SE-56", "HD-14")
def test_a_refused_fork_says_where_there_could_be_one(dsh: Run, family: History) -> None:
    assert refusal(dsh, "fork", "root", "--at", "9") == [
        "event 9 of session root is not the end of a turn",
        "the nearest ends of turns are 7 and 15",
    ]
    assert refusal(dsh, "fork", "root:3")[1] == "the first end of a turn is 7"
    assert refusal(dsh, "fork", "root:99") == [
        "session root has no event 99",
        "the last end of a turn before it is 15",
    ]
    assert refusal(dsh, "fork", "root:" + "9" * 5000)[1] == "the last end of a turn before it is 15"
    assert refusal(dsh, "fork", "root", "--as", "other") == ["session other exists already"]
    assert "cannot be the id" in refusal(dsh, "fork", "root", "--as", "a\tb")[0]
    assert "cannot be the id" in refusal(dsh, "fork", "root", "--as", "")[0]
    assert refusal(dsh, "fork", "root:7", "--at", "7") == ["--at does not go with ID:SEQ"]
    assert refusal(dsh, "fork", "nobody")[0] == "there is no session 'nobody'"
    family.session("open")
    family.turn("open", 1, "x", text("y"), end={})
    assert refusal(dsh, "fork", "open") == ["no turn of session open has ended yet"]
    assert refusal(dsh, "fork", "open:1")[1] == "no turn has ended yet"
    assert refusal(dsh, "fork", "root", "--db", "/nosuch.db")[0] == "no history yet: /nosuch.db does not exist"


# sessions


def test_a_tree_shows_where_sessions_came_from(dsh: Run, family: History) -> None:
    assert [line[:3] for line in lines(dsh, "sessions", "--tree")] == [
        ["0", "", "other"],
        ["0", "", "root"],
        ["1", "fork:15", "a"],
        ["2", "fork:23", "b"],
        ["1", "subagent:1", "sub"],
    ]
    found = objects(dsh, "sessions", "--tree")
    assert [found["b"][k] for k in ("parentSession", "seedLength", "delegationDepth", "level")] == ["a", 24, 0, 2]
    assert [found["sub"][k] for k in ("parentSession", "seedLength", "delegationDepth", "level")] == [
        "root",
        None,
        1,
        1,
    ]
    assert [line[2] for line in lines(dsh, "sessions", "--tree", "--cwd", "/r")] == ["root", "a", "b"]
    done = dsh("sessions", "--tree", "-n", "1")
    assert [line.split("\t")[2] for line in done.stdout.splitlines()] == ["other"]
    assert "there are more" in done.stderr


def test_a_tree_on_a_terminal(family: History, terminal: Terminal) -> None:
    writes.pin_session(family.db, "root", 1)
    code, shown = terminal("sessions", "--tree", NO_COLOR="1")
    rows = [line.split()[:3] for line in shown.splitlines()]
    assert code == 0
    assert rows[:5] == [
        ["ID", "FROM", "AGE"],
        ["root", *rows[1][1:]],
        ["├─", "a", "fork:15"],
        ["│", "└─", "b"],
        ["└─", "sub", "subagent:1"],
    ]
    assert "* about" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_trees_bridge_what_is_hidden_or_gone_and_end_in_circles(family: History) -> None:
    db = family.db
    writes.hide_session(db, "a", 1)
    found, more = trees(db, cwd=None, hidden=False, limit=20)
    assert [(m.id, m.level) for m in found] == [("other", 0), ("root", 0), ("b", 1), ("sub", 1)]
    assert not more
    assert [m.id for m in trees(db, cwd=None, hidden=True, limit=20)[0]] == ["other", "root", "a", "b", "sub"]
    for name, parent in (("x", "y"), ("y", "x"), ("self", "self"), ("orphan", "gone")):
        family.session(name, parent=parent)
        family.turn(name, 1, "hm", text("hm"))
    assert sorted((m.id, m.level) for m in trees(db, cwd=None, hidden=False, limit=20)[0])[-4:] == [
        ("self", 0),
        ("sub", 1),
        ("x", 0),
        ("y", 1),
    ]
    for number in range(30):
        family.fork(f"deep{number}", f"deep{number - 1}" if number else "other")
        family.turn(f"deep{number}", number + 2, "down", text("further"))
    deep = {m.id: m for m in trees(db, cwd=None, hidden=False, limit=20)[0]}
    assert (deep["deep29"].level, deep["deep29"].last, len(deep["deep7"].last)) == (30, (), 8)


def test_pins_come_first_and_hidden_ones_not_at_all(dsh: Run, family: History) -> None:
    assert [line[0] for line in lines(dsh, "sessions")] == ["other", "b", "a", "root"]
    assert lines(dsh, "session", "pin", "roo", "a") == []
    assert lines(dsh, "session", "hide", "b") == []
    assert [line[0] for line in lines(dsh, "sessions")] == ["a", "root", "other"]
    assert [line[0] for line in lines(dsh, "sessions", "--hidden")] == ["a", "root", "other", "b"]
    assert objects(dsh, "sessions", "--hidden")["b"]["hidden"] is True
    assert objects(dsh, "sessions")["a"]["pinned"] is True
    lines(dsh, "session", "unpin", "root", "a")
    lines(dsh, "session", "unhide", "b")
    assert [line[0] for line in lines(dsh, "sessions")] == ["other", "b", "a", "root"]
    lines(dsh, "session", "hide", "other")
    assert dsh("show", "last").stdout.startswith("about whales\nb ")
    assert dsh("show", "other").returncode == 0
    assert refusal(dsh, "session", "pin", "root", "nobody")[0] == "there is no session 'nobody'"
    assert objects(dsh, "sessions")["root"]["pinned"] is False  # all or nothing


def test_an_ambiguous_beginning_lists_titles(dsh: Run, history: History) -> None:
    for number in range(7):
        history.say(f"ab{number}", f"question\n{number} " + "x" * 100)
    for command in (
        ["show"],
        ["fork"],
        ["session", "pin"],
        ["session", "rename", "--"],
        ["session", "delete", "--yes"],
    ):
        said = refusal(dsh, *command, "ab", *(["t"] if "rename" in command else []))
        assert said[0] == "several sessions begin with 'ab'"
        assert said[1].startswith("they are ab0 (question 0 xxxx")
        assert said[1].endswith(", and more")
        assert "ab4" in said[1]
        assert "ab5" not in said[1]


# rename


@pytest.mark.rule("SE-57", "ST-50")
def test_a_session_gets_another_title(dsh: Run, family: History) -> None:
    family.turn("other", 2, "still", text("no"), end={"kind": "error", "message": "m"})
    before = objects(dsh, "sessions")["other"]
    assert lines(dsh, "session", "rename", "other", "Birds \x1b[31m& bees") == []
    after = objects(dsh, "sessions")["other"]
    assert (after["title"], after["turns"], after["status"]) == ("Birds & bees", before["turns"] + 1, "error")
    events = [json.loads(line) for line in dsh("show", "other", "--json").stdout.splitlines()][-3:]
    assert [e["type"] for e in events] == ["turn/start", "session/title", "turn/end"]
    assert events[1]["data"] == {"title": "Birds & bees", "messageSeqs": [], "source": {"kind": "user"}}
    assert family.db.rows("SELECT * FROM lease") == []
    assert refusal(dsh, "session", "rename", "other", " \u200b") == ["the title is empty"]
    assert refusal(dsh, "session", "rename", "nobody", "x")[0] == "there is no session 'nobody'"


@pytest.mark.rule("PE-72")
def test_a_driven_session_is_neither_renamed_nor_deleted(dsh: Run, family: History) -> None:
    writes.claim_lease(family.db, "other", "them")
    for command in (("rename", "other", "x"), ("delete", "other", "--yes"), ("delete", "root", "other", "--yes")):
        if command[1] == "root":
            command = (*command, "--with-forks")
        said = refusal(dsh, "session", *command, code=8)
        assert re.fullmatch(r"session other is driven by process \d+", said[0])
    assert len(objects(dsh, "sessions", "--all")) == 5
    lines(dsh, "session", "pin", "other")  # a mark is no event


# repair


@pytest.mark.rule("PE-30", "PE-34", "PE-37")
def test_a_turn_that_was_left_open_is_closed_once(dsh: Run, family: History) -> None:
    at = {"turn": 1, "step": 1}
    writes.insert_session(family.db, {"id": "torn", "version": 0, "createdAt": 7})
    for seq, (kind, data) in enumerate(
        (("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}}), ("step/start", at))
    ):
        writes.insert_event(family.db, "torn", seq, kind, 5, dumps(data), None, None)
    added = [json.loads(row) for row in dsh("session", "repair", "torn").stdout.splitlines()]
    assert [(e["seq"], e["type"], e["time"]) for e in added] == [(2, "step/end", 5), (3, "turn/end", 5)]
    assert added[1]["data"]["reason"] == {"kind": "interrupted"}
    assert lines(dsh, "session", "repair", "torn") == []
    assert lines(dsh, "session", "repair", "root") == []
    assert refusal(dsh, "session", "repair", "nobody")


# delete


@pytest.mark.rule("PE-50")
def test_what_is_deleted_is_gone(dsh: Run, family: History) -> None:
    assert dsh("search", "birds").returncode == 0
    assert refusal(dsh, "session", "delete", "other") == [
        "nobody can be asked whether to delete; --yes deletes without asking"
    ]
    done = dsh("session", "delete", "other", "sub", "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert dsh("search", "birds").returncode == 1
    assert dsh("search", "seven").returncode == 1
    assert set(objects(dsh, "sessions", "--all")) == {"root", "a", "b"}
    assert family.db.rows("SELECT count(*) FROM event WHERE session_id = 'other'") == [(0,)]
    family.say("other", "a new one")
    assert dsh("show", "other").stdout.startswith("a new one")


@pytest.mark.rule("PE-50")
def test_what_forks_show_does_not_vanish(dsh: Run, family: History) -> None:
    before = {name: dsh("show", name, "--json").stdout for name in "ab"}
    for name, forks in (("root", "a, b"), ("a", "b")):
        assert refusal(dsh, "session", "delete", name, "--yes") == [
            f"session {name} stays: its forks show its events: {forks}",
            "--with-forks deletes them all; --hide leaves it out of lists and searches instead",
        ]
    assert refusal(dsh, "session", "delete", "root", "a", "other", "--yes")[0].endswith("events: b")
    assert refusal(dsh, "session", "delete", "a", "--yes", "--hide", "--with-forks")[0].endswith("exclude each other")
    done = dsh("session", "delete", "root", "a", "other", "--yes", "--hide")
    assert (done.returncode, done.stdout) == (0, "")
    assert [line.split()[2] for line in done.stderr.splitlines()] == ["root", "a"]
    assert list(objects(dsh, "sessions")) == ["b"]
    assert {name: dsh("show", name, "--json").stdout for name in "ab"} == before
    done = dsh("session", "delete", "root", "--yes", "--with-forks")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "dsh: sessions that came from what was deleted stay: sub\n"
    assert set(objects(dsh, "sessions", "--all", "--hidden")) == {"sub"}
    assert family.db.rows("SELECT DISTINCT session_id FROM event") == [("sub",)]


def test_a_terminal_is_asked(family: History) -> None:
    for answer, left in ((b"n\n", 1), (b"\n", 1), (b"y\n", 0)):
        main, side = pty.openpty()
        process = subprocess.Popen(
            [*DSH, "session", "delete", "other"],
            stdin=side, stdout=side, stderr=side, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        os.close(side)
        os.write(main, answer)
        shown = b""
        try:
            while piece := os.read(main, 65536):
                shown += piece
        except OSError:
            pass
        os.close(main)
        assert process.wait(60) == left
        assert b"dsh: other about birds" in shown
        assert b"delete 1 session for good? [y/N]" in shown
        assert len(family.db.rows("SELECT id FROM session WHERE id = 'other'")) == left


# hidden sessions and search


def hits(dsh: Run, *arguments: str) -> list[str]:
    return [line.split("\t")[0] for line in dsh("search", *arguments).stdout.splitlines()]


def test_what_is_hidden_is_found_only_where_a_fork_shows_it(dsh: Run, family: History) -> None:
    assert hits(dsh, "whales") == ["root:1"]
    for hidden, whales, krill in ((["root"], ["a:1"], ["a:17"]), (["a"], ["b:1"], ["b:17"]), (["b"], [], [])):
        lines(dsh, "session", "hide", *hidden)
        assert hits(dsh, "whales") == whales
        assert hits(dsh, "krill") == krill
    assert hits(dsh, "birds") == ["other:1"]
    assert hits(dsh, "whales", "--session", "root") == ["root:1"]  # it was asked for
    assert hits(dsh, "whales", "--session", "b") == ["b:1"]
    lines(dsh, "session", "unhide", "b")
    assert hits(dsh, "whales") == ["b:1"]
    assert hits(dsh, "whales OR eels", "--all-hits")[:1] in (["b:1"], ["b:25"])
    assert len(hits(dsh, "whales OR eels", "--all-hits")) == 2
    found = json.loads(dsh("search", "whales", "--json").stdout)
    assert (found["sessionId"], found["cwd"], found["title"]) == ("b", "/r", "about whales")
    assert dsh("show", f"{found['sessionId']}:{found['seq']}").stdout == "[1] you\n    about whales\n\n"


def test_what_is_hidden_takes_no_place_among_the_newest(
    dsh: Run, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.say("old", "needle")
    history.session("noise")
    for turn in range(1, 15):
        history.turn("noise", turn, "needle", text("x"))
    writes.refresh_search(history.db)
    writes.hide_session(history.db, "noise", 1)
    monkeypatch.setattr(search, "NEWEST", 5)
    found = search.search(history.db, "needle", search.Filters(), limit=5, snippet_chars=80)
    assert [hit.session_id for hit in found.hits] == ["old"]


@pytest.mark.rule("SE-55")
def test_a_fork_is_searched_though_the_session_between_is_gone(dsh: Run, family: History) -> None:
    family.db.rows(
        "INSERT INTO fork(id, parent_session, boundary) VALUES ('low', 'b', 7)"
    )  # shares root's events alone
    assert dsh("session", "delete", "b", "--yes").returncode == 0
    assert hits(dsh, "whales", "--session", "low") == ["root:1"]


# show


@pytest.mark.rule("SE-57")
def test_the_last_turns(dsh: Run, family: History) -> None:
    lines(dsh, "session", "rename", "b", "Sea")
    assert "about eels" in dsh("show", "b", "--tail", "1").stdout  # a title is no turn of the conversation
    assert "about krill" not in dsh("show", "b", "--tail", "1").stdout
    seqs = [json.loads(line)["seq"] for line in dsh("show", "b", "--tail", "2", "--json").stdout.splitlines()]
    assert seqs == list(range(16, 35))
    assert json.loads(dsh("show", "b", "--tail", "99", "--json").stdout.splitlines()[0])["seq"] == 0
    assert dsh("show", "b", "--tail", "3", "--to", "11", "--json").stdout.count("\n") == 4
    assert refusal(dsh, "show", "b", "--tail", "1", "--from", "2") == ["--tail and --from exclude each other"]
    assert refusal(dsh, "show", "b:3", "--tail", "1") == ["--from, --to and --tail do not go with ID:SEQ"]


def test_session_show(dsh: Run, family: History) -> None:
    writes.claim_lease(family.db, "a", "them")
    facts = json.loads(dsh("session", "show", "a", "--json").stdout)
    assert facts["process"] is not None
    assert {
        k: facts[k] for k in ("id", "parentSession", "seedLength", "forks", "subagents", "replacements", "status")
    } == {
        "id": "a",
        "parentSession": "root",
        "seedLength": 16,
        "forks": ["b"],
        "subagents": [],
        "replacements": 0,
        "status": "open",
    }
    said = dict(lines(dsh, "session", "show", "root"))
    assert (said["forks"], said["subagents"], said["cwd"]) == ("a b", "sub", "/r")
    assert "parentSession" not in said


# costs


def programs(db: Any, name: str, **parameters: Any) -> list[str]:
    return [str(row[3]) for row in db.rows(f"EXPLAIN QUERY PLAN {query.sql(name)}", parameters)]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("session_list", {"cwd": None, "depth": 0, "hidden": 0, "ids": None, "limit": 20}),
        ("tail_start", {"session": "root", "turns": 3}),
        ("turn_ends_near", {"session": "root", "seq": 5}),
        ("header_in_force", {"session": "root"}),
        ("last_run_options", {"session": "root"}),
        ("session_title", {"session": "root"}),
        ("newest_title", {"session": "root"}),
        ("human_prompts", {"session": "root", "after": -1, "last": 9, "limit": 1}),
        ("events_between", {"session": "root", "low": 0, "high": 9}),
        ("transcript", {"session": "root", "low": 0, "high": 9}),
    ],
)
def test_a_log_is_not_read_for_it(family: History, name: str, parameters: dict[str, Any]) -> None:
    """Every visit to the events is a seek that knows the session and, but for a range, ends at the first row."""
    plan = programs(family.db, name, **parameters)
    events = [step for step in plan if re.search(r"_event_type|autoindex__event_1", step)]
    assert events
    assert all(step.startswith("SEARCH") and "session=?" in step for step in events)
    assert not any(re.search(r"SCAN (e|x|h|b)\b", step) for step in plan)
    sorts = [step for step in plan if "TEMP B-TREE" in step]
    assert len(sorts) <= (2 if name == "session_list" else 0)  # of sessions, never of events


@pytest.mark.parametrize(
    "command", [["sessions", "--tree"], ["fork", "root"], ["session", "show", "root"], ["session", "pin", "a"]]
)
def test_none_of_it_loads_the_loop(family: History, command: list[str]) -> None:
    program = (
        "import sys; from dsh.cli.group import invoke; invoke(sys.argv[1:]);"
        " sys.exit([m for m in ('trio', 'httpx') if m in sys.modules] or 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, *command], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
