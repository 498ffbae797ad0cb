"""Numbers of bytes, as people read and type them."""

from __future__ import annotations

import re

from dsh.core.errors import UsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def shown(count: int) -> str:
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(count) >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} B"


def typed(option: str, text: str) -> int:
    """Bytes from `300`, `500k`, `1.5MB`, `2 GB`; UsageError names the option."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([kKmMgG]?)[bB]?", text.strip())
    if found is None:
        raise UsageError(f"{option} {text!r} is not a size", hint="for example 500k, 20MB, 1.5GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])
