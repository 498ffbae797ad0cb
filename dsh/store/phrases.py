"""The auxiliary function of the search index that counts a phrase, so that no text is read to rank its hits.

`phrase_place(search)`, in a statement with `search MATCH '{text} : "…"'`, is one number, smaller for better hits: the
number of words of the text, less 2^32 for each time the phrase stands in it. Overlapping places are one, as highlight()
would mark them (SQ-54). Both figures come from the index alone.
"""

from __future__ import annotations

import apsw

_SPAN = 2**32
_TEXT = 0  # the column of the index that is what an event says


def _place(hit: apsw.FTS5ExtensionApi, /, *_: apsw.SQLiteValue) -> int:
    places = hit.phrase_column_offsets(0, _TEXT)
    spans, size = len(places), len(hit.phrases[0])
    if size > 1:
        spans, end = 0, -1
        for place in places:
            spans += place > end
            end = place + size - 1
    return hit.column_size(_TEXT) - spans * _SPAN


def read_place(number: int) -> tuple[int, int]:
    """What `phrase_place` says: how often the phrase is there, and how many words the text has."""
    times, words = divmod(number, _SPAN)
    return -times, words


def register(db: apsw.Connection) -> None:
    db.register_fts5_function("phrase_place", _place)
