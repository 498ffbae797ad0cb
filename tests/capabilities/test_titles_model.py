"""Titles by a model: what is sent and logged, which answers are taken, how long it may take."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import pytest
import trio
import trio.testing

from dsh.agent.agent import Agent
from dsh.capabilities.titles.model import Limits, ModelTitles
from dsh.core.errors import ConfigError
from dsh.core.lossless import thaw
from dsh.core.messages import Chunk, Request
from dsh.kernel.config import Config
from dsh.llm.adapters.chat_request import DIALECTS, Encoder
from dsh.llm.failure import LlmError
from dsh.llm.service import LlmService
from tests.agent.kit import Gate, Reply, Script, World, ask, blocks, boom, closed, failed, opened, say, world
from tests.capabilities.titles_kit import PLUGIN, USER, events, refused, service, settle, titles_of, warnings

TINY: dict[str, Any] = {"titles__model": "t/tiny"}
LLM_REQUEST = "session/title-llm-request"


def tiny(w: World, *replies: Reply) -> Script:
    """A model of its own for titles."""
    script = Script(replies)
    w.host.get(LlmService).register(w.host.root, script, ["t"])
    return script


async def titled(w: World, *prompts: str) -> Agent:
    """An agent that was asked these, and has its titles."""
    agent = await w.agent()
    for prompt in prompts:
        await w.turn(agent, prompt)
        await settle(w, agent.session)
    return agent


def logged(w: World, agent: Agent) -> list[Any]:
    return [thaw(e["data"]) for e in w.log(agent, LLM_REQUEST)]


@pytest.mark.rule("ST-61", "ST-62", "ST-63", "ST-64", "ST-65", "ST-68")
async def test_what_is_asked_and_logged() -> None:
    async with world(plugins=PLUGIN, **TINY) as w:
        script = tiny(w, say("Sky colour"))
        agent = await titled(w, 'why is the sky "blue"?\n]}')
        (call,) = script.requests
        assert dict(call.config) == {"provider": "t", "model": "tiny", "maxTokens": 64}
        assert (call.tools, call.session_id, call.purpose, call.loop_built) == ((), agent.id, "session-title", False)
        (message,) = call.messages
        assert message["role"] == "user"
        (block,) = message["content"]
        line, framed = block["text"].split("\n", 1)
        assert line
        assert json.loads(framed) == [{"seq": 1, "text": 'why is the sky "blue"?\n]}'}]
        assert call.system is not None
        assert all(
            word in call.system for word in ("title", "language", "Markdown", "About 5 words", "about 10 characters")
        )
        assert logged(w, agent) == [
            {
                "titleProvider": "model",
                "messageSeqs": [1],
                "route": {"provider": "t", "model": "tiny"},
                "system": call.system,
                "messages": [thaw(message)],
                "maxTokens": 64,
            }
        ]
        data = thaw(w.last(agent, "session/title")["data"])
        assert data == {
            "title": "Sky colour",
            "messageSeqs": [1],
            "source": {"kind": "provider", "provider": "model", "model": {"provider": "t", "model": "tiny"}},
        }
        chunks = [e["data"]["chunk"] for e in w.log(agent, "assistant/chunk")]
        assert "Sky colour" not in json.dumps(thaw(chunks))
        assert len(w.requests) == 1


@pytest.mark.rule("ST-64")
async def test_it_is_logged_before_it_is_sent_and_stays_if_it_fails() -> None:
    seen: list[list[str]] = []

    async def look(request: Request) -> AsyncGenerator[Chunk, None]:
        seen.append(w.flow(agent))
        raise boom("AUTH")
        yield

    async with world(plugins=PLUGIN, **TINY) as w:
        tiny(w, look)
        agent = await w.agent()
        await w.turn(agent, "words")
        await settle(w, agent.session)
        assert len(seen) == 1
        assert seen[0].index("session/title") < seen[0].index(LLM_REQUEST)
        assert len(logged(w, agent)) == 1
        assert (warnings(w), titles_of(w, agent.session)) == (["AUTH"], ["words"])


@pytest.mark.rule("ST-60")
@pytest.mark.parametrize(
    ("automatic", "asked"), [("first-message", [["one"]]), ("all-user-messages", [["one"], ["one", "two"]])]
)
async def test_both_variants(automatic: str, asked: list[list[str]]) -> None:
    async with world(plugins=PLUGIN, titles__automatic=automatic, **TINY) as w:
        script = tiny(w, *[say(f"title {n}") for n in range(3)])
        agent = await titled(w, "one", "two")
        seen = [[m["text"] for m in _framed(call)] for call in script.requests]
        assert seen == asked
        assert titles_of(w, agent.session)[1:] == [f"title {n}" for n in range(len(asked))]
        await service(w).refresh(agent.session)
        kind, _, seqs = events(w, agent.session)[-1]
        every = [e["seq"] for e in w.log(agent, "user/message")]
        assert (kind, seqs) == ("provider", every[:1] if automatic == "first-message" else every)


def _framed(call: Request) -> Any:
    return json.loads(call.messages[0]["content"][0]["text"].split("\n", 1)[1])


@pytest.mark.rule("ST-61")
async def test_what_is_too_large_is_neither_sent_nor_cut() -> None:
    async with world(plugins=PLUGIN, titles__max_input_bytes=300, **TINY) as w:
        script = tiny(w, say("fits"))
        agent = await titled(w, "é" * 150)
        assert (script.requests, logged(w, agent)) == ([], [])
        assert warnings(w) == ["TITLE_INPUT_TOO_LARGE"]
        other = await titled(w, "x")
        (call,) = script.requests
        size = len(call.messages[0]["content"][0]["text"].encode())
        assert titles_of(w, other.session) == ["x", "fits"]
    for limit, expected in ((size, 1), (size - 1, 0)):
        async with world(plugins=PLUGIN, titles__max_input_bytes=limit, **TINY) as w:
            script = tiny(w)
            await titled(w, "y")
            assert len(script.requests) == expected


@pytest.mark.rule("ST-63")
async def test_without_a_model_of_its_own_it_asks_that_of_the_session() -> None:
    async with world(plugins=PLUGIN, titles__model="same") as w:
        agent = await w.agent()
        agent.inject(blocks("typed"), source=USER)
        assert await refused(service(w).refresh(agent.session)) == "TITLE_NO_ROUTE"
        assert (logged(w, agent), w.requests) == ([], [])
        agent.select(provider="p", model="n")
        await w.turn(agent, "words")
        await service(w).refresh(agent.session)
        titling = [r for r in w.requests if r.purpose == "session-title"]
        assert [(r.provider, r.model) for r in titling] == [("p", "n")]
        assert thaw(w.last(agent, "session/title")["data"]["source"]["model"]) == {"provider": "p", "model": "n"}


@pytest.mark.rule("ST-63")
@pytest.mark.parametrize("named", [("p", None), (None, "m"), ("", "m"), ("p", ""), ("", "")])
async def test_a_route_is_whole_or_absent(named: Any) -> None:
    async with world(plugins=PLUGIN) as w:
        limits = Limits.of(w.host.config)
        with pytest.raises(ConfigError) as caught:
            ModelTitles(w.host.get(LlmService), limits, "first-message", *named)
        assert caught.value.code == "INVALID_CONFIG"


@pytest.mark.rule("ST-63")
@pytest.mark.parametrize("value", ["", "gpt", "p/", "/m", " / ", "on"])
def test_so_says_the_setting(value: str) -> None:
    with pytest.raises(ConfigError, match=r"titles\.model must be off, same"):
        Config({}, {}).with_flags(titles__model=value)


def test_model_ids_may_have_slashes() -> None:
    assert Config({}, {}).with_flags(titles__model="openrouter/a/b")["titles.model"] == "openrouter/a/b"


@pytest.mark.rule("ST-65")
@pytest.mark.parametrize(
    ("dialect", "expected"),
    [("deepseek", {"thinking": {"type": "disabled"}, "max_tokens": 64}), ("openai", {"max_completion_tokens": 64})],
)
async def test_thinking_is_switched_off(dialect: str, expected: Any) -> None:
    async with world(plugins=PLUGIN, **TINY) as w:
        script = tiny(w)
        await titled(w, "words")
        body = json.loads(Encoder(DIALECTS[dialect]).encode(script.requests[0]))
        known = ("thinking", "max_tokens", "max_completion_tokens", "reasoning_effort", "tools")
        assert {k: v for k, v in body.items() if k in known} == expected
        assert [m["role"] for m in body["messages"]] == ["system", "user"]


@pytest.mark.rule("ST-65", "ST-36")
async def test_a_failed_call_is_not_made_again() -> None:
    async with world(plugins=[*PLUGIN, "dsh.capabilities.retry"], retry__initial_delay_ms=1, **TINY) as w:
        script = tiny(w, boom("SERVER"), say("never"))
        agent = await titled(w, "words")
        assert len(script.requests) == 1
        assert titles_of(w, agent.session) == ["words"]
        assert "llm/retry" not in w.flow(agent)


def _text(*texts: str, kind: str = "stop", between: Iterable[Any] = ()) -> list[Any]:
    chunks: list[Any] = list(between)
    for index, text in enumerate(texts, 5):
        block = {"type": "text", "text": text}
        chunks.append({"type": "block-start", "index": index, "blockType": "text"})
        chunks.append({"type": "block-end", "index": index, "block": block})
    return [*chunks, {"type": "finish", "reason": {"kind": kind}}]


THOUGHT = {"type": "block-end", "index": 0, "block": {"type": "reasoning", "text": "hm"}}


@pytest.mark.rule("ST-67")
@pytest.mark.parametrize(
    ("reply", "title"),
    [
        (_text("one", "two"), "one two"),
        (_text("one", between=[THOUGHT]), "one"),
        (_text("\n one\n"), "one"),
    ],
)
async def test_an_answer_is_its_texts(reply: Any, title: str) -> None:
    async with world(plugins=PLUGIN, **TINY) as w:
        tiny(w, reply)
        agent = await titled(w, "words")
        assert titles_of(w, agent.session) == ["words", title]


@pytest.mark.rule("ST-67")
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (say("half", kind="max-tokens"), "TITLE_RESULT_INVALID"),
        (say("x", kind="tool-calls"), "TITLE_RESULT_INVALID"),
        (say("x", kind="content-filter"), "TITLE_RESULT_INVALID"),
        (ask(("t", {}), text="x", kind="stop"), "TITLE_RESULT_INVALID"),
        ([*opened("x"), *closed("x")], "TITLE_RESULT_INVALID"),
        (failed(code="RATE_LIMIT"), "RATE_LIMIT"),
        (failed("aborted", code="CUT"), "CUT"),
        ([{"type": "finish", "reason": {"kind": "aborted"}}], "ABORTED"),
        ([{"type": "finish", "reason": {"kind": "error"}}], "UNKNOWN"),
        (_text(), "TITLE_EMPTY"),
        (_text(" ", "\n"), "TITLE_EMPTY"),
        (_text("\u200b"), "TITLE_EMPTY"),
        (_text(between=[THOUGHT]), "TITLE_EMPTY"),
        (LlmError("no", "QUOTA"), "QUOTA"),
        (ValueError("broken adapter"), "UNKNOWN"),
    ],
)
async def test_what_is_no_title_is_a_failure(reply: Any, code: str) -> None:
    async with world(plugins=PLUGIN, **TINY) as w:
        tiny(w, reply, reply)
        agent = await titled(w, "words")
        assert warnings(w) == [code]
        assert await refused(service(w).refresh(agent.session)) == code
        assert titles_of(w, agent.session) == ["words"]
        assert len(logged(w, agent)) == 2


@pytest.mark.rule("ST-66")
@pytest.mark.parametrize("obedient", [True, False])
async def test_what_takes_too_long_is_a_failure(obedient: bool) -> None:
    gate = Gate()

    async def slow(request: Request) -> AsyncGenerator[Chunk, None]:
        with trio.CancelScope(shield=not obedient):
            await gate.stop()
        for chunk in say("too late"):
            yield chunk

    async with world(plugins=PLUGIN, titles__timeout_ms=30, **TINY) as w:
        tiny(w, slow)
        agent = await w.agent()
        await w.turn(agent, "words")
        if not obedient:
            await gate.entered.wait()
            await trio.sleep(0.04)  # so the deadline has passed when it goes on
            gate.open.set()
        await settle(w, agent.session)
        assert warnings(w) == ["SESSION_TITLE_TIMEOUT"]
        assert titles_of(w, agent.session) == ["words"]
        assert len(logged(w, agent)) == 1


@pytest.mark.rule("ST-66")
async def test_the_deadline_covers_the_logging_of_the_request() -> None:
    flushing, go_on = trio.Event(), trio.Event()

    async def hold(session: Any) -> None:
        flushing.set()
        await go_on.wait()

    async with world(plugins=PLUGIN, titles__timeout_ms=30, **TINY) as w:
        agent = await w.agent()
        await w.turn(agent, "one", source={"kind": "goal"})
        await service(w).give(agent.session, "mine")
        agent.inject(blocks("words"), source=USER)
        await settle(w, agent.session)
        script = tiny(w)
        w.sessions.on_flush(w.host.root, hold)
        failures: list[str] = []

        async def refresh() -> None:
            failures.append(await refused(service(w).refresh(agent.session)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh)
            await flushing.wait()
            await trio.sleep(0.04)
            go_on.set()
        assert failures == ["SESSION_TITLE_TIMEOUT"]
        assert len(logged(w, agent)) == 1  # a write that has begun is completed
        assert script.requests == []


@pytest.mark.rule("ST-37")
async def test_the_answer_does_not_wait_for_a_title() -> None:
    gate = Gate()
    async with world(say("done"), plugins=PLUGIN, **TINY) as w:
        tiny(w, gate.reply([], say("later")))
        agent = await w.agent()
        assert await w.turn(agent, "words") == {"kind": "completed"}
        await gate.entered.wait()
        assert w.flow(agent)[-1] == "turn/end"
        gate.open.set()
        await settle(w, agent.session)
        assert w.flow(agent)[-3:] == ["turn/start", "session/title", "turn/end"]
        assert titles_of(w, agent.session) == ["words", "later"]
        assert len(agent.session.derive_messages()) == 2


@pytest.mark.rule("ST-33", "ST-37")
async def test_the_main_call_goes_first() -> None:
    async with world(say("one"), say("its title"), plugins=PLUGIN, titles__model="same") as w:
        agent = await titled(w, "words")
        assert [r.purpose for r in w.requests] == [None, "session-title"]
        assert titles_of(w, agent.session) == ["words", "its title"]


@pytest.mark.rule("ST-33")
async def test_a_main_call_that_is_not_made_keeps_no_title_waiting() -> None:
    def refuse(request: Request, next_: Any) -> Any:
        if request.loop_built:
            raise ValueError("no")
        return next_()

    async with world(plugins=PLUGIN, **TINY) as w:
        w.host.root.on("llm/stream", refuse, first=True)
        tiny(w, say("its title"))
        agent = await w.agent()
        await w.turn(agent, "words")
        await settle(w, agent.session)
        assert w.log(agent, "turn/end")[0]["data"]["reason"]["kind"] == "error"
        assert titles_of(w, agent.session) == ["words", "its title"]


@pytest.mark.rule("HD-16")
async def test_a_title_counts_in_the_budget_and_is_not_made_beyond_it() -> None:
    plugins = ["dsh.capabilities.limits", *PLUGIN]
    usage = {"inputTokens": 900, "outputTokens": 100}
    async with world(say("done", usage=usage), plugins=plugins, limits__max_tokens_total=1000, **TINY) as w:
        script = tiny(w)
        agent = await w.agent()
        await w.turn(agent, "x", source={"kind": "goal"})
        agent.inject(blocks("words"), source=USER)
        assert await refused(service(w).refresh(agent.session)) == "BUDGET_LIMIT"
        assert script.requests == []
