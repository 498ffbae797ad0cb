"""From the bytes of a terminal to keys, and a line that is edited with them.

Terminals spell keys in several ways; `Keys` reads those of xterm, rxvt, the Linux console and what follows them. A
sequence it does not know is swallowed whole, so that its letters are not taken for typing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dsh.cli.output import printable, width_of

PASTE_BEGIN, PASTE_END = b"\x1b[200~", b"\x1b[201~"

_FINALS = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "shift-tab",
}  # fmt: skip
_NUMBERS = {
    1: "home", 3: "delete", 4: "end", 5: "page-up", 6: "page-down", 7: "home", 8: "end",
}  # fmt: skip
_NAMED = {"\t": "tab", "\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\x08": "backspace"}
# A whole control sequence (ESC [ parameters final), or one of the older form (ESC O final).
_SEQUENCE = re.compile(rb"\x1b\x1b?(?:\[\[?[\x30-\x3f]*[\x20-\x2f]*[\x40-\x7e]|O[\x20-\x7e])")
_PARTIAL = re.compile(rb"\x1b\x1b?(?:\[\[?[\x30-\x3f]*[\x20-\x2f]*|O)?")
_BREAK = re.compile("[\\s\x1c-\x1f\x85]")
_UNFINISHED = 65536  # bytes of a paste that are kept until its end comes


class Key(NamedTuple):
    """A key: its `name` (`up`, `ctrl-p`, `alt-b`, `enter`, …), or `text` that was typed or pasted."""

    name: str
    text: str = ""


class Keys:
    """Reads keys off a stream of bytes that may be cut anywhere."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def waiting(self) -> bool:
        """Whether the bytes so far may be the beginning of more: an ESC alone is a key of its own after a moment."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[Key]:
        """The keys that are complete with these bytes."""
        self._held += data
        found: list[Key] = []
        while self._held and (taken := self._next()) is not None:
            size, key = taken
            self._held = self._held[size:]
            if key is not None:
                found.append(key)
        return found

    def flush(self) -> list[Key]:
        """Nothing more comes: what was held is what it is."""
        held, self._held = self._held, b""
        if held.startswith(PASTE_BEGIN):
            return [Key("text", _typed(held[len(PASTE_BEGIN) :]))]
        return [Key("escape")] if held[:1] == b"\x1b" else []

    def _next(self) -> tuple[int, Key | None] | None:
        """How many bytes the first key takes, and the key (None: not one of ours); None if it is not complete yet."""
        held = self._held
        if held[0] == 0x1B:
            return self._escaped(held)
        if held[0] < 0x20 or held[0] == 0x7F:
            return 1, _control(held[0])
        end = next((i for i, byte in enumerate(held) if byte < 0x20 or byte == 0x7F), len(held))
        cut = end - _unfinished_character(held[:end]) if end == len(held) else end
        return None if cut == 0 else (cut, Key("text", _typed(held[:cut])))

    def _escaped(self, held: bytes) -> tuple[int, Key | None] | None:
        if held.startswith(PASTE_BEGIN):
            end = held.find(PASTE_END)
            if end < 0 and len(held) < _UNFINISHED:
                return None
            size = end + len(PASTE_END) if end >= 0 else len(held)
            return size, Key("text", _typed(held[len(PASTE_BEGIN) : end if end >= 0 else size]))
        whole = _SEQUENCE.match(held)
        if whole is not None:
            return whole.end(), _sequence(whole[0])
        if _PARTIAL.fullmatch(held):
            return None
        if 0x20 < held[1] < 0x7F or held[1] in (0x0D, 0x7F, 0x08):  # ESC and a key: that key with Alt
            name = _NAMED.get(chr(held[1]), chr(held[1]))
            return 2, Key(f"alt-{name}")
        return 1, Key("escape")


def _control(byte: int) -> Key | None:
    character = chr(byte)
    if character in _NAMED:
        return Key(_NAMED[character])
    return Key(f"ctrl-{chr(byte + 0x60)}") if 1 <= byte <= 26 else None


def _sequence(sequence: bytes) -> Key | None:
    alt = sequence.startswith(b"\x1b\x1b")
    text = sequence.lstrip(b"\x1b").decode("ascii")
    numbers = [int(n) if n.isdecimal() and len(n) < 6 else 0 for n in text[1:-1].split(";")]
    final = text[-1]
    name = _NUMBERS.get(numbers[0]) if final == "~" else _FINALS.get(final)
    if name is None:
        return None
    held = numbers[1] - 1 if len(numbers) > 1 and numbers[1] > 0 else 0
    for bit, modifier in ((1, "shift"), (2, "alt"), (4, "ctrl")):
        if held & bit or (modifier == "alt" and alt):
            name = f"{modifier}-{name}"
    return Key(name)


def _unfinished_character(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character whose rest is still to come."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0


def _typed(data: bytes) -> str:
    """Text for a line: breaks and tabs of what was pasted become blanks, other control characters visible signs."""
    return printable(_BREAK.sub(" ", data.decode("utf-8", "replace")))


class Line:
    """A line of text with a cursor, edited as shells do it. `0 <= cursor <= len(text)`, always."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.cursor = len(text)

    def edit(self, key: Key) -> bool:
        """Serve a key; False if it means nothing to a line."""
        if key.name == "text":
            self._replace(self.cursor, self.cursor, key.text)
        elif key.name in ("left", "ctrl-b"):
            self.cursor = self._left(self.cursor)
        elif key.name in ("right", "ctrl-f"):
            self.cursor = self._right(self.cursor)
        elif key.name in ("home", "ctrl-a"):
            self.cursor = 0
        elif key.name in ("end", "ctrl-e"):
            self.cursor = len(self.text)
        elif key.name in ("ctrl-left", "alt-left", "alt-b"):
            self.cursor = self._word_left(str.isalnum)
        elif key.name in ("ctrl-right", "alt-right", "alt-f"):
            self.cursor = self._word_right()
        elif key.name == "backspace":
            self._replace(self._left(self.cursor), self.cursor)
        elif key.name == "delete":
            self._replace(self.cursor, self._right(self.cursor))
        elif key.name == "ctrl-u":
            self._replace(0, self.cursor)
        elif key.name == "ctrl-k":
            self._replace(self.cursor, len(self.text))
        elif key.name == "ctrl-w":
            self._replace(self._word_left(lambda c: not c.isspace()), self.cursor)
        elif key.name == "alt-backspace":
            self._replace(self._word_left(str.isalnum), self.cursor)
        elif key.name == "alt-d":
            self._replace(self.cursor, self._word_right())
        else:
            return False
        return True

    def _replace(self, start: int, end: int, text: str = "") -> None:
        self.text = self.text[:start] + text + self.text[end:]
        self.cursor = start + len(text)

    def _left(self, at: int) -> int:
        """One character to the left, with the marks that stand on it."""
        at = max(0, at - 1)
        while at > 0 and width_of(self.text[at]) == 0:
            at -= 1
        return at

    def _right(self, at: int) -> int:
        at = min(len(self.text), at + 1)
        while at < len(self.text) and width_of(self.text[at]) == 0:
            at += 1
        return at

    def _word_left(self, inside: Callable[[str], bool]) -> int:
        at = self.cursor
        while at > 0 and not inside(self.text[at - 1]):
            at -= 1
        while at > 0 and inside(self.text[at - 1]):
            at -= 1
        return at

    def _word_right(self) -> int:
        at = self.cursor
        while at < len(self.text) and not self.text[at].isalnum():
            at += 1
        while at < len(self.text) and self.text[at].isalnum():
            at += 1
        return at
