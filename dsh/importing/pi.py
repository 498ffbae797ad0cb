"""pi: a JSONL file for each session, a tree of entries of which each names its parent.

A person who goes back to an earlier entry begins a branch; all branches stand in the file in the order in which they
were written. What a branch left behind leaves the surface when the first prompt of the next one comes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from dsh.core.messages import Block
from dsh.importing.clean import parsed
from dsh.importing.lines import records
from dsh.importing.model import (
    MORE,
    Assistant,
    End,
    Home,
    Item,
    Result,
    Skipped,
    Source,
    Summary,
    Transcript,
    User,
    call,
    epoch_ms,
    left_out,
    reasoning,
    source_of,
    text,
    usage,
)

_ENDS = {"stop": "completed", "toolUse": MORE, "length": "max-tokens", "aborted": MORE, "error": MORE}


def places(home: Home) -> Iterator[str]:
    yield os.path.join(home.under("PI_CODING_AGENT_DIR", ".pi", "agent"), "sessions")


def sources(place: str) -> Iterator[Source]:
    if os.path.isfile(place):
        if found := source_of(place):
            yield found
        return
    for folder, folders, files in os.walk(place):
        folders.sort()
        for name in files:
            if name.endswith(".jsonl") and (found := source_of(os.path.join(folder, name))):
                yield found


def transcripts(source: Source) -> Iterator[Transcript]:
    reading = _Tree(source.path)
    reading.transcript.items = reading.items()
    yield reading.transcript


def _record(line: bytes | Any) -> dict[str, Any]:
    value = parsed(line) if isinstance(line, bytes) else line
    if not isinstance(value, dict):
        raise ValueError("is no record")
    return value


class _Tree:
    """One pass over a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        name = os.path.basename(path).removesuffix(".jsonl")
        self.transcript = Transcript(name.rpartition("_")[2] or name, iter(()))
        self._places: dict[str, int] = {}  # entries, and how many records there were with what they say
        self._before: dict[str, int] = {}  # the same without what they say themselves
        self._count = 0
        self._spoken = 0  # records up to the last prompt or answer

    def items(self) -> Iterator[Item]:
        with open(self.path, "rb") as file:
            for _, entry in records(file, _record, _record):
                if isinstance(entry, Skipped):
                    yield entry
                    continue
                name, parent = _text(entry.get("id")), _text(entry.get("parentId"))
                before, said = self._count, False
                aside = entry.get("type") == "branch_summary"  # it stands where the other branch began
                for item in self._read(entry, parent):
                    said = not aside
                    self._count += 1
                    if type(item) is not Result:
                        self._spoken = self._count
                    yield item
                if name:
                    self._before[name] = before
                    self._places[name] = self._count if said else self._places.get(parent or "", before)

    def _read(self, entry: dict[str, Any], parent: str | None) -> Iterable[Item]:
        transcript = self.transcript
        kind, at = entry.get("type"), epoch_ms(entry.get("timestamp"))
        if kind == "session":
            if transcript.created_at is None:
                transcript.created_at = at
                transcript.id = _text(entry.get("id")) or transcript.id
                transcript.cwd = _text(entry.get("cwd"))
        elif kind == "message" and isinstance(entry.get("message"), dict):
            if transcript.root is None:
                transcript.root = f"{entry.get('timestamp')} {entry.get('id')}"
            return self._message(entry["message"], at, parent)
        elif kind == "session_info":
            transcript.title = _text(entry.get("name")) or transcript.title
        elif kind == "compaction" and _text(entry.get("summary")):
            return [Summary(entry["summary"], at, self._before.get(_text(entry.get("firstKeptEntryId")) or ""))]
        elif kind == "branch_summary" and _text(entry.get("summary")):
            return [User([text(entry["summary"])], at, human=False)]
        elif kind == "custom_message":
            blocks = _blocks(entry.get("content"))
            return [User(blocks, at, human=False)] if blocks else ()
        return ()

    def _message(self, message: dict[str, Any], at: int | None, parent: str | None) -> Iterable[Item]:
        role = message.get("role")
        blocks = _blocks(message.get("content"))
        if role == "user":
            place = self._places.get(parent or "")
            return [User(blocks, at, after=place if place is not None and place < self._spoken else None)]
        if role == "assistant":
            return self._answer(message, blocks, at)
        if role == "toolResult":
            return [Result(_text(message.get("toolCallId")) or "", blocks, at, message.get("isError") is True)]
        if role == "bashExecution":
            ran, output = _text(message.get("command")) or "", _text(message.get("output")) or ""
            return [User([text(f"$ {ran}\n{output}")], at, human=False)]
        return [User(blocks, at, human=False)] if blocks else ()

    def _answer(self, message: dict[str, Any], blocks: list[Block], at: int | None) -> Iterable[Item]:
        stop = _text(message.get("stopReason"))
        given = message.get("usage")
        given = given if isinstance(given, dict) else {}
        tokens = usage(given.get("input"), given.get("output"), given.get("cacheRead"), given.get("cacheWrite"))
        provider, model = _text(message.get("provider")) or "", _text(message.get("model")) or ""
        began = epoch_ms(message.get("timestamp"))
        items: list[Item] = []
        if blocks or stop != "error":
            items.append(Assistant(blocks, at, provider, model, tokens, _ENDS.get(stop or ""), began=began))
        if stop == "error":
            items.append(End("error", at, _text(message.get("errorMessage")) or ""))
        elif stop == "aborted":
            items.append(End("aborted", at))
        return items


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _blocks(content: Any) -> list[Block]:
    if isinstance(content, str):
        return [text(content)] if content else []
    blocks: list[Block] = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind == "text" and _text(part.get("text")):
            blocks.append(text(part["text"]))
        elif kind == "thinking" and _text(part.get("thinking")):
            blocks.append(reasoning(part["thinking"]))
        elif kind == "toolCall":
            blocks.append(call(_text(part.get("id")) or "", _text(part.get("name")) or "", part.get("arguments") or {}))
        elif kind == "image":
            data = _text(part.get("data")) or ""
            blocks.append(left_out("image", (_text(part.get("mimeType")) or "")[:40], len(data) * 3 // 4))
    return blocks
