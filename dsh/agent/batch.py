"""The tool calls of one step: model order, rolling pool, every call answered (AL-55 to AL-60, TL-60 to TL-67).

One coroutine starts and finishes calls, so `tool/call`, preparation, finishing and `tool/result` are serial and in
model order; only bodies overlap. The whole batch is shielded: when the turn is cancelled the bodies see it through
the signal, and the batch waits for those that were started and answers for those that were not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import trio

from dsh.agent.agent import Agent
from dsh.core.errors import render_chain
from dsh.core.messages import Block
from dsh.kernel.signal import Signal
from dsh.session.session import APPEND
from dsh.tools.definition import Execution
from dsh.tools.pipeline import Call, parse_arguments
from dsh.tools.registry import Tools

NOT_STARTED_TEXT = "Error: tool call aborted before dispatch"


@dataclass(eq=False, slots=True)
class _Running:
    call: Call
    call_seq: int
    exclusive: bool
    done: bool = False


class _Batch:
    def __init__(self, agent: Agent, tools: Tools, turn: int, step: int, signal: Signal) -> None:
        self.agent = agent
        self.tools = tools
        self.turn = turn
        self.step = step
        self.signal = signal
        self.limit: int = agent.ctx.host.config["loop.max_parallel_tool_calls"]
        self.running: deque[_Running] = deque()
        self.settled = trio.Event()

    async def run(self, blocks: Sequence[Block]) -> None:
        pending = deque((b, parse_arguments(b["arguments"])) for b in blocks)
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    while self.running and self.running[0].done:
                        await self._commit(self.running.popleft())
                    if pending and not self.signal.cancelled and (mode := self._may_start(*pending[0])):
                        await self._start(nursery, *pending.popleft(), exclusive=mode == "exclusive")
                    elif self.running:
                        await self.settled.wait()
                        self.settled = trio.Event()
                    else:
                        break
            except BaseException:
                # TL-67: a failure of the batch itself must not leave bodies behind.
                self.signal.cancel("user")
                raise
        for block, _ in pending:
            self._answer_unstarted(block)

    def _may_start(self, block: Block, arguments: Any) -> str | None:
        """The mode of the next call if it may start now (AL-56); it is asked anew each time (TL-62)."""
        mode = self.tools.mode(self.agent, block["name"], arguments)
        if mode == "exclusive":
            return mode if not self.running else None
        in_flight = sum(not r.done for r in self.running)
        barrier = any(r.exclusive for r in self.running)
        return mode if in_flight < self.limit and not barrier else None

    async def _start(self, nursery: trio.Nursery, block: Block, arguments: Any, *, exclusive: bool) -> None:
        event = self.agent.session.append(
            "tool/call",
            {
                "turn": self.turn,
                "step": self.step,
                "callId": block["id"],
                "name": block["name"],
                "arguments": block["arguments"],
            },
        )
        execution = Execution(
            call_id=block["id"], name=block["name"], arguments=arguments, agent=self.agent, signal=self.signal
        )
        running = _Running(Call(self.tools, execution), event["seq"], exclusive)
        self.running.append(running)
        await running.call.prepare()
        try:
            await self.agent.session.flush()  # PE-23: a body runs only when its call is on disk
        except Exception as error:  # noqa: BLE001 - PE-23: whatever it was, the body does not run
            running.call.refuse(f"the call could not be made durable: {render_chain(error)}")
        nursery.start_soon(self._body, running)

    async def _body(self, running: _Running) -> None:
        try:
            await running.call.dispatch()
        finally:
            running.done = True
            self.settled.set()

    async def _commit(self, running: _Running) -> None:
        result = await running.call.finalize()
        where = {"turn": self.turn, "step": self.step, "callId": running.call.execution.call_id}
        data = {**where, **result.logged()}
        self.agent.session.append("tool/result", data, surface=APPEND, sources=[running.call_seq])
        for context in result.contexts:
            self.agent.defer(context)

    def _answer_unstarted(self, block: Block) -> None:
        """AL-59: a call that a cancelled batch never started has a `tool/call` and a result all the same."""
        where = {"turn": self.turn, "step": self.step, "callId": block["id"]}
        call = self.agent.session.append(
            "tool/call", {**where, "name": block["name"], "arguments": block["arguments"]}
        )
        self.agent.session.append(
            "tool/result",
            {
                **where,
                "content": [{"type": "text", "text": NOT_STARTED_TEXT}],
                "isError": True,
                "error": {"name": "AbortError", "code": "ABORTED_BEFORE_DISPATCH"},
            },
            surface=APPEND,
            sources=[call["seq"]],
        )


async def run_batch(
    agent: Agent, tools: Tools, turn: int, step: int, blocks: Sequence[Block], signal: Signal
) -> None:
    agent.deferring = True
    try:
        with trio.CancelScope(shield=True):
            await _Batch(agent, tools, turn, step, signal).run(blocks)
    finally:
        agent.flush_deferred()
