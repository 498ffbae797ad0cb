"""`dsh query`: shipped reports and saved statements."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsh.cli.main import main
from dsh.query import shelf
from dsh.store import writes
from tests.history import History, call, text

NOW = int(time.time() * 1000)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert (code, err) == (0, ""), err
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """One line, or two with a hint."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines: list[str] = err.splitlines()
    assert 1 <= len(lines) <= 2
    return [line.removeprefix("dsh: ") for line in lines]


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(printed(capsys, "query", *arguments, "--json"))
    return found


@pytest.fixture
def worked(history: History) -> History:
    """Sessions of the last hour, one of long ago, and a fork that shares what its parent did."""
    history.session("old", cwd="/w")
    history.turn("old", 1, "long ago", text("ok"), call("c", "edit", '{"file_path":"/w/old.py"}'), results={"c": "x"})
    history.clock = NOW - 3_600_000
    history.session("new", cwd="/w")
    edit = [call("c1", "edit", '{"file_path":"a.py"}'), call("c2", "bash", "{torn"), call("c3", "write", "[]")]
    history.turn("new", 1, "first", text("ok"), *edit, results={"c1": "x", "c2": "y", "c3": "z"})
    history.turn("new", 2, "second", text("no"), end={"kind": "error", "message": "m", "code": "SERVER"})
    history.fork("child", "new")
    at = {"turn": 3, "step": 1}
    history.event("child", "turn/start", {"turn": 3, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    history.event("child", "user/message", {"content": [text("third")], "source": {"kind": "user"}}, "append")
    history.event("child", "step/start", at)
    history.event("child", "request/header", {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "r"})
    usage = {"type": "usage", "usage": {"inputTokens": 5, "outputTokens": 7, "cacheReadTokens": 11}}
    history.event("child", "assistant/chunk", {**at, "chunk": usage})
    for name in ("k1", "k2"):
        history.event("child", "tool/call", {**at, "callId": name, "name": "bash", "arguments": "{}"})
        error = {"name": "E", "code": "TIMEOUT"}
        failed = {"callId": name, "content": [text("late")], "isError": name == "k2"}
        history.event("child", "tool/result", {**at, **failed, **({"error": error} if name == "k2" else {})}, "append")
    history.event("child", "step/end", at)
    history.event("child", "turn/end", {"turn": 3, "reason": {"kind": "completed"}})
    return history


# ------------------------------------------------------------------------------------------------------------ shipped


def test_every_shipped_query_says_what_it_is(worked: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(shelf.shipped()) >= 8
    for name, saved in shelf.shipped().items():
        assert re.fullmatch(r"[a-z-]+", name)
        assert saved.about.endswith(".")
        assert saved.parameters, name
        assert all(p.default is not None and p.about for p in saved.parameters), name
        assert rows(capsys, name), name
    listed = [line.split("\t") for line in printed(capsys, "query").splitlines()]
    assert [line[0] for line in listed] == list(shelf.shipped())
    assert ["longest-turns", "--since=30d --limit=20", "The turns that took longest.", "dsh"] in listed


def test_biggest(worked: History, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "biggest")
    assert {str(row["session"]): row["events"] for row in found} == {"new": 22, "old": 10, "child": 11}
    assert found[0]["session"] == "new"
    assert [row["session"] for row in rows(capsys, "biggest", "--limit", "1")] == ["new"]


def test_usage(worked: History, capsys: pytest.CaptureFixture[str]) -> None:
    [row] = rows(capsys, "usage")
    assert {k: v for k, v in row.items() if k != "day"} == {
        "provider": "p", "model": "m", "requests": 1, "input": 5, "cache_read": 11, "cache_write": 0, "output": 7,
    }  # fmt: skip
    assert rows(capsys, "usage", "--until", "2h") == []


def test_failing_tools_and_errors(worked: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(capsys, "failing-tools") == [
        {"tool": "bash", "calls": 3, "failed": 1, "percent": 33.3, "mostly": "TIMEOUT"}
    ]
    found = [(row["of"], row["code"], row["times"], row["place"]) for row in rows(capsys, "errors")]
    assert found == [("bash", "TIMEOUT", 1, "child:30"), ("turn", "SERVER", 1, "new:21")]


def test_longest_turns_and_asked(worked: History, capsys: pytest.CaptureFixture[str]) -> None:
    found = [(row["session"], row["turn"], row["seconds"]) for row in rows(capsys, "longest-turns")]
    assert found == [("new", 1, 13.0), ("child", 3, 10.0), ("new", 2, 7.0)]
    asked = [(row["place"], row["prompt"]) for row in rows(capsys, "asked", "--since", "2h")]
    assert asked == [("child:23", "third"), ("new:15", "second"), ("new:1", "first")]
    assert [row["prompt"] for row in rows(capsys, "asked", "--since=2h", "--until", "2h")] == []
    assert len(rows(capsys, "asked", "--since", "0")) == 4


def test_edited_files_and_folders(worked: History, capsys: pytest.CaptureFixture[str]) -> None:
    found = [(row["file"], row["changes"], row["place"]) for row in rows(capsys, "edited-files", "--since", "0")]
    assert found == [("/w/a.py", 1, "new:6"), ("/w/old.py", 1, "old:6")]
    worked.say("s", "hi")
    found = [(row["folder"], row["sessions"], row["turns"]) for row in rows(capsys, "folders")]
    assert sorted(found, key=str) == [("/w", 3, 6), (None, 1, 1)]


# --------------------------------------------------------------------------------------------------------------- own


def test_save_run_show_delete(history: History, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sql = "select :who_is as who, :n + 1 as n"
    assert printed(capsys, "query", "--save", "mine", sql, "--about", "Who it is.") == ""
    assert printed(capsys, "query", "mine", "--who-is", "me", "--n=4") == "me\t5\n"
    assert printed(capsys, "query", "mine", "--who_is", "-x", "-p", "n=4", "--csv") == "who,n\r\n-x,5\r\n"
    assert printed(capsys, "query", "--show", "mine") == f"{sql}\n"
    assert "mine\t--who-is --n\tWho it is.\tyours\n" in printed(capsys, "query")
    assert refused(capsys, "query", "--save", "mine", "select 1")[0] == "there is a query mine already"
    file = tmp_path / "q.sql"
    file.write_text("-- The newer one,\n-- in two lines.\n-- :who = 'no 1' who\n-- :n = 7\nselect :who, :n;\n")
    assert printed(capsys, "query", "--force", "--save", "mine", f"@{file}") == ""
    assert printed(capsys, "query", "mine") == "no 1\t7\n"
    assert "mine\t--who='no 1' --n=7\tThe newer one, in two lines.\tyours\n" in printed(capsys, "query")
    assert printed(capsys, "query", "--delete", "mine") == ""
    assert refused(capsys, "query", "mine") == ["there is no query 'mine'", "dsh query lists them"]


@pytest.mark.rule("HD-14")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nosuch"], "there is no query 'nosuch'"),
        (["foldres"], "there is no query 'foldres'"),
        (["folders", "--since", "2d"], "folders takes no option '--since'"),
        (["folders", "more"], "folders takes no 'more'"),
        (["folders", "--limit"], "--limit needs a value"),
        (["folders", "--limit", "1", "--limit", "2"], "--limit is given twice"),
        (["folders", "--limit", "1", "-p", "limit=2"], "the parameter limit is given twice"),
        (["folders", "-p", "nosuch=2"], "the query has no parameter 'nosuch'"),
        (["asked", "--since", "someday"], "'someday' is not a point in time"),
        (["--nosuch", "folders"], "there is no option '--nosuch'"),
        (["--save", "x"], "--save NAME takes one statement"),
        (["--save", "x", "select 1", "more"], "--save NAME takes one statement"),
        (["--save", "X y", "select 1"], "'X y' cannot be the name of a query"),
        (["--save", "folders", "select 1"], "folders is a query that comes with dsh"),
        (["--save", "folders", "select 1", "--force"], "folders is a query that comes with dsh"),
        (["--save", "x", "select 1; select 2"], "more than one statement; dsh runs one at a time"),
        (["--save", "x", ""], "the query is empty"),
        (["--save", "x", "selec 1"], 'near "selec": syntax error'),
        (["--save", "x", "select * from nosuch"], "no such table: nosuch"),
        (["--save", "x", "delete from session"], "a saved query only reads"),
        (["--save", "x", "with a as (select 1) insert into setting values ('a', '1')"], "a saved query only reads"),
        (
            ["--save", "x", "select * from _event"],
            "only the views can be queried: a statement names a private table; read the views instead",
        ),
        (["--save", "x", "--show", "y"], "--save, --show and --delete exclude each other"),
        (["--about", "x"], "--about and --force go with --save"),
        (["--show", "nosuch"], "there is no query 'nosuch'"),
        (["--show", "folders", "more"], "unexpected 'more'"),
        (["--delete", "folders"], "folders comes with dsh and stays"),
        (["--delete", "nosuch"], "there is no query 'nosuch'"),
    ],
)
def test_refusals(history: History, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert refused(capsys, "query", *arguments)[0] == says
    assert history.db.rows("SELECT * FROM saved_query") == []


def test_a_missing_parameter_is_named(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "query", "--save", "mine", "-- :c = 1\nselect :a, :b_b, :c")
    said = refused(capsys, "query", "mine", "--a", "1")
    assert said == ["mine needs --b-b", "dsh query mine --a VALUE --b-b VALUE [--c=1]"]


def test_a_query_of_ours_is_run_before_a_shipped_one_and_says_so(
    history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later version may ship a query whose name is taken."""
    writes.save_query(history.db, "folders", "select 'mine'", None)
    assert main(["query", "folders"]) == 0
    out, err = capsys.readouterr()
    assert out == "mine\n"
    assert err == "dsh: folders is your own; the query of that name that comes with dsh is not run\n"
    printed(capsys, "query", "--delete", "folders")
    assert printed(capsys, "query", "folders") == ""


def test_a_parameter_named_like_an_option(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "--save", "mine", "select :json"]) == 0
    assert capsys.readouterr().err == "dsh: --json is an option of dsh query: give it with -p json=VALUE\n"
    assert printed(capsys, "query", "mine", "-p", "json=1") == "1\n"


def test_without_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "query").startswith("asked\t")
    assert printed(capsys, "query", "--show", "folders").startswith("-- Sessions and turns by folder.\n")
    assert main(["query", "folders"]) == 1
    assert "no history yet" in capsys.readouterr().err
    assert list(tmp_path.glob("*.db")) == []


def test_the_list_on_a_terminal(history: History, terminal: Callable[..., tuple[int, str]]) -> None:
    writes.save_query(history.db, "evil", "select 1", "see \x1b[2J \x07 this " + "long " * 40)
    code, shown = terminal("query")
    assert code == 0
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert not {"\x1b", "\x07"} & set("".join(lines))
    assert shown.count("long") == 40 + 2  # and longest-turns with its words
