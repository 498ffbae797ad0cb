"""Gemini CLI: a file for each session below `tmp/PROJECT/chats`: one JSON object, or since 2026 a JSONL journal of one.

In the journal a record of a message may be written again under its id, when its calls have been answered; `$set` sets
fields of the whole, also all messages anew when a session is resumed; `$rewindTo` goes back to before a message. The
project is told by the hash of its folder, which is found again among the folders that the tool's files name.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from dsh.core.messages import Block, TokenUsage
from dsh.importing.clean import json_text, parsed
from dsh.importing.lines import records
from dsh.importing.model import (
    Assistant,
    End,
    Home,
    Item,
    ReadError,
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

_PROVIDER = "google"
_MAX_FILE = 512 * 1024 * 1024  # bytes of a JSON file, which is read as a whole
_CONTEXT = ("<session_context>", "This is the Gemini CLI. We are setting up the context for our chat.")
_SUMMARY = "<state_snapshot>"
_LISTED = 1000  # folders that are tried for a project's hash


def places(home: Home) -> Iterator[str]:
    yield os.path.join(home.under("GEMINI_CLI_HOME") or home.path, ".gemini", "tmp")


def sources(place: str) -> Iterator[Source]:
    if os.path.isfile(place):
        if found := source_of(place):
            yield found
        return
    for folder, folders, files in os.walk(place):
        folders.sort()
        for name in files:
            told = name.startswith("session-") and name.endswith((".json", ".jsonl"))
            delegated = name.endswith(".jsonl") and os.path.basename(os.path.dirname(folder)) == "chats"
            if (told or delegated) and (found := source_of(os.path.join(folder, name))):
                yield found


def transcripts(source: Source) -> Iterator[Transcript]:
    reading = _Chat(source)
    reading.transcript.items = reading.items()
    yield reading.transcript


class _Chat:
    """One pass over a session's file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.transcript = Transcript(os.path.splitext(os.path.basename(source.path))[0], iter(()))
        above = os.path.basename(os.path.dirname(source.path))
        if above != "chats":  # a sub-agent's is in a folder named after the session that sent it
            self.transcript.parent = above
        self._held: dict[str, Any] | None = None  # an answer that may be written again with its results
        self._before: dict[str, int] = {}  # messages, and how many records there were before each
        self._open: set[str] = set()  # calls without a result so far
        self._count = 0
        self._rewound: int | None = None
        self._hash = ""

    def items(self) -> Iterator[Item]:
        if self._source.path.endswith(".json"):
            yield from self._whole()
        else:
            with open(self._source.path, "rb") as file:
                for _, record in records(file, _record, _record):
                    if isinstance(record, Skipped):
                        yield record
                    else:
                        yield from self._counted(self._read(record))
        yield from self._counted(self._flushed(at_end=True))
        if self.transcript.cwd is None and self._hash:
            self.transcript.cwd = _folder(self._hash, _known_folders(self._source.path))

    def _counted(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if type(item) is not Skipped:
                self._count += 1
            yield item

    def _whole(self) -> Iterator[Item]:
        if self._source.size > _MAX_FILE:
            raise ReadError(f"is larger than {_MAX_FILE // 2**20} MiB")
        with open(self._source.path, "rb") as file:
            content = file.read(_MAX_FILE)
        try:
            whole = parsed(content)
        except ValueError as error:
            raise ReadError(str(error)) from None
        if not isinstance(whole, dict) or not isinstance(whole.get("messages"), list):
            raise ReadError("is no session")
        self._head(whole)
        for number, message in enumerate(whole["messages"], 1):
            if isinstance(message, dict):
                yield from self._counted(self._message(message))
            else:
                yield Skipped(f"message {number}", "is no record")

    def _read(self, record: dict[str, Any]) -> Iterable[Item]:
        if isinstance(record.get("$rewindTo"), str):
            before = list(self._flushed())
            self._rewound = self._before.get(record["$rewindTo"], 0)
            return before
        changes = record.get("$set")
        if isinstance(changes, dict):
            self._head(changes)
            messages = changes.get("messages")
            found = [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
            return (item for each in found if each.get("id") not in self._before for item in self._message(each))
        if "sessionId" in record and "type" not in record:
            self._head(record)
            return ()
        return self._message(record)

    def _head(self, fields: dict[str, Any]) -> None:
        transcript = self.transcript
        if _text(fields.get("sessionId")) and transcript.created_at is None:
            transcript.id = fields["sessionId"]
            transcript.created_at = epoch_ms(fields.get("startTime"))
        self._hash = _text(fields.get("projectHash")) or self._hash
        if self._hash and transcript.cwd is None:
            transcript.cwd = _folder(self._hash, _own_folder(self._source.path))
        transcript.title = _text(fields.get("summary")) or transcript.title

    def _message(self, message: dict[str, Any]) -> Iterable[Item]:
        name, kind, at = _text(message.get("id")) or "", message.get("type"), epoch_ms(message.get("timestamp"))
        held = self._held
        if held is not None and name and held.get("id") == name:
            self._held = message
            return ()
        if name in self._before and kind == "gemini":  # an answer that was passed on already: its results are new
            return [result for result in _results(message, at) if self._answers(result)]
        before = [*self._flushed()]
        self._before[name] = self._count + len(before)
        if kind == "gemini":
            self._held = message
            return before
        blocks = _blocks(message.get("content"))
        if kind == "user":
            return [*before, *self._said(blocks, _responses(message.get("content")), at)]
        if kind == "error":
            said = "\n".join(block.get("text", "") for block in blocks)
            return [*before, End("error", at, said)]
        return before

    def _said(self, blocks: list[Block], responses: list[tuple[str, Any]], at: int | None) -> Iterator[Item]:
        for call_id, response in responses:
            result = Result(call_id, _output(response), at, isinstance(response, dict) and "error" in response)
            if self._answers(result):
                yield result
        if not blocks:
            return
        first = blocks[0].get("text", "").lstrip()
        if first.startswith(_CONTEXT):
            if self.transcript.cwd is None and self._hash:
                named = re.findall(r"(?:/|[A-Za-z]:\\)[^\s\n`'\"]+", first[:20_000])[:_LISTED]
                self.transcript.cwd = _folder(self._hash, named)
            yield User(blocks, at, human=False)
        elif first.startswith(_SUMMARY):
            yield Summary(first, at)
        else:
            after, self._rewound = self._rewound, None
            yield User(blocks, at, after=after)

    def _answers(self, result: Result) -> bool:
        """Whether a result is the first one for its call."""
        if result.call_id not in self._open:
            return False
        self._open.discard(result.call_id)
        return True

    def _flushed(self, *, at_end: bool = False) -> Iterator[Item]:
        """The answer that was held, with the results that it has."""
        message, self._held = self._held, None
        if message is None:
            return
        at = epoch_ms(message.get("timestamp"))
        blocks: list[Block] = []
        for thought in _dicts(message.get("thoughts")):
            subject, about = _text(thought.get("subject")), _text(thought.get("description"))
            if subject or about:
                blocks.append(reasoning("\n".join(filter(None, (subject and f"**{subject}**", about)))))
        blocks += _blocks(message.get("content"))
        known = {block["id"] for block in blocks if block["type"] == "tool-call"}
        for each in _dicts(message.get("toolCalls")):
            call_id = _text(each.get("id")) or ""
            if call_id not in known:
                blocks.append(call(call_id, _text(each.get("name")) or "", each.get("args") or {}))
        self._open |= {block["id"] for block in blocks if block["type"] == "tool-call"}
        model = _text(message.get("model")) or ""
        yield Assistant(blocks, at, _PROVIDER, model, _usage(message.get("tokens")), partial=at_end)
        for result in _results(message, at):
            if self._answers(result):
                yield result


def _record(line: bytes | Any) -> dict[str, Any]:
    value = parsed(line) if isinstance(line, bytes) else line
    if not isinstance(value, dict):
        raise ValueError("is no record")
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _blocks(content: Any) -> list[Block]:
    """What is said in parts of the API, or in plain text."""
    if isinstance(content, str):
        return [text(content)] if content else []
    blocks: list[Block] = []
    for part in [content] if isinstance(content, dict) else content if isinstance(content, list) else ():
        if isinstance(part, str):
            blocks += [text(part)] if part else []
        elif isinstance(part, dict):
            blocks += _part(part)
    return blocks


def _part(part: dict[str, Any]) -> list[Block]:
    if _text(part.get("text")):
        return [reasoning(part["text"]) if part.get("thought") is True else text(part["text"])]
    asked, data = part.get("functionCall"), part.get("inlineData")
    if isinstance(asked, dict):
        return [call(_text(asked.get("id")) or "", _text(asked.get("name")) or "", asked.get("args") or {})]
    if isinstance(data, dict):
        return [
            left_out(
                "attachment", (_text(data.get("mimeType")) or "")[:40], len(_text(data.get("data")) or "") * 3 // 4
            )
        ]
    return [left_out("file")] if "fileData" in part else []


def _responses(content: Any) -> list[tuple[str, Any]]:
    """The answers of tools among parts: the call's id and the response."""
    parts = [content] if isinstance(content, dict) else content
    found = [part.get("functionResponse") for part in _dicts(parts)]
    return [(_text(each.get("id")) or "", each.get("response")) for each in found if isinstance(each, dict)]


def _results(message: dict[str, Any], at: int | None) -> Iterator[Result]:
    for each in _dicts(message.get("toolCalls")):
        given = each.get("result")
        if given is None and not _text(each.get("resultDisplay")):
            continue
        responses = _responses(given)
        blocks = [block for _, response in responses for block in _output(response)] or _blocks(given)
        if not blocks and _text(each.get("resultDisplay")):
            blocks = [text(each["resultDisplay"])]
        failed = each.get("status") in ("error", "cancelled")
        yield Result(_text(each.get("id")) or "", blocks, epoch_ms(each.get("timestamp")) or at, failed)


def _output(response: Any) -> list[Block]:
    """What a tool answered: the text of it where it is one, else all as JSON."""
    if isinstance(response, dict):
        for key in ("output", "error"):
            if isinstance(response.get(key), str):
                return [text(response[key])] if response[key] else []
    return [text(json_text(response))] if response else []


def _usage(tokens: Any) -> TokenUsage | None:
    """The format's input includes what was cached, its output is without the thoughts."""
    if not isinstance(tokens, dict):
        return None
    whole, cached, output, thoughts, tool = (
        value if type(value := tokens.get(name)) is int and 0 <= value < 2**53 else None
        for name in ("input", "cached", "output", "thoughts", "tool")
    )
    if whole is None and output is None:
        return None
    fresh = max(0, (whole or 0) - (cached or 0)) + (tool or 0)
    return usage(fresh, (output or 0) + (thoughts or 0), cached, None, thoughts)


# --------------------------------------------------------------------------------------------------------- projects


def _folder(hash: str, folders: Iterable[str]) -> str | None:
    """The one of some folders whose hash is the project's."""
    for folder in folders:
        if hashlib.sha256(folder.encode("utf-8", "surrogatepass")).hexdigest() == hash:
            return folder
    return None


def _own_folder(path: str) -> Iterator[str]:
    """The folder that the project's own file names."""
    above = os.path.dirname(path)
    for _ in range(3):
        yield from _read_small(os.path.join(above, ".project_root")).splitlines()[:1]
        above = os.path.dirname(above)


def _known_folders(path: str) -> list[str]:
    """The folders that the tool's own lists name: of projects, and of those that are trusted."""
    above = os.path.dirname(path)
    while above != os.path.dirname(above) and os.path.basename(above) != "tmp":
        above = os.path.dirname(above)
    found: list[str] = []
    for name in ("projects.json", "trustedFolders.json"):
        try:
            listed = parsed(_read_small(os.path.join(os.path.dirname(above), name)))
        except ValueError:
            continue
        if isinstance(listed, dict):
            inner = listed.get("projects")
            found += [each for each in (inner if isinstance(inner, dict) else listed) if isinstance(each, str)]
    return found[:_LISTED]


def _read_small(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(1024 * 1024).decode("utf-8", "replace")
    except OSError:
        return ""
