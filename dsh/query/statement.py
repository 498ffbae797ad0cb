"""A statement that somebody typed: that it is one and no more, which parameters it has, and values for them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsh.core.errors import UsageError

_PIECE = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<end>;)"""
    r"""|[:@$](?P<named>\w+)|(?P<numbered>\?\d*)|\w+|.""",
    re.DOTALL,
)
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,18})")
_REAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")
_LARGEST = 2**63 - 1

Value = str | int | float | None


def check_single(sql: str) -> None:
    """Refuse nothing at all, and a second statement, whose rows would come out as if they were the first one's."""
    ended, empty = False, True
    for piece in _pieces(sql):
        if piece["end"]:
            ended = True
        elif ended and not empty:
            raise UsageError("more than one statement; dsh runs one at a time")
        else:
            empty = False
    if empty:
        raise UsageError("the query is empty")


def parameters(sql: str) -> list[str]:
    """The names of a statement's parameters, `:name` without the sign, in the order in which they first occur."""
    found: dict[str, None] = {}
    for piece in _pieces(sql):
        if piece["numbered"]:
            raise UsageError("a parameter without a name", hint="name it: :NAME, and give its value with -p NAME=VALUE")
        if piece["named"]:
            found[piece["named"]] = None
    return list(found)


def literal(text: str) -> Value:
    """What a typed value means: a number, NULL, 'quoted text' as in SQL, and everything else is text as it stands."""
    if _INTEGER.fullmatch(text) and abs(int(text)) <= _LARGEST:
        return int(text)
    if _REAL.fullmatch(text):
        return float(text)
    if text.upper() == "NULL":
        return None
    if len(text) > 1 and text[0] == text[-1] == "'" and "'" not in text[1:-1].replace("''", ""):
        return text[1:-1].replace("''", "'")
    return text


def _pieces(sql: str) -> Iterator[re.Match[str]]:
    return (p for p in _PIECE.finditer(sql) if not p["comment"] and not p[0].isspace())
