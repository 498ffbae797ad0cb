"""The timeout wrapper and the repeat guard."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from dsh.core.errors import ConfigError, ToolError
from dsh.kernel.signal import Signal
from dsh.tools.definition import Execution
from dsh.tools.policies import RepeatGuard
from tests.tools.kit import Bench, code, text

POLICIES = ("dsh.tools.policies",)


@pytest.mark.rule("TL-90")
async def test_a_budget_that_runs_out_replaces_whatever_the_body_gives() -> None:
    settled: list[str] = []

    async def obedient(args: Any, execution: Execution) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            settled.append("obedient")

    async def stubborn(args: Any, execution: Execution) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.1)
        settled.append("stubborn")
        return "late"

    async def failing(args: Any, execution: Execution) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            raise ToolError("own", code="OWN")

    bench = Bench(plugins=POLICIES)
    for name, body in (("a", obedient), ("b", stubborn), ("c", failing)):
        bench.add(name, body, timeout_ms=30)
        result = await bench.call(name)
        assert code(result) == "TOOL_TIMEOUT"
        assert text(result) == "Error: tool call timed out after 30ms"
    assert settled == ["obedient", "stubborn"]


@pytest.mark.rule("TL-90")
async def test_another_cancel_is_not_called_a_timeout() -> None:
    async def body(args: Any, execution: Execution) -> Any:
        await trio.sleep_forever()

    bench = Bench(plugins=POLICIES)
    bench.add("t", body, timeout_ms=5000)
    bench.add("quick", timeout_ms=5000)
    signal = Signal()
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            await trio.sleep(0.02)
            signal.cancel()

        nursery.start_soon(cancel)
        assert code(await bench.call("t", signal)) == "ABORTED"
    assert text(await bench.call("quick")) == "done"


@pytest.mark.rule("TL-90")
async def test_an_inner_wrappers_error_leaves_the_budget_as_itself() -> None:
    bench = Bench(plugins=POLICIES)
    bench.add("t", timeout_ms=5000)

    async def broken(execution: Execution, next: Any) -> Any:
        raise RuntimeError("inner")

    bench.host.root.on("tools/execute", broken)
    assert text(await bench.call("t")) == "Error: inner"


async def _nudges(bench: Bench, *calls: tuple[str, dict[str, Any]]) -> list[int]:
    return [len((await bench.call(name, **args)).contexts) for name, args in calls]


@pytest.mark.rule("TL-91")
async def test_equal_calls_in_a_row_are_counted_whatever_the_key_order() -> None:
    bench = Bench(plugins=POLICIES)
    bench.add("t")
    same: list[tuple[str, dict[str, Any]]] = [("t", {"a": 1, "b": {"x": 1, "y": 2}})] * 7
    same.insert(1, ("t", {"b": {"y": 2, "x": 1}, "a": 1}))
    assert await _nudges(bench, *same) == [0, 0, 1, 0, 1, 0, 0, 1]
    last = (await bench.call("t", a=1, b={"x": 1, "y": 2})).contexts
    assert last == ()


@pytest.mark.rule("TL-91")
async def test_other_calls_and_new_prompts_reset_and_untracked_ones_do_not() -> None:
    bench = Bench()
    for name in ("t", "other", "quiet_one"):
        bench.add(name)
    RepeatGuard(thresholds=[2], exclude=["quiet_*"]).mount(bench.host.root)
    t: tuple[str, dict[str, Any]] = ("t", {})
    assert await _nudges(bench, t, ("other", {}), t) == [0, 0, 0]
    assert await _nudges(bench, ("quiet_one", {}), ("quiet_one", {}), t) == [0, 0, 1]

    async def accept(*args: Any) -> Any:
        return {"kind": "allow"}

    await bench.host.hooks.waterfall(
        "agent/prompt-submit", bench.agent, accept, bench.agent, [], {"kind": "user"}, Signal()
    )
    assert await _nudges(bench, t, t) == [0, 1]


@pytest.mark.rule("TL-91")
async def test_denied_calls_count_and_texts_differ_by_threshold() -> None:
    bench = Bench()
    bench.add("t")
    bench.tools.guard(bench.host.root, lambda _: "no")
    RepeatGuard(thresholds=[3, 2], preview_chars=10).mount(bench.host.root)
    results = [await bench.call("t", text="x" * 50) for _ in range(3)]
    gentle = results[1].contexts[0]
    detailed = results[2].contexts[0]["content"][0]["text"]
    assert gentle["source"] == {"kind": "plugin", "plugin": "repeat-guard"}
    assert "x" not in gentle["content"][0]["text"].replace("next", "").replace("text", "")
    assert '{"text":"x…' in detailed
    assert "3 times" in detailed


@pytest.mark.rule("TL-91")
@pytest.mark.parametrize("thresholds", [[], [1], [3, 3]])
def test_thresholds_are_checked(thresholds: list[int]) -> None:
    with pytest.raises(ConfigError):
        RepeatGuard(thresholds=thresholds)
