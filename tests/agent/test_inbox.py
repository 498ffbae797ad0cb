"""What an agent accepts, how it queues it, and who hears of it (AL-1 to AL-9)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import trio
import trio.testing

from dsh.agent.agent import Agent, AgentDisposed
from dsh.agent.decisions import InputInvalid, InputNotJson
from tests.agent.kit import Gate, ask, blocks, say, world

HUMAN = {"kind": "user"}
INBOX = ("agent/inbox/enqueue", "agent/inbox/dequeue", "agent/inbox/discard")


def said(notices: list[Any]) -> list[str]:
    """Inbox notifications as words: `enqueue a`, `discard b c`."""
    words = []
    for point, args in notices:
        messages = args[1] if isinstance(args[1], list) else [args[1]]
        words.append(" ".join([point.rpartition("/")[2], *(m["content"][0]["text"] for m in messages)]))
    return words


@pytest.mark.rule("AL-1")
async def test_an_input_gets_an_id_of_its_own_and_is_frozen_as_it_was() -> None:
    async with world() as w:
        agent = await w.agent()
        content: list[Any] = blocks("as given")
        ids = [agent.queue(content), agent.queue(content)]
        content[0]["text"] = "changed later"
        assert len(set(ids)) == 2
        assert all(uuid.UUID(i) for i in ids)
        await w.turn(agent, "go")
        assert w.texts(agent, "user/message") == ["as given", "as given", "go"]
        message = w.noticed("agent/inbox/enqueue")[0][1][1]
        assert set(message) == {"id", "content", "source", "contexts", "steering", "wakeup"}
        with pytest.raises(TypeError):
            message["content"][0]["text"] = "x"


@pytest.mark.rule("AL-1", "AL-9")
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"content": [{"type": "text", "text": float("nan")}]}, InputNotJson),
        ({"content": [{"type": "text", "text": "\ud800"}]}, InputNotJson),
        ({"source": {"kind": "user", "by": object()}}, InputNotJson),
        ({"meta": {1: "number for a key"}}, InputNotJson),
        ({"contexts": [{"content": blocks("x"), "source": HUMAN, "meta": {1}}]}, InputNotJson),
        ({"content": "no blocks"}, InputInvalid),
        ({"content": [{"text": "no type"}]}, InputInvalid),
        ({"source": {"plugin": "no kind"}}, InputInvalid),
        ({"contexts": [{"content": blocks("who says so?")}]}, InputInvalid),
        ({"contexts": [{"content": "no blocks", "source": HUMAN}]}, InputInvalid),
        ({"contexts": None}, InputInvalid),
        ({"target": "next-year"}, InputInvalid),
        ({"wakeup": "yes"}, InputInvalid),
        (
            {"target": "next-step", "wakeup": False, "contexts": [{"content": blocks("x"), "source": HUMAN}]},
            InputInvalid,
        ),
    ],
)
async def test_a_bad_input_is_refused_before_anything_happens(change: dict[str, Any], error: type[Exception]) -> None:
    given = {
        "content": blocks("x"), "source": HUMAN, "meta": None, "target": "next-turn", "wakeup": True, "contexts": [],
    }  # fmt: skip
    async with world() as w:
        agent = await w.agent()
        before = len(w.notices)
        with pytest.raises(error):
            agent.send(**{**given, **change})
        assert len(w.notices) == before
        assert agent.inbox.empty
        assert agent.session.length == 0


@pytest.mark.rule("AL-9")
async def test_send_fills_in_nothing() -> None:
    async with world() as w:
        agent = await w.agent()
        with pytest.raises(TypeError):
            agent.send(blocks("x"), HUMAN)  # type: ignore[call-arg, arg-type]


@pytest.mark.rule("AL-2")
async def test_a_disposed_agent_takes_nothing() -> None:
    async with world() as w:
        agent = await w.agent()
        await w.agents.dispose(agent)
        for deliver in (agent.followup, agent.queue, agent.steer, agent.inject):
            with pytest.raises(AgentDisposed):
                deliver(blocks("late"))


@pytest.mark.rule("AL-3", "AL-4", "AL-7")
async def test_messages_sent_at_once_become_turns_in_order() -> None:
    async with world() as w:
        agent = await w.agent()
        for text in "abc":
            agent.followup(blocks(text))
        await agent.when_idle()
        assert [len(r.messages) for r in w.requests] == [1, 3, 5]
        assert said(w.noticed(*INBOX)) == [
            "enqueue a", "enqueue b", "enqueue c", "dequeue a", "dequeue b", "dequeue c",
        ]  # fmt: skip
        assert [a[1] for _, a in w.noticed("agent/status")] == ["running", "idle"]  # one interval for all
        types = [e["type"] for e in w.log(agent, "turn/start", "turn/end")]
        assert types == ["turn/start", "turn/end"] * 3


@pytest.mark.rule("AL-7")
async def test_the_next_message_is_claimed_only_after_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await w.agent()
        order: list[str] = []
        flush = agent.session.flush

        async def slow() -> None:
            if agent.session.open_turn is None:
                await trio.sleep(0.01)
                order.append("flushed")
            await flush()

        monkeypatch.setattr(agent.session, "flush", slow)
        w.on("agent/inbox/dequeue", lambda _, message: order.append(message["content"][0]["text"]))
        agent.followup(blocks("a"))
        agent.followup(blocks("b"))
        await agent.when_idle()
        assert order == ["a", "flushed", "b", "flushed"]


@pytest.mark.rule("AL-4")
async def test_a_dequeue_comes_before_the_durable_message() -> None:
    async with world(ask(("t", {}))) as w:
        w.tool("t")
        agent = await w.agent()
        lengths: dict[str, int] = {}
        w.on("agent/inbox/dequeue", lambda a, m: lengths.setdefault(m["content"][0]["text"], a.session.length))

        @w.observe("agent/pre-step")
        async def once(a: Agent, turn: int, step: int, signal: Any) -> None:
            if step == 1:
                a.steer(blocks("steered"))

        await w.turn(agent, "asked")
        assert lengths["asked"] == 0
        assert lengths["steered"] == w.last(agent, "steering/message")["seq"]


@pytest.mark.rule("AL-4", "AL-65")
async def test_one_discard_for_all_queued_first() -> None:
    gate = Gate()
    async with world(gate.reply([], say("x"))) as w:
        agent = await w.agent()
        agent.followup(blocks("running"))
        await gate.entered.wait()
        agent.steer(blocks("s1"))
        agent.followup(blocks("q1"))
        agent.steer(blocks("s2"))
        agent.queue(blocks("q2"))
        agent.cancel()
        await agent.when_idle()
        assert said(w.noticed("agent/inbox/discard")) == ["discard q1 q2 s1 s2"]


@pytest.mark.rule("AL-5")
async def test_steering_goes_by_status_and_injection_by_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between `turn/end` and the end of its flush the agent runs, but no turn is open."""
    async with world() as w:
        agent = await w.agent()
        flush = agent.session.flush
        done: list[int] = []

        async def flushing() -> None:
            if agent.session.open_turn is None and not done:
                done.append(1)
                assert agent.status == "running"
                agent.steer(blocks("steered"))
                agent.inject(blocks("injected"))
            await flush()

        monkeypatch.setattr(agent.session, "flush", flushing)
        await w.turn(agent, "asked")
        triggers = [e["data"]["trigger"]["kind"] for e in w.log(agent, "turn/start")]
        assert triggers == ["message", "injection", "message"]
        steered = w.noticed("agent/inbox/enqueue")[1][1][1]
        assert steered["steering"] is True


@pytest.mark.rule("AL-6")
async def test_a_parked_item_waits_for_a_waking_one_and_keeps_its_place() -> None:
    async with world() as w:
        agent = await w.agent()
        agent.queue(blocks("parked"))
        await trio.testing.wait_all_tasks_blocked()
        assert agent.status == "idle"
        await agent.when_idle()  # AL-69: a lone parked item counts as idle
        agent.followup(blocks("waking"))
        agent.queue(blocks("behind"))
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["parked", "waking"]
        assert agent.status == "idle"
        agent.cancel()


@pytest.mark.rule("AL-8")
async def test_steering_that_came_too_late_becomes_an_ordinary_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await w.agent()
        agent.followup(blocks("first"))
        agent.followup(blocks("second"))

        @w.observe("session/event")
        def late(session: Any, event: Any) -> None:
            if event["type"] == "turn/end" and event["data"]["turn"] == 1:
                agent.steer(blocks("late"))

        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["first", "second", "late"]
        enqueued = [a[1] for _, a in w.noticed("agent/inbox/enqueue")]
        assert len(enqueued) == 3
        dequeued = [a[1] for _, a in w.noticed("agent/inbox/dequeue")]
        assert [m["steering"] for m in dequeued] == [False, False, False]


@pytest.mark.rule("AL-8")
async def test_steering_of_a_failed_step_becomes_an_ordinary_turn() -> None:
    gate = Gate()

    async def fails(request: Any) -> Any:
        await gate.stop()
        raise RuntimeError("broken")
        yield {}

    async with world(fails) as w:
        agent = await w.agent()
        agent.followup(blocks("first"))
        await gate.entered.wait()
        agent.steer(blocks("steered"))
        gate.open.set()
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["first", "steered"]
        assert w.log(agent, "steering/message") == []


@pytest.mark.rule("AL-9")
@pytest.mark.parametrize(
    ("method", "source", "flow"),
    [
        ("followup", {"kind": "user"}, "message"),
        ("steer", {"kind": "user"}, "message"),
        ("inject", {"kind": "plugin", "plugin": ""}, "injection"),
    ],
)
async def test_the_delivery_matrix_of_an_idle_agent(method: str, source: Any, flow: str) -> None:
    async with world() as w:
        agent = await w.agent()
        getattr(agent, method)(blocks("x"), meta={"n": 1})
        await agent.when_idle()
        assert [e["data"]["trigger"] for e in w.log(agent, "turn/start")] == [{"kind": flow, "source": source}]
        message = w.last(agent, "user/message")["data"]
        assert (message["source"], message["meta"]) == (source, {"n": 1})
        assert len(w.requests) == (0 if method == "inject" else 1)
        if method == "inject":
            assert w.noticed(*INBOX) == []  # AL-3
        else:
            assert w.noticed("agent/inbox/enqueue")[0][1][1]["steering"] is False


@pytest.mark.rule("AL-3", "AL-9")
async def test_the_delivery_matrix_of_a_running_agent() -> None:
    gate = Gate()
    async with world(gate.reply([], ask(("t", {})))) as w:
        w.tool("t")
        agent = await w.agent()
        agent.followup(blocks("task"))
        await gate.entered.wait()
        agent.queue(blocks("queued"))
        agent.followup(blocks("follows"))
        agent.steer(blocks("steered"), meta=[1])
        agent.inject(blocks("injected"))
        gate.open.set()
        await agent.when_idle()
        assert w.texts(agent, "user/message", "steering/message") == [
            "task",
            "injected",
            "steered",
            "queued",
            "follows",
        ]
        steering = w.last(agent, "steering/message")["data"]
        assert (steering["turn"], steering["meta"], steering["source"]) == (1, [1], {"kind": "user"})
        waking = {m["content"][0]["text"]: m["wakeup"] for _, (_, m) in w.noticed("agent/inbox/enqueue")}
        assert waking == {"task": True, "queued": False, "follows": True, "steered": True}
