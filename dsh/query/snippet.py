"""A piece of an event's own text around the first match (SQ-57), and where the matches lie in it.

The index keeps no text, and what it was made from has spaces between CJK characters; so the place is found anew in the
text that people see. Cuts fall between code points.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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


def snippet(text: str, terms: Sequence[Term], limit: int) -> Snippet:
    """The snippet of an event's text for the terms that found it."""
    shown = tidy(text)
    folded = fold(shown)
    start, end, before, after = window(len(shown), _first(folded, terms), limit)
    shift = before - start
    piece = (ELLIPSIS if before else "") + shown[start:end] + (ELLIPSIS if after else "")
    spans = [(max(s, start) + shift, min(e, end) + shift) for s, e in _spans(folded, terms, start, end)]
    return Snippet(piece, tuple(spans))


def _parts(terms: Sequence[Term]) -> list[tuple[tuple[str, ...], bool]]:
    return [(term.tokens, term.prefix) for term in terms]


def _first(folded: str, terms: Sequence[Term]) -> int:
    """Where the first match begins; 0 if it cannot be told, as for a phrase of parts of a name."""
    places = [found[0] for tokens, prefix in _parts(terms) if (found := finder(tokens, prefix).first(folded))]
    if not places:
        single = [finder((token,), True).first(folded) for tokens, _ in _parts(terms) for token in tokens]
        places = [found[0] for found in single if found]
    return min(places, default=0)


def _spans(folded: str, terms: Sequence[Term], start: int, end: int) -> list[Span]:
    """The matches that lie in a window, whole words where there are any, merged where they touch."""
    found: list[Span] = []
    for tokens, prefix in _parts(terms):
        places = list(finder(tokens, prefix).spans(folded, start, end))
        whole = [span for is_whole, span in places if is_whole]
        found += whole or [span for _, span in places]
    merged: list[Span] = []
    for span in sorted(found):
        if merged and span[0] <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span[1]))
        else:
            merged.append(span)
    return merged
