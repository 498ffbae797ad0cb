"""The `bash` tool: argument checks, working directory, the harness's variables, rendering
(docs/spec/bash.md).

The executor below it does the running. Background runs need the task runtime and escalation needs a sandbox;
without them neither is advertised, and both are refused when a model asks anyway (TC-1, BA-38, BA-42).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from dsh.agent.prompt import Prompt
from dsh.capabilities.bash.environment import ShellEnvironment
from dsh.capabilities.bash.executor import BashExecRequest, BashRunResult, Executor
from dsh.core.errors import ToolError
from dsh.core.lossless import JSON, mend_surrogates
from dsh.core.messages import text_of
from dsh.kernel.scope import Context
from dsh.tools.definition import Execution, ToolDefinition, View, define
from dsh.tools.errors import AbortError
from dsh.tools.registry import Tools

_PROMPT = (
    "Every bash result that did not exit 0 ends with a marker such as [exit code: 1]. Look at it before you go on."
)
_STATUS = re.compile(r"\n\[(?:exit code: (\d+)|killed by signal: (\w+))\]\Z")


def setup(ctx: Context) -> None:
    environment = ShellEnvironment()
    ctx.provide(ShellEnvironment, environment)
    ctx.get(Tools).register(ctx, bash_tool(Executor(ctx.host.config), environment))
    prompt = ctx.host.find(Prompt)
    if prompt is not None:
        prompt.section(ctx, name="tool:bash", order=105, text=_PROMPT)


def bash_tool(executor: Executor, environment: ShellEnvironment) -> ToolDefinition:
    """The tool over an executor. It declares no budget of its own: the executor's limit governs (BA-45)."""

    async def run(args: Any, execution: Execution) -> JSON:
        _refuse(args)
        request = BashExecRequest(
            command=args["command"],
            workdir=os.path.join(os.path.realpath(execution.cwd), args.get("workdir", "")),
            timeout_ms=args.get("timeoutMs"),
            signal=execution.signal,
            dsh_env=environment.collect(execution.agent),
        )
        result = await executor.run(executor.resolve(request))
        if result.aborted:
            raise AbortError("command aborted")
        return _value(result)

    stream = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "text": {"type": "string", "required": True},
            "truncated": {"type": "boolean", "required": True},
            "spillPath": {"type": "string"},
        },
    }
    return define(
        name="bash",
        description=(
            "Run a command with bash -c in a fresh shell: no state is kept between calls, stdin is empty, "
            "and processes left in the background are ended with the call."
        ),
        parameters={
            "command": {"type": "string", "required": True},
            "description": {"type": "string", "description": "What it does, in 5-10 words"},
            "timeoutMs": {"type": "number", "description": "Time limit in ms"},
            "workdir": {"type": "string", "description": "Directory to run in, if not the workspace"},
        },
        output={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "kind": {"type": "string", "const": "foreground", "required": True},
                "exitCode": {"oneOf": [{"type": "integer"}, {"type": "null"}], "required": True},
                "signal": {"oneOf": [{"type": "string"}, {"type": "null"}], "required": True},
                "timedOut": {"type": "boolean", "required": True},
                "aborted": {"type": "boolean", "required": True},
                "timeoutMs": {"type": "number", "required": True},
                "stdout": {**stream, "required": True},
                "stderr": {**stream, "required": True},
            },
        },
        render=lambda _, value: render(value),
        execute=run,
        present_call=_present_call,
        present_result=_present_result,
    )


def _refuse(args: Mapping[str, Any]) -> None:
    """What the schema cannot say, and what is not offered here (TC-1, TC-2)."""
    for name in ("command", "description"):
        if name in args and not args[name].strip():
            raise ToolError(f"{name} must not be blank")
    if args.get("run_in_background"):
        raise ToolError("run_in_background is not available")
    if "sandbox_permissions" in args or "justification" in args:
        raise ToolError("sandbox_permissions and justification are not available: commands are not sandboxed")


def _value(result: BashRunResult) -> dict[str, JSON]:
    """The canonical value (BA-43)."""
    value: dict[str, JSON] = {
        "kind": "foreground",
        "exitCode": result.exit_code,
        "signal": result.signal,
        "timedOut": result.timed_out,
        "aborted": result.aborted,
        "timeoutMs": result.timeout_ms,
    }
    for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
        value[name] = {"text": output.text, "truncated": output.truncated}
        if output.spill_path is not None:
            value[name]["spillPath"] = mend_surrogates(output.spill_path)
    return value


def render(value: Mapping[str, Any]) -> str:
    """What the model reads: output, then markers, the exit marker last; exit 0 has none (BA-47, BA-48)."""
    text = _stream(value["stdout"])
    errors = _stream(value["stderr"])
    if errors:
        text = _line(text) + "[stderr]\n" + errors
    text = text or "(no output)"
    if value["timedOut"]:
        text = _line(text) + f"[timed out after {value['timeoutMs']:g}ms]"
    if value["signal"] is not None:
        text = _line(text) + f"[killed by signal: {value['signal']}]"
    elif value["exitCode"] != 0:
        text = _line(text) + f"[exit code: {value['exitCode']}]"
    return text


def _stream(output: Mapping[str, Any]) -> str:
    text: str = output["text"]
    if not output["truncated"]:
        return text
    return _line(text) + f"[output truncated; full output: {output.get('spillPath', '(unavailable)')}]"


def _line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def exit_status(text: str) -> tuple[int | None, str | None]:
    """Exit code and signal name from a stored result's text; no marker means exit 0 (BA-49)."""
    found = _STATUS.search("\n" + text)
    if found is None:
        return 0, None
    return (None, found[2]) if found[1] is None else (int(found[1]), None)


def _present_call(args: Any) -> View:
    view: dict[str, Any] = {"card": "terminal", "title": args["command"]}
    if "description" in args:
        view["description"] = args["description"]
    if "workdir" in args:
        view["cwd"] = args["workdir"]
    return view


def _present_result(args: Any, result: Mapping[str, Any]) -> View | None:
    if result["isError"]:
        return None
    text = text_of(result["content"])
    code, signal = exit_status(text)
    view: dict[str, Any] = {"card": "terminal", "output": text}
    if signal is not None:
        view["signal"] = signal
    else:
        view["exitCode"] = code
    return view
