"""Events that a regular expression matches, and the words that every match has in it: the index says where they are.

The pattern is read from left to right as far as it is plain: literal text, classes, groups, repeats. Whatever is not
understood (alternatives, look-around, references) makes it a pattern without words, which is searched in every event.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from dsh import query
from dsh.core.errors import UsageError
from dsh.core.lossless import dumps, loads, mend_surrogates
from dsh.core.secrets import mask
from dsh.query.folding import Span, cut
from dsh.query.search import Found, Result
from dsh.query.search_filters import Filters
from dsh.query.search_hits import Hits, tagged, words
from dsh.query.words import Query, Words, quoted
from dsh.store.database import Database
from dsh.store.functions import document_text
from dsh.store.spelling import is_own_word

_PAGE = 2000  # events read together
_MOST_SPANS = 100

SHORTEST = 3
_WORD = re.compile(r"[^\W_]+")
_OPENING = re.compile(r"\((?:\?(?::|[aims]+\)|P<\w+>))?")
_REPEAT = re.compile(r"(?P<open>[*?]|\{0*(?:,\d*)?\}|\{0+,\d*\})[?+]?|(?:\+|\{\d+(?:,\d*)?\})[?+]?")
_EDGES, _CLASSES, _BLANKS = "bsWAZ", "dwDSB", {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


class Needle(NamedTuple):
    """A word of a pattern, folded; whether it begins and ends there in every match."""

    word: str
    begins: bool
    ends: bool


class _Reader:
    def __init__(self) -> None:
        self.found: list[Needle] = []
        self._run = ""
        self._begins = False

    def add(self, character: str) -> None:
        self._run += character

    def drop(self) -> None:
        """The last character may be missing."""
        self._run = self._run[:-1]

    def end(self, edge: bool) -> None:
        """The literal text ends here; `edge` if no letter can follow it, nor come before what follows."""
        for word in _WORD.finditer(self._run):
            begins = self._begins or word.start() > 0
            ends = edge or word.end() < len(self._run)
            if all(map(is_own_word, word[0])):
                self.found.append(Needle(" ".join(cut(word[0])), True, True))
            elif word[0].isascii() and len(word[0]) >= SHORTEST:
                self.found.append(Needle(word[0].lower(), begins, ends))
        self._run, self._begins = "", edge


def needles(pattern: str) -> list[Needle]:
    """The words that every match has; none if there are none or they cannot be told. The pattern must be valid."""
    reader = _Reader()
    groups: list[int] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            after = pattern[at + 1]
            if after.isalnum() and after not in _EDGES + _CLASSES and after not in _BLANKS:
                return []
            if after in _EDGES + _CLASSES:
                repeat = _REPEAT.match(pattern, at + 2)
                reader.end(after in _EDGES and not (repeat and repeat["open"]))
            else:
                reader.add(_BLANKS.get(after, after))
            at += 2
            continue
        if character == "[":
            reader.end(False)
            at = _class_end(pattern, at)
            continue
        if character == "|":
            return []
        if character == "(":
            opening = _OPENING.match(pattern, at)
            assert opening is not None
            at = opening.end()
            if pattern[at : at + 1] == "?" and opening[0] == "(":
                return []
            reader.end(False)
            if not opening[0].endswith(")"):
                groups.append(len(reader.found))
            continue
        if character == ")":
            reader.end(False)
            begun = groups.pop() if groups else 0
            repeat = _REPEAT.match(pattern, at + 1)
            if repeat and repeat["open"]:
                del reader.found[begun:]
            at = repeat.end() if repeat else at + 1
            continue
        repeat = _REPEAT.match(pattern, at) if character in "*?+{" else None
        if repeat:
            if repeat["open"]:
                reader.drop()
            reader.end(False)
            at = repeat.end()
            continue
        if character in ".^$":
            reader.end(character != ".")
        else:
            reader.add(character)
        at += 1
    reader.end(False)
    return reader.found


def _class_end(pattern: str, at: int) -> int:
    """Behind the class of characters that begins at `at`."""
    at += 2 if pattern[at + 1 : at + 2] == "^" else 1
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


_MOST_WORDS = 1000


def narrowing(pattern: str, beginning: Words, having: Words) -> list[list[str]]:
    """For each usable word of the pattern the index words of which one must be there. `beginning` and `having` give
    at most so many words of the index that begin with, or have in them, what is given."""
    found = needles(pattern)
    clauses: list[list[str]] = []
    for needle in found:
        if needle.begins and needle.ends:
            clauses.append([needle.word])
        elif needle.begins:
            words = beginning(needle.word, _MOST_WORDS + 1)
            if len(words) <= _MOST_WORDS:
                clauses.append(words)
    if not clauses and found:
        words = having(max((needle.word for needle in found), key=len), _MOST_WORDS + 1)
        if len(words) <= _MOST_WORDS:
            clauses.append(words)
    return clauses


class RegexHits(Hits):
    """Events that a regular expression matches, newest first."""

    def __init__(
        self,
        db: Database,
        pattern: str,
        filters: Filters,
        result: Result,
        high: int,
        progress: Callable[[str], None] | None,
    ) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Python's about patterns that may mean something else one day
                self._pattern = re.compile(mend_surrogates(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"not a regular expression: {error}") from None
        self._progress = progress
        self._narrowed = narrowing(self._pattern.pattern, partial(words, db), partial(_words_with, db))
        super().__init__(db, Query(), filters, result, high, exhaustive=True, sort="time")

    def _narrow(self, match: str) -> str:
        clauses = [f"({{text parts}} : ({' OR '.join(map(quoted, clause))}))" for clause in self._narrowed if clause]
        if any(not clause for clause in self._narrowed):  # a word that no event has
            clauses.append('"\ue000"')
        return " AND ".join([*clauses, match])

    def best(self, limit: int, all_hits: bool) -> list[Found]:
        for found in self._matching():
            if all_hits or found.session_id not in self._sessions:
                self._found.append(found)
                self._sessions[found.session_id] = None
                if len(self._found) == limit:
                    break
        return self._found

    def totals(self, sessions: list[str]) -> dict[str, int]:
        totals: dict[str, int] = {}
        for found in self._matching(tagged(sessions)) if sessions else ():
            totals[found.owner_id] = totals.get(found.owner_id, 0) + 1
        return totals

    def count(self) -> int:
        return sum(1 for _ in self._matching())

    def _matching(self, within: str = "") -> Iterator[Found]:
        match = self._match + (f" AND {within}" if within else "")
        high, told = self._high, False
        while ids := self._ids(match, high, _PAGE):
            high = ids[-1] - 1
            if not self._narrowed and self._progress and not told and len(ids) == _PAGE:
                self._progress("the pattern has no word of three letters to look up, so every event is read")
                told = True
            spans = dict(self._spans(ids))
            for found in self._looked(list(spans)):
                yield found._replace(spans=spans[found.id])

    def _spans(self, ids: list[int]) -> Iterator[tuple[int, tuple[Span, ...]]]:
        for id_, type_, data in query.rows(self._db, "search_payloads", ids=dumps(ids)):
            try:
                text = mask(document_text(type_, loads(data)))
            except ValueError:  # a hole in the log says nothing (PE-55)
                continue
            spans = tuple(found.span() for found in islice(self._pattern.finditer(text), _MOST_SPANS))
            if spans:
                yield id_, spans


def _words_with(db: Database, part: str, limit: int) -> list[str]:
    return [str(row[0]) for row in query.rows(db, "search_words_with", part=part, limit=limit)]
