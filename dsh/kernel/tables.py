"""Insertion-ordered tables whose iteration is live (SC-30 to SC-34).

`NamedEntries` has a name for each entry, `AnonymousEntries` a private identity, so equal values are two entries. While
a table is iterated, entries that come are seen and entries that go are not; once it was empty, a running iteration is
over (SC-33). That is a ring of linked nodes: a node that was taken out still knows the one before it, and through it
the way back into the ring. Values are borrowed: never copied, never closed (SC-34).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from dsh.core.errors import InvariantError

T = TypeVar("T")


class Node:
    """A place in the ring."""

    __slots__ = ("after", "before", "live", "value")
    after: Node
    before: Node

    def __init__(self, value: Any) -> None:
        self.value = value
        self.live = True


class AnonymousEntries(Generic[T]):
    """An ordered list; the undo that `add` returns is the only handle on an entry."""

    def __init__(self) -> None:
        self.root = root = Node(None)
        root.after = root.before = root
        self.drained = 0  # how often the table has become empty

    def add(self, value: T, *, first: bool = False) -> Callable[[], None]:
        """Insert at the end, or in front; the undo is idempotent and removes exactly this entry (SC-31, SC-32)."""
        node = Node(value)
        before = self.root if first else self.root.before
        node.before, node.after = before, before.after
        before.after.before = node
        before.after = node

        def undo() -> None:
            if node.live:
                node.live = False
                node.before.after, node.after.before = node.after, node.before
                self.drained += self.root.after is self.root

        return undo

    def __iter__(self) -> Iterator[T]:
        root, drained = self.root, self.drained
        node = root.after
        while node is not root:
            yield node.value
            if self.drained != drained:
                return
            while not node.live:  # gone meanwhile: back to the nearest one before it that is still there
                node = node.before
            node = node.after

    def __bool__(self) -> bool:
        return self.root.after is not self.root


class NamedEntries(Generic[T]):
    """An ordered table from name to value. `duplicate(name)` makes the error for a name that is there (SC-30)."""

    def __init__(self, duplicate: Callable[[str], Exception] | None = None) -> None:
        self._duplicate = duplicate or (lambda name: InvariantError(f"{name!r} is there", code="DUPLICATE_NAME"))
        self._values: dict[str, T] = {}
        self._order: AnonymousEntries[str] = AnonymousEntries()

    def insert(self, name: str, value: T) -> Callable[[], None]:
        if name in self._values:
            raise self._duplicate(name)
        self._values[name] = value
        unlist = self._order.add(name)
        live = True

        def undo() -> None:
            nonlocal live
            if live:
                live = False
                unlist()
                del self._values[name]

        return undo

    def get(self, name: str) -> T | None:
        return self._values.get(name)

    def snapshot(self) -> dict[str, T]:
        return dict(self._values)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        for name in self._order:
            yield name, self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __bool__(self) -> bool:
        return bool(self._values)
