"""What a request is made of and what an interception may do to it (CO-14 to CO-45), through the whole loop."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dsh.core.lossless import FrozenDict, dumps, thaw
from dsh.core.messages import Chunk, Request, same_config, text_block
from dsh.kernel.points import POINTS
from dsh.kernel.signal import Signal
from dsh.llm.adapter import ModelInfo, ResolvedModel
from dsh.llm.adapters.chat_request import DIALECTS, Encoder
from dsh.llm.service import LlmService
from tests.agent.kit import Script, ask, blocks, say, world

PLUGIN = {"kind": "plugin", "plugin": "marker-source"}
META = {"secret": "marker-meta"}


def context(words: str, **more: Any) -> dict[str, Any]:
    return {"content": blocks(words), "source": PLUGIN, **more}


def wire(request: Request) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(Encoder(DIALECTS["deepseek"]).encode(request))["messages"]
    return made


# ------------------------------------------------------------------------------------------------------- what is sent


@pytest.mark.rule("CO-17")
async def test_meta_and_source_stay_here() -> None:
    async with world(ask(("echo", {})), say("done")) as w:

        async def body(args: Any, execution: Any) -> str:
            execution.defer_context(context("deferred", meta=META))
            agent.inject(blocks("injected"), source=PLUGIN, meta=META)  # type: ignore[arg-type]
            agent.steer(blocks("steered"), source=PLUGIN, meta=META)  # type: ignore[arg-type]
            return "result"

        w.tool("echo", body)
        agent = await w.agent()
        contexts: Any = [context("before", placement="prompt-prefix", meta=META), context("beside", meta=META)]
        await w.turn(agent, "prompt", contexts=contexts, meta=META)
        logged = dumps(w.log(agent))
        assert "marker-meta" in logged
        assert "marker-source" in logged
        for request in w.requests:
            everything = dumps([list(request.messages), request.config, list(request.tools), request.system])
            assert "marker" not in everything
            assert b"marker" not in Encoder(DIALECTS["chat"]).encode(request)
        said = " ".join(w.sent())
        assert all(word in said for word in ("before", "beside", "prompt", "deferred", "injected", "steered"))


@pytest.mark.rule("CO-20")
async def test_the_order_on_the_wire_and_what_comes_last() -> None:
    async with world(ask(("echo", {}), text="calling"), ask(("echo", {}, "c2")), say("done")) as w:

        async def prefix(*args: Any) -> Any:
            return [{"role": "user", "content": blocks("prefix")}]

        async def steer_late(agent: Any, turn: int, step: int, signal: Signal) -> None:
            if step == 2:
                agent.steer(blocks("steered"))

        w.on("agent/session-prefix", prefix)
        w.on("agent/post-step", steer_late)
        w.tool("echo")
        agent = await w.agent()
        await w.turn(agent, "newest prompt")
        await w.turn(agent, "second prompt")
        first, second, third, fourth = map(wire, w.requests)
        assert [m["role"] for m in first] == ["system", "user", "user"]
        assert [m["content"] for m in first[1:]] == ["prefix", "newest prompt"]
        assert [m["role"] for m in second[1:]] == ["user", "user", "assistant", "tool"]
        assert second[-1]["content"] == "echo done"
        assert third[-1]["content"] == "steered"
        assert fourth[-1]["content"] == "second prompt"
        for request in w.requests:  # that each equals what the log says is checked for every request (SE-34)
            assert request.loop_built


@pytest.mark.rule("CO-21")
async def test_a_request_of_the_loop_cannot_be_changed() -> None:
    async with world(say("one"), say("two"), say("three")) as w:
        refused: list[type] = []
        seen: list[Request] = []

        def meddle(request: Request, next_: Any) -> Any:
            seen.append(request)
            message: Any = request.messages[0]
            for attempt in (
                lambda: setattr(request, "system", "other"),
                lambda: message.update(role="system"),
                lambda: message["content"].append(text_block("more")),
                lambda: message["content"][0].__setitem__("text", "other"),
                lambda: request.config.__setitem__("model", "other"),
            ):
                try:
                    attempt()
                except (AttributeError, TypeError) as error:
                    refused.append(type(error))
            return next_()

        w.on("llm/stream", meddle)
        agent = await w.agent()
        await w.turn(agent)
        assert len(refused) == 5
        assert seen[0].loop_built
        assert not seen[0].changed(system="mine").loop_built
        auxiliary = Request(
            config=FrozenDict(provider="p", model="m"),  # type: ignore[arg-type]
            messages=seen[0].messages, session_id=agent.id, purpose="session-title",
        )  # fmt: skip
        async for _ in w.host.get(LlmService).stream(auxiliary):
            pass
        assert (seen[1].session_id, seen[1].loop_built) == (agent.id, False)


@pytest.mark.rule("CO-23")
def test_when_two_configurations_are_one() -> None:
    def config(**fields: Any) -> Any:
        return {"provider": "p", "model": "m", **fields}

    assert same_config(config(), {"model": "m", "provider": "p"})
    others: list[dict[str, Any]] = [
        {"model": "n"}, {"provider": "q"}, {"temperature": 0}, {"maxTokens": 5}, {"reasoningEffort": "x"}, {"stop": []},
    ]  # fmt: skip
    for other in others:
        assert not same_config(config(), config(**other)), other
    with_stop = config(stop=["a", "b"])
    assert same_config(with_stop, config(stop=["a", "b"]))
    assert not same_config(with_stop, config(stop=["b", "a"]))
    assert not same_config(with_stop, config(stop=["a"]))
    assert same_config(config(temperature=1), config(temperature=1.0))


@pytest.mark.rule("CO-24")
@pytest.mark.parametrize("missing", ["provider", "model"])
async def test_there_is_no_model_unless_one_is_named(missing: str) -> None:
    async with world() as w:
        agent = await w.agent(**{missing: ""})
        reason = await w.turn(agent)
        assert (reason["kind"], reason["code"]) == ("error", "NO_MODEL")
        assert w.requests == []


class Catalogue(Script):
    """Lists one model, knows one that it does not list, and calls both something else."""

    async def list_models(self, provider: str) -> list[ModelInfo]:
        return [{"provider": provider, "id": "listed", "name": "Listed"}]

    async def resolve_model(self, provider: str, model: str) -> ResolvedModel:
        found: ResolvedModel = {"provider": provider, "id": model, "name": f"catalogue name of {model}"}
        if model == "secret":
            found["context"] = {"contextWindow": 77}
            found["reasoning"] = {"efforts": [{"id": "odd-effort", "name": "Odd"}], "defaultEffort": "odd-effort"}
        return found


@pytest.mark.rule("CO-14", "CO-25")
async def test_the_catalogue_advises_and_the_header_decides() -> None:
    async with world() as w:
        adapter = Catalogue([say("a"), say("b"), say("c")])
        llm = w.host.get(LlmService)
        llm.register(w.host.root, adapter, ["q"])
        route = {"model": "listed"}

        async def choose(*args: Any) -> Any:
            return {**args[3], "provider": "q", **route}

        w.on("agent/request", choose)
        agent = await w.agent()
        for model in ("listed", "never-listed", "secret"):
            route["model"] = model
            await w.turn(agent)
            header = w.last(agent, "request/header")["data"]["header"]["config"]
            assert header["model"] == adapter.requests[-1].model == model
            provenance = w.last(agent, "assistant/message")["data"]["provenance"]
            assert provenance == {"provider": "q", "model": model}
        assert "reasoningEffort" not in adapter.requests[1].config
        assert adapter.requests[2].config["reasoningEffort"] == "odd-effort"
        assert "context" not in await llm.resolve_model("q", "listed")
        assert (await llm.resolve_model("q", "secret"))["context"] == {"contextWindow": 77}


@pytest.mark.rule("CO-28")
async def test_every_field_of_the_configuration_goes_over_unchanged() -> None:
    config = {"provider": "q", "model": "secret", "reasoningEffort": "odd-effort", "temperature": 0, "maxTokens": 9}
    config["stop"] = ["END", ""]
    async with world() as w:
        adapter = Catalogue([say("a")])
        w.host.get(LlmService).register(w.host.root, adapter, ["q"])

        async def choose(*args: Any) -> Any:
            return {**config, "extra": 1}

        w.on("agent/request", choose)
        agent = await w.agent(colour="red")
        await w.turn(agent)
        (request,) = adapter.requests
        sent = thaw(request.config)
        assert {k: v for k, v in sent.items() if k in config} == config
        assert (request.session_id, request.purpose, request.tools) == (agent.id, None, ())
        assert "red" not in dumps([list(request.messages), request.config])


# ---------------------------------------------------------------------------------------------------- interceptions


@pytest.mark.rule("CO-41", "CO-42")
async def test_what_a_listener_returns_counts_and_nothing_is_merged_behind_its_back() -> None:
    async with world() as w:
        keep = True

        async def outer(agent: Any, content: Any, source: Any, signal: Signal, next_: Any) -> Any:
            inner = await next_()
            if keep:
                return {**inner, "additionalContexts": [*inner["additionalContexts"], context("outer")]}
            return {"kind": "allow"}

        async def inner(agent: Any, content: Any, source: Any, signal: Signal, next_: Any) -> Any:
            decision = await next_()
            mine = context("inner", meta=META, placement="prompt-prefix")
            return {
                **decision,
                "content": blocks("changed"),
                "additionalContexts": [mine, context("second", meta=META)],
            }

        w.on("agent/prompt-submit", outer)
        w.on("agent/prompt-submit", inner)
        agent = await w.agent()
        await w.turn(agent, "asked")
        prompt, second, last = (e["data"] for e in w.log(agent, "user/message"))
        assert thaw(prompt["envelope"]) == {
            "displayContent": blocks("changed"), "prefixContexts": [{"source": PLUGIN, "meta": META}],
        }  # fmt: skip
        assert [thaw(m) for m in (second, last)] == [
            {"content": blocks("second"), "source": PLUGIN, "meta": META},
            {"content": blocks("outer"), "source": PLUGIN},
        ]
        keep = False
        await w.turn(agent, "asked again")
        assert w.texts(agent, "user/message")[3:] == ["asked again"]  # the inner content and contexts are gone


@pytest.mark.rule("CO-43")
async def test_a_reason_to_go_on_is_steering_without_meta_and_placement() -> None:
    async with world(say("one"), say("two")) as w:
        gone_on = False

        async def go_on(agent: Any, turn: int, default: Any, signal: Signal, next_: Any) -> Any:
            nonlocal gone_on
            if gone_on:
                return await next_()
            gone_on = True
            return {"action": "continue", "reason": context("go on", meta=META, placement="prompt-prefix")}

        w.on("agent/turn-continuation", go_on)
        agent = await w.agent()
        await w.turn(agent)
        (steered,) = w.log(agent, "steering/message")
        assert thaw(steered["data"]) == {"content": blocks("go on"), "source": PLUGIN, "turn": 1}


@pytest.mark.rule("CO-44")
async def test_a_foreign_hook_protocol_has_a_place_for_each_of_its_answers() -> None:
    """A bridge in small: what hook commands answer, as the decisions of our points."""
    answers: dict[str, dict[str, Any]] = {
        "PreToolUse": {"permissionDecision": "deny", "permissionDecisionReason": "not here"},
        "UserPromptSubmit": {"additionalContext": "mind the gap"},
        "Stop": {"continue": False},
    }

    async def pre_tool(execution: Any, next_: Any) -> Any:
        said = answers["PreToolUse"]
        return {"kind": said["permissionDecision"], "reason": said["permissionDecisionReason"]}

    async def prompt(agent: Any, content: Any, source: Any, signal: Signal, next_: Any) -> Any:
        said = answers["UserPromptSubmit"]
        if said.get("decision") == "block":
            return {"kind": "block", "reason": said["reason"]}
        decision = await next_()
        return {**decision, "additionalContexts": [context(said["additionalContext"])]}

    async def stop(agent: Any, turn: int, signal: Signal) -> Any:
        return {"action": "stop"} if answers["Stop"]["continue"] is False else None

    async with world(ask(("echo", {})), say("never asked")) as w:
        w.on("tools/pre-execute", pre_tool)
        w.on("agent/prompt-submit", prompt)
        w.on("agent/turn-stop", stop)
        w.tool("echo")
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert "not here" in w.texts(agent, "tool/result")[0]
        assert w.texts(agent, "user/message") == ["hi", "mind the gap"]
        assert len(w.requests) == 1
        answers["UserPromptSubmit"] = {"decision": "block", "reason": "no such talk"}
        assert thaw(await w.turn(agent)) == {"kind": "rejected", "reason": "no such talk"}


_WITH_SIGNAL = (
    "agent/prompt-submit", "agent/session-prefix", "agent/pre-step", "agent/request", "agent/step-result",
    "agent/request-error", "agent/post-step", "agent/turn-continuation", "agent/turn-stop",
)  # fmt: skip


@pytest.mark.rule("CO-45")
async def test_each_interception_is_given_the_turns_signal() -> None:
    given: dict[str, list[Signal]] = {}
    async with world(say("x"), RuntimeError("boom"), ask(("echo", {})), say("y")) as w:
        for point in _WITH_SIGNAL:

            async def serial(*args: Any, point: str = point) -> None:
                given.setdefault(point, []).append(args[-1])

            async def around(*args: Any, point: str = point) -> Any:
                given.setdefault(point, []).append(args[-2])
                return await args[-1]()

            w.on(point, serial if POINTS[point] == "serial" else around)

        async def tool(execution: Any, next_: Any) -> Any:
            given.setdefault("tools/execute", []).append(execution.signal)
            return await next_()

        w.on("tools/execute", tool)
        w.tool("echo")
        agent = await w.agent()
        turns: list[Signal | None] = []
        w.on("agent/pre-step", _recorded(turns))
        for _ in range(3):
            await w.turn(agent)
        assert set(given) == {*_WITH_SIGNAL, "tools/execute"}
        assert all(isinstance(signal, Signal) for signals in given.values() for signal in signals)
        first, second, third = dict.fromkeys(turns)
        assert given["agent/prompt-submit"] == [first, second, third]  # a new one each turn
        assert given["agent/request-error"] == [second]


def _recorded(turns: list[Signal | None]) -> Any:
    async def note(agent: Any, turn: int, step: int, signal: Signal) -> None:
        assert signal is agent.signal
        turns.append(signal)

    return note


@pytest.mark.rule("CO-45")
async def test_a_listener_cannot_say_how_the_turn_ended() -> None:
    async with world(say("x"), say("y")) as w:

        async def cancel(agent: Any, turn: int, step: int, signal: Signal) -> None:
            if turn == 1:
                signal.cancel("disposed")

        w.on("agent/pre-step", cancel)
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "aborted"}  # and not disposed
        assert agent.status == "idle"
        assert await w.turn(agent) == {"kind": "completed"}


async def test_chunks_of_an_interceptor_are_a_stream_like_any_other() -> None:
    """For the reader of this file: the one point that is not a decision."""
    async with world() as w:

        async def answer(request: Request, next_: Any) -> AsyncGenerator[Chunk, None]:
            for chunk in say("made up"):
                yield chunk

        w.on("llm/stream", answer)
        agent = await w.agent(provider="nobody")
        await w.turn(agent)
        assert w.texts(agent, "assistant/message") == ["made up"]
