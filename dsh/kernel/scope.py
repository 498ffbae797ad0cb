"""Scoped registration: one context decides who sees a contribution and how long it lives (docs/spec/scope.md).

A `Context` carries a scope key (None is global) and a stack of undos. Everything registered through it is visible
under its key only and is undone with it, in reverse order, each exactly once. Registries keep their entries in
`Layers`: one global table and one per key, merged on reading.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from dsh.core.errors import DshError, InvariantError
from dsh.kernel.hooks import contained
from dsh.kernel.tables import NamedEntries

if TYPE_CHECKING:
    from dsh.core.kinds import OpenKind
    from dsh.kernel.hooks import Listener
    from dsh.kernel.host import Host, Plugin

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
        self.plugin: Plugin | None = parent.plugin if parent is not None else None  # on whose behalf it registers
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

    def registered(self, what: str, name: str) -> None:
        """Note a contribution of the plugin behind this context, for `dsh plugins`."""
        if self.plugin is not None:
            self.plugin.registered.append((what, name))

    def on(self, point: str, listener: Listener, *, first: bool = False, everywhere: bool = False) -> None:
        """Listen at a hook point until this context ends; `first` goes before the others (SC-13), `everywhere` is for
        tooling that hears of every agent although this context has a scope (SC-12)."""
        self.require_open()
        self.effect(self.host.hooks.add(point, listener, self, first=first, everywhere=everywhere))
        self.registered("hook", point)

    def declare(self, kind: OpenKind, tag: str, **facets: Any) -> None:
        """Add a tag to an open kind of dsh.core until this context ends; TAG_DUPLICATE (CO-1, CO-5). The kind says
        which facets it has a use for. A tag is known to the whole process, whatever the context's scope."""
        self.require_open()
        self.effect(kind.declare(tag, **facets))
        self.registered(kind.name, tag)

    def provide(self, kind: type[T], service: T) -> None:
        """Offer the program's one service of type `kind`, until this context ends."""
        self.require_open()
        self.effect(self.host.provide(kind, service))
        self.registered("service", kind.__name__)

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
                        except (SystemExit, KeyboardInterrupt) as error:
                            if self.plugin is None or not self.plugin.foreign:
                                raise
                            self._failures.append(contained("it", error))
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
        self._layers: dict[int | None, tuple[object | None, NamedEntries[T]]] = {None: (None, self._table(None))}

    def _table(self, slot: int | None) -> NamedEntries[T]:
        layer = "globally" if slot is None else "in this scope"
        return NamedEntries(
            lambda name: InvariantError(f"{self._what} {name!r} is already registered {layer}", code=self._code)
        )

    def add(self, ctx: Context, name: str, value: T) -> None:
        """Register under the context's key; the undo is owned before the change is announced (SC-23)."""
        ctx.require_open()
        slot = None if ctx.key is None else id(ctx.key)
        if slot not in self._layers:
            self._layers[slot] = (ctx.key, self._table(slot))
        _, table = self._layers[slot]
        take_out = table.insert(name, value)  # of a layer just made this cannot fail (SC-24)
        live = True

        def remove(announce: bool = True) -> None:
            nonlocal live
            if not live:
                return
            live = False
            take_out()
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
        ctx.registered(self._what, name)

    def own(self, key: object | None) -> dict[str, T]:
        """The entries of one layer alone, as a snapshot; `None` is the global layer."""
        found = self._layers.get(None if key is None else id(key))
        return found[1].snapshot() if found is not None else {}

    def merged(self, key: object | None) -> dict[str, T]:
        """What `key` sees: globals in order, shadowed in place, then its own new names (SC-22)."""
        view = self.own(None)
        if key is not None:
            view.update(self.own(key))
        return view
