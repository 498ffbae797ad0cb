"""The tool calls of one step: order, overlap, barriers, cancellation, what waits for their end (AL-55 to AL-60)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from dsh.core.errors import SessionError, StoreError
from tests.agent.kit import Gate, ask, blocks, say, world

PLUGIN = {"kind": "plugin", "plugin": "t"}
NOT_STARTED = {
    "content": [{"type": "text", "text": "Error: tool call aborted before dispatch"}],
    "isError": True,
    "error": {"name": "AbortError", "code": "ABORTED_BEFORE_DISPATCH"},
}


class Meter:
    """A tool body that notes when it begins (+id) and ends (-id); `after` names what must have happened first."""

    def __init__(self, after: dict[str, str] | None = None) -> None:
        self.order: list[str] = []
        self.after = after or {}
        self.now = self.most = 0

    async def body(self, args: Any, execution: Any) -> Any:
        self.order.append(f"+{execution.call_id}")
        self.now += 1
        self.most = max(self.most, self.now)
        while self.after.get(execution.call_id, self.order[0]) not in self.order:
            await trio.sleep(0.002)
        self.now -= 1
        self.order.append(f"-{execution.call_id}")
        return execution.call_id


def calls_and_results(w: Any, agent: Any) -> list[str]:
    mark = {"tool/call": "+", "tool/result": "-"}
    return [mark[e["type"]] + e["data"]["callId"] for e in w.log(agent, "tool/call", "tool/result")]


@pytest.mark.rule("AL-55", "CO-10")
async def test_arguments_are_parsed_for_the_tool_and_stay_raw_in_the_log() -> None:
    raw = ['{"a" : 1}', "", "not json {"]
    async with world(ask(*(("t", text) for text in raw))) as w:
        got: list[Any] = []

        @w.observe("tools/pre-execute")
        async def see(execution: Any, next_: Any) -> Any:
            got.append(execution.arguments)
            return await next_()

        w.tool("t")
        agent = await w.agent()
        await w.turn(agent)
        assert got == [{"a": 1}, {}, "not json {"]
        assert [e["data"]["arguments"] for e in w.log(agent, "tool/call")] == raw


@pytest.mark.rule("AL-56", "TL-61")
async def test_exclusive_calls_run_alone_and_in_order() -> None:
    async with world(ask(("x", {}), ("x", {}), ("x", {}))) as w:
        meter = Meter()
        w.tool("x", meter.body)
        agent = await w.agent()
        await w.turn(agent)
        assert meter.order == ["+c1", "-c1", "+c2", "-c2", "+c3", "-c3"]


@pytest.mark.rule("AL-56", "AL-57", "AL-58", "TL-63")
async def test_parallel_calls_overlap_and_commit_in_model_order() -> None:
    async with world(ask(("p", {}), ("p", {}), ("p", {}))) as w:
        meter = Meter({"c1": "-c3", "c2": "+c3", "c3": "-c2"})
        w.tool("p", meter.body, parallel=True)
        agent = await w.agent()
        await w.turn(agent)
        assert meter.order == ["+c1", "+c2", "+c3", "-c2", "-c3", "-c1"]
        assert calls_and_results(w, agent) == ["+c1", "+c2", "+c3", "-c1", "-c2", "-c3"]
        seqs = {e["data"]["callId"]: e["seq"] for e in w.log(agent, "tool/call")}
        assert [e["sourceEventSeqs"] for e in w.log(agent, "tool/result")] == [[s] for s in seqs.values()]


@pytest.mark.rule("AL-56")
@pytest.mark.parametrize("limit", [1, 2])
async def test_the_pool_has_a_limit_and_rolls(limit: int) -> None:
    async with world(ask(*[("p", {})] * 5), loop__max_parallel_tool_calls=limit) as w:
        # with room for two, a slow first call does not hold up those that follow
        meter = Meter({"c1": "-c4"} if limit == 2 else None)
        w.tool("p", meter.body, parallel=True)
        agent = await w.agent()
        await w.turn(agent)
        assert meter.most == limit


@pytest.mark.rule("AL-56", "TL-60", "TL-61")
async def test_an_exclusive_call_is_a_barrier() -> None:
    async with world(ask(("p", {}), ("p", {}), ("x", {}), ("p", {}), ("p", {}))) as w:
        meter = Meter({"c1": "+c2", "c2": "+c1", "c4": "+c5", "c5": "+c4"})
        w.tool("p", meter.body, parallel=True)
        w.tool("x", meter.body)
        agent = await w.agent()
        await w.turn(agent)
        assert set(meter.order[:2]) == {"+c1", "+c2"}
        assert meter.order[4:6] == ["+c3", "-c3"]
        assert set(meter.order[6:8]) == {"+c4", "+c5"}


@pytest.mark.rule("AL-56", "TL-62")
async def test_pending_calls_are_classified_anew_before_they_start() -> None:
    gate = Gate()
    async with world(ask(("p", {}), ("p", {}), ("p", {})), loop__max_parallel_tool_calls=1) as w:
        meter = Meter()
        registration = w.host.root.scope()
        unregister = None

        async def first(args: Any, execution: Any) -> Any:
            if execution.call_id == "c1":
                await unregister()  # type: ignore[misc]
                w.tool("p", meter.body)  # the same name, exclusive now
            return "old"

        from dsh.tools.definition import define

        old = define(
            name="p", description="p", parameters={}, output={"type": "json"}, parallel=True,
            render=lambda _, v: str(v), execute=first,
        )  # fmt: skip
        unregister = w.tools.register(registration, old)
        agent = await w.agent()
        await w.turn(agent)
        assert w.texts(agent, "tool/result") == ["old", "c2", "c3"]
        assert meter.order == ["+c2", "-c2", "+c3", "-c3"]
        assert not gate.entered.is_set()


@pytest.mark.rule("AL-57")
async def test_preparation_is_serial_in_model_order() -> None:
    async with world(ask(("p", {}), ("p", {}))) as w:
        inside: list[str] = []

        @w.observe("tools/pre-execute")
        async def slow(execution: Any, next_: Any) -> Any:
            inside.append(f"+{execution.call_id}")
            await trio.sleep(0.01)
            inside.append(f"-{execution.call_id}")
            return await next_()

        w.tool("p", parallel=True)
        agent = await w.agent()
        await w.turn(agent)
        assert inside == ["+c1", "-c1", "+c2", "-c2"]


@pytest.mark.rule("AL-58")
async def test_an_error_is_logged_by_name_and_code_only() -> None:
    async with world(ask(("gone", {}), ("fails", {}))) as w:

        async def body(args: Any, execution: Any) -> Any:
            raise RuntimeError("plain")

        w.tool("fails", body)
        agent = await w.agent()
        await w.turn(agent)
        unknown, plain = (e["data"] for e in w.log(agent, "tool/result"))
        assert unknown["error"] == {"name": "ToolNotFoundError", "code": "UNKNOWN_TOOL"}
        assert "error" not in plain
        assert (plain["isError"], w.texts(agent, "tool/result")[1]) == (True, "Error: plain")


@pytest.mark.rule("AL-59", "AL-71", "TL-65")
async def test_a_cancel_drains_what_was_started_and_answers_the_rest() -> None:
    gate = Gate()
    async with world(ask(("p", {}), ("wait", {}), ("p", {}), ("x", {})), loop__max_parallel_tool_calls=2) as w:
        meter = Meter({"c1": "never"})
        w.tool("p", meter.body, parallel=True)
        w.tool("x", meter.body)

        async def waits(args: Any, execution: Any) -> Any:
            execution.defer_context({"content": blocks("context of a started call"), "source": PLUGIN})
            gate.entered.set()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):  # a body is never abandoned
                    await trio.sleep(0.02)
                    meter.order.append("drained")

        w.tool("wait", waits, parallel=True)
        agent = await w.agent()
        agent.followup(blocks("hi"))
        await gate.entered.wait()
        agent.inject(blocks("injected meanwhile"))
        agent.cancel()
        await agent.when_idle()
        assert "drained" in meter.order
        assert calls_and_results(w, agent)[-4:] == ["+c3", "-c3", "+c4", "-c4"]
        results = {e["data"]["callId"]: e["data"] for e in w.log(agent, "tool/result")}
        assert list(results) == ["c1", "c2", "c3", "c4"]
        for cancelled in ("c1", "c2"):
            assert results[cancelled]["error"] == {"name": "AbortError", "code": "ABORTED"}
        for skipped in ("c3", "c4"):
            assert results[skipped] == {"turn": 1, "step": 1, "callId": skipped, **NOT_STARTED}
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "aborted"}
        assert w.texts(agent, "user/message") == ["hi", "injected meanwhile", "context of a started call"]
        flow = w.flow(agent)
        assert flow[-5:] == ["tool/result", "user/message", "user/message", "step/end", "turn/end"]


@pytest.mark.rule("AL-59")
async def test_a_cancel_by_the_first_call_starts_no_other() -> None:
    async with world(ask(("c", {}), ("x", {}), ("x", {}))) as w:
        ran: list[str] = []

        async def cancels(args: Any, execution: Any) -> Any:
            execution.agent.cancel()
            return "done before it noticed"

        async def other(args: Any, execution: Any) -> Any:
            ran.append(execution.call_id)
            return 1

        w.tool("c", cancels)
        w.tool("x", other)
        agent = await w.agent()
        await w.turn(agent)
        assert ran == []
        codes = [e["data"]["error"]["code"] for e in w.log(agent, "tool/result")]
        assert codes == ["ABORTED", "ABORTED_BEFORE_DISPATCH", "ABORTED_BEFORE_DISPATCH"]


@pytest.mark.rule("AL-59", "TL-32")
async def test_a_cancel_between_preparation_and_body_runs_no_body() -> None:
    async with world(ask(("x", {}))) as w:
        ran: list[str] = []

        async def body(args: Any, execution: Any) -> Any:
            ran.append(execution.call_id)
            return 1

        @w.observe("tools/pre-execute")
        async def cancel(execution: Any, next_: Any) -> Any:
            execution.agent.cancel()
            return await next_()

        w.tool("x", body)
        agent = await w.agent()
        await w.turn(agent)
        assert ran == []
        assert w.last(agent, "tool/result")["data"]["error"]["code"] == "ABORTED_BEFORE_DISPATCH"


@pytest.mark.rule("AL-60", "TL-64", "TL-45")
async def test_contexts_and_injections_wait_for_the_last_result() -> None:
    async with world(ask(("a", {}), ("b", {}), ("c", {}))) as w:

        async def gives(args: Any, execution: Any) -> Any:
            execution.defer_context({"content": blocks(f"context of {execution.name}"), "source": PLUGIN})
            if execution.name == "b":
                execution.agent.inject(blocks("injected in b"), meta=1)
            return execution.name

        for name in "abc":
            w.tool(name, gives)
        agent = await w.agent()
        await w.turn(agent)
        after = ["context of a", "injected in b", "context of b", "context of c"]
        assert w.texts(agent, "user/message") == ["hi", *after]
        assert w.sent() == ["hi", "", "a", "b", "c", *after]
        flow = w.flow(agent)
        last = len(flow) - 1 - flow[::-1].index("tool/result")
        assert flow[last + 1 : last + 6] == [*["user/message"] * 4, "step/end"]


@pytest.mark.rule("AL-60")
async def test_what_is_no_json_is_refused_when_it_is_given() -> None:
    async with world(ask(("a", {}))) as w:
        refused: list[str] = []

        async def gives(args: Any, execution: Any) -> Any:
            for bad in ({"content": blocks("\ud800"), "source": PLUGIN}, {"content": {1}, "source": PLUGIN}):
                try:
                    execution.defer_context(bad)
                except Exception as error:  # noqa: BLE001 - any refusal is one
                    refused.append(type(error).__name__)
            return 1

        w.tool("a", gives)
        agent = await w.agent()
        await w.turn(agent)
        assert refused == ["NotJson", "NotJson"]


@pytest.mark.rule("CO-16", "AL-60")
async def test_a_context_without_a_source_is_dropped_and_the_batch_goes_on() -> None:
    async with world(ask(("a", {}), ("b", {}))) as w:

        @w.observe("tools/post-execute")
        async def adds(execution: Any, result: Any, next_: Any) -> Any:
            return {**await next_(), "additionalContexts": [{"content": blocks("by nobody")}]}

        w.tool("a")
        w.tool("b")
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert w.texts(agent, "user/message") == ["hi"]
        assert w.texts(agent, "tool/result") == ["a done", "b done"]
        assert [where for where, _ in w.host.reports] == ["context of a", "context of b"]


@pytest.mark.rule("PE-23")
async def test_a_body_runs_only_when_its_call_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(ask(("a", {}), ("b", {}))) as w:
        ran: list[str] = []

        async def body(args: Any, execution: Any) -> Any:
            ran.append(execution.name)
            return 1

        w.tool("a", body)
        w.tool("b", body)
        agent = await w.agent()
        flush = agent.session.flush

        async def failing() -> None:
            if w.flow(agent)[-1] == "tool/call" and w.last(agent, "tool/call")["data"]["name"] == "a":
                raise StoreError("no disk", code="DB_IO")
            await flush()

        monkeypatch.setattr(agent.session, "flush", failing)
        assert await w.turn(agent) == {"kind": "completed"}
        assert ran == ["b"]
        assert w.texts(agent, "tool/result") == ["Error: the call could not be made durable: no disk", "1"]


@pytest.mark.rule("TL-65", "TL-67", "AL-50")
async def test_a_failure_of_the_batch_drains_its_bodies_and_leaves_every_call_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log refuses a result once: the turn fails with that error, not as cancelled, and the session can go on."""
    async with world(ask(("p", {}), ("slow", {}), ("x", {})), say("next")) as w:
        meter = Meter({"c1": "+slow"})
        ended: list[str] = []
        w.tool("p", meter.body, parallel=True)
        w.tool("x", meter.body)

        async def slow(args: Any, execution: Any) -> Any:
            meter.order.append("+slow")
            try:
                await trio.sleep_forever()
            finally:
                ended.append("slow")

        w.tool("slow", slow, parallel=True)
        agent = await w.agent()
        append = agent.session.append
        refused: list[str] = []

        def once(type: str, *args: Any, **kw: Any) -> Any:
            if type == "tool/result" and not refused:
                refused.append(type)
                raise SessionError("refused once", code="SQL")
            return append(type, *args, **kw)

        monkeypatch.setattr(agent.session, "append", once)
        assert await w.turn(agent) == {"kind": "error", "step": 1, "message": "refused once", "code": "SQL"}
        assert ended == ["slow"]
        codes = [e["data"]["error"]["code"] for e in w.log(agent, "tool/result")]
        assert codes == ["TOOL_OUTCOME_UNKNOWN", "TOOL_OUTCOME_UNKNOWN", "ABORTED_BEFORE_DISPATCH"]
        assert await w.turn(agent) == {"kind": "completed"}


@pytest.mark.rule("AL-62")
async def test_after_a_batch_injections_are_appended_at_once_again() -> None:
    async with world(ask(("a", {}))) as w:
        w.tool("a")

        @w.observe("agent/post-step")
        async def post(agent: Any, turn: int, step: int, signal: Any) -> None:
            before = agent.session.length
            agent.inject(blocks("at once"))
            assert agent.session.length == before + 1

        agent = await w.agent()
        await w.turn(agent)


@pytest.mark.rule("HD-13", "TL-34")
async def test_nobody_can_be_asked_so_the_call_is_refused() -> None:
    async with world(ask(("a", {}))) as w:
        ran: list[int] = []

        async def body(args: Any, execution: Any) -> Any:
            ran.append(1)

        w.tool("a", body)

        @w.observe("tools/pre-execute")
        async def asks(execution: Any, next_: Any) -> Any:
            return {"kind": "ask", "reason": "it writes"}

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert ran == []
        assert "nobody can be asked" in w.sent()[-1]
