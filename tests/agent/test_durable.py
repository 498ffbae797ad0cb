"""The inbox is in the database: other processes send, crashes lose nothing, nothing comes twice."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from dsh.agent.agent import Agent
from dsh.core.errors import SessionError, StoreError
from dsh.store import writes
from tests.agent.foreign import Sender, put, resumed, stored, told, until, waiting
from tests.agent.kit import PATIENCE_S, Gate, ask, blocks, say, world

FAR = 100_000.0


# ------------------------------------------------------------------------------------------------- noticing


@pytest.mark.rule("AL-84", "AL-85")
async def test_a_message_of_another_process_wakes_the_driver_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "LEASE_HEARTBEAT_S", FAR)
    with Sender() as send:
        async with world() as w:
            agent = await stored(w)
            heard = trio.Event()
            w.on("agent/inbox/enqueue", lambda *_: heard.set())
            assert send("s", "followup", "from elsewhere") == agent.session.holder
            with trio.fail_after(PATIENCE_S):  # far less than a heartbeat: the socket woke it
                await heard.wait()
            await agent.when_idle()
            assert w.texts(agent, "user/message") == ["first", "from elsewhere"]
            assert told(w) == ["enqueue from elsewhere", "dequeue from elsewhere"]
            assert waiting(w) == []


@pytest.mark.rule("AL-85")
async def test_many_rings_are_one_look_and_none_keeps_the_driver_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "LEASE_HEARTBEAT_S", FAR)
    async with world() as w:
        agent = await stored(w)
        looks: list[int] = []
        collect = agent.collect

        def counted() -> None:
            looks.append(1)
            collect()

        monkeypatch.setattr(agent, "collect", counted)
        with Sender() as send:
            for n in range(20):  # while our loop does not run
                send("s", "queue", f"{n}")
            await until(lambda: looks)
            await trio.testing.wait_all_tasks_blocked()
            assert len(looks) == 1
        assert told(w) == [f"enqueue {n}" for n in range(20)]
        agent.cancel()


@pytest.mark.rule("AL-85")
@pytest.mark.parametrize("deaf", [False, True])
async def test_without_a_ring_the_next_heartbeat_looks(monkeypatch: pytest.MonkeyPatch, deaf: bool) -> None:
    monkeypatch.setattr(writes, "LEASE_HEARTBEAT_S", 0.02)
    if deaf:
        monkeypatch.setattr("dsh.store.wake.listen", lambda holder: None)
    with Sender() as send:
        async with world() as w:
            agent = await stored(w)
            send("s", "followup", "unheard", ring=deaf)
            await until(lambda: w.texts(agent, "user/message")[-1:] == ["unheard"])
            await agent.when_idle()


@pytest.mark.rule("AL-84", "AL-85")
async def test_steering_of_another_process_joins_the_open_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "LEASE_HEARTBEAT_S", FAR)
    with Sender() as send:
        async with world() as w:

            async def body(args: Any, execution: Any) -> str:
                send("s", "steer", "to the left", ring=False, meta={"n": 1})  # found before the next request
                send("s", "inject", "a fact", ring=False, source={"kind": "plugin", "plugin": "x"})
                return "done"

            w.tool("t", body)
            agent = await stored(w)
            w.script.replies.extend([ask(("t", {}))])
            await w.turn(agent, "go")
            assert w.sent() == ["first", "ok", "go", "", "done", "a fact", "to the left"]
            steering = w.last(agent, "steering/message")["data"]
            assert (steering["turn"], steering["meta"]) == (2, {"n": 1})
            assert told(w)[2:] == ["enqueue to the left", "dequeue to the left"]
            assert waiting(w) == []


# ---------------------------------------------------------------------------------------------------- order


@pytest.mark.rule("AL-3", "AL-84")
async def test_messages_of_several_processes_are_run_in_the_order_they_were_sent() -> None:
    with Sender() as one, Sender() as two:
        async with world() as w:
            agent = await stored(w)
            gate = Gate()
            w.script.replies.append(gate.reply([], say("x")))
            agent.followup(blocks("running"))
            await gate.entered.wait()
            texts = []
            for n in range(12):
                texts.append(f"{n}")
                (one, two, agent)[n % 3]
                if n % 3 == 2:
                    agent.followup(blocks(f"{n}"))
                else:
                    (one, two)[n % 3]("s", "followup", f"{n}", ring=n % 2 == 0)
            gate.open.set()
            await agent.when_idle()
            assert w.texts(agent, "user/message") == ["first", "running", *texts]


@pytest.mark.rule("AL-6", "AL-84")
async def test_a_row_that_does_not_wake_waits_for_one_that_does() -> None:
    async with world() as w:
        agent = await stored(w)
        put(w.db, "s", "queue", "parked")
        agent.collect()
        await agent.when_idle()
        assert (agent.status, told(w), waiting(w)) == ("idle", ["enqueue parked"], [("queue", "parked")])
        put(w.db, "s", "steer", "waking")
        agent.collect()
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["first", "parked", "waking"]


@pytest.mark.rule("AL-84")
async def test_own_input_takes_up_what_came_before_it() -> None:
    async with world() as w:
        agent = await stored(w)
        put(w.db, "s", "followup", "theirs")
        agent.followup(blocks("ours"))
        put(w.db, "s", "inject", "their fact")
        agent.inject(blocks("our fact"))
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["first", "their fact", "our fact", "theirs", "ours"]


@pytest.mark.rule("AL-84")
@pytest.mark.parametrize("border", ["turn/start", "turn/end"])
async def test_an_injection_row_found_by_an_observer_of_an_append_is_appended_after_it(
    monkeypatch: pytest.MonkeyPatch, border: str
) -> None:
    """While an append is announced no other is possible (SE-6); the row waits for that, and no longer."""
    monkeypatch.setattr(writes, "LEASE_HEARTBEAT_S", FAR)
    async with world() as w:
        agent = await stored(w)

        @w.observe("session/event")
        def sending(session: Any, event: Any) -> None:
            if event["type"] == border and event["data"]["turn"] == 2:
                put(w.db, "s", "inject", "their fact")
                agent.queue(blocks("from the observer"))

        await w.turn(agent, "go")
        await until(lambda: waiting(w) == [("queue", "from the observer")])
        assert sorted(w.texts(agent, "user/message")) == ["first", "go", "their fact"]
        assert w.errors() == []
        agent.cancel()


@pytest.mark.rule("AL-3", "AL-84")
async def test_an_observer_of_one_row_that_sends_itself_disturbs_no_order() -> None:
    async with world() as w:
        agent = await stored(w)
        w.on("agent/inbox/enqueue", lambda a, m: a.followup(blocks("reply")) if m["content"][0]["text"] == "0" else 0)
        for n in range(3):
            put(w.db, "s", "followup", f"{n}")
        agent.collect()
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["first", "0", "1", "2", "reply"]
        assert Counter(told(w)).most_common(1)[0][1] == 1


@pytest.mark.rule("AL-84")
async def test_an_input_inside_a_transaction_that_is_taken_back_still_runs_and_hides_no_other() -> None:
    async with world() as w:
        agent = await stored(w)
        with suppress(RuntimeError), w.db.transaction():
            agent.followup(blocks("ours"))
            raise RuntimeError("taken back")
        put(w.db, "s", "followup", "theirs")  # at the position that was given back
        agent.collect()
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["first", "ours", "theirs"]
        assert waiting(w) == []


# ------------------------------------------------------------------------------------------ rows come and go


@pytest.mark.rule("AL-84")
async def test_a_row_goes_with_the_event_that_it_becomes() -> None:
    async with world(say("x"), ask(("t", {}))) as w:
        seen: list[tuple[str, int]] = []
        agent = await stored(w)

        @w.observe("session/event")
        def look(session: Any, event: Any) -> None:
            if event["type"] != "assistant/chunk":
                seen.append((event["type"], len(waiting(w))))

        async def body(args: Any, execution: Any) -> str:
            execution.agent.steer(blocks("steered"))
            execution.agent.inject(blocks("deferred"))
            assert waiting(w) == [("steer", "steered"), ("inject", "deferred")]
            return "x"

        w.tool("t", body)
        agent.followup(blocks("go"))
        assert waiting(w) == [("followup", "go")]
        await agent.when_idle()
        kept = [s for s in seen if s[0] not in ("step/start", "step/end", "request/header", "assistant/message")]
        assert kept == [
            ("turn/start", 1), ("user/message", 0), ("tool/call", 0), ("tool/result", 2), ("user/message", 1),
            ("steering/message", 0), ("turn/end", 0),
        ]  # fmt: skip


@pytest.mark.rule("AL-84")
async def test_event_and_row_are_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the row cannot be taken the event is not there either, and the handle has not run ahead."""
    async with world() as w:
        agent = await stored(w)
        log = agent.session
        put(w.db, "s", "inject", "a fact")
        log.append("turn/start", {"turn": 2, "trigger": {"kind": "plugin"}})
        before = (log.length, len(w.log(agent)))

        def cannot(*_: Any) -> None:
            raise StoreError("the disk is full", code="DB_FULL")

        with monkeypatch.context() as patch:
            patch.setattr(writes, "take_message", cannot)
            agent.collect()
        assert [str(e) for _, _, e in w.errors()] == ["the disk is full"]
        assert (log.length, len(w.log(agent))) == before
        assert waiting(w) == [("inject", "a fact")]
        log.append("turn/end", {"turn": 2, "reason": {"kind": "completed"}})
        await w.agents.dispose(agent)
        again = await resumed(w)
        assert w.texts(again, "user/message") == ["first", "a fact"]


@pytest.mark.rule("AL-84")
@pytest.mark.parametrize("how", ["blocked", "cancelled", "broken"])
async def test_a_prompt_that_becomes_no_message_leaves_with_the_end_of_its_turn(how: str) -> None:
    async with world() as w:
        agent = await stored(w)
        rows: dict[str, int] = {}
        w.on("session/event", lambda _, event: rows.setdefault(event["type"], len(waiting(w))))

        @w.observe("agent/prompt-submit")
        async def submit(a: Agent, *args: Any) -> Any:
            if how == "broken":
                raise RuntimeError("broken")
            if how == "cancelled":
                a.cancel()
            return {"kind": "block", "reason": "no"}

        reason = await w.turn(agent, "asked")
        assert reason["kind"] == {"blocked": "rejected", "cancelled": "aborted", "broken": "error"}[how]
        assert rows["turn/start"] == 1
        assert rows["turn/end"] == 0
        assert rows.get("prompt/blocked", 0) == 0
        assert waiting(w) == []


@pytest.mark.rule("AL-84")
async def test_before_the_first_event_there_is_nothing_to_hang_a_row_on() -> None:
    gate = Gate()
    async with world() as w:

        @w.observe("agent/prompt-submit")
        async def slow(*args: Any) -> Any:
            await gate.stop()
            return await args[-1]()

        agent = await w.agent(id="s")
        agent.followup(blocks("a"))
        agent.queue(blocks("b"))
        agent.followup(blocks("c"))
        assert w.db.rows("SELECT count(*) FROM session") == [(0,)]
        await gate.entered.wait()  # the turn is in the log, its prompt is not
        assert waiting(w) == [("followup", "a"), ("queue", "b"), ("followup", "c")]
        gate.open.set()
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["a", "b", "c"]
        assert waiting(w) == []


@pytest.mark.rule("AL-18", "AL-84")
async def test_a_turn_that_cannot_begin_keeps_the_rows_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await stored(w)
        append = agent.session.append

        def refuse(type: str, *args: Any, **more: Any) -> Any:
            if type == "turn/start":
                raise SessionError("the disk is full", code="DB_FULL")
            return append(type, *args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(agent.session, "append", refuse)
            put(w.db, "s", "followup", "theirs")
            agent.followup(blocks("ours"))
            await agent.when_idle()
        assert [str(e) for _, _, e in w.errors()] == ["the disk is full"] * 2
        assert waiting(w) == [("followup", "theirs")]  # whose sender was not told
        assert agent.retire()  # and it does not keep this driver
        await w.agents.dispose(agent)
        again = await resumed(w)
        await again.when_idle()
        assert w.texts(again, "user/message") == ["first", "theirs"]


@pytest.mark.rule("AL-1", "AL-84")
async def test_a_row_that_no_program_of_ours_wrote_is_taken_out_and_told() -> None:
    async with world() as w:
        agent = await stored(w)
        put(w.db, "s", "followup", "x", contexts=[{"content": [{"text": "no type"}], "source": {"kind": "user"}}])
        put(w.db, "s", "followup", "sound")
        agent.collect()
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["first", "sound"]
        assert [where.split()[0] for where, _ in w.host.reports] == ["inbox"]
        assert waiting(w) == []


# -------------------------------------------------------------------------------------------------- cancel


@pytest.mark.rule("AL-65", "AL-86")
async def test_a_cancel_of_another_process_ends_the_turn_and_clears_what_was_sent_before() -> None:
    gate = Gate()
    with Sender() as send:
        async with world(say("x"), gate.reply([], say("never"))) as w:
            agent = await stored(w)
            agent.followup(blocks("running"))
            await gate.entered.wait()
            send("s", "followup", "before", ring=False)
            send("s", "cancel", ring=False)
            send("s", "followup", "after")
            await until(lambda: w.texts(agent, "user/message")[-1] == "after")
            await agent.when_idle()
            ends = [e["data"]["reason"]["kind"] for e in w.log(agent, "turn/end")]
            assert ends == ["completed", "aborted", "completed"]
            assert told(w)[2:] == ["enqueue before", "discard before", "enqueue after", "dequeue after"]
            assert waiting(w) == []


@pytest.mark.rule("AL-66", "AL-86")
async def test_a_cancel_row_may_keep_the_inbox() -> None:
    gate = Gate()
    async with world(say("x"), gate.reply([], say("never"))) as w:
        agent = await stored(w)
        agent.followup(blocks("running"))
        await gate.entered.wait()
        put(w.db, "s", "followup", "kept")
        put(w.db, "s", "cancel", "", meta={"keepInbox": True})
        agent.collect()
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["first", "running", "kept"]
        assert w.log(agent, "turn/end")[1]["data"]["reason"] == {"kind": "aborted"}
        assert waiting(w) == []


@pytest.mark.rule("AL-65", "AL-86")
async def test_a_cancel_deletes_the_rows_of_everybody() -> None:
    async with world() as w:
        agent = await stored(w)
        agent.queue(blocks("ours"))
        put(w.db, "s", "followup", "theirs")  # not noticed yet, and sent before
        agent.cancel()
        assert told(w) == ["enqueue ours", "enqueue theirs", "discard ours", "discard theirs"]
        assert waiting(w) == []
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["first"]
