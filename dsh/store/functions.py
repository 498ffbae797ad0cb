"""SQL functions that the search index needs: what an event says, and how its words are cut.

SQLite's `unicode61` tokenizer takes a run of CJK characters, with Latin letters glued to it, for one token. So the
indexed text has a space around every CJK character, and a query is segmented the same way and becomes a phrase: any
substring of Chinese or Japanese text is found, one character too. The words inside camelCase names are added at the
end of the text. Snippets are cut from the event's own text, never from this.
"""

from __future__ import annotations

import re
from typing import Any

import apsw

from dsh.core.lossless import loads

# Compiled at the first use (`re` keeps them): these alone would be a tenth of a search.
#
# Han, kana, bopomofo, hangul, and their extensions: scripts written without spaces or found by syllable.
_CJK = (
    "([\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3040-\u30ff\u3100-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff])"
)
_CAMEL = r"\b\w*[a-z0-9][A-Z]\w*"
_PARTS = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+"
_BLANK = " \t\n\v\f\r"

DOCUMENT_TYPES = (
    "user/message",
    "assistant/message",
    "steering/message",
    "prompt/blocked",
    "tool/call",
    "tool/result",
    "todo/write",
    "turn/end",
)


def segment_text(text: str) -> str:
    """Put spaces around CJK characters. Queries and documents both go through here."""
    return text if text.isascii() else re.sub(_CJK, r" \1 ", text)


def index_text(text: str) -> str:
    """The indexed form of a document: segmented, then the parts of its camelCase names."""
    parts: dict[str, None] = {}
    for name in re.findall(_CAMEL, text):
        for part in re.findall(_PARTS, name):
            if len(part) > 1:
                parts[part.lower()] = None
    segmented = segment_text(text)
    return f"{segmented}\n{' '.join(parts)}" if parts else segmented


def _fields(value: Any, *names: str) -> list[str]:
    """The fields of an object that hold text, in this order; nothing of anything else."""
    return [t for t in map(value.get, names) if isinstance(t, str)] if isinstance(value, dict) else []


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_BLOCK_FIELDS = {"text": ("text",), "reasoning": ("text",), "tool-call": ("name", "arguments")}
_TURN_ENDS = ("error", "rejected", "aborted", "disposed", "max-tokens", "interrupted")


def _block_parts(blocks: Any, *, nested: bool = False) -> list[str]:
    parts: list[str] = []
    for block in _items(blocks):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool-result" and not nested:
            parts += _block_parts(block.get("content"), nested=True)
        elif isinstance(kind, str):
            parts += _fields(block, *_BLOCK_FIELDS.get(kind, ()))
    return parts


def document_text(type_: str, data: Any) -> str:
    """What an event says, as one text; empty if nothing (SQ-40, SQ-41). The view `search_document` is its SQL twin.

    Total: a payload of a shape nobody writes says nothing, since one odd event must not stop the index.
    """
    if type_ not in DOCUMENT_TYPES or not isinstance(data, dict):
        return ""
    parts = _block_parts(data.get("content"))
    if type_ == "prompt/blocked":
        parts += _fields(data, "reason")
    elif type_ == "tool/call":
        parts += _fields(data, "name", "arguments")
    elif type_ == "tool/result":
        parts += _fields(data.get("error"), "name", "code")
    elif type_ == "todo/write":
        for todo in _items(data.get("todos")):
            parts += _fields(todo, "status", "content")
    elif type_ == "turn/end":
        reason: Any = data.get("reason")
        if not isinstance(reason, dict):
            reason = {}
        kind = reason.get("kind")
        if kind in _TURN_ENDS:
            parts.append(kind)
        if kind == "error":
            failure = reason.get("failure")
            parts += _fields(failure if isinstance(failure, dict) else reason, "message", "code")
        elif kind == "rejected":
            parts += _fields(reason, "reason")
    return "\n".join(t for t in (p.strip(_BLANK) for p in parts) if t)


def folder_tag(cwd: str) -> str:
    """The index token of a working directory, so that a filter by it is one more term of the match."""
    import hashlib

    return "cwd" + hashlib.sha256(cwd.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def session_tag(session_id: str) -> str:
    import hashlib

    return "ses" + hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def type_tag(type_: str) -> str:
    return "typ" + "".join(c for c in type_.lower() if c.isalnum())


def _segment(*row: Any) -> str:
    type_, data = row
    try:
        return index_text(document_text(type_, loads(data)))
    except ValueError:  # a hole in the log says nothing (PE-55)
        return ""


def _tags(*row: Any) -> str:
    type_, _data, session_id, cwd, _source = row
    return f"{type_tag(type_)} {session_tag(session_id)}" + (f" {folder_tag(cwd)}" if cwd else "")


def register(db: apsw.Connection) -> None:
    """Make the functions known; must happen before the first statement that reaches them is prepared."""
    db.create_scalar_function("segment", _segment, 2, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
    db.create_scalar_function("search_tags", _tags, 5, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
