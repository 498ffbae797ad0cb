"""One step: what goes into the request, and what of the answer is logged (AL-30 to AL-47)."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.agent.agent import Agent
from dsh.core.errors import StoreError
from dsh.core.lossless import FrozenDict, FrozenList
from dsh.core.messages import Request
from dsh.llm.adapter import BaseAdapter
from dsh.llm.service import LlmService
from tests.agent.kit import Gate, Script, ask, blocks, closed, failed, opened, say, world

SYSTEM = [{"type": "text", "text": "from a prefix"}]


@pytest.mark.rule("AL-30")
async def test_steering_is_drained_before_each_request() -> None:
    async with world(ask(("t", {})), ask(("t", {})), say("end")) as w:
        w.tool("t")

        @w.observe("agent/turn-continuation")
        async def steer(agent: Agent, *args: Any) -> Any:
            if agent.session.steps == 1:
                agent.steer(blocks("now"), meta="m")
            return await args[-1]()

        agent = await w.agent()
        await w.turn(agent)
        assert w.sent(1)[-1] == "now"
        steering = w.last(agent, "steering/message")
        assert (steering["data"]["turn"], steering["data"]["meta"]) == (1, "m")
        starts = [e["seq"] for e in w.log(agent, "step/start")]
        assert starts[0] < steering["seq"] < starts[1]


@pytest.mark.rule("AL-31")
async def test_an_unknown_variable_fails_the_turn_before_any_request() -> None:
    async with world() as w:
        w.prompt.section(w.host.root, "s", 5, "about {{nothing}}")
        agent = await w.agent()
        reason = await w.turn(agent)
        assert (reason["kind"], reason["code"]) == ("error", "PROMPT_TEMPLATE")
        assert w.requests == []
        assert w.log(agent, "step/start") == []


@pytest.mark.rule("AL-31", "AL-38")
async def test_the_prompt_is_assembled_once_a_step() -> None:
    async with world(ask(("t", {})), say("end")) as w:
        w.tool("t")
        calls: list[int] = []

        def section(_: Any) -> str:
            calls.append(1)
            return "static"

        w.prompt.section(w.host.root, "s", 5, section)
        agent = await w.agent()
        await w.turn(agent)
        assert len(calls) == len(w.requests) == 2
        assert len(w.log(agent, "request/header")) == 1


@pytest.mark.rule("AL-32", "AL-38")
async def test_the_prefix_is_composed_once_and_stands_before_history() -> None:
    async with world() as w:
        composed: list[Any] = []

        @w.observe("agent/session-prefix")
        async def compose(agent: Agent, prefix: Any, signal: Any, next_: Any) -> Any:
            composed.append(await next_())
            return [{"role": "user", "content": SYSTEM}]

        agent = await w.agent(id="s")
        await w.turn(agent)
        await w.turn(agent)
        assert composed == [[]]
        assert [w.sent(i)[0] for i in (0, 1)] == ["from a prefix"] * 2
        header = w.last(agent, "request/header")["data"]["header"]
        assert header["messagePrefix"] == [{"role": "user", "content": SYSTEM}]
        await w.agents.dispose(agent)
        again = await w.agents.resume("s", {"provider": "p", "model": "m"})  # a new instance composes anew
        await w.turn(again)
        assert len(composed) == 2


@pytest.mark.rule("AL-32")
async def test_an_interrupted_composition_is_thrown_away() -> None:
    async with world() as w:
        tries: list[int] = []

        @w.observe("agent/session-prefix")
        async def compose(agent: Agent, prefix: Any, signal: Any, next_: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                agent.cancel()
            return [{"role": "user", "content": blocks(f"try {len(tries)}")}]

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "aborted"}
        await w.turn(agent)
        assert w.sent()[0] == "try 2"


@pytest.mark.rule("AL-33", "AL-82")
async def test_what_pre_step_appends_is_in_this_request() -> None:
    async with world() as w:

        @w.observe("agent/pre-step")
        async def first(agent: Agent, turn: int, step: int, signal: Any) -> None:
            agent.inject(blocks("first"))

        @w.observe("agent/pre-step")
        async def second(agent: Agent, turn: int, step: int, signal: Any) -> None:
            agent.inject(blocks("second"))

        agent = await w.agent()
        await w.turn(agent)
        assert w.sent() == ["hi", "first", "second"]
        assert w.flow(agent)[:5] == ["turn/start", *["user/message"] * 3, "step/start"]


@pytest.mark.rule("AL-34")
async def test_what_is_appended_later_joins_the_next_request_only() -> None:
    async with world() as w:

        @w.observe("agent/request")
        async def late(agent: Agent, turn: int, step: int, config: Any, signal: Any, next_: Any) -> Any:
            if turn == 1:
                agent.inject(blocks("too late"))
            return await next_()

        agent = await w.agent()
        await w.turn(agent)
        assert w.sent() == ["hi"]
        await w.turn(agent, "again")
        assert w.sent() == ["hi", "too late", "ok", "again"]


@pytest.mark.rule("AL-35")
async def test_the_seed_comes_from_the_options_then_from_the_header() -> None:
    async with world() as w:
        seeds: list[Any] = []

        @w.observe("agent/request")
        async def swap(agent: Agent, turn: int, step: int, config: Any, signal: Any, next_: Any) -> Any:
            seeds.append(config)
            assert isinstance(config, FrozenDict)
            return {**config, "temperature": 0.5} if turn == 1 else await next_()

        agent = await w.agent(temperature=0.1)
        await w.turn(agent)
        await w.turn(agent)
        first = {"provider": "p", "model": "m", "temperature": 0.1}
        assert seeds == [first, {**first, "temperature": 0.5}]
        assert [dict(r.config) for r in w.requests] == [{**first, "temperature": 0.5}] * 2


class Reasoner(Script):
    async def resolve_model(self, provider: str, model: str) -> Any:
        efforts = [{"id": "low", "name": "Low"}, {"id": "high", "name": "High"}]
        return {**await BaseAdapter.resolve_model(self, provider, model), "reasoning": {"efforts": efforts}}


@pytest.mark.rule("AL-35")
async def test_a_resumed_session_keeps_its_effort_with_the_same_model_only() -> None:
    async with world() as w:
        reasoner = Reasoner([])
        w.host.get(LlmService).register(w.host.root, reasoner, ["r"])
        agent = await w.agent(id="s", provider="r", reasoningEffort="high")
        await w.turn(agent)
        for model, effort in (("m", "high"), ("other", None), ("m", None)):
            await w.agents.dispose(agent)
            agent = await w.agents.resume("s", {"provider": "r", "model": model})
            await w.turn(agent)
            assert reasoner.requests[-1].config.get("reasoningEffort") == effort


@pytest.mark.rule("AL-36")
async def test_no_model_fails_the_turn_without_recovery() -> None:
    async with world() as w:
        offered: list[Any] = []

        @w.observe("agent/request-error")
        async def recover(*args: Any) -> Any:
            offered.append(args)
            return {"action": "retry"}

        agent = await w.agent(model=None)
        reason = await w.turn(agent)
        assert reason["code"] == "NO_MODEL"
        assert agent.id in reason["message"]
        assert offered == []


@pytest.mark.rule("AL-36")
async def test_an_unsupported_effort_fails_the_turn_before_the_request() -> None:
    async with world() as w:
        reasoner = Reasoner([])
        w.host.get(LlmService).register(w.host.root, reasoner, ["r"])
        agent = await w.agent(provider="r", reasoningEffort="huge")
        assert (await w.turn(agent))["code"] == "UNSUPPORTED_REASONING_EFFORT"
        assert reasoner.requests == []
        assert w.log(agent, "request/header") == []


@pytest.mark.rule("AL-36", "AL-41")
async def test_a_route_without_adapter_may_be_served_by_a_listener_and_fails_at_dispatch_if_not() -> None:
    async with world() as w:
        served: list[str] = []

        @w.observe("llm/stream")
        def serve(request: Request, next_: Any) -> Any:
            if request.model != "mine":
                return next_()

            async def chunks() -> Any:
                served.append(request.provider)
                for chunk in say("from a listener"):
                    yield chunk

            return chunks()

        agent = await w.agent(provider="nowhere", model="mine")
        assert await w.turn(agent) == {"kind": "completed"}
        assert served == ["nowhere"]
        other = await w.agent(provider="nowhere", model="other")
        reason = await w.turn(other)
        assert reason["failure"]["code"] == "NO_ADAPTER"


@pytest.mark.rule("AL-36")
async def test_preparation_and_dispatch_use_one_registration() -> None:
    async with world() as w:
        llm = w.host.get(LlmService)
        ours, theirs = Script([say("ours")]), Script([say("theirs")])
        scope = w.host.root.scope()
        llm.register(scope, ours, ["r"])

        @w.observe("session/event")
        def swap(session: Any, event: Any) -> None:
            if event["type"] == "request/header" and llm._routes["r"] is ours:
                llm._routes["r"] = theirs

        agent = await w.agent(provider="r")
        await w.turn(agent)
        assert w.texts(agent, "assistant/message") == ["ours"]


@pytest.mark.rule("AL-37", "SE-30", "SE-32")
async def test_a_header_is_logged_when_owed() -> None:
    async with world() as w:
        agent = await w.agent(id="s")
        await w.turn(agent)
        await w.turn(agent)
        w.tool("fresh")
        await w.turn(agent)
        await w.agents.dispose(agent)
        again = await w.agents.resume("s", {"provider": "p", "model": "m"})
        await w.turn(again)
        assert [e["data"]["reason"] for e in w.log(again, "request/header")] == ["initial", "change", "resume"]
        first, changed, resumed = (e["data"]["header"] for e in w.log(again, "request/header"))
        assert "tools" not in first
        assert "messagePrefix" not in first
        assert [t["name"] for t in changed["tools"]] == ["fresh"]
        assert resumed == changed


@pytest.mark.rule("AL-38")
async def test_a_request_is_the_header_and_the_boundary_and_cannot_be_changed() -> None:
    async with world() as w:
        w.tool("t")
        agent = await w.agent()
        await w.turn(agent)
        request = w.requests[0]
        header = w.last(agent, "request/header")["data"]["header"]
        assert (request.config, request.system, list(request.tools)) == (
            header["config"], header["system"], header["tools"],
        )  # fmt: skip
        assert request.session_id == agent.id
        assert isinstance(request.messages, tuple)
        assert isinstance(request.messages[0]["content"], FrozenList)
        with pytest.raises(TypeError):
            request.messages[0]["role"] = "system"
        with pytest.raises(AttributeError):
            request.system = "other"  # type: ignore[misc]


@pytest.mark.rule("PE-22")
async def test_the_adapter_is_not_called_when_the_log_cannot_be_made_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await w.agent()
        flush = agent.session.flush

        async def failing() -> None:
            if agent.session.open_step is not None:
                raise StoreError("no disk", code="DB_IO")
            await flush()

        monkeypatch.setattr(agent.session, "flush", failing)
        assert (await w.turn(agent))["code"] == "DB_IO"
        assert w.requests == []


@pytest.mark.rule("PE-22")
async def test_the_log_is_on_disk_before_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    async def serve(request: Request) -> Any:
        synced.append(-1)
        for chunk in say("ok"):
            yield chunk

    async with world(serve) as w:
        agent = await w.agent()
        sync = w.db.sync

        def noted() -> None:
            synced.append(agent.session.length)
            sync()

        monkeypatch.setattr(w.db, "sync", noted)
        await w.turn(agent)
        assert synced[:2] == [w.last(agent, "request/header")["seq"] + 1, -1]


@pytest.mark.rule("AL-39", "LS-80")
async def test_each_chunk_is_stored_as_it_arrives_and_named_as_a_source() -> None:
    gate = Gate()
    reply = gate.reply(opened("hel"), [*closed("hel"), {"type": "finish", "reason": {"kind": "stop"}}])
    async with world(reply) as w:
        agent = await w.agent()
        agent.followup(blocks("hi"))
        await gate.entered.wait()
        assert [e["data"]["chunk"] for e in w.log(agent, "assistant/chunk")] == opened("hel")
        gate.open.set()
        await agent.when_idle()
        chunks = w.log(agent, "assistant/chunk")
        assert len(chunks) == 4
        assert all((e["data"]["turn"], e["data"]["step"]) == (1, 1) for e in chunks)
        assert w.last(agent, "assistant/message")["sourceEventSeqs"] == [e["seq"] for e in chunks]


@pytest.mark.rule("AL-40", "LS-78")
async def test_a_cancelled_stream_keeps_its_chunks_and_has_no_message() -> None:
    gate = Gate()
    async with world(gate.reply(opened("half an ans"), [])) as w:
        agent = await w.agent()
        agent.followup(blocks("hi"))
        await gate.entered.wait()
        agent.cancel()
        await agent.when_idle()
        assert len(w.log(agent, "assistant/chunk")) == 2
        assert w.flow(agent)[-3:] == ["request/header", "step/end", "turn/end"]
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "aborted"}
        await w.turn(agent, "again")
        assert w.sent() == ["hi", "again"]


@pytest.mark.rule("AL-41", "LS-40")
@pytest.mark.parametrize("where", ["llm/stream", "agent/step-result", "agent/post-step"])
async def test_failures_of_listeners_are_never_offered_to_recovery(where: str) -> None:
    async with world() as w:
        offered: list[Any] = []

        @w.observe("agent/request-error")
        async def recover(*args: Any) -> Any:
            offered.append(args)
            return {"action": "retry"}

        if where == "llm/stream":

            @w.observe(where)
            def sync(request: Request, next_: Any) -> Any:
                raise RuntimeError("a listener's own")
        else:

            @w.observe(where)
            async def listener(*args: Any) -> Any:
                raise RuntimeError("a listener's own")

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "error", "step": 1, "message": "a listener's own"}
        assert offered == []


@pytest.mark.rule("AL-42")
async def test_an_unknown_finish_is_success() -> None:
    async with world(say("answer", kind="content-filter")) as w:
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert w.texts(agent, "assistant/message") == ["answer"]


@pytest.mark.rule("AL-43", "LS-30")
async def test_a_rewritten_message_is_what_everybody_sees() -> None:
    async with world(say("secret", replay={"r": 1}), say("kept", replay={"r": 2})) as w:

        @w.observe("agent/step-result")
        async def rewrite(agent: Agent, turn: int, step: int, message: Any, signal: Any, next_: Any) -> Any:
            assert message["role"] == "assistant"
            return {**message, "content": blocks("public")} if turn == 1 else await next_()

        agent = await w.agent()
        await w.turn(agent)
        await w.turn(agent)
        assert w.texts(agent, "assistant/message") == ["public", "kept"]
        assert w.sent() == ["hi", "public", "hi"]
        provenances = [e["data"]["provenance"] for e in w.log(agent, "assistant/message")]
        assert provenances == [
            {"provider": "p", "model": "m"},
            {"provider": "p", "model": "m", "replayState": {"r": 2}},
        ]


@pytest.mark.rule("AL-43")
async def test_a_rewrite_may_add_and_remove_tool_calls() -> None:
    async with world(ask(("dangerous", {}))) as w:
        ran: list[str] = []

        async def body(args: Any, execution: Any) -> Any:
            ran.append(execution.name)
            return 1

        w.tool("dangerous", body)
        w.tool("harmless", body)

        @w.observe("agent/step-result")
        async def swap(agent: Agent, turn: int, step: int, message: Any, signal: Any, next_: Any) -> Any:
            if step > 1:
                return await next_()
            return {**message, "content": [{**message["content"][0], "name": "harmless"}]}

        agent = await w.agent()
        await w.turn(agent)
        assert ran == ["harmless"]


@pytest.mark.rule("AL-44")
@pytest.mark.parametrize("how", ["fails", "is cancelled", "returns nonsense"])
async def test_a_failing_step_result_leaves_an_empty_message(how: str) -> None:
    usage = {"inputTokens": 3, "outputTokens": 4}
    async with world(say("lost", usage=usage, replay={"x": 1})) as w:

        @w.observe("agent/step-result")
        async def breaks(agent: Agent, turn: int, step: int, message: Any, signal: Any, next_: Any) -> Any:
            if turn > 1:
                return await next_()
            if how == "fails":
                raise RuntimeError("no")
            if how == "is cancelled":
                agent.cancel()
            return {"content": object()} if how == "returns nonsense" else message

        agent = await w.agent()
        reason = await w.turn(agent)
        assert reason["kind"] == ("aborted" if how == "is cancelled" else "error")
        data = w.last(agent, "assistant/message")["data"]
        assert (data["content"], data["usage"], data["provenance"]) == ([], usage, {"provider": "p", "model": "m"})
        assert len(w.last(agent, "assistant/message")["sourceEventSeqs"]) == 5
        await w.turn(agent, "again")
        assert w.sent() == ["hi", "again"]


@pytest.mark.rule("AL-45", "LS-80")
async def test_an_empty_answer_is_a_message_too() -> None:
    async def nothing(request: Request) -> Any:
        return
        yield

    async with world(nothing) as w:
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        event = w.last(agent, "assistant/message")
        assert event["sourceEventSeqs"] == []
        assert event["data"] == {
            "turn": 1, "step": 1, "content": [], "provenance": {"provider": "p", "model": "m"},
        }  # fmt: skip


@pytest.mark.rule("AL-46", "LS-82", "TL-66")
async def test_a_cut_answer_runs_no_tool() -> None:
    async with world(ask(("t", {}), text="some", kind="max-tokens")) as w:
        w.tool("t")
        seen: list[Any] = []

        @w.observe("agent/step-result")
        async def adds(agent: Agent, turn: int, step: int, message: Any, signal: Any, next_: Any) -> Any:
            seen.append([b["type"] for b in message["content"]])
            call = {"type": "tool-call", "id": "x", "name": "t", "arguments": "{}"}
            return {**message, "content": [*message["content"], call]}

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "max-tokens"}
        assert seen == [["text"]]
        assert w.last(agent, "assistant/message")["data"]["content"] == blocks("some")
        assert w.log(agent, "tool/call") == []


@pytest.mark.rule("AL-47")
async def test_tools_then_steering_then_post_step_then_the_end() -> None:
    async with world(ask(("t", {}))) as w:

        async def body(args: Any, execution: Any) -> Any:
            execution.agent.steer(blocks("steered"))
            return 1

        w.tool("t", body)
        order: list[str] = []

        @w.observe("agent/post-step")
        async def first(agent: Agent, turn: int, step: int, signal: Any) -> None:
            order.append(w.flow(agent)[-1])
            agent.inject(blocks("by post-step"))

        @w.observe("agent/post-step")
        async def second(agent: Agent, turn: int, step: int, signal: Any) -> None:
            order.append(w.flow(agent)[-1])

        agent = await w.agent()
        await w.turn(agent)
        assert order[:2] == ["steering/message", "user/message"]
        flow = w.flow(agent)
        at = flow.index("tool/result")
        assert flow[at : at + 4] == ["tool/result", "steering/message", "user/message", "step/end"]


@pytest.mark.rule("AL-47")
async def test_a_cancelled_batch_still_reaches_post_step_with_the_signal_fired() -> None:
    async with world(ask(("t", {}))) as w:

        async def body(args: Any, execution: Any) -> Any:
            execution.agent.cancel()
            return 1

        w.tool("t", body)
        seen: list[bool] = []

        @w.observe("agent/post-step")
        async def post(agent: Agent, turn: int, step: int, signal: Any) -> None:
            seen.append(signal.cancelled)

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "aborted"}
        assert seen == [True]


@pytest.mark.rule("AL-41")
async def test_a_finish_without_facts_is_a_failure_all_the_same() -> None:
    async with world([{"type": "finish", "reason": {"kind": "aborted"}}], failed("error", "AUTH", "no")) as w:
        agent = await w.agent()
        assert (await w.turn(agent))["failure"]["code"] == "ABORTED"
        assert (await w.turn(agent))["failure"] == {"message": "no", "code": "AUTH"}
        assert w.log(agent, "assistant/message") == []
