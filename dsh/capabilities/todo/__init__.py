"""The `todo_write` tool: the model's own list of work, kept as the last `todo/write` event of its session."""

from __future__ import annotations

from typing import Any

from dsh.core.errors import ToolError
from dsh.core.lossless import JSON
from dsh.kernel.scope import Context
from dsh.tools.definition import Execution, ToolDefinition, View, define
from dsh.tools.registry import Tools

_STATUS = {"type": "string", "enum": ["pending", "in_progress", "completed"]}


def setup(ctx: Context) -> None:
    ctx.get(Tools).register(ctx, todo_tool())


async def _write(args: Any, execution: Execution) -> JSON:
    """Replace the list (SE-60 to SE-62); a list that breaks a rule leaves the log unchanged."""
    if execution.agent is None:
        raise ToolError("todo_write needs a session")
    todos = [{"content": todo["content"].strip(), "status": todo["status"]} for todo in args["todos"]]
    contents = [todo["content"] for todo in todos]
    if not all(contents):
        raise ToolError("every todo needs a content that is not blank")
    twice = next((c for i, c in enumerate(contents) if c in contents[:i]), None)
    if twice is not None:
        raise ToolError(f"this todo is listed twice: {twice}")
    statuses = [todo["status"] for todo in todos]
    if statuses.count("in_progress") > 1:
        raise ToolError("only one todo can be in_progress")
    execution.agent.session.append("todo/write", {"todos": todos})
    counts = {
        "pending": statuses.count("pending"),
        "inProgress": statuses.count("in_progress"),
        "completed": statuses.count("completed"),
    }
    return {"todos": todos, "counts": counts}


def _render(_: Any, value: Any) -> str:
    counts = value["counts"]
    return (
        f"Updated todo list: {counts['pending']} pending, {counts['inProgress']} in progress, "
        f"{counts['completed']} completed."
    )


def _present(args: Any) -> View:
    return {"card": "generic", "title": f"Todo list ({len(args['todos'])})", "rawInput": args}


def todo_tool() -> ToolDefinition:
    item = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "content": {"type": "string", "required": True},
            "status": {**_STATUS, "required": True},
        },
    }
    count = {"type": "integer", "required": True}
    return define(
        name="todo_write",
        description=(
            "Replace your todo list, to plan work of several steps. At most one item is in_progress; "
            "mark items completed as soon as they are."
        ),
        parameters={"todos": {"type": "array", "items": item, "required": True}},
        output={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "todos": {"type": "array", "items": item, "required": True},
                "counts": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"pending": count, "inProgress": count, "completed": count},
                    "required": True,
                },
            },
        },
        render=_render,
        execute=_write,
        present_call=_present,
    )
