"""The literal scan of documents (SQ-35): words of the query as they are, anywhere, any whitespace between them.

Case is folded character by character (simple Unicode folding), so positions stay; diacritics count.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dsh.query.snippet import WHITESPACE

_BLANKS = f"[{WHITESPACE}]+"


class _Folding(dict[int, int]):
    """A translation table that learns each character when it is first met."""

    def __missing__(self, code: int) -> int:
        character = chr(code)
        folded = character.casefold()
        if len(folded) != 1:  # full folding makes several of it; simple folding knows one or leaves it as it is
            folded = character.lower()
        self[code] = result = ord(folded) if len(folded) == 1 else code
        return result


_folding = _Folding()


def fold(text: str) -> str:
    """The text with simple case folding: of the same length."""
    return text.lower() if text.isascii() else text.translate(_folding)


class Pattern(NamedTuple):
    """A text to look for, in documents of any case."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Pattern | None:
        """None for a text of whitespace alone."""
        words = tuple(word for word in re.split(_BLANKS, text) if word)
        return cls(tuple(map(fold, words))) if words else None

    def found_in(self, text: str) -> bool:
        folded = fold(text)
        if len(self.words) == 1:
            return self.words[0] in folded
        return re.search(_BLANKS.join(map(re.escape, self.words)), folded) is not None
