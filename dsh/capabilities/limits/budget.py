"""The budget: what this process may still spend on requests, in tokens and in dollars.

It counts where every request passes, at `llm/stream`: those of the session that the run drives, of sessions that it
delegates to, and of helpers that ask for titles or summaries; failed tries too, if the provider reported usage. What
an earlier run of the session has spent does not count. Before a request starts, what was spent and what its input
alone is estimated to use must fit; else it is not sent, the log says `turn/limit`, and the turn ends with the error
BUDGET_LIMIT. The answer itself cannot be known before, so a run may end above its limit by one answer at most.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any

import trio

from dsh.agent.agent import Agent
from dsh.core.errors import ConfigError, DshError
from dsh.core.messages import CallConfig, Chunk, EpochHeader, Request, TokenUsage
from dsh.kernel.scope import Context
from dsh.kernel.signal import Signal
from dsh.llm.prices import Price, Prices, dollars, how_to_set
from dsh.session.meter import DENSITY, Meter, MeterError, estimate_header, estimate_message
from dsh.session.session import Session
from dsh.session.sessions import Sessions

TYPE = "turn/limit"
_ROUTE = ("provider", "model")


class BudgetError(DshError):
    """The run has spent what it may, or its next request would."""

    code = "BUDGET_LIMIT"


class Budget:
    """A service where a limit is set; 0 stands for none."""

    def __init__(self, ctx: Context, max_cost: float, max_tokens: int) -> None:
        self._sessions = ctx.get(Sessions)
        self._meter = Meter.of(ctx.host, self._sessions.db)
        self._prices = Prices(ctx.host.config)
        self._max_cost = max_cost
        self._max_tokens = max_tokens
        self.cost = 0.0
        self.tokens = 0
        self._cached: dict[str | None, int] = {}  # by session: what its last request found in the provider's cache
        ctx.on("agent/pre-step", self._before_step)
        ctx.on("llm/stream", self._around)

    def require_price(self, provider: str, model: str) -> Price | None:
        """The price of a model; ConfigError PRICE_UNKNOWN if the cost is limited and nobody knows it, since a limit
        that cannot be checked is none."""
        price = self._prices.of(provider, model)
        if price is None and self._max_cost:
            message = f"the cost cannot be limited: nobody knows the price of {provider}/{model}"
            raise ConfigError(message, code="PRICE_UNKNOWN", hint=how_to_set(provider, model))
        return price

    # ---------------------------------------------------------------------------------------------------- before

    async def _before_step(self, agent: Agent, turn: int, step: int, signal: Signal) -> None:
        """Refuse a step before it opens where the log already tells what would be sent."""
        header = agent.session.header_in_force()
        known = header is not None and all(agent.options.get(k) == header["config"].get(k) for k in _ROUTE)
        estimate = self._estimate(agent.session) if known else None
        config = header["config"] if header is not None and estimate is not None else None
        self._check(agent.session, estimate or 0, config, (turn, step))

    def _around(self, request: Request, next_: Any) -> Any:
        session = self._sessions.live(request.session_id or "")
        at: tuple[int, int] | None = None
        estimate: int | None = None
        if request.loop_built and session is not None:
            at = (session.open_turn or 0, session.open_step or 0)
            estimate = self._estimate(session)
        if estimate is None:
            header: EpochHeader = {"config": request.config, "system": request.system or "", "tools": [*request.tools]}
            estimate = estimate_header(header) + sum(map(estimate_message, request.messages))
        self._check(session, estimate, request.config, at)
        return self._counted(request, estimate, next_())

    def _estimate(self, session: Session) -> int | None:
        """What the next request of a session would use; None if its log cannot be measured, which is no reason to
        stop it."""
        try:
            return self._meter.total(session.id)
        except MeterError:
            return None

    def _check(
        self, session: Session | None, estimate: int, config: CallConfig | None, at: tuple[int, int] | None
    ) -> None:
        price = self.require_price(config["provider"], config["model"]) if config is not None else None
        if self._max_tokens and (self.tokens >= self._max_tokens or self.tokens + estimate > self._max_tokens):
            facts = {"kind": "tokens", "limit": self._max_tokens, "spent": self.tokens, "next": estimate}
            self._refuse(session, at, facts)
        cached = min(estimate, self._cached.get(session.id, 0)) if session is not None and at is not None else 0
        coming = price.cost(estimate - cached, 0, cached) if price is not None else 0.0
        free = price is not None and not any(price)
        if self._max_cost and not free and (self.cost >= self._max_cost or self.cost + coming > self._max_cost):
            facts = {"kind": "cost", "limit": self._max_cost, "spent": round(self.cost, 9), "next": round(coming, 9)}
            self._refuse(session, at, facts)

    def _refuse(self, session: Session | None, at: tuple[int, int] | None, facts: dict[str, Any]) -> None:
        if session is not None and at is not None and session.open_turn is not None:
            session.append(TYPE, {"turn": at[0], "step": at[1], **facts})
        raise BudgetError(in_words(facts))

    # ----------------------------------------------------------------------------------------------------- after

    async def _counted(self, request: Request, estimate: int, chunks: Any) -> AsyncGenerator[Chunk, None]:
        """Pass a stream on and count what it reports; of several reports the last counts."""
        if inspect.isawaitable(chunks):
            chunks = await chunks
        reported: TokenUsage | None = None
        characters = 0
        finish: str | None = None
        try:
            async for chunk in chunks:
                if chunk["type"] == "usage":
                    reported = chunk["usage"]
                elif chunk["type"] == "finish":
                    finish = chunk["reason"]["kind"]
                else:
                    characters += len(chunk.get("text") or chunk.get("argumentsDelta") or "")
                yield chunk
        finally:
            if reported is not None and any(reported.values()):
                self._count(request, reported)
            elif finish not in (None, "error", "aborted"):  # a provider that reports nothing is not free for that
                self._count(request, {"inputTokens": estimate, "outputTokens": -(-characters // DENSITY)})
            if (close := getattr(chunks, "aclose", None)) is not None:
                with trio.CancelScope(shield=True):
                    await close()

    def _count(self, request: Request, usage: TokenUsage) -> None:
        cache_read, cache_write = usage.get("cacheReadTokens", 0), usage.get("cacheWriteTokens", 0)
        self.tokens += usage["inputTokens"] + cache_read + cache_write + usage["outputTokens"]
        price = self._prices.of(request.provider, request.model)
        if price is not None:
            self.cost += price.cost(usage["inputTokens"], usage["outputTokens"], cache_read, cache_write)
        if request.loop_built:
            self._cached[request.session_id] = cache_read


def in_words(facts: dict[str, Any]) -> str:
    """What a `turn/limit` event of a budget says to a person."""
    if facts["kind"] == "cost":
        spent, limit, coming = (dollars(facts[key]) for key in ("spent", "limit", "next"))
        more = "" if facts["spent"] >= facts["limit"] else f"; the next request's input alone would cost {coming}"
        return f"stopped by the budget: {spent} spent of {limit}{more}"
    more = "" if facts["spent"] >= facts["limit"] else f"; the next request's input alone has {facts['next']:,}"
    return f"stopped by the budget: {facts['spent']:,} tokens spent of {facts['limit']:,}{more}"
