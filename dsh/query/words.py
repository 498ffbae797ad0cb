"""The query language of people: what was typed, as an expression of the index and as tokens to find in text.

    two words           both, anywhere in one event
    "two words"         next to each other, in this order
    a OR b              either; binds closer than the blank between words
    a NEAR b, NEAR/5    at most 10 (or 5) words between them; binds closest
    -word               not this one (also -"two words")
    conf*               any word that begins so (two characters at least)
    role:user           a filter, if its name is known and its value makes sense

Everything else is literal: no typing makes the index refuse the query. Words are spelled as documents are
(dsh.store.spelling), so case and diacritics do not count and a run of Chinese is a phrase of its characters. Outside of
quotes an English word finds its plural or singular, a name in camelCase its parts under any other spelling of it, the
first six digits a hexadecimal id, and a version is found with or without its v.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from dsh.core.lossless import mend_surrogates
from dsh.query.folding import cut
from dsh.store.spelling import is_own_word, name_parts, segment_text

MAX_TERMS = 200

# The words a `pre*` stands for: the most frequent ones. More would make wide prefixes slow without finding more that
# ranks well.
PREFIX_WORDS = 64
_SHORTEST_PREFIX = 2
_SHORTEST_PLURAL = 4
_NEAR = 10
_FARTHEST = 1_000_000

_ITEM = re.compile(
    r'(?P<minus>-(?=["\w]))?(?:(?P<name>[a-z]+):(?P<value>"[^"]*"(?!\S)|[^\s"]\S*)|"(?P<phrase>[^"]*)"?|(?P<word>\S+))'
)
_LITERAL = re.compile(r"(?P<minus>(?!))?(?P<name>(?!))?(?P<value>(?!))?(?P<phrase>(?!))?(?P<word>\S+)")

Filter = Callable[[str, str], bool]
Words = Callable[[str, int], list[str]]


class Term(NamedTuple):
    """A word or phrase: its literal text and its tokens, as the index cuts and folds them. With `prefix` the last
    token may go on. `other` is said in other words and found as well: the parts of a name in camelCase, or the
    plural or singular of an English word."""

    text: str
    tokens: tuple[str, ...]
    prefix: bool = False
    other: tuple[str, ...] = ()


class Near(NamedTuple):
    """Terms with at most `distance` words between them."""

    terms: tuple[Term, ...]
    distance: int


@dataclass(slots=True)
class Query:
    """`groups` are ANDed, the items inside one ORed; no `excluded` term may be there. `notes` say, for people, what
    was left out or read otherwise than it was perhaps meant. `phrases` are those that `expression` asks for, each
    with the one that it stands beside."""

    groups: list[list[Term | Near]] = field(default_factory=list)
    excluded: list[Term] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    phrases: dict[str, str] = field(default_factory=dict)

    @property
    def terms(self) -> list[Term]:
        """Every term that may be found, in the order typed."""
        items = (item for group in self.groups for item in group)
        return [term for item in items for term in (item.terms if isinstance(item, Near) else (item,))]


def parse(text: str, is_filter: Filter | None = None, *, literal: bool = False) -> Query:
    """Read a query. A query without any word has no groups; its notes tell why.

    `is_filter(name, value)` is asked about each `name:value` and takes it up if it can; what it refuses is text. With
    `literal` there are no operators at all.
    """
    query = Query()
    items = list((_LITERAL if literal else _ITEM).finditer(mend_surrogates(text).replace("\0", " ")))
    pending = ""  # an OR or NEAR that waits for its right side
    open_group = False  # the item before was a term that an operator may continue
    filtered = False
    for index, item in enumerate(items):
        word = item["word"]
        operates = not literal and word and not item["minus"] and _operator(word)
        if operates and open_group and not pending and _continues(items, index):
            pending = word
            continue
        if item["name"] and not item["minus"] and is_filter and is_filter(item["name"], item["value"].strip('"')):
            filtered, pending, open_group = True, "", False
            continue
        term = _term(item, query.notes, literal)
        if term is None:
            continue
        if item["minus"]:
            query.excluded.append(term)
        elif pending:
            _join(query.groups[-1], term, pending)
        else:
            query.groups.append([term])
        pending, open_group = "", not item["minus"]
    if len(query.terms) + len(query.excluded) > MAX_TERMS:
        query.notes.append(f"only the first {MAX_TERMS} words count")
        del query.groups[MAX_TERMS:], query.excluded[MAX_TERMS:]
        for group in query.groups:
            del group[MAX_TERMS // len(query.groups) or 1 :]
    if not query.groups and not filtered:
        query.notes.append("only words to leave out were given" if query.excluded else "there is no word to look for")
    return query


def _operator(word: str) -> bool:
    return word == "OR" or word == "NEAR" or re.fullmatch(r"NEAR/\d{1,6}", word) is not None


def _continues(items: list[re.Match[str]], index: int) -> bool:
    """Whether an operator has something to join on its right; otherwise it is a word like any other."""
    if index + 1 >= len(items):
        return False
    after = items[index + 1]
    return after["minus"] is None and not _operator(after["word"] or "") and bool(cut(_said(after)))


def _said(item: re.Match[str]) -> str:
    """The text of an item that is no operator; `word:` and `name:value` are text, too."""
    if item["phrase"] is not None:
        return item["phrase"]
    return item["word"] or f"{item['name']}:{item['value']}"


def _join(group: list[Term | Near], term: Term, operator: str) -> None:
    if operator == "OR":
        group.append(term)
        return
    before = group[-1]
    distance = min(int(operator[5:] or _NEAR) if len(operator) > 4 else _NEAR, _FARTHEST)
    if isinstance(before, Near):
        group[-1] = Near((*before.terms, term), max(before.distance, distance))
    else:
        group[-1] = Near((before, term), distance)


def _term(item: re.Match[str], notes: list[str], literal: bool) -> Term | None:
    text = _said(item)
    tokens = cut(text)
    if not tokens:
        if text.strip():
            notes.append(f"{text} has no letter or digit and was left out")
        return None
    if item["phrase"] is not None:
        return Term(text, tokens)
    prefix = not literal and text.endswith("*") and text[-2:-1].isalnum()
    # A character of Chinese or Japanese is a token of its own, so a phrase of them is a beginning already.
    if prefix and is_own_word(text[-2]):
        prefix = False
    elif prefix and len(tokens[-1]) < _SHORTEST_PREFIX:
        notes.append(f"{text} was taken as a whole word: a beginning needs {_SHORTEST_PREFIX} characters")
        prefix = False
    if prefix or literal:
        return Term(text, tokens, prefix)
    parts = cut(name_parts(text))
    return Term(text, tokens, other=parts if len(parts) > 1 else _inflected(tokens))


def _inflected(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """The plural of an English word, or its singular; nothing of anything else."""
    word = tokens[0]
    if len(tokens) > 1 or len(word) < _SHORTEST_PLURAL or not word.isascii() or not word.isalpha():
        return ()
    if word.endswith("ies"):
        return (word[:-3] + "y",)
    if word.endswith(("ses", "xes", "zes", "ches", "shes")):
        return (word[:-2],)
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return (word[:-1],)
    if word.endswith("y") and word[-2] not in "aeou":
        return (word[:-1] + "ies",)
    return (word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s"),)


def literal_phrase(text: str) -> Term | None:
    """A text as one phrase; None if it has no word."""
    tokens = cut(text)
    return Term(text, tokens) if tokens else None


# ---------------------------------------------------------------------------------------------------- the expression


def expression(query: Query, words: Words, tags: Iterable[Iterable[str]] = ()) -> str:
    """The MATCH expression. `words(prefix, limit)` gives the most frequent words of the index with that beginning;
    each of `tags` is a clause of which one tag must be there. Empty if nothing has to be there."""
    chosen = [[(item, _choices(item, query.notes, words)) for item in group] for group in query.groups]
    for group in chosen:
        for item, phrases in group:
            for phrase in phrases:
                query.phrases.setdefault(phrase, phrase if isinstance(item, Near) else phrases[0])
    groups = [_any([_asked(item, phrases) for item, phrases in group]) for group in chosen]
    clauses = [_said_in(" AND ".join(groups))] if groups else []
    clauses += [f"(tags : ({' OR '.join(map(quoted, clause))}))" for clause in tags]
    match = " AND ".join(clauses)
    if query.excluded and match:
        excluded = [quoted(phrase) for term in query.excluded for phrase in _phrases(term, query.notes, words)]
        match = f"({match}) NOT {_said_in(_any(excluded))}"
    return match


def _said_in(expression: str) -> str:
    return f"({{text parts}} : ({expression}))"


def _any(phrases: list[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"({' OR '.join(phrases)})"


def _asked(item: Term | Near, phrases: list[str]) -> str:
    if isinstance(item, Near):
        near = " ".join(quoted(phrase) + " *" * term.prefix for term, phrase in zip(item.terms, phrases, strict=True))
        return f"NEAR({near}, {item.distance})"
    return _any(list(map(quoted, phrases)))


def _choices(item: Term | Near, notes: list[str], words: Words) -> list[str]:
    """The phrases that an item stands for: any of them, or of terms that are near each other all."""
    if isinstance(item, Near):
        return [segment_text(term.text) for term in item.terms]
    phrases = _phrases(item, notes, words)
    if item.other:
        phrases.append(" ".join(item.other))
    if len(item.tokens) == 1 and not item.prefix and re.fullmatch("[0-9a-f]{6,}", item.tokens[0]):
        longer = words(item.tokens[0], PREFIX_WORDS)
        phrases += [word for word in longer if word != item.tokens[0] and re.fullmatch("[a-f]*[0-9][0-9a-f]*", word)]
    elif re.fullmatch(r"[vV]?\d+(?:\.\d+)+", item.text):
        phrases.append(item.text[1:] if item.text[0] in "vV" else f"v{item.text}")
    return phrases


def _phrases(term: Term, notes: list[str], words: Words) -> list[str]:
    if not term.prefix:
        return [segment_text(term.text)]
    head, last = term.tokens[:-1], term.tokens[-1]
    found = words(last, PREFIX_WORDS + 1)
    if len(found) > PREFIX_WORDS:
        notes.append(f"{term.text} stands for its {PREFIX_WORDS} most frequent words")
    return [" ".join((*head, word)) for word in found[:PREFIX_WORDS] or [last]]


def quoted(text: str) -> str:
    """A phrase of an expression."""
    escaped = text.replace('"', '""')
    return f'"{escaped}"'
