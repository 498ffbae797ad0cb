"""What a tool is, what one execution of it gets, what comes out.

`ToolDefinition` is the registered thing; only its name, description and parameters ever reach a model
(TL-24). `Execution` travels through every stage and is immutable: a wrapper that wants another signal for its
inner part passes a changed copy to `next`, so the caller's is back by itself afterwards (TL-40). `define`
builds a definition whose arguments are declared in the schema language and checked before the body runs
(TL-70 to TL-72).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict

from dsh.core.errors import InvariantError
from dsh.core.lossless import JSON, freeze, mend_surrogates
from dsh.core.messages import Block, HookContext, text_block
from dsh.kernel.signal import Signal
from dsh.tools.errors import ToolArgsError
from dsh.tools.schema import Node, Schema, compile_node, compile_parameters, violations


class Session(Protocol):
    """What tools need of a session."""

    @property
    def id(self) -> str: ...
    @property
    def cwd(self) -> str | None: ...
    def append(self, type: str, data: JSON) -> Any: ...


class Agent(Protocol):
    """What tools need of the calling agent; the object itself is the scope key."""

    @property
    def id(self) -> str: ...
    @property
    def session(self) -> Session: ...


class ErrorFacts(TypedDict):
    """`message` has no `Error: ` in front; `info` is there for coded errors only."""

    message: str
    info: NotRequired[dict[str, str]]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ToolResult:
    """The outcome of one call. `value` lives in memory only; `meta` and `contexts` may come with either kind.

    `meta` None means there is none. All JSON in it is frozen once the pipeline returns it.
    """

    is_error: bool
    content: list[Block]
    value: JSON = None
    error: ErrorFacts | None = None
    meta: JSON = None
    contexts: tuple[HookContext, ...] = ()

    def logged(self) -> dict[str, JSON]:
        """The part of a `tool/result` event that comes from the result (AL-58)."""
        data: dict[str, JSON] = {"content": self.content, "isError": self.is_error}
        if self.error is not None and "info" in self.error:
            data["error"] = self.error["info"]
        if self.meta is not None:
            data["meta"] = self.meta
        return data


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Execution:
    """One call on its way. The pipeline makes `token` fresh for each call and fills `cwd` when it is empty.

    `parent` is the token of the enclosing call, for nested ones. Only the body's copy accepts
    `defer_context`.
    """

    call_id: str
    name: str
    arguments: JSON
    agent: Agent | None = None
    parent: object | None = None
    signal: Signal = field(default_factory=Signal)
    token: object = field(default_factory=object)
    cwd: str = ""
    deferred: list[HookContext] | None = None

    def defer_context(self, context: HookContext) -> None:
        """Give a message to be appended after the batch (TL-45); anything but lossless JSON raises NotJson
        (AL-60).
        """
        if self.deferred is None:
            raise InvariantError("only the body of a tool defers contexts")
        self.deferred.append(freeze(context))

    def with_signal(self, signal: Signal) -> Execution:
        """The copy a wrapper hands inwards to give the rest of the chain another signal."""
        return replace(self, signal=signal)


Render = Callable[[Any, Any], "str | list[Block]"]
View = Mapping[str, Any]


class Output(NamedTuple):
    """The output contract: `schema` binds every successful value, `render(args, value)` makes the content for
    the model, `presentation_meta(args, value)` the durable facts for user interfaces. Both are pure."""

    schema: Schema
    render: Render
    presentation_meta: Callable[[Any, Any], JSON] | None = None


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ToolDefinition:
    """A tool. `execute(args, execution)` returns the canonical value only; `timeout_ms` promises that the
    body honours cancellation; only exactly `True` of `is_concurrency_safe(args)` allows overlap;
    `finalize_content` must not raise; presenters are pure and also used on old logs."""

    name: str
    description: str
    parameters: Schema
    output: Output
    execute: Callable[[Any, Execution], Awaitable[JSON]]
    finalize_content: Callable[[Execution, ToolResult], list[Block] | None] | None = None
    timeout_ms: float | None = None
    is_concurrency_safe: Callable[[Any], bool] | None = None
    present_call: Callable[[Any], View | None] | None = None
    present_result: Callable[[Any, Mapping[str, Any]], View | None] | None = None


def blocks_of(rendered: str | Sequence[Block]) -> list[Block]:
    """Content blocks from what a renderer returned; a bare text is one block, with surrogate halves
    mended.
    """
    return [text_block(mend_surrogates(rendered))] if isinstance(rendered, str) else list(rendered)


def define(
    *,
    name: str,
    description: str,
    parameters: Mapping[str, Node],
    output: Node,
    render: Render,
    execute: Callable[[Any, Execution], Awaitable[JSON]],
    presentation_meta: Callable[[Any, Any], JSON] | None = None,
    finalize_content: Callable[[Execution, ToolResult], list[Block] | None] | None = None,
    timeout_ms: float | None = None,
    parallel: bool = False,
    present_call: Callable[[Any], View | None] | None = None,
    present_result: Callable[[Any, Mapping[str, Any]], View | None] | None = None,
) -> ToolDefinition:
    """A tool whose parameters are declared as a map of name to schema node.

    The body runs only with fitting arguments, else `INVALID_ARGS`; presenters and the classifier see fitting
    arguments only (TL-70, TL-71). Raises JsonSchemaError for a declaration outside the language (TL-2).
    """
    compiled = compile_parameters(parameters)

    def fits(args: Any) -> bool:
        return not violations(compiled, args)

    async def checked(args: Any, execution: Execution) -> JSON:
        wrong = violations(compiled, args)
        if wrong:
            raise ToolArgsError(wrong)
        return await execute(args, execution)

    def call_view(args: Any) -> View | None:
        return present_call(args) if present_call is not None and fits(args) else None

    def result_view(args: Any, result: Mapping[str, Any]) -> View | None:
        return present_result(args, result) if present_result is not None and fits(args) else None

    return ToolDefinition(
        name=name,
        description=description,
        parameters=compiled,
        output=Output(compile_node(output), render, presentation_meta),
        execute=checked,
        finalize_content=finalize_content,
        timeout_ms=timeout_ms,
        is_concurrency_safe=fits if parallel else None,
        present_call=call_view,
        present_result=result_view,
    )
