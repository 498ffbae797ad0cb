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
from dsh.core.errors import DshError, render_chain
from dsh.core.events import Event
from dsh.core.messages import Block
from dsh.kernel.signal import Signal
from dsh.session.session import APPEND
from dsh.tools.definition import Execution
from dsh.tools.pipeline import Call, parse_arguments
from dsh.tools.registry import Tools

NOT_STARTED_TEXT = "Error: tool call aborted before dispatch"
LOST_TEXT = "Error: the result of this call could not be recorded; it may have taken effect"


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
        self.signal = signal.child()  # ends with the turn's, and alone when the batch itself fails
        self.limit: int = agent.ctx.host.config["loop.max_parallel_tool_calls"]
        self.pending: deque[tuple[Block, Any]] = deque()
        self.running: deque[_Running] = deque()  # started, and their results not yet logged
        self.settled = trio.Event()

    async def run(self, blocks: Sequence[Block]) -> None:
        self.pending.extend((b, parse_arguments(b["arguments"])) for b in blocks)
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await self._work(nursery)
                except BaseException:
                    self.signal.cancel("user")  # TL-67: the bodies end before the failure goes on
                    raise
        finally:
            self.signal.detach()
            self._answer_rest()

    async def _work(self, nursery: trio.Nursery) -> None:
        while True:
            while self.running and self.running[0].done:
                await self._commit(self.running[0])
            if self.pending and not self.signal.cancelled and (mode := self._may_start(*self.pending[0])):
                await self._start(nursery, exclusive=mode == "exclusive")
            elif self.running:
                await self.settled.wait()
                self.settled = trio.Event()
            else:
                return

    def _may_start(self, block: Block, arguments: Any) -> str | None:
        """The mode of the next call if it may start now (AL-56); it is asked anew each time (TL-62)."""
        mode = self.tools.mode(self.agent, block["name"], arguments)
        if mode == "exclusive":
            return mode if not self.running else None
        in_flight = sum(not r.done for r in self.running)
        barrier = any(r.exclusive for r in self.running)
        return mode if in_flight < self.limit and not barrier else None

    async def _start(self, nursery: trio.Nursery, *, exclusive: bool) -> None:
        block, arguments = self.pending[0]
        event = self._log_call(block)
        self.pending.popleft()
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
        await nursery.start(self._body, running)  # bodies begin in model order

    async def _body(self, running: _Running, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await running.call.dispatch()
        finally:
            running.done = True
            self.settled.set()

    async def _commit(self, running: _Running) -> None:
        result = await running.call.finalize()
        self._log_result(running.call.execution.call_id, running.call_seq, result.logged())
        self.running.popleft()
        for context in result.contexts:
            try:
                self.agent.defer(context)
            except DshError as error:  # CO-16: refused, and no reason to lose the results that follow
                self.agent.ctx.host.report(f"context of {running.call.execution.name}", error)

    def _answer_rest(self) -> None:
        """Every call has a result, or no later request is accepted: those a cancelled batch never started (AL-59), and
        after a failure of the batch itself those it had started (TL-65)."""
        unknown = {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
        for running in self.running:
            self._log_result(running.call.execution.call_id, running.call_seq, _error(LOST_TEXT, unknown))
        skipped = {"name": "AbortError", "code": "ABORTED_BEFORE_DISPATCH"}
        for block, _ in self.pending:
            self._log_result(block["id"], self._log_call(block)["seq"], _error(NOT_STARTED_TEXT, skipped))

    def _log_call(self, block: Block) -> Event:
        data = {"callId": block["id"], "name": block["name"], "arguments": block["arguments"]}
        return self.agent.session.append("tool/call", {"turn": self.turn, "step": self.step, **data})

    def _log_result(self, call_id: str, call_seq: int, result: dict[str, Any]) -> None:
        data = {"turn": self.turn, "step": self.step, "callId": call_id, **result}
        self.agent.session.append("tool/result", data, surface=APPEND, sources=[call_seq])


def _error(text: str, info: dict[str, str]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True, "error": info}


async def run_batch(agent: Agent, tools: Tools, turn: int, step: int, blocks: Sequence[Block], signal: Signal) -> None:
    agent.deferring = True
    try:
        with trio.CancelScope(shield=True):
            await _Batch(agent, tools, turn, step, signal).run(blocks)
    finally:
        agent.flush_deferred()
