"""The function that ranks for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh.store import writes
from tests.history import History


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "dsh.db")
    yield made
    made.db.close()


def scores(history: History, match: str, weights: str) -> dict[str, float]:
    writes.refresh_search(history.db)
    rows = history.db.rows(
        "SELECT d.session_id, relevance(search, ?) FROM search JOIN search_document d ON d.id = search.rowid"
        " WHERE search MATCH ?",
        (weights, match),
    )
    return dict(rows)


@pytest.mark.rule("SQ-83")
def test_it_is_bm25_of_the_named_phrases(history: History) -> None:
    history.say("once", "walrus and seal", "")
    history.say("twice", "walrus walrus seal", "")
    history.say("long", "walrus " + "and other words that make it long " * 5, "")
    found = scores(history, "{text parts} : (walrus)", '{"walrus": 2.0}')
    # Three documents of 3, 3 and 36 words, and three answers and ends of turns that say nothing.
    average = 42 / len(history.db.rows("SELECT rowid FROM search"))
    for session, times, words in (("once", 1, 3), ("twice", 2, 3), ("long", 1, 36)):
        wanted = 2.0 * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * words / average))
        assert found[session] == pytest.approx(wanted), session
    assert found["twice"] > found["once"] > found["long"]


@pytest.mark.rule("SQ-83")
def test_parts_count_half_and_what_is_not_named_nothing(history: History) -> None:
    history.say("plain", "see walrus there", "")
    history.say("part", "see bigWalrus there", "")
    found = scores(history, "{text parts} : (walrus)", '{"walrus": 1}')
    assert found["plain"] > found["part"] > 0
    assert set(scores(history, "{text parts} : (walrus AND see)", '{"other": 1}').values()) == {0.0}
    both = scores(history, '{text parts} : ("see walrus" OR there)', '{"see walrus": 1}')
    assert both["plain"] > 0
    assert both["part"] == 0
