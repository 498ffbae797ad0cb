"""Retry after transient provider failures: the event `llm/retry`, the wait, and the answer "retry" (LS-83 to
LS-86).

The policy itself is `dsh.llm.retry`. A failure it declines goes on to the next listener; without one the turn
fails.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import trio

from dsh.core.events import event_type
from dsh.core.messages import LlmFailure
from dsh.kernel.scope import Context
from dsh.kernel.signal import Signal
from dsh.llm.retry import RetryPolicy, decide

event_type.declare("llm/retry")


class _Session(Protocol):
    def append(self, type: str, data: Any) -> Any: ...


class _Agent(Protocol):
    @property
    def session(self) -> _Session: ...


def setup(ctx: Context, *, rand: Callable[[], float] = random.random) -> None:
    """Listen to `agent/request-error` under the settings `retry.*`."""
    policy = RetryPolicy.of(ctx.host.config)

    async def on_request_error(
        agent: _Agent,
        turn: int,
        step: int,
        error: BaseException,
        failure: LlmFailure,
        prior: Sequence[LlmFailure],
        signal: Signal,
        next: Callable[..., Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        retry = None if signal.cancelled else decide(policy, failure, prior, rand)
        if retry is None:
            return await next()
        agent.session.append(
            "llm/retry",
            {
                "turn": turn,
                "step": step,
                "retry": retry.number,
                "maxRetries": policy.max_transient_retries,
                "delayMs": retry.delay_ms,
                "failure": failure,
            },
        )
        with signal.scope():
            await trio.sleep(retry.delay_ms / 1000)
        return {"action": "fail"} if signal.cancelled else {"action": "retry"}

    ctx.on("agent/request-error", on_request_error)
