"""The agent handle: the surface every plugin, command and test programs against.

It accepts input, tells its state, cancels. Turns are run by the driver task (driver.py), which the handle only wakes.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import trio

from dsh.agent.decisions import (
    ANONYMOUS_PLUGIN,
    USER,
    InputInvalid,
    Item,
    accept,
    context_data,
    prompt_data,
)
from dsh.agent.inbox import Inbox
from dsh.core.errors import DshError, render_chain
from dsh.core.ids import AgentMessageId, SessionId, new_message_id
from dsh.core.lossless import mend_surrogates
from dsh.core.messages import Block, HookContext, Source
from dsh.kernel.scope import Context
from dsh.kernel.signal import Signal
from dsh.session.session import APPEND, Session

Status = Literal["idle", "running", "disposed"]


class AgentDisposed(DshError):
    code = "AGENT_DISPOSED"


class Agent:
    """One agent drives one session, under the same id.

    `options` holds `provider` and `model`, the route of its first request; extensions may add fields. `ctx` is the
    agent's own registration scope.
    """

    def __init__(self, session: Session, options: dict[str, Any], ctx: Context, nursery: trio.Nursery) -> None:
        self.id: SessionId = session.id
        self.session = session
        self.options = options
        self.ctx = ctx
        self.status: Status = "idle"
        self.inbox = Inbox(self.notify)
        self.signal: Signal | None = None  # of the active turn, until its end is published
        self.deferring = False  # a tool batch runs: injections wait until its results stand together (AL-60)
        self._deferred: deque[dict[str, Any]] = deque()
        self._nursery = nursery
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._idle_flushes = 0
        self._flushed = trio.Event()
        self.discard_late_steering = False
        self.finished = trio.Event()

    def notify(self, point: str, *args: Any) -> None:
        self.ctx.host.hooks.notify(point, self, self, *args)

    # ------------------------------------------------------------------------------------------------- delivery

    def followup(
        self,
        content: list[Block],
        *,
        source: Source = USER,
        contexts: list[HookContext] | None = None,
        meta: Any = None,
    ) -> AgentMessageId:
        """Queue a message as a turn of its own and wake the driver."""
        return self.send(content, source, meta, "next-turn", True, contexts or [])

    def queue(
        self,
        content: list[Block],
        *,
        source: Source = USER,
        contexts: list[HookContext] | None = None,
        meta: Any = None,
    ) -> AgentMessageId:
        """Queue a message that waits until another input wakes the driver."""
        return self.send(content, source, meta, "next-turn", False, contexts or [])

    def steer(
        self,
        content: list[Block],
        *,
        source: Source = USER,
        contexts: list[HookContext] | None = None,
        meta: Any = None,
    ) -> AgentMessageId:
        """Add to the running turn before its next request; an idle agent takes it as an ordinary turn."""
        return self.send(content, source, meta, "next-step", True, contexts or [])

    def inject(self, content: list[Block], *, source: Source = ANONYMOUS_PLUGIN, meta: Any = None) -> AgentMessageId:
        """Append context without running the model (AL-62, AL-63)."""
        return self.send(content, source, meta, "next-step", False, [])

    def send(
        self,
        content: list[Block],
        source: Source,
        meta: Any,
        target: Literal["next-turn", "next-step"],
        wakeup: bool,
        contexts: list[HookContext],
    ) -> AgentMessageId:
        """Accept one fully specified input (AL-1, AL-9): checked and frozen as a whole, or refused before anything."""
        if self.status == "disposed":
            raise AgentDisposed(f"agent {self.id} is disposed")
        if target not in ("next-turn", "next-step") or not isinstance(wakeup, bool):
            raise InputInvalid("target must be next-turn or next-step, wakeup true or false")
        content, source, contexts, meta = accept(content, source, contexts, meta)
        message_id = new_message_id()
        if target == "next-step" and not wakeup:
            if contexts:
                raise InputInvalid("an injection takes no contexts")
            self._inject(prompt_data(content, source, [], meta))
            return message_id
        steering = target == "next-step" and self.status == "running"  # AL-5: by status, not by the log
        self.inbox.put(Item(message_id, content, source, contexts, wakeup, steering, meta))
        if self.inbox.waking:
            self._idle = trio.Event() if self._idle.is_set() else self._idle
            self._wake.set()
        return message_id

    def _inject(self, data: dict[str, Any]) -> None:
        if self.deferring:
            self._deferred.append(data)
            return
        log = self.session
        if log.open_turn is not None:
            log.append("user/message", data, surface=APPEND)
            return
        turn = log.turns + 1
        log.append("turn/start", {"turn": turn, "trigger": {"kind": "injection", "source": data["source"]}})
        try:
            log.append("user/message", data, surface=APPEND)
        finally:
            log.append("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
        self._idle_flushes += 1
        self._nursery.start_soon(self._flush_idle, turn)

    async def _flush_idle(self, turn: int) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self.session.flush()
        except Exception as error:  # noqa: BLE001 - AL-63: reported, never an event, never a failure of the injector
            self.report_error(turn, 0, error)
        finally:
            self._idle_flushes -= 1
            self._flushed.set()

    def defer(self, context: HookContext) -> None:
        """Keep a tool's context until the batch's results are all logged (AL-60)."""
        content, source, _, meta = accept(context.get("content"), context.get("source"), [], context.get("meta"))
        self._deferred.append(context_data({"content": content, "source": source, "meta": meta}))

    def flush_deferred(self) -> None:
        self.deferring = False
        while self._deferred:
            self.session.append("user/message", self._deferred.popleft(), surface=APPEND)

    # ----------------------------------------------------------------------------------------- cancel, idle, end

    def cancel(self, cause: Literal["user", "parent"] = "user", *, keep_inbox: bool = False) -> None:
        """End the active turn and, unless `keep_inbox`, drop what waits (AL-65, AL-66). Idle and empty: a no-op."""
        active = self.signal is not None and not self.signal.cancelled
        if not active and (keep_inbox or self.inbox.empty):
            return
        self.notify("agent/cancel-requested", {"kind": cause})
        if not keep_inbox:
            self.inbox.discard()
        if self.signal is not None:
            self.signal.cancel(cause)
        self._settle()

    async def when_idle(self) -> None:
        """Return at the next quiescent moment: not running and nothing queued that would wake (AL-69)."""
        while self.status == "running" or (self.status == "idle" and self.inbox.waking):
            await self._idle.wait()
        if self.status == "disposed":
            await self.finished.wait()

    def set_status(self, status: Status) -> None:
        if status == self.status:
            return
        self.status = status
        self._settle()
        self.notify("agent/status", status)

    def _settle(self) -> None:
        if self.status != "running" and not (self.status == "idle" and self.inbox.waking):
            self._idle.set()
        elif self._idle.is_set():
            self._idle = trio.Event()

    async def wait_for_work(self) -> bool:
        """Driver only: wait for a waking item. False once the agent is disposed."""
        while self.status != "disposed":
            if self.inbox.waking:
                return True
            await self._wake.wait()
            self._wake = trio.Event()
        return False

    async def dispose(self) -> None:
        """Stop for good: drop the inbox, end the turn as `disposed`, wait for the driver and its flushes (AL-70)."""
        if self.status != "disposed":
            self.status = "disposed"
            self.inbox.discard()
            self._settle()
            if self.signal is not None:
                self.signal.cancel("disposed")
            self._wake.set()
            self.notify("agent/status", "disposed")
        with trio.CancelScope(shield=True):
            await self.finished.wait()
            while self._idle_flushes:
                self._flushed = trio.Event()
                await self._flushed.wait()

    def report_error(self, turn: int, step: int, error: BaseException) -> None:
        """`agent/error`, and the host's log of contained failures."""
        self.ctx.host.report(f"turn {turn}, step {step}", error)
        self.notify("agent/error", turn, step, error)


def error_reason(step: int, error: BaseException) -> dict[str, Any]:
    """The `turn/end` reason of a failure that is no provider failure (AL-50)."""
    reason: dict[str, Any] = {"kind": "error", "step": step, "message": mend_surrogates(render_chain(error))}
    code = getattr(error, "code", None)
    if isinstance(code, str):
        reason["code"] = code
    return reason
