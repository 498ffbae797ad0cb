"""Cursors: what they are made of, when they are refused, when they go stale (SQ-58 to SQ-61, SQ-72)."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.core.errors import DshError
from dsh.core.lossless import dumps
from dsh.query.search import refresh
from dsh.query.service import phrase
from dsh.query.service.cursors import Place, cursor_at, fingerprint, offset_of
from dsh.query.service.phrase import phrase_search, phrase_search_events
from dsh.store import rewriting, writes
from dsh.store.database import Database
from tests.history import History, text
from tests.session.kit import World, code, whole_turn

HERE = Place("store", "sessions", "print", "1.2")
REDACTED = {"content": [text("****")], "source": {"kind": "user"}}
INVALID, STALE = "SESSION_QUERY_INVALID_CURSOR", "SESSION_QUERY_STALE_CURSOR"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """Four sessions that say the same, one with four events that do."""
    made = History(tmp_path / "dsh.db")
    for number in range(4):
        made.say(f"s{number}", "word")
    made.session("many")
    for turn in range(1, 5):
        made.turn("many", turn, "word", text("other"))
    refresh(made.db)
    yield made
    made.db.close()


def opened(cursor: str | None) -> Any:
    assert cursor is not None
    return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))


def closed(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def first(history: History, **more: Any) -> str:
    refresh(history.db)
    cursor = phrase_search(history.db, "word", limit=2, **more).next_cursor
    assert cursor is not None
    return cursor


def first_event(history: History, session: str = "many") -> str:
    refresh(history.db)
    cursor = phrase_search_events(history.db, session, "word", limit=2).next_cursor
    assert cursor is not None
    return cursor


def again(history: History, cursor: Any, query: str = "word", limit: int = 2, **more: Any) -> str | None:
    """The code of the refusal of the next page, None if there is none."""
    refresh(history.db)
    try:
        phrase_search(history.db, query, limit=limit, cursor=cursor, **more)
    except DshError as error:
        return str(error.code)
    return None


def again_event(history: History, cursor: Any, session: str = "many") -> str | None:
    refresh(history.db)
    try:
        phrase_search_events(history.db, session, "word", limit=2, cursor=cursor)
    except DshError as error:
        return str(error.code)
    return None


@pytest.mark.rule("SQ-58")
@settings(deadline=None)
@given(st.text(), st.text(), st.integers(0, 2**53 - 1))
def test_a_cursor_gives_back_its_offset(instance: str, generation: str, offset: int) -> None:
    place = Place(instance.encode(errors="ignore").decode(), "events", "f", generation.encode(errors="ignore").decode())
    cursor = cursor_at(place, offset)
    assert offset_of(cursor, place) == offset
    assert cursor.isascii()
    assert "=" not in cursor
    assert set(opened(cursor)) == {"version", "instance", "scope", "fingerprint", "generation", "offset"}
    assert opened(cursor)["version"] == 1


@pytest.mark.rule("SQ-58")
def test_the_fingerprint_is_of_the_request(history: History) -> None:
    def mark(text: str = "word", **more: Any) -> str:
        return phrase.request(text, **more).place("i", "g").fingerprint

    one, other = {"kind": "cwd", "values": ["/a", "/b"]}, {"kind": "id", "values": ["x"]}
    same = [
        mark(sessions=[one, other]),
        mark(" word\n", sessions=[other, {"kind": "cwd", "values": ["/b", "/a"]}], limit=20),
    ]
    assert len(set(same)) == 1
    different = [
        mark(), mark("words"), mark(limit=21), mark(session="s"), mark(session="t"), mark(sessions=[one]),
        mark(sessions=[one, one]), mark(sessions=[{"kind": "cwd", "values": ["/a", "/a", "/b"]}]),
        mark(events=[{"kind": "seq", "from": 1}]), mark(events=[{"kind": "seq", "to": 1}]),
        mark(session="s", events=[{"kind": "seq", "to": 1}]), *same[:1],
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert fingerprint("a", "b") != fingerprint("ab")


@pytest.mark.rule("SQ-59")
@settings(deadline=None)
@given(st.text() | st.binary() | st.none() | st.integers())
def test_what_is_no_cursor(cursor: Any) -> None:
    if cursor is not None:
        assert code(offset_of, cursor, HERE) == INVALID
    else:
        assert offset_of(None, HERE) == 0


@pytest.mark.rule("SQ-59")
@pytest.mark.parametrize(
    "change",
    [
        {"version": 2}, {"version": 1.0}, {"version": True}, {"instance": "x"}, {"scope": "events"},
        {"fingerprint": "x"}, {"offset": -1}, {"offset": 2**53}, {"offset": 1.0}, {"offset": True}, {"offset": "1"},
        {"offset": None}, {"offset": -1, "generation": "old"},
    ],
)  # fmt: skip
def test_a_changed_cursor_is_refused(change: dict[str, Any]) -> None:
    assert code(offset_of, closed({**opened(cursor_at(HERE, 2)), **change}), HERE) == INVALID


@pytest.mark.rule("SQ-59")
def test_a_cursor_of_another_state_is_stale() -> None:
    generations: list[Any] = ["old", None, 7, []]
    for generation in generations:
        assert code(offset_of, closed({**opened(cursor_at(HERE, 2)), "generation": generation}), HERE) == STALE
    values: list[Any] = [None, 1, [], "x", {}]
    for value in values:
        assert code(offset_of, closed(value), HERE) == INVALID
    whole = cursor_at(HERE, 2)
    for wrong in (whole + "=", whole[:-1], whole + "\n", "+" + whole, "[]", ""):
        assert code(offset_of, wrong, HERE) == INVALID


@pytest.mark.rule("SQ-59")
def test_a_cursor_belongs_to_its_request(history: History, tmp_path: Path) -> None:
    cursor = first(history)
    assert again(history, cursor) is None
    assert again(history, cursor, " word\n") is None
    assert again(history, cursor, limit=3) == INVALID
    assert again(history, cursor, "WORD") == INVALID  # found alike, asked otherwise
    assert again(history, cursor, session_filters=[{"kind": "created-at", "from": 0}]) == INVALID
    assert again_event(history, cursor) == INVALID
    assert again(history, first_event(history)) == INVALID
    assert again_event(history, first_event(history), "s0") == INVALID
    other = History(tmp_path / "other.db")
    for number in range(4):
        other.say(f"s{number}", "word")
    assert again(other, cursor) == INVALID
    other.db.close()


@pytest.mark.rule("SQ-59")
def test_an_unknown_target_comes_before_its_cursor(history: History) -> None:
    assert again_event(history, "no cursor", "no session") == "SESSION_QUERY_SESSION_NOT_FOUND"


@pytest.mark.rule("SQ-60", "SQ-72")
def test_any_change_ends_a_search_over_all(history: History) -> None:
    changes = [
        lambda: history.say("new", "nothing of it"),
        lambda: history.turn("s0", 2, "nothing", text("of it")),
        lambda: history.db.rows("UPDATE session SET hidden = 1 WHERE id = 'new'"),
        lambda: history.db.rows("UPDATE session SET hidden = NULL WHERE id = 'new'"),
        lambda: history.db.rows("DELETE FROM session WHERE id = 'new'"),
        lambda: rewriting.redact_event(history.db, "s1", 1, dumps(REDACTED)),
    ]
    for change in changes:
        cursor = first(history)
        assert again(history, cursor) is None
        change()
        assert again(history, cursor) == STALE
    cursor = first(history)
    history.db.rows("UPDATE session SET pinned = 1 WHERE id = 's2'")
    refresh(history.db)
    assert again(history, cursor) is None


@pytest.mark.rule("SQ-60", "SQ-72")
def test_only_its_own_changes_end_a_search_of_one_session(history: History) -> None:
    cursor = first_event(history)
    history.say("new", "word")
    history.turn("s0", 2, "word", text("word"))
    history.db.rows("DELETE FROM session WHERE id = 'new'")
    assert again_event(history, cursor) is None
    history.turn("many", 5, "nothing", text("of it"))
    assert again_event(history, cursor) == STALE
    cursor = first_event(history)
    rewriting.redact_event(history.db, "many", 1, dumps(REDACTED))
    assert again_event(history, cursor) == STALE


@pytest.mark.rule("SQ-60")
def test_a_fork_changes_when_what_it_inherited_is_rewritten(history: History) -> None:
    history.fork("child", "many")
    cursor = first_event(history, "child")
    history.turn("many", 5, "word", text("of the parent's own"))
    assert again_event(history, cursor, "child") is None
    rewriting.redact_event(history.db, "many", 1, dumps(REDACTED))
    assert again_event(history, cursor, "child") == STALE


@pytest.mark.rule("SQ-72")
def test_an_id_that_is_made_again_is_another_log(history: History) -> None:
    cursor = first_event(history)
    writes.delete_session(history.db, "many")
    history.session("many")
    for turn in range(1, 5):
        history.turn("many", turn, "word", text("other"))
    assert again_event(history, cursor) == STALE


@pytest.mark.rule("SQ-72")
def test_a_cursor_works_in_the_next_process(history: History) -> None:
    cursor = first(history)
    expected = [item.header["id"] for item in phrase_search(history.db, "word", limit=2, cursor=cursor).items]
    program = (
        "import sys; from pathlib import Path; from dsh.store.database import Database;"
        "from dsh.query.service.phrase import phrase_search;"
        "db = Database.open(Path(sys.argv[1]));"
        "print(*(i.header['id'] for i in phrase_search(db, 'word', limit=2, cursor=sys.argv[2]).items))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(history.path), cursor],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.split() == expected


@pytest.mark.rule("SQ-72")
def test_the_live_sessions_are_part_of_the_state(w: World) -> None:
    for number in range(3):
        whole_turn(w.session(f"s{number}"), "word")
    refresh(w.db)

    def page(cursor: str | None = None) -> Any:
        return phrase.search_sessions(w.db, phrase.request("word", limit=1, cursor=cursor), w.sessions)

    cursor = page().next_cursor
    assert page(cursor).items
    empty = w.session("empty")
    assert code(page, cursor) == STALE
    w.sessions.dispose(empty)
    assert page(cursor).items


class Meddler:
    """Nobody is live; who asks a second time, which a search does when it has begun, finds the world changed."""

    def __init__(self, change: Any) -> None:
        self._change = change
        self._asked = 0

    def live(self, id: str) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        self._asked += 1
        if self._asked == 2:
            self._change()
        return iter(())


@pytest.mark.rule("SQ-61")
def test_a_search_is_of_one_moment(history: History) -> None:
    other = Database.open(history.path)
    before = phrase_search(history.db, "word", limit=3)

    def change() -> None:
        writes.delete_session(other, before.items[0].header["id"])
        writes.insert_session(other, {"id": "new", "version": 0, "createdAt": 1})
        start = dumps({"turn": 1, "trigger": {"kind": "?"}})
        writes.insert_event(other, "new", 0, "turn/start", 1, start, None, None)
        writes.insert_event(
            other, "new", 1, "user/message", 1, dumps(REDACTED).replace("****", "word"), None, '"append"'
        )
        refresh(other)

    page = phrase.search_sessions(history.db, phrase.request("word", limit=3), Meddler(change))
    assert page == before  # the cursor, too
    assert code(phrase_search, history.db, "word", limit=3, cursor=page.next_cursor) == STALE
    assert "new" in [item.header["id"] for item in phrase_search(history.db, "word").items]
    other.close()


@pytest.mark.rule("SQ-61", "SQ-72")
def test_what_is_committed_after_indexing_is_not_searched_and_ends_the_cursor(history: History) -> None:
    """Another process commits between indexing and the search: items and generation still belong together."""
    other = Database.open(history.path)
    cursor = first_event(history)
    history.turn("many", 5, "word word", text("x"))  # and nobody has indexed it
    page = phrase_search_events(other, "many", "word", limit=2)
    assert page.next_cursor is not None
    assert page.items[0].seq < 40 or page.items[0].snippet != "word word"
    assert code(phrase_search_events, other, "many", "word", limit=2, cursor=cursor) == STALE
    refresh(history.db)
    assert code(phrase_search_events, other, "many", "word", limit=2, cursor=page.next_cursor) == STALE
    sessions = phrase_search(other, "word", limit=2).next_cursor
    history.say("late", "word")
    before_indexing = phrase_search(other, "word", limit=2, cursor=sessions)
    assert "late" not in [item.header["id"] for item in before_indexing.items]
    assert again(history, sessions) == STALE
    other.close()
