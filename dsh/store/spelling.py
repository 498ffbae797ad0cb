"""How words are spelled in the search index. Documents and queries both go through here.

SQLite's `unicode61` tokenizer cuts at everything that is not a letter or digit, folds case, and takes diacritics off.
What it gets wrong is spelled otherwise before it sees the text:

- Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese stand without spaces between words: each character becomes a
  word of its own and a query becomes a phrase, so any piece is found, one character too. Vowels and tones that combine,
  at which unicode61 would cut, are words like `m0e34`.
- An emoji, of which unicode61 makes nothing, is a word like `u1f600`; skin tones and joiners are left out, so each is
  found by its base.
- Signs of private use, as prompts of shells have them, are no letters.
- Letters that people without them type otherwise: `straße` is `strasse`, a ligature its letters, full width is half.

The same text must be spelled the same for ever, since FTS5 removes a document by the words it was added with: the
ranges are written out here, and nothing asks a table of Python's that a later version may have changed.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right

# Written without spaces, or found by syllable: Han, kana, bopomofo, hangul and their extensions; Thai, Lao, Burmese,
# Khmer. First and last code point.
_OWN_WORDS = (
    (0x0E01, 0x0EFF), (0x1000, 0x109F), (0x1100, 0x11FF), (0x1780, 0x17FF), (0x2E80, 0x2FDF), (0x3005, 0x3007),
    (0x3021, 0x3029), (0x3031, 0x3035), (0x3040, 0x30FF), (0x3100, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA960, 0xA97F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F),
    (0x1B000, 0x1B16F), (0x20000, 0x3FFFF),
)  # fmt: skip
_MARKS = (
    (0x0E31, 0x0E31), (0x0E34, 0x0E3A), (0x0E47, 0x0E4E), (0x0EB1, 0x0EB1), (0x0EB4, 0x0EBC), (0x0EC8, 0x0ECE),
    (0x102B, 0x103E), (0x1056, 0x1059), (0x105E, 0x1060), (0x1062, 0x1064), (0x1067, 0x106D), (0x1071, 0x1074),
    (0x1082, 0x108D), (0x108F, 0x108F), (0x109A, 0x109D), (0x17B4, 0x17D3), (0x17DD, 0x17DD), (0xA9E5, 0xA9E5),
    (0xAA7B, 0xAA7D),
)  # fmt: skip
_EMOJI = ((0x2300, 0x23FF), (0x2600, 0x27BF), (0x2B1B, 0x2B55), (0x1F000, 0x1F3FA), (0x1F400, 0x1FAFF))
_NO_LETTERS = ((0xE000, 0xF8FF), (0xFDD0, 0xFDEF), (0xF0000, 0x10FFFF))  # unicode61 takes them for some: SQ-42
_SKIN_TONES = ((0x1F3FB, 0x1F3FF),)
_FULL_WIDTH = ((0xFF10, 0xFF19), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A))
_LATIN = ((0x00C0, 0x024F), (0x1E00, 0x1EFF))

# Letters that have no accent to take off. What stands for two letters is marked in shown text by _TWICE of folding.
LETTERS = {
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L",
    "đ": "d", "Đ": "D", "ı": "i", "İ": "I", "ſ": "s", "ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl",
    "ﬅ": "st", "ﬆ": "st",
}  # fmt: skip

# Kana and hangul in pieces, as some file systems write names. How they are put together never changes.
_IN_PIECES = "[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]?|[\u3046-\u30fd][\u3099\u309a]"

_REMEMBERED = 10_000  # runs and names; a text has few that are not in the one before
_LONGEST_RUN = 8
_LONGEST_NAME = 64  # longer ones are data in base 64


class _Ranges:
    def __init__(self, *ranges: tuple[int, int]) -> None:
        self._bounds = [bound for low, high in sorted(ranges) for bound in (low, high + 1)]

    def __contains__(self, code: object) -> bool:
        return isinstance(code, int) and bisect_right(self._bounds, code) % 2 == 1


_own_words, _marks, _emoji = _Ranges(*_OWN_WORDS), _Ranges(*_MARKS), _Ranges(*_EMOJI)
_skin_tones, _full_width, _latin = _Ranges(*_SKIN_TONES), _Ranges(*_FULL_WIDTH), _Ranges(*_LATIN)
_no_letters = _Ranges(*_NO_LETTERS)


def _spell(character: str) -> str:
    code = ord(character)
    if character in LETTERS:
        return LETTERS[character]
    if code in _marks:
        return f" m{code:04x} "
    if code in _own_words:
        return f" {character} "
    if code in _emoji:
        return f" u{code:x} "
    if code in _skin_tones:
        return " "
    if code in _no_letters:
        return "\ufffd"
    if code in _full_width:
        return chr(code - 0xFEE0)
    if code in _latin:  # unicode61 takes off one accent, Vietnamese has two
        letters = unicodedata.normalize("NFD", character)
        return letters[0] if len(letters) > 2 else character
    return character


class _Characters(dict[int, str]):
    """A translation table that learns each character when it is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = word = _spell(chr(code))
        return word


class _Runs(dict[str, str]):
    """How runs of characters beyond ASCII are spelled; remembers short ones."""

    def __missing__(self, run: str) -> str:
        whole = re.sub(_IN_PIECES, lambda found: unicodedata.normalize("NFC", found[0]), run)
        words = whole.translate(_characters)
        if len(run) <= _LONGEST_RUN:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[run] = words
        return words


_characters = _Characters()
_runs = _Runs()


def segment_text(text: str) -> str:
    """Text for unicode61 to cut into words; NUL, and signs that it would take for letters, become U+FFFD (SQ-42)."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else re.sub(r"[^\x00-\x7f]+", lambda found: _runs[found[0]], text)


def spelled(character: str) -> str:
    """How a character is spelled; with a space at both ends if it is a word by itself."""
    return _characters[ord(character)]


def is_own_word(character: str) -> bool:
    """Whether this character is a word by itself, whatever stands beside it."""
    return spelled(character).startswith(" ")


def shown_character(word: str) -> str | None:
    """The mark or emoji that a word of the index stands for; None if it is a word as others."""
    if not re.fullmatch("m[01a][0-9a-f]{3}|u[0-9a-f]{4,5}", word):
        return None
    code = int(word[1:], 16)
    return chr(code) if code in (_marks if word[0] == "m" else _emoji) else None


# ---------------------------------------------------------------------------------------------------- parts of names

# What a byte of Latin-1 is to a name: a small letter, a capital, a digit, or no part of it. The underscore is none:
# what stands between two is a name by itself.
_SHAPE = bytes(
    b"a"[0] if chr(c).islower() and chr(c).isalpha() and c not in (0xAA, 0xBA, 0xB5)
    else b"A"[0] if chr(c).isupper()
    else b"0"[0] if 0x30 <= c <= 0x39
    else b" "[0]
    for c in range(256)
)  # fmt: skip


class _Names(dict[str, str]):
    """The parts of names, in lower case; remembers them."""

    def __missing__(self, name: str) -> str:
        shape = name.encode("latin-1").translate(_SHAPE)
        spans = [found.span() for found in re.finditer(rb"A+(?!a)0*|A?a+0*|0+", shape)]
        parts = " ".join(name[start:end].lower() for start, end in spans if end - start > 1)
        if len(self) >= _REMEMBERED:
            self.clear()
        self[name] = parts
        return parts


_names = _Names()


def name_parts(text: str) -> str:
    """The parts of each camelCase name in a text, in their order; empty if there is none."""
    shape = text.encode("latin-1", "replace").translate(_SHAPE)
    # Wherever a part begins inside a name now stands a small letter before a capital: parse|HTTP, HTTP|Server, utf8|To.
    shape = shape.replace(b"AAa", b"aAa").replace(b"0Aa", b"aAa")
    at = shape.find(b"aA")
    if at < 0:
        return ""
    found: dict[str, None] = {}
    while at >= 0:
        start = shape.rfind(b" ", 0, at) + 1
        end = shape.find(b" ", at)
        if end < 0:
            end = len(shape)
        if end - start <= _LONGEST_NAME:
            found[_names[text[start:end]]] = None
        at = shape.find(b"aA", end)
    return " ".join(found)
