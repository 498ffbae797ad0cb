"""Text as the index sees it, and where its words stand in the text that people see.

The index folds case and diacritics, cuts at everything that is not a letter or digit, and knows words of its own making
(dsh.store.spelling). `fold` does the same character by character, so that positions in the folded text are positions in
the original; letters that stand for two stay, and are known to a `Finder`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from dsh.store.spelling import LETTERS, is_own_word, segment_text, shown_character, spelled

_TOKEN = re.compile(r"[^\W_]+")
_MARKS = "[\u0300-\u036f]"
_MARK = re.compile(_MARKS)
_TWO = {
    letters.lower(): character for character, letters in LETTERS.items() if len(letters) > 1 and character.islower()
}
_PAIRS = re.compile("|".join(sorted(_TWO, key=len, reverse=True)))
_UNUSUAL = re.compile(f"[{''.join(_TWO.values())}\u0300-\u036f]")

Span = tuple[int, int]


class _Folding(dict[int, int]):
    """A translation table that learns each character when it is first met."""

    def __missing__(self, code: int) -> int:
        character = chr(code)
        letters = spelled(character)
        if len(letters) == 1:
            character = letters
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


class Finder:
    """Finds a term (tokens in a row, the last perhaps only begun) in folded text. With `joined` they may stand without
    anything between them, as the parts of a name do."""

    def __init__(self, tokens: Sequence[str], prefix: bool, joined: bool = False) -> None:
        self._plain = re.compile(_pattern(tokens, joined))
        self._unusual = re.compile(_pattern(tokens, joined, unusual=True))
        self._free_left = _stands_alone(tokens[0], 0)
        self._free_right = prefix or _stands_alone(tokens[-1], -1)

    def spans(self, folded: str, start: int = 0, end: int | None = None) -> Iterator[tuple[bool, Span]]:
        """Every place from `start` on that begins before `end`, and whether it is made of whole words."""
        pattern = self._plain if folded.isascii() or not _UNUSUAL.search(folded) else self._unusual
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
        return (self._free_left or not before.isalnum() or is_own_word(before)) and (
            self._free_right or not after.isalnum() or is_own_word(after)
        )


def _stands_alone(token: str, edge: int) -> bool:
    """Whether a token needs nothing beside it to be whole."""
    return shown_character(token) is not None or is_own_word(token[edge])


def _pattern(tokens: Sequence[str], joined: bool, *, unusual: bool = False) -> str:
    parts: list[str] = []
    for index, token in enumerate(tokens):
        if index:
            touching = joined or _stands_alone(tokens[index - 1], -1) or _stands_alone(token, 0)
            parts.append(r"[\W_]*" if touching else r"[\W_]+")
        character = shown_character(token)
        parts.append(re.escape(character or token) if character or not unusual else _unusual(token))
    return "".join(parts)


def _unusual(token: str) -> str:
    """A pattern for a word as it may be written: with marks behind its letters, with a letter that stands for two."""
    parts: list[str] = []
    at = 0
    while at < len(token):
        pair = _PAIRS.match(token, at)
        letters = pair[0] if pair else token[at]
        spelled_out = "".join(re.escape(c) + _MARKS + "*" for c in letters)
        parts.append(f"(?:{spelled_out}|{_TWO[letters]})" if pair else spelled_out)
        at += len(letters)
    return "".join(parts)


@lru_cache(maxsize=128)
def finder(tokens: tuple[str, ...], prefix: bool, joined: bool = False) -> Finder:
    return Finder(tokens, prefix, joined)
