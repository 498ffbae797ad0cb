"""The two policies that ship with the pipeline: a tool's own time budget, and a nudge against repeating a
call.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from dsh.core.errors import ConfigError
from dsh.core.lossless import dumps
from dsh.core.messages import HookContext, text_block
from dsh.kernel.scope import Context
from dsh.tools.definition import Agent, Execution, ToolResult
from dsh.tools.errors import ToolTimeoutError
from dsh.tools.pipeline import PostToolDecision, failure
from dsh.tools.registry import Tools


def setup(ctx: Context) -> None:
    """Mount both with their defaults."""
    mount_timeout(ctx)
    RepeatGuard().mount(ctx)


def mount_timeout(ctx: Context) -> None:
    """Give the inner signal a deadline where the visible tool declares a budget (TL-90).

    The body is not raced: the signal fires, the body settles, and then whatever it gave is replaced.
    """
    tools = ctx.get(Tools)

    async def limited(execution: Execution, next: Callable[..., Awaitable[ToolResult]]) -> ToolResult:
        definition = tools.find(execution.agent, execution.name)
        budget = definition.timeout_ms if definition is not None else None
        if budget is None:
            return await next()
        signal = execution.signal.child()
        fired = False
        outcome: ToolResult | None = None
        error: Exception | None = None

        async def clock() -> None:
            nonlocal fired
            await trio.sleep(budget / 1000)
            fired = not signal.cancelled
            signal.cancel("timeout")

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clock)
                try:
                    outcome = await next(execution.with_signal(signal))
                except Exception as raised:  # noqa: BLE001 - carried out of the nursery, which would wrap it in a group
                    error = raised
                nursery.cancel_scope.cancel()
        finally:
            signal.detach()
        if fired:
            contexts = outcome.contexts if outcome is not None else ()
            return failure(ToolTimeoutError(budget), contexts=contexts)
        if error is not None:
            raise error
        assert outcome is not None
        return outcome

    ctx.on("tools/execute", limited)


class RepeatGuard:
    """Counts, per agent, consecutive calls of one tool with equal arguments, and says so at some counts
    (TL-91).

    Advisory: it only adds a message. `include` and `exclude` are name patterns that know `*` alone.
    """

    def __init__(
        self,
        thresholds: Iterable[int] = (3, 5, 8),
        preview_chars: int = 500,
        include: Iterable[str] = ("*",),
        exclude: Iterable[str] = (),
    ) -> None:
        self._thresholds = sorted(thresholds)
        if not self._thresholds or self._thresholds[0] < 2 or len(set(self._thresholds)) < len(self._thresholds):
            raise ConfigError("repeat thresholds must be distinct whole numbers of at least 2, and not be empty")
        self._preview = preview_chars
        self._include = [_pattern(p) for p in include]
        self._exclude = [_pattern(p) for p in exclude]
        self._last: dict[int, tuple[tuple[str, str], int]] = {}

    def mount(self, ctx: Context) -> None:
        ctx.on("tools/post-execute", self._post)
        ctx.on("agent/prompt-submit", self._prompt)
        ctx.on("agent/disposed", self._forget)

    def _tracked(self, name: str) -> bool:
        return any(p.fullmatch(name) for p in self._include) and not any(p.fullmatch(name) for p in self._exclude)

    def _forget(self, agent: Agent) -> None:
        self._last.pop(id(agent), None)

    async def _prompt(
        self,
        agent: Agent,
        content: Any,
        source: Any,
        signal: Any,
        next: Callable[..., Awaitable[Any]],
    ) -> Any:
        if source.get("kind") == "user":
            self._forget(agent)
        return await next()

    async def _post(
        self,
        execution: Execution,
        result: ToolResult,
        next: Callable[..., Awaitable[PostToolDecision]],
    ) -> PostToolDecision:
        decision = await next()
        agent = execution.agent
        if agent is None or not self._tracked(execution.name):
            return decision
        call = (execution.name, dumps(_sorted(execution.arguments)))
        last, count = self._last.get(id(agent), (call, 0))
        count = count + 1 if last == call else 1
        self._last[id(agent)] = (call, count)
        if count not in self._thresholds:
            return decision
        text = self._gentle(count) if count == self._thresholds[0] else self._detailed(call, count)
        context: HookContext = {
            "content": [text_block(text)],
            "source": {"kind": "plugin", "plugin": "repeat-guard"},
        }
        return {**decision, "additionalContexts": [context, *(decision.get("additionalContexts") or [])]}

    def _gentle(self, count: int) -> str:
        return f"The same tool call was made {count} times in a row. If its result does not help, try something else."

    def _detailed(self, call: tuple[str, str], count: int) -> str:
        name, arguments = call
        if len(arguments) > self._preview:
            arguments = arguments[: self._preview] + "…"
        return (
            f"{name} was called {count} times in a row with equal arguments: {arguments}\n"
            "Doing it again will not change the result. Take another way, or say what blocks you."
        )


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
