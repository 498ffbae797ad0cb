"""Dispatch of hook points. Who sees a dispatch: listeners without a scope, and those whose scope key is its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsh.core.errors import InvariantError
from dsh.kernel.points import POINTS, Kind

Listener = Callable[..., Any]
Report = Callable[[str, BaseException], None]


@dataclass(eq=False, slots=True)
class _Entry:
    listener: Listener
    key: object | None


class Hooks:
    """The listeners of every point, in registration order (SC-10, SC-13).

    `report(where, error)` receives the failures that a notice contains.
    """

    def __init__(self, report: Report) -> None:
        self._entries: dict[str, list[_Entry]] = {name: [] for name in POINTS}
        self.report = report

    def add(self, point: str, listener: Listener, key: object | None, *, first: bool = False) -> Callable[[], None]:
        """Register and return the undo, which removes exactly this registration and is idempotent (SC-32)."""
        if point not in POINTS:
            raise InvariantError(f"no hook point is called {point!r}")
        entry = _Entry(listener, key)
        entries = self._entries[point]
        if first:
            entries.insert(0, entry)
        else:
            entries.append(entry)

        def undo() -> None:
            if entry in entries:
                entries.remove(entry)

        return undo

    def _of(self, point: str, kind: Kind, key: object | None) -> list[Listener]:
        if POINTS[point] != kind:
            raise InvariantError(f"{point} is a {POINTS[point]} point")
        return [e.listener for e in self._entries[point] if e.key is None or e.key is key]

    def notify(self, point: str, key: object | None, *args: Any) -> Exception | None:
        """Call every observer; one that fails is reported and does not stop the next (SE-7, AL-17).

        Returns the first failure, for the one point where it counts as a veto (SE-54)."""
        first: Exception | None = None
        for listener in self._of(point, "notice", key):
            try:
                listener(*args)
            except Exception as error:  # noqa: BLE001 - the containment point the spec names
                self.report(point, error)
                first = first or error
        return first

    async def serial(self, point: str, key: object | None, *args: Any, stop: bool = False) -> Any:
        """Await each listener in order. With `stop`, the first result that is not None ends the row."""
        for listener in self._of(point, "serial", key):
            result = await listener(*args)
            if stop and result is not None:
                return result
        return None

    def waterfall(self, point: str, key: object | None, default: Callable[..., Any], *args: Any) -> Any:
        """Run the chain and return what its outermost link returns: an awaitable for the asynchronous points.

        Listeners are called `listener(*args, next)`; `next()` goes on with the same arguments, `next(*changed)` with
        others where the point allows it.
        """
        link: Callable[..., Any] = default
        for listener in reversed(self._of(point, "waterfall", key)):
            link = _around(point, listener, link, args)
        return link(*args)


def _around(point: str, listener: Listener, inner: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    def link(*given: Any) -> Any:
        current = given or args
        called = False

        def next_(*changed: Any) -> Any:
            nonlocal called
            if called:
                raise InvariantError(f"a listener of {point} called next() twice")
            called = True
            return inner(*(changed or current))

        return listener(*current, next_)

    return link
