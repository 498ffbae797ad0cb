"""One call through the guarded pipeline: prepare, dispatch, finalize.

The three stages are separate so that a batch scheduler can run prepare and finalize one at a time in model
order and overlap the dispatches only (TL-63). Each stage leaves its outcome in the `Call`; a stage that has
nothing left to do returns at once, so the caller always runs all three, and every call ends in exactly one
`ToolResult`.

A failure of the surroundings (a listener, a guard, a wrapper, the approval service) is a final error result
that skips the post stage; it never ends the turn (TL-38). trio's own cancellation is not a failure and passes
through.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

from dsh.core.errors import InvariantError, ToolError
from dsh.core.lossless import JSON, NotJson, freeze, loads, mend_surrogates
from dsh.core.messages import Block, HookContext, text_block
from dsh.kernel.hooks import contained
from dsh.kernel.signal import Signal
from dsh.tools.approval import Approval, ApprovalRequest
from dsh.tools.definition import ErrorFacts, Execution, ToolDefinition, ToolResult, blocks_of
from dsh.tools.errors import AbortError, ToolNotFoundError, ToolOutputError, info_of, message_of
from dsh.tools.registry import Tools
from dsh.tools.schema import violations


class PreToolDecision(TypedDict):
    """`kind` is allow, deny (with a reason) or ask (the reason is optional)."""

    kind: str
    reason: NotRequired[str]


class PostToolDecision(TypedDict):
    """`kind` is accept (optionally with another `content`, or another `value`) or block (with `feedback`)."""

    kind: str
    content: NotRequired[list[Block]]
    value: NotRequired[JSON]
    feedback: NotRequired[list[Block]]
    additionalContexts: NotRequired[list[HookContext]]


_DENIED_BY_APPROVAL = {
    "rejected": "the user rejected this tool call",
    "cancelled": "the approval request was cancelled",
    "unavailable": "approval is needed, but nobody can be asked",
}


def parse_arguments(text: str) -> JSON:
    """The arguments a model wrote: empty text is `{}`, text that is not JSON stays the raw text (TL-30)."""
    if not text.strip():
        return {}
    try:
        return loads(text)
    except ValueError:
        return text


def failure(
    error: BaseException | str, *, contexts: Iterable[HookContext] = (), content: list[Block] | None = None
) -> ToolResult:
    """An error result: `Error: <message>` for the model, the message and the coded info beside it (TL-36,
    TL-72).
    """
    message = mend_surrogates(error if isinstance(error, str) else message_of(error))
    facts: ErrorFacts = {"message": message}
    info = None if isinstance(error, str) else info_of(error)
    if info is not None:
        facts["info"] = info
    shown = [text_block(f"Error: {message}")] if content is None else content
    return ToolResult(True, freeze(shown), error=freeze(facts), contexts=tuple(contexts))


async def execute(tools: Tools, execution: Execution) -> ToolResult:
    """Run one call through the whole pipeline (TL-31 to TL-57)."""
    call = Call(tools, execution)
    await call.prepare()
    await call.dispatch()
    return await call.finalize()


async def _allow(_: Execution) -> PreToolDecision:
    return {"kind": "allow"}


async def _accept(_: Execution, __: ToolResult) -> PostToolDecision:
    return {"kind": "accept"}


def _kind_of(decision: object) -> str:
    """The kind of a listener's decision; one that forgot to return any is a failing listener."""
    if not isinstance(decision, dict) or not isinstance(decision.get("kind"), str):
        raise InvariantError(f"a listener of the tool pipeline returned {decision!r} instead of a decision")
    return str(decision["kind"])


def _directory_of(execution: Execution) -> str:
    """Where relative paths of the call start (TC-4): its session's directory, else the process's."""
    if execution.cwd:
        return execution.cwd
    if execution.agent is not None and execution.agent.session.cwd:
        return execution.agent.session.cwd
    try:
        return os.getcwd()
    except FileNotFoundError:  # the directory was deleted under the process
        return os.sep


class Call:
    """One call on its way through the stages; `execution` is what listeners see."""

    def __init__(self, tools: Tools, execution: Execution) -> None:
        self.execution = replace(execution, token=object(), cwd=_directory_of(execution), deferred=None)
        self._tools = tools
        self._hooks = tools.host.hooks
        self._result: ToolResult | None = None
        self._skip_post = False
        self._invoked = False
        self._definition: ToolDefinition | None = None
        definition = tools.find(execution.agent, execution.name)
        self._finalizer = definition.finalize_content if definition is not None else None
        self._made: list[ToolResult] = []
        self._deferred: list[HookContext] = []

    # --- prepare --------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Copy the arguments, then ask the policy: listeners, a person, guards (TL-31 to TL-38)."""
        try:
            arguments = freeze(self.execution.arguments)
        except NotJson as error:
            self._end(failure(f"the arguments cannot be used: {error.message}"))
            return
        self.execution = replace(self.execution, arguments=arguments)
        if self.execution.signal.cancelled:
            self._end(failure(AbortError.before_dispatch()))
            return
        try:
            self._result = await self._judge()
        except BaseException as error:  # noqa: BLE001 - the containment point of TL-38
            self._end(failure(contained("the tool pipeline", error)))

    def refuse(self, reason: str) -> None:
        """Keep the body of a prepared call from running; the reason is its result (PE-23)."""
        if self._result is None:
            self._end(failure(reason))

    def _end(self, result: ToolResult) -> None:
        self._result, self._skip_post = result, True

    async def _judge(self) -> ToolResult | None:
        """The denial or abort that the policy comes to, None to go on (TL-33 to TL-37)."""
        execution = self.execution
        decision: Any = None
        with execution.signal.scope() as scope:
            decision = await self._hooks.waterfall("tools/pre-execute", execution.agent, _allow, execution)
        if scope.cancelled_caught:
            return failure(AbortError.before_dispatch())
        kind = _kind_of(decision)
        reason: str | None = decision.get("reason")
        if kind == "ask":
            granted, reason = await self._ask(reason)
            if granted == "cancelled" and execution.signal.cancelled:
                return failure(AbortError.before_dispatch())
            kind = "allow" if granted == "allowed-once" else "deny"
        if kind == "allow":
            for guard in self._tools.guards(execution.agent):
                answer = guard(execution)
                reason = await answer if inspect.isawaitable(answer) else answer
                if reason is not None:
                    kind = "deny"
                    break
        if kind == "deny":
            return failure(str(reason))
        if kind != "allow":
            raise InvariantError(f"{kind!r} is no decision about a tool call")
        return failure(AbortError.before_dispatch()) if execution.signal.cancelled else None

    async def _ask(self, reason: str | None) -> tuple[str, str]:
        """The outcome of asking a person, and the reason to give if it is no grant (TL-34)."""
        execution = self.execution
        service = self._tools.host.find(Approval)
        if service is None or execution.agent is None:
            nobody = _DENIED_BY_APPROVAL["unavailable"]
            return "unavailable", f"{reason} ({nobody})" if reason else nobody
        outcome = await service.request(
            ApprovalRequest(execution.agent, execution.name, execution.call_id, reason, execution.signal)
        )
        return outcome, _DENIED_BY_APPROVAL.get(outcome, _DENIED_BY_APPROVAL["unavailable"])

    # --- dispatch -------------------------------------------------------------------------------------------

    async def dispatch(self) -> None:
        """Run the wrappers and the body, unless prepare already has the result (TL-40 to TL-45)."""
        if self._result is not None:
            return
        execution = self.execution
        try:
            made = await self._hooks.waterfall("tools/execute", execution.agent, self._run_body, execution)
            result = made if any(made is own for own in self._made) else self._remade(made)
        except BaseException as error:  # noqa: BLE001 - the containment point of TL-45
            self._end(failure(contained("the tool pipeline", error)))
            return
        self._result = self._settled(replace(result, contexts=(*self._deferred, *result.contexts)))

    def _settled(self, result: ToolResult) -> ToolResult:
        """The result, or an abort with the same contexts where the caller cancelled a success (TL-45,
        TL-54).
        """
        if result.is_error or not self.execution.signal.cancelled:
            return result
        return failure(self._abort(), contexts=result.contexts)

    def _abort(self) -> AbortError:
        return AbortError.in_body() if self._invoked else AbortError.before_dispatch()

    async def _run_body(self, given: Execution) -> ToolResult:
        """The innermost link: the tool's body under the caller's signal and the wrapper's together
        (TL-40).
        """
        signal = self.execution.signal.child()
        inner = given.signal
        release = inner.on_cancel(lambda: signal.cancel(inner.reason or "wrapper"))
        try:
            result = await self._invoke(signal)
        except BaseException as error:  # noqa: BLE001 - a body's error is its result (TL-72); it may not end the program
            result = failure(contained("the tool", error))
        finally:
            release()
            signal.detach()
        self._made.append(result)
        return result

    async def _invoke(self, signal: Signal) -> ToolResult:
        execution = self.execution
        if signal.cancelled:
            return failure(self._abort())
        definition = self._tools.find(execution.agent, execution.name)
        if definition is None:
            known = ", ".join(sorted(self._tools.visible(execution.agent)))
            raise ToolNotFoundError(f"unknown tool {execution.name!r}; available: {known or 'none'}")
        self._definition = definition
        self._invoked = True
        value: JSON = None
        with signal.scope() as scope:
            body = replace(execution, signal=signal, deferred=self._deferred)
            value = await definition.execute(execution.arguments, body)
        if scope.cancelled_caught or signal.cancelled:
            return failure(AbortError.in_body())
        return self._success(definition, value)

    def _success(self, definition: ToolDefinition, value: JSON) -> ToolResult:
        """A success from a value: checked, frozen, rendered; raises ToolOutputError (TL-43)."""
        output = definition.output
        args = self.execution.arguments
        try:
            value = freeze(value)
            wrong = violations(output.schema, value, "value")
            if wrong:
                raise ToolOutputError(wrong)
            content = freeze(blocks_of(output.render(args, value)))
            meta = None
            if output.presentation_meta is not None and self.execution.parent is None:
                meta = freeze(output.presentation_meta(args, value))
        except ToolOutputError:
            raise
        except BaseException as error:
            raise ToolOutputError([message_of(contained("the renderer", error))]) from error
        return ToolResult(False, content, value=value, meta=meta)

    def _remade(self, result: Any) -> ToolResult:
        """A wrapper's own result is checked and rendered again from its value; a failure has none (TL-44)."""
        if not isinstance(result, ToolResult):
            raise InvariantError("a wrapper of tools/execute returned no tool result")
        if result.is_error:
            return replace(result, value=None)
        definition = self._definition or self._tools.find(self.execution.agent, self.execution.name)
        if definition is None:
            raise ToolNotFoundError(f"unknown tool {self.execution.name!r}")
        try:
            again = self._success(definition, result.value)
        except ToolError as error:
            return failure(error, contexts=result.contexts)
        return replace(again, contexts=result.contexts)

    # --- finalize -------------------------------------------------------------------------------------------

    async def finalize(self) -> ToolResult:
        """Let the post stage judge, freeze, run the tool's finalizer once, tell the observers (TL-50 to
        TL-56).
        """
        execution, result = self.execution, self._result
        if result is None:
            raise InvariantError("a call is finalized after it was dispatched")
        if not self._skip_post:
            try:
                chain = self._hooks.waterfall("tools/post-execute", execution.agent, _accept, execution, result)
                result = self._settled(self._decided(await chain, result))
            except BaseException as error:  # noqa: BLE001 - the containment point of TL-54
                result = failure(contained("the tool pipeline", error))
        result = self._frozen(result)
        if self._finalizer is not None:
            try:
                content = self._finalizer(execution, result)
                result = result if content is None else self._frozen(replace(result, content=content))
            except BaseException as error:  # noqa: BLE001 - the containment point of TL-55
                result = failure(contained("the tool pipeline", error))
        self._hooks.notify("tools/result", execution.agent, execution, result)
        return result

    def _decided(self, decision: Any, result: ToolResult) -> ToolResult:
        kind = _kind_of(decision)
        added = tuple(decision.get("additionalContexts") or ())
        if kind == "block":
            feedback = decision.get("feedback") or []
            lines = [b.get("text", "") if b["type"] == "text" else f"[{b['type']} content]" for b in feedback]
            message = "\n".join(lines) or "the result of this tool call was blocked"
            return failure(message, contexts=added, content=feedback or [text_block(f"Error: {message}")])
        if kind != "accept":
            raise InvariantError(f"{kind!r} is no decision about a tool result")
        if "value" in decision:
            if "content" in decision or result.is_error or self._definition is None:
                raise InvariantError("a value can replace only the value of a success, and not beside content")
            remade = self._success(self._definition, decision["value"])
            return replace(remade, contexts=(*result.contexts, *added))
        content = decision.get("content")
        kept = result if content is None else replace(result, content=content)
        return replace(kept, contexts=(*result.contexts, *added))

    def _frozen(self, result: ToolResult) -> ToolResult:
        """A deeply immutable copy; one that is not lossless JSON becomes an error (TL-55)."""
        try:
            return replace(
                result,
                content=freeze(result.content),
                error=freeze(result.error),
                meta=freeze(result.meta),
                contexts=tuple(freeze(context) for context in result.contexts),
            )
        except NotJson as error:
            return failure(f"the tool result cannot be stored: {error.message}")
