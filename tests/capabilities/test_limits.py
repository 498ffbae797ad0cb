"""The step limit: what a turn may not go past, and what it says when it would."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.agent.agent import Agent
from dsh.kernel.signal import Signal
from tests.agent.kit import ask, blocks, say, world

PLUGIN = ["dsh.capabilities.limits"]


def limit_events(agent: Agent) -> list[Any]:
    return [e["data"] for e in agent.session.events() if e["type"] == "turn/limit"]


async def test_a_turn_that_wants_more_is_stopped_with_its_results() -> None:
    async with world(
        ask(("t", {})), ask(("t", {})), ask(("t", {})), say("never"), plugins=PLUGIN, loop__max_steps=2
    ) as w:
        w.tool("t")
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert limit_events(agent) == [{"turn": 1, "step": 2, "kind": "steps", "limit": 2}]
        assert len(w.script.requests) == 2
        assert w.flow(agent).count("tool/result") == 2


async def test_a_turn_that_is_done_at_its_limit_says_nothing() -> None:
    async with world(ask(("t", {})), say("done"), plugins=PLUGIN, loop__max_steps=2) as w:
        w.tool("t")
        agent = await w.agent()
        await w.turn(agent)
        assert limit_events(agent) == []


@pytest.mark.rule("AL-52")
async def test_steering_does_not_get_round_it() -> None:
    async with world(*[say(f"{n}") for n in range(6)], plugins=PLUGIN, loop__max_steps=2) as w:
        agent = await w.agent()

        async def steer(agent: Agent, turn: int, step: int, signal: Signal) -> None:
            agent.steer(blocks("more"))

        w.on("agent/post-step", steer)
        await w.turn(agent)
        assert len(w.script.requests) == 2
        assert limit_events(agent) == [{"turn": 1, "step": 2, "kind": "steps", "limit": 2}]
