"""The loop under random input, failures and cancellations: whatever happens, the log is legal and nothing hangs.

What is checked is in the kit: every request follows from the log (SE-34), every log is legal and every call answered
(SE-40 to SE-46, AL-58), every queued message leaves the inbox once (AL-4).
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from dsh.agent.agent import Agent
from dsh.core.messages import Request
from dsh.store import wake
from tests.agent.foreign import put
from tests.agent.kit import Reply, World, ask, blocks, boom, failed, opened, say, world

TOOLS = ("quick", "slow", "breaks", "chatty", "nonesuch")
POINTS = (
    "agent/prompt-submit",
    "agent/pre-step",
    "agent/request",
    "agent/step-result",
    "agent/turn-continuation",
    "agent/turn-stop",
    "agent/post-step",
    "agent/request-error",
    "tools/pre-execute",
    "tools/post-execute",
)


def replies(chance: random.Random) -> list[Reply]:
    async def stops_short(request: Request) -> Any:
        for chunk in opened("half"):
            await trio.sleep(chance.random() * 0.003)
            yield chunk
        raise boom("STREAM_CLOSED", "cut")

    async def slow(request: Request) -> Any:
        for chunk in say("a slow answer"):
            await trio.sleep(chance.random() * 0.003)
            yield chunk

    made: list[Reply] = []
    for _ in range(40):
        calls: list[Any] = [(chance.choice(TOOLS), {}) for _ in range(chance.randint(1, 4))]
        kinds: list[Reply] = [ask(*calls), ask(*calls, text="so"), say("fine"), slow, stops_short, boom(), failed(), []]
        made.append(chance.choice([*kinds, say("cut", kind="max-tokens")]))
    return made


def furnish(w: World, chance: random.Random) -> None:
    async def quick(args: Any, execution: Any) -> Any:
        return 1

    async def slow(args: Any, execution: Any) -> Any:
        await trio.sleep(chance.random() * 0.005)
        return 2

    async def breaks(args: Any, execution: Any) -> Any:
        raise RuntimeError("broken")

    async def chatty(args: Any, execution: Any) -> Any:
        execution.defer_context({"content": blocks("context"), "source": {"kind": "plugin", "plugin": "c"}})
        execution.agent.inject(blocks("injected"))
        execution.agent.steer(blocks("steered"))
        return 3

    w.tool("quick", quick, parallel=True)
    w.tool("slow", slow, parallel=True)
    w.tool("breaks", breaks)
    w.tool("chatty", chatty, parallel=True)
    for point in POINTS:

        async def listener(*args: Any) -> Any:
            if chance.random() < 0.03:
                raise RuntimeError("a listener broke")
            if chance.random() < 0.2:
                await trio.sleep(chance.random() * 0.002)
            next_ = args[-1]
            return await next_() if callable(next_) else None

        w.on(point, listener)

    @w.observe("agent/request-error")
    async def again(*args: Any) -> Any:
        return {"action": "retry"} if chance.random() < 0.6 else await args[-1]()


async def disturb(agent: Agent, chance: random.Random) -> None:
    for number in range(30):
        await trio.sleep(chance.random() * 0.006)
        match chance.randrange(10):
            case 0 | 1 | 2:
                agent.followup(blocks(f"follow {number}"))
            case 3:
                agent.queue(blocks(f"queue {number}"))
            case 4:
                agent.steer(blocks(f"steer {number}"))
            case 5:
                agent.inject(blocks(f"inject {number}"))
            case 6:
                agent.cancel(keep_inbox=chance.random() < 0.5)
            case 7:
                with trio.move_on_after(0.003):
                    await agent.when_idle()
            case 8 | 9 if agent.session.stored:
                from_elsewhere(agent, chance)


def from_elsewhere(agent: Agent, chance: random.Random) -> None:
    """What another process would do; the ring may be lost."""
    for _ in range(chance.randint(1, 3)):
        route = chance.choice(("followup", "queue", "steer", "inject", "cancel"))
        meta = {"keepInbox": chance.random() < 0.5} if route == "cancel" else None
        put(agent.session.db, "s", route, "injected" if route == "inject" else route, meta=meta)
    if chance.random() < 0.7:
        wake.ring(agent.session.holder or "")


@pytest.mark.rule("AL-4", "AL-25", "AL-58", "AL-59", "AL-71", "SE-34", "SE-40", "SE-42")
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 60))])
async def test_whatever_happens_the_log_is_legal(seed: int) -> None:
    chance = random.Random(seed)
    async with world(*replies(chance), loop__max_parallel_tool_calls=chance.randint(1, 3)) as w:
        furnish(w, chance)
        agent = await w.agent(id="s")
        await disturb(agent, chance)
        if chance.random() < 0.5:
            await agent.when_idle()
        await w.agents.dispose(agent)
        reasons = {e["data"]["reason"]["kind"] for e in w.log(agent, "turn/end")}
        assert reasons <= {"completed", "aborted", "error", "disposed", "max-tokens"}
        again = await w.agents.resume("s", {"provider": "p", "model": "m"})
        w.script.replies.clear()
        again.followup(blocks("and now?"))
        await again.when_idle()
        assert w.db.rows("SELECT * FROM inbox") == []
        last = w.log(again, "turn/end")[-1]["data"]["reason"]["kind"]  # a listener may have broken the prompt, too
        assert last == "error" or w.texts(again, "user/message")[-1] in ("and now?", "injected", "context")
