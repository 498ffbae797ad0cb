"""What people look for is among the first three sessions found."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh.query.search import Filters, search
from dsh.store.database import Database
from tests.history import History
from tests.relevance import corpus

QUERIES = tomllib.loads((Path(__file__).parent / "queries.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    history = History(tmp_path_factory.mktemp("relevance") / "dsh.db")
    assert corpus.build(history) >= 200
    yield history.db
    history.db.close()


def place(db: Database, query: str, wanted: str) -> int | None:
    """Which of the sessions found is the wanted one; None if it is not among the first twenty."""
    hits = search(db, query, Filters(), limit=20, snippet_chars=200).hits
    found = [hit.session_id for hit in hits]
    return found.index(wanted) + 1 if wanted in found else None


@pytest.mark.slow
def test_the_wanted_session_is_among_the_first_three(db: Database) -> None:
    places = {query: place(db, query, wanted) for queries in QUERIES.values() for query, wanted in queries.items()}
    assert len(places) == 60
    missed = {query: at for query, at in places.items() if at is None or at > 3}
    assert len(missed) <= 3, missed
