"""Searching real databases: what is found, what filters leave, how much is looked at."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsh.core.errors import UsageError
from dsh.query import search as searching
from dsh.query import search_hits
from dsh.query.search import Filters, Result, count, event_types, refresh, search, unindexed
from dsh.query.search_regex import needles
from dsh.store.database import Database
from tests.history import History, call, text


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "search.db")
    yield made
    made.db.close()


def find(history: History, query: str, *, limit: int = 20, how: dict[str, Any] | None = None, **filters: Any) -> Result:
    refresh(history.db)
    how = {**(how or {}), **{name: filters.pop(name) for name in ("all_hits",) if name in filters}}
    return search(history.db, query, Filters(**filters), limit=limit, snippet_chars=240, **how)


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


# ----------------------------------------------------------------------------------------------------- what is found


@pytest.mark.rule("SQ-81")
@pytest.mark.parametrize(
    ("said", "queries"),
    [
        ("Use HTTPServer here", ["http", "server", "httpserver", "HTTPServer", "http_server", "http-server"]),
        ("call parse_http_header now", ["parseHttpHeader", "ParseHTTPHeader", "http", "parse-http", "header parse"]),
        ("see Foo::barBaz and a.b.cde", ["Foo::barBaz", "foo bar", "baz", "a.b.cde", "b.cde"]),
        ("open path/to/file.py:42", ["path/to/file.py", "to/file", "file.py", "file.py:42"]),
        ("version v1.12.3 is out", ["1.12.3", "v1.12.3", "1.12", "v1.12"]),
        ("version 1.12.3 is out", ["1.12.3", "v1.12.3"]),
        (
            "commit 9f3c2a17be04d5c6a1b2c3d4e5f60718293a4b5c",
            ["9f3c2a", "9F3C2A17", "9f3c2a17be04d5c6a1b2c3d4e5f60718293a4b5c"],
        ),
        ("ไปกินข้าวกัน", ["กิน", "ข้าว", "กินข้าว", "กิ", "ว", "ข้าวกัน"]),
        ("ຂ້ອຍຮັກເຈົ້າ", ["ຮັກ"]),
        ("ខ្ញុំស្រឡាញ់", ["ស្រឡាញ់"]),
        ("ကျွန်တော်", ["ကျွန်"]),
        ("Die Königsstraße", ["konigsstrasse", "KÖNIGSSTRASSE", "königsstraße"]),
        ("tiếng Việt", ["tieng viet", "TIẾNG", "việt"]),
        ("ısı and İstanbul", ["isi", "istanbul", "İSTANBUL"]),
        ("the ﬁle", ["file"]),
        ("done 👩🏽\u200d💻 ✅", ["👩", "💻", "👩\u200d💻", "✅", "👩🏿"]),
        ("three errors, one query", ["error", "queries"]),
        ("a prompt \ue0b0main\ue0b0 there", ["main"]),
    ],
)
def test_what_people_type(history: History, said: str, queries: list[str]) -> None:
    history.say("wanted", said)
    history.say("other", "nothing of that")
    for query in queries:
        assert sessions(find(history, query)) == ["wanted"], query


@pytest.mark.parametrize(
    ("said", "query"),
    [
        ("ไปกันกับ", "กิน"),
        ("9f3c2a17", "9f3c2b"),
        ("9f3c2", "9f3c2a"),
        ("errors", '"error"'),
        ("👍", "👎"),
        ("braid", "ai"),
    ],
)
def test_what_is_something_else(history: History, said: str, query: str) -> None:
    history.say("s", said)
    assert sessions(find(history, query)) == []


@pytest.mark.rule("SQ-80")
def test_near(history: History) -> None:
    history.say("close", "alpha one two beta")
    history.say("far", "alpha " + "x " * 20 + "beta")
    assert sessions(find(history, "alpha NEAR beta")) == ["close"]
    assert sessions(find(history, "alpha NEAR/1 beta")) == []
    assert len(sessions(find(history, "alpha NEAR/30 beta"))) == 2


@pytest.mark.rule("SQ-82")
def test_words_in_several_events_of_a_session(history: History) -> None:
    history.session("both")
    history.turn("both", 1, "about whales", text("they swim"))
    history.turn("both", 2, "and what of plankton", text("small"))
    history.say("one", "whales alone")
    found = find(history, "whales plankton")
    assert sessions(found) == ["both"]
    assert "several" in found.notes[-1]
    assert sessions(find(history, "whales plankton", how={"strict": True})) == []
    assert sessions(find(history, "whales nosuch")) == []
    history.say("event", "whales eat plankton")
    found = find(history, "whales plankton")
    assert (sessions(found), found.notes) == (["event"], [])


def test_secrets_are_neither_indexed_nor_shown(history: History) -> None:
    key = "sk-ant-api03-" + "aB3dE5gH7jK9" * 8
    history.say("s", f"my key is {key} or so")
    assert sessions(find(history, key)) == []
    hit = find(history, "key").hits[0]
    assert key[:20] not in hit.snippet
    assert "[redacted" in hit.snippet
    assert "[redacted" in str(hit.title)
    assert key not in find(history, "my key", how={"regex": True}).hits[0].snippet
    assert sessions(find(history, "aB3dE5", how={"regex": True})) == []


# --------------------------------------------------------------------------------------------------------- filters


def filled(history: History) -> None:
    history.session("mine", cwd="/w/a")
    history.turn(
        "mine", 1, "alpha asked", call("c1", "bash", '{"command":"alpha run"}'), call("c2", "read", '{"path":"alpha"}'),
        results={"c1": "alpha printed", "c2": "alpha stood there"},
    )  # fmt: skip
    history.turn("mine", 2, "and now", text("alpha answered"))
    history.say("below", "alpha below", cwd="/w/a/b")
    history.say("beside", "alpha beside", cwd="/w/ab")
    history.say("theirs", "alpha theirs", cwd="/w/a/b", source="codex")


def places(result: Result) -> list[str]:
    return sorted(hit.snippet for hit in result.hits)


@pytest.mark.rule("SQ-80")
def test_filters_of_the_query_and_of_the_options_are_the_same(history: History) -> None:
    filled(history)
    every = {"all_hits": True}
    for query, filters in (
        ("alpha role:tool", {"types": ("tool/call", "tool/result")}),
        ("alpha type:tool/result", {"types": ("tool/result",)}),
        ("alpha tool:bash", {"tools": ("bash",)}),
        ("alpha source:codex", {"sources": ("codex",)}),
        ("alpha cwd:/w/a", {"cwd": "/w/a"}),
        ("alpha session:mi", {"session": "mine"}),
        ("alpha since:2025-01-01 until:2025-12-31", {"since": 1_735_689_600_000, "until": 1_767_225_599_999}),
        ("alpha model:seek", {"models": ("seek",)}),
    ):
        typed = places(find(history, query, how=every))
        assert typed == places(find(history, "alpha", how=every, **filters)), query
        assert typed, query
    assert places(find(history, "alpha role:user role:tool", how=every)) == places(
        find(history, "alpha", how=every, types=("user/message", "tool/call", "tool/result"))
    )
    assert places(find(history, "alpha role:user", how=every, types=("tool/call",))) == []
    assert places(find(history, "source:codex role:user")) == ["alpha theirs"]


def test_folders_and_what_is_below(history: History) -> None:
    filled(history)
    assert sorted(sessions(find(history, "alpha", cwd="/w/a"))) == ["below", "mine", "theirs"]
    assert sessions(find(history, "alpha", cwd="/w/a", exact_cwd=True)) == ["mine"]
    assert len(sessions(find(history, "alpha", cwd="/w"))) == 4
    assert sessions(find(history, "alpha", cwd="/w/a/b/c")) == []


def test_sources_tools_and_models(history: History) -> None:
    filled(history)
    assert sessions(find(history, "alpha", sources=("codex",))) == ["theirs"]
    assert len(sessions(find(history, "alpha", sources=("dsh",)))) == 3
    bash = find(history, "alpha", tools=("bash",), all_hits=True)
    assert sorted(hit.type for hit in bash.hits) == ["tool/call", "tool/result"]
    assert all("run" in hit.snippet or "printed" in hit.snippet for hit in bash.hits)
    assert len(find(history, "alpha", tools=("bash", "read"), all_hits=True).hits) == 4
    assert sessions(find(history, "alpha", models=("chat",))) != []
    assert sessions(find(history, "alpha", models=("gpt",))) == []


def test_titles(history: History) -> None:
    history.say("a", "whales of the north", "about fish")
    history.say("b", "fish", "whales")
    history.event("b", "turn/start", {"turn": 2, "trigger": {"kind": "session-title"}})
    history.event("b", "session/title", {"title": "Großer Fischzug", "messageSeqs": [], "source": {"kind": "user"}})
    assert sessions(find(history, "in:title whales")) == ["a"]
    assert sessions(find(history, "whales in:title -north")) == []
    hit = find(history, "in:title grosser").hits[0]
    assert (hit.session_id, hit.type, hit.snippet) == ("b", "session/title", "Großer Fischzug")
    assert hit.matches == ((0, 6),)
    assert sessions(find(history, "in:title fish OR whales", limit=1)) in (["a"], ["b"])


def test_only_filters_find_the_newest(history: History) -> None:
    filled(history)
    assert [hit.session_id for hit in find(history, "role:user").hits] == ["theirs", "beside", "below", "mine"]
    assert sessions(find(history, "since:1999-01-01")) != []
    assert find(history, "   ").hits == []


# --------------------------------------------------------------------------------------------------------- ranking


@pytest.mark.rule("SQ-83")
def test_own_words_and_final_answers_come_before_what_tools_print(history: History) -> None:
    history.session("tool")
    history.turn("tool", 1, "go", call("c", "bash", "{}"), results={"c": "walrus it was"})
    history.say("asked", "walrus it was", time=1_750_000_000_000)
    history.clock = 1_760_000_000_000
    assert sessions(find(history, "walrus")) == ["asked", "tool"]


@pytest.mark.rule("SQ-83")
def test_newer_comes_first_of_what_is_as_good(history: History) -> None:
    history.say("new", "walrus", time=1_760_000_000_000)
    history.say("old", "walrus", time=1_600_000_000_000)
    assert sessions(find(history, "walrus")) == ["new", "old"]
    history.say("best", "walrus walrus walrus walrus", time=1_750_000_000_000)
    assert sessions(find(history, "walrus"))[0] == "best"
    assert sessions(find(history, "walrus", how={"sort": "time"})) == ["new", "best", "old"]


@pytest.mark.rule("SQ-83")
def test_a_rare_word_weighs_more(history: History) -> None:
    for number in range(30):
        history.say(f"x{number}", "common words")
    history.say("often", "common common common common rare")
    history.say("wanted", "rare rare common")
    assert sessions(find(history, "common rare"))[0] == "wanted"


def test_how_many_more_a_session_has(history: History) -> None:
    history.session("many")
    for number in range(1, 6):
        history.turn("many", number, "walrus", text("walrus too"))
    history.say("one", "walrus")
    more = {hit.session_id: hit.more for hit in find(history, "walrus", how={"counted": True}).hits}
    assert more == {"many": 9, "one": 0}
    assert count(history.db, "walrus", Filters()) == 11
    assert count(history.db, "walrus role:user", Filters()) == 6
    assert count(history.db, "walr.s", Filters(), regex=True) == 11
    assert count(history.db, "nosuch", Filters()) == 0


@pytest.mark.rule("SQ-83")
def test_exhaustive_ranks_all(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "NEWEST", 3)
    history.say("best", "words words words words")
    for number in range(6):
        history.say(f"s{number}", "words among others here")
    assert sessions(find(history, "words"))[0] != "best"
    found = find(history, "words", how={"exhaustive": True})
    assert sessions(found)[0] == "best"
    assert not found.capped


# ----------------------------------------------------------------------------------------------------------- pages


@pytest.mark.rule("SQ-84")
@pytest.mark.parametrize("how", [{}, {"all_hits": True}, {"sort": "time"}, {"regex": True}])
def test_pages_together_are_the_whole(history: History, how: dict[str, Any]) -> None:
    for number in range(23):
        history.say(f"s{number:02d}", f"walrus {'walrus ' * (number % 5)}", "walrus" if number % 3 else "no")
    whole = find(history, "walrus", limit=100, how=how)
    assert whole.cursor is None
    found: list[Any] = []
    cursor: str | None = None
    for page in range(20):
        result = find(history, "walrus", limit=7, how={**how, "cursor": cursor})
        found += result.hits
        if page == 0:
            history.say("late", "walrus walrus walrus")
        cursor = result.cursor
        if cursor is None:
            break
    assert found == whole.hits


@pytest.mark.rule("SQ-84")
def test_cursors_of_other_searches_are_refused(history: History) -> None:
    for number in range(5):
        history.say(f"s{number}", "walrus")
    cursor = find(history, "walrus", limit=2).cursor
    assert cursor
    for query, other in (("walrus now", cursor), ("walrus", "nonsense"), ("walrus", cursor[:-1]), ("walrus", "1-2-3")):
        with pytest.raises(UsageError):
            find(history, query, limit=2, how={"cursor": other})


# ----------------------------------------------------------------------------------------------------------- regex


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("abc", [("abc", False, False)]),
        (r"\babc\b", [("abc", True, True)]),
        ("foo bar_baz", [("foo", False, True), ("bar", True, True), ("baz", True, False)]),
        (r"^def \w+_handler\(", [("def", True, True), ("handler", True, True)]),
        (r"foo\s*bar", [("foo", False, False), ("bar", False, False)]),
        (r"foo\s+bar", [("foo", False, True), ("bar", False, False)]),
        ("abcd?e", [("abc", False, False)]),
        ("abc+d", [("abc", False, False)]),
        ("ab*cde", [("cde", False, False)]),
        ("(abc)?def", [("def", False, False)]),
        ("(?:abc){2}def", [("abc", False, False), ("def", False, False)]),
        ("(?i)abc", [("abc", False, False)]),
        ("abc|def", []),
        ("(abc|def)ghi", []),
        ("(?=abc)abc", []),
        (r"(a)\1bcd", []),
        ("[abc]def", [("def", False, False)]),
        ("[]abc]def", [("def", False, False)]),
        (r"\x41bcd", []),
        ("修改abc", []),
        ("修改 abc", [("修 改", True, True), ("abc", True, False)]),
        ("ab", []),
    ],
)
def test_the_words_that_a_pattern_must_have(pattern: str, wanted: list[tuple[str, bool, bool]]) -> None:
    assert [tuple(needle) for needle in needles(pattern)] == wanted


PATTERN = st.lists(
    st.sampled_from(
        ["abc", "def", "Abc", "x", " ", r"\s", r"\b", r"\w", ".", "*", "?", "+", "{0,2}", "(", ")", "(?:", "(?i)", "|",
         "[a-c]", "[^ ]", "_", "-", "^", "$", "修", "改", "é", r"\.", "."]
    ),
    min_size=1, max_size=7,
).map("".join)  # fmt: skip
SAID = [
    "abc def",
    "xabc_def",
    "Abc-def. abcabc",
    "abcdef",
    "修改abc",
    "x修 abc",
    "abé c abc",
    "défabc x",
    "def(abc)",
    "camelAbcDef",
]


@pytest.mark.rule("SQ-85")
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PATTERN)
@example(r"abc\s*def")
@example("abc ?def")
@example("(?i)ABC")
def test_a_regular_expression_finds_what_reading_everything_finds(history: History, pattern: str) -> None:
    if not is_filled(history):
        for number, said in enumerate(SAID):
            history.say(f"s{number}", said, "")
    try:
        compiled = re.compile(pattern)
    except re.error:
        with pytest.raises(UsageError):
            find(history, pattern, how={"regex": True})
        return
    wanted = sorted(f"s{number}" for number, said in enumerate(SAID) if compiled.search(said))
    found = sorted(hit.session_id for hit in find(history, pattern, how={"regex": True}, types=("user/message",)).hits)
    assert found == wanted


def is_filled(history: History) -> bool:
    return unindexed(history.db) == 0 and count(history.db, "role:user", Filters()) > 0


# ------------------------------------------------------------------------------------------------------- anything typed

PIECES = st.sampled_from(
    ['"', "-", "OR", "NEAR", "NEAR/3", "alpha", "be*", "*", "role:user", "role:x", "in:title", "session:s", "since:2w",
     "since:x", 'cwd:"/a b"', "tool:bash", "model:", "(", ")", "{", "^", ":", "修", "👍", "กิ", "\0", "\ud800", "ß",
     "fooBar", "1.2.3", "deadbe", "\ufdd0", "\ue000", "'", "\\", "text:x", "AND", "\u0301", "²", "𝟘"]
)  # fmt: skip
TYPED = st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join) | st.lists(PIECES, max_size=8).map(" ".join)


@pytest.mark.rule("SQ-80")
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TYPED, st.sampled_from([{}, {"literal": True}, {"regex": True}, {"sort": "time"}, {"all_hits": True}]))
def test_whatever_is_typed_is_searched(history: History, typed: str, how: dict[str, Any]) -> None:
    if not is_filled(history):
        history.say("s", "alpha fooBar 修改 กิน 👍 1.2.3 deadbeef01", "beta NEAR OR", cwd="/a/b")
    try:
        find(history, typed, how={**how, "counted": True})
        count(history.db, typed, Filters(), literal="literal" in how, regex="regex" in how)
    except UsageError:
        assert "regex" in how
