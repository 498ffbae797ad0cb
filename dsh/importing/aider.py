"""aider: a Markdown file `.aider.chat.history.md` in each project, to which every chat is appended.

The file is written for people. A line of aider's own has a mark before it and two spaces behind it ("> Applied edit  ",
"#### what the user said  "), and without the spaces the same marks are the model's. A file that has lost its trailing
spaces is read by the marks alone. Only the beginning of a chat has a time; `.aider.input.history` beside the file has
one for each line that was typed.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from dsh.core.messages import Block, TokenUsage
from dsh.importing.foreign_db import below
from dsh.importing.model import (
    MAX_LINE,
    Assistant,
    End,
    Home,
    Item,
    Skipped,
    Source,
    Transcript,
    User,
    reasoning,
    source_of,
    text,
    usage,
)

_HISTORY = ".aider.chat.history.md"
_INPUTS = ".aider.input.history"
_BEGINS = re.compile(rb"# aider chat started at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*$")
_TYPED = re.compile(rb"# (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,6}))?\s*$")
_MODEL = re.compile(r"(?:Main model|Models?): (\S+?)(?:,| with |$)")
_TOKENS = re.compile(r"Tokens: \S+ sent,.* received")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)(k?|M) (sent|received|cache write|cache hit)")
_FAILED = re.compile(r"litellm\.\w*(?:Error|Exception)\b|API provider .* (?:error|down)")
_THOUGHT = re.compile(r"<(thinking-content-[0-9a-f]+)>\n?(.*?)\n?</\1>", re.DOTALL)
# Commands that ask the model. What follows another one is aider's, unless it tells the tokens of an answer.
_ASKING = ("/ask", "/code", "/architect", "/context", "/help")


class Chat(NamedTuple):
    """Where one chat stands in a file: its bytes from `start` to `end`. `spaced`: aider's lines have their spaces."""

    started: str
    start: int
    end: int
    spaced: bool
    last: bool


def places(home: Home) -> Iterator[str]:
    yield home.env.get("AIDER_CHAT_HISTORY_FILE") or os.path.join(home.path, _HISTORY)
    yield os.path.abspath(_HISTORY)


def sources(place: str) -> Iterator[Source]:
    paths = [place] if os.path.isfile(place) else below(place, _HISTORY)
    for path in paths:
        if found := source_of(path, os.path.join(os.path.dirname(path), _INPUTS)):
            yield found


def transcripts(source: Source) -> Iterator[Transcript]:
    path = os.path.abspath(source.path)
    folder = os.path.dirname(path)
    place = hashlib.blake2b(os.fsencode(path), digest_size=4).hexdigest()
    taken: dict[str, int] = {}
    typed: dict[str, list[int]] | None = None
    for chat in _chats(path):
        if typed is None:
            typed = _typed(os.path.join(folder, _INPUTS))
        name = "".join(c for c in chat.started if c.isdigit())
        taken[name] = taken.get(name, 0) + 1
        again = f"-{taken[name]}" if taken[name] > 1 else ""
        began = _local_ms(chat.started)
        yield Transcript(
            id=f"{name[:8]}-{name[8:]}{again}-{place}",
            items=_Reading(began, typed, spaced=chat.spaced).items(_lines(path, chat), last=chat.last),
            cwd=folder,
            created_at=began,
            stamp=None if chat.last else f"{chat.end - chat.start}",
        )


def _chats(path: str) -> Iterator[Chat]:
    """The chats of a file. What stands before the first is none."""
    started, start, at, spaced = "", 0, 0, False
    with open(path, "rb") as file:
        while line := file.readline(MAX_LINE):
            begins = _BEGINS.match(line)
            if begins:
                if started:
                    yield Chat(started, start, at, spaced, last=False)
                started, start, spaced = begins[1].decode(), at + len(line), False
            elif line.startswith((b"> ", b"#### ")) and line.rstrip(b"\r\n").endswith(b"  "):
                spaced = True
            at += len(line)
    if started:
        yield Chat(started, start, at, spaced, last=True)


def _lines(path: str, chat: Chat) -> Iterator[str | None]:
    """The lines of a chat without their ends; None for one that is too long to be held."""
    with open(path, "rb") as file:
        file.seek(chat.start)
        left = chat.end - chat.start
        while left > 0 and (line := file.readline(min(left, MAX_LINE))):
            left -= len(line)
            if len(line) == MAX_LINE and not line.endswith(b"\n"):
                while left > 0 and (rest := file.readline(min(left, 2**20))):
                    left -= len(rest)
                    if rest.endswith(b"\n"):
                        break
                yield None
            else:
                yield line.decode("utf-8", "replace").rstrip("\r\n")


def _typed(path: str) -> dict[str, list[int]]:
    """When each line was typed, in order. Lines that were typed together stand together."""
    found: dict[str, list[int]] = {}
    at: int | None = None
    said: list[str] = []
    try:
        with open(path, "rb") as file:
            while line := file.readline(2**20):
                if line.startswith(b"+"):
                    said.append(line[1:].decode("utf-8", "replace").rstrip("\r\n"))
                    continue
                if said and at is not None:
                    found.setdefault("\n".join(said), []).append(at)
                said = []
                if stamp := _TYPED.match(line):
                    begun = _local_ms(stamp[1].decode())
                    at = None if begun is None else begun + int((stamp[2] or b"0").ljust(3, b"0")[:3])
    except OSError:
        return {}
    if said and at is not None:
        found.setdefault("\n".join(said), []).append(at)
    return found


def _local_ms(stamp: str) -> int | None:
    """aider writes local times without saying so."""
    try:
        at = time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None
    return int(at * 1000) if at >= 0 else None


# ---------------------------------------------------------------------------------------------------------- records


class _Reading:
    """The records of one chat, line by line."""

    def __init__(self, began: int | None, typed: dict[str, list[int]], *, spaced: bool) -> None:
        self._at = began
        self._spaced = spaced
        self._typed = typed
        self._said: list[str] = []  # of the user, until a line is none of theirs
        self._answer: list[str] = []
        self._told: list[str] = []  # by aider itself, since the user spoke
        self._prompted = self._asked = False  # somebody spoke, and to the model
        self._provider = self._model = ""

    def items(self, lines: Iterator[str | None], *, last: bool) -> Iterator[Item]:
        for number, line in enumerate(lines, 1):
            if line is None:
                yield Skipped(f"line {number} of the chat", f"is longer than {MAX_LINE // 2**20} MiB")
            elif line.startswith("####") and self._is_ours(line):
                yield from self._answered(None)
                yield from self._heard()
                self._said.append(line[4:].removeprefix(" ").rstrip())
            elif line.startswith("> ") and self._is_ours(line):
                yield from self._spoken()
                yield from self._tool(line[2:].rstrip())
            else:
                yield from self._spoken()
                if self._answer or (line.strip() and not line.startswith("Cost: $")):
                    self._answer.append(line)
        yield from self._spoken()
        yield from self._answered(None, partial=last)

    def _is_ours(self, line: str) -> bool:
        """Whether aider wrote a marked line, and not the model in its answer."""
        if line.endswith("  ") or not (self._spaced and self._answer and self._asked):
            return True
        return _TOKENS.match(line, 2) is not None

    def _spoken(self) -> Iterator[Item]:
        """What the user said is complete."""
        if not self._said:
            return
        said, self._said = "\n".join(self._said).strip(), []
        self._at = self._time_of(said)
        command = said.split(maxsplit=1)[0] if said else ""
        self._asked = not (command.startswith("/") and command not in _ASKING)
        self._prompted = True
        if said in ("", "<blank>"):
            return
        if self._asked:
            yield User([text(said)], self._at)
        else:
            self._told.append(said)

    def _time_of(self, said: str) -> int | None:
        """When it was typed: the first time at which these words were, not before what came before."""
        for at in self._typed.get(said, ()):
            if self._at is None or at >= self._at:
                return at
        return self._at

    def _tool(self, line: str) -> Iterator[Item]:
        if found := _MODEL.match(line):
            provider, slash, model = found[1].partition("/")
            self._provider, self._model = (provider, model) if slash else ("aider", found[1])
            return
        if _TOKENS.match(line):
            yield from self._answered(_usage(line))
            return
        yield from self._answered(None)
        if self._asked and _FAILED.match(line):
            yield End("error", self._at, line)
        elif self._asked and "KeyboardInterrupt" in line:
            yield End("aborted", self._at)
        elif self._prompted and not line.startswith("Cost: $"):
            self._told.append(line)

    def _answered(self, spent: TokenUsage | None, *, partial: bool = False) -> Iterator[Item]:
        """The answer is complete, if there is one."""
        lines, self._answer = self._answer, []
        said = "\n".join(lines).strip()
        if not said:
            return
        if not self._asked and spent is None:  # a command's output
            self._told.append(said)
            return
        if not self._asked:
            yield from self._heard()
        blocks: list[Block] = []
        rest = 0
        for thought in _THOUGHT.finditer(said):
            blocks += [text(said[rest : thought.start()].strip()), reasoning(thought[2].strip())]
            rest = thought.end()
        blocks.append(text(said[rest:].strip()))
        kept = [block for block in blocks if block["text"]]
        yield Assistant(kept, self._at, self._provider, self._model, spent, partial=partial and spent is None)

    def _heard(self) -> Iterator[Item]:
        """What aider told since the user spoke is context for what the user says next."""
        if self._told and not self._said:
            told, self._told = "\n".join(self._told), []
            yield User([text(told)], self._at, human=False)


def _usage(line: str) -> TokenUsage | None:
    """aider rounds what it tells, from a thousand on."""
    counts: dict[str, int] = {}
    for number, unit, kind in _COUNT.findall(line):
        counts[kind] = int(float(number) * {"": 1, "k": 1000, "M": 1_000_000}[unit])
    sent, read, write = counts.get("sent"), counts.get("cache hit"), counts.get("cache write")
    cached = (read or 0) + (write or 0)
    if sent is not None and sent >= cached:
        sent -= cached
    return usage(sent, counts.get("received"), read, write)
