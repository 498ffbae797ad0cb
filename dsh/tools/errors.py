"""The coded failures of a tool call; the class name and the code are what the log records
(docs/spec/tools.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from dsh.core.errors import DshError, ToolError, blaming


class ToolArgsError(ToolError):
    """The arguments do not fit the parameter schema (TL-70)."""

    code = "INVALID_ARGS"

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("invalid arguments: " + "; ".join(violations))


class ToolNotFoundError(ToolError):
    """No visible tool has that name at dispatch; hidden and unknown are the same thing (TL-23, TL-41)."""

    code = "UNKNOWN_TOOL"


class ToolOutputError(ToolError):
    """A value, its rendering or its metadata breaks the tool's own output contract (TL-43)."""

    code = "INVALID_TOOL_OUTPUT"

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("invalid tool output: " + "; ".join(violations))


class JsonSchemaError(ToolError):
    """A schema is outside the supported subset (TL-2, TL-4)."""

    code = "UNSUPPORTED_SCHEMA"


class AbortError(ToolError):
    """Cancelled: ABORTED once the body was invoked, ABORTED_BEFORE_DISPATCH before (TL-32, TL-42)."""

    code = "ABORTED"

    @classmethod
    def before_dispatch(cls) -> AbortError:
        return cls("tool call aborted before dispatch", code="ABORTED_BEFORE_DISPATCH")

    @classmethod
    def in_body(cls) -> AbortError:
        return cls("tool call aborted")


class ToolTimeoutError(ToolError):
    """The tool's own budget ran out (TL-90)."""

    code = "TOOL_TIMEOUT"

    def __init__(self, budget_ms: float) -> None:
        super().__init__(f"tool call timed out after {budget_ms:g}ms")


def message_of(error: BaseException) -> str:
    """What a raised thing says, whatever it is: its message, else its string form, else a placeholder
    (TL-57).
    """
    error = _sole(error)
    message = getattr(error, "message", None)
    if isinstance(message, str) and message:
        return blaming(error, message)
    try:
        return blaming(error, str(error) or type(error).__name__)
    except Exception:  # noqa: BLE001 - a broken __str__ must not replace the failure it describes (TL-57)
        return "<unrenderable error>"


def info_of(error: BaseException) -> dict[str, str] | None:
    """`{name, code}` of one of the project's coded errors, else None (TL-57)."""
    error = _sole(error)
    if not isinstance(error, DshError) or error.code == DshError.code:
        return None
    return {"name": error.name if isinstance(error, ToolError) else type(error).__name__, "code": error.code}


def _sole(error: BaseException) -> BaseException:
    # A body that used a nursery raises its one failure inside a group; the group says nothing by itself.
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
