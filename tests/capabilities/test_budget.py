"""Budgets: what a run may spend, counted where every request passes, and what it says when it may not go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from dsh.agent.agent import Agent
from dsh.capabilities.limits.budget import Budget, BudgetError, in_words
from dsh.core.errors import ConfigError, DshError, exit_code
from dsh.core.lossless import freeze
from dsh.core.messages import Request
from dsh.llm.failure import LlmError
from dsh.llm.service import LlmService
from dsh.session.meter import Meter, MeterError
from tests.agent.kit import World, ask, blocks, boom, failed, opened, say, world

PLUGIN = ["dsh.capabilities.limits"]
RETRY = [*PLUGIN, "dsh.capabilities.retry"]
PRICE: dict[str, Any] = {"prices__p/m__input": 10, "prices__p/m__output": 100, "prices__p/m__cache_read": 1}


def used(input: int, output: int, **more: int) -> dict[str, int]:
    return {"inputTokens": input, "outputTokens": output, **more}


def limits(agent: Agent) -> list[dict[str, Any]]:
    return [e["data"] for e in agent.session.events() if e["type"] == "turn/limit"]


def budget(w: World) -> Budget:
    return w.host.get(Budget)


def calling(usage: dict[str, int]) -> list[Any]:
    *chunks, finish = ask(("t", {}))
    return [*chunks, {"type": "usage", "usage": usage}, finish]


@pytest.mark.rule("HD-16")
async def test_a_spent_budget_starts_no_request() -> None:
    async with world(calling(used(900, 100)), plugins=PLUGIN, limits__max_tokens_total=1000) as w:
        w.tool("t")
        agent = await w.agent()
        reason = await w.turn(agent)
        assert (reason["kind"], reason["code"]) == ("error", "BUDGET_LIMIT")
        assert len(w.requests) == 1
        event = limits(agent)[0]
        assert (event["turn"], event["step"], event["kind"]) == (1, 2, "tokens")
        assert (event["limit"], event["spent"]) == (1000, 1000)
        assert w.flow(agent).count("tool/result") == 1  # what was done is in the log
        assert w.flow(agent)[-2:] == ["turn/limit", "turn/end"]  # and no step was opened
        assert reason["message"] == "stopped by the budget: 1,000 tokens spent of 1,000"


@pytest.mark.rule("HD-16")
async def test_a_request_whose_input_would_not_fit_is_not_sent() -> None:
    async with world(ask(("t", {})), plugins=PLUGIN, limits__max_tokens_total=1500) as w:
        w.tool("t", body=_long)
        agent = await w.agent()
        await w.turn(agent)
        assert len(w.requests) == 1
        event = limits(agent)[0]
        assert event["next"] == Meter(w.db).total(agent.id)
        assert event["spent"] < 1500 < event["spent"] + event["next"]
        assert budget(w).tokens == event["spent"]


async def _long(args: Any, execution: Any) -> str:
    return "word " * 1200


async def test_the_first_request_is_measured_with_its_system_prompt() -> None:
    async with world(plugins=PLUGIN, limits__max_tokens_total=500) as w:
        w.prompt.section(w.host.root, "long", 5, "word " * 600)
        agent = await w.agent()
        assert (await w.turn(agent))["code"] == "BUDGET_LIMIT"
        assert w.requests == []
        assert limits(agent)[0]["spent"] == 0 < 600 < limits(agent)[0]["next"]
        assert w.flow(agent)[-3:] == ["turn/limit", "step/end", "turn/end"]


@pytest.mark.rule("HD-16")
async def test_failed_tries_count_and_no_further_one_is_made() -> None:
    reported: Any = [*opened("half"), {"type": "usage", "usage": used(400, 10)}, *failed()]
    async with world(
        reported, reported, say("never"), plugins=RETRY, limits__max_tokens_total=800, retry__initial_delay_ms=1
    ) as w:
        agent = await w.agent()
        assert (await w.turn(agent))["code"] == "BUDGET_LIMIT"
        assert (len(w.requests), budget(w).tokens) == (2, 820)


async def test_a_failure_without_a_report_costs_nothing() -> None:
    async with world(boom(), failed(), say("ok", usage=used(5, 5)), plugins=RETRY, limits__max_tokens_total=10_000,
                     retry__initial_delay_ms=1) as w:  # fmt: skip
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert budget(w).tokens == 10


async def test_of_two_reports_the_last_counts_and_cached_tokens_do() -> None:
    twice: list[Any] = [
        *opened("x"),
        {"type": "usage", "usage": used(1, 1)},
        {"type": "usage", "usage": used(10, 4, cacheReadTokens=20, cacheWriteTokens=3, reasoningTokens=4)},
        {"type": "finish", "reason": {"kind": "stop"}},
    ]
    async with world(twice, plugins=PLUGIN, limits__max_tokens_total=10_000) as w:
        await w.turn(await w.agent())
        assert budget(w).tokens == 37


@pytest.mark.rule("HD-16")
@pytest.mark.parametrize("report", [None, used(0, 0)])
async def test_a_provider_that_reports_nothing_is_counted_by_estimate(report: Any) -> None:
    async with world(say("word " * 400, usage=report), plugins=PLUGIN, limits__max_tokens_total=10_000) as w:
        agent = await w.agent()
        before = budget(w).tokens
        await w.turn(agent)
        assert before == 0
        assert 500 < budget(w).tokens < 700


async def test_a_cost_is_counted_by_price() -> None:
    async with world(say("a", usage=used(1000, 100, cacheReadTokens=5000)), plugins=PLUGIN, **PRICE,
                     limits__max_cost=1.0) as w:  # fmt: skip
        await w.turn(await w.agent())
        assert budget(w).cost == pytest.approx(0.01 + 0.01 + 0.005)


@pytest.mark.rule("HD-16")
async def test_a_cost_limit_expects_as_much_cached_as_last_time() -> None:
    """10,000 tokens in all: read anew they cost 0.10, from the cache 0.01."""
    first = say("a", usage=used(10, 10, cacheReadTokens=10_000))
    async with world(first, say("b", usage=used(10, 10)), plugins=PLUGIN, **PRICE, limits__max_cost=0.11) as w:
        agent = await w.agent()
        await w.turn(agent, "x" * 40_000)
        assert await w.turn(agent) == {"kind": "completed"}
        reason = await w.turn(agent)  # the cache held nothing, so it may be so again
        event = limits(agent)[0]
        assert reason["code"] == "BUDGET_LIMIT"
        assert (event["kind"], event["limit"]) == ("cost", 0.11)
        assert event["spent"] == pytest.approx(0.0111 + 0.0011)
        assert reason["message"].startswith("stopped by the budget: $0.0122 spent of $0.11; the next request's input")


@pytest.mark.rule("HD-16")
async def test_a_model_without_a_price_is_not_asked_under_a_cost_limit() -> None:
    async with world(plugins=PLUGIN, **PRICE, limits__max_cost=1.0) as w:
        assert budget(w).require_price("p", "m") is not None
        with pytest.raises(ConfigError) as caught:
            budget(w).require_price("p", "other")
        assert (caught.value.code, exit_code(caught.value.code)) == ("PRICE_UNKNOWN", 3)
        assert "dsh config set 'prices.p/other.input'" in (caught.value.hint or "")
        agent = await w.agent(model="other")
        assert (await w.turn(agent))["code"] == "PRICE_UNKNOWN"
        assert w.requests == []


@pytest.mark.rule("HD-16")
async def test_everybody_in_the_process_spends_from_it() -> None:
    """A session that was delegated to, and a helper that asks without a session."""
    async with world(say("a", usage=used(300, 10)), say("b", usage=used(300, 10)), say("c", usage=used(300, 10)),
                     plugins=PLUGIN, limits__max_tokens_total=1000) as w:  # fmt: skip
        parent = await w.agent()
        child = await w.agent(meta={"parentSession": parent.id, "delegationDepth": 1})
        await w.turn(parent)
        await w.turn(child)
        request = Request(config=freeze({"provider": "p", "model": "m"}), messages=freeze([_user("x")]))
        await _drain(w, request)
        assert budget(w).tokens == 930
        with pytest.raises(BudgetError):
            await _drain(w, Request(config=request.config, messages=freeze([_user("x" * 4000)])))
        assert (await w.turn(child, "x" * 400))["code"] == "BUDGET_LIMIT"
        assert (await w.turn(parent, "x" * 400))["code"] == "BUDGET_LIMIT"
        assert len(w.requests) == 3


def _user(words: str) -> Any:
    return {"role": "user", "content": blocks(words)}


async def _drain(w: World, request: Request) -> None:
    async with aclosing(w.host.get(LlmService).stream(request)) as chunks:
        async for _ in chunks:
            pass


@pytest.mark.rule("HD-16")
async def test_a_resumed_session_begins_with_nothing_spent() -> None:
    async with world(say("a", usage=used(800, 10)), plugins=PLUGIN, limits__max_tokens_total=1000) as w:
        agent = await w.agent(id="s")
        await w.turn(agent)
    async with world(say("b", usage=used(800, 10)), plugins=PLUGIN, limits__max_tokens_total=1000) as w:
        agent = await w.agents.resume("s", {"provider": "p", "model": "m"})
        assert await w.turn(agent) == {"kind": "completed"}
        assert budget(w).tokens == 810


async def test_a_log_that_cannot_be_measured_is_estimated_by_the_request() -> None:
    async with world(say("a", usage=used(5, 5)), plugins=PLUGIN, limits__max_tokens_total=10_000) as w:
        agent = await w.agent()
        await w.turn(agent)
        log = agent.session
        log.append("turn/start", {"turn": 2, "trigger": {"kind": "injection", "source": {"kind": "plugin"}}})
        log.append("step/start", {"turn": 2, "step": 1})
        data = {"turn": 2, "step": 1, "content": [], "provenance": {"provider": "p", "model": "m"}, "usage": used(1, 1)}
        log.append("assistant/message", data, surface="append", sources=[1])
        log.append("step/end", {"turn": 2, "step": 1})
        log.append("turn/end", {"turn": 2, "reason": {"kind": "completed"}})
        with pytest.raises(MeterError):
            Meter(w.db).total(agent.id)
        assert await w.turn(agent) == {"kind": "completed"}
        assert (await w.turn(agent, "x" * 50_000))["code"] == "BUDGET_LIMIT"


async def test_without_a_limit_there_is_no_budget() -> None:
    async with world(plugins=PLUGIN) as w:
        assert w.host.find(Budget) is None
        assert w.host.find(Meter) is None


async def test_it_stands_beside_other_listeners_of_the_stream() -> None:
    """One that awaits before it goes on, and a cancelled stream: the count holds what was reported."""
    seen: list[str] = []
    async with world(say("a", usage=used(3, 4)), plugins=PLUGIN, limits__max_tokens_total=1000) as w:

        async def late(request: Request, next_: Any) -> AsyncGenerator[Any, None]:
            seen.append(request.model)
            chunks: AsyncGenerator[Any, None] = next_()
            return chunks

        w.on("llm/stream", late)
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert (seen, budget(w).tokens) == (["m"], 7)


def test_what_it_says() -> None:
    facts = {"kind": "cost", "limit": 0.5, "spent": 0.5, "next": 0.1}
    assert in_words(facts) == "stopped by the budget: $0.50 spent of $0.50"
    assert issubclass(BudgetError, DshError)
    assert not issubclass(BudgetError, LlmError)  # no provider failure that recovery may act on
    assert exit_code("BUDGET_LIMIT") == 6
