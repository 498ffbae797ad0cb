"""Scoped registration: one context decides who sees a contribution and how long it lives (docs/spec/scope.md).

A `Context` carries a scope key (None is global) and a stack of undos. Everything registered through it is visible
under its key only and is undone with it, in reverse order, each exactly once. Registries keep their entries in
`Layers`: one global table and one per key, merged on reading.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from dsh.core.errors import DshError, InvariantError

if TYPE_CHECKING:
    from dsh.kernel.hooks import Listener
    from dsh.kernel.host import Host

T = TypeVar("T")
Undo = Callable[[], Awaitable[None] | None]


class ScopeClosed(DshError):
    code = "SCOPE_CLOSED"


class Context:
    """A registration context; `key` is the live object (an agent) that its contributions belong to, or None."""

    def __init__(self, host: Host, key: object | None = None, parent: Context | None = None) -> None:
        self.host = host
        self._parent = parent
        self.key = key
        self._undos: list[Undo] = []
        self._closed = False
        self._done: trio.Event | None = None
        self._failures: list[Exception] = []

    def require_open(self) -> None:
        if self._closed:
            raise ScopeClosed("this scope is closed")

    def effect(self, undo: Undo) -> None:
        """Own an undo; it may be a plain function or return an awaitable (SC-4)."""
        self.require_open()
        self._undos.append(undo)

    def on(self, point: str, listener: Listener, *, first: bool = False) -> None:
        self.require_open()
        self.effect(self.host.hooks.add(point, listener, self.key, first=first))

    def provide(self, kind: type[T], service: T) -> None:
        """Offer the program's one service of type `kind`, until this context ends."""
        self.require_open()
        self.effect(self.host.provide(kind, service))

    def get(self, kind: type[T]) -> T:
        return self.host.get(kind)

    def scope(self, key: object | None = None) -> Context:
        """A nested context; without a key it shares this one's (SC-2). It ends where it was opened (SC-7)."""
        self.require_open()
        child = Context(self.host, self.key if key is None else key, self)
        self.effect(child.dispose)
        return child

    async def dispose(self) -> None:
        """Undo everything; every caller waits for the same completion and gets the same failures (SC-4, SC-5)."""
        if self._done is None:
            self._done = trio.Event()
            self._closed = True
            try:
                with trio.CancelScope(shield=True):
                    while self._undos:
                        try:
                            pending = self._undos.pop()()
                            if pending is not None:
                                await pending
                        except Exception as error:  # noqa: BLE001 - SC-4: the rest is undone first, then all are raised
                            self._failures.append(error)
            finally:
                self._done.set()
                if self._parent is not None and self.dispose in self._parent._undos:
                    self._parent._undos.remove(self.dispose)  # a long-lived parent keeps nothing of an ended scope
        await self._done.wait()
        if self._failures:
            raise ExceptionGroup("scope teardown", self._failures)


class Layers(Generic[T]):
    """Named entries of one registry: a global table and one per scope key (SC-20 to SC-28).

    A scoped entry shadows the global one of its name and takes its place in the order (SC-22).
    """

    def __init__(self, what: str, code: str = "DUPLICATE_NAME", changed: Callable[[], None] | None = None) -> None:
        self._what = what
        self._code = code
        self._changed = changed or (lambda: None)
        self._layers: dict[int | None, tuple[object | None, dict[str, T]]] = {None: (None, {})}

    def add(self, ctx: Context, name: str, value: T) -> None:
        """Register under the context's key; the undo is owned before the change is announced (SC-23)."""
        ctx.require_open()
        slot = None if ctx.key is None else id(ctx.key)
        _, table = self._layers.setdefault(slot, (ctx.key, {}))
        if name in table:
            layer = "globally" if slot is None else "in this scope"
            raise InvariantError(f"{self._what} {name!r} is already registered {layer}", code=self._code)
        table[name] = value
        live = True

        def remove(announce: bool = True) -> None:
            nonlocal live
            if not live:
                return
            live = False
            del table[name]
            if not table and slot is not None:
                self._layers.pop(slot, None)
            if announce:
                self._changed()

        ctx.effect(remove)
        try:
            self._changed()
        except BaseException:
            remove(announce=False)
            raise

    def own(self, key: object | None) -> dict[str, T]:
        """The entries of one layer alone, as a snapshot; `None` is the global layer."""
        return dict(self._layers.get(None if key is None else id(key), (None, {}))[1])

    def merged(self, key: object | None) -> dict[str, T]:
        """What `key` sees: globals in order, shadowed in place, then its own new names (SC-22)."""
        view = self.own(None)
        if key is not None:
            view.update(self.own(key))
        return view
