"""Agents that a configuration asks for, another model while one lives, the last message turn (AL-80, AL-81, SE-48)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsh import query
from dsh.agent.agent import Agent, AgentDisposed
from dsh.agent.agents import AgentExists
from dsh.agent.decisions import InputInvalid
from dsh.core.errors import SessionError
from dsh.llm.service import LlmService
from tests.agent.kit import Gate, World, ask, blocks, say, world
from tests.agent.test_step import Reasoner

ROUTE = {"provider": "p", "model": "m"}
FAILED = "agent-loop/config-start-failed"


def failures(w: World) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    w.on(FAILED, lambda name, error: seen.append((name, error.code)))
    return seen


@pytest.mark.rule("AL-80")
async def test_a_session_id_is_resumed_if_it_is_stored_and_created_if_not() -> None:
    async with world() as w:
        seen = failures(w)
        agent = await w.agents.open(ROUTE, session_id="s", meta={"cwd": "/made"})
        assert (agent.id, agent.session.cwd) == ("s", "/made")
        await w.turn(agent)
        await w.agents.dispose(agent)
        again = await w.agents.open(ROUTE, session_id="s", meta={"cwd": "/not/used"})
        assert (again.session.cwd, again.session.turns) == ("/made", 1)
        fresh = await w.agents.open(ROUTE)
        assert len(fresh.id) == 18
        sources = [source for _, (_, source) in w.noticed("agent/session-start")]
        assert sources == ["startup", "resume", "startup"]
        assert seen == []


@pytest.mark.rule("AL-80")
async def test_a_session_that_must_be_there_is_not_made_and_the_failure_is_announced() -> None:
    async with world() as w:
        seen = failures(w)
        with pytest.raises(SessionError, match="no session"):
            await w.agents.open(ROUTE, resume_session_id="gone")
        assert seen == [("gone", "SESSION_NOT_FOUND")]
        assert w.host.reports[-1][0] == "session gone"
        agent = await w.agents.open(ROUTE, session_id="s")
        await w.turn(agent)
        with pytest.raises(AgentExists):
            await w.agents.open(ROUTE, session_id="s")  # the same exact id a second time
        assert seen[1:] == [("s", "AGENT_EXISTS")]
        await w.turn(agent)  # the first is as it was
        await w.agents.dispose(agent)
        again = await w.agents.open(ROUTE, resume_session_id="s")
        assert again.session.turns == 2


@pytest.mark.rule("AL-80")
@pytest.mark.parametrize(
    "asked",
    [{"session_id": "a", "resume_session_id": "a"}, {"session_id": ""}, {"resume_session_id": ""}],
)
async def test_contradictions_are_refused_before_anything_starts(asked: Any) -> None:
    async with world() as w:
        seen = failures(w)
        with pytest.raises(InputInvalid):
            await w.agents.open(ROUTE, **asked)
        assert (seen, w.notices) == ([], [])


# ------------------------------------------------------------------------------------------------- selecting


def named(w: World) -> None:
    w.prompt.section(w.host.root, "who", 5, "asks {{provider}}/{{model}}")


def asked(w: World) -> list[tuple[str, dict[str, Any]]]:
    """Of each request, what the prompt says of the model, and the config."""
    return [((r.system or "").rpartition("asks ")[2], dict(r.config)) for r in w.requests]


@pytest.mark.rule("AL-81")
async def test_a_model_chosen_during_a_step_is_asked_from_the_next_on() -> None:
    gate = Gate()
    async with world(gate.reply([], ask(("t", {}))), say("done")) as w:
        named(w)
        w.tool("t")
        agent = await w.agent(temperature=0.5)
        agent.followup(blocks("go"))
        await gate.entered.wait()
        agent.select(provider="p", model="other")
        gate.open.set()
        await agent.when_idle()
        assert asked(w) == [
            ("p/m", {"provider": "p", "model": "m", "temperature": 0.5}),
            ("p/other", {"provider": "p", "model": "other", "temperature": 0.5}),
        ]
        reasons = [e["data"]["reason"] for e in w.log(agent, "request/header")]
        assert reasons == ["initial", "change"]
        await w.turn(agent, "and on")
        assert asked(w)[-1][0] == "p/other"
        assert len(w.log(agent, "request/header")) == 2


@pytest.mark.rule("AL-81")
async def test_a_choice_made_after_the_assembly_waits_for_the_next_one() -> None:
    async with world(ask(("t", {}))) as w:
        named(w)
        w.tool("t")
        agent = await w.agent()

        @w.observe("agent/pre-step")
        async def choose(a: Agent, turn: int, step: int, signal: Any) -> None:
            if step == 1:
                a.select(model="late")

        await w.turn(agent)
        assert [(said, config["model"]) for said, config in asked(w)] == [("p/m", "m"), ("p/late", "late")]


@pytest.mark.rule("AL-81")
async def test_a_choice_outlives_a_step_that_fails_before_its_request() -> None:
    async with world() as w:
        named(w)
        agent = await w.agent()
        await w.turn(agent)
        agent.select(model="other")
        broken = [True]

        @w.observe("agent/pre-step")
        async def fails(*args: Any) -> None:
            if broken.pop() if broken else False:
                raise RuntimeError("broken")

        assert (await w.turn(agent))["kind"] == "error"
        await w.turn(agent)
        assert [(said, config["model"]) for said, config in asked(w)] == [("p/m", "m"), ("p/other", "other")]


@pytest.mark.rule("AL-35", "AL-81")
@pytest.mark.parametrize("when", ["resumed", "running"])
async def test_choosing_no_effort_clears_an_inherited_one(when: str) -> None:
    async with world() as w:
        reasoner = Reasoner([])
        w.host.get(LlmService).register(w.host.root, reasoner, ["r"])
        agent = await w.agent(id="s", provider="r", reasoningEffort="high")
        await w.turn(agent)
        if when == "resumed":
            await w.agents.dispose(agent)
            agent = await w.agents.resume("s", {"provider": "r", "model": "m"})
        await w.turn(agent)
        agent.select()
        await w.turn(agent)
        agent.select(effort="low")
        await w.turn(agent)
        efforts = [r.config.get("reasoningEffort") for r in reasoner.requests]
        assert efforts == ["high", "high", None, "low"]
        assert agent.options == {"provider": "r", "model": "m", "reasoningEffort": "low"}


@pytest.mark.rule("AL-35", "AL-81")
async def test_no_effort_chosen_before_the_first_request_is_not_inherited_either() -> None:
    async with world() as w:
        reasoner = Reasoner([])
        w.host.get(LlmService).register(w.host.root, reasoner, ["r"])
        agent = await w.agent(id="s", provider="r", reasoningEffort="high")
        await w.turn(agent)
        await w.agents.dispose(agent)
        agent = await w.agents.resume("s", {"provider": "r", "model": "m"})
        agent.select()
        await w.turn(agent)
        assert "reasoningEffort" not in reasoner.requests[-1].config


@pytest.mark.rule("AL-81")
async def test_a_disposed_agent_has_no_model_to_choose() -> None:
    async with world() as w:
        agent = await w.agent()
        await w.agents.dispose(agent)
        with pytest.raises(AgentDisposed):
            agent.select(model="x")


# ----------------------------------------------------------------------------------------- the last message turn


def last_message_turn(w: World, agent: Agent) -> tuple[int, str] | None:
    found = query.row(w.db, "message_turn", session=agent.id, below=agent.session.length)
    if found is not None and found[2] is None:
        found = query.row(w.db, "message_turn", session=agent.id, below=found[1])
    if found is None:
        return None
    turn, start, end, _, _, reason, _ = found
    starts = {e["data"]["turn"]: e["seq"] for e in w.log(agent, "turn/start")}
    ends = {e["data"]["turn"]: e["seq"] for e in w.log(agent, "turn/end")}
    assert (start, end) == (starts[turn], ends[turn])
    return turn, json.loads(reason)["kind"]


@pytest.mark.rule("SE-48")
async def test_the_last_message_turn_is_the_last_that_ended_and_began_with_a_message() -> None:
    gate = Gate()
    async with world(say("x"), say("y", kind="max-tokens"), gate.reply([], say("z"))) as w:
        agent = await w.agent(id="s")
        assert last_message_turn(w, agent) is None
        agent.inject(blocks("only a fact"))
        assert last_message_turn(w, agent) is None
        await w.turn(agent, "one")
        assert last_message_turn(w, agent) == (2, "completed")
        await w.turn(agent, "two")
        agent.inject(blocks("a fact"))
        agent.session.append("turn/start", {"turn": 5, "trigger": {"kind": "plugin"}})
        agent.session.append("turn/end", {"turn": 5, "reason": {"kind": "completed"}})
        assert last_message_turn(w, agent) == (3, "max-tokens")
        child = w.sessions.fork(agent.session, child="child")
        both = [query.row(w.db, "message_turn", session=name, below=child.length) for name in ("child", "s")]
        assert both[0] == both[1]
        w.sessions.dispose(child)
        agent.followup(blocks("three"))
        await gate.entered.wait()
        assert last_message_turn(w, agent) == (3, "max-tokens")  # the open one has no end yet
        gate.open.set()
        await agent.when_idle()
        assert last_message_turn(w, agent) == (6, "completed")
