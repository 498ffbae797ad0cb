"""The step limit: a turn that has taken its steps ends, with its tool results logged, and says why in the log.

Event `turn/limit {turn, step, limit}` (log-only): the turn wanted another step and `loop.max_steps` forbade it.
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
    limit: int = ctx.host.config["loop.max_steps"]
    if not limit:
        return

    async def hold(
        agent: Agent, turn: int, default: ContinuationDecision, signal: Signal, next_: Any
    ) -> ContinuationDecision:
        decision: ContinuationDecision = await next_()
        steps = agent.session.steps
        if decision["action"] == "stop" or steps < limit:
            return decision
        agent.session.append(TYPE, {"turn": turn, "step": steps, "limit": limit})
        return {"action": "stop"}

    ctx.on("agent/turn-continuation", hold, first=True)
