"""A piece of an event's own text around the first match (SQ-57), and where the matches lie in it.

The index keeps no text, and what it was made from has spaces between CJK characters; so the place is found anew in the
text that people see. Cuts fall between code points.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from dsh.query.folding import Span, finder, fold
from dsh.query.words import Term

# The whitespace of docs/spec/session-query.md; Python's own class differs.
WHITESPACE = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_RUN = re.compile(f"[{WHITESPACE}]+")
ELLIPSIS = "…"


class Snippet(NamedTuple):
    """`matches` are (start, end) in code points of `text`, ascending, not overlapping."""

    text: str
    matches: tuple[Span, ...]


def tidy(text: str) -> str:
    """One line: every run of whitespace is one space, none at the ends."""
    return _RUN.sub(" ", text).strip(" ")


def window(length: int, first: int, limit: int) -> tuple[int, int, bool, bool]:
    """Which part of a text of `length` to show for a match at `first`, within `limit` characters in all: start, end,
    and whether an ellipsis stands before and after (SQ-57)."""
    if length <= limit:
        return 0, length, False, False
    if limit == 1:
        return 0, 0, False, True
    start = max(0, first - limit // 3)
    prefix = start > 0
    room = limit - prefix - 1
    if room < 1:
        return first, first + limit - prefix, prefix, False
    if first >= start + room:
        start = first - room + 1
    if start + room >= length:
        room = limit - prefix
        return max(0, length - room), length, prefix, False
    return start, start + room, prefix, True


_SPREAD = 300  # places of a term that are looked at for the best piece


def snippet(text: str, terms: Sequence[Term], limit: int) -> Snippet:
    """The snippet of an event's text for the terms that found it: the piece with the most of them."""
    shown = tidy(text)
    folded = fold(shown)
    start, end, before, after = window(len(shown), _first(folded, terms, limit), limit)
    return _piece(shown, start, end, before, after, _spans(folded, terms, start, end))


def marked(shown: str, terms: Sequence[Term]) -> tuple[Span, ...]:
    """Where terms stand in a text that is shown as it is."""
    return tuple(_spans(fold(shown), terms, 0, len(shown)))


def snippet_at(text: str, spans: Sequence[Span], limit: int) -> Snippet:
    """The snippet around places in the text itself; the first one is in it."""
    shown = _RUN.sub(" ", text)
    skipped = len(shown) - len(shown.lstrip(" "))
    shown = shown.strip(" ")
    places = []
    for start, end in spans:
        left = max(0, len(_RUN.sub(" ", text[:start])) - skipped)
        places.append((min(left, len(shown)), min(left + len(_RUN.sub(" ", text[start:end])), len(shown))))
        if left > places[0][0] + limit:
            break
    start, end, before, after = window(len(shown), places[0][0] if places else 0, limit)
    return _piece(shown, start, end, before, after, _merged(s for s in places if s[0] < end and s[1] > start))


def _piece(shown: str, start: int, end: int, before: bool, after: bool, spans: Sequence[Span]) -> Snippet:
    shift = before - start
    piece = (ELLIPSIS if before else "") + shown[start:end] + (ELLIPSIS if after else "")
    inside = [(max(s, start) + shift, min(e, end) + shift) for s, e in spans]
    return Snippet(piece, tuple(span for span in inside if span[0] < span[1]))


def _places(folded: str, term: Term, start: int = 0, end: int | None = None) -> list[Span]:
    """Where a term stands: as whole words, else inside of words, else as the parts of a name in other spelling."""
    forms = [(term.tokens, False)]
    if term.other:
        forms.append((term.other, False))
    if len(term.tokens) > 1:
        forms.append((term.tokens, True))
    for tokens, joined in forms:
        places = list(islice(finder(tokens, term.prefix, joined).spans(folded, start, end), _SPREAD))
        if places:
            return [span for whole, span in places if whole] or [span for _, span in places]
    return []


def _first(folded: str, terms: Sequence[Term], limit: int) -> int:
    """Where the best piece begins to match: the one with the most different terms, of several the first; 0 if no match
    can be told, as for a hexadecimal id that was only begun elsewhere."""
    places = sorted((span[0], number) for number, term in enumerate(terms) for span in _places(folded, term))
    if not places:
        single = [finder((token,), True).first(folded) for term in terms for token in term.tokens]
        return min((found[0] for found in single if found), default=0)
    room = max(1, limit * 2 // 3)
    best, most, end = places[0][0], 0, 0
    inside: dict[int, int] = {}
    for at, number in places:
        while end < len(places) and places[end][0] < at + room:
            inside[places[end][1]] = inside.get(places[end][1], 0) + 1
            end += 1
        if len(inside) > most:
            best, most = at, len(inside)
        inside[number] -= 1
        if not inside[number]:
            del inside[number]
    return best


def _spans(folded: str, terms: Sequence[Term], start: int, end: int) -> list[Span]:
    """The matches that lie in a window, whole words where there are any, merged where they touch."""
    return _merged(span for term in terms for span in _places(folded, term, start, end))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span[0] <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span[1]))
        else:
            merged.append(span)
    return merged
