"""The agent handle: the surface every plugin, command and test programs against.

It accepts input, tells its state, cancels. Turns are run by the driver task (driver.py), which the handle only wakes.
Input of other processes comes as rows of the inbox, which `collect` takes up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

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
from dsh.agent.inbox import Entry, Inbox
from dsh.core.errors import DshError, render_chain
from dsh.core.ids import AgentMessageId, SessionId, new_message_id
from dsh.core.lossless import mend_surrogates
from dsh.core.messages import Block, HookContext, Source
from dsh.kernel.scope import Context
from dsh.kernel.signal import Signal
from dsh.session.session import APPEND, Session
from dsh.store import wake

Status = Literal["idle", "running", "disposed"]


_ROUTES = {
    ("next-turn", True): "followup",
    ("next-turn", False): "queue",
    ("next-step", True): "steer",
    ("next-step", False): "inject",
}


class AgentDisposed(DshError):
    code = "AGENT_DISPOSED"


class Selection(NamedTuple):
    """A model chosen by the user while the agent lives (AL-81); no `effort` is a choice, too."""

    provider: str | None
    model: str | None
    effort: str | None


class Agent:
    """One agent drives one session, under the same id.

    `options` holds `provider` and `model`, the route of its requests as last selected; extensions may add fields.
    `ctx` is the agent's own registration scope.
    """

    def __init__(self, session: Session, options: dict[str, Any], ctx: Context, nursery: trio.Nursery) -> None:
        self.id: SessionId = session.id
        self.session = session
        self.options = options
        self.ctx = ctx
        self.status: Status = "idle"
        self.inbox = Inbox(session, self.notify, ctx.host.report)
        self.claimed: str | None = None  # the row of the message whose turn runs, until that is in the log
        self.selection: Selection | None = None  # made, and waiting for the next prompt assembly
        self.signal: Signal | None = None  # of the active turn, until its end is published
        self.stopping = False  # no turn begins any more
        self.deferring = False  # a tool batch runs: injections wait until its results stand together (AL-60)
        self._deferred: deque[tuple[dict[str, Any], str | None]] = deque()  # each with the row it takes
        self._injections: deque[Item] = deque()  # taken up, not appended yet
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
        self._must_live()
        if target not in ("next-turn", "next-step") or not isinstance(wakeup, bool):
            raise InputInvalid("target must be next-turn or next-step, wakeup true or false")
        content, source, contexts, meta = accept(content, source, contexts, meta)
        route = _ROUTES[target, wakeup]
        if route == "inject" and contexts:
            raise InputInvalid("an injection takes no contexts")
        message_id = new_message_id()
        waits = route != "inject" or self.deferring  # else it is in the log when this returns
        stored = waits and self.session.stored
        item = Item(message_id, content, source, contexts, wakeup, False, meta, own=True, stored=stored)
        if stored:
            self._take_up(self.inbox.put_down(Entry(route, item)))
            return message_id
        self.collect()  # what others sent before stands before it
        if route == "inject":
            self._inject(item)
        else:
            self._take_up([Entry(route, item)])
        return message_id

    def _must_live(self) -> None:
        if self.status == "disposed":
            raise AgentDisposed(f"agent {self.id} is disposed")

    def collect(self) -> None:
        """Take up what other processes have left in the inbox; a query, where there is nothing."""
        if self.status != "disposed":
            self._take_up(self.inbox.collect())

    def look(self) -> None:
        """`collect`, whose failure is reported and no more: the row is there the next time."""
        try:
            self.collect()
        except DshError as error:
            self.report_error(self.session.turns, 0, error)

    def _take_up(self, entries: Iterable[Entry]) -> None:
        for route, item in entries:
            if route == "cancel":
                keep = isinstance(item.meta, dict) and item.meta.get("keepInbox") is True
                self._cancel("user", keep_inbox=keep)
                self.inbox.take_out(item)
            elif route == "inject":
                self._injections.append(item)
            else:
                steering = route == "steer" and self.status == "running"  # AL-5: by status, not by the log
                self.inbox.put(replace(item, steering=steering))
        self._append_injections()
        if self.work_waits:
            self._idle = trio.Event() if self._idle.is_set() else self._idle
            self._wake.set()

    def _append_injections(self) -> None:
        while self._injections:
            if self.session.announcing and not self.deferring:  # an observer of an append has looked into the inbox
                wake.ring(self.session.holder or "")
                return
            item = self._injections.popleft()
            try:
                self._inject(item)
            except DshError as error:  # its row stays, for the next driver
                self.report_error(self.session.turns, 0, error)

    def _inject(self, item: Item) -> None:
        data = prompt_data(item.content, item.source, [], item.meta)
        if self.deferring:
            self._deferred.append((data, item.row))
            return
        log = self.session
        if log.open_turn is not None:
            log.append("user/message", data, surface=APPEND, takes=item.row)
            return
        turn = log.turns + 1
        log.append("turn/start", {"turn": turn, "trigger": {"kind": "injection", "source": data["source"]}})
        try:
            log.append("user/message", data, surface=APPEND, takes=item.row)
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
        self._deferred.append((context_data({"content": content, "source": source, "meta": meta}), None))

    def flush_deferred(self) -> None:
        self.deferring = False
        while self._deferred:
            data, row = self._deferred.popleft()
            self.session.append("user/message", data, surface=APPEND, takes=row)

    # ------------------------------------------------------------------------------------------------------- model

    def select(self, *, provider: str | None = None, model: str | None = None, effort: str | None = None) -> None:
        """Choose another model from the next prompt assembly on (AL-81). Without `provider` or `model` the present one
        stays; without `effort` there is none, also where one was inherited."""
        self._must_live()
        self.selection = Selection(provider, model, effort)

    def apply_selection(self) -> bool:
        """Loop only: make what was selected the route of the agent; whether there was anything."""
        if self.selection is None:
            return False
        chosen, self.selection = self.selection, None
        route = {"provider": chosen.provider, "model": chosen.model, "reasoningEffort": chosen.effort}
        before = {k: v for k, v in self.options.items() if k != "reasoningEffort"}
        self.options = {**before, **{k: v for k, v in route.items() if v is not None}}
        return True

    # ----------------------------------------------------------------------------------------- cancel, idle, end

    def cancel(self, cause: Literal["user", "parent"] = "user", *, keep_inbox: bool = False) -> None:
        """End the active turn and, unless `keep_inbox`, drop what waits (AL-65, AL-66). Idle and empty: a no-op."""
        if not keep_inbox:
            self.look()  # what others sent before this goes, too
        self._cancel(cause, keep_inbox=keep_inbox)

    def _cancel(self, cause: str, *, keep_inbox: bool) -> None:
        active = self.signal is not None and not self.signal.cancelled
        if not active and (keep_inbox or self.inbox.empty):
            return
        self.notify("agent/cancel-requested", {"kind": cause})
        if not keep_inbox:
            self.inbox.discard()
        if self.signal is not None:
            self.signal.cancel(cause)
        self._settle()

    def stop(self) -> None:
        """Cancel the active turn as a user does, and begin no other: what waits stays where it is until disposal."""
        self.stopping = True
        self._cancel("user", keep_inbox=True)
        self._settle()

    @property
    def work_waits(self) -> bool:
        """Whether there is a message that the driver will begin a turn for."""
        return self.inbox.waking and not self.stopping

    async def when_idle(self) -> None:
        """Return at the next quiescent moment: not running and nothing queued that would wake (AL-69)."""
        while self.status == "running" or (self.status == "idle" and self.work_waits):
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
        if self.status != "running" and not (self.status == "idle" and self.work_waits):
            self._idle.set()
        elif self._idle.is_set():
            self._idle = trio.Event()

    async def wait_for_work(self) -> bool:
        """Driver only: wait for a waking item. False once the agent is disposed."""
        while self.status != "disposed":
            if self.work_waits:
                return True
            await self._wake.wait()
            self._wake = trio.Event()
        return False

    async def dispose(self) -> None:
        """Stop for good: drop the inbox, end the turn as `disposed`, wait for the driver and its flushes (AL-70)."""
        self._end()
        with trio.CancelScope(shield=True):
            await self.finished.wait()
            while self._idle_flushes:
                self._flushed = trio.Event()
                await self._flushed.wait()

    def _end(self) -> None:
        if self.status == "disposed":
            return
        self.status = "disposed"
        self.inbox.discard(rows_of_others=False)
        self._settle()
        if self.signal is not None:
            self.signal.cancel("disposed")
        self._wake.set()
        self.notify("agent/status", "disposed")

    def retire(self) -> bool:
        """End an agent that has nothing to do, and give up its lease, before anything else can come.

        False, and nothing happened, if it runs or a message has come meanwhile. Who sends one finds either a driver
        that will run it or no lease, and knows which. `Agents.dispose` does the rest.
        """
        if self.status != "disposed":
            if self.status == "running" or self.work_waits:
                return False
            if not self.inbox.hand_back(leaving=self.stopping):
                self.collect()
                return False
            self._end()
        return True

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
