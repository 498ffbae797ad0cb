"""The step limit: a turn that has taken its steps ends, with its tool results logged, and says why in the log.

Event `turn/limit {turn, step, limit}` (log-only): the turn wanted another step and `loop.max_steps` forbade it. What
the turn wants is known once the continuation is decided; it is forbidden at the terminal checkpoint after that, which
steering cannot override (AL-52).
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
            agent.session.append(TYPE, {"turn": turn, "step": steps, "limit": limit})
        return {"action": "stop"}

    ctx.on("agent/turn-continuation", decided, first=True)
    ctx.on("agent/turn-stop", stop)
