"""Compares each request that the loop built with the log that it should be built from (SE-33, SE-34).

For development and tests: `DSH_CHECK=1` or `install`. It reads the log anew, event by event, and shares no code with
what derives messages in the program, so the two check each other; a long session pays for that with every request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsh.core.errors import InvariantError
from dsh.core.events import Event
from dsh.core.lossless import FrozenDict, FrozenList, dumps
from dsh.core.messages import EpochHeader, Request
from dsh.kernel.scope import Context
from dsh.session.sessions import Sessions


def install(ctx: Context) -> None:
    """Check every loop-built request, before any other `llm/stream` listener sees it."""
    sessions = ctx.get(Sessions)

    def check(request: Request, next_: Any) -> Any:
        if request.loop_built:
            compare(request, sessions)
        return next_()

    ctx.on("llm/stream", check, first=True)


def compare(request: Request, sessions: Sessions) -> None:
    """Raise InvariantError where the request and the log of its session differ."""
    session = sessions.live(request.session_id or "")
    if session is None:
        raise InvariantError(f"the request names no live session: {request.session_id!r}")
    events = session.events()
    start = _last(events, "step/start")
    logged = _last(events, "request/header")
    if start is None or logged is None:
        raise InvariantError("a request is made before its step/start and request/header are logged")
    header: EpochHeader = logged["data"]["header"]
    messages = [*header.get("messagePrefix", []), *derive(events[: start["seq"]])]
    for what, asked, expected in (
        ("messages", list(request.messages), messages),
        ("config", request.config, header["config"]),
        ("system", request.system or "", header.get("system", "")),
        ("tools", list(request.tools), header.get("tools", [])),
    ):
        if dumps(asked) != dumps(expected):
            both = f"{dumps(asked)} is not {dumps(expected)}"
            raise InvariantError(f"the {what} of a request differ from the log: {both}")
    if not all(_frozen(part) for part in (request.config, *request.messages, *request.tools)):
        raise InvariantError("a request of the loop can be changed")


def derive(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The messages of a log (SE-10, SE-11, SE-20, SE-21), from its events alone."""
    surface: list[Event] = []
    for event in events:
        op = event.get("surfaceOp")
        if op == "append":
            surface.append(event)
        elif op is not None:
            at = [e["seq"] for e in surface]
            surface[at.index(op["start"]) : at.index(op["end"]) + 1] = [event]
    return [m for m in map(_message, surface) if m is not None]


def _message(event: Event) -> dict[str, Any] | None:
    data = event["data"]
    if event["type"] == "assistant/message":
        if not data["content"]:
            return None
        return {"role": "assistant", "content": data["content"], "provenance": data["provenance"]}
    if event["type"] != "tool/result":
        return {"role": "user", "content": data["content"]}
    result = {"toolCallId": data["callId"], "content": data["content"], "isError": data["isError"]}
    return {"role": "user", "content": [{"type": "tool-result", **result}]}


def _last(events: list[Event], type: str) -> Event | None:
    return next((e for e in reversed(events) if e["type"] == type), None)


def _frozen(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value, FrozenDict) and all(_frozen(v) for v in value.values())
    if isinstance(value, list):
        return isinstance(value, FrozenList) and all(_frozen(v) for v in value)
    return True
