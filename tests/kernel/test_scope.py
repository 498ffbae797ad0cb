"""Scopes, layers and dispatch (docs/spec/scope.md, SE-7)."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import trio
import trio.testing

from dsh.core.errors import DshError, InvariantError
from dsh.kernel.config import Config
from dsh.kernel.host import Host
from dsh.kernel.scope import Context, Layers, ScopeClosed


class Key:
    """A scope key; equal to every other one, since only identity counts."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key)

    def __hash__(self) -> int:
        return 1


@pytest.fixture
def host() -> Host:
    return Host(Config({}, {}))


def seen(host: Host, key: object | None = None) -> list[str]:
    """What the listeners of one dispatch say, in order."""
    said: list[str] = []
    host.hooks.notify("agent/status", key, key, said.append)
    return said


def say(word: str) -> Any:
    return lambda _, hear: hear(word)


@pytest.mark.rule("SC-1", "SC-3")
async def test_a_scope_is_usable_at_once(host: Host) -> None:
    key = Key()
    scope = host.root.scope(key)
    scope.on("agent/status", say("x"))
    assert scope.key is key
    assert host.root.key is None
    assert seen(host, key=key) == ["x"]


@pytest.mark.rule("SC-1", "SC-6")
async def test_a_closed_scope_takes_nothing_more(host: Host) -> None:
    scope = host.root.scope(Key())
    await scope.dispose()
    layers: Layers[int] = Layers("thing")
    for attempt in (
        lambda: scope.scope(),
        lambda: scope.on("agent/status", say("x")),
        lambda: scope.effect(lambda: None),
        lambda: scope.provide(int, 5),
        lambda: layers.add(scope, "a", 1),
    ):
        with pytest.raises(ScopeClosed) as caught:
            attempt()
        assert caught.value.code == "SCOPE_CLOSED"
    assert layers.own(scope.key) == {}
    assert host.find(int) is None
    assert seen(host, key=scope.key) == []


@pytest.mark.rule("SC-2")
async def test_the_nearest_key_wins_and_nothing_is_inherited(host: Host) -> None:
    outer, inner = Key(), Key()
    parent = host.root.scope(outer)
    assert parent.scope().key is outer
    child = parent.scope(inner)
    assert child.key is inner
    layers: Layers[int] = Layers("thing")
    layers.add(parent, "a", 1)
    parent.on("agent/status", say("parent"))
    assert layers.merged(inner) == {}
    assert seen(host, key=inner) == []
    assert seen(host, key=outer) == ["parent"]


@pytest.mark.rule("SC-4")
async def test_undos_run_once_in_reverse_order_whatever_fails(host: Host) -> None:
    scope = host.root.scope()
    order: list[int] = []

    def undo(number: int) -> Any:
        def run() -> None:
            order.append(number)
            if number % 2:
                raise ValueError(str(number))

        return run

    for number in range(4):
        scope.effect(undo(number))

    async def slow() -> None:
        await trio.sleep(0)
        order.append(9)

    scope.effect(slow)
    with pytest.raises(ExceptionGroup) as caught:
        await scope.dispose()
    assert order == [9, 3, 2, 1, 0]
    assert [str(e) for e in caught.value.exceptions] == ["3", "1"]


@pytest.mark.rule("SC-5")
async def test_racing_disposals_wait_for_one_completion(host: Host) -> None:
    scope = host.root.scope()
    go, steps = trio.Event(), []

    async def undo() -> None:
        steps.append("begin")
        await go.wait()
        steps.append("end")

    scope.effect(undo)

    async def dispose() -> None:
        await scope.dispose()
        steps.append("disposed")

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(dispose)
        await trio.testing.wait_all_tasks_blocked()
        assert steps == ["begin"]
        go.set()
    assert steps == ["begin", "end", "disposed", "disposed", "disposed"]
    await scope.dispose()


@pytest.mark.rule("SC-5")
async def test_a_cancelled_disposal_is_still_finished(host: Host) -> None:
    scope = host.root.scope()
    done: list[int] = []

    async def undo() -> None:
        await trio.sleep(0.01)
        done.append(1)

    scope.effect(undo)
    with trio.CancelScope() as cancel:
        cancel.cancel()
        await scope.dispose()
    assert done == [1]


@pytest.mark.rule("SC-7")
async def test_a_parent_disposes_the_scope_where_it_was_nested(host: Host) -> None:
    parent = host.root.scope()
    order: list[str] = []
    parent.effect(lambda: order.append("before"))
    child = parent.scope(Key())
    child.effect(lambda: order.append("child"))
    parent.effect(lambda: order.append("after"))
    await parent.dispose()
    assert order == ["after", "child", "before"]
    with pytest.raises(ScopeClosed):
        child.effect(lambda: None)


@pytest.mark.rule("SC-7")
async def test_scopes_that_end_leave_nothing_behind(host: Host) -> None:
    for _ in range(50):
        await host.root.scope(Key()).dispose()
    gc.collect()
    assert sum(isinstance(o, Context) for o in gc.get_objects() if isinstance(o, Context) and o.host is host) == 1


@pytest.mark.rule("SC-8")
async def test_a_scope_resolves_what_its_creator_could(host: Host) -> None:
    host.root.provide(str, "service")
    assert host.root.scope(Key()).get(str) == "service"
    with pytest.raises(InvariantError):
        host.root.scope(Key()).get(bytes)
    with pytest.raises(InvariantError) as caught:
        host.root.provide(str, "again")
    assert caught.value.code == "DUPLICATE_NAME"


@pytest.mark.rule("SC-10", "SC-13", "SC-17", "SC-44")
async def test_who_hears_a_dispatch_and_in_which_order(host: Host) -> None:
    one, two = Key(), Key()
    first, second = host.root.scope(one), host.root.scope(two)
    host.root.on("agent/status", say("all"))
    first.on("agent/status", say("one"))
    second.on("agent/status", say("two"))
    host.root.on("agent/status", say("late"))
    first.on("agent/status", say("front"), first=True)
    assert seen(host, key=one) == ["front", "all", "one", "late"]
    assert seen(host, key=two) == ["all", "two", "late"]
    assert seen(host, key=None) == ["all", "late"]
    assert seen(host, key=Key()) == ["all", "late"]
    await first.dispose()
    assert seen(host, key=one) == ["all", "late"]


@pytest.mark.rule("SC-32")
def test_an_undo_removes_its_own_registration_only(host: Host) -> None:
    listener = say("x")
    undo = host.hooks.add("agent/status", listener, host.root)
    host.hooks.add("agent/status", listener, host.root)
    undo()
    undo()
    assert seen(host) == ["x"]


def test_a_point_that_does_not_exist(host: Host) -> None:
    with pytest.raises(InvariantError):
        host.root.on("tools/changed", say("x"))
    with pytest.raises(InvariantError):
        host.hooks.notify("llm/stream", None)


@pytest.mark.rule("SE-7")
def test_a_failing_observer_is_contained(host: Host) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("no")

    host.root.on("agent/status", broken)
    host.root.on("agent/status", say("next"))
    assert seen(host) == ["next"]
    assert [(where, str(error)) for where, error in host.reports] == [("agent/status", "no")]


@pytest.mark.rule("CO-40")
def test_a_waterfall_calls_next_at_most_once(host: Host) -> None:
    def wrap(value: int, next_: Any) -> Any:
        return ["wrap", next_()]

    def change(value: int, next_: Any) -> Any:
        return ["change", next_(value + 1)]

    def twice(value: int, next_: Any) -> Any:
        next_()
        return next_()

    def alone(value: int, next_: Any) -> Any:
        return "alone"

    def run() -> Any:
        return host.hooks.waterfall("llm/stream", None, lambda v: v, 1)

    def add(listener: Any, *, first: bool = False) -> Any:
        return host.hooks.add("llm/stream", listener, host.root, first=first)

    undo = add(wrap)
    add(change)
    assert run() == ["wrap", ["change", 2]]
    undo()
    undo = add(twice, first=True)
    with pytest.raises(InvariantError, match="twice"):
        run()
    undo()
    add(alone, first=True)
    assert run() == "alone"


@pytest.mark.rule("SC-20", "SC-21", "SC-25", "SC-28")
async def test_a_layer_comes_with_its_first_entry_and_goes_with_its_last(host: Host) -> None:
    layers: Layers[int] = Layers("thing")
    key = Key()
    assert layers.merged(key) == {}
    assert len(layers._layers) == 1
    scope = host.root.scope(key)
    layers.add(scope, "a", 1)
    layers.add(scope, "b", 2)
    layers.add(host.root, "g", 0)
    assert len(layers._layers) == 2
    assert layers.own(key) == {"a": 1, "b": 2}
    assert layers.own(None) == {"g": 0}
    await scope.dispose()
    assert len(layers._layers) == 1
    again = host.root.scope(key)
    layers.add(again, "a", 3)
    assert layers.own(key) == {"a": 3}


@pytest.mark.rule("SC-22", "SC-30")
async def test_a_scoped_entry_takes_the_place_of_the_global_one(host: Host) -> None:
    layers: Layers[str] = Layers("thing")
    key = Key()
    scope = host.root.scope(key)
    for name in ("a", "b", "c"):
        layers.add(host.root, name, f"global {name}")
    layers.add(scope, "z", "own")
    layers.add(scope, "b", "shadow")
    view = layers.merged(key)
    assert list(view.items()) == [("a", "global a"), ("b", "shadow"), ("c", "global c"), ("z", "own")]
    layers.add(host.root, "d", "later")
    assert "d" not in view
    assert layers.merged(None)["b"] == "global b"
    with pytest.raises(InvariantError, match="globally") as caught:
        layers.add(host.root, "a", "again")
    assert caught.value.code == "DUPLICATE_NAME"
    with pytest.raises(InvariantError, match="in this scope"):
        layers.add(scope, "b", "again")
    assert layers.merged(key)["b"] == "shadow"


@pytest.mark.rule("SC-23", "SC-26")
async def test_changes_are_announced_once_each_and_after_they_are_owned(host: Host) -> None:
    heard: list[list[str]] = []
    layers: Layers[int] = Layers("thing", changed=lambda: heard.append(sorted(layers.merged(None))))
    scope = host.root.scope()
    layers.add(scope, "a", 1)
    layers.add(scope, "b", 1)
    assert heard == [["a"], ["a", "b"]]
    await scope.dispose()
    assert heard[2:] == [["a"], []]


@pytest.mark.rule("SC-24", "SC-26")
async def test_a_change_that_is_not_accepted_is_undone(host: Host) -> None:
    refuse = True

    def changed() -> None:
        if refuse:
            raise DshError("no")

    layers: Layers[int] = Layers("thing", changed=changed)
    scope = host.root.scope(Key())
    with pytest.raises(DshError):
        layers.add(scope, "a", 1)
    assert layers.merged(scope.key) == {}
    assert len(layers._layers) == 1
    refuse = False
    layers.add(scope, "a", 2)
    await scope.dispose()
    assert layers.merged(scope.key) == {}


@pytest.mark.rule("SC-32", "SC-34")
async def test_an_old_undo_does_not_remove_a_later_entry(host: Host) -> None:
    layers: Layers[object] = Layers("thing")
    old, new = host.root.scope(), host.root.scope()
    value = object()
    layers.add(old, "a", value)
    assert layers.own(None)["a"] is value
    undo = old._undos[-1]
    undo()
    layers.add(new, "a", "later")
    await old.dispose()
    assert layers.own(None) == {"a": "later"}
