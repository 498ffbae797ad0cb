"""The tools `glob` and `grep` over ripgrep (TC-20 to TC-27); without `rg` on the path there are none."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from functools import partial
from itertools import groupby
from typing import Any

from dsh.agent.prompt import Prompt
from dsh.capabilities.fs_search.ripgrep import Ripgrep
from dsh.core.errors import ConfigError, ToolError
from dsh.core.lossless import JSON
from dsh.kernel.scope import Context
from dsh.tools.definition import Execution, ToolDefinition, View, define
from dsh.tools.registry import Tools

_PROMPTS = {
    "glob": (103, "Use glob to find files by name."),
    "grep": (104, "Use grep to search file contents; it is faster than shell commands."),
}
_TEXT = {"type": "string", "required": True}
_NOT_SAVED = "The full result could not be saved; narrow the search."
_BRACES = re.compile(r"\{[^{}]*\}")


def setup(ctx: Context) -> None:
    program = shutil.which("rg")
    if program is None:
        ctx.host.report("glob and grep", ConfigError("ripgrep (rg) is not installed, so these tools are not offered"))
        return
    config = ctx.host.config
    rg = Ripgrep(program, config["search_tools.raw_output_max_bytes"])
    budget = config["search_tools.timeout_ms"]
    tools = ctx.get(Tools)
    tools.register(ctx, glob_tool(rg, config["search_tools.glob_max_results"], budget))
    line_bytes = config["search_tools.grep_max_line_bytes"]
    tools.register(ctx, grep_tool(rg, config["search_tools.grep_max_matches"], line_bytes, budget))
    prompt = ctx.host.find(Prompt)
    if prompt is not None:
        for name, (order, text) in _PROMPTS.items():
            prompt.section(ctx, name=f"tool:{name}", order=order, text=text)


def glob_tool(rg: Ripgrep, shown: int, budget_ms: float) -> ToolDefinition:
    """`shown` is the number of paths the model gets; the value has all."""
    return define(
        name="glob",
        description="List files matching a glob such as **/*.py, oldest first, hidden and ignored ones too.",
        parameters={
            "pattern": _TEXT,
            "path": {"type": "string", "description": "Directory to search, if not the workspace"},
        },
        output={
            "type": "object",
            "additionalProperties": False,
            "properties": {"paths": {"type": "array", "items": {"type": "string"}, "required": True}},
        },
        render=partial(_render_glob, shown),
        execute=partial(_glob, rg),
        timeout_ms=budget_ms,
        present_call=partial(_present, "Glob"),
    )


async def _glob(rg: Ripgrep, args: Any, execution: Execution) -> JSON:
    _not_blank(args, "pattern", "path")
    cwd = os.path.realpath(execution.cwd)
    return {"paths": await rg.files(args["pattern"], args.get("path"), cwd)}


def _render_glob(limit: int, _: Any, value: Any) -> str:
    paths = value["paths"]
    if not paths:
        return "No files found"
    text = "\n".join(_one_line(path) for path in paths[:limit])
    return text if len(paths) <= limit else f"{text}\n\n(Showing {limit} of {len(paths)} paths. {_NOT_SAVED})"


def grep_tool(rg: Ripgrep, shown: int, line_bytes: int, budget_ms: float) -> ToolDefinition:
    """The model gets `shown` matches and `line_bytes` of a line; the value has all."""
    return define(
        name="grep",
        description="Search file contents with a regular expression (Rust syntax); skips ignored files.",
        parameters={
            "pattern": _TEXT,
            "path": {"type": "string", "description": "File or directory to search, if not the workspace"},
            "include": {"type": "string", "description": "Only files matching this glob, such as *.{ts,tsx}"},
        },
        output={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "matches": {
                    "type": "array",
                    "required": True,
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "path": _TEXT,
                            "lineNumber": {"type": "integer", "required": True},
                            "line": _TEXT,
                        },
                    },
                }
            },
        },
        render=partial(_render_grep, shown, line_bytes),
        execute=partial(_grep, rg),
        timeout_ms=budget_ms,
        present_call=partial(_present, "Grep"),
    )


async def _grep(rg: Ripgrep, args: Any, execution: Execution) -> JSON:
    if not args["pattern"]:
        raise ToolError("pattern must not be empty")
    _not_blank(args, "path", "include")
    include: str | None = args.get("include")
    if include is not None and (include.startswith("!") or "," in _BRACES.sub("", include)):
        raise ToolError("include must be one glob such as *.py or *.{ts,tsx}, without ! or a list")
    cwd = os.path.realpath(execution.cwd)
    return {"matches": await rg.matches(args["pattern"], args.get("path"), include, cwd)}


def _render_grep(limit: int, line_bytes: int, _: Any, value: Any) -> str:
    matches = value["matches"]
    if not matches:
        return "No matches found"
    count = f"{len(matches)} match{'' if len(matches) == 1 else 'es'}"
    head = f"Found {count}" if len(matches) <= limit else f"Found {limit} of {count}"
    groups = [
        "\n".join([_one_line(path), *(f"Line {m['lineNumber']}: {_cut(m['line'], line_bytes)}" for m in rows)])
        for path, rows in groupby(matches[:limit], key=lambda m: m["path"])
    ]
    tail = [] if len(matches) <= limit else [f"({_NOT_SAVED})"]
    return "\n\n".join([head, *groups, *tail])


def _cut(line: str, limit: int) -> str:
    """At most `limit` bytes of a line, cut at a character border (TC-25)."""
    data = line.encode()
    return line if len(data) <= limit else data[:limit].decode("utf-8", "ignore") + " (line truncated)"


def _one_line(path: str) -> str:
    """A path on one line: a line break in a name must not look like two paths."""
    return path.replace("\n", "\\n").replace("\r", "\\r")


def _not_blank(args: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if name in args and not args[name].strip():
            raise ToolError(f"{name} must not be blank")


def _present(title: str, args: Any) -> View:
    view: dict[str, Any] = {"card": "generic", "title": f"{title} {args['pattern']}", "kind": "search"}
    if "path" in args:
        view["locations"] = [{"path": args["path"]}]
    return view
