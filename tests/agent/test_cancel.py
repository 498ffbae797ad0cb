"""Cancelling, waiting for idle, disposal, injection (AL-61 to AL-72)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from dsh.agent.agent import Agent
from dsh.agent.decisions import interrupt_reason_of
from dsh.core.errors import SessionError, StoreError
from dsh.kernel.signal import Signal
from tests.agent.kit import Gate, ask, blocks, opened, say, world


async def started(w: Any, agent: Agent, gate: Gate) -> Signal:
    """A turn that waits in its stream; its signal."""
    agent.followup(blocks("task"))
    await gate.entered.wait()
    assert agent.signal is not None
    return agent.signal


# ------------------------------------------------------------------------------------------------------------- inject


@pytest.mark.rule("AL-62")
async def test_an_injection_into_an_open_turn_is_appended_at_once() -> None:
    gate = Gate()
    async with world(gate.reply(opened("x"), [])) as w:
        agent = await w.agent()
        await started(w, agent, gate)
        before = agent.session.length
        agent.inject(blocks("note"), source={"kind": "plugin", "plugin": "p"}, meta=7)
        assert agent.session.length == before + 1
        data = w.last(agent, "user/message")["data"]
        assert data == {"content": blocks("note"), "source": {"kind": "plugin", "plugin": "p"}, "meta": 7}
        agent.cancel()
        await agent.when_idle()


@pytest.mark.rule("AL-63")
async def test_an_injection_while_idle_is_a_turn_of_its_own_and_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await w.agent()
        flushed = trio.Event()
        flush = agent.session.flush

        async def noted() -> None:
            await flush()
            flushed.set()

        monkeypatch.setattr(agent.session, "flush", noted)
        agent.inject(blocks("note"))
        assert w.flow(agent) == ["turn/start", "user/message", "turn/end"]
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "completed"}
        await flushed.wait()
        await w.turn(agent)
        assert w.sent() == ["note", "hi"]


@pytest.mark.rule("AL-63")
async def test_a_refused_injection_leaves_nothing_or_a_closed_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await w.agent()
        await w.turn(agent)
        append, flushes = agent.session.append, []
        refuse = "turn/start"

        def refusing(type: str, *args: Any, **kw: Any) -> Any:
            if type == refuse:
                raise SessionError("refused")
            return append(type, *args, **kw)

        async def flush() -> None:
            flushes.append(1)

        monkeypatch.setattr(agent.session, "append", refusing)
        monkeypatch.setattr(agent.session, "flush", flush)
        before = agent.session.length
        with pytest.raises(SessionError):
            agent.inject(blocks("no"))
        await trio.testing.wait_all_tasks_blocked()
        assert (agent.session.length, flushes) == (before, [])
        refuse = "user/message"
        with pytest.raises(SessionError):
            agent.inject(blocks("no"))
        assert w.flow(agent)[-2:] == ["turn/start", "turn/end"]


@pytest.mark.rule("AL-63")
async def test_disposal_waits_for_the_flush_of_an_injection_whose_failure_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        agent = await w.agent()
        gate = Gate()

        async def flush() -> None:
            await gate.stop()
            raise StoreError("no disk")

        monkeypatch.setattr(agent.session, "flush", flush)
        agent.inject(blocks("note"))
        await gate.entered.wait()
        async with trio.open_nursery() as nursery:
            disposed = trio.Event()

            async def dispose() -> None:
                await w.agents.dispose(agent)
                disposed.set()

            nursery.start_soon(dispose)
            await trio.testing.wait_all_tasks_blocked()
            assert not disposed.is_set()
            gate.open.set()
        assert [(t, s, str(e)) for t, s, e in w.errors()] == [(1, 0, "no disk")]


# ------------------------------------------------------------------------------------------------------------- cancel


@pytest.mark.rule("AL-61", "AL-65", "AL-72")
async def test_a_cancel_ends_the_turn_as_aborted_without_an_error() -> None:
    gate = Gate()
    async with world(gate.reply([], [])) as w:
        agent = await w.agent()
        signal = await started(w, agent, gate)
        agent.cancel("parent")
        assert signal.cancelled
        await agent.when_idle()
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "aborted"}
        assert w.errors() == []
        assert w.noticed("agent/cancel-requested")[0][1][1] == {"kind": "parent"}
        assert interrupt_reason_of(signal) == {"kind": "parent"}  # readable after the owner is retired


@pytest.mark.rule("AL-66")
async def test_the_first_cause_of_a_turn_wins() -> None:
    gate = Gate()
    async with world(gate.reply([], [])) as w:
        agent = await w.agent()
        signal = await started(w, agent, gate)
        agent.cancel("parent")
        agent.cancel("user")
        assert signal.reason == "parent"
        await agent.when_idle()
        assert len(w.noticed("agent/cancel-requested")) == 1


@pytest.mark.rule("AL-72")
def test_only_the_three_causes_are_reasons() -> None:
    for cause in ("user", "parent", "disposed"):
        signal = Signal()
        assert interrupt_reason_of(signal) is None
        signal.cancel(cause)
        assert interrupt_reason_of(signal) == {"kind": cause}
    signal = Signal()
    signal.cancel("timeout")
    assert interrupt_reason_of(signal) is None


@pytest.mark.rule("AL-65", "AL-67")
async def test_the_order_of_a_cancel_and_what_survives_it() -> None:
    gate = Gate()
    async with world(gate.reply([], [])) as w:
        agent = await w.agent()
        signal = await started(w, agent, gate)
        order: list[str] = []

        def requested(a: Agent, cause: Any) -> None:
            order.append(f"requested {signal.cancelled} {len(a.inbox._queued)}")
            a.followup(blocks("by requested"))

        def discarded(a: Agent, messages: Any) -> None:
            order.append(f"discard {signal.cancelled} {a.inbox.empty} {len(messages)}")
            a.followup(blocks("by discard"))

        w.on("agent/cancel-requested", requested)
        w.on("agent/inbox/discard", discarded)

        def aborted() -> None:
            order.append("aborted")
            agent.followup(blocks("by abort"))

        signal.on_cancel(aborted)
        agent.followup(blocks("waiting"))
        agent.cancel()
        await agent.when_idle()
        assert order == ["requested False 1", "discard False True 2", "aborted"]
        assert w.texts(agent, "user/message") == ["task", "by discard", "by abort"]


@pytest.mark.rule("AL-66")
async def test_keep_inbox_ends_the_turn_and_keeps_what_waits() -> None:
    gate = Gate()
    async with world(gate.reply([], [])) as w:
        agent = await w.agent()
        await started(w, agent, gate)
        agent.steer(blocks("steered"))
        agent.followup(blocks("follows"))
        agent.cancel(keep_inbox=True)
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["task", "follows", "steered"]
        assert w.noticed("agent/inbox/discard") == []
        reasons = [e["data"]["reason"]["kind"] for e in w.log(agent, "turn/end")]
        assert reasons == ["aborted", "completed", "completed"]


@pytest.mark.rule("AL-66")
async def test_kept_steering_joins_the_last_drain_of_a_finished_batch() -> None:
    async with world(ask(("t", {}))) as w:

        async def body(args: Any, execution: Any) -> Any:
            execution.agent.steer(blocks("kept"))
            execution.agent.cancel(keep_inbox=True)
            return 1

        w.tool("t", body)
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "aborted"}
        assert w.texts(agent, "steering/message") == ["kept"]


@pytest.mark.rule("AL-65", "AL-66")
async def test_cancelling_an_idle_agent() -> None:
    async with world() as w:
        agent = await w.agent()
        agent.cancel()
        agent.queue(blocks("parked"))
        agent.cancel(keep_inbox=True)
        assert w.noticed("agent/cancel-requested", "agent/inbox/discard") == []
        agent.cancel()
        assert len(w.noticed("agent/inbox/discard")) == 1
        assert await w.turn(agent) == {"kind": "completed"}
        assert w.texts(agent, "user/message") == ["hi"]


@pytest.mark.rule("AL-67")
async def test_what_is_cancelled_before_the_driver_notices_never_opens_a_turn() -> None:
    async with world() as w:
        agent = await w.agent()
        agent.followup(blocks("gone"))
        agent.cancel()
        agent.followup(blocks("replacement"))
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["replacement"]


@pytest.mark.rule("AL-67")
async def test_what_an_observer_of_the_status_cancels_never_opens_a_turn() -> None:
    async with world() as w:
        agent = await w.agent()

        @w.observe("agent/status")
        def cancels(a: Agent, status: str) -> None:
            if status == "running" and not w.noticed("agent/cancel-requested"):
                a.cancel()

        agent.followup(blocks("gone"))
        await agent.when_idle()
        assert w.flow(agent) == []
        assert await w.turn(agent) == {"kind": "completed"}


@pytest.mark.rule("AL-68")
async def test_after_the_turn_a_cancel_only_clears_the_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await w.agent()
        flush = agent.session.flush

        async def flushing() -> None:
            if agent.session.open_turn is None:
                agent.cancel()
            await flush()

        monkeypatch.setattr(agent.session, "flush", flushing)
        agent.followup(blocks("a"))
        agent.followup(blocks("b"))
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["a"]
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "completed"}


@pytest.mark.rule("AL-71")
async def test_closing_and_flushing_are_shielded(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    async with world(gate.reply(opened("x"), [])) as w:
        agent = await w.agent()
        flush, flushed = agent.session.flush, []

        async def slow() -> None:
            if agent.session.open_turn is None:
                await trio.sleep(0.02)
                flushed.append(1)
            await flush()

        monkeypatch.setattr(agent.session, "flush", slow)
        await started(w, agent, gate)
        agent.cancel()
        agent.cancel()
        await agent.when_idle()
        assert flushed == [1]
        assert w.flow(agent)[-2:] == ["step/end", "turn/end"]


@pytest.mark.rule("AL-71")
@pytest.mark.parametrize("point", ["agent/prompt-submit", "agent/pre-step", "agent/request", "agent/step-result"])
async def test_a_cancel_interrupts_a_listener(point: str) -> None:
    gate = Gate()
    async with world() as w:

        async def listener(*args: Any) -> Any:
            await gate.stop()

        w.on(point, listener)
        agent = await w.agent()
        await started(w, agent, gate)
        agent.cancel()
        await agent.when_idle()
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "aborted"}


@pytest.mark.rule("AL-25", "AL-71")
async def test_an_outer_cancellation_closes_the_turn_too() -> None:
    """The program ends without disposing its agents first: what the driver opened it still closes."""
    gate = Gate()
    with trio.fail_after(5):
        async with world(gate.reply(opened("x"), [])) as w:
            agent = await w.agent()
            await started(w, agent, gate)
            w.agents._nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await agent.finished.wait()
            assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "aborted"}


# --------------------------------------------------------------------------------------------------------------- idle


@pytest.mark.rule("AL-69")
async def test_when_idle_waits_for_the_next_quiet_moment() -> None:
    gate = Gate()
    async with world(gate.reply([], say("a"))) as w:
        agent = await w.agent()
        await agent.when_idle()  # at once
        await started(w, agent, gate)
        idle: list[str] = []
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                await agent.when_idle()
                idle.append(agent.status)

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            agent.followup(blocks("more"))
            assert idle == []
            gate.open.set()
        assert idle == ["idle"]
        assert len(w.requests) == 2


@pytest.mark.rule("AL-69", "AL-70")
async def test_disposal_releases_waiters_when_the_driver_has_ended() -> None:
    gate = Gate()
    async with world(gate.reply([], [])) as w:
        agent = await w.agent()
        await started(w, agent, gate)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                await agent.when_idle()
                assert agent.finished.is_set()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await w.agents.dispose(agent)


# ----------------------------------------------------------------------------------------------------------- disposal


@pytest.mark.rule("AL-61", "AL-70", "AL-78")
async def test_the_order_of_a_disposal() -> None:
    gate = Gate()
    async with world(gate.reply(opened("x"), [])) as w:
        agent = await w.agent()
        signal = await started(w, agent, gate)
        agent.followup(blocks("waiting"))
        order: list[str] = []
        w.on("agent/inbox/discard", lambda a, m: order.append(f"discard {a.status} {signal.cancelled}"))
        w.on("agent/status", lambda a, s: order.append(f"status {s} {signal.cancelled}"))
        w.on("agent/disposed", lambda a: order.append(f"agent/disposed {a.finished.is_set()}"))
        w.on("session/disposed", lambda s: order.append("session/disposed"))
        agent.ctx.effect(lambda: order.append("scope"))
        await w.agents.dispose(agent)
        assert order == [
            "discard disposed False", "status disposed True", "agent/disposed True", "session/disposed", "scope",
        ]  # fmt: skip
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "disposed"}
        assert interrupt_reason_of(signal) == {"kind": "disposed"}
        assert w.errors() == []


@pytest.mark.rule("AL-61")
async def test_a_turn_cancelled_before_its_agent_is_disposed_ends_disposed() -> None:
    gate = Gate()

    async def stubborn(request: Any) -> Any:
        gate.entered.set()
        with trio.CancelScope(shield=True):
            await gate.open.wait()
        yield opened("x")[0]

    async with world(stubborn) as w:
        agent = await w.agent()
        signal = await started(w, agent, gate)
        agent.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.agents.dispose, agent)
            await trio.testing.wait_all_tasks_blocked()
            gate.open.set()
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "disposed"}
        assert signal.reason == "user"


@pytest.mark.rule("AL-70")
async def test_a_repeated_disposal_shares_the_same_completion() -> None:
    async with world() as w:
        agent = await w.agent()
        gate, ended = Gate(), []
        agent.ctx.effect(gate.stop)
        async with trio.open_nursery() as nursery:

            async def dispose(name: str) -> None:
                await w.agents.dispose(agent)
                ended.append(name)

            nursery.start_soon(dispose, "one")
            await gate.entered.wait()
            nursery.start_soon(dispose, "two")
            await trio.testing.wait_all_tasks_blocked()
            assert ended == []
            gate.open.set()
        assert sorted(ended) == ["one", "two"]
        assert len(w.noticed("agent/disposed")) == 1
