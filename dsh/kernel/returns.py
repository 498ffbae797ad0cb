"""What a plugin's listener must return at each waterfall, and at the serial point that asks something.

One table, and one place that asks it (hooks.py, around each call of a plugin's listener), so a wrong value is refused
where it comes from, with the names of the point and of the plugin, before anything is made of it. The program's own
listeners are held to the same by their types. Loaded when the first plugin is called at such a point.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from dsh.core.errors import InvariantError
from dsh.core.lossless import NotJson, freeze
from dsh.core.messages import chunk_fault, content_fault, what_it_is

Check = Callable[[Any, tuple[Any, ...]], "str | None"]  # the value, the point's arguments -> what is wrong with it


def check_plain(value: Any) -> None:
    """Raise InvariantError for an async listener where nobody can wait."""
    if inspect.iscoroutine(value):
        value.close()
        raise InvariantError("a listener here must be a plain function, and this one is async")


def check_awaitable(value: Any) -> None:
    """Raise InvariantError where a listener that has to be asynchronous returned this at once."""
    if not inspect.isawaitable(value):
        raise InvariantError(f"a listener here must be an async function, and this one returned {what_it_is(value)}")


def check(point: str, value: Any, args: tuple[Any, ...]) -> None:
    """Raise InvariantError for what a listener must not return at this point."""
    fault = RETURNS[point](value, args)
    if fault is None and isinstance(value, (dict, list)):
        try:
            freeze(value)
        except NotJson as error:
            fault = error.message
    if fault is not None:
        raise InvariantError(f"a listener returned a wrong value: {fault}") from None  # asked about another failure


def check_chunk(chunk: Any) -> None:
    """Raise InvariantError for what is no chunk of a model's stream."""
    if fault := chunk_fault(chunk):
        raise InvariantError(f"a listener returned a wrong value: {fault}")


def _tagged(tag: str, *known: str, then: Callable[[dict[str, Any]], str | None] = lambda _: None) -> Check:
    """A decision: an object whose `tag` is one of `known`, its other fields checked by `then`."""
    words = " or ".join(repr(k) for k in known)

    def fault(value: Any, args: tuple[Any, ...]) -> str | None:
        if not isinstance(value, dict):
            return f"it is {what_it_is(value)} and must be an object with {tag} {words}"
        if value.get(tag) not in known:
            return f"its {tag} is {value.get(tag)!r:.80} and must be {words}"
        return then(value)

    return fault


def _is_text(value: dict[str, Any], *fields: str) -> str | None:
    for field in fields:
        if not isinstance(value.get(field, ""), str):
            return f"its {field} is {what_it_is(value[field])} and must be a text"
    return None


def _contexts(value: dict[str, Any]) -> str | None:
    contexts = value.get("additionalContexts", [])
    if not isinstance(contexts, list):
        return f"its additionalContexts is {what_it_is(contexts)} and must be a list"
    return next((f"additionalContexts: {fault}" for c in contexts if (fault := _context(c))), None)


def _context(value: Any) -> str | None:
    """Content with a source: a context, or the reason to go on."""
    if not isinstance(value, dict):
        return f"it is {what_it_is(value)} and must be an object with content and source"
    source = value.get("source")
    if not isinstance(source, dict) or not isinstance(source.get("kind"), str):
        return f"its source is {what_it_is(source)} and must be an object with a kind"
    return content_fault(value.get("content"))


def _prompt(value: dict[str, Any]) -> str | None:
    content = content_fault(value["content"]) if "content" in value else None
    return content or _contexts(value) or _is_text(value, "reason")


def _continuation(value: dict[str, Any]) -> str | None:
    return f"reason: {fault}" if "reason" in value and (fault := _context(value["reason"])) else None


def _after(value: dict[str, Any]) -> str | None:
    for field in ("content", "feedback"):
        if value.get(field) is not None and (fault := content_fault(value[field])):
            return fault if field == "content" else f"feedback: {fault}"
    return _contexts(value)


def _message(value: Any, role: str | None = None) -> str | None:
    if not isinstance(value, dict):
        return f"it is {what_it_is(value)} and must be a message"
    roles = ("user", "assistant", "system") if role is None else (role,)
    if value.get("role") not in roles:
        return f"its role is {value.get('role')!r:.80} and must be {' or '.join(map(repr, roles))}"
    return content_fault(value.get("content"))


def _messages(value: Any, args: tuple[Any, ...]) -> str | None:
    if not isinstance(value, list):
        return f"it is {what_it_is(value)} and must be a list of messages"
    return next((f"[{n}]: {fault}" for n, m in enumerate(value) if (fault := _message(m))), None)


def _config(value: Any, args: tuple[Any, ...]) -> str | None:
    if not isinstance(value, dict):
        return f"it is {what_it_is(value)} and must be the configuration of a call"
    for field in ("provider", "model"):
        if not value.get(field) and args[3].get(field):  # where there was none, the loop says so itself (AL-36)
            return f"it has no {field}"
    stop = value.get("stop", [])
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        return "its stop must be a list of texts"
    for field in ("temperature", "maxTokens"):
        if isinstance(number := value.get(field, 1), bool) or not isinstance(number, (int, float)):
            return f"its {field} is {what_it_is(number)} and must be a number"
    return _is_text(value, "provider", "model", "reasoningEffort")


def _assembly(value: Any, args: tuple[Any, ...]) -> str | None:
    if not isinstance(value, type(args[0])):
        return f"it is {what_it_is(value)} and must be an Assembly"
    try:
        if not all(isinstance(word, str) for name, text in value.sections for word in (name, text)):
            return "each of its sections must be a name and a text"
        if not all(isinstance(tool["name"], str) for tool in value.tools):
            return "each of its tools must be an object with a name"
        freeze([dict(tool) for tool in value.tools])
        if not all(text is None or isinstance(text, str) for text in value.variables.values()):
            return "each of its variables must be a text or None"
    except (TypeError, ValueError, KeyError, AttributeError, NotJson) as error:
        return f"it is no whole Assembly: {error}"
    return None


def _result(value: Any, args: tuple[Any, ...]) -> str | None:
    if not hasattr(value, "is_error") or not hasattr(value, "content"):
        return f"it is {what_it_is(value)} and must be a ToolResult"
    return content_fault(value.content) or _contexts({"additionalContexts": list(value.contexts)})


def _ask(value: dict[str, Any]) -> str | None:
    return None if value.get("reason") is None else _is_text(value, "reason")


def _stream(value: Any, args: tuple[Any, ...]) -> str | None:
    return None if hasattr(value, "__aiter__") else f"it is {what_it_is(value)} and must be an async iterator of chunks"


def _stop(value: Any, args: tuple[Any, ...]) -> str | None:
    return None if value is None else _tagged("action", "stop")(value, args)


RETURNS: Final[dict[str, Check]] = {
    "agent/prompt-submit": _tagged("kind", "allow", "block", then=_prompt),
    "agent/session-prefix": _messages,
    "agent/request": _config,
    "agent/step-result": lambda value, args: _message(value, "assistant"),
    "agent/request-error": _tagged("action", "fail", "retry"),
    "agent/turn-continuation": _tagged("action", "stop", "continue", then=_continuation),
    "agent/turn-stop": _stop,
    "llm/stream": _stream,
    "tools/pre-execute": _tagged("kind", "allow", "deny", "ask", then=_ask),
    "tools/execute": _result,
    "tools/post-execute": _tagged("kind", "accept", "block", then=_after),
    "system-prompt/assemble": _assembly,
}
