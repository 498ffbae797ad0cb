"""The driver: claims one queued message at a time and runs its turn, until the agent is disposed.

Read `run_turn` aloud: open the turn, ask whether the prompt may pass, take steps while there is a reason to go on,
close the turn, flush. Whatever fails in between, a turn that was opened is closed, and the closing runs shielded from
the cancellation that caused it (AL-25, AL-71).
"""

from __future__ import annotations

from typing import Any

import trio

from dsh.agent.agent import Agent, error_reason
from dsh.agent.decisions import (
    ContinuationDecision,
    Item,
    PromptDecision,
    RequestErrorDecision,
    accept,
    context_data,
    prompt_data,
)
from dsh.agent.step import Interrupted, Loop, ModelFailure, StepResult, run_step
from dsh.core.errors import SessionError, only
from dsh.core.ids import new_message_id
from dsh.core.lossless import freeze
from dsh.core.messages import LlmFailure
from dsh.kernel.signal import Signal
from dsh.session.session import APPEND

Reason = dict[str, Any]


async def drive(agent: Agent, loop: Loop) -> None:
    """Run turns until disposal. Nothing a turn does ends the driver; only an outer cancellation does."""
    try:
        while await agent.wait_for_work():
            agent.signal = Signal()
            agent.discard_late_steering = False
            agent.set_status("running")
            try:
                if agent.work_waits:  # else an observer of the status has cancelled what was to run (AL-67)
                    await run_turn(agent, loop, agent.inbox.claim(), agent.signal)
            finally:
                agent.signal = None
                if agent.discard_late_steering:
                    agent.inbox.discard(steering_only=True)
                agent.inbox.requeue_steering()
                if agent.status != "disposed" and not agent.work_waits:
                    agent.set_status("idle")
    finally:
        agent.finished.set()


async def run_turn(agent: Agent, loop: Loop, item: Item, signal: Signal) -> None:
    log = agent.session
    turn = log.turns + 1
    try:
        log.append("turn/start", {"turn": turn, "trigger": {"kind": "message", "source": item.source}})
    except Exception as error:  # noqa: BLE001 - AL-18: no boundary stands, so there is nothing to close
        if item.own:  # its sender is told; what came from elsewhere stays for the next driver
            agent.inbox.take_out(item)
        agent.report_error(turn, 0, error)
        return
    item = agent.inbox.keep(item)
    agent.claimed = item.row
    reason: Reason = {"kind": "completed"}
    loop.step = 0
    try:
        with signal.scope():
            reason = await _turn_body(agent, loop, item, turn, signal)
    except ModelFailure as failed:
        reason = {"kind": "error", "step": loop.step, "failure": failed.failure}
        agent.report_error(turn, loop.step, failed.error)
    except Interrupted:
        pass
    except Exception as raised:  # noqa: BLE001 - AL-50: recorded and reported, then the turn is closed
        if not signal.cancelled:
            reason = error_reason(loop.step, only(raised))
            agent.report_error(turn, loop.step, only(raised))
    except BaseException:  # an outer cancellation: the program ends
        await _close(agent, loop, turn, {"kind": "disposed" if agent.status == "disposed" else "aborted"})
        raise
    if signal.cancelled:
        reason = {"kind": "disposed" if agent.status == "disposed" else "aborted"}
    await _close(agent, loop, turn, reason)


async def _close(agent: Agent, loop: Loop, turn: int, reason: Reason) -> None:
    """Close step and turn, then make it durable; a failing flush never reopens the turn (AL-25, AL-26)."""
    with trio.CancelScope(shield=True):
        try:
            try:
                _append_end(agent, turn, reason)
            except SessionError as error:  # the log refused: once more, as the error that it is
                if reason["kind"] != "error":
                    agent.report_error(turn, loop.step, error)
                    reason = error_reason(loop.step, error)
                _append_end(agent, turn, reason)
            await agent.session.flush()
        except Exception as error:  # noqa: BLE001 - AL-26: reported; the next holder of the session repairs the rest
            agent.report_error(turn, loop.step, error)


def _append_end(agent: Agent, turn: int, reason: Reason) -> None:
    log = agent.session
    agent.flush_deferred()
    if log.open_step is not None:
        log.append("step/end", {"turn": turn, "step": log.open_step})
    if log.open_turn is not None:
        agent.signal = None  # the owner is retired before the end is published: a cancel now finds no turn
        log.append("turn/end", {"turn": turn, "reason": reason}, takes=agent.claimed)
        agent.claimed = None


async def _turn_body(agent: Agent, loop: Loop, item: Item, turn: int, signal: Signal) -> Reason:
    loop.check(signal)
    rejection = await _submit(agent, loop, item, signal)
    if rejection is not None:
        return rejection
    hooks = agent.ctx.host.hooks
    failures: list[LlmFailure] = []
    hit_max_tokens = False
    while True:
        try:
            result = await run_step(agent, loop, turn, signal)
        except ModelFailure as failed:
            agent.session.append("step/end", {"turn": turn, "step": loop.step})
            loop.check(signal)
            again = await _recover(agent, loop, turn, failed, tuple(failures), signal)
            loop.check(signal)
            if not again:
                raise
            failures.append(failed.failure)
            continue
        failures.clear()
        hit_max_tokens |= result.max_tokens
        goes_on = await _goes_on(agent, loop, turn, result, signal)
        stop = await hooks.serial("agent/turn-stop", agent, agent, turn, signal, stop=True)
        loop.check(signal)
        if stop is not None:  # terminal: what was steered is dropped, now and until the flush has settled (AL-52)
            agent.inbox.discard(steering_only=True)
            agent.discard_late_steering = True
        if stop is not None or not (goes_on or agent.inbox.has_steering):
            return {"kind": "max-tokens"} if hit_max_tokens else {"kind": "completed"}


async def _submit(agent: Agent, loop: Loop, item: Item, signal: Signal) -> Reason | None:
    """AL-22 to AL-24: the prompt, or the reason why it was rejected."""

    async def default(*_: Any) -> PromptDecision:
        return {"kind": "allow", "additionalContexts": list(item.contexts)}

    decision: PromptDecision = await agent.ctx.host.hooks.waterfall(
        "agent/prompt-submit", agent, default, agent, item.content, item.source, signal
    )
    loop.check(signal)
    log = agent.session
    if decision["kind"] == "block":
        why = decision.get("reason", "")
        blocked = {"content": item.content, "source": item.source, "reason": why}
        log.append("prompt/blocked", blocked, takes=agent.claimed)
        agent.claimed = None
        return {"kind": "rejected", "reason": why}
    content, source, contexts, meta = accept(
        decision.get("content", item.content), item.source, list(decision.get("additionalContexts", [])), item.meta
    )
    log.append("user/message", prompt_data(content, source, contexts, meta), surface=APPEND, takes=agent.claimed)
    agent.claimed = None
    for context in contexts:
        if context.get("placement") != "prompt-prefix":
            log.append("user/message", context_data(context), surface=APPEND)
    return None


async def _recover(
    agent: Agent, loop: Loop, turn: int, failed: ModelFailure, prior: tuple[LlmFailure, ...], signal: Signal
) -> bool:
    """AL-48: whether a listener wants the request made again."""

    async def default(*_: Any) -> RequestErrorDecision:
        return {"action": "fail"}

    try:
        decision: RequestErrorDecision = await agent.ctx.host.hooks.waterfall(
            "agent/request-error", agent, default, agent, turn, loop.step, failed.error, failed.failure,
            freeze(list(prior)), signal,
        )  # fmt: skip
        return decision["action"] == "retry"
    except Exception as error:  # noqa: BLE001 - AL-48: a failing listener counts as "fail"
        agent.ctx.host.report("agent/request-error", error)
        return False


async def _goes_on(agent: Agent, loop: Loop, turn: int, result: StepResult, signal: Signal) -> bool:
    """AL-51: whether another step follows."""
    proposed: ContinuationDecision = {"action": "continue" if result.had_calls or result.steered else "stop"}

    async def default(*_: Any) -> ContinuationDecision:
        return proposed

    decision: ContinuationDecision = await agent.ctx.host.hooks.waterfall(
        "agent/turn-continuation", agent, default, agent, turn, proposed, signal
    )
    loop.check(signal)
    reason = decision.get("reason")
    if decision["action"] == "continue" and reason is not None:
        content, source, _, _ = accept(reason["content"], reason["source"], [], None)
        agent.inbox.put(Item(new_message_id(), content, source, [], True, True))
    return decision["action"] == "continue" or agent.inbox.has_steering
