"""JSON from elsewhere, read by what is fast and, where that gives up, by what is patient; and back to text."""

from __future__ import annotations

from typing import Any

import msgspec

from dsh.core.lossless import dumps, loads, mend_surrogates

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def parsed(line: bytes | str) -> Any:
    """The value on a line. ValueError says what is wrong: no JSON, nested too deeply.

    Halves of surrogate pairs, which the fast reader refuses, are read and mended: a tool that cut a text in the middle
    of an emoji has written a record that is fine otherwise.
    """
    try:
        return _decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        pass
    try:
        value = loads(line if isinstance(line, str) else line.decode("utf-8", "replace"))
    except ValueError as error:
        raise ValueError(_reason(line, error)) from None
    try:
        return mended(value)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _reason(line: bytes | str, error: ValueError) -> str:
    zero = b"\0" if isinstance(line, bytes) else "\0"
    if zero in line:  # type: ignore[operator]
        return "is not text"
    return "JSON is nested too deeply" if "deeply" in str(error) else "is not JSON"


def mended(value: Any) -> Any:
    """The same value without halves of surrogate pairs. RecursionError where it is nested too deeply."""
    if isinstance(value, str):
        return mend_surrogates(value)
    if isinstance(value, list):
        return [mended(item) for item in value]
    if isinstance(value, dict):
        return {mended(key): mended(item) for key, item in value.items()}
    return value


def json_text(value: Any) -> str:
    """Compact JSON text of a value that was parsed."""
    try:
        return _encode(value).decode()
    except (UnicodeEncodeError, RecursionError, TypeError, ValueError, OverflowError):
        pass
    try:
        return dumps(mended(value))
    except (RecursionError, ValueError, TypeError):
        return "{}"
