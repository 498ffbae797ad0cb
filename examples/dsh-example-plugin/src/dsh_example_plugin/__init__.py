"""Dice for dsh. `setup` is called once per run; what it registers through `ctx` is undone with the plugin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dsh.agent.agent import Agent
from dsh.agent.decisions import PromptDecision
from dsh.core.events import event_type
from dsh.core.kinds import content_block
from dsh.core.messages import Block, HookContext, Source, text_block, text_of
from dsh.kernel.scope import Context
from dsh.kernel.signal import Signal
from dsh.llm.service import LlmService
from dsh.tools.registry import Tools

from .adapter import Parrot
from .tool import roll_tool, throw_as_text

DSH_INTERFACE = 1

DICE: Source = {"kind": "plugin", "plugin": "dice"}
HINT = "Use the tool roll for dice; never make numbers up."


def setup(ctx: Context) -> None:
    # An event type: log entries of our own. Nobody has to know it: every reader of the log carries it along.
    ctx.declare(event_type, "dice/rolled")
    # A block kind. `text` is what a model reads that knows nothing of dice.
    ctx.declare(content_block, "dice/throw", text=throw_as_text)
    ctx.get(Tools).register(ctx, roll_tool())
    ctx.get(LlmService).register(ctx, Parrot(), ["parrot"])
    ctx.on("agent/prompt-submit", mention_dice)


async def mention_dice(
    agent: Agent,
    content: list[Block],
    source: Source,
    signal: Signal,
    next_: Callable[[], Awaitable[PromptDecision]],
) -> PromptDecision:
    """A hook around the prompt: let it pass, and add a context where it asks for dice."""
    decision = await next_()
    if decision["kind"] == "block" or "roll" not in text_of(content):
        return decision
    hint: HookContext = {"content": [text_block(HINT)], "source": DICE}
    return {**decision, "additionalContexts": [*decision.get("additionalContexts", []), hint]}
