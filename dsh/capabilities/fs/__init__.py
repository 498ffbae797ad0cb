"""The tools `read`, `write` and `edit` (docs/spec/filesystem.md): arguments, order of checks, rendering.

`local` does the file operations, `fence` bounds the mutations, `observed` keeps a session from replacing what
it has not seen, `window` and `edit` are the text work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from dsh.agent.prompt import Prompt
from dsh.capabilities.fs import local
from dsh.capabilities.fs.diff import diffs
from dsh.capabilities.fs.edit import EditRequest, lf
from dsh.capabilities.fs.errors import not_found, not_regular
from dsh.capabilities.fs.fence import writable_target
from dsh.capabilities.fs.observed import Observations
from dsh.capabilities.fs.window import Limits, Window
from dsh.core.errors import ToolError
from dsh.core.lossless import JSON, mend_surrogates
from dsh.kernel.scope import Context
from dsh.tools.definition import Execution, ToolDefinition, View, define
from dsh.tools.registry import Tools

_PROMPTS = {
    "read": (100, "Use read rather than shell commands to look at files."),
    "write": (101, "Use write for new files and full rewrites; an existing file must be read first."),
    "edit": (102, "Use edit for changes to an existing file, after reading it."),
}
_TEXT = {"type": "string", "required": True}


def setup(ctx: Context) -> None:
    config = ctx.host.config
    limits = Limits(config["read.limit"], config["read.max_line_length"], config["read.max_bytes"])
    observations = Observations()
    ctx.on("session/disposed", observations.forget)
    tools = ctx.get(Tools)
    for definition in (read_tool(observations, limits), write_tool(observations), edit_tool(observations)):
        tools.register(ctx, definition)
    prompt = ctx.host.find(Prompt)
    if prompt is not None:
        for name, (order, text) in _PROMPTS.items():
            prompt.section(ctx, name=f"tool:{name}", order=order, text=text)


# --- read
# -----------------------------------------------------------------------------------------------------------


def read_tool(observations: Observations, limits: Limits) -> ToolDefinition:
    return define(
        name="read",
        description="Read a text file. Returns numbered lines; the numbers are not part of the file.",
        parameters={
            "file_path": _TEXT,
            "offset": {"type": "number", "description": "First line, from 1"},
            "limit": {"type": "number", "description": f"Number of lines, at most {limits.lines}"},
        },
        output={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "path": _TEXT,
                "offset": {"type": "integer", "required": True},
                "lines": {
                    "type": "array",
                    "required": True,
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"number": {"type": "integer", "required": True}, "text": _TEXT},
                    },
                },
                "totalLines": {"type": "integer", "required": True},
                "truncatedByBytes": {"type": "boolean", "const": True},
            },
        },
        render=_render_read,
        execute=partial(_read, observations, limits),
        parallel=True,
        present_call=_present_read,
    )


async def _read(observations: Observations, limits: Limits, args: Any, execution: Execution) -> JSON:
    offset = _whole("offset", args.get("offset", 1))
    limit = _whole("limit", args.get("limit", limits.lines))
    if limit > limits.lines:
        raise ToolError(f"limit must not be larger than {limits.lines}")
    target = local.resolve(args["file_path"], execution.cwd)
    info = local.stat(target)
    if info is None:
        raise not_found(target.display)
    if info.type != "file":
        raise not_regular(target.display)
    window = Window(offset, limit, limits)
    for chunk in local.stream_text(target):
        window.feed(chunk)
        await trio.lowlevel.checkpoint()
    window.finish()
    observations.record(execution.agent, target, info.version)
    value: dict[str, JSON] = {
        "path": mend_surrogates(target.display),
        "offset": offset,
        "lines": window.lines,
        "totalLines": window.total,
    }
    return {**value, "truncatedByBytes": True} if window.capped else value


def _whole(name: str, value: float) -> int:
    if not float(value).is_integer() or value < 1:
        raise ToolError(f"{name} must be a positive whole number")
    return int(value)


def _render_read(_: Any, value: Any) -> str:
    """The envelope of FS-67."""
    lines = value["lines"]
    total = value["totalLines"]
    first = lines[0]["number"] if lines else value["offset"]
    last = lines[-1]["number"] if lines else first - 1
    if value.get("truncatedByBytes"):
        footer = f"(Output capped. Showing lines {first}-{last}. Use offset={last + 1} to continue.)"
    elif last < total:
        footer = f"(Showing lines {first}-{last} of {total}. Use offset={last + 1} to continue.)"
    else:
        footer = f"(End of file - total {total} lines)"
    body = "".join(f"{line['number']}: {line['text']}\n" for line in lines)
    return _envelope(value["path"], f"{body}\n{footer}" if lines else footer)


def _envelope(path: str, content: str) -> str:
    return f"<path>{path}</path>\n<type>file</type>\n<content>\n{content}\n</content>"


def _present_read(args: Any) -> View:
    location: dict[str, Any] = {"path": args["file_path"]}
    if "offset" in args:
        location["line"] = args["offset"]
    return {"card": "generic", "title": f"Read {args['file_path']}", "kind": "read", "locations": [location]}


# --- write
# ----------------------------------------------------------------------------------------------------------


def write_tool(observations: Observations) -> ToolDefinition:
    return define(
        name="write",
        description="Create a file, or replace one you have read. Parent folders are made.",
        parameters={"file_path": _TEXT, "content": _TEXT},
        output={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "path": _TEXT,
                "operation": {"type": "string", "enum": ["create", "update"], "required": True},
                "before": {"oneOf": [{"type": "string"}, {"type": "null"}], "required": True},
                "after": _TEXT,
            },
        },
        render=lambda _, value: _envelope(
            value["path"], "Created file" if value["operation"] == "create" else "Updated file"
        ),
        presentation_meta=_write_meta,
        execute=partial(_write, observations),
        present_call=lambda args: _diff_card(args, [_whole_file(args)]),
        present_result=_present_write,
    )


async def _write(observations: Observations, args: Any, execution: Execution) -> JSON:
    _refuse_escalation(args)
    await trio.lowlevel.checkpoint_if_cancelled()
    intent = observations.write_intent(execution.agent, local.resolve(args["file_path"], execution.cwd))
    target = writable_target(args["file_path"], execution.cwd)
    outcome = local.write_text(target, args["content"], intent, execution.signal)
    observations.record(execution.agent, target, outcome.version)
    return {
        "path": mend_surrogates(target.display),
        "operation": outcome.operation,
        "before": outcome.before,
        "after": outcome.after,
    }


def _write_meta(args: Any, value: Any) -> JSON:
    created = value["operation"] == "create"
    return {"diffs": [] if created else diffs(args["file_path"], value["before"] or "", value["after"])}


def _whole_file(args: Mapping[str, Any]) -> dict[str, JSON]:
    return {"path": args["file_path"], "oldText": None, "newText": lf(args["content"])}


def _present_write(args: Any, result: Mapping[str, Any]) -> View | None:
    if result["isError"]:
        return None
    return {"card": "diff", "diffs": _logged_diffs(result) or [_whole_file(args)]}


# --- edit
# -----------------------------------------------------------------------------------------------------------


def edit_tool(observations: Observations) -> ToolDefinition:
    return define(
        name="edit",
        description=(
            "Replace old_string by new_string in a file you have read. old_string must match exactly, "
            "without line numbers, and only once unless replace_all is set."
        ),
        parameters={
            "file_path": _TEXT,
            "old_string": _TEXT,
            "new_string": _TEXT,
            "replace_all": {"type": "boolean"},
        },
        output={
            "type": "object",
            "additionalProperties": False,
            "properties": {"path": _TEXT, "before": _TEXT, "after": _TEXT},
        },
        render=_render_edit,
        presentation_meta=lambda args, value: {"diffs": diffs(args["file_path"], value["before"], value["after"])},
        execute=partial(_edit, observations),
        present_call=lambda args: _diff_card(
            args, [{"path": args["file_path"], "oldText": args["old_string"], "newText": args["new_string"]}]
        ),
        present_result=_present_edit,
    )


async def _edit(observations: Observations, args: Any, execution: Execution) -> JSON:
    _refuse_escalation(args)
    if not args["old_string"]:
        raise ToolError("old_string must not be empty; use write to create a file")
    if lf(args["old_string"]) == lf(args["new_string"]):
        raise ToolError("old_string and new_string are the same")
    await trio.lowlevel.checkpoint_if_cancelled()
    version = observations.edit_version(execution.agent, local.resolve(args["file_path"], execution.cwd))
    target = writable_target(args["file_path"], execution.cwd)
    edit = EditRequest(args["old_string"], args["new_string"], args.get("replace_all", False))
    outcome = local.edit_text(target, edit, version, execution.signal)
    observations.record(execution.agent, target, outcome.version)
    return {"path": mend_surrogates(target.display), "before": outcome.before, "after": outcome.after}


def _render_edit(args: Any, value: Any) -> str:
    done = "All occurrences were replaced." if args.get("replace_all") else "The file was updated."
    return _envelope(value["path"], done)


def _present_edit(args: Any, result: Mapping[str, Any]) -> View | None:
    logged = None if result["isError"] else _logged_diffs(result)
    return {"card": "diff", "diffs": logged} if logged else None


def _diff_card(args: Mapping[str, Any], shown: list[Any]) -> View:
    path = args["file_path"]
    return {"card": "diff", "title": path, "diffs": shown, "locations": [{"path": path}]}


def _logged_diffs(result: Mapping[str, Any]) -> list[Any]:
    """The diffs kept with an old result, empty if there are none or they are malformed (FS-68)."""
    meta = result.get("meta")
    found = meta.get("diffs") if isinstance(meta, dict) else None
    if not isinstance(found, list) or not all(
        isinstance(d, dict)
        and isinstance(d.get("path"), str)
        and isinstance(d.get("newText"), str)
        and isinstance(d.get("oldText", 0), str | None)
        for d in found
    ):
        return []
    return found


def _refuse_escalation(args: Mapping[str, Any]) -> None:
    if "sandbox_permissions" in args or "justification" in args:
        raise ToolError("sandbox_permissions and justification are not available here")
