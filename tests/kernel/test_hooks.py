"""Dispatch: whom a carrier reaches, what the checker refuses, whose failure it was (SC-10 to SC-17)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from dsh.core.errors import DshError, InvariantError, render_chain
from dsh.kernel.config import Config
from dsh.kernel.hooks import Carrier, CheckedHooks, Hooks
from dsh.kernel.host import Host, Plugin
from dsh.kernel.points import POINTS, SUBJECTS
from dsh.kernel.scope import Context


@pytest.fixture
def host() -> Host:
    return Host(Config({}, {}))


class Agent:
    """A stand-in for one: what it is does not matter, only which."""


def plugin_context(host: Host, name: str = "weather") -> Context:
    ctx = host.root.scope()
    ctx.plugin = Plugin(name, "user", name)
    return ctx


@pytest.mark.rule("SC-11")
def test_the_filter_of_a_carrier_is_asked_before_the_subject(host: Host) -> None:
    agent, said = Agent(), []
    inner = host.root.scope(agent)
    kept_out = host.root.scope(agent)
    other = host.root.scope(Agent())
    for name, ctx in (("all", host.root), ("inner", inner), ("out", kept_out), ("other", other)):
        ctx.on("agent/created", lambda _, name=name: said.append(name))
    host.hooks.notify("agent/created", Carrier(agent, lambda ctx: ctx is not kept_out), agent)
    assert said == ["all", "inner"]
    host.hooks.notify("agent/created", Carrier(agent, lambda ctx: ctx is not host.root), agent)
    assert said[2:] == ["inner", "out"]


@pytest.mark.rule("SC-11")
async def test_carriers_filter_every_kind_of_point(host: Host) -> None:
    agent, said = Agent(), []
    scope = host.root.scope(agent)

    async def serial(*_: Any) -> None:
        said.append("serial")

    async def around(*args: Any) -> Any:
        said.append("waterfall")
        return await args[-1]()

    async def inner(*_: Any) -> str:
        return "default"

    scope.on("agent/pre-step", serial)
    scope.on("agent/request", around)
    nobody = Carrier(agent, lambda ctx: False)
    await host.hooks.serial("agent/pre-step", nobody, agent)
    assert await host.hooks.waterfall("agent/request", nobody, inner, agent) == "default"
    assert said == []
    await host.hooks.serial("agent/pre-step", agent, agent)
    await host.hooks.waterfall("agent/request", agent, inner, agent)
    assert said == ["serial", "waterfall"]


@pytest.mark.rule("SC-12")
def test_tooling_hears_of_every_subject(host: Host) -> None:
    mine, other, said = Agent(), Agent(), []
    scope = host.root.scope(mine)
    scope.on("agent/created", lambda agent: said.append(("checker", agent)), everywhere=True)
    scope.on("agent/created", lambda agent: said.append(("mine", agent)))
    host.hooks.notify("agent/created", other, other)
    host.hooks.notify("agent/created", mine, mine)
    assert said == [("checker", other), ("checker", mine), ("mine", mine)]


@pytest.mark.rule("SC-16")
def test_changes_of_registries_reach_everybody(host: Host) -> None:
    said = []
    for name, ctx in (("all", host.root), ("one", host.root.scope(Agent())), ("two", host.root.scope(Agent()))):
        ctx.on("system-prompt/change", lambda name=name: said.append(name))
    host.hooks.notify("system-prompt/change", None)
    assert said == ["all", "one", "two"]
    assert {p for p in POINTS if p not in SUBJECTS} >= {"tools/change", "system-prompt/change", "llm/stream"}


@pytest.mark.rule("SC-33")
def test_a_listener_that_goes_or_comes_during_a_dispatch(host: Host) -> None:
    said: list[str] = []
    scope = host.root.scope()

    def first(_: Any) -> None:
        said.append("first")
        undo()
        host.root.on("agent/created", lambda _: said.append("late"))

    scope.on("agent/created", first)
    undo = host.hooks.add("agent/created", lambda _: said.append("gone"), host.root)
    host.hooks.notify("agent/created", None, None)
    assert said == ["first", "late"]


# ----------------------------------------------------------------------------------------------------- the checker


@pytest.mark.rule("SC-15")
def test_which_argument_gives_the_key() -> None:
    agent = Agent()
    execution = SimpleNamespace(agent=agent)
    session = SimpleNamespace(scope_key=agent)
    for point, subject in SUBJECTS.items():
        if point.startswith("agent/"):
            args: tuple[Any, ...] = (agent, 1)
        elif point.startswith("tools/"):
            args = (execution,)
        elif point.startswith("session/"):
            args = (session,)
        else:
            args = (object(), SimpleNamespace(agent=agent))
        assert subject(args) is agent, point
    filtered = {p for p in POINTS if p.startswith(("agent/", "session/"))}
    filtered |= {"tools/pre-execute", "tools/execute", "tools/post-execute", "tools/result", "system-prompt/assemble"}
    assert set(SUBJECTS) >= filtered


@pytest.mark.rule("SC-14")
async def test_the_checker_refuses_a_dispatch_for_somebody_else(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    execution = SimpleNamespace(agent=agent)
    hooks = host.hooks
    assert isinstance(hooks, CheckedHooks)
    wrong: list[Any] = [
        lambda: hooks.notify("agent/created", None, agent),
        lambda: hooks.notify("agent/created", Agent(), agent),
        lambda: hooks.notify("tools/result", None, execution, 1),
        lambda: hooks.notify("session/event", agent, SimpleNamespace(scope_key=None), {}),
        lambda: hooks.notify("session/event", Carrier(None, bool), SimpleNamespace(scope_key=agent), {}),
        lambda: hooks.notify("tools/change", agent),
        lambda: hooks.waterfall("tools/execute", Agent(), print, execution),
        lambda: hooks.waterfall("system-prompt/assemble", None, print, 1, execution),
    ]
    for attempt in wrong:
        with pytest.raises(InvariantError) as caught:
            attempt()
        assert caught.value.code == "INVARIANT"
    with pytest.raises(InvariantError):
        await hooks.serial("agent/pre-step", None, agent, 1, 1)
    hooks.notify("agent/created", Carrier(agent, bool), agent)
    hooks.notify("tools/result", None, SimpleNamespace(agent=None), 1)  # SC-17
    monkeypatch.delenv("DSH_CHECK")
    assert type(Host(Config({}, {})).hooks) is Hooks


# -------------------------------------------------------------------------------------------------- whose failure


async def take(chunks: AsyncGenerator[int, None], got: list[int]) -> None:
    async for chunk in chunks:
        got.append(chunk)  # noqa: PERF401 - what came before a failure counts


async def _default(*_: Any) -> str:
    return "default"


async def test_a_failure_of_a_plugins_listener_names_it(host: Host) -> None:
    ctx = plugin_context(host)

    def broken(*_: Any) -> Any:
        raise ValueError("no")

    async def later(*_: Any) -> Any:
        raise ValueError("no")

    async def stream(*_: Any) -> AsyncGenerator[Any, None]:
        yield chunk
        raise ValueError("no")

    chunk = {"type": "text-delta", "index": 0, "text": "x"}

    ctx.on("agent/status", broken)
    ctx.on("agent/pre-step", later)
    ctx.on("agent/request", later)
    ctx.on("system-prompt/assemble", broken)
    ctx.on("llm/stream", stream)
    failures: list[BaseException] = []
    host.hooks.notify("agent/status", None, None)
    failures.append(host.reports[-1][1])
    with pytest.raises(ValueError) as caught:
        await host.hooks.serial("agent/pre-step", None, None)
    failures.append(caught.value)
    with pytest.raises(ValueError) as caught:
        await host.hooks.waterfall("agent/request", None, _default, None)
    failures.append(caught.value)
    with pytest.raises(ValueError) as caught:
        host.hooks.waterfall("system-prompt/assemble", None, _default, 1, SimpleNamespace(agent=None))
    failures.append(caught.value)
    got: list[Any] = []
    with pytest.raises(ValueError) as caught:
        await take(host.hooks.waterfall("llm/stream", None, _default, 1), got)
    failures.append(caught.value)
    assert got == [chunk]
    places = ("", " at agent/pre-step", " at agent/request", " at system-prompt/assemble", " at llm/stream")
    assert [render_chain(f) for f in failures] == [f"plugin weather{place}: no" for place in places]


async def test_what_only_passes_through_a_plugin_is_not_blamed_on_it(host: Host) -> None:
    outer, inner = plugin_context(host, "outer"), plugin_context(host, "inner")

    async def wraps(*args: Any) -> Any:
        return await args[-1]()

    async def fails(*_: Any) -> Any:
        raise ValueError("deep")

    outer.on("agent/request", wraps)
    with pytest.raises(ValueError) as caught:
        await host.hooks.waterfall("agent/request", None, fails, None)
    assert render_chain(caught.value) == "deep"
    inner.on("agent/request", fails)
    with pytest.raises(ValueError) as caught:
        await host.hooks.waterfall("agent/request", None, _default, None)
    assert render_chain(caught.value) == "plugin inner at agent/request: deep"

    async def chunks(_: Any) -> AsyncGenerator[Any, None]:
        yield {"type": "text-delta", "index": 1, "text": "x"}
        raise ValueError("provider")

    async def through(request: Any, next_: Any) -> AsyncGenerator[Any, None]:
        async for chunk in next_():
            yield {**chunk, "index": 2}

    outer.on("llm/stream", through)
    got: list[Any] = []
    with pytest.raises(ValueError) as caught:
        await take(host.hooks.waterfall("llm/stream", None, chunks, 1), got)
    assert ([chunk["index"] for chunk in got], render_chain(caught.value)) == ([2], "provider")


async def test_a_listener_cannot_end_the_program(host: Host) -> None:
    ctx = plugin_context(host)

    def leaves(*_: Any) -> Any:
        raise SystemExit(3)

    async def leaves_later(*_: Any) -> Any:
        raise SystemExit(3)

    ctx.on("agent/status", leaves)
    ctx.on("agent/pre-step", leaves_later)
    ctx.on("agent/request", leaves_later)
    host.hooks.notify("agent/status", None, None)
    with pytest.raises(DshError, match=r"sys\.exit\(3\)"):
        await host.hooks.serial("agent/pre-step", None, None)
    with pytest.raises(DshError) as caught:
        await host.hooks.waterfall("agent/request", None, _default, None)
    assert "plugin weather at agent/request: a listener called sys.exit(3)" in render_chain(caught.value)
