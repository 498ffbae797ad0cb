"""A session's events as something to read: plain text for people, Markdown for files.

Both are made from the log alone, event by event. A log from elsewhere may hold anything in a payload: what is not of
the known shape is shown as JSON. Prompts are shown as the person wrote them (`envelope.displayContent` where there is
one, SE-26); tool results follow the call they answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dsh.core.lossless import dumps, loads

_COMPACT_LINES = 6
_COMPACT_CHARS = 600
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


# ----------------------------------------------------------------------------------------------------- plain text


def compact(text: str) -> str:
    """The beginning of a long text, and how much was left out."""
    lines = text.rstrip("\n").split("\n")
    kept = "\n".join(lines[:_COMPACT_LINES])
    if len(kept) > _COMPACT_CHARS:
        return f"{kept[:_COMPACT_CHARS]}… ({len(text)} characters)"
    if len(lines) > _COMPACT_LINES:
        return f"{kept}\n… ({len(lines) - _COMPACT_LINES} more lines)"
    return kept


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


def plain(entry: Entry, *, full: bool, heading: Callable[[str], str], faint: Callable[[str], str]) -> str:
    """An entry as text that ends in a newline. `full` cuts nothing."""
    if entry.kind == "turn":
        return ""
    body = entry.text if full or entry.kind in ("prompt", "answer", "note") else compact(entry.text)
    if entry.kind == "call" and not full:
        return f"[{entry.seq}] {heading(entry.label)} {call_line(entry.text)}\n\n"
    name = entry.label
    if entry.kind == "result":
        name = f"{entry.label} {'failed' if entry.failed else 'result'}"
    body = body.strip("\n")
    shown = "\n".join(f"    {line}".rstrip() for line in body.split("\n")) if body else ""
    if entry.kind in ("result", "thinking"):
        shown = faint(shown)
    return f"[{entry.seq}] {heading(name)}\n{shown}\n\n" if shown else f"[{entry.seq}] {heading(name)}\n\n"


# ------------------------------------------------------------------------------------------------------- Markdown

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")


def fenced(text: str, language: str = "") -> str:
    """A code block that no line of the text can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}"


def closed(text: str) -> str:
    """Markdown of somebody else's, with a fence that it leaves open closed, so that what follows is not swallowed."""
    opened: str | None = None
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        mark, rest = found[1], found[2]
        if opened is None:
            if not (mark[0] == "`" and "`" in rest):
                opened = mark
        elif mark[0] == opened[0] and len(mark) >= len(opened) and not rest.strip():
            opened = None
    return text.rstrip("\n") if opened is None else f"{text.rstrip(chr(10))}\n{opened}"


def markdown(entry: Entry) -> str:
    """An entry as Markdown that ends in a blank line."""
    if entry.kind == "turn":
        return f"## {entry.label.capitalize()}\n\n"
    if entry.kind in ("prompt", "answer"):
        return f"### {entry.label.capitalize()}\n\n{closed(entry.text)}\n\n"
    if entry.kind == "call":
        return f"**{entry.label}**\n\n{fenced(_pretty(entry.text), 'json')}\n\n"
    name = f"{entry.label} failed" if entry.kind == "result" and entry.failed else entry.label
    if entry.kind == "result" and not entry.failed:
        name = f"{entry.label} result"
    return f"*{name}*\n\n{fenced(entry.text)}\n\n" if entry.text else f"*{name}*\n\n"


def _pretty(arguments: str) -> str:
    import json

    try:
        return json.dumps(loads(arguments), ensure_ascii=False, indent=2)
    except ValueError:
        return arguments
