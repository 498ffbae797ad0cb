"""Every hook point of the program, on one screen. The contract of each is in the docs/spec file that owns it.

`notice`     observers, called in order; a failure is contained and changes nothing.
`serial`     awaited one after another in registration order; a failure propagates.
`waterfall`  listeners around a default: each gets `next` as its last argument and calls it at most once, or decides
             alone. The first registered is outermost (AL-82, CO-40).

`SUBJECTS` names the argument that a point is filtered by: a dispatch reaches the listeners without a scope and those
in the scope of that very object (SC-10, SC-15). A point that is not in it reaches every listener: registries change
for all (SC-16), and a listener of `llm/stream` reads the request's `session_id` (CO-29).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

Kind = Literal["notice", "serial", "waterfall"]

POINTS: Final[dict[str, Kind]] = {
    "session/created": "notice",  # session; the one notice where a failure counts: it vetoes the session (SE-54)
    "session/disposed": "notice",  # session
    "session/event": "notice",  # session, event (after commit)
    "agent/created": "notice",  # agent
    "agent/disposed": "notice",  # agent
    "agent/status": "notice",  # agent, status
    "agent/session-start": "notice",  # agent, "startup" | "resume" | "clear" | "compact"
    "agent/inbox/enqueue": "notice",  # agent, message
    "agent/inbox/dequeue": "notice",  # agent, message
    "agent/inbox/discard": "notice",  # agent, messages
    "agent/cancel-requested": "notice",  # agent, cause
    "agent/error": "notice",  # agent, turn, step, error
    "agent/prompt-submit": "waterfall",  # agent, content, source, signal -> PromptDecision
    "agent/session-prefix": "waterfall",  # agent, prefix, signal -> messages
    "agent/pre-step": "serial",  # agent, turn, step, signal
    "agent/request": "waterfall",  # agent, turn, step, config, signal -> config
    "agent/step-result": "waterfall",  # agent, turn, step, message, signal -> message
    "agent/request-error": "waterfall",  # agent, turn, step, error, failure, prior, signal -> fail | retry
    "agent/post-step": "serial",  # agent, turn, step, signal
    "agent/turn-continuation": "waterfall",  # agent, turn, default, signal -> ContinuationDecision
    "agent/turn-stop": "serial",  # agent, turn, signal -> stop or None; the first stop wins
    "agent-loop/config-start-failed": "notice",  # session id, error; the one without an agent
    "llm/stream": "waterfall",  # request -> async iterator of chunks
    "tools/change": "notice",  # -
    "tools/pre-execute": "waterfall",  # execution -> PreToolDecision
    "tools/execute": "waterfall",  # execution -> ToolResult
    "tools/post-execute": "waterfall",  # execution, result -> PostToolDecision
    "tools/result": "notice",  # execution, result
    "system-prompt/assemble": "waterfall",  # assembly, context -> assembly
    "system-prompt/change": "notice",  # -
}

Subject = Callable[[tuple[Any, ...]], object]


def _agent(args: tuple[Any, ...]) -> object:
    return args[0]


def _agent_of_execution(args: tuple[Any, ...]) -> object:
    return args[0].agent


def _agent_of_session(args: tuple[Any, ...]) -> object:
    return args[0].scope_key


def _agent_of_assembly(args: tuple[Any, ...]) -> object:
    return args[1].agent


SUBJECTS: Final[dict[str, Subject]] = {
    **{point: _agent for point in POINTS if point.startswith("agent/")},
    **{point: _agent_of_session for point in POINTS if point.startswith("session/")},
    **dict.fromkeys(("tools/pre-execute", "tools/execute", "tools/post-execute", "tools/result"), _agent_of_execution),
    "system-prompt/assemble": _agent_of_assembly,
}
