"""A plugin's listener that answers wrongly, asks twice or raises: it is named, and the next turn is an ordinary one.

One table of points, each with answers that it must not take and what is said of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dsh.core.errors import DshError, render_chain
from dsh.core.messages import model_text, text_of
from dsh.kernel.host import Plugin
from dsh.kernel.points import POINTS
from dsh.kernel.returns import RETURNS
from dsh.tools.definition import ToolResult
from tests.agent.kit import World, ask, boom, say, world

pytestmark = pytest.mark.slow

TEXT = [{"type": "text", "text": "x"}]
BAD_CONTENT: list[Any] = [
    "text",
    {},
    ["text"],
    [{}],
    [{"type": "text"}],
    [{"type": "text", "text": 5}],
    [{"type": "tool-call", "id": "c", "name": "echo"}],
    [{"type": "tool-result", "toolCallId": "c"}],
    [{"type": "x/y", "data": {1, 2}}],
    [{"type": "text", "text": "\ud800"}],
]
BAD_CONTEXTS: list[Any] = [
    "x",
    ["x"],
    [{}],
    [{"content": TEXT}],
    *[[{"content": c, "source": {"kind": "k"}}] for c in BAD_CONTENT],
]
CONFIG = {"provider": "p", "model": "m"}

ANSWERS: dict[str, list[Any]] = {
    "agent/prompt-submit": [
        {"kind": "deny"}, {"kind": 5}, {"kind": "block", "reason": 5}, {"action": "stop"},
        {"kind": "allow", "extra": set()},
        *({"kind": "allow", "content": c} for c in BAD_CONTENT),
        *({"kind": "allow", "additionalContexts": c} for c in BAD_CONTEXTS),
    ],
    "agent/session-prefix": [
        {"role": "user", "content": TEXT}, ["x"], [{}], [{"role": "tool", "content": TEXT}],
        *([{"role": "user", "content": c}] for c in BAD_CONTENT),
    ],
    "agent/request": [
        [], {"provider": "p"}, {**CONFIG, "model": 5}, {**CONFIG, "temperature": "hot"}, {**CONFIG, "maxTokens": True},
        {**CONFIG, "reasoningEffort": None}, {**CONFIG, "stop": "x"}, {**CONFIG, "more": object()},
    ],
    "agent/step-result": [
        [], {"role": "user", "content": TEXT}, *({"role": "assistant", "content": c} for c in BAD_CONTENT),
    ],
    "agent/turn-continuation": [
        {"action": "go"}, {"kind": "stop"}, {"action": "continue", "reason": "x"},
        *({"action": "continue", "reason": {"content": c, "source": {"kind": "k"}}} for c in BAD_CONTENT),
    ],
    "agent/turn-stop": [{"action": "continue"}, True],
    "agent/request-error": [{"action": "stop"}, True],
    "llm/stream": [[], 5],
    "tools/pre-execute": [{"kind": "accept"}, {"kind": "deny", "reason": 5}],
    "tools/execute": [
        {"kind": "allow"}, ToolResult(False, "text"), ToolResult(False, TEXT, contexts=("x",)),  # type: ignore[arg-type]
        *(ToolResult(True, c) for c in BAD_CONTENT[:8]),
    ],
    "tools/post-execute": [
        {"kind": "allow"}, *({"kind": "accept", "content": c} for c in BAD_CONTENT),
        *({"kind": "block", "feedback": c} for c in BAD_CONTENT if c),
        *({"kind": "accept", "additionalContexts": c} for c in BAD_CONTEXTS),
    ],
    "system-prompt/assemble": [[], 5],
}  # fmt: skip
MAY_BE_NONE = ("agent/turn-stop",)
PLAIN = ("system-prompt/assemble", "llm/stream")
SERIAL = [point for point, kind in POINTS.items() if kind == "serial"]


def plugin(w: World, point: str, listener: Any) -> Callable[[], Any]:
    """Listen as a plugin called `bad` until the result is called."""
    ctx = w.host.root.scope()
    ctx.plugin = Plugin("bad", "user", "bad")
    ctx.on(point, listener)
    return ctx.dispose


def replies(point: str) -> list[Any]:
    """What makes a turn come to a point."""
    if point.startswith("tools/"):
        return [ask(("echo", {})), say("done")]
    return [boom()] if point == "agent/request-error" else [say("done")]


async def attacked(w: World, agent: Any, point: str, listener: Any) -> str:
    """What is said after a turn with this listener; the turn after it must be an ordinary one."""
    w.script.replies.clear()
    w.script.replies.extend(replies(point))
    before = len(w.host.reports)
    undo = plugin(w, point, listener)
    reason = await w.turn(agent)
    await undo()
    w.script.replies.clear()
    if point.startswith("tools/"):
        assert reason == {"kind": "completed"}
        assert w.last(agent, "tool/result")["data"]["isError"]
        (said,) = w.texts(agent, "tool/result")[-1:]
    elif point == "agent/request-error":
        assert reason["failure"]["code"] == "SERVER"
        said = render_chain(w.host.reports[before][1])
    else:
        assert reason["kind"] == "error", reason
        said = reason["message"]
    assert await w.turn(agent) == {"kind": "completed"}
    assert "\n" not in said
    return said


def test_the_table_knows_every_point_that_asks() -> None:
    asking = {point for point, kind in POINTS.items() if kind == "waterfall"} | {"agent/turn-stop"}
    assert set(RETURNS) == set(ANSWERS) == asking


@pytest.mark.rule("CO-40a")
@pytest.mark.parametrize("point", ANSWERS)
async def test_a_wrong_answer_is_named(point: str) -> None:
    async with world() as w:
        w.tool("echo")
        for answer in [
            *([] if point in MAY_BE_NONE else [None]),
            "a text",
            {},
            {"kind": "of another"},
            *ANSWERS[point],
        ]:
            agent = await w.agent()

            async def later(*args: Any, answer: Any = answer) -> Any:
                return answer

            def at_once(*args: Any, answer: Any = answer) -> Any:
                return answer

            said = await attacked(w, agent, point, at_once if point in PLAIN else later)
            assert f"plugin bad at {point}: a listener returned a wrong value: " in said, answer
            assert len(said) < 300
            if point not in PLAIN:
                said = await attacked(w, await w.agent(), point, at_once)
                assert f"plugin bad at {point}: a listener here must be an async function" in said


@pytest.mark.rule("CO-40a")
@pytest.mark.parametrize("point", ANSWERS)
async def test_a_listener_that_asks_twice_or_raises(point: str) -> None:
    def twice(*args: Any) -> Any:
        args[-1]()
        return args[-1]()

    async def twice_awaited(*args: Any) -> Any:
        await args[-1]()
        return await args[-1]()

    async with world() as w:
        w.tool("echo")
        if POINTS[point] == "waterfall":
            said = await attacked(w, await w.agent(), point, twice if point in PLAIN else twice_awaited)
            assert f"plugin bad at {point}: a listener of {point} called next() twice" in said
        for error in (
            ValueError("no"),
            SystemExit(3),
            KeyboardInterrupt(),
            asyncio.CancelledError(),
            MemoryError("no"),
        ):

            def at_once(*args: Any, error: BaseException = error) -> Any:
                raise error

            async def later(*args: Any, error: BaseException = error) -> Any:
                raise error

            for listener in (at_once,) if point in PLAIN else (at_once, later):
                said = await attacked(w, await w.agent(), point, listener)
                assert f"plugin bad at {point}: " in said


@pytest.mark.parametrize("point", ["agent/pre-step", "agent/post-step"])
async def test_serial_points_must_be_async(point: str) -> None:
    async with world() as w:
        said = await attacked(w, await w.agent(), point, lambda *args: None)
        assert said == f"plugin bad at {point}: a listener here must be an async function, and this one returned None"


async def test_an_async_listener_of_a_notice_is_a_failure() -> None:
    async def later(*args: Any) -> None: ...

    async with world() as w:
        plugin(w, "agent/status", later)
        assert await w.turn(await w.agent()) == {"kind": "completed"}
        assert ["must be a plain function" in str(error) for where, error in w.host.reports if where == "agent/status"]


BAD_CHUNKS: list[Any] = [
    None, "x", {}, {"type": "x"}, {"type": 5}, {"type": "text-delta", "index": 0}, {"type": "finish"},
    {"type": "finish", "reason": {}}, {"type": "usage", "usage": 5}, {"type": "block-end", "index": 0, "block": {}},
    {"type": "block-end", "index": 0, "block": {"type": "tool-call"}}, {"type": "block-start", "index": "0"},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_CHUNKS)
async def test_a_wrong_chunk_is_named_and_not_logged(bad: Any) -> None:
    async def stream(*args: Any) -> Any:
        yield bad

    async with world() as w:
        agent = await w.agent()
        said = await attacked(w, agent, "llm/stream", stream)
        assert "plugin bad at llm/stream: a listener returned a wrong value: " in said
        assert bad not in [e["data"]["chunk"] for e in w.log(agent, "assistant/chunk")]


@pytest.mark.parametrize("bad", BAD_CHUNKS)
async def test_a_wrong_chunk_of_an_adapter_fails_the_request(bad: Any) -> None:
    async with world([bad]) as w:
        agent = await w.agent()
        reason = await w.turn(agent)
        assert reason["failure"]["code"] == "INVARIANT"
        assert reason["failure"]["message"].startswith("the adapter of 'p' made a wrong chunk: ")
        assert await w.turn(agent) == {"kind": "completed"}


async def test_an_adapter_or_a_tool_cannot_end_the_program() -> None:
    async def ends(*args: Any) -> Any:
        raise asyncio.CancelledError

    async with world(SystemExit(3), asyncio.CancelledError(), ask(("ends", {}))) as w:
        w.tool("ends", ends)
        agent = await w.agent()
        said = [(await w.turn(agent))["failure"]["message"] for _ in range(2)]
        assert said == ["the adapter of 'p' called sys.exit(3)", "the adapter of 'p' raised CancelledError"]
        assert await w.turn(agent) == {"kind": "completed"}
        assert w.texts(agent, "tool/result") == ["Error: the tool raised CancelledError"]


async def test_a_block_that_no_request_could_be_made_from_is_refused() -> None:
    async with world() as w:
        agent = await w.agent()
        for content in BAD_CONTENT:
            with pytest.raises(DshError) as caught:
                agent.followup(content)
            assert caught.value.code in ("INPUT_INVALID", "INPUT_NOT_JSON")
        assert await w.turn(agent) == {"kind": "completed"}


async def test_a_provider_of_the_prompt_that_fails_is_named() -> None:
    def fails(context: Any) -> Any:
        raise ValueError("no")

    for register in (
        lambda w, ctx: w.prompt.section(ctx, "x", 1, fails),
        lambda w, ctx: w.prompt.variable(ctx, "x", fails),
        lambda w, ctx: w.prompt.tools(ctx, "x", fails),
    ):
        async with world() as w:
            ctx = w.host.root.scope()
            ctx.plugin = Plugin("bad", "user", "bad")
            register(w, ctx)
            agent = await w.agent()
            assert (await w.turn(agent))["message"] == "plugin bad at prompt x: no"
            await ctx.dispose()
            w.prompt.section(ctx := w.host.root.scope(), "x", 1, lambda _: 5)  # type: ignore[arg-type, return-value]
            assert (await w.turn(agent))["message"] == "prompt section 'x' has 5 as its text"
            await ctx.dispose()
            assert await w.turn(agent) == {"kind": "completed"}


async def test_what_surrounds_a_tool_cannot_end_the_program() -> None:
    def leaves(*args: Any) -> Any:
        raise SystemExit(2)

    async with world(ask(("a", {})), say("on"), ask(("b", {})), say("on"), ask(("c", {})), say("on")) as w:
        w.tool("a")
        w.tools.guard(guarded := w.host.root.scope(), leaves)
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        await guarded.dispose()
        w.tool("b", finalize_content=leaves)
        assert await w.turn(agent) == {"kind": "completed"}
        assert w.texts(agent, "tool/result") == ["Error: the tool pipeline called sys.exit(2)"] * 2


def test_a_text_that_is_none_is_read_as_nothing() -> None:
    """A log from elsewhere may hold one, and must not keep its session from going on."""
    odd: Any = [{"type": "text", "text": 5}, {"type": "text"}, *TEXT]
    assert (text_of(odd), model_text(odd)) == ("x", "x")


async def test_a_forgotten_await_is_no_fault() -> None:
    async def through(*args: Any) -> Any:
        return args[-1]()

    async with world() as w:
        plugin(w, "agent/prompt-submit", through)
        plugin(w, "agent/request", lambda *args: args[-1]())
        assert await w.turn(await w.agent()) == {"kind": "completed"}
