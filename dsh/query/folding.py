"""Text as the index sees it, and where its words stand in the text that people see.

The index (`unicode61`) folds case and diacritics and cuts at everything that is not a letter or digit; CJK characters
are words of their own (dsh.store.functions). `fold` does the same character by character, so that positions in the
folded text are positions in the original.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from dsh.store.functions import segment_text

_TOKEN = re.compile(r"[^\W_]+")
_MARKS = "[\u0300-\u036f]"
_MARK = re.compile(_MARKS)

Span = tuple[int, int]


class _Folding(dict[int, int]):
    """A translation table that learns each character when it is first met."""

    def __missing__(self, code: int) -> int:
        character = chr(code)
        base, *rest = list(unicodedata.normalize("NFD", character))
        if any(not unicodedata.combining(mark) for mark in rest):  # hangul falls apart into letters, not marks
            base = character
        lowered = base.lower()
        self[code] = folded = ord(lowered[0])
        return folded


_folding = _Folding()


def fold(text: str) -> str:
    """Lower case without diacritics, of the same length; combining marks that stand alone stay."""
    return text.lower() if text.isascii() else text.translate(_folding)


def cut(text: str) -> tuple[str, ...]:
    """The tokens of a text, folded."""
    folded = fold(segment_text(text))
    return tuple(_TOKEN.findall(folded if folded.isascii() else _MARK.sub("", folded)))


def _own_word(character: str) -> bool:
    """Whether this character is a token by itself, whatever stands beside it."""
    return segment_text(character) != character


class Finder:
    """Finds a term (tokens in a row, the last perhaps only begun) in folded text."""

    def __init__(self, tokens: Sequence[str], prefix: bool) -> None:
        self._plain = re.compile(_pattern(tokens, ""))
        self._marked = re.compile(_pattern(tokens, _MARKS + "*"))
        self._free_left = _own_word(tokens[0][0])
        self._free_right = prefix or _own_word(tokens[-1][-1])

    def spans(self, folded: str, start: int = 0, end: int | None = None) -> Iterator[tuple[bool, Span]]:
        """Every place from `start` on that begins before `end`, and whether it is made of whole words."""
        pattern = self._plain if folded.isascii() or not _MARK.search(folded) else self._marked
        for found in pattern.finditer(folded, start):
            left, right = found.span()
            if end is not None and left >= end:
                return
            yield self._whole(folded, left, right), (left, right)

    def first(self, folded: str) -> Span | None:
        """The first place of whole words, else the first inside a word: a part of a camelCase name is found so."""
        inside: Span | None = None
        for whole, span in self.spans(folded):
            if whole:
                return span
            inside = inside or span
        return inside

    def _whole(self, folded: str, left: int, right: int) -> bool:
        before, after = folded[left - 1 : left], folded[right : right + 1]
        return (self._free_left or not before.isalnum() or _own_word(before)) and (
            self._free_right or not after.isalnum() or _own_word(after)
        )


def _pattern(tokens: Sequence[str], marks: str) -> str:
    parts: list[str] = []
    for index, token in enumerate(tokens):
        if index:
            touching = _own_word(tokens[index - 1][-1]) or _own_word(token[0])
            parts.append(r"[\W_]*" if touching else r"[\W_]+")
        parts.append(marks.join(re.escape(c) for c in token) + marks)
    return "".join(parts)


@lru_cache(maxsize=64)
def finder(tokens: tuple[str, ...], prefix: bool) -> Finder:
    return Finder(tokens, prefix)
