"""Requests and the log say the same, and the checker notices when they do not (SE-33, SE-34)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsh.agent import checker
from dsh.core.errors import InvariantError
from dsh.core.lossless import dumps, freeze
from dsh.core.messages import Request
from tests.agent.kit import Gate, ask, blocks, opened, say, world


@pytest.mark.rule("SE-33", "SE-20", "SE-21", "SE-22")
async def test_every_request_follows_from_the_log_alone() -> None:
    """A session with all that makes a history: tools, steering, an empty answer, a replacement, a resumption."""
    replies = [ask(("t", {}), ("t", {}), text="so"), [], say("summed up"), say("more"), say("after")]
    async with world(*replies) as w:
        w.tool("t", parallel=True)
        agent = await w.agent(id="s")
        await w.turn(agent)
        await w.turn(agent)

        @w.observe("agent/pre-step")
        async def compact(a: Any, turn: int, step: int, signal: Any) -> None:
            if turn == 3:
                nodes = [e["seq"] for e in w.log(a) if "surfaceOp" in e][:-1]
                a.session.append(
                    "user/message",
                    {"content": blocks("a summary"), "source": {"kind": "plugin", "plugin": "c"}},
                    surface={"op": "replace", "start": nodes[0], "end": nodes[-1]},
                    sources=nodes,
                )

        await w.turn(agent, "third")
        assert w.sent() == ["a summary", "third"]
        await w.agents.dispose(agent)
        again = await w.agents.resume("s", {"provider": "p", "model": "m"})
        await w.turn(again, "fourth")
        assert w.sent()[0] == "a summary"
        assert len(w.requests) == 5
        events = w.log(again)
        starts = [e["seq"] for e in events if e["type"] == "step/start"]
        for request, start in zip(w.requests, starts, strict=True):
            assert dumps(list(request.messages)) == dumps(checker.derive(events[:start]))


def spoilt(request: Request, how: str) -> Request:
    match how:
        case "messages":
            return replace(request, messages=request.messages[1:])
        case "key order":
            first = freeze({k: request.messages[0][k] for k in ("content", "role")})
            return replace(request, messages=(first, *request.messages[1:]))
        case "config":
            return replace(request, config=freeze({**request.config, "temperature": 1}))
        case "system":
            return replace(request, system=None)
        case "tools":
            return replace(request, tools=())
        case "mutable":
            return replace(request, messages=tuple(dict(m) for m in request.messages))  # type: ignore[misc]
    return replace(request, session_id="another")


@pytest.mark.rule("SE-34")
@pytest.mark.parametrize("how", ["messages", "key order", "config", "system", "tools", "mutable", "session"])
async def test_a_request_that_differs_from_the_log_is_refused(how: str) -> None:
    gate = Gate()
    async with world(gate.reply(opened("x"), [])) as w:
        w.tool("t")
        agent = await w.agent()
        agent.followup(blocks("hi"))
        await gate.entered.wait()
        request = w.requests[0]
        checker.compare(request, w.sessions)
        with pytest.raises(InvariantError) as caught:
            checker.compare(spoilt(request, how), w.sessions)
        assert caught.value.code == "INVARIANT"
        agent.cancel()


@pytest.mark.rule("SE-34")
async def test_a_spoilt_request_never_reaches_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await w.agent()
        derive = agent.session.derive_messages
        monkeypatch.setattr(agent.session, "derive_messages", lambda: derive()[1:])
        assert (await w.turn(agent))["code"] == "INVARIANT"
        assert w.requests == []


@pytest.mark.rule("SE-34", "CO-27")
async def test_auxiliary_calls_are_not_tested() -> None:
    async with world() as w:
        from dsh.llm.service import LlmService

        request = Request(freeze({"provider": "p", "model": "m"}), (freeze({"role": "user", "content": []}),))
        chunks = [c async for c in w.host.get(LlmService).stream(request)]
        assert chunks[-1]["type"] == "finish"
