"""The query language of people: what was typed, as an expression of the index and as tokens to find in text.

    two words        both, anywhere in one event
    "two words"      next to each other, in this order
    a OR b           either; binds closer than the blank between words
    -word            not this one (also -"two words")
    conf*            any word that begins so (two characters at least)

Everything else is literal: no typing makes the index refuse the query. Words are cut as documents are: a run of Chinese
or Japanese becomes a phrase of its characters, case and diacritics do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from dsh.core.lossless import mend_surrogates
from dsh.query.folding import cut
from dsh.store.functions import segment_text

MAX_TERMS = 200

# The words a `pre*` stands for: the most frequent ones. More would make wide prefixes slow without finding more that
# ranks well.
PREFIX_WORDS = 64
_SHORTEST_PREFIX = 2

_ITEM = re.compile(r'(?P<minus>-(?=["\w]))?(?:"(?P<phrase>[^"]*)"?|(?P<word>\S+))')


class Term(NamedTuple):
    """A word or phrase: its literal text and its tokens, as the index cuts and folds them. With `prefix` the last
    token may go on."""

    text: str
    tokens: tuple[str, ...]
    prefix: bool = False


@dataclass(slots=True)
class Query:
    """`groups` are ANDed, the terms inside one ORed; no `excluded` term may be there. `notes` say, for people, what
    was left out or read otherwise than it was perhaps meant."""

    groups: list[list[Term]] = field(default_factory=list)
    excluded: list[Term] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def terms(self) -> list[Term]:
        return [term for group in self.groups for term in group]


def parse(text: str) -> Query:
    """Read a query. A query without any word has no groups; its notes tell why."""
    query = Query()
    joined = False  # an OR waits for its right side
    open_group = False  # the item before was a term that an OR may continue
    items = list(_ITEM.finditer(mend_surrogates(text).replace("\0", " ")))
    for index, item in enumerate(items):
        minus = item["minus"] is not None
        if item["word"] == "OR" and not minus and open_group and _continues(items, index):
            joined = True
            continue
        term = _term(item, query.notes)
        if term is None:
            continue
        if minus:
            query.excluded.append(term)
        elif joined:
            query.groups[-1].append(term)
        else:
            query.groups.append([term])
        joined, open_group = False, not minus
    if len(query.terms) + len(query.excluded) > MAX_TERMS:
        query.notes.append(f"only the first {MAX_TERMS} words count")
        del query.groups[MAX_TERMS:], query.excluded[MAX_TERMS:]
    if not query.groups:
        query.notes.append("only words to leave out were given" if query.excluded else "there is no word to look for")
    return query


def _continues(items: list[re.Match[str]], index: int) -> bool:
    """Whether an OR has something to join on its right; otherwise it is the word "or"."""
    if index + 1 >= len(items):
        return False
    after = items[index + 1]
    return after["minus"] is None and after["word"] != "OR" and bool(cut(after["phrase"] or after["word"] or ""))


def _term(item: re.Match[str], notes: list[str]) -> Term | None:
    text = item["word"] if item["phrase"] is None else item["phrase"]
    tokens = cut(text)
    if not tokens:
        if text.strip():
            notes.append(f"{text} has no letter or digit and was left out")
        return None
    prefix = item["phrase"] is None and text.endswith("*") and text[-2:-1].isalnum()
    # A character of Chinese or Japanese is a token of its own, so a phrase of them is a beginning already.
    if prefix and segment_text(tokens[-1]) != tokens[-1]:
        prefix = False
    elif prefix and len(tokens[-1]) < _SHORTEST_PREFIX:
        notes.append(f"{text} was taken as a whole word: a beginning needs {_SHORTEST_PREFIX} characters")
        prefix = False
    return Term(text, tokens, prefix)


def expression(query: Query, words: Callable[[str, int], list[str]], tags: Iterable[Iterable[str]] = ()) -> str:
    """The MATCH expression. `words(prefix, limit)` gives the most frequent words of the index with that beginning;
    each of `tags` is a clause of which one tag must be there."""
    wanted = [_any(group, query.notes, words) for group in query.groups]
    clauses = [f"(text : ({' AND '.join(wanted)}))"]
    clauses += [f"(tags : ({' OR '.join(map(_quoted, clause))}))" for clause in tags]
    match = " AND ".join(clauses)
    if query.excluded:
        match = f"({match}) NOT (text : ({_any(query.excluded, query.notes, words)}))"
    return match


def _any(terms: list[Term], notes: list[str], words: Callable[[str, int], list[str]]) -> str:
    phrases = [phrase for term in terms for phrase in _phrases(term, notes, words)]
    return phrases[0] if len(phrases) == 1 else f"({' OR '.join(phrases)})"


def _phrases(term: Term, notes: list[str], words: Callable[[str, int], list[str]]) -> list[str]:
    if not term.prefix:
        return [_quoted(segment_text(term.text))]
    head, last = term.tokens[:-1], term.tokens[-1]
    found = words(last, PREFIX_WORDS + 1)
    if len(found) > PREFIX_WORDS:
        notes.append(f"{term.text} stands for its {PREFIX_WORDS} most frequent words")
    return [_quoted(" ".join((*head, word))) for word in found[:PREFIX_WORDS] or [last]]


def _quoted(text: str) -> str:
    escaped = text.replace('"', '""')
    return f'"{escaped}"'
