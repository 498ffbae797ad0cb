"""The scopes of agents: one each, what is scoped in it, what is not, who sees what (SC-40 to SC-43, CO-52)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from dsh.agent.agent import Agent
from dsh.agent.initiator import initiator, on_behalf_of
from dsh.agent.prompt import AssembleContext
from dsh.core.errors import InvariantError
from dsh.kernel.scope import Context, ScopeClosed
from dsh.tools.definition import ToolDefinition, define
from tests.agent.kit import ask, say, world


def tool(name: str, said: str = "done") -> ToolDefinition:
    async def body(args: Any, execution: Any) -> str:
        return said

    return define(
        name=name, description=name, parameters={}, output={"type": "json"}, render=lambda _, v: str(v), execute=body
    )


@pytest.mark.rule("SC-40")
async def test_an_agent_has_one_scope_from_before_it_is_announced_to_its_end() -> None:
    async with world(say("x")) as w:
        keys: list[tuple[str, object]] = []
        undone: list[str] = []

        def setup(ctx: Context) -> None:
            keys.append(("setup", ctx.key))
            ctx.on("agent/created", lambda agent: keys.append(("created", agent)))
            ctx.on("agent/disposed", lambda agent: keys.append(("disposed", agent)))
            ctx.effect(lambda: undone.append("scope"))

        agent = await w.agent(setup=setup)
        other = await w.agent()
        assert agent.ctx.key is agent
        assert other.ctx.key is other
        assert agent.ctx is not other.ctx
        w.on("session/disposed", lambda session: undone.append("session"))
        await w.agents.dispose(agent)
        assert keys == [("setup", agent), ("created", agent), ("disposed", agent)]
        assert undone == ["session", "scope"]
        for attempt in (
            lambda: agent.ctx.on("agent/status", print),
            lambda: w.tools.register(agent.ctx, tool("late")),
            lambda: w.prompt.section(agent.ctx, "late", 0, "late"),
        ):
            with pytest.raises(ScopeClosed):
                attempt()
        assert w.tools.find(agent, "late") is None


@pytest.mark.rule("SC-41", "SC-42")
async def test_what_is_registered_for_one_agent_is_seen_by_it_alone() -> None:
    async with world() as w:
        w.tool("everywhere")
        w.tool("narrowed")
        mine, other = await w.agent(), await w.agent()
        heard: list[str] = []
        w.prompt.section(mine.ctx, "mine", 5, "only {{colour}}")
        w.prompt.variable(mine.ctx, "colour", lambda _: "green")
        w.prompt.tools(
            mine.ctx, "more", lambda _: [{"name": "extra", "description": "x", "parameters": {"type": "object"}}]
        )
        w.tools.register(mine.ctx, tool("own"))
        w.tools.restrict(mine.ctx, deny=["narrowed"])
        mine.ctx.on("agent/status", lambda agent, status: heard.append(status))

        def view(agent: Agent | None) -> tuple[str, list[str]]:
            assembly = w.prompt.assemble(AssembleContext(agent))
            return assembly.render(), [t["name"] for t in assembly.tools]

        text, tools = view(mine)
        assert "only green" in text
        assert tools == ["everywhere", "extra", "own"]
        for reader in (other, None):
            text, tools = view(reader)
            assert "green" not in text
            assert tools == ["everywhere", "narrowed"]
        await w.turn(other)
        assert heard == []
        await w.turn(mine)
        assert heard == ["running", "idle"]


@pytest.mark.rule("SC-41")
async def test_other_services_stay_global_through_a_scoped_context() -> None:
    async with world() as w:
        agent = await w.agent()
        agent.ctx.provide(int, 7)
        assert w.host.get(int) == 7
        assert (await w.agent()).ctx.get(int) == 7


@pytest.mark.rule("SC-43", "CO-52")
async def test_a_child_sees_nothing_of_its_parents_scope_and_works_for_itself() -> None:
    """The child is made by a tool of the parent, in the middle of its turn."""
    seen: dict[str, Any] = {}
    async with world(ask(("spawn", {})), say("child here"), say("parent here")) as w:

        async def spawn(args: Any, execution: Any) -> str:
            seen["tool"] = initiator()

            def setup(ctx: Context) -> None:
                seen["setup"], seen["scope"] = initiator(), ctx.key

            child = await w.agent(setup=setup)
            seen["child"], seen["creator"] = child, initiator()
            await w.turn(child, "go")
            return "spawned"

        def note(agent: Agent, turn: int, step: int, signal: Any) -> Any:
            seen.setdefault(f"step of {agent.id}", initiator())
            return trio.lowlevel.checkpoint()

        w.on("agent/pre-step", note)
        parent = await w.agent()
        w.tool("spawn", spawn)
        w.prompt.section(parent.ctx, "secret", 1, "the parent's secret")
        w.tools.register(parent.ctx, tool("parents"))
        await w.turn(parent, "spawn one")
        child = seen["child"]
        assert seen["tool"] is seen["setup"] is seen["creator"] is parent
        assert seen["scope"] is child
        assert seen[f"step of {parent.id}"] is parent
        assert seen[f"step of {child.id}"] is child
        request = next(r for r in w.requests if r.session_id == child.id)
        assert "secret" not in (request.system or "")
        assert [t["name"] for t in request.tools] == ["spawn"]


@pytest.mark.rule("CO-52")
async def test_code_that_works_for_nobody_finds_no_initiator() -> None:
    with pytest.raises(InvariantError):
        initiator()
    async with world(say("x")) as w:
        agent = await w.agent()
        with pytest.raises(InvariantError):
            initiator()  # making an agent does not make its maker work for it
        with on_behalf_of(agent):
            assert initiator() is agent
            with on_behalf_of(None), pytest.raises(InvariantError):
                initiator()
            async with trio.open_nursery() as nursery:
                found: list[Agent] = []

                async def worker() -> None:
                    found.append(initiator())

                nursery.start_soon(worker)
            assert found == [agent]
        await w.agents.dispose(agent)
        with on_behalf_of(agent):
            assert initiator().status == "disposed"  # it proves nothing about the agent
        assert "initiator" not in str(agent.session.events())
