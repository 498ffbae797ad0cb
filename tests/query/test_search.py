"""Searching real databases: what is found, what filters leave, how much is looked at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from dsh.core.errors import UsageError
from dsh.query import search as searching
from dsh.query import search_hits
from dsh.query.search import Filters, Result, event_types, refresh, search
from dsh.store.database import Database
from tests.history import History, call, text


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "search.db")
    yield made
    made.db.close()


def find(history: History, query: str, *, limit: int = 20, all_hits: bool = False, **filters: object) -> Result:
    refresh(history.db)
    return search(
        history.db,
        query,
        Filters(**filters),  # type: ignore[arg-type]
        limit=limit,
        snippet_chars=240,
        all_hits=all_hits,
    )


def sessions(result: Result) -> list[str]:
    return [hit.session_id for hit in result.hits]


CHINESE = "修改youer服务端的计划"


@pytest.mark.parametrize("query", ["youer", "服务端", "服务", "端的计划", "youer 服务端 修改", "改", "YOUER", "的*"])
def test_inside_chinese_text(history: History, query: str) -> None:
    history.say("zh", CHINESE)
    history.say("other", "nothing of that")
    result = find(history, query)
    assert sessions(result) == ["zh"]
    assert CHINESE in result.hits[0].snippet
    assert result.hits[0].matches


def test_japanese_and_korean_too(history: History) -> None:
    history.say("ja", "データベースを検索する")
    history.say("ko", "데이터베이스를 검색한다")
    assert sessions(find(history, "検索")) == ["ja"]
    assert sessions(find(history, "ベース")) == ["ja"]
    assert sessions(find(history, "검색")) == ["ko"]


def test_words_names_and_paths(history: History) -> None:
    history.say("code", "see src/dsh/loop.py: foo_bar calls camelCaseName, error E0425, option --no-cache")
    for query in (
        "foo_bar",
        "foo",
        "bar",
        "camelCaseName",
        "camel",
        "case",
        "loop.py",
        "src/dsh",
        "E0425",
        "--no-cache",
    ):
        assert sessions(find(history, query)) == ["code"], query
    assert sessions(find(history, '"bar foo"')) == []
    assert sessions(find(history, "loop -cache")) == []
    assert sessions(find(history, "nosuch OR e0425")) == ["code"]
    assert sessions(find(history, "came*")) == ["code"]


@pytest.mark.parametrize(
    "query", ['"', "a AND", "NEAR(", "text:yes", "yes*nope", "^yes", "yes)", "{a b} : c", "\\", "'", "a\0b"]
)
def test_nothing_typed_is_a_syntax_error(history: History, query: str) -> None:
    history.say("s", "yes and no")
    find(history, query)


def test_the_best_hit_of_each_session_or_every_hit(history: History) -> None:
    history.session("a")
    history.turn("a", 1, "about whales", text("whales whales whales"))
    history.say("b", "whales once in a rather long prompt about other things")
    result = find(history, "whales")
    assert sorted(sessions(result)) == ["a", "b"]
    assert len(find(history, "whales", all_hits=True).hits) == 3
    assert len(find(history, "whales", limit=1).hits) == 1
    assert len(find(history, "whales", limit=2, all_hits=True).hits) == 2


def test_a_session_full_of_hits_does_not_hide_the_others(history: History) -> None:
    history.say("quiet", "a word " + "and much else that makes this document long and its rank low " * 20)
    history.session("loud")
    for number in range(1, 451):
        history.turn("loud", number, "word", text("word"))
    result = find(history, "word")
    assert sessions(result) == ["loud", "quiet"]


def test_filters(history: History) -> None:
    history.session("one", cwd="/a")
    history.turn("one", 1, "alpha", text("beta"), call("c", "bash", '{"command":"gamma"}'), results={"c": "delta"})
    history.say("two", "alpha", "beta", cwd="/b")
    assert sorted(sessions(find(history, "alpha"))) == ["one", "two"]
    assert sessions(find(history, "alpha", cwd="/b")) == ["two"]
    assert sorted(sessions(find(history, "alpha", cwd="/"))) == ["one", "two"]
    assert sessions(find(history, "alpha", session="one")) == ["one"]
    assert sessions(find(history, "beta", types=event_types(["user"]))) == []
    assert sessions(find(history, "delta", types=event_types(["tool"]))) == ["one"]
    assert [h.type for h in find(history, "gamma", types=event_types(["call"])).hits] == ["tool/call"]
    assert len(event_types(["user", "tool/call", "user"])) == 2
    with pytest.raises(UsageError):
        event_types(["nope"])


def test_time_is_that_of_the_event(history: History) -> None:
    history.say("old", "comet", time=1_000_000_000_000)
    history.say("new", "comet", time=1_700_000_000_000)
    history.clock = 1_000_000_100_000
    history.session("long")
    history.turn("long", 1, "comet", text("x"), time=1_000_000_100_000)
    history.turn("long", 2, "other", text("y"), time=1_700_000_100_000)
    middle = 1_500_000_000_000
    assert sessions(find(history, "comet", since=middle)) == ["new"]
    assert sorted(sessions(find(history, "comet", until=middle))) == ["long", "old"]
    assert sessions(find(history, "comet", since=middle, until=middle + 1)) == []
    history.session("running")
    history.turn("running", 1, "nothing", text("comet"), end={}, time=1_400_000_000_000)
    history.event("running", "prompt/blocked", {"reason": "meteor"}, time=1_700_000_200_000)
    assert sessions(find(history, "meteor", since=middle)) == ["running"]
    hit = find(history, "comet", until=middle, session="old").hits[0]
    assert sessions(find(history, "comet", since=hit.time, until=hit.time)) == ["old"]


def test_a_fork_is_searched_with_what_it_inherited(history: History) -> None:
    history.session("parent")
    history.turn("parent", 1, "shared secret", text("x"))
    history.fork("child", "parent")
    history.turn("parent", 2, "later secret", text("x"))
    history.turn("child", 2, "own secret", text("x"))
    found = find(history, "secret", session="child", all_hits=True)
    assert sorted(hit.snippet for hit in found.hits) == ["own secret", "shared secret"]
    assert len(find(history, "secret", all_hits=True).hits) == 3


STOCK = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("INSERT INTO session(id) VALUES ('shell')")
db.execute("INSERT INTO event(session_id, type, data) VALUES ('shell', 'turn/start', '{\\"turn\\":1}')")
db.execute('''INSERT INTO event(session_id, type, data, surface_op) VALUES ('shell', 'user/message',
  '{"content":[{"type":"text","text":"needle \u91dd"}],"source":{"kind":"user"}}', '"append"')''')
db.commit()
"""


def test_everything_committed_before_is_found(history: History, tmp_path: Path) -> None:
    history.say("first", "needle")
    assert sessions(find(history, "needle")) == ["first"]
    # Another program, without our functions; in a process of its own, as SQLite's locks want it.
    subprocess.run([sys.executable, "-c", STOCK, str(tmp_path / "search.db")], check=True)
    assert sorted(sessions(find(history, "needle"))) == ["first", "shell"]
    assert sessions(find(history, "針")) == ["shell"]


def test_the_newest_hits_are_ranked(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "NEWEST", 3)
    for number in range(6):
        history.say(f"s{number}", "same words here")
    result = find(history, "words")
    assert sessions(result)[:3] == ["s5", "s4", "s3"]
    assert result.capped
    assert not find(history, "nothing").capped


def test_equal_ranks_put_the_newer_first(history: History) -> None:
    for number in range(4):
        history.say(f"s{number}", "same words here")
    assert sessions(find(history, "words")) == ["s3", "s2", "s1", "s0"]


def test_searching_while_another_process_writes(history: History, tmp_path: Path) -> None:
    history.say("s", "needle")
    refresh(history.db)
    history.say("t", "needle")
    writer = apsw.Connection(str(tmp_path / "search.db"))
    writer.execute("BEGIN IMMEDIATE")
    reader = Database.open(tmp_path / "search.db", busy_timeout_ms=50)
    try:
        missed = refresh(reader)
        assert missed is not None
        assert "locked" in missed
        assert reader.busy.timeout_ms == 50
        found = search(reader, "needle", Filters(), limit=5, snippet_chars=99)
        assert sessions(found) == ["s"]
    finally:
        reader.close()
        writer.execute("ROLLBACK")
        writer.close()


@pytest.mark.parametrize("newest", [4, 1000])
def test_a_span_that_many_sessions_reach_into(history: History, monkeypatch: pytest.MonkeyPatch, newest: int) -> None:
    monkeypatch.setattr(searching, "NEWEST", newest)
    monkeypatch.setattr(search_hits, "_GROUP", 3)
    for number in range(30):
        history.say(f"s{number:02d}", "comet", "comet too", time=1_700_000_000_000 + number * 100_000)
    until = 1_700_000_000_000 + 10 * 100_000 - 1
    assert sorted(sessions(find(history, "comet", until=until, limit=50))) == [f"s{n:02d}" for n in range(10)]
    if newest > 20:
        assert len(find(history, "comet", until=until, limit=50, all_hits=True).hits) == 20
    assert sessions(find(history, "comet", until=until, since=until - 250_000)) == ["s09", "s08"]
    assert len(find(history, "comet", until=until, limit=4).hits) == 4
    assert find(history, "nosuch", until=until).hits == []
