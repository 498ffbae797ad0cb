"""The title service in a real program: the fallback, who makes titles, and when a provider is asked."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from dsh.capabilities.titles.provider import TitleRequest
from dsh.core.errors import ConfigError
from dsh.core.lossless import thaw
from dsh.core.messages import Request
from dsh.llm.service import LlmService
from dsh.session.session import Session
from tests.agent.kit import Gate, ask, blocks, boom, say, world
from tests.capabilities.titles_kit import (
    PLUGIN,
    USER,
    Provider,
    code,
    events,
    made,
    service,
    settle,
    titles_of,
    warnings,
    written_by_others,
)

# ------------------------------------------------------------------------------------------------------ fallback


@pytest.mark.rule("ST-12", "ST-20", "ST-21", "ST-50")
async def test_the_first_prompt_gives_a_title_at_once() -> None:
    async with world(say("one"), say("two"), plugins=PLUGIN) as w:
        agent = await w.agent()
        await w.turn(agent, "please explain why the sky is blue by day and red at night, in two sentences")
        assert w.flow(agent)[:4] == ["turn/start", "user/message", "session/title", "step/start"]
        assert events(w, agent.session) == [("fallback", "please explain why the sky is blue by day and red at", [1])]
        await w.turn(agent, "and the sea?")
        assert len(events(w, agent.session)) == 1
        assert w.flow(agent).count("turn/start") == 2
        assert all("please explain" in w.sent(n)[0] and len(w.sent(n)) in (1, 3) for n in (0, 1))
        assert warnings(w) == []


@pytest.mark.rule("ST-20")
async def test_it_is_of_the_first_prompt_that_says_something() -> None:
    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        await w.turn(agent, " \u200b ")
        await w.turn(agent, "context", source={"kind": "plugin", "plugin": "p"})
        assert events(w, agent.session) == []
        await w.turn(agent, "words")
        await w.turn(agent, "others")
        (kind, title, seqs) = events(w, agent.session)[0]
        assert (kind, title) == ("fallback", "words")
        assert w.log(agent)[seqs[0]]["data"]["content"] == blocks("words")
        assert len(events(w, agent.session)) == 1


@pytest.mark.rule("ST-20")
async def test_an_older_session_gets_its_title_from_its_first_prompt() -> None:
    async with world(plugins=[]) as w:
        await w.turn(await w.agent(id="old"), "long ago")
    async with world(plugins=PLUGIN) as w:
        agent = await w.agents.resume("old", {"provider": "p", "model": "m"})
        await w.turn(agent, "now")
        assert events(w, agent.session) == [("fallback", "long ago", [1])]


@pytest.mark.rule("ST-14")
async def test_without_room_for_a_character_there_is_no_title() -> None:
    async with world(plugins=PLUGIN, titles__fallback_max_bytes=2) as w:
        agent = await w.agent()
        await w.turn(agent, "題")
        assert events(w, agent.session) == []
        assert warnings(w) == []


@pytest.mark.rule("ST-13")
@pytest.mark.parametrize(
    "settings",
    [
        {"titles__fallback_max_bytes": 81},
        {"titles__max_title_bytes": 39},
        {"titles__fallback_max_words": 0},
        {"titles__fallback_max_bytes": -1},
        {"titles__max_title_bytes": 0},
        {"titles__fallback_max_words": True},
    ],
)
async def test_limits_are_checked_at_the_start(settings: Any) -> None:
    with pytest.raises((ConfigError, ExceptionGroup)) as caught:
        async with world(plugins=PLUGIN, checked=False, **settings):
            pytest.fail("it started")
    error = caught.value
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConfigError)
    assert error.code == "INVALID_CONFIG"
    assert "titles." in error.message


@pytest.mark.rule("ST-21", "ST-37", "ST-52")
async def test_a_fallback_that_fails_is_a_warning() -> None:
    async with world(say("fine"), plugins=PLUGIN) as w:
        agent = await w.agent()
        agent.inject(blocks("context"))
        await settle(w, agent.session)
        async with written_by_others(w, agent.session):
            assert await w.turn(agent) == {"kind": "completed"}
            await settle(w, agent.session)
        assert set(warnings(w)) == {"OUT_OF_BAND_BUSY"}
        assert events(w, agent.session) == []
        assert w.errors() == []
        await w.turn(agent, "again")
        assert titles_of(w, agent.session) == ["hi"]


@pytest.mark.rule("ST-21", "ST-50")
async def test_a_prompt_that_no_step_follows_has_its_title_behind_its_turn() -> None:
    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        agent.inject(blocks("typed by a person"), source=USER)
        assert w.flow(agent) == ["turn/start", "user/message", "turn/end"]  # not inside the append, nor of its turn
        await settle(w, agent.session)
        assert w.flow(agent)[3:] == ["turn/start", "session/title", "turn/end"]
        assert thaw(w.last(agent, "turn/start")["data"]) == {"turn": 2, "trigger": {"kind": "session-title"}}
        assert events(w, agent.session) == [("fallback", "typed by a person", [1])]


@pytest.mark.rule("ST-22")
async def test_many_that_want_it_at_once_share_one() -> None:
    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        agent.inject(blocks("a prompt"), source=USER)
        agent.inject(blocks("another"), source=USER)  # before any task could run
        await service(w).refresh(agent.session)
        await settle(w, agent.session)
        assert events(w, agent.session) == [("fallback", "a prompt", [1])]


@pytest.mark.rule("ST-23")
async def test_the_fallback_stands_before_a_provider_is_called() -> None:
    logged: list[Any] = []

    async def look(request: TitleRequest) -> Any:
        logged.append([e["type"] for e in request.session.events()])
        return made("better", 1)

    async with world(plugins=PLUGIN) as w:
        service(w).register(w.host.root, Provider(generate=look))
        agent = await w.agent()
        await w.turn(agent, "words")
        await settle(w, agent.session)
        assert "session/title" in logged[0]
        assert [k for k, _, _ in events(w, agent.session)] == ["fallback", "provider"]


@pytest.mark.rule("ST-21")
async def test_a_provider_is_called_though_the_fallback_failed() -> None:
    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        agent.inject(blocks("context"))
        await settle(w, agent.session)
        provider = Provider()
        service(w).register(w.host.root, provider)
        async with written_by_others(w, agent.session):
            await w.turn(agent, "words")
            await settle(w, agent.session)
        assert len(provider.requests) == 1


# ----------------------------------------------------------------------------------------------- who makes titles


@pytest.mark.rule("ST-30")
async def test_there_is_at_most_one_provider() -> None:
    async with world(plugins=PLUGIN) as w:
        undo = service(w).register(w.host.root, Provider())
        assert code(service(w).register, w.host.root, Provider(id="other")) == "TITLE_PROVIDER_EXISTS"
        await undo()
        service(w).register(w.host.root, Provider(id="other"))


@pytest.mark.rule("ST-30")
@pytest.mark.parametrize(
    "provider",
    [None, object(), Provider(id=""), Provider(id=3), Provider(automatic="sometimes"), Provider(automatic=None)],
)
async def test_what_is_no_provider_is_refused(provider: Any) -> None:
    async with world(plugins=PLUGIN) as w:
        assert code(service(w).register, w.host.root, provider) == "TITLE_PROVIDER_INVALID"
        assert not service(w).has_provider
        service(w).register(w.host.root, Provider())


@pytest.mark.rule("ST-31")
async def test_a_provider_goes_with_its_context() -> None:
    async with world(plugins=PLUGIN) as w:
        ctx = w.host.root.scope()
        service(w).register(ctx, Provider())
        await ctx.dispose()
        provider = Provider(id="next")
        service(w).register(w.host.root, provider)
        agent = await w.agent()
        await w.turn(agent, "words")
        await settle(w, agent.session)
        assert len(provider.requests) == 1


@pytest.mark.rule("ST-31", "ST-34")
@pytest.mark.parametrize("obedient", [True, False])
async def test_removal_cancels_and_waits(obedient: bool) -> None:
    gate = Gate()
    ended: list[bool] = []

    async def slow(request: TitleRequest) -> Any:
        try:
            with trio.CancelScope(shield=not obedient):
                await gate.stop()
        finally:
            ended.append(request.cancel.cancelled)
        return made("too late", 1)

    async with world(plugins=PLUGIN) as w:
        undo = service(w).register(w.host.root, Provider(generate=slow))
        agent = await w.agent()
        await w.turn(agent, "words")
        await gate.entered.wait()
        gone: list[int] = []

        async def remove(number: int) -> None:
            await undo()
            gone.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(remove, 1)
            nursery.start_soon(remove, 2)  # both wait for the same end
            await trio.testing.wait_all_tasks_blocked()
            if not obedient:
                assert (gone, ended) == ([], [])
                assert code(service(w).register, w.host.root, Provider()) == "TITLE_PROVIDER_EXISTS"
                gate.open.set()
        assert (sorted(gone), ended) == ([1, 2], [True])
        service(w).register(w.host.root, Provider())
        await settle(w, agent.session)
        assert titles_of(w, agent.session) == ["words"]
        assert warnings(w) == []


@pytest.mark.rule("ST-31")
async def test_removal_drops_what_is_scheduled() -> None:
    async with world(boom("AUTH"), plugins=PLUGIN) as w:
        provider = Provider()
        undo = service(w).register(w.host.root, provider)
        agent = await w.agent()
        agent.inject(blocks("words"), source=USER)
        await undo()
        await w.turn(agent, "x", source={"kind": "plugin", "plugin": "p"})
        await settle(w, agent.session)
        assert provider.requests == []


# --------------------------------------------------------------------------------------------- when it is asked


@pytest.mark.rule("ST-32", "ST-60")
async def test_the_first_prompt_alone_asks_for_a_title() -> None:
    async with world(plugins=PLUGIN) as w:
        provider = Provider()
        service(w).register(w.host.root, provider)
        agent = await w.agent()
        for prompt in ("one", "two"):
            await w.turn(agent, prompt)
            await settle(w, agent.session)
        assert [[m.text for m in r.messages] for r in provider.requests] == [["one"]]
        assert events(w, agent.session) == [("fallback", "one", [1]), ("provider", "one", [1])]
        assert service(w).get(agent.id) is not None
        assert provider.requests[0].route == {"provider": "p", "model": "m"}


@pytest.mark.rule("ST-32")
async def test_every_prompt_of_a_person_asks_for_a_title() -> None:
    async with world(plugins=PLUGIN) as w:
        provider = Provider("all-user-messages")
        service(w).register(w.host.root, provider)
        agent = await w.agent()
        for prompt, source in (("one", USER), ("context", {"kind": "goal"}), (" ", USER), ("two", USER)):
            await w.turn(agent, prompt, source=source)
            await settle(w, agent.session)
        assert [[m.text for m in r.messages] for r in provider.requests] == [["one"], ["one", "two"]]
        assert titles_of(w, agent.session) == ["one", "one", "one+two"]


@pytest.mark.rule("ST-32", "ST-70", "ST-71")
@pytest.mark.parametrize(("automatic", "asked"), [("first-message", []), ("all-user-messages", [["one", "two"]])])
async def test_a_fork_is_not_titled_by_its_first_prompt(automatic: str, asked: list[Any]) -> None:
    async with world(plugins=PLUGIN) as w:
        parent = await w.agent(id="parent")
        await w.turn(parent, "one")
        w.sessions.dispose(w.sessions.fork(parent.session, child="child"))
        provider = Provider(automatic)
        service(w).register(w.host.root, provider)
        child = await w.agents.resume("child", {"provider": "p", "model": "m"})
        assert titles_of(w, child.session) == ["one"]
        await w.turn(child, "two")
        await settle(w, child.session)
        assert [[m.text for m in r.messages] for r in provider.requests] == asked
        assert titles_of(w, parent.session) == ["one"]


@pytest.mark.rule("ST-32", "ST-71")
@pytest.mark.parametrize("meta", [{"parentSession": "other"}, {"delegationDepth": 1}])
async def test_neither_is_an_empty_child(meta: Any) -> None:
    async with world(plugins=PLUGIN) as w:
        provider = Provider()
        service(w).register(w.host.root, provider)
        child = await w.agent(meta=meta)
        await w.turn(child, "own first words")
        await settle(w, child.session)
        assert provider.requests == []
        assert titles_of(w, child.session) == ["own first words"]


@pytest.mark.rule("ST-32")
async def test_a_session_with_a_title_or_an_older_prompt_keeps_what_it_has() -> None:
    async with world(plugins=[]) as w:
        await w.turn(await w.agent(id="old"), "long ago")
    async with world(plugins=PLUGIN) as w:
        provider = Provider()
        service(w).register(w.host.root, provider)
        old = await w.agents.resume("old", {"provider": "p", "model": "m"})
        await w.turn(old, "now")
        new = await w.agent()
        new.inject(blocks("context"))
        await service(w).give(new.session, "mine")
        await w.turn(new, "words")
        await settle(w, new.session)
        other = await w.agent()
        other.inject(blocks("context"))
        source = {"kind": "provider", "provider": "somebody"}
        data = {"title": "theirs", "messageSeqs": [1], "source": source}
        await w.sessions.append_out_of_band(other.session, "session/title", data, {"kind": "session-title"})
        await w.turn(other, "words")
        await settle(w, other.session)
        assert provider.requests == []
        assert titles_of(w, other.session) == ["theirs"]


def aux(session: Session) -> Request:
    """A request of somebody else that names the session."""
    config: Any = {"provider": "p", "model": "m"}
    return Request(config=config, messages=(), session_id=session.id, purpose="compaction")


@pytest.mark.rule("ST-33")
async def test_work_waits_for_the_main_call_of_its_session() -> None:
    async with world(plugins=PLUGIN) as w:
        provider = Provider("all-user-messages")
        service(w).register(w.host.root, provider)
        agent, other = await w.agent(), await w.agent()
        agent.inject(blocks("words"), source=USER)
        await w.turn(other, "x", source={"kind": "goal"})  # another session's header and call
        async for _ in w.host.get(LlmService).stream(aux(agent.session)):
            pass
        await settle(w, agent.session)
        assert provider.requests == []
        await w.turn(agent, "x", source={"kind": "goal"})  # its own: a header newer than the message
        await settle(w, agent.session)
        assert [r.session for r in provider.requests] == [agent.session]


@pytest.mark.rule("ST-33")
async def test_an_unchanged_header_is_not_waited_for() -> None:
    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        await w.turn(agent, "one")
        provider = Provider("all-user-messages")
        service(w).register(w.host.root, provider)
        async for _ in w.host.get(LlmService).stream(aux(agent.session)):
            pass
        started: list[list[str]] = []
        early: list[bool] = []

        @w.observe("agent/request")
        async def _(agent: Any, turn: int, step: int, config: Any, signal: Any, next_: Any) -> Any:
            async for _ in w.host.get(LlmService).stream(aux(agent.session)):  # of somebody else, in the same step
                pass
            early.append(service(w).at_work(agent.session))
            return await next_()

        @w.observe("llm/stream")
        def _(request: Request, next_: Any) -> Any:
            started.append(w.flow(agent))
            return next_()

        await w.turn(agent, "two")
        await settle(w, agent.session)
        assert w.flow(agent).count("request/header") == 1
        assert early == [False]
        assert started[0][-1] == "step/start"
        assert [[m.text for m in r.messages] for r in provider.requests] == [["one", "two"]]
        assert provider.requests[0].route == {"provider": "p", "model": "m"}


@pytest.mark.rule("ST-33")
async def test_a_prompt_in_the_middle_of_a_step_waits_for_the_next() -> None:
    gate = Gate()
    async with world(say("first"), ask(("hold", {})), say("done"), plugins=PLUGIN) as w:
        w.tool("hold", gate.body)
        provider = Provider("all-user-messages")
        agent = await w.agent()
        await w.turn(agent, "one")
        service(w).register(w.host.root, provider)
        agent.followup(blocks("go"), source={"kind": "goal"})
        await gate.entered.wait()
        turn = agent.session.open_turn
        agent.session.append("user/message", {"content": blocks("two"), "source": USER}, surface="append")
        loop_built = next(r for r in reversed(w.requests) if r.loop_built)
        # The very request of the step at work, dispatched again: it is the loop's, but of a step before the message.
        w.script.replies.appendleft(say("again"))
        async for _ in w.host.get(LlmService).stream(loop_built):
            pass
        await settle(w, agent.session)
        assert (provider.requests, turn) == ([], 2)
        gate.open.set()
        await agent.when_idle()
        await settle(w, agent.session)
        assert [[m.text for m in r.messages] for r in provider.requests] == [["one", "two"]]


@pytest.mark.rule("ST-34")
@pytest.mark.parametrize("obedient", [True, False])
async def test_a_newer_prompt_supersedes_the_work_of_an_older_one(obedient: bool) -> None:
    gate = Gate()

    async def slow(request: TitleRequest) -> Any:
        if len(request.messages) == 1:
            with trio.CancelScope(shield=not obedient):
                await gate.stop()
        return made("+".join(m.text for m in request.messages), request.messages[-1].seq)

    async with world(plugins=PLUGIN) as w:
        provider = Provider("all-user-messages", slow)
        service(w).register(w.host.root, provider)
        agent = await w.agent()
        await w.turn(agent, "one")
        await gate.entered.wait()
        await w.turn(agent, "two")
        await settle(w, agent.session)
        assert provider.requests[0].cancel.reason == "superseded"
        gate.open.set()
        await settle(w, agent.session)
        assert titles_of(w, agent.session) == ["one", "one+two"]
        assert warnings(w) == []


@pytest.mark.rule("ST-34", "ST-54")
@pytest.mark.parametrize("end", ["session", "agent", "program"])
async def test_nothing_is_written_once_the_session_is_closed(end: str) -> None:
    gate = Gate()
    ended: list[str] = []

    async def deaf(request: TitleRequest) -> Any:
        with trio.CancelScope(shield=True):
            await gate.stop()
        ended.append("call")
        return made("too late", 1)

    async with world(plugins=PLUGIN) as w:
        service(w).register(w.host.root, Provider(generate=deaf))
        agent = await w.agent()
        await w.turn(agent, "words")
        await gate.entered.wait()
        session, length = agent.session, agent.session.length

        async def close() -> None:
            if end == "agent":
                await w.agents.dispose(agent)
            elif end == "session":
                w.sessions.dispose(session)
            else:
                await service(w).close()
            ended.append("closed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            await trio.testing.wait_all_tasks_blocked()
            assert ended == ([] if end == "program" else ["closed"])  # the program waits for what runs
            gate.open.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(ended) == ["call", "closed"]
        assert w.db.rows("SELECT length FROM session WHERE id = ?", (agent.id,)) == [(length,)]
        assert warnings(w) == []
        if end == "program":
            assert code(service(w).refresh, session) == "SESSION_NOT_LIVE"
            assert code(service(w).register, w.host.root, Provider()) == "TITLE_PROVIDER_EXISTS"


@pytest.mark.rule("ST-54")
async def test_the_end_waits_for_what_is_being_written() -> None:
    go_on = trio.Event()

    async def hold(session: Session) -> None:
        await go_on.wait()

    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        w.sessions.on_flush(w.host.root, hold)
        agent.inject(blocks("words"), source=USER)
        await trio.testing.wait_all_tasks_blocked()
        closed: list[bool] = []

        async def close() -> None:
            await service(w).close()
            closed.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            await trio.testing.wait_all_tasks_blocked()
            assert closed == []
            go_on.set()
        assert titles_of(w, agent.session) == ["words"]


@pytest.mark.rule("ST-72")
async def test_after_a_restart_nothing_is_made_until_somebody_asks() -> None:
    gate = Gate()

    async def slow(request: TitleRequest) -> Any:
        await gate.stop()

    async with world(plugins=PLUGIN) as w:
        service(w).register(w.host.root, Provider(generate=slow))
        agent = await w.agent(id="s")
        await w.turn(agent, "words")
        await gate.entered.wait()
    async with world(plugins=PLUGIN) as w:
        provider = Provider("all-user-messages")
        service(w).register(w.host.root, provider)
        agent = await w.agents.resume("s", {"provider": "p", "model": "m"})
        await w.turn(agent, "go on", source={"kind": "goal"})
        await settle(w, agent.session)
        assert provider.requests == []
        await w.turn(agent, "more")
        await settle(w, agent.session)
        assert titles_of(w, agent.session) == ["words", "words+more"]
