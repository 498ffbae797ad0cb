"""The cancel handle that a turn gives to everything working for it.

trio cancels by scopes, the contracts speak of a signal that can be asked and passed on; `Signal` is both. Work that
should end with the signal runs inside `signal.scope()`; code that only wants to know reads `signal.cancelled`. The
first cause wins and stays readable after the owner is retired (AL-66, AL-72).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio


class Signal:
    """A one-shot cancel handle; `reason` is the cause's kind ("user", "parent", "disposed", "timeout") once fired."""

    def __init__(self, parent: Signal | None = None) -> None:
        self.reason: str | None = None
        self._scopes: set[trio.CancelScope] = set()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0
        self._release: Callable[[], None] = lambda: None
        if parent is not None:
            self._release = parent.on_cancel(lambda: self.cancel(parent.reason or "parent"))

    @property
    def cancelled(self) -> bool:
        return self.reason is not None

    def cancel(self, reason: str = "user") -> None:
        """Fire; later calls change nothing."""
        if self.reason is not None:
            return
        self.reason = reason
        for scope in list(self._scopes):
            scope.cancel()
        for callback in list(self._callbacks.values()):
            callback()
        self._callbacks.clear()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when fired (at once if it already has); the result takes the callback back."""
        if self.cancelled:
            callback()
            return lambda: None
        key = self._next
        self._next += 1
        self._callbacks[key] = callback
        return lambda: void(self._callbacks.pop(key, None))

    def child(self) -> Signal:
        """A signal of its own that also fires when this one does; `detach()` it when its work is over."""
        return Signal(self)

    def detach(self) -> None:
        self._release()

    @contextmanager
    def scope(self) -> Iterator[trio.CancelScope]:
        """A cancel scope that ends when the signal fires; `cancelled_caught` tells afterwards whether it did."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self.cancelled:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scopes.discard(scope)


def void(_: object) -> None:
    return None
