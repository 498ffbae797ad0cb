"""Failures of the model request, and what may make it again (AL-41, AL-48 to AL-50, LS-81 to LS-88)."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.agent.agent import Agent
from dsh.core.messages import Request
from tests.agent.kit import Gate, ask, blocks, boom, failed, opened, say, world

RETRY = "dsh.capabilities.retry"


def always_retry(w: Any, seen: list[Any], limit: int = 9) -> None:
    @w.observe("agent/request-error")
    async def recover(
        agent: Agent, turn: int, step: int, error: Any, failure: Any, prior: Any, signal: Any, next_: Any
    ) -> Any:
        seen.append((turn, step, str(error), failure["code"], [p["code"] for p in prior]))
        return {"action": "retry"} if len(seen) < limit else await next_()


@pytest.mark.rule("AL-48", "AL-49", "LS-81", "LS-83")
async def test_a_retry_is_a_new_step_and_success_clears_the_history() -> None:
    async def cut(request: Request) -> Any:
        for chunk in opened("half"):
            yield chunk
        raise boom("STREAM_CLOSED", "cut")

    async with world(cut, boom("SERVER", "down"), ask(("t", {})), failed(code="RATE_LIMIT"), say("end")) as w:
        w.tool("t")
        seen: list[Any] = []
        always_retry(w, seen)
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert seen == [
            (1, 1, "cut", "STREAM_CLOSED", []),
            (1, 2, "down", "SERVER", ["STREAM_CLOSED"]),
            (1, 4, "boom", "RATE_LIMIT", []),
        ]
        assert [e["data"]["step"] for e in w.log(agent, "step/start")] == [1, 2, 3, 4, 5]
        assert len(w.log(agent, "assistant/message")) == 2
        assert w.sent(0) == w.sent(1) == w.sent(2) == ["hi"]
        assert w.errors() == []


@pytest.mark.rule("AL-49")
async def test_a_retry_takes_the_whole_step_again() -> None:
    async with world(boom()) as w:
        always_retry(w, [])

        @w.observe("agent/pre-step")
        async def pre(agent: Agent, turn: int, step: int, signal: Any) -> None:
            if step == 2:
                agent.inject(blocks("seen on the second try"))

        agent = await w.agent()
        await w.turn(agent)
        assert w.sent() == ["hi", "seen on the second try"]


@pytest.mark.rule("AL-48")
async def test_the_step_is_closed_before_recovery_is_asked_and_its_history_is_immutable() -> None:
    async with world(boom(), boom()) as w:
        flows: list[str] = []

        @w.observe("agent/request-error")
        async def recover(*args: Any) -> Any:
            flows.append(w.flow(args[0])[-1])
            with pytest.raises(TypeError):
                args[5].append({})
            return {"action": "retry"}

        agent = await w.agent()
        await w.turn(agent)
        assert flows == ["step/end", "step/end"]


@pytest.mark.rule("AL-49", "AL-50", "LS-88")
async def test_an_unrecovered_failure_ends_the_turn_with_its_facts() -> None:
    async def fails(request: Request) -> Any:
        try:
            raise OSError("socket gone")
        except OSError as cause:
            raise boom("TRANSPORT", "no connection") from cause
        yield {}

    async with world(fails) as w:
        agent = await w.agent()
        reason = await w.turn(agent)
        failure = {"message": "no connection: socket gone", "code": "TRANSPORT"}
        assert reason == {"kind": "error", "step": 1, "failure": failure}
        [(turn, step, error)] = w.errors()
        assert (turn, step, str(error)) == (1, 1, "no connection")


@pytest.mark.rule("AL-41", "LS-41")
async def test_a_foreign_error_of_an_adapter_is_a_model_failure() -> None:
    async with world(ValueError("adapter bug")) as w:
        seen: list[Any] = []
        always_retry(w, seen, limit=1)
        agent = await w.agent()
        assert (await w.turn(agent))["failure"] == {"message": "adapter bug", "code": "UNKNOWN"}
        assert seen == [(1, 1, "adapter bug", "UNKNOWN", [])]


@pytest.mark.rule("AL-48")
@pytest.mark.parametrize("answer", [RuntimeError("recovery broke"), None, {}])
async def test_a_failing_recovery_counts_as_fail(answer: Any) -> None:
    async with world(boom("SERVER", "down")) as w:

        @w.observe("agent/request-error")
        async def recover(*args: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        agent = await w.agent()
        assert (await w.turn(agent))["failure"]["message"] == "down"
        assert w.host.reports[0][0] == "agent/request-error"
        assert [str(e) for _, _, e in w.errors()] == ["down"]


@pytest.mark.rule("AL-48", "AL-61")
@pytest.mark.parametrize("answer", ["retry", "fail"])
async def test_a_cancel_during_recovery_wins(answer: str) -> None:
    async with world(boom()) as w:

        @w.observe("agent/request-error")
        async def recover(agent: Agent, *args: Any) -> Any:
            agent.cancel()
            return {"action": answer}

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "aborted"}
        assert len(w.requests) == 1
        assert w.errors() == []


@pytest.mark.rule("AL-48", "LS-78")
async def test_a_failure_after_a_cancel_is_an_abort() -> None:
    gate = Gate()

    async def fails(request: Request) -> Any:
        try:
            await gate.stop()
        finally:
            raise boom("TRANSPORT", "closed on us")
        yield {}

    async with world(fails) as w:
        seen: list[Any] = []
        always_retry(w, seen)
        agent = await w.agent()
        agent.followup(blocks("hi"))
        await gate.entered.wait()
        agent.cancel()
        await agent.when_idle()
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "aborted"}
        assert (seen, w.errors()) == ([], [])


@pytest.mark.rule("SE-35", "HD-7")
async def test_the_tokens_of_a_failed_try_count() -> None:
    async def cut(request: Request) -> Any:
        yield {"type": "usage", "usage": {"inputTokens": 7, "outputTokens": 1}}
        raise boom("STREAM_CLOSED", "cut")

    async with world(cut, say("end", usage={"inputTokens": 3, "outputTokens": 2})) as w:
        always_retry(w, [])
        agent = await w.agent()
        await w.turn(agent)
        assert w.db.rows("SELECT step, input_tokens, output_tokens FROM usage") == [(1, 7, 1), (2, 3, 2)]


@pytest.mark.rule("LS-84", "LS-86")
async def test_the_retry_policy_in_the_loop() -> None:
    settings: Any = {"retry__initial_delay_ms": 1, "retry__max_delay_ms": 2}
    async with world(boom(), boom(), boom(), boom("AUTH"), plugins=[RETRY], **settings) as w:
        agent = await w.agent()
        assert (await w.turn(agent))["failure"]["code"] == "SERVER"
        retries = w.log(agent, "llm/retry")
        assert [(e["data"]["step"], e["data"]["retry"]) for e in retries] == [(1, 1), (2, 2)]
        assert w.flow(agent)[4:7] == ["step/end", "llm/retry", "step/start"]
        assert (await w.turn(agent))["failure"]["code"] == "AUTH"
        assert len(w.requests) == 4
        assert await w.turn(agent) == {"kind": "completed"}


@pytest.mark.rule("LS-86", "AL-71")
async def test_a_cancel_ends_the_wait_before_a_retry() -> None:
    async with world(boom(), plugins=[RETRY], retry__initial_delay_ms=60_000, retry__max_delay_ms=60_000) as w:
        agent = await w.agent()

        @w.observe("session/event")
        def cancel(session: Any, event: Any) -> None:
            if event["type"] == "llm/retry":
                agent.ctx.host.get(type(w.agents))._nursery.start_soon(soon, agent)

        async def soon(a: Agent) -> None:
            a.cancel()

        assert await w.turn(agent) == {"kind": "aborted"}
        assert w.errors() == []
