"""Words of a query that stand in different events of one session: what is shown where no event has them all."""

from __future__ import annotations

from dsh.query.search import Result, Sort
from dsh.query.search_filters import Filters
from dsh.query.search_hits import Hits, tagged
from dsh.query.words import Query
from dsh.store.database import Database

_SESSIONS = 100  # of the rarest word, the newest; each is a term of the match
_MOST_GROUPS = 12


class SpreadHits(Hits):
    """Events with some of the words, in sessions that have all of them."""

    def __init__(self, db: Database, wanted: Query, filters: Filters, result: Result, high: int, *, sort: Sort) -> None:
        self._all_in = _sessions(db, wanted, filters, high)
        some = Query([[item for group in wanted.groups for item in group]], wanted.excluded)
        super().__init__(db, some, filters, result, high, exhaustive=False, sort=sort)

    @property
    def possible(self) -> bool:
        """Whether there is such a session."""
        return bool(self._all_in)

    def _narrow(self, match: str) -> str:
        return f"{tagged(self._all_in)} AND ({match})" if self._all_in else match


def _sessions(db: Database, wanted: Query, filters: Filters, high: int) -> list[str]:
    """The sessions that have a word of each group, those where the rarest was said last first."""
    if not 1 < len(wanted.groups) <= _MOST_GROUPS:
        return []
    parts = [
        Hits(db, Query([group], wanted.excluded), filters, Result(), high, exhaustive=False, sort="time")
        for group in wanted.groups
    ]
    parts.sort(key=lambda part: part.reach())
    found = parts[0].sessions([])[:_SESSIONS]
    for part in parts[1:]:
        if not found:
            break
        here = set(part.sessions(found))
        found = [session for session in found if session in here]
    return found
