"""SQL functions that the search index needs: what an event says, and the tags it is filtered by.

They read nothing but their arguments, and say the same for ever: FTS5 asks again for what it was given when a document
is removed. So whoever changes what is indexed, the masking of secrets included, raises INDEX_VERSION: an index of
another version is made anew. Snippets are cut from the event's own text, never from what is indexed here
(dsh.store.spelling).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import apsw

from dsh.core.lossless import loads
from dsh.core.secrets import mask
from dsh.store.spelling import name_parts, segment_text

# WS of docs/spec/session-query.md; what str.strip() takes differs.
_BLANK = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f"
    "\u3000\ufeff"
)

INDEX_VERSION = 1

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


# ---------------------------------------------------------------------------------------------------------------- tags

# A filter is one more word of the match, in a column of its own. The first character is of private use: no prefix that
# somebody types reaches into these words, and unicode61 takes it for a letter.
_TAG = "\ue000"
OWN = _TAG + "own"  # a person's own words, and answers that ended a turn: what ranks before all the rest
OWN_TYPES = frozenset({"user/message", "steering/message", "assistant/message"})
HERE = "dsh"  # the source of sessions that were not imported


def _hashed(kind: str, text: str) -> str:
    import hashlib

    return f"{_TAG}{kind}{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _plain(kind: str, name: str) -> str:
    return _TAG + kind + "".join(c for c in name[:80].lower() if c.isascii() and c.isalnum())


def folder_tag(cwd: str) -> str:
    """Of documents from exactly this working directory."""
    return _hashed("cwd", cwd)


def below_tag(folder: str) -> str:
    """Of documents from a working directory somewhere below this one."""
    return _hashed("dir", folder)


def session_tag(session_id: str) -> str:
    return _hashed("ses", session_id)


def type_tag(type_: str) -> str:
    return _plain("typ", type_)


def source_tag(source: str) -> str:
    """Of documents from sessions that were imported from this tool."""
    return _plain("src", source)


def tool_tag(name: str) -> str:
    """Of calls of this tool. (A result does not say whose it is.)"""
    return _plain("too", name)


@lru_cache(maxsize=256)
def _session_tags(session_id: str, cwd: str | None, source: str | None) -> str:
    tags = [session_tag(session_id), source_tag(source or HERE)]
    if cwd:
        tags.append(folder_tag(cwd))
        folder = cwd.rstrip("/")
        while (folder := folder.rpartition("/")[0]) != "":
            tags.append(below_tag(folder))
    return " ".join(tags)


@lru_cache(maxsize=32)
def _type_tag(type_: str) -> str:
    return type_tag(type_)


def _own(type_: str, data: dict[str, Any]) -> bool:
    if type_ in ("user/message", "steering/message"):
        source = data.get("source")
        return isinstance(source, dict) and source.get("kind") == "user"
    if type_ == "assistant/message":
        kinds = [block.get("type") for block in _items(data.get("content")) if isinstance(block, dict)]
        return "text" in kinds and "tool-call" not in kinds
    return False


def document_tags(type_: str, data: Any, session_id: str, cwd: str | None, source: str | None) -> str:
    """The words an event is filtered by: its type, its session, where that worked and came from, and whether it is
    what a person looks for first."""
    tags = f"{_type_tag(type_)} {_session_tags(session_id, cwd, source)}"
    if isinstance(data, dict):
        if _own(type_, data):
            tags += " " + OWN
        elif type_ == "tool/call":
            tags += "".join(" " + tool_tag(name) for name in _fields(data, "name"))
    return tags


_read: tuple[Any, Any, Any, str] = (None, None, None, "")  # what was asked about last, its value, its text


def _document(type_: Any, data: Any) -> tuple[Any, str]:
    """An event's payload, and what it says without secrets. A hole in the log is None and says nothing (PE-55).

    The functions are asked one after the other about each event, so the last one is remembered.
    """
    global _read
    last_type, last_data, value, text = _read
    if last_type != type_ or last_data != data:
        try:
            value = loads(data)
        except ValueError:
            value = None
        text = mask(document_text(type_, value))
        _read = type_, data, value, text
    return value, text


def _text(*row: Any) -> str:
    type_, data = row
    return segment_text(_document(type_, data)[1])


def _parts(*row: Any) -> str:
    type_, data = row
    return segment_text(name_parts(_document(type_, data)[1]))


def _tags(*row: Any) -> str:
    type_, data, session_id, cwd, source = row
    return document_tags(type_, _document(type_, data)[0], session_id, cwd, source)


def register(db: apsw.Connection) -> None:
    """Make the functions known; must happen before the first statement that reaches them is prepared."""
    for name, function, arguments in (
        ("search_text", _text, 2),
        ("search_parts", _parts, 2),
        ("search_tags", _tags, 5),
    ):
        db.create_scalar_function(name, function, arguments, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
