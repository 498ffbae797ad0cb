"""Dispatch of hook points. Who hears one: listeners without a scope, and those in the scope of its subject.

A dispatch says for whom it is: by the subject itself (an agent, or None when there is none, SC-17) or by a `Carrier`,
which can keep listeners out that the subject alone would admit (SC-11). Listeners are called live: one that goes while
a dispatch runs is not called any more, one that comes is (SC-33). A waterfall is put together before it runs.

What a plugin's listener returns is checked (returns.py), and its failure is marked with the plugin's name and the point
on its way out, so that whoever records it says whose it was. The program's own listeners are called without that.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

import trio

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
        if not callable(listener):
            raise InvariantError(f"the listener of {point} is no function")
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
                    answer = entry.listener(*args)
                    if answer is not None and entry.plugin is not None:
                        from dsh.kernel import returns

                        returns.check_plain(answer)
                except BaseException as raised:  # the containment point the spec names
                    error = _named(entry, raised)
                    if not isinstance(error, Exception):
                        raise
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
                result = await (entry.listener(*args) if entry.plugin is None else _answer(entry, point, args, stop))
            except BaseException as raised:  # noqa: BLE001 - it goes on, with a name
                raise _named(entry, raised, name)  # noqa: B904 - it is the very same error
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


def is_our_own(error: BaseException) -> bool:
    """What trio and Python use to end code from outside; it passes through everything. All else that foreign code
    raises, also what it means to end the program by, is its failure: what runs is not its to end."""
    return isinstance(error, (trio.Cancelled, GeneratorExit, BaseExceptionGroup)) and not isinstance(error, Exception)


def contained(who: str, error: BaseException) -> Exception:
    """What foreign code raised as a failure to be handled; raises what is our own."""
    if isinstance(error, Exception):
        return error
    if is_our_own(error):
        raise error
    said = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {type(error).__name__}"
    failure = DshError(f"{who} {said}")
    failure.__cause__ = error
    return failure


def _named(entry: _Entry, error: BaseException, point: str = "") -> BaseException:
    """The failure of a listener, marked with the plugin it belongs to and the point it listened at; what is our own, as
    it is. A listener of the program may be hit by a Ctrl-C."""
    if is_our_own(error) or (entry.plugin is None and isinstance(error, KeyboardInterrupt)):
        return error
    if not isinstance(error, Exception):
        error = contained("a listener", error)
    if entry.plugin is not None:
        blame(error, entry.plugin, point)
    return error


async def _answer(entry: _Entry, point: _Point, args: tuple[Any, ...], asked: bool) -> Any:
    """What a plugin's serial listener says, checked where it counts."""
    from dsh.kernel import returns

    pending = entry.listener(*args)
    returns.check_awaitable(pending)
    result = await pending
    if asked:
        returns.check(point.name, result, args)
    return result


def _twice(point: str) -> InvariantError:
    return InvariantError(f"a listener of {point} called next() twice")


def _around(point: str, entry: _Entry, inner: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    def link(*given: Any) -> Any:
        current = given or args
        called = False

        def next_(*changed: Any) -> Any:
            nonlocal called
            if called:
                raise _twice(point)
            called = True
            return inner(*(changed or current))

        if entry.plugin is None:
            return entry.listener(*current, next_)
        return _Watched(point, entry, next_).run(current)

    return link


class _Watched:
    """One call of a plugin's waterfall listener: what it returns is checked (returns.py), what it raises has its name.
    What fails inside `next()` and passes through is not the plugin's."""

    def __init__(self, point: str, entry: _Entry, next_: Callable[..., Any]) -> None:
        self._point = point
        self._entry = entry
        self._next = next_
        self._called = False
        self._args: tuple[Any, ...] = ()
        self._passing: BaseException | None = None

    def run(self, args: tuple[Any, ...]) -> Any:
        from dsh.kernel import returns

        self._args = args
        try:
            result = self._entry.listener(*args, self._inner)
            if self._point == "system-prompt/assemble":
                returns.check_plain(result)
            elif inspect.isawaitable(result):
                return self._answer(result)
            elif self._point != "llm/stream":
                returns.check_awaitable(result)
            return self._checked(result)
        except BaseException as error:  # noqa: BLE001 - it goes on
            raise self._failed(error)  # noqa: B904 - it is the very same error

    def _checked(self, result: Any) -> Any:
        from dsh.kernel import returns

        returns.check(self._point, result, self._args)
        return _streamed(result, self._failed, returns.check_chunk) if self._point == "llm/stream" else result

    async def _answer(self, pending: Any) -> Any:
        try:
            result = await pending
            if inspect.iscoroutine(result):  # an await was forgotten, and there is no doubt what is meant
                result = await result
            return self._checked(result)
        except BaseException as error:  # noqa: BLE001 - it goes on
            raise self._failed(error)  # noqa: B904

    def _inner(self, *changed: Any) -> Any:
        if self._called:
            raise _twice(self._point)
        self._called = True
        try:
            result = self._next(*changed)
            if inspect.isawaitable(result):
                return self._awaited(result)
            return _streamed(result, self._passes) if hasattr(result, "__aiter__") else result
        except BaseException as error:  # noqa: BLE001 - it goes on
            raise self._passes(error)  # noqa: B904

    async def _awaited(self, pending: Any) -> Any:
        try:
            return await pending
        except BaseException as error:  # noqa: BLE001 - it goes on
            raise self._passes(error)  # noqa: B904

    def _failed(self, error: BaseException) -> BaseException:
        return error if error is self._passing else _named(self._entry, error, self._point)

    def _passes(self, error: BaseException) -> BaseException:
        self._passing = error
        return error


async def _streamed(
    chunks: Any, seen: Callable[[BaseException], BaseException], check: Callable[[Any], None] | None = None
) -> AsyncGenerator[Any, None]:
    """The same chunks, their failures seen. What is no generator may have no way to be closed."""
    stream = aiter(chunks)
    try:
        while True:
            try:
                chunk = await anext(stream)
                if check is not None:
                    check(chunk)
            except StopAsyncIteration:
                return
            except BaseException as error:  # noqa: BLE001 - it goes on
                raise seen(error)  # noqa: B904
            yield chunk
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()
