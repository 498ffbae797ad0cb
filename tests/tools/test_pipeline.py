"""The stages of one call: what decides, what is trusted, what is never lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio

from dsh.core.errors import ToolError
from dsh.core.messages import text_block
from dsh.kernel.signal import Signal
from dsh.tools.approval import Approval, ApprovalRequest, Outcome
from dsh.tools.definition import Execution, ToolResult
from dsh.tools.pipeline import Call, execute, parse_arguments
from tests.tools.kit import Bench, code, make_agent, simple_tool, text


def _on(bench: Bench, point: str, listener: Any, **more: Any) -> None:
    bench.host.root.on(point, listener, **more)


@pytest.mark.rule("TL-30")
@pytest.mark.parametrize(
    ("raw", "parsed"),
    [("", {}), ("  ", {}), ('{"a":1}', {"a": 1}), ("{oops", "{oops"), ('{"a":NaN}', '{"a":NaN}'), ("[1]", [1])],
)
def test_arguments_are_parsed_or_kept_as_text(raw: str, parsed: Any) -> None:
    assert parse_arguments(raw) == parsed


@pytest.mark.rule("TL-43", "TL-55", "TL-56")
async def test_a_success_carries_frozen_value_content_and_meta() -> None:
    bench = Bench()
    value = {"n": [1]}

    async def body(args: Any, execution: Execution) -> Any:
        return value

    bench.add("t", body, presentation_meta=lambda args, v: {"size": len(v["n"])})
    seen: list[tuple[Execution, ToolResult]] = []
    _on(bench, "tools/result", lambda e, r: seen.append((e, r)))
    result = await bench.call("t")
    assert (result.is_error, result.value, result.meta) == (False, {"n": [1]}, {"size": 1})
    value["n"].append(2)
    assert result.value == {"n": [1]}
    with pytest.raises(TypeError):
        result.content[0]["text"] = "x"
    assert seen[0][1] is result
    assert result.logged() == {"content": result.content, "isError": False, "meta": {"size": 1}}


@pytest.mark.rule("TL-31")
async def test_arguments_are_copied_and_frozen_before_anyone_sees_them() -> None:
    bench = Bench()
    given: dict[str, Any] = {"a": [1]}
    seen: list[Any] = []

    async def body(args: Any, execution: Execution) -> Any:
        given["a"].append(2)
        with pytest.raises(TypeError):
            args["a"] = 3
        seen.append(args)
        return None

    bench.add("t", body)
    await execute(bench.tools, Execution("c", "t", given, signal=Signal()))
    assert seen == [{"a": [1]}]


@pytest.mark.rule("TL-31")
async def test_arguments_that_are_no_lossless_json_end_the_call_at_once() -> None:
    bench = Bench()
    stages: list[str] = []

    async def stage(*args: Any) -> Any:
        stages.append("stage")
        return await args[-1]()

    bench.add("t", finalize_content=lambda e, r: [text_block("final")])
    for point in ("tools/pre-execute", "tools/execute", "tools/post-execute"):
        _on(bench, point, stage)
    result = await execute(bench.tools, Execution("c", "t", {"a": "\ud83d"}))
    assert (result.is_error, text(result), stages) == (True, "final", [])
    assert code(result) is None


@pytest.mark.rule("TL-32")
async def test_a_call_that_is_cancelled_on_entry_skips_policy_and_post() -> None:
    bench = Bench()
    bench.add("t")

    async def never(*args: Any) -> Any:
        raise AssertionError("no stage may run")

    _on(bench, "tools/pre-execute", never)
    _on(bench, "tools/post-execute", never)
    signal = Signal()
    signal.cancel()
    result = await bench.call("t", signal)
    assert (code(result), text(result)) == (
        "ABORTED_BEFORE_DISPATCH",
        "Error: tool call aborted before dispatch",
    )


@pytest.mark.rule("TL-33", "TL-36")
async def test_a_listener_denies_and_the_post_stage_still_sees_it() -> None:
    bench = Bench()
    bench.add("t")
    seen: list[ToolResult] = []

    async def deny(execution: Execution, next: Any) -> Any:
        return {"kind": "deny", "reason": "not today"}

    async def post(execution: Execution, result: ToolResult, next: Any) -> Any:
        seen.append(result)
        return await next()

    _on(bench, "tools/pre-execute", deny)
    _on(bench, "tools/post-execute", post)
    result = await bench.call("t")
    assert text(result) == "Error: not today"
    assert result.error == {"message": "not today"}
    assert "error" not in result.logged()
    assert len(seen) == 1


class _Channel(Approval):
    def __init__(self, outcome: Outcome, signal: Signal | None = None) -> None:
        self.outcome, self.signal = outcome, signal
        self.asked: list[ApprovalRequest] = []

    async def request(self, request: ApprovalRequest) -> Outcome:
        self.asked.append(request)
        if self.signal is not None:
            self.signal.cancel()
        return self.outcome


async def _ask(execution: Execution, next: Any) -> Any:
    return {"kind": "ask", "reason": "because"}


@pytest.mark.rule("TL-34", "TL-35")
async def test_asking_grants_once_and_guards_still_apply() -> None:
    bench = Bench()
    bench.add("t")
    _on(bench, "tools/pre-execute", _ask)
    channel = _Channel("allowed-once")
    bench.host.root.provide(Approval, channel)
    assert not (await bench.call("t")).is_error
    assert (channel.asked[0].reason, channel.asked[0].call_id) == ("because", "c1")
    bench.tools.guard(bench.host.root, lambda _: "guarded")
    assert text(await bench.call("t")) == "Error: guarded"


@pytest.mark.rule("TL-34")
async def test_each_refusal_has_its_own_words_and_nothing_runs() -> None:
    texts = set()
    outcomes: list[Outcome] = ["rejected", "cancelled", "unavailable"]
    for outcome in outcomes:
        bench = Bench()
        bench.add("t", None)
        _on(bench, "tools/pre-execute", _ask)
        bench.host.root.provide(Approval, _Channel(outcome))
        texts.add(text(await bench.call("t")))
    bench = Bench()
    bench.add("t")
    _on(bench, "tools/pre-execute", _ask)
    texts.add(text(await bench.call("t")))
    assert len(texts) == 4
    assert any("nobody can be asked" in t and "because" in t for t in texts)


@pytest.mark.rule("TL-34")
async def test_without_an_agent_nobody_is_asked() -> None:
    bench = Bench()
    bench.add("t")
    _on(bench, "tools/pre-execute", _ask)
    channel = _Channel("allowed-once")
    bench.host.root.provide(Approval, channel)
    assert (await bench.call("t", agent=None)).is_error
    assert channel.asked == []


@pytest.mark.rule("TL-37")
async def test_a_cancelled_question_is_an_abort_and_a_denial_stays_one() -> None:
    signal = Signal()
    bench = Bench()
    bench.add("t")
    _on(bench, "tools/pre-execute", _ask)
    bench.host.root.provide(Approval, _Channel("cancelled", signal))
    assert code(await bench.call("t", signal)) == "ABORTED_BEFORE_DISPATCH"

    signal = Signal()
    bench = Bench()
    bench.add("t")
    _on(bench, "tools/pre-execute", _ask)
    bench.host.root.provide(Approval, _Channel("rejected", signal))
    assert code(await bench.call("t", signal)) is None


@pytest.mark.rule("TL-37")
async def test_a_policy_that_hangs_is_ended_by_the_signal() -> None:
    bench = Bench()
    bench.add("t")
    signal = Signal()

    async def hang(execution: Execution, next: Any) -> Any:
        await trio.sleep_forever()

    _on(bench, "tools/pre-execute", hang)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_after, signal, 0.02)
        assert code(await bench.call("t", signal)) == "ABORTED_BEFORE_DISPATCH"


async def _cancel_after(signal: Signal, seconds: float) -> None:
    await trio.sleep(seconds)
    signal.cancel()


@pytest.mark.rule("TL-35")
async def test_guards_run_global_first_and_the_first_reason_wins() -> None:
    bench = Bench()
    bench.add("t")
    order: list[str] = []

    def guard(name: str, reason: str | None) -> Any:
        async def ask(execution: Execution) -> str | None:
            order.append(name)
            return reason

        return ask

    scope = bench.host.root.scope(bench.agent)
    bench.tools.guard(scope, guard("own", "no"))
    bench.tools.guard(bench.host.root, guard("first", None))
    bench.tools.guard(bench.host.root, guard("second", None))
    assert text(await bench.call("t")) == "Error: no"
    assert order == ["first", "second", "own"]
    assert not (await bench.call("t", agent=make_agent())).is_error


@pytest.mark.rule("TL-38", "TL-45", "TL-54")
@pytest.mark.parametrize("point", ["tools/pre-execute", "tools/execute", "tools/post-execute"])
async def test_a_failing_listener_is_a_final_error_result(point: str) -> None:
    bench = Bench()
    bench.add("t")
    posts: list[int] = []

    async def broken(*args: Any) -> Any:
        raise RuntimeError("listener broke")

    async def post(execution: Execution, result: ToolResult, next: Any) -> Any:
        posts.append(1)
        return await next()

    _on(bench, "tools/post-execute", post)
    _on(bench, point, broken)
    result = await bench.call("t")
    assert text(result) == "Error: listener broke"
    assert posts == ([1] if point == "tools/post-execute" else [])


@pytest.mark.rule("TL-40")
async def test_a_wrapper_may_replace_the_signal_and_either_cancels() -> None:
    for who in ("caller", "wrapper"):
        bench = Bench()
        inner = Signal()
        seen: list[Signal] = []

        async def body(args: Any, execution: Execution, seen: Any = seen) -> Any:
            seen.append(execution.signal)
            await trio.sleep_forever()

        async def wrap(execution: Execution, next: Any, inner: Any = inner) -> Any:
            return await next(execution.with_signal(inner))

        bench.add("t", body)
        _on(bench, "tools/execute", wrap)
        signal = Signal()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, signal if who == "caller" else inner, 0.02)
            result = await bench.call("t", signal)
        assert code(result) == "ABORTED"
        assert seen[0].cancelled


@pytest.mark.rule("TL-41")
async def test_the_tool_is_looked_up_again_at_dispatch() -> None:
    bench = Bench()
    undo = bench.tools.register(bench.host.root, simple_tool("t"))
    posts: list[str | None] = []

    async def post(execution: Execution, result: ToolResult, next: Any) -> Any:
        posts.append(code(result))
        return await next()

    _on(bench, "tools/post-execute", post)
    call = Call(bench.tools, Execution("c", "t", {}))
    await call.prepare()
    await undo()
    await call.dispatch()
    assert code(await call.finalize()) == "UNKNOWN_TOOL"
    assert posts == ["UNKNOWN_TOOL"]
    assert code(await bench.call("")) == "UNKNOWN_TOOL"


@pytest.mark.rule("TL-41")
async def test_a_wrapper_that_cancels_keeps_the_body_from_running() -> None:
    bench = Bench()
    ran: list[int] = []

    async def body(args: Any, execution: Execution) -> Any:
        ran.append(1)

    async def wrap(execution: Execution, next: Any) -> Any:
        signal = Signal()
        signal.cancel()
        return await next(execution.with_signal(signal))

    bench.add("t", body)
    _on(bench, "tools/execute", wrap)
    assert code(await bench.call("t")) == "ABORTED_BEFORE_DISPATCH"
    assert ran == []


@pytest.mark.rule("TL-42")
async def test_the_body_is_waited_for_and_its_own_error_stays() -> None:
    bench = Bench()
    done: list[str] = []

    async def slow(args: Any, execution: Execution) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)
            done.append("cleaned")

    async def stubborn(args: Any, execution: Execution) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.05)
        return "late success"

    async def failing(args: Any, execution: Execution) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            raise ToolError("my own words")

    for name, body, wanted in (("a", slow, "ABORTED"), ("b", stubborn, "ABORTED"), ("c", failing, None)):
        bench.add(name, body)
        signal = Signal()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, signal, 0.01)
            result = await bench.call(name, signal)
        assert code(result) == wanted
    assert done == ["cleaned"]
    assert text(result) == "Error: my own words"


@pytest.mark.rule("TL-43")
@pytest.mark.parametrize(
    "broken",
    [
        {"output": {"type": "string"}, "execute": "number"},
        {"render": lambda _, v: 1 / 0},
        {"render": lambda _, v: [{"type": "text", "text": float("nan")}]},
        {"presentation_meta": lambda _, v: object()},
        {"execute": "tuple"},
    ],
)
async def test_output_that_breaks_the_contract_is_an_error(broken: dict[str, Any]) -> None:
    bench = Bench()
    values = {"number": 5, "tuple": (1,), "text": "x"}
    value = values[broken.pop("execute", "text")]

    async def body(args: Any, execution: Execution) -> Any:
        return value

    bench.add("t", body, **broken)
    result = await bench.call("t")
    assert code(result) == "INVALID_TOOL_OUTPUT"
    assert text(result).startswith("Error: invalid tool output: ")


@pytest.mark.rule("TL-43")
async def test_a_nested_call_has_no_presentation_meta() -> None:
    bench = Bench()
    bench.add("t", presentation_meta=lambda _, v: {"x": 1})
    execution = Execution("c", "t", {}, parent=object())
    assert (await execute(bench.tools, execution)).meta is None


@pytest.mark.rule("TL-44")
async def test_a_wrappers_own_result_is_checked_and_rendered_again() -> None:
    bench = Bench()
    bench.add("t", output={"type": "string"})
    made: list[ToolResult] = [
        ToolResult(False, [text_block("forged")], value="real"),
        ToolResult(False, [text_block("forged")], value=5),
        ToolResult(True, [text_block("failed")], value="kept?", error={"message": "failed"}),
    ]

    async def wrap(execution: Execution, next: Any) -> Any:
        await next()
        return made.pop(0)

    _on(bench, "tools/execute", wrap)
    assert text(await bench.call("t")) == "real"
    assert code(await bench.call("t")) == "INVALID_TOOL_OUTPUT"
    last = await bench.call("t")
    assert (text(last), last.value) == ("failed", None)


@pytest.mark.rule("TL-45")
async def test_contexts_of_the_body_come_first_and_survive_a_late_cancel() -> None:
    bench = Bench()
    signal = Signal()

    def context(words: str) -> Any:
        return {"content": [text_block(words)], "source": {"kind": "plugin", "plugin": "p"}}

    async def body(args: Any, execution: Execution) -> Any:
        execution.defer_context(context("body"))
        return "x"

    async def wrap(execution: Execution, next: Any) -> Any:
        result = await next()
        signal.cancel()
        return replace(result, contexts=(context("wrapper"),))

    bench.add("t", body)
    _on(bench, "tools/execute", wrap)
    result = await bench.call("t", signal)
    assert code(result) == "ABORTED"
    assert [c["content"][0]["text"] for c in result.contexts] == ["body", "wrapper"]


async def _decided(decision: dict[str, Any], **tool: Any) -> ToolResult:
    bench = Bench()
    bench.add("t", presentation_meta=lambda _, v: {"m": v}, **tool)

    async def post(execution: Execution, result: ToolResult, next: Any) -> Any:
        return decision

    _on(bench, "tools/post-execute", post)
    return await bench.call("t")


_CONTEXT = {"content": [text_block("more")], "source": {"kind": "plugin", "plugin": "p"}}


@pytest.mark.rule("TL-50", "TL-51")
async def test_accepting_with_content_changes_what_the_model_sees_only() -> None:
    result = await _decided({"kind": "accept", "content": [text_block("shown")], "additionalContexts": [_CONTEXT]})
    assert (text(result), result.value, result.meta, result.is_error) == ("shown", "done", {"m": "done"}, False)
    assert result.contexts == (_CONTEXT,)


@pytest.mark.rule("TL-52")
async def test_accepting_with_a_value_renders_again() -> None:
    result = await _decided({"kind": "accept", "value": "other"})
    assert (text(result), result.value, result.meta) == ("other", "other", {"m": "other"})
    wrong = await _decided({"kind": "accept", "value": 5}, output={"type": "string"})
    assert code(wrong) == "INVALID_TOOL_OUTPUT"
    both = await _decided({"kind": "accept", "value": "x", "content": []})
    assert both.is_error


@pytest.mark.rule("TL-53")
async def test_blocking_replaces_everything_by_the_feedback() -> None:
    feedback = [text_block("one"), {"type": "image"}, text_block("two")]
    result = await _decided({"kind": "block", "feedback": feedback, "additionalContexts": [_CONTEXT]})
    assert (result.is_error, result.value, result.meta) == (True, None, None)
    assert result.content == feedback
    assert result.error == {"message": "one\n[image content]\ntwo"}
    assert result.contexts == (_CONTEXT,)
    assert (await _decided({"kind": "block"})).error is not None


@pytest.mark.rule("TL-54")
async def test_a_cancel_during_the_post_stage_turns_a_success_into_an_abort() -> None:
    bench = Bench()
    bench.add("t")
    signal = Signal()

    async def post(execution: Execution, result: ToolResult, next: Any) -> Any:
        signal.cancel()
        return await next()

    _on(bench, "tools/post-execute", post)
    assert code(await bench.call("t", signal)) == "ABORTED"


@pytest.mark.rule("TL-55")
async def test_the_finalizer_runs_once_for_every_outcome_and_changes_content_only() -> None:
    bench = Bench()
    calls: list[bool] = []

    def final(execution: Execution, result: ToolResult) -> Any:
        calls.append(result.is_error)
        return [text_block("final")]

    async def failing(args: Any, execution: Execution) -> Any:
        raise ToolError("x", code="X")

    bench.add("good", finalize_content=final)
    bench.add("bad", failing, finalize_content=final)
    good, bad = await bench.call("good"), await bench.call("bad")
    assert (text(good), good.value, text(bad), code(bad)) == ("final", "done", "final", "X")
    assert calls == [False, True]
    bench.add("broken", finalize_content=lambda e, r: 1 / 0)
    assert text(await bench.call("broken")) == "Error: division by zero"


@pytest.mark.rule("TL-56")
async def test_a_failing_observer_stops_nobody() -> None:
    bench = Bench()
    bench.add("t")
    seen: list[int] = []
    _on(bench, "tools/result", lambda e, r: 1 / 0)
    _on(bench, "tools/result", lambda e, r: seen.append(1))
    assert not (await bench.call("t")).is_error
    assert seen == [1]
    assert bench.host.reports[-1][0] == "tools/result"
