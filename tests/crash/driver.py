"""What is killed in tests/crash/test_scenarios.py: the real loop on a real file, in a process forked from a zygote.

It takes up where the last one was killed. First it looks at what that one had been told is stored, closes its turn and
asks the model to go on; the model is the strictest server (tests/strict.py). Then it plays its scenario until it is
killed itself. What it knows to be stored it tells through a pipe, a line for each append that has returned:

    event SESSION SEQ        the append returned
    session SESSION          the session that is driven now
    verified                 all of the last process's events are there, the log is legal, the next answer is stored
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from typing import Any

import trio

from dsh.agent.agent import Agent
from dsh.core.messages import Chunk, Request, text_of
from dsh.llm.adapter import BaseAdapter
from dsh.llm.adapters.chat_request import DIALECTS, Encoder
from dsh.llm.failure import LlmError
from dsh.llm.service import LlmService
from tests.agent.kit import World, ask, blocks, say, world
from tests.agent.legal import problems
from tests.session.kit import replace, surface
from tests.strict import refusals

OPTIONS = {"provider": "strict", "model": "m"}
SCENARIOS = ("stream", "tools", "compaction", "fork")

Tell = Callable[[str], None]


class StrictModel(BaseAdapter):
    """Refuses what the strictest server refuses; else answers as the scenario has it."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.encoder = Encoder(DIALECTS["deepseek"])

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        found = refusals(self.encoder.encode(request), insists=True)
        if found:
            raise LlmError("; ".join(found), "INVALID_REQUEST")
        for chunk in self._answer(request):
            yield chunk

    def _answer(self, request: Request) -> list[Chunk]:
        last = request.messages[-1]
        said = text_of(last["content"])
        if said == "go on":
            return say("went on")
        if said != "work":
            return say("done")
        if self.scenario == "stream":
            delta: Chunk = {"type": "text-delta", "index": 0, "text": "piece "}
            first, *_, finish = say("piece " * 20)
            end: Chunk = {"type": "block-end", "index": 0, "block": {"type": "text", "text": "piece " * 20}}
            return [first, *[delta] * 20, end, finish]
        wanted = {"tools": 6, "compaction": 2, "fork": 1}[self.scenario]
        return ask(*[("quick", {}, f"c{number}") for number in range(wanted)])


def main(arguments: dict[str, Any]) -> None:
    pipe = os.open(arguments["pipe"], os.O_WRONLY)

    def tell(line: str) -> None:
        os.write(pipe, line.encode() + b"\n")

    os.environ["DSH_DB"] = arguments["db"]
    trio.run(_drive, arguments["scenario"], arguments["stored"], arguments["session"], tell)


async def _drive(scenario: str, stored: dict[str, int], current: str | None, tell: Tell) -> None:
    with trio.CancelScope() as patience:
        async with world(checked=False) as w:
            patience.deadline = trio.current_time() + 20
            w.host.get(LlmService).register(w.host.root, StrictModel(scenario), ["strict"])
            w.tool("quick", parallel=True)
            w.on("session/event", lambda session, event: tell(f"event {session.id} {event['seq']}"))
            agent = await _verified(w, stored, current)
            tell(f"session {agent.id}")
            tell("verified")
            while True:
                agent = await _play(w, scenario, agent, tell)


async def _verified(w: World, stored: dict[str, int], current: str | None) -> Agent:
    """The agent of the session that was driven, or a new one; AssertionError where something was lost."""
    for id_, seq in stored.items():
        rows = w.db.rows("SELECT count(*), max(seq) FROM event WHERE session_id = ?", (id_,))
        assert rows[0][0] == rows[0][1] + 1 > seq, f"of session {id_} event {seq} was told and {rows} is there"
        if id_ != current:
            session = w.sessions.prepare_stored(id_)
            assert problems(session.events()) == []
            session.release()
    if current is None or not w.db.rows("SELECT 1 FROM session WHERE id = ?", (current,)):
        agent = await w.agents.create(OPTIONS, id=current)
    else:
        agent = await w.agents.resume(current, OPTIONS)
        assert problems(agent.session.events()) == []
    reason = await w.turn(agent, "go on")
    assert reason == {"kind": "completed"}, reason
    assert w.texts(agent, "assistant/message")[-1] == "went on"
    return agent


async def _play(w: World, scenario: str, agent: Agent, tell: Tell) -> Agent:
    """A turn of the scenario; the agent to go on with."""
    if scenario == "compaction" and agent.session.turns % 2:
        _compact(w, agent)
    reason = await w.turn(agent, "work")
    assert reason == {"kind": "completed"}, reason
    if scenario != "fork":
        return agent
    child = w.sessions.fork(agent.session)
    tell(f"event {child.id} {child.length - 1}")
    w.sessions.dispose(child)
    await w.agents.dispose(agent)
    tell(f"session {child.id}")
    return await w.agents.resume(child.id, OPTIONS)


def _compact(w: World, agent: Agent) -> None:
    """All but the last nodes become a summary, wherever that cuts; in a turn of its own."""
    log = agent.session
    nodes = surface(w.db, agent.id)[:-2]
    if not nodes:
        return
    data = {"content": blocks("sum"), "source": {"kind": "plugin", "plugin": "compact"}}
    log.append("turn/start", {"turn": log.turns + 1, "trigger": {"kind": "compaction"}})
    log.append("user/message", data, surface=replace(nodes[0], nodes[-1]), sources=nodes)
    log.append("turn/end", {"turn": log.turns, "reason": {"kind": "completed"}})
