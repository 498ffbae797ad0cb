"""Making, resuming and ending agents, and who hears what (AL-75 to AL-79, AL-82, AL-83)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from dsh.agent.agent import Agent
from dsh.agent.agents import AgentExists
from dsh.core.errors import SessionError
from dsh.kernel.points import POINTS
from dsh.kernel.scope import Context
from tests.agent.kit import Gate, ask, blocks, opened, world

ROUTE = {"provider": "p", "model": "m"}
LIFE = ("session/created", "agent/created", "agent/session-start", "agent/disposed", "session/disposed")


def life(w: Any) -> list[str]:
    return [point for point, _ in w.noticed(*LIFE)]


@pytest.mark.rule("AL-75", "AL-78")
async def test_the_order_of_a_creation_and_its_end() -> None:
    async with world() as w:
        order: list[str] = []

        async def setup(ctx: Context) -> None:
            order.append(f"setup {life(w)} {w.agents.find('s')}")
            assert isinstance(ctx.key, Agent)

        agent = await w.agent(id="s", setup=setup)
        assert order == ["setup [] None"]
        assert life(w) == list(LIFE[:3])
        assert w.agents.find("s") is agent
        assert w.noticed("agent/session-start")[0][1] == (agent, "startup")
        assert agent.id == agent.session.id
        assert w.sessions.live("s") is agent.session
        await w.agents.dispose(agent)
        assert life(w) == list(LIFE)
        assert (w.agents.find("s"), w.sessions.live("s")) == (None, None)


@pytest.mark.rule("AL-75", "AL-76")
async def test_session_start_listeners_may_inject_but_not_veto() -> None:
    async with world() as w:
        w.on("agent/session-start", lambda agent, source: agent.inject(blocks(f"hello at {source}")))

        @w.observe("agent/session-start")
        def breaks(agent: Agent, source: str) -> None:
            raise RuntimeError("no veto")

        agent = await w.agent()
        await w.turn(agent)
        assert w.sent() == ["hello at startup", "hi"]
        assert [e["data"]["trigger"]["kind"] for e in w.log(agent, "turn/start")] == ["injection", "message"]


@pytest.mark.rule("AL-76")
async def test_a_failing_setup_leaves_nothing() -> None:
    async with world() as w:
        undone: list[str] = []

        async def setup(ctx: Context) -> None:
            ctx.effect(lambda: undone.append("undone"))
            raise RuntimeError("setup broke")

        with pytest.raises(RuntimeError):
            await w.agent(id="s", setup=setup)
        assert (undone, life(w), w.agents.find("s"), w.sessions.live("s")) == (["undone"], [], None, None)
        agent = await w.agent(id="s")
        await w.turn(agent)


@pytest.mark.rule("AL-76")
async def test_a_failing_creation_takes_its_seed_back() -> None:
    async with world() as w:
        agent = await w.agent(id="s")
        await w.turn(agent)

        def setup(ctx: Context) -> None:
            raise RuntimeError("setup broke")

        with pytest.raises(RuntimeError):
            await w.agents.create(ROUTE, id="child", seed=agent.session.events(), setup=setup)
        assert w.db.rows("SELECT id FROM session") == [("s",)]
        await w.agents.create(ROUTE, id="child", seed=agent.session.events())


@pytest.mark.rule("AL-76")
async def test_an_aborted_creation_leaves_nothing() -> None:
    async with world() as w:
        undone: list[str] = []

        async def setup(ctx: Context) -> None:
            ctx.effect(lambda: undone.append("undone"))
            await trio.sleep_forever()

        with trio.move_on_after(0.01):
            await w.agent(id="s", setup=setup)
        assert (undone, life(w), w.agents.find("s")) == (["undone"], [], None)
        await w.agent(id="s")


@pytest.mark.rule("AL-76", "PE-73")
async def test_an_aborted_resumption_gives_the_session_back() -> None:
    async with world() as w:
        agent = await w.agent(id="s")
        await w.turn(agent)
        await w.agents.dispose(agent)

        def setup(ctx: Context) -> None:
            raise RuntimeError("setup broke")

        with pytest.raises(RuntimeError):
            await w.agents.resume("s", ROUTE, setup=setup)
        assert w.db.rows("SELECT * FROM lease") == []
        await w.agents.resume("s", ROUTE)


@pytest.mark.rule("AL-77")
async def test_the_loser_of_a_race_does_not_touch_the_winner() -> None:
    async with world() as w:
        gate = Gate()

        async def slow(ctx: Context) -> None:
            await gate.stop()

        async def lose() -> None:
            with pytest.raises(AgentExists):
                await w.agent(id="s", setup=slow)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            await gate.entered.wait()
            winner = await w.agent(id="s")
            gate.open.set()
        assert w.agents.find("s") is winner
        assert life(w) == list(LIFE[:3])
        await w.turn(winner)


@pytest.mark.rule("AL-77")
async def test_a_live_agent_is_not_resumed_or_created_again() -> None:
    async with world() as w:
        agent = await w.agent(id="s")
        await w.turn(agent)
        with pytest.raises(AgentExists):
            await w.agents.resume("s", ROUTE)
        with pytest.raises(SessionError, match="exists"):
            await w.agent(id="s")
        await w.turn(agent)


@pytest.mark.rule("AL-79")
async def test_a_resumption_keeps_the_header_and_says_so() -> None:
    async with world() as w:
        meta = {"cwd": "/somewhere", "createdAt": 1234, "delegationDepth": 2, "parentSession": "mother"}
        agent = await w.agent(id="s", meta=meta)
        await w.turn(agent)
        header = agent.session.header
        await w.agents.dispose(agent)
        again = await w.agents.resume("s", ROUTE)
        assert again.session.header == header
        assert header["createdAt"] == 1234
        assert w.noticed("agent/session-start")[-1][1] == (again, "resume")
        await w.turn(again)
        assert w.sent() == ["hi", "ok", "hi"]


@pytest.mark.rule("AL-79")
async def test_a_seeded_agent_starts_up() -> None:
    async with world() as w:
        agent = await w.agent(id="s")
        await w.turn(agent)
        seed = agent.session.events()
        child = await w.agents.create(ROUTE, id="child", seed=seed)
        assert w.noticed("agent/session-start")[-1][1] == (child, "startup")
        await w.turn(child)
        assert w.sent() == ["hi", "ok", "hi"]
        assert w.last(child, "request/header")["data"]["reason"] == "resume"


@pytest.mark.rule("AL-79", "PE-30", "PE-34")
async def test_a_resumption_first_closes_what_a_crash_left_open() -> None:
    gate = Gate()
    async with world(ask(("t", {}), ("t", {})), checked=False) as w:
        w.tool("t", gate.body)
        agent = await w.agent(id="s")
        agent.followup(blocks("hi"))
        await gate.entered.wait()
        w.db.rows("DELETE FROM lease")  # as if this process had gone
        from dsh.kernel.config import Config
        from dsh.kernel.host import Host
        from dsh.session.sessions import Sessions

        session = Sessions(Host(Config({}, {})), w.db).prepare_stored("s")
        codes = [e["data"]["error"]["code"] for e in session.events() if e["type"] == "tool/result"]
        assert codes == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]
        assert session.events()[-1]["data"]["reason"] == {"kind": "interrupted"}


@pytest.mark.rule("PE-74")
async def test_an_agent_whose_session_was_taken_over_cannot_append() -> None:
    gate = Gate()
    async with world(gate.reply(opened("x"), []), checked=False) as w:
        agent = await w.agent(id="s")
        agent.followup(blocks("hi"))
        await gate.entered.wait()
        w.db.rows("DELETE FROM lease")
        from dsh.kernel.config import Config
        from dsh.kernel.host import Host
        from dsh.session.sessions import Sessions

        Sessions(Host(Config({}, {})), w.db).prepare_stored("s")
        length = len(w.log(agent))
        gate.open.set()
        await agent.when_idle()
        assert "SESSION_LEASED" in {getattr(e, "code", None) for _, _, e in w.errors()}
        assert w.db.rows("SELECT count(*) FROM event")[0][0] >= length
        assert w.db.rows("SELECT count(*) FROM event WHERE type = 'turn/end'") == [(1,)]


@pytest.mark.rule("AL-82")
async def test_waterfalls_nest_with_the_first_registered_outermost() -> None:
    async with world() as w:
        order: list[str] = []
        for name in ("outer", "inner"):

            async def around(agent: Agent, *args: Any, name: str = name) -> Any:
                order.append(f"{name} in")
                decision = await args[-1]()
                order.append(f"{name} out")
                return decision

            w.on("agent/prompt-submit", around)
        agent = await w.agent()
        await w.turn(agent)
        assert order == ["outer in", "inner in", "inner out", "outer out"]


@pytest.mark.rule("AL-82", "SC-10")
async def test_an_agents_own_listeners_see_only_their_agent() -> None:
    async with world() as w:
        seen: list[str] = []

        def listening(name: str) -> Any:
            async def pre(agent: Agent, turn: int, step: int, signal: Any) -> None:
                seen.append(f"{name} {agent.id}")

            return lambda ctx: ctx.on("agent/pre-step", pre)

        a = await w.agent(id="a", setup=listening("of a"))
        b = await w.agent(id="b", setup=listening("of b"))
        await w.turn(a)
        await w.turn(b)
        await w.agents.dispose(a)
        assert seen == ["of a a", "of b b"]


@pytest.mark.rule("AL-83")
def test_the_points_of_an_agent_are_those_of_the_table() -> None:
    assert {p.removeprefix("agent/") for p in POINTS if p.startswith("agent/")} == {
        "created", "disposed", "status", "session-start", "inbox/enqueue", "inbox/dequeue", "inbox/discard",
        "cancel-requested", "error", "prompt-submit", "session-prefix", "request", "step-result", "request-error",
        "turn-continuation", "pre-step", "post-step", "turn-stop",
    }  # fmt: skip


async def test_several_agents_run_beside_each_other() -> None:
    gates = [Gate(), Gate()]
    async with world(*(g.reply(opened("x"), []) for g in gates)) as w:
        one, two = await w.agent(), await w.agent()
        one.followup(blocks("1"))
        await gates[0].entered.wait()
        two.followup(blocks("2"))
        await gates[1].entered.wait()
        gates[1].open.set()
        await two.when_idle()
        assert one.status == "running"
        one.cancel()
        await one.when_idle()
        assert [w.last(a, "turn/end")["data"]["reason"]["kind"] for a in (one, two)] == ["aborted", "completed"]
