"""A session's events as entries to read, the same for text on a terminal, Markdown and HTML.

They are made from the log alone, event by event. A log from elsewhere may hold anything in a payload: what is not of
the known shape is shown as JSON. Prompts are shown as the person wrote them (`envelope.displayContent` where there is
one, SE-26); tool results follow the call they answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsh.core.lossless import dumps, loads

_CALL_CHARS = 200


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to show: `kind` is turn, prompt, answer, thinking, call, result, note or other; `label` names who or
    what it is; `text` may have many lines."""

    seq: int
    time: int
    kind: str
    label: str
    text: str
    failed: bool = False


def entries(seq: int, type_: str, time: int, data: Any, calls: dict[str, str]) -> Iterator[Entry]:
    """What one event shows. `calls` maps call ids to tool names and is extended as messages pass."""

    def entry(kind: str, label: str, text: str, *, failed: bool = False) -> Entry:
        return Entry(seq, time, kind, label, text, failed)

    if not isinstance(data, dict):
        return
    if type_ == "turn/start":
        yield entry("turn", f"turn {data.get('turn')}", "")
    elif type_ in ("user/message", "steering/message"):
        envelope = data.get("envelope")
        content = envelope.get("displayContent") if isinstance(envelope, dict) else data.get("content")
        yield entry("prompt", _author(data.get("source"), type_), _text(content))
    elif type_ == "prompt/blocked":
        about = f"{_words(data.get('reason'))}\n{_text(data.get('content'))}".strip()
        yield entry("note", "prompt blocked", about, failed=True)
    elif type_ == "assistant/message":
        for block in _objects(data.get("content")):
            kind = block.get("type")
            if kind == "text":
                yield entry("answer", "assistant", _words(block.get("text")))
            elif kind == "reasoning":
                yield entry("thinking", "thinking", _words(block.get("text")))
            elif kind == "tool-call":
                calls[str(block.get("id"))] = name = _words(block.get("name"))
                yield entry("call", name, _words(block.get("arguments")))
            else:
                yield entry("other", str(kind), dumps(block))
    elif type_ == "tool/result":
        failed = bool(data.get("isError"))
        yield entry("result", calls.get(str(data.get("callId")), "result"), _text(data.get("content")), failed=failed)
    elif type_ == "todo/write":
        marks = {"completed": "[x]", "in_progress": "[>]"}
        todos = _objects(data.get("todos"))
        lines = [f"{marks.get(_words(t.get('status')), '[ ]')} {_words(t.get('content'))}" for t in todos]
        yield entry("note", "todo", "\n".join(lines))
    elif type_ == "session/title":
        source = data.get("source")
        if not (isinstance(source, dict) and source.get("kind") == "fallback"):  # that is the prompt once more
            yield entry("note", "title", _words(data.get("title")))
    elif type_ == "turn/end":
        kind, about = _reason(data.get("reason"))
        if kind != "completed":
            yield entry("note", f"turn ended: {kind}", about, failed=True)
    elif isinstance(data.get("text"), str) and data["text"].strip():  # of a type that a plugin has added (CO-2)
        yield entry("note", type_, data["text"])


def _reason(reason: Any) -> tuple[str, str]:
    """How a turn ended: the kind, and what is known about it."""
    if not isinstance(reason, dict):
        return "unknown", ""
    failure = reason["failure"] if isinstance(reason.get("failure"), dict) else reason
    return str(reason.get("kind")), ": ".join(str(failure[k]) for k in ("code", "message", "reason") if failure.get(k))


def _author(source: Any, type_: str) -> str:
    facts = source if isinstance(source, dict) else {}
    kind, plugin = _words(facts.get("kind")), _words(facts.get("plugin"))
    name = "you" if kind == "user" else " ".join(filter(None, (kind, plugin))) or "unknown"
    return f"{name} (steering)" if type_ == "steering/message" else name


def _text(content: Any) -> str:
    parts = []
    for block in content if isinstance(content, list) else ():
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in ("text", "reasoning"):
            parts.append(_words(block.get("text")))
        elif kind == "tool-result":
            parts.append(_text(block.get("content")))
        else:
            parts.append(dumps(block))
    return "\n".join(parts)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _words(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else dumps(value)


def call_line(arguments: str) -> str:
    """A call's arguments on one line: `key: value` where they are a flat object."""
    try:
        value = loads(arguments)
    except ValueError:
        value = None
    if isinstance(value, dict) and value:
        shown = {key: part if isinstance(part, str) else dumps(part) for key, part in value.items()}
        arguments = " ".join(shown.values() if len(shown) == 1 else [f"{k}={v}" for k, v in shown.items()])
    flat = " ".join(arguments.split())
    return flat if len(flat) <= _CALL_CHARS else flat[:_CALL_CHARS] + "…"
