"""A conversation as chat completions want it: whatever a log holds, what comes out here is taken by a strict server.

A log may hold what no server accepts: a call whose result a compaction has removed, a result without its call, an
answer of thinking alone, a call with half an argument, an id that another provider made. Each would end a session for
good, since the history is sent again with every request. So it is mended here and not in the log, which stays the
truth (LS-55a to LS-55e). Messages are taken as groups: an assistant message, and all up to the next one. What a group
becomes depends only on it and on what came before, so a history that grows keeps its bytes (LS-56).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

from dsh.core.lossless import dumps, loads
from dsh.core.messages import Block, Message, model_text, plain_text

Wire = dict[str, Any]

NO_OUTPUT = "(no output)"
NO_TEXT = "(no text)"
GO_ON = "Go on."
BEGINNING = "(What was said before this is not part of the conversation any more.)"
NO_RESULT = (
    "(no result: the call was interrupted, or its result was removed from the conversation. It may have had effects.)"
)
NO_CALL = "Result of a tool call that is not part of the conversation any more:\n"
NO_THOUGHT = " "  # DeepSeek's models refuse a call without thinking, and newer ones an empty text for it
_NAME_LENGTH = 64


class Reader(NamedTuple):
    """Who is to read the conversation; `insists_on_reasoning` is that of its dialect."""

    provider: str
    model: str
    insists_on_reasoning: bool


class Conversation:
    """What was written so far, as far as it matters for what follows."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._calls = 0
        self._last = ""  # the role that wrote last, "" before the first but a system message

    def copy(self) -> Conversation:
        return copy(self)

    def add(self, messages: Sequence[Message]) -> list[Wire]:
        """The wire messages of the next messages. A group must not be cut before a result that answers its call."""
        wire: list[Wire] = []
        for head, rest in _groups(messages):
            results = _Results(rest)
            if head is not None:
                wire += self._assistant(head, results)
            for message in rest:
                wire += self._user(message, results)
        return wire

    def end(self) -> list[Wire]:
        """What has to stand at the end of a request: the last word is the user's or a tool's (LS-55e)."""
        if self._last == "":
            return [_said(BEGINNING)]
        return [_said(GO_ON)] if self._last == "assistant" else []

    # --- one message

    def _user(self, message: Message, results: _Results) -> list[Wire]:
        """LS-52, LS-53; results that answered a call are where the call is, the others are told as text."""
        text = model_text(message["content"])
        if message["role"] == "system":
            return [{"role": "system", "content": text}] if text.strip() else []
        left = [b for b in message["content"] if b["type"] == "tool-result"]
        wire = [_said(text if text.strip() else NO_TEXT)] if text.strip() or not left else []
        wire += [_said(NO_CALL + _output(b)) for b in left if not results.used(b)]
        if wire:
            self._last = "user"
        return wire

    def _assistant(self, message: Message, results: _Results) -> list[Wire]:
        """LS-54: an answer without text and without calls is none."""
        text = model_text(message["content"])
        calls = [b for b in message["content"] if b["type"] == "tool-call"]
        if not calls and not text.strip():
            return []
        before = [] if self._last == "user" else [_said(GO_ON if self._last else BEGINNING)]
        self._last = "assistant"
        spoken: Wire = {"role": "assistant", "content": text if text.strip() else ""}
        if not calls:
            return [*before, spoken]
        thought = self._thought(message)
        if thought:
            spoken["reasoning_content"] = thought
        ids = self._ids(message, calls)
        spoken["tool_calls"] = [_call(id_, call) for id_, call in zip(ids, calls, strict=True)]
        self._last = "user"
        return [*before, spoken, *(_answer(id_, results.take(b["id"])) for id_, b in zip(ids, calls, strict=True))]

    def _thought(self, message: Message) -> str:
        """LS-55: thinking goes back only to the route that made it, and to a dialect that insists always something."""
        if self._made_here(message):
            thought = "".join(plain_text(b) for b in message["content"] if b["type"] == "reasoning")
            if thought:
                return thought
        return NO_THOUGHT if self.reader.insists_on_reasoning else ""

    def _made_here(self, message: Message) -> bool:
        provenance = message.get("provenance")
        if provenance is None:
            return self.reader.insists_on_reasoning
        if provenance["provider"] != self.reader.provider:
            return False
        state = provenance.get("replayState")
        told = isinstance(state, dict) and state.get("reasoningField") == "reasoning_content"
        return told or self.reader.insists_on_reasoning

    def _ids(self, message: Message, calls: list[Block]) -> list[str]:
        """LS-55c: as they came where this model made them, else such as every server takes, numbered through."""
        made = message.get("provenance")
        here = made is None or (made["provider"], made["model"]) == (self.reader.provider, self.reader.model)
        seen: set[str] = set()
        ids = []
        for call in calls:
            self._calls += 1
            id_: str = call["id"]
            if not here or not id_ or id_ in seen:
                id_ = f"call{self._calls:05d}"  # nine letters and digits: Mistral takes nothing else
            seen.add(id_)
            ids.append(id_)
        return ids


class _Results:
    """The tool results of a group, each to be used once, in order."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._left = [b for m in messages if m["role"] == "user" for b in m["content"] if b["type"] == "tool-result"]
        self._used: set[int] = set()

    def take(self, call_id: str) -> Block | None:
        for at, block in enumerate(self._left):
            if block["toolCallId"] == call_id:
                del self._left[at]
                self._used.add(id(block))
                return block
        return None

    def used(self, block: Block) -> bool:
        return id(block) in self._used


def _groups(messages: Sequence[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    head: Message | None = None
    rest: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            if head is not None or rest:
                yield head, rest
            head, rest = message, []
        else:
            rest.append(message)
    if head is not None or rest:
        yield head, rest


def _said(text: str) -> Wire:
    return {"role": "user", "content": text}


def _output(result: Block) -> str:
    text = model_text(result.get("content", []))
    return text if text.strip() else NO_OUTPUT


def _answer(id_: str, result: Block | None) -> Wire:
    return {"role": "tool", "tool_call_id": id_, "content": NO_RESULT if result is None else _output(result)}


def _call(id_: str, block: Block) -> Wire:
    """Arguments go back exactly as they came but where a server would refuse them (LS-4)."""
    arguments = block["arguments"]
    if not arguments.strip():
        arguments = "{}"
    elif not _is_object(arguments):
        arguments = dumps({"invalid_json": arguments})
    return {"id": id_, "type": "function", "function": {"name": _name(block["name"]), "arguments": arguments}}


def _is_object(text: str) -> bool:
    """Whether every JSON reader gets an object from this: a surrogate half in an escape is no JSON to many."""
    try:
        value = loads(text)
        if "\\u" in text:
            dumps(value).encode()
    except ValueError:  # a UnicodeEncodeError is one
        return False
    return isinstance(value, dict)


def _name(name: str) -> str:
    """LS-55d: models make up names that no tool may have, and servers check the history's."""
    if 0 < len(name) <= _NAME_LENGTH and name.isascii() and name.replace("_", "").replace("-", "").isalnum():
        return name
    clean = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name[:_NAME_LENGTH])
    return clean or "unnamed"
