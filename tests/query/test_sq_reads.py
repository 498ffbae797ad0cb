"""The corpus, and exact reads of one session, live and stored (SQ-1 to SQ-12)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dsh.core.errors import DshError
from dsh.query.service.service import Limits, SessionQuery
from dsh.query.service.values import EventDocument, QueryError, SessionRecord
from dsh.session.session import Session
from tests.session.kit import World, damage, end_turn, prompt, replace, start_turn, surface, whole_turn


@asynccontextmanager
async def service(w: World, path: Path | None = None) -> AsyncIterator[SessionQuery]:
    made = SessionQuery(w.sessions, path or w.path)
    try:
        with trio.fail_after(20):
            yield made
    finally:
        await made.aclose()


async def refusal(call: Awaitable[Any]) -> str:
    with pytest.raises(DshError) as caught:
        await call
    return caught.value.code


def stored(w: World, id: str, **meta: Any) -> None:
    """A session that is not open here any more."""
    session = w.session(id, **meta)
    whole_turn(session)
    w.sessions.dispose(session)


def ids(records: list[SessionRecord]) -> list[str]:
    return [record.id for record in records]


# ------------------------------------------------------------------------------------------------------- the corpus


@pytest.mark.rule("SQ-1")
async def test_every_session_once_newest_first_then_by_code_points(w: World) -> None:
    for id_, at in (("b", 5), ("a", 5), ("old", 1), ("é", 5), ("Z", 5), ("𝒵", 5), ("ﬁ", 5)):
        stored(w, id_, createdAt=at)
    whole_turn(w.session("live", createdAt=9))
    async with service(w) as q:
        assert ids(await q.list_sessions()) == ["live", "Z", "a", "b", "é", "ﬁ", "𝒵", "old"]


@pytest.mark.rule("SQ-1")
async def test_a_list_opens_no_log(w: World) -> None:
    stored(w, "broken")
    w.db.close()
    damage(w.path, "UPDATE _event SET data = 'no JSON', op = 'x', type = 'x'")
    async with service(w.reopen()) as q:
        assert ids(await q.list_sessions()) == ["broken"]


@pytest.mark.rule("SQ-34")
async def test_where_a_session_is(w: World) -> None:
    stored(w, "stored", createdAt=1)
    whole_turn(w.session("both", createdAt=2))
    w.session("empty", createdAt=3)
    async with service(w) as q:
        found = {r.id: (r.live, r.persisted) for r in await q.list_sessions()}
        assert found == {"stored": (False, True), "both": (True, True), "empty": (True, False)}
        for values, wanted in ((["live"], ["empty", "both"]), (["persisted"], ["both", "stored"]), ([], [])):
            assert ids(await q.filter_sessions([{"kind": "availability", "values": values}])) == wanted


async def test_what_its_user_hid_is_not_listed_and_can_be_read(w: World) -> None:
    stored(w, "seen")
    stored(w, "unseen")
    w.db.rows("UPDATE session SET hidden = 1 WHERE id = 'unseen'")
    async with service(w) as q:
        assert ids(await q.list_sessions()) == ["seen"]
        assert (await q.read_surface("unseen")).session["id"] == "unseen"
        assert (await q.trace_session("unseen")).target.id == "unseen"
        w.sessions.publish(w.sessions.prepare_stored("unseen"))
        assert sorted(ids(await q.list_sessions())) == ["seen", "unseen"]


@pytest.mark.rule("SQ-2")
async def test_results_do_not_grow(w: World) -> None:
    session = w.session()
    whole_turn(session)
    async with service(w) as q:
        listed, log, seen = await q.list_sessions(), await q.read_session("s"), await q.read_surface("s")
        records = await q.list_events("s")
        sizes = len(listed), len(log.events), len(seen.events), len(records)
        whole_turn(session)
        stored(w, "more")
        assert (len(listed), len(log.events), len(seen.events), len(records)) == sizes
        assert log.events == tuple(session.events(high=len(log.events) - 1))
        with pytest.raises(TypeError):
            log.events[0]["data"]["turn"] = 7


@pytest.mark.rule("SQ-3")
@pytest.mark.parametrize(
    "change",
    ["created_at = 7", "cwd = '/b'", "parent = 'q'", "seed_length = 1", "delegation_depth = 1", "version = 1"],
)
async def test_two_headers_of_one_id_are_a_conflict(w: World, change: str) -> None:
    whole_turn(w.session("s", cwd="/a", createdAt=5))
    damage(w.path, f"UPDATE _session SET {change}")
    async with service(w) as q:
        assert await refusal(q.list_sessions()) == "SESSION_QUERY_SOURCE_CONFLICT"
        assert await refusal(q.filter_sessions([])) == "SESSION_QUERY_SOURCE_CONFLICT"
        assert await refusal(q.trace_session("s")) == "SESSION_QUERY_SOURCE_CONFLICT"
        assert await refusal(q.search_sessions("hello")) == "SESSION_QUERY_SOURCE_CONFLICT"
        assert (await q.read_surface("s")).session["cwd"] == "/a"  # SQ-4


@pytest.mark.rule("SQ-3")
async def test_an_absent_depth_is_depth_0(w: World) -> None:
    whole_turn(w.session("s", delegationDepth=0))
    async with service(w) as q:
        assert ids(await q.list_sessions()) == ["s"]


@pytest.mark.rule("SQ-4")
async def test_a_live_session_is_read_though_the_file_cannot_be_opened(w: World, tmp_path: Path) -> None:
    live = w.session("live")
    whole_turn(live)
    stored(w, "stored")
    async with service(w, tmp_path / "gone.db") as q:
        assert len((await q.read_session("live")).events) == live.length
        assert (await q.read_surface("live")).captured_through_seq == live.length - 1
        assert (await q.read_event("live", 1)).target["type"] == "user/message"
        assert (await q.trace_event("live", 1)).replaced_by is None
        assert [d.seq for d in await q.filter_events("live", [])] == [1, 5]
        assert [t.status for t in await q.read_titles(["live", "stored"])] == ["fulfilled", "rejected"]
        for call in (q.list_sessions(), q.filter_sessions([]), q.trace_session("live"), q.search_sessions("x")):
            assert await refusal(call) == "SESSION_QUERY_PERSISTENCE_FAILED"
        assert await refusal(q.read_surface("stored")) == "SESSION_QUERY_PERSISTENCE_FAILED"


async def test_a_live_session_without_events(w: World) -> None:
    w.session("s", cwd="/a")
    async with service(w) as q:
        assert (await q.read_session("s")).events == ()
        assert (await q.read_surface("s")).captured_through_seq is None
        assert await q.list_events("s") == []
        assert (await q.read_title_snapshot("s")).title is None
        assert (await q.search_events("s", "x")).items == ()
        assert await refusal(q.read_event("s", 0)) == "SESSION_QUERY_EVENT_NOT_FOUND"


@pytest.mark.rule("SQ-5")
async def test_reading_changes_nothing_and_opens_nothing(w: World) -> None:
    session = w.session("s")
    start_turn(session)
    session.append("user/message", prompt(), surface="append")
    w.sessions.dispose(session)  # its turn is open: opening it would repair it
    before = w.db.rows("SELECT * FROM event")
    async with service(w) as q:
        assert [e["type"] for e in (await q.read_session("s")).events] == ["turn/start", "user/message"]
        await q.read_surface("s")
        await q.search_events("s", "hello")
        await q.read_titles(["s"])
    assert w.db.rows("SELECT * FROM event") == before
    assert w.sessions.live("s") is None
    assert w.db.rows("SELECT * FROM lease") == []


@pytest.mark.rule("SQ-5")
async def test_what_becomes_live_meanwhile_is_read_as_it_is_then(w: World) -> None:
    session = w.session("s")
    start_turn(session)
    session.append("user/message", prompt(), surface="append")
    w.sessions.dispose(session)
    async with service(w) as q:
        async with trio.open_nursery() as nursery:
            found: list[Any] = []

            async def read() -> None:
                found.append(await q.read_session("s"))

            async def busy() -> None:  # the reader's turn is taken until the session is live
                await q._reader.run(lambda db: trio.from_thread.run(opened.wait))

            opened = trio.Event()
            nursery.start_soon(busy)
            await wait_all_tasks_blocked()
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            w.sessions.publish(w.sessions.prepare_stored("s"))
            opened.set()
        assert [e["type"] for e in found[0].events][-1] == "turn/end"


@pytest.mark.rule("SQ-6")
async def test_an_unknown_id(w: World) -> None:
    async with service(w) as q:
        for odd in ("", "\ud800", 7, None):
            assert await refusal(q.read_surface(odd)) == "SESSION_QUERY_SESSION_NOT_FOUND"  # type: ignore[arg-type]
            assert await refusal(q.search_events(odd or "", "x")) == "SESSION_QUERY_SESSION_NOT_FOUND"  # type: ignore[arg-type]
        for call in (
            q.read_session("no"), q.list_events("no"), q.read_surface("no"), q.filter_events("no", []),
            q.trace_event("no", 0), q.read_event("no", 0), q.read_title_snapshot("no"), q.trace_session("no"),
            q.search_events("no", "x"),
        ):  # fmt: skip
            assert await refusal(call) == "SESSION_QUERY_SESSION_NOT_FOUND"


@pytest.mark.rule("SQ-7")
@pytest.mark.parametrize(
    ("harm", "wanted"),
    [
        ("UPDATE _event SET type = 'mode/set' WHERE type = 'request/header'", "LEGACY_EVENT"),
        ("UPDATE _event SET data = '{' WHERE seq = 1", "LOG_CORRUPT"),
        ("DELETE FROM _event WHERE seq = 2", "LOG_CORRUPT"),
        ("UPDATE _event SET data = json_set(data, '$.turn', 7) WHERE type = 'turn/end'", "LOG_CORRUPT"),
        ("UPDATE _session SET version = 3", "VERSION_UNSUPPORTED"),
    ],
)
async def test_a_whole_log_is_held_against_its_rules(w: World, harm: str, wanted: str) -> None:
    stored(w, "s")
    w.db.close()
    damage(w.path, harm)
    async with service(w.reopen()) as q:
        assert await refusal(q.read_session("s")) == wanted


# ------------------------------------------------------------------------------------------------- surface and window


@pytest.mark.rule("SQ-9")
@pytest.mark.parametrize("live", [True, False])
async def test_a_surface_is_of_one_moment(w: World, live: bool) -> None:
    """Appends and compactions go on while a long log is read, in the same loop: each read is one of the surfaces that
    there were."""
    session = w.session()
    for number in range(150):
        whole_turn(session, f"p{number}")
    start_turn(session)
    was: dict[int, list[int]] = {session.length - 1: surface(w.db, "s")}
    if not live:
        w = w.reopen()  # it sees the session as another process would
    async with service(w) as q:

        async def change() -> None:  # as long as it is read
            for number in count():
                nodes = was[session.length - 1]
                if number % 8:
                    session.append("user/message", prompt("x"), surface="append")
                else:
                    session.append(
                        "user/message", prompt("y"), surface=replace(nodes[2], nodes[9]), sources=nodes[2:10]
                    )
                was[session.length - 1] = surface(session.db, "s")
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            seen = [await q.read_surface("s") for _ in range(6)]
            while len({found.captured_through_seq for found in seen}) < 3:
                seen.append(await q.read_surface("s"))
            nursery.cancel_scope.cancel()
    for found in seen:
        assert found.captured_through_seq is not None
        assert [event["seq"] for event in found.events] == was[found.captured_through_seq]


@pytest.mark.rule("SQ-10")
async def test_windows(w: World) -> None:
    stored(w, "s")
    async with service(w) as q:
        log = (await q.read_session("s")).events
        last = len(log) - 1
        for seq, before, after in ((0, 0, 0), (0, 5, 1), (3, 2, 2), (last, 1, 50), (4, 50, 50)):
            found = await q.read_event("s", seq, before, after)
            assert (found.start_seq, found.end_seq) == (max(0, seq - before), min(last, seq + after))
            assert found.events == log[found.start_seq : found.end_seq + 1]
            assert found.target == log[seq]
            assert found.session["id"] == "s"
        assert {e["type"] for e in (await q.read_event("s", 4, 50, 50)).events} >= {"assistant/chunk", "turn/start"}
        wrong: list[Any] = [-1, last + 1, 1.0, True, "1", None, 2**80]
        for seq in wrong:
            assert await refusal(q.read_event("s", seq)) == "SESSION_QUERY_EVENT_NOT_FOUND"


@pytest.mark.rule("SQ-10")
@pytest.mark.parametrize("side", [-1, 51, 1.0, True, None, "1"])
async def test_a_wrong_window_is_refused_before_anything_is_read(w: World, side: Any) -> None:
    async with service(w, Path("/nowhere/at.db")) as q:
        for window in ((side, 0), (0, side)):
            with pytest.raises(QueryError) as caught:
                q.read_event("no such session", 0, *window)
            assert caught.value.code == "SESSION_QUERY_INVALID_WINDOW"


def test_limits_out_of_their_range(w: World) -> None:
    for limits in (
        Limits(default_limit=101), Limits(max_limit=0), Limits(snippet_chars=0), Limits(read_window_max=-1),
        Limits(default_limit=True), Limits(max_limit=2**53 - 1), Limits(snippet_chars=1.5),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(QueryError) as caught:
            SessionQuery(w.sessions, w.path, limits)
        assert caught.value.code == "SESSION_QUERY_INVALID_CONFIG"


# ------------------------------------------------------------------------------------------------------------- titles


def entitle(session: Session, title: Any) -> None:
    start_turn(session)
    session.append("session/title", {"title": title, "messageSeqs": [], "source": {"kind": "user"}})
    end_turn(session)


@pytest.mark.rule("SQ-11")
async def test_titles_of_many_sessions(w: World) -> None:
    for id_ in ("a", "b", "untitled", "odd", "torn"):
        session = w.session(id_)
        whole_turn(session)
        if id_ != "untitled":
            entitle(session, f"first of {id_}")
            entitle(session, f"title of {id_}")
        if id_ != "a":
            w.sessions.dispose(session)
    last = "seq = (SELECT max(seq) - 1 FROM _event)"
    named = "session = (SELECT id FROM _session WHERE name = '{}')"
    damage(
        w.path,
        f"UPDATE _event SET data = '{{\"title\":7}}' WHERE {named.format('odd')} AND {last}",
        f"UPDATE _event SET data = '{{' WHERE {named.format('torn')} AND {last}",
    )
    async with service(w) as q:
        found = await q.read_titles(iter(["b", "torn", "no", "b", "a", "odd", "untitled", "a"]))
        assert [r.session_id for r in found] == ["b", "torn", "no", "a", "odd", "untitled"]
        assert [r.status for r in found] == ["fulfilled", "rejected", "rejected", "fulfilled", "rejected", "fulfilled"]
        titles = [r.value.title for r in found if r.value]
        assert titles == ["title of b", "title of a", None]
        reasons = [r.reason.code for r in found if isinstance(r.reason, DshError)]
        assert reasons == ["LOG_CORRUPT", "SESSION_QUERY_SESSION_NOT_FOUND", "LOG_CORRUPT"]
        assert (await q.read_title_snapshot("b")).title == "title of b"
        assert await refusal(q.read_title_snapshot("torn")) == "LOG_CORRUPT"


@pytest.mark.rule("SQ-11", "SQ-12")
async def test_cancelled_reads_fail_as_a_whole_and_begin_nothing_more(w: World) -> None:
    for number in range(5):
        stored(w, f"s{number}")
    async with service(w) as q:
        asked: list[str] = []

        class Watched:
            def live(self, id: str) -> None:
                asked.append(id)

            def __iter__(self) -> Any:
                return iter(())

        q._live = Watched()
        with trio.CancelScope() as scope:
            scope.cancel()
            for call in (q.read_titles(["s0", "s1"]), q.read_surface("s0"), q.read_event("s0", 0), q.list_sessions()):
                with pytest.raises(trio.Cancelled):
                    await call
        assert asked == []
        assert q._reader._db is None  # an already-cancelled call touches nothing

        begun = trio.Event()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def hold() -> None:  # so that the first read waits, and is cancelled while it does
                    await q._reader.run(lambda db: trio.from_thread.run(begun.wait))

                nursery.start_soon(hold)
                await wait_all_tasks_blocked()
                nursery.start_soon(q.read_titles, [f"s{n}" for n in range(5)])
                await wait_all_tasks_blocked()
                scope.cancel()
                begun.set()
        assert scope.cancelled_caught
        assert set(asked) == {"s0"}


@pytest.mark.rule("SQ-34")
async def test_documents_by_seq(w: World) -> None:
    session = w.session()
    for words in ("one Apple", "two", "three apple\n\npie"):
        whole_turn(session, words)
    start_turn(session)
    session.append("user/message", prompt("\u3000\ufeff \u00a0"), surface="append")  # which says nothing
    blank = session.append("user/message", prompt("\u2009apple\u3000"), surface="append")["seq"]
    async with service(w) as q:
        found = await q.filter_events("s", [{"kind": "text", "text": "APPLE"}])
        assert [(d.type, d.text) for d in found][:2] == [
            ("user/message", "one Apple"),
            ("assistant/message", "re: one Apple"),
        ]
        assert [d.seq for d in found] == sorted(d.seq for d in found)
        assert found[-1] == EventDocument("s", blank, "user/message", found[-1].time, "current", "apple")
        assert (await q.filter_events("s", []))[-2].seq < blank - 1
        assert len(await q.filter_events("s", [{"kind": "text", "text": "apple pie"}])) == 2
        assert await q.filter_events("s", [{"kind": "surface", "values": ["shadowed"]}]) == []
        assert {d.surface for d in await q.filter_events("s", [])} == {"current"}
