"""Keys of known shapes in text: found, and replaced by a mark that names what was there.

What is recognised has a shape of its own, so little else looks like it: the prefixed tokens of well-known services,
JSON web tokens, private keys in PEM, and what stands where only a secret does (after `Bearer`, as the password of a
URL, as an AWS secret beside its name or id). A password in running text has no shape and is not recognised.

Every indexed document passes here, and nearly none has a key in it. So a few cheap looks for what all of the shapes
begin with come first, and most of a text is never matched against anything else. Each pattern begins with literal text
and fails in bounded time wherever it begins, so a hostile text costs no more than its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

Span = tuple[int, int, str]  # start, end, kind

MARK = re.compile(r"\[redacted(?::[a-z0-9-]+)?\]")  # what `mark` gives


def mask(text: str) -> str:
    """The text with `[redacted:KIND]` in place of each secret; masking twice changes nothing more."""
    if not _suspect(text):
        return text
    return masked(text, find(text))


def masked(text: str, spans: list[Span]) -> str:
    """The text with a mark in place of each span; spans are in order and apart."""
    parts: list[str] = []
    at = 0
    for start, end, kind in spans:
        parts += text[at:start], mark(kind)
        at = end
    return "".join(parts) + text[at:]


def mark(kind: str) -> str:
    """What stands in place of something; an empty kind is somebody's own words."""
    return f"[redacted:{kind}]" if kind else "[redacted]"


def find(text: str) -> list[Span]:
    """Where secrets are: (start, end, kind) in code points, in order and apart. Kinds are short lower-case names."""
    if not _suspect(text):
        return []
    found: list[Span] = []
    for shape in _shapes():
        for match in shape.pattern.finditer(text):
            start, end = match.span(shape.group)
            if not shape.placeholder or not _is_placeholder(match[shape.group]):
                found.append((start, end, shape.kind))
    found.sort(key=lambda span: (span[0], -span[1]))
    apart: list[Span] = []
    for span in found:
        if not apart or span[0] >= apart[-1][1]:
            apart.append(span)
        elif span[1] > apart[-1][1]:  # a shape that goes on behind another one
            apart[-1] = (apart[-1][0], span[1], apart[-1][2])
    return apart


def _suspect(text: str) -> bool:
    """Whether a text may hold a secret: the cheap look. True for all that `find` finds, and for little else."""
    dash, low, capital = _starts()
    return bool(
        dash(text)
        or low(text)
        or ("I" in text and capital(text))
        or ("J" in text and "eyJ" in text)
        or ("B" in text and "Bearer" in text)
        or ("z" in text and "uthorization" in text)
        or ("K" in text and "AccessKey" in text)
        or (("@" in text or "?" in text) and "://" in text)
    )


@cache
def _starts() -> tuple[Callable[[str], object], ...]:
    # A pattern that begins with one literal character is scanned for at the speed of memchr.
    return (
        re.compile(r"-(?:(?<=sk-)|(?<=glpat-)|(?<=pypi-)|(?<=xox[a-z]-)|(?<=xapp-)|(?<=xai-)|----BEGIN )").search,
        re.compile(r"_(?:(?<=gh[opsur]_)|pat_|live_|access_key|ACCESS_KEY|(?<=npm_)|(?<=hf_)|(?<=gsk_))").search,
        re.compile(r"I(?:(?<=AKI)A|(?<=ASI)A|(?<=AI)za)").search,
    )


class _Shape(NamedTuple):
    kind: str
    pattern: re.Pattern[str]
    group: int = 0  # the part that is the secret
    placeholder: bool = False  # whether examples of documentation take this shape too


def _token(start: str, rest: str, *, inside: str = "A-Za-z0-9") -> re.Pattern[str]:
    """Literal `start` at a token's beginning, then `rest`. What `inside` names before it makes it part of a longer
    word, unless that is the letter of an escape in JSON text: arguments of tools are searched as they stand."""
    literal = re.escape(start)
    begins = rf"(?:(?<![{inside}]{literal})|(?<=\\[bfnrt]{literal})|(?<=\\u[0-9A-Fa-f]{{4}}{literal}))"
    return re.compile(literal + begins + rest)


_WORD = "[A-Za-z0-9_-]"
_DIGIT = "(?=[A-Za-z_-]{0,80}[0-9])"  # chance puts a digit in every long token; names of things have none
_CREDENTIALS = r"((?=[A-Za-z._~+/=-]{0,80}[0-9])[A-Za-z0-9._~+/=-]{16,})"
_HEADER = r"(?i:uthorization)[\"'\\]{0,4}[:=]{1,2}[\s\"'\\]{0,8}(?i:bearer)[ \t]{1,8}"
_GAP = r"""[\s"'\\:=>,;|]{1,24}"""  # between a name and its value, in code, JSON, CSV, a table
_AWS_ID = "[A-Z2-7]{16}(?![A-Za-z0-9])"
_AWS_SECRET = r"([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
_MIXED = "(?=[A-Z0-9]{0,80}[a-z])(?=[a-z0-9]{0,80}[A-Z])"
_USER_INFO = r"""://[^\s/:@?#"'<>`\\]{0,128}:([^\s/?#"'<>`\\]{1,256})@(?=[\w.\[-])"""
_URL_PARAMETER = (
    r"[?&](?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]token|auth[_-]token|refresh[_-]token"
    r"|client[_-]secret)=([^\s&#\"'<>`\\)]{8,512})"
)
_PEM = (
    r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----(?:"
    # With its end, and a line of a key before that. A quote ends the search for it, since the text may be JSON, unless
    # the next string follows at once.
    r"(?=(?:[^-]|-(?!----)){0,2000}?[A-Za-z0-9+/=]{40})"
    r"""(?:[^"\\-]|-(?!----BEGIN)|\\[\s\S]|"[\s+,;.\\]{0,24}"){0,20000}?"""
    r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    # Cut off before its end.
    r"|(?:\s|\\[nr]){1,8}(?:[A-Za-z0-9+/=\s]|\\[nr]){40,})"
)


@cache
def _shapes() -> list[_Shape]:
    return [
        _Shape("anthropic", _token("sk-ant-", _DIGIT + _WORD + "{20,}")),
        *(_Shape("openai", _token(f"sk-{of}-", _DIGIT + _WORD + "{20,}")) for of in ("proj", "svcacct", "admin")),
        _Shape("openrouter", _token("sk-or-v1-", "[0-9a-f]{32,}")),
        _Shape("api-key", _token("sk-", _DIGIT + "[A-Za-z0-9]{20,}")),  # of many services
        _Shape("api-key", _token("sk-", _DIGIT + "(?=[a-z0-9_-]{0,80}[A-Z])" + _WORD + "{20,}")),
        *(_Shape("github", _token(f"gh{of}_", "[A-Za-z0-9_]{36,}")) for of in "opsur"),
        _Shape("github", _token("github_pat_", "[A-Za-z0-9_]{36,}")),
        _Shape("gitlab", _token("glpat-", _WORD + r"{20,}(?:\.[A-Za-z0-9_-]{1,64}){0,4}")),
        *(_Shape("aws-access-key", _token(start, _AWS_ID)) for start in ("AKIA", "ASIA")),
        *(_Shape("aws-secret-key", _token(start, _AWS_ID + _GAP + _AWS_SECRET), 1) for start in ("AKIA", "ASIA")),
        _Shape("aws-secret-key", re.compile("ecret_?[Aa]ccess_?[Kk]ey" + _GAP + _AWS_SECRET), 1),
        _Shape("aws-secret-key", re.compile("ECRET_ACCESS_KEY" + _GAP + _AWS_SECRET), 1),
        _Shape("google", _token("AIza", _WORD + "{35}(?![A-Za-z0-9_-])")),
        *(_Shape("slack", _token(f"xox{of}-", _DIGIT + "[A-Za-z0-9-]{20,}")) for of in "abeoprs"),
        _Shape("slack", _token("xapp-", _DIGIT + "[A-Za-z0-9-]{20,}")),
        *(_Shape("stripe", _token(f"{of}k_live_", "[A-Za-z0-9]{16,}")) for of in "sr"),
        _Shape("npm", _token("npm_", "[A-Za-z0-9]{36,}(?![A-Za-z0-9_])")),
        _Shape("pypi", _token("pypi-AgE", _WORD + "{50,}")),
        _Shape("huggingface", _token("hf_", _MIXED + "[A-Za-z0-9]{30,}(?![A-Za-z0-9_])")),
        _Shape("groq", _token("gsk_", _DIGIT + "[A-Za-z0-9]{40,}")),
        _Shape("xai", _token("xai-", _DIGIT + "[A-Za-z0-9]{40,}")),
        _Shape("jwt", _token("eyJ", rf"{_WORD}{{10,}}\.eyJ{_WORD}{{10,}}\.{_WORD}{{10,}}", inside="A-Za-z0-9_.-")),
        _Shape("private-key", re.compile(_PEM)),
        _Shape("bearer", re.compile(r"Bearer[ \t]{1,8}" + _CREDENTIALS), 1),
        _Shape("bearer", re.compile(_HEADER + _CREDENTIALS), 1),
        _Shape("url-password", re.compile(_USER_INFO), 1, placeholder=True),
        _Shape("url-password", re.compile(_URL_PARAMETER), 1, placeholder=True),
    ]


_PLACEHOLDER = r"\[redacted[:\]]|[$%{*]|\(?x+\)?$|\.+$|(?:your|my|the)[_-]|pass(?:word|wd)?$|pwd$|secret$|token$"


def _is_placeholder(value: str) -> bool:
    """Whether a password is one of documentation or of a template: `password`, `$PASS`, `{password}`, `xxx`."""
    return re.match(_PLACEHOLDER, value, re.IGNORECASE) is not None
