"""Limits: on the steps of a turn, and on what a run may spend (budget.py).

Event `turn/limit {turn, step, kind, limit, ...}` (log-only) says why a turn ended. Of kind "steps": the turn wanted
another step and `loop.max_steps` forbade it; its tool results are logged, it ends `completed`. What the turn wants is
known once the continuation is decided; it is forbidden at the terminal checkpoint after that, which steering cannot
override (AL-52). Of kind "cost" (USD) and "tokens": a request was not started; `spent` and `next`, the estimate of its
input, stand beside `limit`, and the turn ends with the error BUDGET_LIMIT. Without a kind it is "steps".
"""

from __future__ import annotations

from typing import Any

from dsh.agent.agent import Agent
from dsh.agent.decisions import ContinuationDecision
from dsh.core.events import event_type
from dsh.kernel.scope import Context
from dsh.kernel.signal import Signal

TYPE = "turn/limit"
if TYPE not in event_type:
    event_type.declare(TYPE)


def setup(ctx: Context) -> None:
    config = ctx.host.config
    if config["loop.max_steps"]:
        _limit_steps(ctx, config["loop.max_steps"])
    if config["limits.max_cost"] or config["limits.max_tokens_total"]:
        from dsh.capabilities.limits.budget import Budget  # most runs have none

        ctx.provide(Budget, Budget(ctx, config["limits.max_cost"], config["limits.max_tokens_total"]))


def _limit_steps(ctx: Context, limit: int) -> None:
    wanting: set[Agent] = set()  # agents whose turn has just decided to go on

    async def decided(
        agent: Agent, turn: int, default: ContinuationDecision, signal: Signal, next_: Any
    ) -> ContinuationDecision:
        decision: ContinuationDecision = await next_()
        (wanting.add if decision["action"] == "continue" else wanting.discard)(agent)
        return decision

    async def stop(agent: Agent, turn: int, signal: Signal) -> ContinuationDecision | None:
        wants = agent in wanting or agent.inbox.has_steering
        wanting.discard(agent)
        steps = agent.session.steps
        if steps < limit:
            return None
        if wants:
            agent.session.append(TYPE, {"turn": turn, "step": steps, "kind": "steps", "limit": limit})
        return {"action": "stop"}

    ctx.on("agent/turn-continuation", decided, first=True)
    ctx.on("agent/turn-stop", stop)
