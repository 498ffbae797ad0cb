"""The driver, and a turn from its claim to its flush (AL-15 to AL-26, AL-50 to AL-52)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from dsh.agent.agent import Agent
from dsh.core.errors import SessionError, StoreError
from tests.agent.kit import Gate, ask, blocks, boom, say, world


@pytest.mark.rule("AL-20", "AL-24", "AL-25", "AL-30", "AL-34", "AL-37", "AL-45", "AL-47")
async def test_the_order_of_a_turn() -> None:
    async with world(ask(("t", {}), text="looking"), say("done")) as w:
        w.tool("t")
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        step = ["step/start", "assistant/message", "tool/call", "tool/result", "step/end"]
        assert w.flow(agent) == [
            "turn/start", "user/message", "step/start", "request/header", *step[1:], "step/start",
            "assistant/message", "step/end", "turn/end",
        ]  # fmt: skip
        assert w.sent() == ["hi", "looking", "t done"]


@pytest.mark.rule("AL-15", "AL-17")
async def test_status_runs_from_idle_to_idle_and_only_changes_are_told() -> None:
    async with world() as w:
        agent = await w.agent()
        assert agent.status == "idle"
        seen: list[str] = []

        @w.observe("agent/status")
        def broken(a: Agent, status: str) -> None:
            raise RuntimeError("an observer's own failure")

        w.on("agent/status", lambda a, status: seen.append(status))
        await w.turn(agent)
        await w.turn(agent)
        assert seen == ["running", "idle", "running", "idle"]
        assert {str(e) for _, e in w.host.reports} == {"an observer's own failure"}


@pytest.mark.rule("AL-17")
async def test_waiters_are_released_before_idle_is_told() -> None:
    async with world() as w:
        agent = await w.agent()
        released: list[bool] = []

        @w.observe("agent/status")
        def idle(a: Agent, status: str) -> None:
            if status == "idle":
                released.append(a._idle.is_set())

        await w.turn(agent)
        assert released == [True]


@pytest.mark.rule("AL-16", "AL-79")
async def test_turn_numbers_go_on_over_injections_and_resumption() -> None:
    async with world() as w:
        agent = await w.agent(id="s")
        await w.turn(agent)
        agent.inject(blocks("note"))
        await w.turn(agent)
        await w.agents.dispose(agent)
        again = await w.agents.resume("s", {"provider": "p", "model": "m"})
        await w.turn(again)
        assert [e["data"]["turn"] for e in w.log(again, "turn/start")] == [1, 2, 3, 4]


@pytest.mark.rule("AL-18")
async def test_a_turn_that_cannot_be_opened_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        agent = await w.agent()
        append = agent.session.append
        refused: list[str] = []

        def once(type: str, *args: Any, **kw: Any) -> Any:
            if type == "turn/start" and not refused:
                refused.append(type)
                raise SessionError("not now")
            return append(type, *args, **kw)

        monkeypatch.setattr(agent.session, "append", once)
        agent.followup(blocks("lost"))
        agent.followup(blocks("kept"))
        await agent.when_idle()
        assert w.texts(agent, "user/message") == ["kept"]
        assert [(turn, step) for turn, step, _ in w.errors()] == [(1, 0)]


@pytest.mark.rule("AL-20")
async def test_the_trigger_names_the_source() -> None:
    async with world() as w:
        agent = await w.agent()
        source = {"kind": "plugin", "plugin": "timer"}
        await w.turn(agent, source=source)
        assert w.last(agent, "turn/start")["data"]["trigger"] == {"kind": "message", "source": source}


POINTS_OF_A_TURN = (
    "agent/prompt-submit", "agent/session-prefix", "agent/pre-step", "agent/request", "agent/step-result",
    "agent/post-step", "agent/turn-continuation", "agent/turn-stop",
)  # fmt: skip


@pytest.mark.rule("AL-21", "AL-61")
@pytest.mark.parametrize("point", POINTS_OF_A_TURN)
async def test_a_cancel_in_a_listener_ends_the_turn_at_the_next_checkpoint(point: str) -> None:
    """The listener itself does not wait for anything, so only the checkpoint can notice."""
    async with world(say("answer")) as w:
        reached: list[str] = []

        async def listener(agent: Agent, *args: Any) -> Any:
            agent.cancel()
            next_ = args[-1]
            return await next_() if callable(next_) else None

        w.on(point, listener)
        for later in POINTS_OF_A_TURN[POINTS_OF_A_TURN.index(point) + 1 :]:

            async def noted(agent: Agent, *args: Any, name: str = later) -> Any:
                reached.append(name)
                next_ = args[-1]
                return await next_() if callable(next_) else None

            w.on(later, noted)
        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "aborted"}
        assert reached == []
        asked = POINTS_OF_A_TURN.index(point) >= POINTS_OF_A_TURN.index("agent/step-result")
        assert len(w.requests) == int(asked)
        assert w.errors() == []


@pytest.mark.rule("AL-21")
@pytest.mark.parametrize("event", ["turn/start", "step/start"])
async def test_a_cancel_by_an_observer_of_a_border_is_noticed(event: str) -> None:
    async with world() as w:
        agent = await w.agent()

        @w.observe("session/event")
        def cancel(session: Any, logged: Any) -> None:
            if logged["type"] == event:
                agent.cancel()

        assert await w.turn(agent) == {"kind": "aborted"}
        after = {"turn/start": ["turn/end"], "step/start": ["step/end", "turn/end"]}[event]
        assert w.flow(agent)[w.flow(agent).index(event) + 1 :] == after


@pytest.mark.rule("AL-21", "AL-40")
async def test_no_chunk_is_stored_after_a_cancel() -> None:
    async with world(say("never seen whole")) as w:
        agent = await w.agent()

        @w.observe("session/event")
        def cancel(session: Any, logged: Any) -> None:
            if logged["type"] == "assistant/chunk":
                agent.cancel()

        assert await w.turn(agent) == {"kind": "aborted"}
        assert len(w.log(agent, "assistant/chunk")) == 1
        assert w.log(agent, "assistant/message") == []


@pytest.mark.rule("AL-22")
async def test_an_allow_without_contexts_drops_those_of_the_item() -> None:
    async with world() as w:

        @w.observe("agent/prompt-submit")
        async def alone(agent: Agent, content: Any, source: Any, signal: Any, next_: Any) -> Any:
            assert (await next_())["additionalContexts"] == [
                {"content": blocks("ctx"), "source": {"kind": "plugin", "plugin": "x"}}
            ]
            return {"kind": "allow"}

        agent = await w.agent()
        await w.turn(agent, contexts=[{"content": blocks("ctx"), "source": {"kind": "plugin", "plugin": "x"}}])
        assert w.texts(agent, "user/message") == ["hi"]


@pytest.mark.rule("AL-23")
async def test_a_blocked_prompt_ends_the_turn_without_a_step() -> None:
    async with world() as w:

        @w.observe("agent/prompt-submit")
        async def block(agent: Agent, content: Any, source: Any, signal: Any, next_: Any) -> Any:
            if content[0]["text"] == "bad":
                return {"kind": "block", "reason": "not that"}
            return await next_()

        agent = await w.agent()
        agent.followup(blocks("bad"))
        agent.followup(blocks("good"))
        await agent.when_idle()
        assert w.flow(agent)[:3] == ["turn/start", "prompt/blocked", "turn/end"]
        assert w.log(agent, "prompt/blocked")[0]["data"] == {
            "content": blocks("bad"),
            "source": {"kind": "user"},
            "reason": "not that",
        }
        reasons = [e["data"]["reason"] for e in w.log(agent, "turn/end")]
        assert reasons == [{"kind": "rejected", "reason": "not that"}, {"kind": "completed"}]
        assert len(w.requests) == 1
        assert w.sent() == ["good"]


@pytest.mark.rule("AL-25", "AL-50")
@pytest.mark.parametrize("point", POINTS_OF_A_TURN)
async def test_whatever_fails_the_turn_is_closed_and_its_error_recorded_once(point: str) -> None:
    async with world(say("answer"), say("next")) as w:

        async def breaks(agent: Agent, *args: Any) -> Any:
            if agent.session.turns == 1:
                try:
                    raise KeyError("inner")
                except KeyError as cause:
                    raise SessionError(f"{point} broke", code="CODED") from cause
            next_ = args[-1]
            return await next_() if callable(next_) else None

        w.on(point, breaks)
        agent = await w.agent()
        step = 0 if point == "agent/prompt-submit" else 1
        assert await w.turn(agent) == {
            "kind": "error", "step": step, "message": f"{point} broke: 'inner'", "code": "CODED",
        }  # fmt: skip
        assert [(t, s, str(e)) for t, s, e in w.errors()] == [(1, step, f"{point} broke")]
        assert await w.turn(agent) == {"kind": "completed"}


@pytest.mark.rule("AL-50")
async def test_an_error_without_a_code_has_none_and_odd_text_is_mended() -> None:
    async with world() as w:

        @w.observe("agent/pre-step")
        async def breaks(agent: Agent, *args: Any) -> None:
            error = OSError("a name with half a character: \ud83d")
            error.code = 7  # type: ignore[attr-defined]
            raise error

        agent = await w.agent()
        reason = await w.turn(agent)
        assert reason == {"kind": "error", "step": 1, "message": "a name with half a character: \ufffd"}


@pytest.mark.rule("AL-50")
async def test_an_error_out_of_a_nursery_is_recorded_as_itself() -> None:
    async with world() as w:

        @w.observe("agent/pre-step")
        async def breaks(agent: Agent, *args: Any) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 5)
                raise SessionError("inside", code="CODED")

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "error", "step": 1, "message": "inside", "code": "CODED"}


@pytest.mark.rule("AL-25")
async def test_a_refused_close_is_tried_once_more_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await w.agent()
        append = agent.session.append
        refused: list[str] = []

        def once(type: str, *args: Any, **kw: Any) -> Any:
            if type == "turn/end" and not refused:
                refused.append(type)
                raise SessionError("refused once", code="INVARIANT")
            return append(type, *args, **kw)

        monkeypatch.setattr(agent.session, "append", once)
        reason = await w.turn(agent)
        assert reason == {"kind": "error", "step": 1, "message": "refused once", "code": "INVARIANT"}
        assert [str(e) for _, _, e in w.errors()] == ["refused once"]


@pytest.mark.rule("AL-25")
async def test_a_refused_close_keeps_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(boom("AUTH", "no key")) as w:
        agent = await w.agent()
        append = agent.session.append
        refused: list[str] = []

        def once(type: str, *args: Any, **kw: Any) -> Any:
            if type == "turn/end" and not refused:
                refused.append(type)
                raise SessionError("refused once", code="INVARIANT")
            return append(type, *args, **kw)

        monkeypatch.setattr(agent.session, "append", once)
        assert (await w.turn(agent))["failure"] == {"message": "no key", "code": "AUTH"}
        assert [str(e) for _, _, e in w.errors()] == ["no key"]


@pytest.mark.rule("AL-25", "AL-68")
async def test_the_owner_is_retired_before_the_end_is_published() -> None:
    async with world() as w:
        agent = await w.agent()
        seen: list[Any] = []

        @w.observe("session/event")
        def at_end(session: Any, event: Any) -> None:
            if event["type"] == "turn/end":
                seen.append(agent.signal)
                agent.cancel()

        assert await w.turn(agent) == {"kind": "completed"}
        assert seen == [None]


@pytest.mark.rule("AL-26")
async def test_a_failing_flush_is_reported_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        agent = await w.agent()
        flush = agent.session.flush

        async def failing() -> None:
            if agent.session.open_turn is None:
                raise StoreError("no disk", code="DB_IO")
            await flush()

        monkeypatch.setattr(agent.session, "flush", failing)
        assert await w.turn(agent) == {"kind": "completed"}
        assert await w.turn(agent) == {"kind": "completed"}
        assert [(t, s, str(e)) for t, s, e in w.errors()] == [(1, 1, "no disk"), (2, 1, "no disk")]
        assert w.flow(agent)[-1] == "turn/end"


# ------------------------------------------------------------------------------------------------------- continuation


@pytest.mark.rule("AL-51")
async def test_a_turn_goes_on_after_tool_calls_and_stops_without() -> None:
    async with world(ask(("t", {})), say("end")) as w:
        w.tool("t")
        defaults: list[str] = []

        @w.observe("agent/turn-continuation")
        async def see(agent: Agent, turn: int, default: Any, signal: Any, next_: Any) -> Any:
            defaults.append(default["action"])
            return await next_()

        agent = await w.agent()
        await w.turn(agent)
        assert defaults == ["continue", "stop"]


@pytest.mark.rule("AL-51")
async def test_steering_drained_after_the_tools_makes_it_go_on() -> None:
    gate = Gate()
    async with world(gate.reply([], say("first")), say("second")) as w:
        agent = await w.agent()
        agent.followup(blocks("task"))
        await gate.entered.wait()
        agent.steer(blocks("and this"))
        gate.open.set()
        await agent.when_idle()
        assert w.sent() == ["task", "first", "and this"]
        assert len(w.log(agent, "turn/start")) == 1


@pytest.mark.rule("AL-51")
async def test_pending_steering_turns_a_stop_into_continue() -> None:
    async with world() as w:

        @w.observe("agent/turn-continuation")
        async def stop(agent: Agent, turn: int, default: Any, signal: Any, next_: Any) -> Any:
            if agent.session.steps == 1:
                agent.steer(blocks("one more"))
            return {"action": "stop"}

        agent = await w.agent()
        await w.turn(agent)
        assert w.sent() == ["hi", "ok", "one more"]


@pytest.mark.rule("AL-51")
async def test_a_continue_with_a_reason_steers() -> None:
    async with world() as w:

        @w.observe("agent/turn-continuation")
        async def go_on(agent: Agent, turn: int, default: Any, signal: Any, next_: Any) -> Any:
            if agent.session.steps > 1:
                return await next_()
            source = {"kind": "plugin", "plugin": "goal"}
            return {"action": "continue", "reason": {"content": blocks("not yet"), "source": source}}

        agent = await w.agent()
        await w.turn(agent)
        assert w.last(agent, "steering/message")["data"]["source"] == {"kind": "plugin", "plugin": "goal"}
        assert w.sent() == ["hi", "ok", "not yet"]
        assert [m["steering"] for _, (_, m) in w.noticed("agent/inbox/enqueue")] == [False, True]


@pytest.mark.rule("AL-51")
async def test_a_stop_after_tool_calls_leaves_their_results_in_the_log() -> None:
    async with world(ask(("t", {}))) as w:
        w.tool("t")

        @w.observe("agent/turn-continuation")
        async def stop(agent: Agent, turn: int, default: Any, signal: Any, next_: Any) -> Any:
            return {"action": "stop"}

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert len(w.requests) == 1
        assert w.texts(agent, "tool/result") == ["t done"]


@pytest.mark.rule("AL-52", "AL-82")
async def test_turn_stop_is_asked_after_every_step_and_the_first_stop_wins() -> None:
    async with world(ask(("t", {})), ask(("t", {})), ask(("t", {}))) as w:
        w.tool("t")
        asked: list[tuple[int, str]] = []

        @w.observe("agent/turn-stop")
        async def first(agent: Agent, turn: int, signal: Any) -> Any:
            asked.append((agent.session.steps, "first"))
            return {"action": "stop"} if agent.session.steps == 2 else None

        @w.observe("agent/turn-stop")
        async def second(agent: Agent, turn: int, signal: Any) -> Any:
            asked.append((agent.session.steps, "second"))

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "completed"}
        assert asked == [(1, "first"), (1, "second"), (2, "first")]
        assert len(w.requests) == 2


@pytest.mark.rule("AL-52")
async def test_a_terminal_stop_drops_steering_until_the_flush_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(ask(("t", {}))) as w:
        w.tool("t")
        agent = await w.agent()
        flush = agent.session.flush

        async def flushing() -> None:
            if agent.session.open_turn is None and agent.session.turns == 1:
                agent.steer(blocks("during the flush"))
            await flush()

        monkeypatch.setattr(agent.session, "flush", flushing)

        @w.observe("agent/turn-stop")
        async def stop(a: Agent, turn: int, signal: Any) -> Any:
            if turn == 1:
                a.steer(blocks("pending"))
                a.followup(blocks("survives"))
                return {"action": "stop"}
            return None

        await w.turn(agent)
        dropped = [[m["content"][0]["text"] for m in args[1]] for _, args in w.noticed("agent/inbox/discard")]
        assert dropped == [["pending"], ["during the flush"]]
        assert w.texts(agent, "user/message") == ["hi", "survives"]


@pytest.mark.rule("AL-46")
async def test_max_tokens_ends_the_turn_so_even_when_later_steps_complete() -> None:
    async with world(say("cut", kind="max-tokens"), say("whole")) as w:

        @w.observe("agent/turn-continuation")
        async def once(agent: Agent, turn: int, default: Any, signal: Any, next_: Any) -> Any:
            return {"action": "continue"} if agent.session.steps == 1 else await next_()

        agent = await w.agent()
        assert await w.turn(agent) == {"kind": "max-tokens"}
        assert len(w.requests) == 2
        assert await w.turn(agent) == {"kind": "completed"}


@pytest.mark.rule("AL-46")
async def test_an_error_overrides_max_tokens() -> None:
    async with world(say("cut", kind="max-tokens"), boom("AUTH")) as w:

        @w.observe("agent/turn-continuation")
        async def once(agent: Agent, turn: int, default: Any, signal: Any, next_: Any) -> Any:
            return {"action": "continue"} if agent.session.steps == 1 else await next_()

        agent = await w.agent()
        assert (await w.turn(agent))["kind"] == "error"
