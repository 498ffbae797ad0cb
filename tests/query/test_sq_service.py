"""Searches through the service: one at a time, in order, to their end; what they see, and how they fail."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dsh.core.errors import DshError
from dsh.kernel.signal import Signal
from dsh.query.service.service import SessionQuery, shared
from dsh.query.service.values import QueryError
from dsh.store.database import Database
from tests.session.kit import World, damage, prompt, raw, replace, start_turn, surface, whole_turn


@asynccontextmanager
async def service(w: World) -> AsyncIterator[SessionQuery]:
    made = SessionQuery(w.sessions, w.path)
    try:
        with trio.fail_after(20):
            yield made
    finally:
        await made.aclose()


async def refusal(call: Any) -> str:
    with pytest.raises(DshError) as caught:
        await call
    return caught.value.code


class Busy:
    """A search that has begun and goes on until it is let go."""

    def __init__(self, q: SessionQuery, nursery: trio.Nursery) -> None:
        self._go = threading.Event()
        self._begun = threading.Event()
        self.done = False
        nursery.start_soon(self._run, q)

    async def _run(self, q: SessionQuery) -> None:
        await q._searcher.run(self._work)

    def _work(self, db: Database) -> None:
        self._begun.set()
        self._go.wait(20)
        self.done = True

    async def begun(self) -> None:
        await trio.to_thread.run_sync(self._begun.wait)

    def let_go(self) -> None:
        self._go.set()


# -------------------------------------------------------------------------------------------------------- what is seen


@pytest.mark.rule("SQ-61", "SQ-70")
async def test_a_search_sees_what_was_appended_before_it(w: World) -> None:
    session = w.session()
    start_turn(session)
    async with service(w) as q:
        for number in range(5):
            seq = session.append("user/message", prompt(f"fresh {number}"), surface="append")["seq"]
            assert [hit.seq for hit in (await q.search_events("s", f"fresh {number}")).items] == [seq]
            assert [hit.best_match.seq for hit in (await q.search_sessions(f"fresh {number}")).items] == [seq]
        other = w.reopen()
        whole_turn(other.session("theirs"), "from elsewhere")
        (hit,) = (await q.search_sessions("from elsewhere", limit=1)).items
        assert (hit.header["id"], hit.live, hit.persisted) == ("theirs", False, True)
        other.db.close()


@pytest.mark.rule("SQ-71")
async def test_a_replacement_changes_the_class_and_not_the_text(w: World) -> None:
    session = w.session()
    start_turn(session)
    for words in ("needle a", "needle b", "needle c"):
        session.append("user/message", prompt(words), surface="append")
    async with service(w) as q:

        async def found(*classes: str) -> list[int]:
            page = await q.search_events("s", "needle", filters=[{"kind": "surface", "values": list(classes)}])
            assert {hit.surface for hit in page.items} <= set(classes)
            return sorted(hit.seq for hit in page.items)

        assert await found("current") == [1, 2, 3]
        session.append("user/message", prompt("summary"), surface=replace(1, 2), sources=[1, 2])
        assert await found("current") == [3]
        assert await found("shadowed") == [1, 2]
        assert await found("current", "shadowed", "log-only") == [1, 2, 3]
        assert surface(w.db, "s") == [4, 3]


@pytest.mark.rule("SQ-33")
async def test_a_request_is_what_it_was_when_it_was_made(w: World) -> None:
    whole_turn(w.session("a"), "word")
    whole_turn(w.session("b"), "word")
    async with service(w) as q:
        values = ["a"]
        sessions: list[Any] = [{"kind": "id", "values": values}]
        events: list[Any] = []
        texts = [{"kind": "text", "text": "word"}]
        made: list[Any] = [
            q.filter_sessions(sessions),
            q.search_sessions("word", session_filters=sessions, event_filters=events),
            q.filter_events("a", texts),
            q.read_titles(values),
        ]
        values[0] = "b"
        sessions.append({"kind": "id", "values": []})
        events.append({"kind": "type", "values": []})
        texts[0]["text"] = "no such"
        listed, page, documents, titles = [await call for call in made]
        assert [record.id for record in listed] == ["a"]
        assert [item.header["id"] for item in page.items] == ["a"]
        assert [d.type for d in documents] == ["user/message", "assistant/message"]
        assert [t.session_id for t in titles] == ["a"]


@pytest.mark.rule("SQ-33")
def test_a_wrong_request_is_refused_before_anything_is_awaited(w: World) -> None:
    q: Any = SessionQuery(w.sessions, Path("/nowhere/at.db"))
    for call, wanted in (
        (partial(q.search_sessions, ""), "INVALID_QUERY"),
        (partial(q.search_events, "s", None), "INVALID_QUERY"),
        (partial(q.search_sessions, "a", limit=0), "INVALID_LIMIT"),
        (partial(q.search_events, "s", "a", limit=101), "INVALID_LIMIT"),
        (partial(q.search_sessions, "a", session_filters={}), "INVALID_FILTER"),
        (partial(q.search_sessions, "a", event_filters=[{"kind": "text", "text": "a"}]), "INVALID_FILTER"),
        (partial(q.search_events, "s", "a", filters=[{"kind": "id", "values": []}]), "INVALID_FILTER"),
        (partial(q.filter_sessions, None), "INVALID_FILTER"),
        (partial(q.filter_events, "s", [{}]), "INVALID_FILTER"),
        (partial(q.read_event, "s", 0, -1), "INVALID_WINDOW"),
    ):
        with pytest.raises(QueryError) as caught:
            call()
        assert caught.value.code == f"SESSION_QUERY_{wanted}"


# --------------------------------------------------------------------------------------------------- turns, and the end


@pytest.mark.rule("SQ-63")
async def test_searches_go_one_by_one_in_their_order(w: World) -> None:
    whole_turn(w.session(), "word")
    order: list[int] = []
    async with service(w) as q, trio.open_nursery() as nursery:
        busy = Busy(q, nursery)
        await busy.begun()

        async def search(number: int) -> None:
            await q.search_sessions("word")
            order.append(number)

        for number in range(6):
            nursery.start_soon(search, number)
            await wait_all_tasks_blocked()
        assert order == []
        busy.let_go()
    assert order == [0, 1, 2, 3, 4, 5]


@pytest.mark.rule("SQ-63", "SQ-12")
async def test_a_wait_can_be_cancelled_and_what_has_begun_finishes(w: World) -> None:
    whole_turn(w.session(), "word")
    async with service(w) as q, trio.open_nursery() as nursery:
        busy = Busy(q, nursery)
        await busy.begun()
        with trio.move_on_after(0.01) as scope:
            await q.search_sessions("word")
        assert scope.cancelled_caught
        assert not busy.done
        busy.let_go()
        with trio.CancelScope() as cancelled:
            cancelled.cancel()
            await q.search_sessions("word")
        assert cancelled.cancelled_caught
        assert (await q.search_sessions("word")).items

    async with service(w) as q:
        ended = []
        async with trio.open_nursery() as nursery:
            running = trio.Event()

            def work(db: Database) -> None:
                trio.from_thread.run_sync(running.set)
                threading.Event().wait(0.05)
                ended.append("work")

            async def started() -> None:
                with trio.CancelScope() as inner:
                    nursery.start_soon(cancel_when, running, inner)
                    await q._searcher.run(work)
                assert inner.cancelled_caught
                ended.append("caller")

            async def next_one() -> None:
                await running.wait()
                await q.search_sessions("word")
                ended.append("next")

            nursery.start_soon(started)
            nursery.start_soon(next_one)
        assert ended[0] == "work"
        assert sorted(ended) == ["caller", "next", "work"]


async def cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


@pytest.mark.rule("SQ-63")
async def test_an_abort_is_told_as_one(w: World) -> None:
    whole_turn(w.session(), "word")
    async with service(w) as q, trio.open_nursery() as nursery:
        fired = Signal()
        fired.cancel()
        assert await refusal(q.search_sessions("word", signal=fired)) == "SESSION_QUERY_ABORTED"
        busy = Busy(q, nursery)
        await busy.begun()
        signal = Signal()
        codes: list[str] = []

        async def search() -> None:
            codes.append(await refusal(q.search_events("s", "word", signal=signal)))

        nursery.start_soon(search)
        await wait_all_tasks_blocked()
        signal.cancel()
        await wait_all_tasks_blocked()
        assert codes == ["SESSION_QUERY_ABORTED"]
        assert not busy.done
        busy.let_go()
    async with service(w) as q:
        assert (await q.search_sessions("word", signal=Signal())).items


@pytest.mark.rule("SQ-64")
async def test_closing_lets_the_running_one_finish_and_refuses_the_rest(w: World) -> None:
    whole_turn(w.session(), "word")
    q = SessionQuery(w.sessions, w.path)
    codes: list[str] = []

    async def search() -> None:
        codes.append(await refusal(q.search_sessions("word")))

    async with trio.open_nursery() as nursery:
        busy = Busy(q, nursery)
        await busy.begun()
        for _ in range(3):
            nursery.start_soon(search)
        await wait_all_tasks_blocked()
        nursery.start_soon(q.aclose)
        await wait_all_tasks_blocked()
        assert not busy.done
        busy.let_go()
    assert busy.done
    assert codes == ["SESSION_QUERY_INDEX_FAILED"] * 3
    assert await refusal(q.search_events("s", "word")) == "SESSION_QUERY_INDEX_FAILED"
    await q.aclose()


async def test_a_program_has_one_service_that_ends_with_it(w: World) -> None:
    whole_turn(w.session(), "word")
    q = shared(w.host, w.sessions, w.path)
    assert shared(w.host, w.sessions, w.path) is q
    assert (await q.search_sessions("word")).items
    await w.host.close()
    assert await refusal(q.search_sessions("word")) == "SESSION_QUERY_INDEX_FAILED"
    assert w.host.find(SessionQuery) is None


# ------------------------------------------------------------------------------------------------------------ failures


@pytest.mark.rule("SQ-65")
async def test_an_update_that_fails_commits_nothing_and_is_tried_again(w: World) -> None:
    session = w.session()
    whole_turn(session, "word")
    async with service(w) as q:
        assert len((await q.search_events("s", "word")).items) == 2
        whole_turn(session, "word")
        indexed = w.db.rows("SELECT search_indexed FROM store")
        assert q._searcher._db is not None
        q._searcher._db.busy.timeout_ms = 1
        with raw(w.path) as other:  # somebody holds the lock
            other.execute("BEGIN IMMEDIATE")
            assert await refusal(q.search_events("s", "word")) == "SESSION_QUERY_INDEX_FAILED"
            other.execute("ROLLBACK")
        assert w.db.rows("SELECT search_indexed FROM store") == indexed
        assert len((await q.search_events("s", "word")).items) == 4


@pytest.mark.rule("SQ-65")
async def test_a_damaged_index_and_a_source_that_is_not_there(w: World, tmp_path: Path) -> None:
    whole_turn(w.session(), "word")
    async with service(w) as q:
        assert (await q.search_sessions("word")).items
    with raw(w.path) as db:
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        db.execute("UPDATE search_data SET block = x'00' WHERE id > 10")
    async with service(w) as q:
        assert await refusal(q.search_sessions("word")) == "SESSION_QUERY_INDEX_FAILED"
        assert (await q.read_surface("s")).events  # which needs no index
    gone = SessionQuery(w.sessions, tmp_path / "gone.db")
    assert await refusal(gone.search_sessions("word")) == "SESSION_QUERY_PERSISTENCE_FAILED"
    assert not (tmp_path / "gone.db").exists()


@pytest.mark.rule("SQ-65")
async def test_a_log_that_cannot_be_read_has_its_own_code(w: World) -> None:
    session = w.session()
    whole_turn(session, "word")
    w.sessions.dispose(session)
    damage(w.path, "UPDATE _event SET data = '{' WHERE seq = 1")
    async with service(w) as q:
        assert await refusal(q.filter_events("s", [])) == "LOG_CORRUPT"
        assert await refusal(q.read_event("s", 1)) == "LOG_CORRUPT"


async def test_a_long_live_log_does_not_hold_up_the_loop(w: World) -> None:
    session = w.session()
    for _ in range(300):
        whole_turn(session)
    async with service(w) as q:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await q.list_events("s")
            nursery.cancel_scope.cancel()
        assert turns > session.length // 500
