"""The full-text index: one text by two ways, rebuilt the same, whatever odd events there are (SQ-40, SQ-41, SQ-73)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsh.core.lossless import dumps
from dsh.store import writes
from dsh.store.functions import INDEX_VERSION, document_text
from dsh.store.spelling import name_parts, segment_text
from tests.history import History, text
from tests.session.kit import World, dump, fill, raw, whole_turn, world

WORDS = st.sampled_from(
    ["wombat", "漢字かな", "parseHTTPHeader", "a\tb", " padded ", "x\u00a0y", "l1\nl2", "", " \n", "é😀"]
)
ODD = st.sampled_from([None, 5, 1.5, True, [], {}, ["x"], {"type": "text"}, "words"])


def objects(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of the fields, in any order, mostly with words in them."""
    return st.fixed_dictionaries({}, optional={k: v | ODD for k, v in fields.items()}).flatmap(
        lambda d: st.permutations(list(d.items())).map(dict)
    )


KIND = st.sampled_from(["text", "reasoning", "tool-call", "image"])
LEAF = objects(type=KIND, text=WORDS, name=WORDS, arguments=WORDS, z=WORDS)
BLOCK = LEAF | objects(type=st.just("tool-result"), content=st.lists(LEAF | ODD, max_size=3))
CONTENT = st.lists(BLOCK, max_size=3)
REASON = objects(
    kind=st.sampled_from(["completed", "error", "rejected", "aborted", "max-tokens", "interrupted", "other"]),
    message=WORDS,
    code=WORDS,
    reason=WORDS,
    failure=objects(message=WORDS, code=WORDS, reason=WORDS),
)
EVENT = st.one_of(
    st.tuples(st.sampled_from(["user/message", "steering/message"]), objects(content=CONTENT, meta=WORDS)),
    st.tuples(st.just("prompt/blocked"), objects(content=CONTENT | ODD, reason=WORDS)),
    st.tuples(st.just("tool/call"), objects(name=WORDS, arguments=WORDS)),
    st.tuples(st.just("tool/result"), objects(content=CONTENT, error=objects(name=WORDS, code=WORDS))),
    st.tuples(st.just("todo/write"), objects(todos=st.lists(objects(status=WORDS, content=WORDS) | ODD, max_size=3))),
    st.tuples(st.just("turn/end"), objects(reason=REASON)),
    st.tuples(st.just("plugin/note"), objects(content=CONTENT, name=WORDS)),
    st.tuples(st.sampled_from(["prompt/blocked", "tool/call", "todo/write", "plugin/note", "turn/end"]), ODD),
)


@pytest.fixture
def w(tmp_path: Path) -> Iterator[World]:
    opened = world(tmp_path / "dsh.db")
    yield opened
    opened.db.close()


def put(w: World, events: list[tuple[str, Any]]) -> None:
    """Rows as given, past the rules, so that shapes nobody writes are there too."""
    with raw(w.path) as db, db:
        for name in ("_event_rules", "_event_kinds"):
            db.execute(f"DROP TRIGGER IF EXISTS {name}")
        for type_, data in events:
            db.execute(
                "INSERT INTO _event(session, seq, type, time, data) SELECT session, length, ?, 1, ? FROM _length",
                (type_, dumps(data)),
            )


@pytest.mark.rule("SQ-40", "SQ-41", "SQ-73")
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENT, min_size=15, max_size=15))
def test_the_view_and_the_function_say_the_same(tmp_path: Path, events: list[tuple[str, Any]]) -> None:
    path = tmp_path / "generated.db"
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    w = world(path)
    try:
        fill(w.db, "s", ("turn/start", {"turn": 1}, None))
        put(w, events)
        said: dict[int, str] = dict(w.db.rows("SELECT seq, text FROM search_document WHERE session_id = 's'"))
        for seq, (type_, data) in enumerate(events, 1):
            assert said.get(seq, "") == document_text(type_, data), (type_, data)
        writes.refresh_search(w.db)
        indexed = w.db.rows("SELECT text, parts FROM search ORDER BY rowid")
        spelled = [(segment_text(t), segment_text(name_parts(t))) for _, t in sorted(said.items())]
        assert [row for row in indexed if row[0]] == spelled
        assert_sound(w)
    finally:
        w.db.close()


def assert_sound(w: World) -> None:
    """The index holds exactly what the log says: FTS5's own check against its content, and a rebuild that changes
    no result."""
    w.db.rows("INSERT INTO search(search, rank) VALUES ('integrity-check', 1)")
    words = ["wombat", "hello", "漢 字", "parse", "padded", "re"]
    before = [w.db.rows("SELECT rowid FROM search WHERE search MATCH ? ORDER BY rowid", (f'"{q}"',)) for q in words]
    rows = w.db.rows("SELECT rowid, text, tags FROM search ORDER BY rowid")
    assert list(writes.rebuild_search(w.db)) == [0]
    assert w.db.rows("SELECT rowid, text, tags FROM search ORDER BY rowid") == rows
    assert before == [
        w.db.rows("SELECT rowid FROM search WHERE search MATCH ? ORDER BY rowid", (f'"{q}"',)) for q in words
    ]
    w.db.rows("INSERT INTO search(search, rank) VALUES ('integrity-check', 1)")


@pytest.mark.parametrize(
    ("type_", "data", "wanted"),
    [
        ("user/message", {"content": [{"type": "text", "text": " a "}, {"type": "reasoning", "text": "b"}]}, "a\nb"),
        ("user/message", {"content": [{"type": "text", "text": "\u00a0a\x1c"}]}, "a\x1c"),
        ("user/message", {"content": [{"type": "image", "text": "a"}]}, ""),
        ("assistant/message", {"content": [{"arguments": "{}", "type": "tool-call", "name": "n"}]}, "n\n{}"),
        (
            "tool/result",
            {
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "tool-result", "content": [{"type": "text", "text": "b"}]},
                ],
                "error": {"code": "C", "name": "N"},
            },
            "a\nb\nN\nC",
        ),
        ("prompt/blocked", {"reason": "r", "content": [{"type": "text", "text": "p"}]}, "p\nr"),
        ("tool/call", {"arguments": "", "name": "n"}, "n"),
        ("todo/write", {"todos": [{"content": "c", "status": "s"}, {"content": "d", "status": "t"}]}, "s\nc\nt\nd"),
        ("turn/end", {"reason": {"kind": "completed", "message": "m"}}, ""),
        ("turn/end", {"reason": {"kind": "error", "code": "C", "message": "m"}}, "error\nm\nC"),
        (
            "turn/end",
            {"reason": {"kind": "error", "failure": {"code": "C", "message": "m"}, "code": "x"}},
            "error\nm\nC",
        ),
        ("turn/end", {"reason": {"kind": "rejected", "reason": "r", "message": "m"}}, "rejected\nr"),
        ("turn/end", {"reason": {"kind": "interrupted", "reason": "r"}}, "interrupted"),
        ("turn/end", {"reason": {"kind": "new"}}, ""),
        ("turn/start", {"content": [{"type": "text", "text": "a"}]}, ""),
    ],
)
@pytest.mark.rule("SQ-40", "SQ-41")
def test_what_each_event_says(type_: str, data: Any, wanted: str) -> None:
    assert document_text(type_, data) == wanted


@pytest.mark.rule("SQ-73", "PE-50")
def test_deleting_sessions_leaves_the_index_sound(w: World) -> None:
    for name in ("a", "b", "c"):
        whole_turn(w.session(name), f"hello {name} wombat", calls=1)
    writes.refresh_search(w.db)
    whole_turn(w.session("late"), "wombat late")  # not indexed yet
    for name in ("b", "c", "late"):
        writes.delete_session(w.db, name)
    w.db.rows("INSERT INTO search(search, rank) VALUES ('integrity-check', 1)")
    writes.refresh_search(w.db)
    assert_sound(w)
    assert len(w.db.rows("SELECT 1 FROM search WHERE search MATCH 'wombat'")) == 2  # the prompt and its reply
    whole_turn(w.session("d"), "wombat again")  # ids of deleted rows come again
    writes.refresh_search(w.db)
    assert_sound(w)
    assert len(w.db.rows("SELECT 1 FROM search WHERE search MATCH 'wombat'")) == 4


@pytest.mark.rule("SQ-73")
def test_one_odd_event_does_not_stop_the_index(w: World) -> None:
    fill(w.db, "s", ("turn/start", {"turn": 1}, None))
    put(w, [("user/message", []), ("todo/write", {"todos": ["x", {"content": 5}]}), ("turn/end", {"reason": "x"})])
    put(
        w,
        [
            ("tool/result", {"error": "x", "content": "y"}),
            ("prompt/blocked", {"content": [5, "x"], "reason": "why wombat"}),
        ],
    )
    for view in ("search_document", "todo", "title", "turn", "tool_call", "usage", "message"):
        w.db.rows(f"SELECT * FROM {view}")
    writes.refresh_search(w.db)
    assert len(w.db.rows("SELECT 1 FROM search WHERE search MATCH 'wombat'")) == 1
    assert_sound(w)


@pytest.mark.rule("SQ-73")
def test_the_mark_never_passes_what_there_is(w: World) -> None:
    whole_turn(w.session("s"), "wombat")
    w.db.rows("UPDATE store SET search_indexed = 1000000")
    whole_turn(w.session("t"), "wombat")
    writes.refresh_search(w.db)
    assert len(w.db.rows("SELECT 1 FROM search WHERE search MATCH 'wombat'")) == 4
    before = dump(w.path)
    writes.refresh_search(w.db)
    w.db.rows("UPDATE store SET search_indexed = 0")
    assert dump(w.path) == before


@pytest.mark.rule("SE-55")
def test_a_forks_inherited_events_are_indexed_once(w: World) -> None:
    s = w.session("s")
    whole_turn(s, "wombat")
    child = w.sessions.fork(s, child="child")
    whole_turn(child, "wombat too")
    writes.refresh_search(w.db)
    assert len(w.db.rows("SELECT 1 FROM search WHERE search MATCH 'wombat'")) == 4
    assert_sound(w)
    w.sessions.dispose(child)
    writes.delete_session(w.db, "child")
    assert len(w.db.rows("SELECT 1 FROM search WHERE search MATCH 'wombat'")) == 2
    assert_sound(w)


# What the index says of a few texts. Whoever changes that raises INDEX_VERSION, and puts the new digest here.
INDEXED = {1: "70f882eaa6786e39"}


def test_what_is_indexed_changes_only_with_its_version(tmp_path: Path) -> None:
    w = History(tmp_path / "x.db")
    w.session("s", cwd="/home/me/project")
    texts = [
        "plain words, snake_case and kebab-case, camelCase, HTTPServer, path/to/file.py, Foo::bar, v1.2.3, deadbeef01",
        "Äußerst naïve Œuvre ﬁn Straße İstanbul ｆｕｌｌ odd\u0301",
        "修改youer服务端的计划 テスト 한국어",
        "ภาษาไทย ລາວ ខ្មែរ မြန်မာ",
        "🐻 👍🏽 🇩🇪 ☺ \x00\ufdd0",
        "key ghp_" + "a1B2" * 9 + " and https://me:secret@host/x",
    ]
    call = {"type": "tool-call", "id": "c", "name": "bash", "arguments": '{"command":"ls"}'}
    w.turn("s", 1, "\n".join(texts), text("done"), call, results={"c": "out"})
    writes.refresh_search(w.db)
    w.db.close()
    with apsw.Connection(str(tmp_path / "x.db")) as raw:
        raw.execute("CREATE VIRTUAL TABLE temp.t USING fts5vocab('main', 'search', 'instance')")
        terms = raw.execute("SELECT term, col, offset FROM temp.t ORDER BY term, doc, col, offset").fetchall()
    assert hashlib.sha256(repr(terms).encode()).hexdigest()[:16] == INDEXED[INDEX_VERSION]


@pytest.mark.rule("SQ-73")
def test_an_index_of_another_version_is_made_anew(tmp_path: Path) -> None:
    w = History(tmp_path / "x.db")
    w.say("s", "a word")
    w.say("t", "another word")
    writes.refresh_search(w.db)
    w.db.rows("UPDATE store SET index_version = 77")  # as an older program would have left it, with other words
    assert w.db.rows("SELECT rowid FROM search WHERE search MATCH 'word'") == []
    writes.delete_session(w.db, "t")
    writes.refresh_search(w.db)
    assert w.db.rows("SELECT index_version FROM store") == [(INDEX_VERSION,)]
    assert len(w.db.rows("SELECT rowid FROM search WHERE search MATCH 'word'")) == 1
    assert writes.check_search(w.db) is None
