"""One tree of errors, each with a stable code; the command line turns a code into one line and an exit code.

    DshError                    code, message, optional hint (the way on, shown on a line of its own)
    ├── UsageError              wrong usage, unknown session or seq                       exit 2
    ├── ConfigError             no model, no key, unreadable or invalid configuration     exit 3
    ├── StoreError              the database is locked, damaged, foreign or newer         exit 8
    ├── SessionError            the log refused something (codes of docs/spec/session)    exit 2 or 8, by code
    ├── LlmError                a provider failure; carries an LlmFailure                 exit 4, 5 or 6, by code
    ├── ToolError               a coded failure of one tool call (never ends a run)
    ├── Refused                 approval, policy or sandbox said no and the run is over   exit 7
    └── InvariantError          a checked invariant of ours is broken

Programs route on `code` only, never on text (CO-50).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class DshError(Exception):
    """A failure with a human message and a stable upper-case `code`; `hint` names a way on, if there is one."""

    code = "UNKNOWN"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.hint = hint


class UsageError(DshError):
    code = "USAGE"


class ConfigError(DshError):
    """A setting is missing or wrong; the message names the key (CF-2)."""

    code = "INVALID_CONFIG"


class StoreError(DshError):
    """The database cannot be used: DB_BUSY, DB_DAMAGED, DB_FOREIGN, DB_VERSION, DB_FULL, DB_READONLY, DB_IO."""

    code = "DB_DAMAGED"


class SessionError(DshError):
    """The session log refused an operation; codes are those of docs/spec/session.md and persistence.md."""

    code = "INVARIANT"


class ToolError(DshError):
    """A coded failure of one tool call; `name` is the class name that the log records beside the code."""

    code = "UNKNOWN"

    def __init__(self, message: str, *, code: str | None = None, name: str | None = None) -> None:
        super().__init__(message, code=code)
        self.name = name or type(self).__name__


class Refused(DshError):
    code = "REFUSED"


class InvariantError(DshError):
    code = "INVARIANT"


# HD-14, the part that follows from an error code. Turn-end reasons and signals are decided where they are known.
_EXIT_BY_CODE: dict[str, int] = {
    "USAGE": 2,
    "SESSION_NOT_FOUND": 2,
    "SESSION_NOT_LIVE": 2,
    "SESSION_ALREADY_EXISTS": 2,
    "SESSION_HAS_FORKS": 2,
    "INVALID_BOUNDARY": 2,
    "OPEN_TURN": 2,
    "SEED_INVALID": 2,
    "HEADER_INVALID": 2,
    "INVALID_CONFIG": 3,
    "NO_MODEL": 3,
    "PRICE_UNKNOWN": 3,
    "INVALID_ADAPTER": 3,
    "DUPLICATE_ADAPTER": 3,
    "LOCAL_MODEL_FAILED": 3,
    "AUTH": 4,
    "QUOTA": 4,
    "INVALID_REQUEST": 4,
    "NO_ADAPTER": 4,
    "UNSUPPORTED_REASONING_EFFORT": 4,
    "UNSUPPORTED_OPTION": 4,
    "RATE_LIMIT": 5,
    "SERVER": 5,
    "TIMEOUT": 5,
    "TRANSPORT": 5,
    "STREAM_CLOSED": 5,
    "MALFORMED_RESPONSE": 5,
    "EMPTY_RESPONSE": 5,
    "CONTEXT_WINDOW_EXCEEDED": 6,
    "STEP_LIMIT": 6,
    "TIME_LIMIT": 6,
    "BUDGET_LIMIT": 6,
    "REFUSED": 7,
    "DB_BUSY": 8,
    "DB_DAMAGED": 8,
    "DB_FOREIGN": 8,
    "DB_VERSION": 8,
    "DB_FULL": 8,
    "DB_READONLY": 8,
    "DB_IO": 8,
    "LOG_CORRUPT": 8,
    "METER_BAD_LOG": 8,
    "VERSION_UNSUPPORTED": 8,
    "LEGACY_EVENT": 8,
    "SESSION_LEASED": 8,
}


def exit_code(code: str) -> int:
    """The process exit code for an error code (HD-14); 1 for a failure no row names."""
    if code.startswith("HTTP_"):
        return 4
    if code.startswith("SESSION_REFERENCE_"):
        return 8 if code.endswith("READ_FAILED") else 3 if code.endswith("INVALID_CONFIG") else 2
    if code.startswith("SESSION_QUERY_"):
        return 8 if code.endswith(("INDEX_FAILED", "PERSISTENCE_FAILED", "SOURCE_CONFLICT")) else 2
    return _EXIT_BY_CODE.get(code, 1)


def retryable(code: str) -> bool:
    """Whether trying the same again later may work (the `error.retryable` of HD-15)."""
    return exit_code(code) == 5 or code in ("DB_BUSY", "SESSION_LEASED")


def code_of(error: BaseException) -> str | None:
    """The stable code of one of our own errors, else None: a foreign `code` attribute is not trusted (LS-41)."""
    return error.code if isinstance(error, DshError) else None


def blame(error: BaseException, plugin: str, point: str = "") -> None:
    """Note whose failure it is, and at which hook point; the first note stays. It is told before the error's text."""
    error.__dict__.setdefault("_plugin", (plugin, point))


def blamed(error: BaseException) -> str | None:
    """The name of the plugin that a failure is blamed on."""
    plugin: str | None = error.__dict__.get("_plugin", (None,))[0]
    return plugin


def blaming(error: BaseException, text: str) -> str:
    """What an error says, after the name of the plugin it is blamed on, if on any."""
    plugin, point = error.__dict__.get("_plugin", ("", ""))
    return f"plugin {plugin}{' at ' if point else ''}{point}: {text}" if plugin else text


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - a broken __str__ must not hide the failure it describes (LS-43)
        return "<unrenderable value>"
    return blaming(error, text or type(error).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None:
        yield current
        if id(current) in seen:
            return
        seen.add(id(current))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def render_chain(error: BaseException) -> str:
    """One line for a failure and its causes: `outer: cause: …` (LS-43).

    A cause that only repeats its wrapper is skipped, members of an exception group are bracketed and joined with
    `; `, a cycle is marked. Never raises.
    """
    parts: list[str] = []
    seen: set[int] = set()
    for link in _causes(error):
        if id(link) in seen:
            parts.append("<circular cause>")
            break
        seen.add(id(link))
        if isinstance(link, BaseExceptionGroup):
            text = f"{link.message} [{'; '.join(_member_text(m, seen) for m in link.exceptions)}]"
        else:
            text = _text_of(link)
        repeated = text, link.strerror if isinstance(link, OSError) else None
        if not (parts and any(said and said in parts[-1] for said in repeated)):
            parts.append(text)
    return ": ".join(parts)


def _member_text(error: BaseException, seen: set[int]) -> str:
    return "<circular cause>" if id(error) in seen else render_chain(error)


def only(error: BaseException) -> BaseException:
    """The one error inside the groups that nurseries made of it, so that its code and text are recorded."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def failure_object(error: BaseException) -> dict[str, Any]:
    """`{code, message, retryable}` for a last result line (HD-15)."""
    code = code_of(error) or "UNKNOWN"
    return {"code": code, "message": render_chain(error), "retryable": retryable(code)}
