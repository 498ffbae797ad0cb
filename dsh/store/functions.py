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

# Han, kana, bopomofo, hangul, and their extensions: scripts written without spaces or found by syllable.
_CJK = re.compile(
    "([\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3040-\u30ff\u3100-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff])"
)
_CAMEL = re.compile(r"\b\w*[a-z0-9][A-Z]\w*")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
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
    return text if text.isascii() else _CJK.sub(r" \1 ", text)


def index_text(text: str) -> str:
    """The indexed form of a document: segmented, then the parts of its camelCase names."""
    parts: dict[str, None] = {}
    for name in _CAMEL.findall(text):
        for part in _PARTS.findall(name):
            if len(part) > 1:
                parts[part.lower()] = None
    segmented = segment_text(text)
    return f"{segmented}\n{' '.join(parts)}" if parts else segmented


def _block_parts(blocks: Any) -> list[Any]:
    parts: list[Any] = []
    for block in blocks if isinstance(blocks, list) else ():
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in ("text", "reasoning"):
            parts.append(block.get("text"))
        elif kind == "tool-call":
            parts += [block.get("name"), block.get("arguments")]
        elif kind == "tool-result":
            parts += _block_parts(block.get("content"))
    return parts


def document_text(type_: str, data: Any) -> str:
    """What an event says, as one text; empty if nothing (SQ-40, SQ-41). The view `search_document` is its SQL twin."""
    if not isinstance(data, dict):
        return ""
    parts: list[Any] = []
    if type_ in ("user/message", "assistant/message", "steering/message", "prompt/blocked", "tool/result"):
        parts = _block_parts(data.get("content"))
    if type_ == "prompt/blocked":
        parts.append(data.get("reason"))
    elif type_ == "tool/call":
        parts = [data.get("name"), data.get("arguments")]
    elif type_ == "tool/result":
        error = data.get("error") or {}
        parts += [error.get("name"), error.get("code")]
    elif type_ == "todo/write":
        for todo in data.get("todos") or ():
            parts += [todo.get("status"), todo.get("content")]
    elif type_ == "turn/end":
        reason = data.get("reason") or {}
        if reason.get("kind") != "completed":
            failure = reason.get("failure") or reason
            parts = [reason.get("kind"), failure.get("message"), failure.get("code"), reason.get("reason")]
    return "\n".join(t for t in (p.strip(_BLANK) for p in parts if isinstance(p, str)) if t)


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
    type_, session_id, cwd = row
    return f"{type_tag(type_)} {session_tag(session_id)}" + (f" {folder_tag(cwd)}" if cwd else "")


def register(db: apsw.Connection) -> None:
    """Make the functions known; must happen before the first statement that reaches them is prepared."""
    db.create_scalar_function("segment", _segment, 2, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
    db.create_scalar_function("search_tags", _tags, 3, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
