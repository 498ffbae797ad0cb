"""The inbox between two drivers: what one leaves the next takes up, once and in order (AL-70, AL-84, AL-87, AL-88)."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from dsh.agent.agent import Agent, AgentDisposed
from dsh.core.errors import StoreError
from dsh.session.sessions import Sessions
from dsh.store import writes
from dsh.store.database import Database
from tests.agent.foreign import Drivers, Sender, kill, put, resumed, stored, told, waiting
from tests.agent.kit import Gate, blocks, say, world

# ----------------------------------------------------------------------------- leftovers, disposal, retiring


@pytest.mark.rule("AL-87")
async def test_what_was_left_is_run_by_the_next_driver_before_its_first_prompt() -> None:
    async with world() as w:
        agent = await stored(w)
        await w.agents.dispose(agent)
        put(w.db, "s", "followup", "cleared")
        put(w.db, "s", "cancel", "")
        for route in ("followup", "steer", "inject", "queue"):
            put(w.db, "s", route, route)
        again = await resumed(w)
        again.followup(blocks("the prompt"))
        await again.when_idle()
        assert w.texts(again, "user/message") == ["first", "inject", "followup", "steer", "queue", "the prompt"]
        triggers = [e["data"]["trigger"]["kind"] for e in w.log(again, "turn/start")]
        assert triggers == ["message", "injection", *["message"] * 4]
        assert waiting(w) == []


@pytest.mark.rule("AL-70", "AL-87")
async def test_disposal_takes_its_own_rows_along_and_leaves_those_of_others() -> None:
    gate = Gate()
    async with world(say("x"), gate.reply([], say("never"))) as w:
        agent = await stored(w)
        agent.followup(blocks("running"))
        await gate.entered.wait()
        put(w.db, "s", "followup", "theirs")
        agent.followup(blocks("ours"))
        put(w.db, "s", "followup", "unseen")
        await w.agents.dispose(agent)
        assert told(w)[-2:] == ["discard theirs", "discard ours"]
        assert waiting(w) == [("followup", "theirs"), ("followup", "unseen")]
        again = await resumed(w)
        await again.when_idle()
        assert w.texts(again, "user/message") == ["first", "running", "theirs", "unseen"]


@pytest.mark.rule("PE-74", "AL-87")
async def test_the_claim_of_a_driver_that_was_put_aside_is_taken_back() -> None:
    gate = Gate()
    async with world() as w:
        agent = await stored(w)

        @w.observe("agent/prompt-submit")
        async def slow(*args: Any) -> Any:
            if not gate.entered.is_set():
                await gate.stop()
            return await args[-1]()

        agent.followup(blocks("claimed"))
        agent.followup(blocks("waits"))
        await gate.entered.wait()
        w.db.rows("DELETE FROM lease")  # as if this process had been found dead
        other = Sessions(w.host, w.db).prepare_stored("s")
        gate.open.set()
        await agent.when_idle()
        await w.agents.dispose(agent)
        assert {getattr(e, "code", None) for _, _, e in w.errors()} == {"SESSION_LEASED"}
        assert waiting(w) == [("followup", "claimed"), ("followup", "waits")]
        other.release()
        again = await resumed(w)
        await again.when_idle()
        assert w.texts(again, "user/message") == ["first", "claimed", "waits"]
        assert waiting(w) == []


@pytest.mark.rule("AL-88")
async def test_an_agent_retires_only_when_nothing_would_wake_it() -> None:
    gate = Gate()
    async with world(say("x"), gate.reply([], say("y"))) as w:
        agent = await stored(w)
        agent.followup(blocks("running"))
        assert not agent.retire()
        await gate.entered.wait()
        assert not agent.retire()
        gate.open.set()
        await agent.when_idle()
        put(w.db, "s", "followup", "just in time")
        assert not agent.retire()
        await agent.when_idle()
        put(w.db, "s", "queue", "parked")
        assert not agent.retire()  # it was looked at
        assert agent.retire()
        assert agent.retire()
        assert (w.db.rows("SELECT * FROM lease"), waiting(w)) == ([], [("queue", "parked")])
        assert agent.status == "disposed"
        with pytest.raises(AgentDisposed):
            agent.followup(blocks("too late"))
        await w.agents.dispose(agent)
        assert w.errors() == []
        assert told(w)[-1] == "discard parked"
        again = await resumed(w)
        await w.turn(again, "go")
        assert w.texts(again, "user/message") == ["first", "running", "just in time", "parked", "go"]


@pytest.mark.rule("AL-88")
async def test_nothing_can_be_sent_between_the_last_look_and_the_end_of_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        agent = await stored(w)
        other = Database.open(w.db.path, busy_timeout_ms=0)
        release = writes.release_lease
        tried: list[str] = []

        def meanwhile(db: Database, session: str, holder: str) -> None:
            try:
                put(other, "s", "followup", "in between")
            except StoreError as error:
                tried.append(error.code)
            release(db, session, holder)

        with monkeypatch.context() as patch:
            patch.setattr(writes, "release_lease", meanwhile)
            assert agent.retire()
        other.close()
        assert tried == ["DB_BUSY"]
        assert waiting(w) == []


@pytest.mark.rule("AL-88")
@pytest.mark.parametrize("moment", ["in a turn", "while flushing", "idle"])
async def test_an_agent_that_is_stopped_ends_its_turn_and_leaves_what_waits(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    gate = Gate()
    async with world(say("x"), gate.reply([], say("y"))) as w:
        agent = await stored(w)
        if moment == "while flushing":
            gate.open.set()
            flush = agent.session.flush

            async def flushing() -> None:
                if agent.session.open_turn is None:
                    agent.stop()
                await flush()

            monkeypatch.setattr(agent.session, "flush", flushing)
        if moment != "idle":
            agent.followup(blocks("running"))
            await gate.entered.wait()
        put(w.db, "s", "followup", "theirs")
        agent.queue(blocks("ours"))
        agent.stop() if moment != "while flushing" else None
        await agent.when_idle()
        put(w.db, "s", "followup", "late")
        assert agent.retire()
        assert w.db.rows("SELECT * FROM lease") == []
        assert waiting(w) == [("followup", "theirs"), ("followup", "late")]
        ends = [e["data"]["reason"]["kind"] for e in w.log(agent, "turn/end")]
        assert ends[1:] == {"in a turn": ["aborted"], "while flushing": ["completed"], "idle": []}[moment]
        await w.agents.dispose(agent)
        gate.open.set()
        again = await resumed(w)
        await again.when_idle()
        assert w.texts(again, "user/message")[-2:] == ["theirs", "late"]


@pytest.mark.rule("AL-88")
async def test_an_agent_without_a_log_retires_too() -> None:
    async with world() as w:
        agent = await w.agent()
        assert agent.retire()


@pytest.mark.slow
@pytest.mark.rule("AL-88", "AL-84")
async def test_who_finds_a_lease_after_sending_is_served_by_its_holder() -> None:
    """Two processes without any agreement but the database: one sends all the time, the other drives and retires."""
    async with world() as w:
        await w.agents.dispose(await stored(w))
        ran_by: dict[str, str] = {}
        found: dict[str, str | None] = {}
        retired = 0
        done = trio.Event()

        def note(agent: Agent, message: Any) -> None:
            ran_by[message["content"][0]["text"]] = agent.session.holder or ""

        w.on("agent/inbox/dequeue", note)
        with Sender() as send:

            async def sends() -> None:
                for n in range(80):
                    found[f"{n}"] = await trio.to_thread.run_sync(send, "s", "followup", f"{n}")
                    await trio.sleep(random.random() * 0.004)
                done.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(sends)
                while not done.is_set():
                    agent = await resumed(w)
                    while not agent.retire():
                        await agent.when_idle()
                    await w.agents.dispose(agent)
                    retired += 1
                    await trio.sleep(random.random() * 0.004)
            agent = await resumed(w)
            await agent.when_idle()
        assert retired > 1
        assert w.texts(agent, "user/message") == ["first", *(f"{n}" for n in range(80))]
        assert {n for n, holder in found.items() if holder is not None and ran_by[n] != holder} == set()
        assert waiting(w) == []


# --------------------------------------------------------------------------------------------------- crashes


@pytest.mark.slow
@pytest.mark.rule("AL-84", "AL-87", "PE-6")
async def test_killed_at_any_moment_every_message_is_delivered_once_and_in_order() -> None:
    chance = random.Random(7)
    async with world() as w:
        await w.agents.dispose(await stored(w))
    sent: list[str] = []
    steered: list[str] = []
    looking = Database.open(Path(os.environ["DSH_DB"]))

    def length() -> int:
        return int(looking.rows("SELECT length FROM session")[0][0])

    with Sender() as send, Drivers() as drivers:
        for round_ in range(80):
            for n in range(chance.randint(1, 3)):
                sent.append(f"f {round_} {n}")
                send("s", "followup", sent[-1])
            pid = drivers.start("s")
            for route in ("steer", "inject"):
                if chance.random() < 0.4:
                    steered.append(f"{route} {round_}")
                    send("s", route, steered[-1])
            far_enough = length() + chance.randint(0, 30)
            while Path(f"/proc/{pid}").exists() and length() < far_enough:
                time.sleep(0.0002)
            time.sleep(chance.random() * 0.001)
            kill(pid)
        drivers.run("s")
        looking.close()
    async with world() as w:
        agent = await resumed(w)
        assert waiting(w) == []
        prompts = w.texts(agent, "user/message", "steering/message")
        assert [p for p in prompts if p.startswith("f ")] == sent
        assert Counter(p for p in prompts if not p.startswith("f ")) == Counter(["first", *steered])
        ends = Counter(e["data"]["reason"]["kind"] for e in w.log(agent, "turn/end"))
        assert ends["interrupted"] > 3  # the kills met turns
