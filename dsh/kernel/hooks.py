"""Dispatch of hook points. Who hears one: listeners without a scope, and those in the scope of its subject.

A dispatch says for whom it is: by the subject itself (an agent, or None when there is none, SC-17) or by a `Carrier`,
which can keep listeners out that the subject alone would admit (SC-11). Listeners are called live: one that goes while
a dispatch runs is not called any more, one that comes is (SC-33). A waterfall is put together before it runs.

A failure of a plugin's listener is marked with the plugin's name on its way out, so that whoever records it says whose
it was. The program's own listeners are called without that.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from dsh.core.errors import DshError, InvariantError, blame
from dsh.kernel.points import POINTS, SUBJECTS, Kind
from dsh.kernel.tables import AnonymousEntries

if TYPE_CHECKING:
    from dsh.kernel.scope import Context

Listener = Callable[..., Any]
Report = Callable[[str, BaseException], None]


class Carrier:
    """A subject, and a filter that is asked before it: `admits(ctx)` about the context a listener was registered in."""

    __slots__ = ("admits", "key")

    def __init__(self, key: object | None, admits: Callable[[Context], bool]) -> None:
        self.key = key
        self.admits = admits


class _Entry:
    __slots__ = ("ctx", "everywhere", "key", "listener", "plugin")

    def __init__(self, listener: Listener, ctx: Context, everywhere: bool) -> None:
        self.listener = listener
        self.ctx = ctx
        self.key = ctx.key
        self.everywhere = everywhere or ctx.key is None
        plugin = ctx.plugin
        self.plugin = plugin.name if plugin is not None and plugin.foreign else None


class _Point:
    __slots__ = ("entries", "filtered", "kind", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind: Kind = POINTS[name]
        self.filtered = name in SUBJECTS
        self.entries: AnonymousEntries[_Entry] = AnonymousEntries()

    def hears(self, entry: _Entry, carrier: object | None) -> bool:
        if type(carrier) is Carrier:
            if not carrier.admits(entry.ctx):
                return False
            carrier = carrier.key
        return entry.everywhere or entry.key is carrier or not self.filtered


class Hooks:
    """The listeners of every point, in registration order (SC-10, SC-13).

    `report(where, error)` receives the failures that a notice contains.
    """

    def __init__(self, report: Report) -> None:
        self._points = {name: _Point(name) for name in POINTS}
        self.report = report

    def add(
        self, point: str, listener: Listener, ctx: Context, *, first: bool = False, everywhere: bool = False
    ) -> Callable[[], None]:
        """Register and return the undo, which removes exactly this registration and is idempotent (SC-32).

        `everywhere` hears of every subject although the context has a scope: for checkers and storage (SC-12).
        """
        if point not in self._points:
            raise InvariantError(f"no hook point is called {point!r}")
        return self._points[point].entries.add(_Entry(listener, ctx, everywhere), first=first)

    def _point(self, name: str, kind: Kind) -> _Point:
        point = self._points[name]
        if point.kind != kind:
            raise InvariantError(f"{name} is a {point.kind} point")
        return point

    def notify(self, name: str, carrier: object | None, *args: Any) -> Exception | None:
        """Call every observer; one that fails is reported and does not stop the next (SE-7, AL-17).

        Returns the first failure, for the one point where it counts as a veto (SE-54)."""
        point = self._point(name, "notice")
        first: Exception | None = None
        entries = point.entries
        root, drained = entries.root, entries.drained
        plain = point.filtered and type(carrier) is not Carrier
        node = root.after
        while node is not root:  # the loop of AnonymousEntries written out: this runs for each chunk
            entry: _Entry = node.value
            if (entry.everywhere or entry.key is carrier) if plain else point.hears(entry, carrier):
                try:
                    entry.listener(*args)
                except (Exception, SystemExit) as raised:  # noqa: BLE001 - the containment point the spec names
                    error = _named(entry, raised)
                    self.report(name, error)
                    first = first or error
                if entries.drained != drained:
                    break
                while not node.live:
                    node = node.before
            node = node.after
        return first

    async def serial(self, name: str, carrier: object | None, *args: Any, stop: bool = False) -> Any:
        """Await each listener in order. With `stop`, the first result that is not None ends the row."""
        point = self._point(name, "serial")
        for entry in point.entries:
            if not point.hears(entry, carrier):
                continue
            try:
                result = await entry.listener(*args)
            except (Exception, SystemExit) as raised:  # noqa: BLE001 - it goes on, with a name
                raise _named(entry, raised)  # noqa: B904 - it is the very same error
            if stop and result is not None:
                return result
        return None

    def waterfall(self, name: str, carrier: object | None, default: Callable[..., Any], *args: Any) -> Any:
        """Run the chain and return what its outermost link returns: an awaitable for the asynchronous points.

        Listeners are called `listener(*args, next)`; `next()` goes on with the same arguments, `next(*changed)` with
        others where the point allows it.
        """
        point = self._point(name, "waterfall")
        link: Callable[..., Any] = default
        for entry in reversed([e for e in point.entries if point.hears(e, carrier)]):
            link = _around(name, entry, link, args)
        return link(*args)


class CheckedHooks(Hooks):
    """Refuses a dispatch whose carrier is not for the subject that its arguments name (SC-14). For tests and
    `DSH_CHECK=1`; it is another class so that a dispatch costs nothing for it elsewhere."""

    def _check(self, name: str, carrier: object | None, args: tuple[Any, ...]) -> None:
        subject = SUBJECTS.get(name)
        key = carrier.key if type(carrier) is Carrier else carrier
        if subject is None:
            if key is not None:
                raise InvariantError(f"{name} reaches every listener and is dispatched without a key")
        elif subject(args) is not key:
            what = "without the agent" if key is None else "for another agent than the one"
            raise InvariantError(f"{name} is dispatched {what} in its arguments")

    def notify(self, name: str, carrier: object | None, *args: Any) -> Exception | None:
        self._check(name, carrier, args)
        return super().notify(name, carrier, *args)

    async def serial(self, name: str, carrier: object | None, *args: Any, stop: bool = False) -> Any:
        self._check(name, carrier, args)
        return await super().serial(name, carrier, *args, stop=stop)

    def waterfall(self, name: str, carrier: object | None, default: Callable[..., Any], *args: Any) -> Any:
        self._check(name, carrier, args)
        return super().waterfall(name, carrier, default, *args)


def _named(entry: _Entry, error: BaseException) -> Exception:
    """The failure of a listener, marked with the plugin it belongs to. A listener that calls `sys.exit` fails like any
    other: what runs is not its to end."""
    if isinstance(error, SystemExit):
        failure = DshError(f"a listener called sys.exit({error.code!r})")
        failure.__cause__ = error
        error = failure
    assert isinstance(error, Exception)
    if entry.plugin is not None:
        blame(error, entry.plugin)
    return error


def _around(point: str, entry: _Entry, inner: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    def link(*given: Any) -> Any:
        current = given or args
        called = False

        def next_(*changed: Any) -> Any:
            nonlocal called
            if called:
                raise InvariantError(f"a listener of {point} called next() twice")
            called = True
            return inner(*(changed or current))

        if entry.plugin is None:
            return entry.listener(*current, next_)
        return _Watched(entry, next_).run(current)

    return link


class _Watched:
    """One call of a plugin's waterfall listener. What fails inside `next()` and passes through is not the plugin's."""

    def __init__(self, entry: _Entry, next_: Callable[..., Any]) -> None:
        self._entry = entry
        self._next = next_
        self._passing: BaseException | None = None

    def run(self, args: tuple[Any, ...]) -> Any:
        try:
            return self._watch(self._entry.listener(*args, self._inner), self._failed)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it goes on
            raise self._failed(error)  # noqa: B904 - it is the very same error

    def _inner(self, *changed: Any) -> Any:
        try:
            return self._watch(self._next(*changed), self._passes)
        except Exception as error:  # noqa: BLE001 - it goes on
            raise self._passes(error)  # noqa: B904

    def _failed(self, error: BaseException) -> BaseException:
        return error if error is self._passing else _named(self._entry, error)

    def _passes(self, error: BaseException) -> BaseException:
        self._passing = error
        return error

    def _watch(self, result: Any, seen: Callable[[BaseException], BaseException]) -> Any:
        """The result of an asynchronous point with its failures seen, or a result as it is."""
        if inspect.isawaitable(result):
            return _awaited(result, seen)
        if inspect.isasyncgen(result):
            return _streamed(cast("AsyncGenerator[Any, None]", result), seen)
        return result


async def _awaited(pending: Any, seen: Callable[[BaseException], BaseException]) -> Any:
    try:
        return await pending
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it goes on
        raise seen(error)  # noqa: B904


async def _streamed(
    chunks: AsyncGenerator[Any, None], seen: Callable[[BaseException], BaseException]
) -> AsyncGenerator[Any, None]:
    async with aclosing(chunks):
        while True:
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it goes on
                raise seen(error)  # noqa: B904
            yield chunk
