"""Full-text pages against a plain reading of their rules: FTS5 itself marks the spans, Python sorts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.query.folding import cut
from dsh.query.search import refresh
from dsh.query.service import phrase, reads
from dsh.query.service.corpus import Nobody, listing
from dsh.query.service.filters import admits_session, session_filters
from dsh.query.service.phrase import phrase_search, phrase_search_events
from dsh.query.service.reads import finished, stored_log
from dsh.query.service.values import EventDocument, EventHit
from dsh.query.snippet import tidy
from dsh.store.database import Database
from tests.history import History, text
from tests.session.kit import code

WORDS = ["a", "A", "á", "b", "ai", "BRAID", "camelCase", "camel", "x_y", "c++", "naïve", "NAIVE", "-", "…", "E0425"]
QUERIES = ["a", "b", "a a", "a b", "AI", "camel", "case", "camelCase", "x", "x y", "naive", "e0425", "b a b", "braid"]


class Corpus(NamedTuple):
    db: Database
    documents: dict[str, list[EventDocument]]  # of each session that is not hidden, and of "hidden"
    marks: apsw.Connection  # a full-text table of every text, made by nobody but SQLite

    def spans(self, query: str) -> dict[str, int]:
        """How many spans highlight() marks in each text that the phrase is in."""
        quoted = '"' + query.replace('"', '""') + '"'
        sql = "SELECT text, highlight(t, 0, char(1), char(2)) FROM t WHERE t MATCH ?"
        return {text: marked.count("\x01") for text, marked in self.marks.execute(sql, (quoted,))}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    chance = random.Random(7)

    def words() -> str:
        return "".join(chance.choice(WORDS) + chance.choice([" ", "  ", "\n"]) for _ in range(chance.randint(1, 9)))

    history = History(tmp_path_factory.mktemp("phrase") / "dsh.db")
    with history.db.transaction():
        for number in range(24):
            id_ = f"s{number}"
            parent = f"s{chance.randrange(number)}" if number and number % 3 == 0 else None
            if parent is not None:
                history.fork(id_, parent)
            else:
                history.session(id_, cwd=chance.choice(["/x", "/y", None]))
            for _ in range(chance.randint(1, 4)):
                at = chance.choice([10**12, 10**12 + 5, 10**12 + 10**6])
                history.turn(id_, next_turn(history, id_), words(), text(words()), time=at)
                if chance.random() < 0.4:
                    compact(history, id_, chance, words())
        history.db.rows("UPDATE session SET hidden = 1 WHERE id IN ('s1', 's9')")
    refresh(history.db)
    shown = [r.id for r in listing(history.db, Nobody())]
    documents = {id_: finished(reads.documents(stored_log(history.db, id_), ())) for id_ in [*shown, "s1"]}
    marks = apsw.Connection(":memory:")
    marks.execute("CREATE VIRTUAL TABLE t USING fts5(text)")
    for each in sorted({d.text for many in documents.values() for d in many}):
        marks.execute("INSERT INTO t VALUES (?)", (each,))
    documents["hidden"] = documents.pop("s1")
    yield Corpus(history.db, documents, marks)
    history.db.close()


def next_turn(history: History, id_: str) -> int:
    return int(history.db.rows("SELECT turns FROM session WHERE id = ?", (id_,))[0][0]) + 1


def compact(history: History, id_: str, chance: random.Random, summary: str) -> None:
    """Replace some nodes of the surface, in a turn of its own."""
    number = next_turn(history, id_)
    sql = "SELECT seq FROM surface WHERE session_id = ? ORDER BY position"
    nodes = [row[0] for row in history.db.rows(sql, (id_,))]
    first = chance.randrange(len(nodes))
    removed = nodes[first : first + chance.randint(1, 3)]
    history.event(id_, "turn/start", {"turn": number, "trigger": {"kind": "?"}})
    seq = history.event(
        id_,
        "user/message",
        {"content": [text(summary)], "source": {"kind": "plugin", "plugin": "compact"}},
        {"op": "replace", "start": removed[0], "end": removed[-1]},
        sources=removed,
    )
    assert seq
    history.event(id_, "turn/end", {"turn": number, "reason": {"kind": "completed"}})


def event_order(spans: dict[str, int], d: EventDocument) -> tuple[int, int, int, int]:
    return -spans[d.text], len(d.text), -d.time, -d.seq


event_clauses = st.lists(
    st.sampled_from(
        [
            {"kind": "type", "values": ["user/message"]},
            {"kind": "type", "values": ["assistant/message", "no such"]},
            {"kind": "type", "values": []},
            {"kind": "seq", "from": 3},
            {"kind": "seq", "from": 1, "to": 20.5},
            {"kind": "time", "to": 10**12 + 3000},
            {"kind": "surface", "values": ["current"]},
            {"kind": "surface", "values": ["shadowed", "log-only"]},
            {"kind": "surface", "values": ["shadowed"]},
        ]
    ),
    max_size=2,
)
session_clauses = st.lists(
    st.sampled_from(
        [
            {"kind": "cwd", "values": ["/x"]},
            {"kind": "cwd", "values": [None, "/y"]},
            {"kind": "id", "values": [f"s{n}" for n in range(0, 24, 2)]},
            {"kind": "parent", "values": [None]},
            {"kind": "availability", "values": ["persisted"]},
            {"kind": "availability", "values": ["live"]},
        ]
    ),
    max_size=2,
)


def found_in(corpus: Corpus, session: str, spans: dict[str, int], clauses: list[Any]) -> list[EventDocument]:
    made = [d for d in corpus.documents[session] if d.text in spans]
    for clause in clauses:
        if clause["kind"] == "surface":
            made = [d for d in made if d.surface in clause["values"]]
        elif clause["kind"] == "type":
            made = [d for d in made if d.type in clause["values"]]
        else:
            low, high = clause.get("from", 0), clause.get("to", 2**60)
            made = [d for d in made if low <= getattr(d, clause["kind"]) <= high]
    return sorted(made, key=lambda d: event_order(spans, d))


def heads(hits: Any) -> list[tuple[Any, ...]]:
    return [hit[:5] for hit in hits]


@pytest.mark.rule("SQ-52", "SQ-53", "SQ-54", "SQ-55", "SQ-56", "SQ-60", "SQ-74")
@settings(deadline=None)
@given(st.sampled_from(QUERIES), session_clauses, event_clauses, st.sampled_from([1, 2, 3, 7, 100]))
def test_pages_of_sessions_are_the_plain_list(
    corpus: Corpus, query: str, sessions: list[Any], events: list[Any], limit: int
) -> None:
    spans = corpus.spans(query)
    admitted = session_filters(sessions)
    best = [
        found[0]
        for record in listing(corpus.db, Nobody())
        if admits_session(admitted, record)
        if (found := found_in(corpus, record.id, spans, events))
    ]
    expected = sorted(best, key=lambda d: (*event_order(spans, d)[:3], d.session_id, -d.seq))
    seen: list[EventHit] = []
    cursor = None
    while True:
        page = phrase_search(
            corpus.db, query, session_filters=sessions, event_filters=events, limit=limit, cursor=cursor
        )
        assert len(page.items) == limit or page.next_cursor is None
        assert all(item.header["id"] == item.best_match.session_id for item in page.items)
        seen += [item.best_match for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
        assert page.items
    assert heads(seen) == heads(expected)


@pytest.mark.rule("SQ-52", "SQ-53", "SQ-54", "SQ-55", "SQ-56", "SQ-60", "SQ-74")
@settings(deadline=None)
@given(st.sampled_from(QUERIES), st.integers(0, 23), event_clauses, st.sampled_from([1, 2, 5, 100]))
def test_pages_of_events_are_the_plain_list(
    corpus: Corpus, query: str, number: int, events: list[Any], limit: int
) -> None:
    session = f"s{number}"
    where = "hidden" if session == "s1" else session
    if where not in corpus.documents:  # the other hidden one
        return
    spans = corpus.spans(query)
    expected = found_in(corpus, where, spans, events)
    seen: list[EventHit] = []
    cursor = None
    while True:
        page = phrase_search_events(corpus.db, session, query, filters=events, limit=limit, cursor=cursor)
        assert page.session["id"] == session
        seen += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert heads(seen) == heads(expected)


@pytest.mark.rule("SQ-54")
@pytest.mark.parametrize("batch", [1, 2])
def test_the_order_does_not_depend_on_how_many_hits_are_looked_at_together(
    corpus: Corpus, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def everything() -> list[Any]:
        return [heads([i.best_match for i in phrase_search(corpus.db, q, limit=100).items]) for q in QUERIES]

    before = everything()
    monkeypatch.setattr(phrase, "_FIRST_BATCH", batch)
    monkeypatch.setattr(phrase, "_LAST_BATCH", batch)
    monkeypatch.setattr(phrase, "_SEARCHED_BY_TAG", batch)
    assert everything() == before


@pytest.mark.rule("SQ-54")
@settings(deadline=None)
@given(st.text(max_size=40) | st.text("aßﬁ服務กิ😀👍🏽é\u0301ガ㍿ＡＢ. ", max_size=40))
def test_a_text_has_at_least_as_many_characters_as_words(text: str) -> None:
    """Of all that the order rests on this alone is not the index's, but a fact about texts."""
    assert len(cut(text)) <= len(text)


# ----------------------------------------------------------------------------------------------------------- examples


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "dsh.db")
    yield made
    made.db.close()


def sessions(history: History, query: str, **more: Any) -> list[str]:
    refresh(history.db)
    return [item.header["id"] for item in phrase_search(history.db, query, **more).items]


@pytest.mark.rule("SQ-50")
@pytest.mark.parametrize("query", [None, 7, b"a", ["a"], "", "  \n\u3000\ufeff", "a\0b", "\0"])
def test_what_is_no_query(history: History, query: Any) -> None:
    assert code(phrase_search, history.db, query) == "SESSION_QUERY_INVALID_QUERY"


@pytest.mark.rule("SQ-50")
def test_a_query_is_one_line(history: History) -> None:
    history.say("s", "alpha\nbeta gamma\ufdd0delta")
    for query in (
        "alpha beta",
        "  alpha \u3000\n beta\ufeff",
        "gamma\ufdd0delta",
        "gamma\ufdd1delta",
        "gamma\ufffddelta",
    ):
        assert sessions(history, query) == ["s"]
    one, two = phrase.request("  a \n b "), phrase.request("a b")
    assert one == two
    assert phrase.request("a\ufdd0b\ufdd1").query == "a\ufffdb\ufffd"


@pytest.mark.rule("SQ-51")
@pytest.mark.parametrize("query", ["*", "…", '"', "()", " - ", "^"])
def test_a_query_without_words_finds_nothing(history: History, query: str) -> None:
    history.say("s", '* … " () - ^ and words')
    assert sessions(history, query) == []
    assert sessions(history, query, event_filters=[{"kind": "type", "values": ["user/message"]}]) == []


@pytest.mark.rule("SQ-50", "SQ-51")
@settings(deadline=None)
@given(st.text(max_size=30) | st.text('"*()^-+:{}ANDORT ', max_size=20))
def test_nothing_that_is_typed_is_a_query_of_another_kind(corpus: Corpus, query: str) -> None:
    """Any text is searched for as it stands, or is no query."""
    prompts = [{"kind": "type", "values": ["user/message"]}]
    if not tidy(query) or "\0" in query:
        assert code(phrase_search, corpus.db, query, event_filters=prompts) == "SESSION_QUERY_INVALID_QUERY"
        return
    page = phrase_search(corpus.db, query, event_filters=prompts)
    words = cut(query)
    for item in page.items:
        (document,) = (d for d in corpus.documents[item.header["id"]] if d.seq == item.best_match.seq)
        assert " ".join(words) in " ".join(cut(document.text))


def test_a_very_long_query(history: History) -> None:
    long = " ".join(f"word{n}" for n in range(2_000))
    history.say("s", f"so {long} it is")
    history.say("t", long.replace("word1500 ", ""))
    assert sessions(history, long) == ["s"]


@pytest.mark.rule("SQ-51")
def test_operators_are_data(history: History) -> None:
    history.say("or", "either OR neither")
    history.say("quote", 'she said "no way" to me')
    history.say("near", "NEAR (a b) and text : yes")
    history.say("plain", "either way, and neither")
    assert sessions(history, "either OR neither") == ["or"]
    assert sessions(history, 'said "no way" to') == ["quote"]
    assert sessions(history, "near(a b)") == ["near"]
    assert sessions(history, "text:yes") == ["near"]
    assert sessions(history, "eith*") == []
    assert sessions(history, "either NOT neither") == []


@pytest.mark.rule("SQ-52")
def test_whole_words_without_accents_and_case(history: History) -> None:
    history.say("cafe", "un café noir")
    history.say("braid", "a BRAID of hair")
    history.say("two", "ai is two letters")
    history.say("name", "camelCaseName")
    assert sessions(history, "CAFE") == ["cafe"]
    assert sessions(history, "AI") == ["two"]
    assert sessions(history, "camel") == sessions(history, "case name") == []
    assert sessions(history, "CAMELCASENAME") == ["name"]


@pytest.mark.rule("SQ-52")
def test_scripts_without_spaces_are_found_by_their_characters(history: History) -> None:
    history.say("zh", "修改youer服务端的计划，服务端")
    history.say("ja", "検索する")
    assert sessions(history, "服务端") == sessions(history, "youer服务") == sessions(history, "划") == ["zh"]
    assert sessions(history, "検索") == ["ja"]
    assert sessions(history, "服端") == []
    refresh(history.db)
    (hit,) = phrase_search(history.db, "服务端", snippet_chars=8).items
    assert "服" in hit.best_match.snippet


@pytest.mark.rule("SQ-54")
def test_spans_that_overlap_are_one(history: History) -> None:
    history.say("three", "a a a")
    history.say("apart", "a a b a a " + "and this one is much longer")
    assert sessions(history, "a a") == ["apart", "three"]
    assert sessions(history, "a") == ["apart", "three"]
    history.say("four", "a a a a")
    assert sessions(history, "a a") == ["apart", "three", "four"]


@pytest.mark.rule("SQ-42", "SQ-54")
def test_marks_that_an_index_could_not_keep(history: History) -> None:
    """They are no words, and they count in the length."""
    history.say("nul", "alpha\0beta")
    history.say("first", "alpha\ufdd0\ufdd0beta")
    history.say("second", "alpha\ufdd1\ufdd1\ufdd1beta")
    assert sessions(history, "alpha beta") == ["nul", "first", "second"]
    assert sessions(history, "alpha") == ["nul", "first", "second"]


@pytest.mark.rule("SQ-56")
@pytest.mark.parametrize("limit", [0, -1, 101, 1.0, True, "1", None])
def test_what_is_no_limit(history: History, limit: Any) -> None:
    assert code(phrase_search, history.db, "a", limit=limit) == "SESSION_QUERY_INVALID_LIMIT"


@pytest.mark.rule("SQ-56")
def test_a_full_last_page_has_no_next(history: History) -> None:
    for number in range(21):
        history.say(f"s{number}", "word")
    refresh(history.db)
    first = phrase_search(history.db, "word")
    assert len(first.items) == 20
    assert first.next_cursor is not None
    assert len(phrase_search(history.db, "word", cursor=first.next_cursor).items) == 1
    assert phrase_search(history.db, "word", limit=21).next_cursor is None


@pytest.mark.rule("SQ-57")
def test_a_snippet_begins_near_the_first_span(history: History) -> None:
    history.say("s", "one two  three\nfour five six seven eight nine ten")
    refresh(history.db)
    cut = {n: phrase_search(history.db, "six", snippet_chars=n).items[0].best_match.snippet for n in (1, 9, 80)}
    assert cut == {1: "…", 9: "…ve six …", 80: "one two three four five six seven eight nine ten"}


def test_keys_are_neither_found_nor_shown(history: History) -> None:
    key = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    history.say("s", f"my token is {key} and no other")
    assert sessions(history, key) == []
    (item,) = phrase_search(history.db, "my token is").items
    assert "and no other" in item.best_match.snippet
    assert key[:20] not in item.best_match.snippet


@pytest.mark.rule("SQ-62")
def test_a_filter_of_very_many_values_is_refused_at_once(history: History) -> None:
    many = [{"kind": "id", "values": [f"s{n}" for n in range(125_000)]}]
    assert code(phrase_search, history.db, "a", session_filters=many) == "SESSION_QUERY_INVALID_FILTER"
    history.say("s7", "word")
    fits = [{"kind": "id", "values": [f"s{n}" for n in range(32_000)]}]
    assert sessions(history, "word", session_filters=fits) == ["s7"]


def test_many_forks_of_one_log_each_find_it(history: History) -> None:
    history.say("root", "shared word")
    for number in range(50):
        history.fork(f"f{number:02}", "root")
    assert sessions(history, "shared", limit=100) == [*(f"f{n:02}" for n in range(50)), "root"]
    history.turn("f07", 2, "shared shared", text("more"))
    assert sessions(history, "shared", limit=2) == ["f07", "f00"]
