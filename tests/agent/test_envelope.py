"""Contexts around a prompt: baked in front of it, or as messages of their own (AL-10 to AL-12)."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.agent.agent import Agent
from tests.agent.kit import ask, blocks, world

PLUGIN = {"kind": "plugin", "plugin": "p1"}


def context(text: str, *, prefix: bool = False, **more: Any) -> Any:
    placement = {"placement": "prompt-prefix"} if prefix else {}
    return {"content": blocks(text), "source": PLUGIN, **placement, **more}


@pytest.mark.rule("AL-10", "AL-11")
async def test_prefix_contexts_are_baked_in_and_others_follow() -> None:
    async with world() as w:
        agent = await w.agent()
        contexts = [context("after 1"), context("one", prefix=True, meta={"a": 1}), context("two", prefix=True),
                    context("after 2", meta=[2])]  # fmt: skip
        await w.turn(agent, "the task", contexts=contexts, meta="mine")
        prompt, first, second = w.log(agent, "user/message")
        texts = [b["text"] for b in prompt["data"]["content"]]
        assert texts == ["one", "two", "\n\n## My request:\n", "the task"]
        assert prompt["data"]["envelope"] == {
            "displayContent": blocks("the task"),
            "prefixContexts": [{"source": PLUGIN, "meta": {"a": 1}}, {"source": PLUGIN}],
        }
        assert prompt["data"]["meta"] == "mine"
        assert first["data"] == {"content": blocks("after 1"), "source": PLUGIN}
        assert second["data"] == {"content": blocks("after 2"), "source": PLUGIN, "meta": [2]}
        assert w.sent() == ["onetwo\n\n## My request:\nthe task", "after 1", "after 2"]


@pytest.mark.rule("AL-10")
async def test_without_prefix_contexts_there_is_no_envelope() -> None:
    async with world() as w:
        agent = await w.agent()
        await w.turn(agent, "task", contexts=[context("after")])
        assert all("envelope" not in e["data"] for e in w.log(agent, "user/message"))


@pytest.mark.rule("AL-10", "AL-22")
async def test_the_envelope_shows_the_rewritten_prompt() -> None:
    async with world() as w:

        @w.observe("agent/prompt-submit")
        async def rewrite(agent: Agent, content: Any, source: Any, signal: Any, next_: Any) -> Any:
            decision = await next_()
            return {**decision, "content": blocks("rewritten")}

        agent = await w.agent()
        await w.turn(agent, "as typed", contexts=[context("one", prefix=True)])
        data = w.last(agent, "user/message")["data"]
        assert data["envelope"]["displayContent"] == blocks("rewritten")
        assert data["content"][-1]["text"] == "rewritten"


@pytest.mark.rule("AL-12", "AL-23")
async def test_steering_is_enveloped_without_being_submitted() -> None:
    async with world(ask(("t", {}))) as w:
        w.tool("t")
        submitted: list[str] = []

        @w.observe("agent/prompt-submit")
        async def see(agent: Agent, content: Any, source: Any, signal: Any, next_: Any) -> Any:
            submitted.append(content[0]["text"])
            return await next_()

        @w.observe("agent/post-step")
        async def steer(agent: Agent, turn: int, step: int, signal: Any) -> None:
            if step == 1:
                agent.steer(blocks("left"), contexts=[context("front", prefix=True), context("behind")])

        agent = await w.agent()
        await w.turn(agent)
        assert submitted == ["hi"]
        steering = w.last(agent, "steering/message")
        assert [b["text"] for b in steering["data"]["content"]] == ["front", "\n\n## My request:\n", "left"]
        assert steering["data"]["envelope"]["displayContent"] == blocks("left")
        behind = w.last(agent, "user/message")
        assert behind["seq"] == steering["seq"] + 1
        assert behind["data"] == {"content": blocks("behind"), "source": PLUGIN}


@pytest.mark.rule("AL-12")
async def test_contexts_of_tools_and_injections_are_always_separate() -> None:
    async with world(ask(("t", {}))) as w:

        async def body(args: Any, execution: Any) -> Any:
            execution.defer_context(context("from a tool", prefix=True))
            return 1

        w.tool("t", body)
        agent = await w.agent()
        await w.turn(agent)
        assert w.last(agent, "user/message")["data"] == {"content": blocks("from a tool"), "source": PLUGIN}
