"""The tools whose histories are read, each by a module of this package that is imported when it is wanted."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast

from dsh.importing.model import Home, Source, Transcript

TOOLS: dict[str, str] = {
    "claude": "Claude Code",
    "codex": "Codex CLI",
    "opencode": "opencode",
    "gemini": "Gemini CLI",
    "goose": "goose",
    "crush": "Crush",
    "pi": "pi",
    "llm": "llm",
    "aider": "aider",
}


class Reader(Protocol):
    """What a module of a tool has; the contract is told in `model`."""

    def places(self, home: Home) -> Iterable[str]: ...

    def sources(self, place: str) -> Iterable[Source]: ...

    def transcripts(self, source: Source) -> Iterable[Transcript]: ...


def reader(tool: str) -> Reader:
    """The reader of a tool. KeyError if there is no such tool."""
    if tool not in TOOLS:
        raise KeyError(tool)
    return cast(Reader, import_module(f"dsh.importing.{tool}"))
