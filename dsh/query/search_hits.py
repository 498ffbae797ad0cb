"""The hits of one search of people, best first: what the index is asked, what is looked at, how it is ranked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial

from dsh import query
from dsh.core.lossless import dumps
from dsh.query import search as searching
from dsh.query.folding import cut
from dsh.query.search import Found, Result, Sort
from dsh.query.search_filters import Filters
from dsh.query.words import Query, expression, quoted
from dsh.store.database import Database
from dsh.store.functions import DOCUMENT_TYPES, OWN, OWN_TYPES, session_tag, type_tag

_LOOK = 400  # hits looked at together, and ranked by all that counts
_ROUNDS = 4  # of leaving out the sessions that were found, where one of them has very many of the newest hits
_GROUP = 100  # sessions searched together: each is a term that every hit is asked about
_BATCH = 1000
_COUNTED = 20_000  # hits that are counted by session
_ALL = 2**53
_SAMPLE = 1000  # hits that tell how frequent a phrase is
_WEIGHED = 12  # phrases that are; for more FTS5 is faster
_DAY_MS = 86_400_000

# Ranking. A document of a tool is as good as a person's words if its words are half as rare again; what is two years
# old has five eighths of the weight; a word in another form counts four fifths; the second best hit of a session adds a
# half, the third a quarter.
_OWN = 1.5
_OTHER = 0.8
_OLD = 0.5
_HALF_LIFE_DAYS = 365
_SESSION = 0.5
_SESSION_HITS = 6


class Hits:
    """One search in one snapshot."""

    def __init__(
        self, db: Database, wanted: Query, filters: Filters, result: Result, high: int, *, exhaustive: bool, sort: Sort
    ) -> None:
        self.wanted = wanted
        self._db = db
        self._filters = filters
        self._result = result
        self._high = high
        self._newest = _ALL if exhaustive else searching.NEWEST
        self._by_time = sort == "time" or not wanted.groups
        self._owners: dict[str, int] = {}
        self._found: list[Found] = []
        self._sessions: dict[str, None] = {}
        self._allowed: set[str] | None = None
        self._limit = 0
        self._weights: str | None = None  # of phrases, as JSON; empty where FTS5 itself is to weigh them
        clauses = filters.tags()
        if filters.session is not None:
            self._owners = dict(query.rows(db, "search_lineage", session=filters.session))
            clauses.append([session_tag(owner) for owner in self._owners])
        if filters.models:
            rows = [query.rows(db, "search_model_sessions", part=part) for part in filters.models]
            self._allowed = {row[0] for found in rows for row in found}
        if not wanted.groups and not clauses:
            clauses.append([type_tag(type_) for type_ in DOCUMENT_TYPES if type_ != "turn/end"])
        self._match = expression(wanted, partial(words, db), clauses)
        self._match = self._narrow(self._match)
        if filters.session is None:
            unseen = [row[0] for row in query.rows(db, "search_unseen", limit=_GROUP)]
            if unseen:  # not needed for what is found, but they would take the place of others among the newest hits
                self._match = f"({self._match}) NOT {tagged(unseen)}"

    def _narrow(self, match: str) -> str:
        """The expression with what else must be in the index for an event to match."""
        return match

    def best(self, limit: int, all_hits: bool) -> list[Found]:
        """The hits to show, best first."""
        self._limit = limit
        for group in self._groups():
            match = f"{tagged(group)} AND ({self._match})" if group else self._match
            if self._collect(match, limit, all_hits):
                break
        return self._found

    def totals(self, sessions: list[str]) -> dict[str, int]:
        """How many hits there are in each of some sessions that wrote them."""
        if not sessions:
            return {}
        match = f"{tagged(sessions)} AND ({self._match})"
        if self._filters.tools or self._owners:
            totals: dict[str, int] = {}
            for found in self._looked(self._ids(match, self._high, _COUNTED)):
                totals[found.owner_id] = totals.get(found.owner_id, 0) + 1
            return totals
        filters = self._filters
        return dict(
            query.rows(
                self._db, "search_counts", match=match, high=self._high, since=filters.since, until=filters.until,
                limit=_COUNTED,
            )
        )  # fmt: skip

    def count(self) -> int:
        """How many events match."""
        filters = self._filters
        if not (filters.timed or filters.tools or self._owners or self._allowed is not None):
            hidden = query.row(self._db, "search_hidden")
            if hidden is None:
                row = query.row(self._db, "search_count", match=self._match, high=self._high)
                return row[0] if row else 0
        ids = self._ids(self._match, self._high, _ALL)
        return sum(len(self._looked(ids[at : at + _BATCH])) for at in range(0, len(ids), _BATCH))

    def reach(self) -> float:
        """How frequent hits are, as a number to compare."""
        bound = self._bound(self._match)
        if bound is not None:
            return self._newest / max(1, self._high - bound)
        row = query.row(self._db, "search_count", match=self._match, high=self._high)
        return (row[0] if row else 0) / max(1, self._high)

    def sessions(self, among: list[str]) -> list[str]:
        """The sessions that wrote the newest hits, each once, newest first; if any are given, those among them."""
        match = f"{tagged(among)} AND ({self._match})" if among else self._match
        found: dict[str, None] = {}
        ids = self._ids(match, self._high, _COUNTED if among else self._newest)
        for at in range(0, len(ids), _BATCH):
            found.update((each.owner_id, None) for each in self._looked(ids[at : at + _BATCH]))
        return list(found)

    # ------------------------------------------------------------------------------------------------- which are asked

    def _groups(self) -> Iterator[list[str]]:
        """The sessions to search, one group after the other; an empty group is all there are.

        Few sessions reach into most spans of time, or used a model, and their tags keep the search to them. If many
        did, either hits are few and each is looked at, or hits are many and groups of sessions, newest first, soon have
        enough of them.
        """
        filters = self._filters
        if (not filters.timed and self._allowed is None) or self._owners:
            yield []
            return
        rows = query.rows(self._db, "sessions_in_time", since=filters.since, until=filters.until)
        sessions = [row[0] for row in rows if self._allowed is None or row[0] in self._allowed]
        if len(sessions) > _GROUP:
            if self._bound(self._match) is None:
                yield []
                return
            self._result.capped = True
        for at in range(0, len(sessions), _GROUP):
            yield sessions[at : at + _GROUP]

    def _collect(self, match: str, limit: int, all_hits: bool) -> bool:
        """Find hits until there are `limit`; whether there are."""
        for _ in range(_ROUNDS):
            rest = match
            if self._sessions and not all_hits:
                rest = f"({match}) NOT {tagged(self._sessions)}"
            before = len(self._sessions)
            bound = self._bound(rest)
            self._result.capped = self._result.capped or bound is not None
            for batch in self._batches(rest, bound + 1 if bound is not None else 0):
                for found in _best_of_each(batch, self._by_time) if not all_hits else [each for _, each in batch]:
                    if all_hits or found.session_id not in self._sessions:
                        self._found.append(found)
                        self._sessions[found.session_id] = None
                        if len(self._found) == limit:
                            return True
            if all_hits or bound is None or len(self._sessions) == before:
                break
        return False

    def _bound(self, match: str) -> int | None:
        """The id below which hits are too old to be ranked; None if there are not so many."""
        row = query.row(self._db, "search_bound", match=match, high=self._high, newest=self._newest)
        return row[0] if row else None

    def _batches(self, match: str, low: int) -> Iterator[list[tuple[float, Found]]]:
        """Hits with their scores, best first; those of a later batch are hardly better than those of one before."""
        if self._by_time:
            ids = self._ids(match, self._high, self._newest, low)
            found = [each for at in range(0, len(ids), _BATCH) for each in self._looked(ids[at : at + _BATCH])]
            found.sort(key=lambda each: (-each.time, -each.id))
            yield [(0.0, each) for each in found]
            return
        scores = self._scores(match, low)
        for at in range(0, len(scores), _LOOK):
            batch = dict(scores[at : at + _LOOK])
            looked = self._looked(list(batch))
            newest = max((each.time for each in looked), default=0)
            scored = [(batch[each.id] * _recency(newest - each.time), each) for each in looked]
            scored.sort(key=lambda pair: (-pair[0], -pair[1].id))
            yield scored

    def _scores(self, match: str, low: int) -> list[tuple[int, float]]:
        """Ids of hits and what they score before their time counts, best first."""
        if self._weights is None:
            phrases = self.wanted.phrases
            few = len(phrases) <= _WEIGHED
            self._weights = dumps(_weights(self._db, phrases, self._high)) if few else ""
        span = {"match": match, "low": low, "high": self._high}
        if self._weights and not self._too_many(match):
            rows = query.rows(self._db, "search_relevant", weights=self._weights, **span)
        else:
            most = max(self._limit, searching.NEWEST)
            rows = [(id_, -rank) for id_, rank in query.rows(self._db, "search_ranked", limit=most, **span)]
        own: set[int] = set()
        types = self._filters.types
        if not self._filters.tools and (not types or OWN_TYPES.intersection(types)):
            own.update(self._ids(f'({match}) AND tags : "{OWN}"', self._high, self._newest, low))
        scores = [(id_, score * (_OWN if id_ in own else 1.0)) for id_, score in rows]
        scores.sort(key=lambda pair: (-pair[1], -pair[0]))
        return scores

    def _too_many(self, match: str) -> bool:
        """Whether all of very many hits are to be ranked, which FTS5 does faster itself."""
        newest = searching.NEWEST
        return self._newest > newest and bool(
            query.row(self._db, "search_bound", match=match, high=self._high, newest=newest)
        )

    def _ids(self, match: str, high: int, limit: int, low: int = 0) -> list[int]:
        rows = query.rows(self._db, "search_newest", match=match, low=low, high=high, limit=limit)
        return [row[0] for row in rows]

    # ---------------------------------------------------------------------------------------------------- looked at

    def _looked(self, ids: list[int]) -> list[Found]:
        """Those of some documents that are to be found, in this order."""
        filters = self._filters
        found: list[Found] = []
        for id_, session_id, owner_id, seq, type_, time in query.rows(
            self._db, "search_heads", ids=dumps(ids), session=filters.session
        ):
            if session_id is None or not filters.admits(time):
                continue
            if self._owners and seq > self._owners.get(owner_id, -1):
                continue
            if self._allowed is not None and session_id not in self._allowed:
                continue
            found.append(Found(id_, session_id, owner_id, seq, type_, time))
        if filters.tools:
            results = [each.id for each in found if each.type == "tool/result"]
            names = dumps(list(filters.tools))
            kept = {row[0] for row in query.rows(self._db, "search_tools", ids=dumps(results), names=names)}
            found = [each for each in found if each.type != "tool/result" or each.id in kept]
        return found


def _weights(db: Database, phrases: dict[str, str], high: int) -> dict[str, float]:
    """How much each phrase weighs, by its words: more if what was typed is rare. How rare a frequent phrase is can be
    told from how far back its newest hits reach."""
    weights: dict[str, float] = {}
    for phrase in set(phrases.values()):
        match = f"{{text parts}} : {quoted(phrase)}"
        row = query.row(db, "search_bound", match=match, high=high, newest=_SAMPLE)
        if row is not None:
            share = _SAMPLE / max(1, high - row[0])
        else:
            counted = query.row(db, "search_count", match=match, high=high)
            share = (counted[0] if counted else 0) / max(1, high)
        weights[phrase] = math.log(1 + 1 / (share + 1 / max(1, high)))
    return {
        " ".join(cut(phrase)): weights[base] * (1 if phrase == base else _OTHER) for phrase, base in phrases.items()
    }


def _recency(age_ms: int) -> float:
    return float(_OLD + (1 - _OLD) * 0.5 ** (age_ms / _DAY_MS / _HALF_LIFE_DAYS))


def _best_of_each(scored: list[tuple[float, Found]], by_time: bool) -> list[Found]:
    """The best hit of each session, the best session first. `scored` is sorted."""
    best: dict[str, Found] = {}
    together: dict[str, list[float]] = {}
    for score, found in scored:
        best.setdefault(found.session_id, found)
        together.setdefault(found.session_id, []).append(score)
    if by_time:
        return list(best.values())

    def of(session: str) -> float:
        return sum(score * _SESSION**place for place, score in enumerate(together[session][:_SESSION_HITS]))

    return [best[session] for session in sorted(best, key=of, reverse=True)]


def words(db: Database, prefix: str, limit: int) -> list[str]:
    """The most frequent indexed words that begin with `prefix`, folded as the index folds."""
    after = prefix[:-1] + chr(min(ord(prefix[-1]) + 1, 0x10FFFF))
    return [str(row[0]) for row in query.rows(db, "search_words", low=prefix, high=after, limit=limit)]


def tagged(sessions: Iterable[str]) -> str:
    """The expression of what is in one of these sessions."""
    return f"(tags : ({' OR '.join(map(_quoted_tag, sessions))}))"


def _quoted_tag(session_id: str) -> str:
    return f'"{session_tag(session_id)}"'
