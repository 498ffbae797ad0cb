"""The title service in a real program: what a provider brings, refreshing, a person's title, the order of writes."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from dsh.capabilities.titles.provider import TitleError, TitleRequest
from dsh.core.lossless import thaw
from dsh.kernel.signal import Signal
from dsh.session.session import Session
from tests.agent.kit import Gate, ask, blocks, say, world
from tests.capabilities.titles_kit import (
    PLUGIN,
    USER,
    Provider,
    code,
    made,
    refused,
    service,
    settle,
    titles_of,
    warnings,
)

# ------------------------------------------------------------------------------------------------- what comes back


@pytest.mark.rule("ST-35", "ST-36")
@pytest.mark.parametrize(
    ("result", "why"),
    [
        (None, "TITLE_RESULT_INVALID"),
        ("a title", "TITLE_RESULT_INVALID"),
        (made(None, 1), "TITLE_RESULT_INVALID"),
        (made("", 1), "TITLE_EMPTY"),
        (made(" \u200b\x1b[1m ", 1), "TITLE_EMPTY"),
        (made("x"), "TITLE_RESULT_INVALID"),
        ({"title": "x"}, "TITLE_RESULT_INVALID"),
        (made("x", 1, 1), "TITLE_RESULT_INVALID"),
        (made("x", 7, 1), "TITLE_RESULT_INVALID"),
        (made("x", 2), "TITLE_RESULT_INVALID"),
        (made("x", True), "TITLE_RESULT_INVALID"),
        (made("x", 1.0), "TITLE_RESULT_INVALID"),
        (made("x", "1"), "TITLE_RESULT_INVALID"),
        (made("x", 1, model={"provider": "p"}), "TITLE_RESULT_INVALID"),
        (made("x", 1, model={"provider": "p", "model": ""}), "TITLE_RESULT_INVALID"),
        (made("x", 1, model={"provider": 1, "model": "m"}), "TITLE_RESULT_INVALID"),
        (made("x", 1, model="p/m"), "TITLE_RESULT_INVALID"),
    ],
)
async def test_a_wrong_result_leaves_the_title_as_it_is(result: Any, why: str) -> None:
    async def wrong(request: TitleRequest) -> Any:
        return result

    async with world(plugins=PLUGIN) as w:
        service(w).register(w.host.root, Provider(generate=wrong))
        agent = await w.agent()
        assert await w.turn(agent, "words") == {"kind": "completed"}
        await settle(w, agent.session)
        assert warnings(w) == [why]
        assert titles_of(w, agent.session) == ["words"]
        assert await refused(service(w).refresh(agent.session)) == why
        assert titles_of(w, agent.session) == ["words"]


async def test_a_secret_in_a_result_is_masked() -> None:
    async def leak(request: TitleRequest) -> Any:
        return made("about ghp_" + "a1B2" * 9, 1)

    async with world(plugins=PLUGIN) as w:
        service(w).register(w.host.root, Provider(generate=leak))
        agent = await w.agent()
        await w.turn(agent, "words")
        await settle(w, agent.session)
        assert titles_of(w, agent.session) == ["words", "about [redacted:github]"]


@pytest.mark.rule("ST-35")
async def test_a_result_is_normalised_and_cut() -> None:
    async def long(request: TitleRequest) -> Any:
        route = {"provider": "x", "model": "y", "more": 1}
        return {"title": " a\n\x1b[1mtitle " + "é" * 50, "messageSeqs": (1,), "model": route, "extra": 3}

    async with world(plugins=PLUGIN) as w:
        service(w).register(w.host.root, Provider(generate=long))
        agent = await w.agent()
        await w.turn(agent, "words")
        await settle(w, agent.session)
        data = thaw(w.last(agent, "session/title")["data"])
        assert data == {
            "title": "a title " + "é" * 36,
            "messageSeqs": [1],
            "source": {"kind": "provider", "provider": "mine", "model": {"provider": "x", "model": "y"}},
        }
        assert len(data["title"].encode()) == 80


def _exit(request: TitleRequest) -> Any:
    raise SystemExit(3)


async def _fail(request: TitleRequest) -> Any:
    raise ValueError("broken")


async def _hang(request: TitleRequest) -> Any:
    await trio.sleep_forever()


async def _leave(request: TitleRequest) -> Any:
    raise SystemExit(3)


@pytest.mark.rule("ST-36", "ST-37")
@pytest.mark.parametrize("generate", [_fail, _leave, _exit, _hang])
async def test_a_failing_provider_changes_nothing_about_the_turn(generate: Any) -> None:
    async with world(ask(("t", {})), say("done"), plugins=PLUGIN) as plain:
        plain.tool("t")
        agent = await plain.agent(id="plain")
        assert await plain.turn(agent, "words") == {"kind": "completed"}
        expected = plain.flow(agent)
    async with world(ask(("t", {})), say("done"), plugins=PLUGIN) as w:
        w.tool("t")
        provider = Provider("all-user-messages", generate)
        service(w).register(w.host.root, provider)
        agent = await w.agent()
        assert await w.turn(agent, "words") == {"kind": "completed"}
        await trio.testing.wait_all_tasks_blocked()
        assert w.flow(agent) == expected
        assert w.errors() == []
        assert len(provider.requests) == 1  # nothing is retried
        assert len(warnings(w)) == (0 if generate is _hang else 1)
        assert service(w).at_work(agent.session) == (generate is _hang)


# ----------------------------------------------------------------------------------------------------- refreshing


@pytest.mark.rule("ST-40")
async def test_only_a_live_session_is_refreshed() -> None:
    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        await w.turn(agent, "words")
        cancel = Signal()
        cancel.cancel()
        length = agent.session.length
        assert code(service(w).refresh, agent.session, cancel) == "ABORTED"
        session = agent.session
        await w.agents.dispose(agent)
        assert code(service(w).refresh, session) == "SESSION_NOT_LIVE"
        assert w.db.rows("SELECT length FROM session") == [(length,)]
        title = service(w).get(session.id)
        assert title is not None
        assert title.title == "words"


@pytest.mark.rule("ST-40")
async def test_a_cancelled_refresh_writes_nothing() -> None:
    async with world(plugins=[]) as w:
        await w.turn(await w.agent(id="old"), "long ago")
    async with world(plugins=PLUGIN) as w:
        session = w.sessions.publish(w.sessions.prepare_stored("old"))
        cancel = Signal()
        cancel.cancel()
        length = session.length
        assert code(service(w).refresh, session, cancel) == "ABORTED"
        later = Signal()
        called = service(w).refresh(session, later)
        later.cancel()  # before anything's time to be written came
        assert await refused(called) == "ABORTED"
        await trio.testing.wait_all_tasks_blocked()
        assert session.length == length
        w.sessions.dispose(session)


@pytest.mark.rule("ST-41")
async def test_without_a_provider_a_refresh_makes_the_fallback_if_there_is_none() -> None:
    async with world(plugins=[]) as w:
        await w.turn(await w.agent(id="old"), "long ago")
    async with world(plugins=PLUGIN) as w:
        session = w.sessions.publish(w.sessions.prepare_stored("old"))
        found = await service(w).refresh(session)
        assert found is not None
        assert (found.title, found.source) == ("long ago", {"kind": "fallback"})
        length = session.length
        assert await service(w).refresh(session) == found
        assert session.length == length
        w.sessions.dispose(session)
        empty = await w.agent()
        empty.inject(blocks("context"))
        service(w).register(w.host.root, provider := Provider())
        assert await service(w).refresh(empty.session) is None
        assert provider.requests == []


@pytest.mark.rule("ST-42")
async def test_a_refresh_is_of_everything_that_was_asked() -> None:
    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        for prompt in ("one", "two"):
            await w.turn(agent, prompt)
        agent.select(provider="p", model="other")
        await w.turn(agent, "three")
        provider = Provider()
        service(w).register(w.host.root, provider)
        found = await service(w).refresh(agent.session)
        assert found is not None
        assert (found.title, found.event_seq) == ("one+two+three", w.last(agent, "session/title")["seq"])
        assert found == service(w).get(agent.id)
        assert provider.requests[0].route == {"provider": "p", "model": "other"}
        fresh = await w.agent()
        fresh.inject(blocks("no request yet"), source=USER)
        await service(w).refresh(fresh.session)
        assert provider.requests[1].route is None


@pytest.mark.rule("ST-43", "ST-34")
async def test_the_last_call_of_overlapping_refreshes_wins() -> None:
    gate = Gate()

    async def slow(request: TitleRequest) -> Any:
        await gate.stop()
        return made(f"title {len(provider.requests)}", 1)

    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        await w.turn(agent, "words")
        provider = Provider(generate=slow)
        service(w).register(w.host.root, provider)
        calls = [service(w).refresh(agent.session) for _ in range(3)]  # the order of the calls counts
        ends: dict[int, str] = {}

        async def wait(number: int) -> None:
            try:
                found = await calls[number]
                ends[number] = found.title if found is not None else ""
            except TitleError as error:
                ends[number] = error.code

        async with trio.open_nursery() as nursery:
            for number in (2, 0, 1):
                nursery.start_soon(wait, number)
            await gate.entered.wait()
            await trio.testing.wait_all_tasks_blocked()
            gate.open.set()
        assert ends == {0: "TITLE_SUPERSEDED", 1: "TITLE_SUPERSEDED", 2: "title 1"}
        assert titles_of(w, agent.session) == ["words", "title 1"]


@pytest.mark.rule("ST-43")
async def test_a_superseded_call_that_complains_is_superseded_all_the_same() -> None:
    gate = Gate()

    async def sour(request: TitleRequest) -> Any:
        if len(provider.requests) > 1:
            return made("newest", 1)
        try:
            await gate.stop()
        except trio.Cancelled:
            raise ValueError("cut off") from None

    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        await w.turn(agent, "words")
        provider = Provider(generate=sour)
        service(w).register(w.host.root, provider)
        failed: list[str] = []

        async def refresh() -> None:
            failed.append(await refused(service(w).refresh(agent.session)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh)
            await gate.entered.wait()
            await service(w).refresh(agent.session)
        assert failed == ["TITLE_SUPERSEDED"]
        assert titles_of(w, agent.session) == ["words", "newest"]


@pytest.mark.rule("ST-36", "ST-44")
async def test_a_refresh_is_cancelled_by_its_caller() -> None:
    gate = Gate()

    async def slow(request: TitleRequest) -> Any:
        await gate.stop()

    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        agent.inject(blocks("words"), source=USER)
        service(w).register(w.host.root, Provider(generate=slow))
        cancel = Signal()
        failed: list[str] = []

        async def refresh() -> None:
            failed.append(await refused(service(w).refresh(agent.session, cancel)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh)
            await gate.entered.wait()
            cancel.cancel()
        assert failed == ["ABORTED"]
        assert titles_of(w, agent.session) == ["words"]


@pytest.mark.rule("ST-44")
async def test_a_fallback_that_is_being_written_is_written() -> None:
    flushing, go_on = trio.Event(), trio.Event()

    async def hold(session: Session) -> None:
        flushing.set()
        await go_on.wait()

    async with world(plugins=[]) as w:
        await w.turn(await w.agent(id="old"), "long ago")
    async with world(plugins=PLUGIN) as w:
        session = w.sessions.publish(w.sessions.prepare_stored("old"))
        service(w).register(w.host.root, provider := Provider())
        w.sessions.on_flush(w.host.root, hold)
        cancel = Signal()
        failed: list[str] = []

        async def refresh() -> None:
            failed.append(await refused(service(w).refresh(session, cancel)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh)
            await flushing.wait()
            cancel.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert failed == []
            go_on.set()
        assert failed == ["ABORTED"]
        assert titles_of(w, session) == ["long ago"]
        assert session.open_turn is None
        assert provider.requests == []
        w.sessions.dispose(session)


# ---------------------------------------------------------------------------------------------- a person's title


@pytest.mark.rule("ST-74")
async def test_a_persons_title_stays_until_a_refresh() -> None:
    async with world(plugins=PLUGIN) as w:
        provider = Provider("all-user-messages")
        service(w).register(w.host.root, provider)
        agent = await w.agent()
        agent.inject(blocks("one"), source=USER)  # scheduled
        found = await service(w).give(agent.session, "mine")
        assert (found.title, found.source, found.by_person) == ("mine", {"kind": "user"}, True)
        assert found == service(w).get(agent.id)
        await w.turn(agent, "two")
        await settle(w, agent.session)
        assert provider.requests == []
        assert await service(w).refresh(agent.session) is not None
        await w.turn(agent, "three")
        await settle(w, agent.session)
        assert titles_of(w, agent.session)[-3:] == ["mine", "one+two", "one+two+three"]


@pytest.mark.rule("ST-74", "ST-34")
async def test_a_persons_title_supersedes_what_is_being_made() -> None:
    gate = Gate()

    async def deaf(request: TitleRequest) -> Any:
        with trio.CancelScope(shield=True):
            await gate.stop()
        return made("too late", 1)

    async with world(plugins=PLUGIN) as w:
        service(w).register(w.host.root, Provider(generate=deaf))
        agent = await w.agent()
        await w.turn(agent, "words")
        await gate.entered.wait()
        await service(w).give(agent.session, "mine")
        gate.open.set()
        await settle(w, agent.session)
        assert titles_of(w, agent.session) == ["words", "mine"]


# --------------------------------------------------------------------------------------------------------- writing


@pytest.mark.rule("ST-51", "ST-52")
async def test_writes_of_a_session_follow_one_another() -> None:
    flushing, go_on = trio.Event(), trio.Event()

    async def hold(session: Session) -> None:
        flushing.set()
        await go_on.wait()

    async def logging(request: TitleRequest) -> Any:
        await request.log({"n": len(provider.requests)})
        return made("made", 1)

    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        await w.turn(agent, "words")
        provider = Provider(generate=logging)
        service(w).register(w.host.root, provider)
        w.sessions.on_flush(w.host.root, hold)
        before = len(w.flow(agent))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service(w).give, agent.session, "a")
            await flushing.wait()  # "a" is in the log, its turn closed, and it is being flushed
            nursery.start_soon(service(w).refresh, agent.session)
            await trio.testing.wait_all_tasks_blocked()
            assert len(w.flow(agent)) == before + 3
            go_on.set()
        kinds = [k for k in w.flow(agent)[before:] if k.startswith("session/")]
        assert kinds == ["session/title", "session/title-llm-request", "session/title"]
        assert titles_of(w, agent.session) == ["words", "a", "made"]


@pytest.mark.rule("ST-51")
async def test_a_write_that_is_not_wanted_when_its_time_comes_is_dropped() -> None:
    flushing, go_on, calling, ready = trio.Event(), trio.Event(), trio.Event(), trio.Event()
    failed: list[str] = []

    async def hold(session: Session) -> None:
        flushing.set()
        await go_on.wait()

    async def deaf(request: TitleRequest) -> Any:
        with trio.CancelScope(shield=True):
            calling.set()
            await ready.wait()
            failed.append(await refused(request.log({"n": 1})))
        return made("too late", 1)

    async with world(plugins=PLUGIN) as w:
        agent = await w.agent()
        await w.turn(agent, "words")
        service(w).register(w.host.root, Provider(generate=deaf))

        async def refresh() -> None:
            failed.append(await refused(service(w).refresh(agent.session)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh)
            await calling.wait()
            w.sessions.on_flush(w.host.root, hold)
            nursery.start_soon(service(w).give, agent.session, "mine")
            await flushing.wait()
            ready.set()  # so its write waits for that of the person's title, and is not wanted after it
            await trio.testing.wait_all_tasks_blocked()
            assert failed == []
            go_on.set()
        assert failed == ["TITLE_SUPERSEDED", "TITLE_SUPERSEDED"]
        assert "session/title-llm-request" not in w.flow(agent)
        assert titles_of(w, agent.session) == ["words", "mine"]
