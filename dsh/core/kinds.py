"""Open kinds: unions that plugins extend without editing the owner (CO-1 to CO-5).

An `OpenKind` knows the tags that have been declared. Reading one tolerates tags nobody declared, because a log may
come from a newer program or a plugin that is not loaded; declaring a tag twice is a programming error.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsh.core.errors import InvariantError


class OpenKind:
    """The declared tags of one open union, in order of declaration."""

    def __init__(self, name: str, *tags: str) -> None:
        self.name = name
        self._tags: dict[str, None] = {}
        for tag in tags:
            self.declare(tag)

    def declare(self, tag: str) -> None:
        if tag in self._tags:
            raise InvariantError(f"{self.name} {tag!r} is declared twice", code="TAG_DUPLICATE")
        self._tags[tag] = None

    def __contains__(self, tag: object) -> bool:
        return tag in self._tags

    def __iter__(self) -> Iterator[str]:
        return iter(self._tags)


class ClosedKind(OpenKind):
    """A union nobody extends: a tag outside it is a programming error (CO-4)."""

    def require(self, tag: object) -> None:
        if tag not in self:
            raise InvariantError(f"{tag!r} is no {self.name}", code="TAG_UNKNOWN")


content_block = OpenKind("content block", "text", "reasoning", "tool-call", "tool-result")
message_source = OpenKind("message source", "user", "plugin", "goal")
finish_reason = OpenKind("finish reason", "stop", "tool-calls", "max-tokens", "aborted", "error")
turn_trigger = OpenKind("turn trigger", "message", "injection")
turn_end_reason = OpenKind(
    "turn end reason", "completed", "aborted", "error", "disposed", "max-tokens", "rejected", "interrupted"
)
stream_chunk = ClosedKind(
    "stream chunk",
    "block-start",
    "text-delta",
    "reasoning-delta",
    "tool-call-delta",
    "block-end",
    "usage",
    "finish",
)
