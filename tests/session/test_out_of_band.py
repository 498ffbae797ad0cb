"""Events that belong to no turn of the agent's, and flushing (SE-57 to SE-59)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from dsh.core.errors import DshError, SessionError, StoreError
from dsh.core.events import event_type
from dsh.core.lossless import thaw
from dsh.session.session import Session
from tests.session.kit import World, code, end_turn, prompt, start_step, start_turn, whole_turn

TITLE = {"title": "mine", "messageSeqs": [], "source": {"kind": "user"}}
TRIGGER = {"kind": "session-title"}


def run(action: Callable[..., Any], *args: Any) -> Any:
    return trio.run(action, *args, strict_exception_groups=True)


def refused(action: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(DshError) as caught:
        run(action, *args)
    return caught.value.code


def kinds(session: Session, low: int = 0) -> list[str]:
    return [e["type"] for e in session.events(low)]


@pytest.fixture
def s(w: World) -> Session:
    session = w.session("s")
    whole_turn(session)
    return session


@pytest.fixture
def flushes(w: World) -> list[tuple[int, int | None]]:
    """Length and open turn of the session at each flush."""
    heard: list[tuple[int, int | None]] = []

    async def note(session: Session) -> None:
        heard.append((session.length, session.open_turn))

    w.sessions.on_flush(w.host.root, note)
    return heard


@pytest.mark.rule("SE-57", "ST-50", "ST-53")
def test_it_gets_a_turn_of_its_own(w: World, s: Session, flushes: list[Any]) -> None:
    before, messages = s.length, s.derive_messages()
    event = run(w.sessions.append_out_of_band, s, "session/title", TITLE, TRIGGER)
    assert (event["type"], event["seq"], thaw(event["data"])) == ("session/title", before + 1, TITLE)
    assert [(e["type"], thaw(e["data"])) for e in s.events(before)] == [
        ("turn/start", {"turn": 2, "trigger": TRIGGER}),
        ("session/title", TITLE),
        ("turn/end", {"turn": 2, "reason": {"kind": "completed"}}),
    ]
    assert flushes == [(before + 3, None)]
    assert s.derive_messages() == messages
    again = w.reopen().sessions.prepare_stored("s")
    assert again.turns == 2
    again.release()
    whole_turn(s)
    assert s.turns == 3


@pytest.mark.rule("SE-57", "ST-50")
def test_an_open_turn_takes_it_and_is_not_flushed(w: World, s: Session, flushes: list[Any]) -> None:
    start_turn(s)
    start_step(s)
    before = s.length
    event = run(w.sessions.append_out_of_band, s, "session/title", TITLE, TRIGGER)
    assert event["seq"] == before
    assert kinds(s, before) == ["session/title"]
    assert (s.open_turn, s.open_step) == (2, 1)
    assert flushes == []


@pytest.mark.rule("SE-57")
def test_only_kinds_whose_owner_said_so(w: World, s: Session) -> None:
    before = s.length
    for kind in ("user/message", "assistant/message", "todo/write", "turn/start", "plugin/note", "x"):
        assert refused(w.sessions.append_out_of_band, s, kind, {}, TRIGGER) == "INVARIANT"
    undo = event_type.declare("plugin/note", out_of_band=True)
    try:
        run(w.sessions.append_out_of_band, s, "plugin/note", {"n": 1}, {"kind": "x"})
    finally:
        undo()
    assert kinds(s, before) == ["turn/start", "plugin/note", "turn/end"]
    assert event_type.facet("session/title-llm-request", "out_of_band") is True
    assert refused(w.sessions.append_out_of_band, s, "plugin/note", {}, TRIGGER) == "INVARIANT"


@pytest.mark.rule("SE-58", "ST-50")
def test_a_refused_event_leaves_a_closed_flushed_turn(w: World, s: Session, flushes: list[Any]) -> None:
    before = s.length
    bad = {"title": float("nan")}
    assert refused(w.sessions.append_out_of_band, s, "session/title", bad, TRIGGER) == "EVENT_NOT_JSON"
    assert kinds(s, before) == ["turn/start", "turn/end"]
    assert flushes == [(before + 2, None)]
    assert s.open_turn is None


@pytest.mark.rule("SE-58", "SE-59")
def test_a_failed_flush_is_raised_and_the_log_is_balanced(w: World, s: Session) -> None:
    async def fail(session: Session) -> None:
        raise StoreError("no room", code="DB_FULL")

    w.sessions.on_flush(w.host.root, fail)
    before = s.length
    with pytest.raises(StoreError, match="no room"):
        run(w.sessions.append_out_of_band, s, "session/title", TITLE, TRIGGER)
    assert kinds(s, before) == ["turn/start", "session/title", "turn/end"]
    bad = {"title": float("nan")}  # its own error is the one that counts
    assert refused(w.sessions.append_out_of_band, s, "session/title", bad, TRIGGER) == "EVENT_NOT_JSON"
    assert kinds(s, before + 3) == ["turn/start", "turn/end"]


@pytest.mark.rule("SE-58")
def test_without_a_turn_nothing_is_flushed(w: World, s: Session, flushes: list[Any]) -> None:
    before = s.length
    bad = {"kind": float("nan")}
    assert refused(w.sessions.append_out_of_band, s, "session/title", TITLE, bad) == "EVENT_NOT_JSON"
    assert (s.length, s.open_turn, flushes) == (before, None, [])


@pytest.mark.rule("SE-6", "SE-58")
def test_an_observer_cannot_write_out_of_band(w: World, s: Session, flushes: list[Any]) -> None:
    codes: list[str] = []

    def observe(session: Session, event: Any) -> None:
        if event["type"] != "todo/write":
            return
        with pytest.raises(SessionError) as caught:
            w.sessions.append_out_of_band(session, "session/title", TITLE, TRIGGER).send(None)
        codes.append(caught.value.code)

    w.host.root.on("session/event", observe)
    start_turn(s)
    s.append("todo/write", {"todos": []})
    end_turn(s)
    assert codes == ["APPEND_REENTRANT"]
    assert flushes == []


@pytest.mark.rule("SE-58", "ST-52")
def test_one_at_a_time_and_removal_waits(w: World, s: Session) -> None:
    other = w.session("other")
    whole_turn(other)
    flushing, go_on = trio.Event(), trio.Event()
    heard: list[str] = []
    w.host.root.on("session/disposed", lambda session: heard.append(session.id))

    async def hold(session: Session) -> None:
        if session is s:
            flushing.set()
            await go_on.wait()

    async def main() -> None:
        w.sessions.on_flush(w.host.root, hold)
        s.claim("me")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.sessions.append_out_of_band, s, "session/title", TITLE, TRIGGER)
            await flushing.wait()
            with pytest.raises(SessionError) as caught:
                await w.sessions.append_out_of_band(s, "session/title", TITLE, TRIGGER)
            assert caught.value.code == "OUT_OF_BAND_BUSY"
            await w.sessions.append_out_of_band(other, "session/title", TITLE, TRIGGER)  # another is free
            w.sessions.dispose(s)
            assert (w.sessions.live("s"), heard) == (s, [])
            assert w.db.rows("SELECT holder FROM lease WHERE session_id = 's'") == [("me",)]
            go_on.set()
        assert (w.sessions.live("s"), heard) == (None, ["s"])
        assert w.db.rows("SELECT holder FROM lease") == []

    run(main)
    assert kinds(s)[-3:] == ["turn/start", "session/title", "turn/end"]


@pytest.mark.rule("SE-58")
def test_a_cancelled_caller_still_flushes(w: World, s: Session, flushes: list[Any]) -> None:
    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await w.sessions.append_out_of_band(s, "session/title", TITLE, TRIGGER)

    run(main)
    assert len(flushes) == 1
    assert s.open_turn is None


@pytest.mark.rule("SE-57", "PE-72")
def test_what_another_process_drives_is_left_alone(w: World, s: Session) -> None:
    driver = w.reopen().sessions
    w.sessions.dispose(s)
    driver.publish(driver.prepare_stored("s", holder="them"))
    assert code(w.sessions.prepare_stored, "s") == "SESSION_LEASED"
    copy = Session(w.sessions, s.header, stored=True)  # a handle whose lease was taken over
    copy.load_state()
    w.sessions.publish(copy)
    before = copy.length
    assert refused(w.sessions.append_out_of_band, copy, "session/title", TITLE, TRIGGER) == "SESSION_LEASED"
    assert copy.length == before


@pytest.mark.rule("SE-57", "SE-59")
def test_only_live_sessions(w: World, s: Session) -> None:
    w.sessions.dispose(s)
    assert refused(w.sessions.append_out_of_band, s, "session/title", TITLE, TRIGGER) == "SESSION_NOT_LIVE"
    assert refused(w.sessions.flush, s) == "SESSION_NOT_LIVE"
    assert refused(s.flush) == "SESSION_NOT_LIVE"


# -------------------------------------------------------------------------------------------------------- flushing


@pytest.mark.rule("SE-59")
def test_all_participants_flush_at_once_and_the_first_failure_counts(w: World, s: Session) -> None:
    begun: list[str] = []
    ended: list[str] = []
    all_here = trio.Event()

    def participant(name: str, error: Exception | None = None) -> Callable[[Session], Any]:
        async def flush(session: Session) -> None:
            begun.append(name)
            if len(begun) == 3:
                all_here.set()
            await all_here.wait()  # none of them would come past this if they ran one after the other
            if name == "a":
                await trio.testing.wait_all_tasks_blocked()  # "c" fails before "a" does
            ended.append(name)
            if error is not None:
                raise error

        return flush

    w.sessions.on_flush(w.host.root, participant("a", StoreError("from a")))
    w.sessions.on_flush(w.host.root, participant("b"))
    w.sessions.on_flush(w.host.root, participant("c", StoreError("from c")))
    with pytest.raises(StoreError, match="from a"):
        run(w.sessions.flush, s)
    assert sorted(ended) == ["a", "b", "c"]
    assert ended.index("c") < ended.index("a")


@pytest.mark.rule("SE-59")
def test_participants_hear_of_their_sessions_until_they_go(w: World, s: Session) -> None:
    heard: list[str] = []

    def participant(name: str) -> Callable[[Session], Any]:
        async def flush(session: Session) -> None:
            heard.append(f"{name} {session.id}")

        return flush

    agent = object()
    scope, plain = w.host.root.scope(agent), w.host.root.scope()
    w.sessions.on_flush(scope, participant("scoped"))
    w.sessions.on_flush(plain, participant("plain"))
    run(w.sessions.flush, s)
    s.scope_key = agent
    run(s.flush)
    assert [heard[0], *sorted(heard[1:])] == ["plain s", "plain s", "scoped s"]
    run(plain.dispose)
    run(s.flush)
    assert heard[3:] == ["scoped s"]


@pytest.mark.rule("SE-59", "SE-58")
def test_a_flush_makes_what_was_written_searchable(w: World, s: Session) -> None:
    start_turn(s)
    s.append("user/message", prompt("xylophone"), surface="append")
    end_turn(s)
    run(w.sessions.append_out_of_band, s, "session/title", TITLE, TRIGGER)
    assert w.db.rows("SELECT count(*) FROM search WHERE search MATCH 'xylophone'") == [(1,)]
