"""Open kinds: unions that plugins extend without editing the owner (CO-1 to CO-5).

An `OpenKind` knows the tags that have been declared. Reading one tolerates tags nobody declared, because a log may
come from a newer program or a plugin that is not loaded; declaring a tag twice is a programming error. A plugin
declares with `ctx.declare(kind, tag, ...)`, which is undone with the plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dsh.core.errors import InvariantError


class OpenKind:
    """The declared tags of one open union, in order of declaration, each with the facets that its owner gave it.

    A facet is what makes a foreign tag first class somewhere: `facets` names those that a part of the program asks
    for. A tag without a facet, or one that nobody declared, takes the neutral path there.
    """

    def __init__(self, name: str, *tags: str, facets: tuple[str, ...] = ()) -> None:
        self.name = name
        self._facets = facets
        self._tags: dict[str, dict[str, Any]] = {}
        for tag in tags:
            self.declare(tag)

    def declare(self, tag: str, **facets: Any) -> Callable[[], None]:
        """Add a tag; the result takes exactly this declaration back. TAG_DUPLICATE; INVARIANT for a tag that is no text
        and for a facet that nothing would ask for."""
        if type(tag) is not str or not tag:
            raise InvariantError(f"{tag!r} is no name for a {self.name}")
        if tag in self._tags:
            raise InvariantError(f"{self.name} {tag!r} is declared twice", code="TAG_DUPLICATE")
        for facet in facets:
            if facet not in self._facets:
                known = ", ".join(self._facets) or "none"
                raise InvariantError(f"{self.name} {tag!r} has no use for {facet!r}; known: {known}")
        self._tags[tag] = facets

        def undo() -> None:
            if self._tags.get(tag) is facets:
                del self._tags[tag]

        return undo

    def facet(self, tag: object, name: str) -> Any:
        """What the owner of a tag said about it, or None."""
        return self._tags[tag].get(name) if isinstance(tag, str) and tag in self._tags else None

    def __contains__(self, tag: object) -> bool:
        return tag in self._tags

    def __iter__(self) -> Iterator[str]:
        return iter(self._tags)


class ClosedKind(OpenKind):
    """A union nobody extends: a tag outside it is a programming error (CO-4)."""

    def require(self, tag: object) -> None:
        if tag not in self:
            raise InvariantError(f"{tag!r} is no {self.name}", code="TAG_UNKNOWN")


# `text`: Callable[[Block], str], what an adapter that knows only text sends of such a block; always the same for the
# same block, since providers cache by exact prefix. Without it the block does not reach such a provider.
content_block = OpenKind("content block", "text", "reasoning", "tool-call", "tool-result", facets=("text",))
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
