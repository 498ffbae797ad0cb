"""The tool `roll`, the event it logs and the block it answers with."""

from __future__ import annotations

import random
from typing import Any

from dsh.core.errors import ToolError
from dsh.tools.definition import Execution, ToolDefinition, define

COUNT = {"type": "integer", "required": True}


async def _roll(args: Any, execution: Execution) -> dict[str, Any]:
    """The value of a call: plain JSON that fits `output` below. A ToolError is told to the model."""
    if not (1 <= args["dice"] <= 100 and 2 <= args["sides"] <= 1000):
        raise ToolError("1 to 100 dice with 2 to 1000 sides, please")
    values = [random.randint(1, args["sides"]) for _ in range(args["dice"])]
    throw = {"sides": args["sides"], "values": values}
    if execution.agent is not None:
        execution.agent.session.append("dice/rolled", {**throw, "text": throw_as_text(throw)})  # dsh show prints `text`
    return throw


def _render(args: Any, value: Any) -> list[Any]:
    """The content of the tool's result, for the model: a block of our own kind."""
    return [{"type": "dice/throw", **value}]


def throw_as_text(block: Any) -> str:
    """What a model reads of such a block; it must be the same each time."""
    values = block["values"]
    return f"{len(values)}d{block['sides']}: {', '.join(map(str, values))}, sum {sum(values)}"


def roll_tool() -> ToolDefinition:
    return define(
        name="roll",
        description="Throw dice.",
        parameters={
            "dice": {"type": "integer", "description": "how many", "required": True},
            "sides": {"type": "integer", "description": "sides of each", "required": True},
        },
        output={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "sides": COUNT,
                "values": {"type": "array", "items": {"type": "integer"}, "required": True},
            },
        },
        render=_render,
        execute=_roll,
        parallel=True,  # calls may overlap
    )
