"""The auxiliary function of the search index that ranks for people: BM25 without FTS5's count of every word.

FTS5's own `bm25` reads the whole list of each word of a query to learn how rare it is, twice: 40 ms for a word in half
a million documents, of which 5,000 are ranked. `relevance(search, weights)` is told how much each phrase weighs, as a
JSON object by its words; a phrase that is not named counts nothing. Words inside names (`parts`) count half, tags
nothing.
"""

from __future__ import annotations

from typing import Any

import apsw

from dsh.core.lossless import loads

_TEXT, _PARTS = 0, 1  # columns of the index
_K1, _B = 1.2, 0.75


def _relevance(hit: apsw.FTS5ExtensionApi, /, *arguments: apsw.SQLiteValue) -> float:
    """Larger is better."""
    state: Any = hit.aux_data
    if state is None:
        weights = loads(str(arguments[0]))
        named = [weights.get(" ".join(token or "" for token in phrase), 0) for phrase in hit.phrases]
        average = hit.column_total_size(_TEXT) / max(1, hit.row_count) or 1
        state = hit.aux_data = [(number, weight) for number, weight in enumerate(named) if weight], average
    phrases, average = state
    short = _K1 * (1 - _B + _B * hit.column_size(_TEXT) / average)
    score = 0.0
    for number, weight in phrases:
        places = hit.phrase_locations(number)
        times = len(places[_TEXT]) + len(places[_PARTS]) / 2
        if times:
            score += weight * times * (_K1 + 1) / (times + short)
    return score


def register(db: apsw.Connection) -> None:
    """Make the function known. Reads the file, so it must be known to be ours."""
    db.register_fts5_function("relevance", _relevance)
