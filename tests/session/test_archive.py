"""The stored sessions behind the operations of the abstract store: inspect, list, snapshots, load (PE-38 to PE-45)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from dsh.core.errors import DshError
from dsh.session.archive import Archive
from dsh.store import writes
from dsh.store.database import Database
from tests.session.kit import World, code, damage, dump, end_turn, start_turn, whole_turn, world


def archive(w: World) -> Archive:
    return Archive(w.sessions)


def types(stored: Any) -> list[str]:
    return [event["type"] for event in stored["events"]]


async def failure(load: Any) -> str:
    with pytest.raises(DshError) as caught:
        await load
    return caught.value.code


@pytest.mark.rule("PE-39", "PE-40")
def test_inspect_gives_what_is_stored_and_a_copy_of_it(w: World) -> None:
    s = w.session(cwd="/a")
    whole_turn(s)
    start_turn(s)
    before = dump(w.path)
    found = archive(w).inspect("s")
    assert found["meta"] == s.header
    assert found["events"] == s.events()
    assert types(found)[-1] == "turn/start"
    assert dump(w.path) == before
    found["events"][0]["data"]["turn"] = 7
    assert archive(w).inspect("s")["events"] == s.events()
    assert archive(w).locate(found["meta"]) is None  # type: ignore[func-returns-value]
    assert code(archive(w).inspect, "none") == "SESSION_NOT_FOUND"


@pytest.mark.rule("PE-10", "PE-31", "PE-32")
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE _event SET type = 'mode/set' WHERE seq = 1", "LEGACY_EVENT"),
        ("UPDATE _session SET version = 1", "VERSION_UNSUPPORTED"),
        ("UPDATE _event SET data = '{' WHERE seq = 1", "LOG_CORRUPT"),
        ("DELETE FROM _event WHERE seq = 1", "LOG_CORRUPT"),
    ],
)
async def test_a_log_that_is_not_what_was_written_is_refused(w: World, statement: str, expected: str) -> None:
    s = w.session()
    whole_turn(s)
    start_turn(s)
    w.sessions.dispose(s)
    damage(w.path, statement)
    before = dump(w.path)
    assert code(archive(w).inspect, "s") == expected
    assert await failure(archive(w).load("s")) == expected
    assert dump(w.path) == before


@pytest.mark.rule("PE-38")
async def test_loading_a_live_session_repairs_nothing(w: World) -> None:
    s = w.session()
    assert await failure(archive(w).load("s")) == "SESSION_NOT_FOUND"
    whole_turn(s)
    found = await archive(w).load("s")
    assert found["events"] == s.events()
    assert w.sessions.live("s") is s
    start_turn(s)
    before = dump(w.path)
    assert await failure(archive(w).load("s")) == "LIVE_TURN_OPEN"
    assert dump(w.path) == before
    assert s.open_turn == 2
    end_turn(s)
    assert (await archive(w).load("s"))["events"] == s.events()


@pytest.mark.rule("PE-38")
async def test_loading_a_live_session_flushes_it(w: World) -> None:
    s = w.session()
    whole_turn(s)
    await s.flush()
    w.path.with_name("dsh.db-wal").rename(w.path.with_name("gone"))  # what a flush notices, and a read does not (PE-17)
    assert types(archive(w).inspect("s"))[-1] == "turn/end"
    assert await failure(archive(w).load("s")) == "DB_IO"


@pytest.mark.rule("PE-38")
async def test_while_a_log_is_loaded_its_id_cannot_become_live(w: World) -> None:
    whole_turn(w.session())
    rival = w.sessions.prepare_new("late")
    s = w.session("late")
    start_turn(s)
    w.sessions.dispose(s)
    w.sessions.dispose(w.sessions.live("s"))  # type: ignore[arg-type]
    heard: list[Any] = []
    w.host.root.on("session/created", heard.append)
    for session in (None, rival):
        async with trio.open_nursery() as nursery:
            name = "late" if session else "s"
            nursery.start_soon(archive(w).load, name)
            while name not in w.sessions.loading:
                await trio.lowlevel.checkpoint()
            assert code(w.sessions.prepare_stored, name) == "ID_LOADING"
            if session is not None:
                assert code(w.sessions.publish, session) == "ID_LOADING"
            assert w.sessions.live(name) is None
    assert heard == []
    assert w.db.rows("SELECT * FROM lease") == []
    assert types(archive(w).inspect("late")) == ["turn/start", "turn/end"]  # the load has closed it
    assert w.sessions.publish(w.sessions.prepare_stored("late")).length == 2


@pytest.mark.rule("PE-38")
async def test_a_new_session_whose_id_is_being_loaded_is_taken_back(w: World) -> None:
    whole_turn(w.session())
    seed = archive(w).inspect("s")["events"]
    private = w.sessions.prepare_new("seeded", seed=seed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(archive(w).load, "seeded")
        while "seeded" not in w.sessions.loading:
            await trio.lowlevel.checkpoint()
        assert code(w.sessions.publish, private) == "ID_LOADING"
    assert [header["id"] for header in archive(w).list()] == ["s"]


@pytest.mark.rule("PE-9", "PE-30")
async def test_loads_of_one_id_follow_each_other(w: World) -> None:
    s = w.session()
    start_turn(s)
    w.sessions.dispose(s)
    found: list[Any] = []

    async def load() -> None:
        found.append(await archive(w).load("s"))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(load)
    assert [types(each) for each in found] == [["turn/start", "turn/end"]] * 3
    assert w.sessions.loading == {}


@pytest.mark.rule("PE-72")
async def test_a_load_that_repairs_nothing_needs_no_lease(w: World) -> None:
    s = w.session()
    s.claim("driver")
    whole_turn(s)
    other = w.reopen()
    found = await archive(other).load("s")
    assert found["events"] == s.events()
    start_turn(s)
    assert await failure(archive(other).load("s")) == "SESSION_LEASED"
    assert s.length == len(archive(other).inspect("s")["events"])
    other.db.close()


@pytest.mark.rule("PE-41")
async def test_a_read_in_a_cancelled_scope_is_whole_and_disturbs_nobody(w: World) -> None:
    s = w.session()
    whole_turn(s)
    reads = archive(w)
    outside = (reads.inspect("s"), reads.list(), reads.list_snapshots())
    appended = trio.Event()

    async def append() -> None:
        start_turn(s)
        appended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        with trio.CancelScope() as scope:
            scope.cancel()
            assert (reads.inspect("s"), reads.list(), reads.list_snapshots()) == outside
            assert not appended.is_set()  # nothing ran meanwhile, so there was no moment to be cancelled in
        assert not scope.cancelled_caught
    assert len(reads.inspect("s")["events"]) == len(outside[0]["events"]) + 1


@pytest.mark.rule("PE-40")
def test_the_list_reads_headers_only(w: World) -> None:
    for n, name in enumerate(("b", "a")):
        whole_turn(w.session(name, createdAt=9 - n, cwd=f"/{name}"))
    w.session("empty")
    damage(w.path, "UPDATE _event SET data = '{' WHERE type IN ('turn/start', 'turn/end', 'user/message')")
    assert [header["id"] for header in archive(w).list()] == ["a", "b"]
    assert archive(w).list()[0] == {"version": 0, "id": "a", "createdAt": 8, "cwd": "/a"}
    assert [snapshot["header"] for snapshot in archive(w).list_snapshots()] == archive(w).list()


# --------------------------------------------------------------------------------------------------------- revisions


def revision(w: World, id: str = "s") -> str:
    [found] = [s["revision"] for s in archive(w).list_snapshots() if s["header"]["id"] == id]
    return found


@pytest.mark.rule("PE-45")
async def test_a_revision_names_one_state_of_one_log(w: World) -> None:
    s = w.session()
    whole_turn(s)
    first = revision(w)
    assert revision(w) == first
    other = w.reopen()
    assert revision(other) == first
    whole_turn(w.session("t"))
    assert revision(w) == first  # another's appends are none of this log
    assert revision(w, "t") != first
    start_turn(s)
    second = revision(w)
    assert second != first
    w.sessions.dispose(s)
    other.db.close()
    await archive(w).load("s")
    third = revision(w)
    assert third not in (first, second)  # the repair has changed something
    await archive(w).load("s")
    assert revision(w) == third  # and had nothing to do this time


@pytest.mark.rule("PE-45")
def test_another_database_and_another_life_are_other_revisions(w: World, tmp_path: Path) -> None:
    whole_turn(w.session(createdAt=1))
    first = revision(w)
    copy, fresh = tmp_path / "copy.db", tmp_path / "fresh.db"
    w.db.backup(copy)  # the same store id, incarnation and length
    shutil.copyfile(copy, tmp_path / "again.db")
    for path in (copy, tmp_path / "again.db"):
        opened = world(path)
        assert revision(opened) != first
        opened.db.close()
    opened = world(fresh)
    whole_turn(opened.session(createdAt=1))
    assert revision(opened) != first
    opened.db.close()
    w.sessions.dispose(w.sessions.live("s"))  # type: ignore[arg-type]
    writes.delete_session(w.db, "s")
    whole_turn(w.session(createdAt=1))
    assert revision(w) != first


@pytest.mark.rule("PE-45", "PE-51")
def test_a_file_in_the_place_of_another_is_another(tmp_path: Path) -> None:
    """A file system gives the inode of a deleted file away again at once; the time it was made tells them apart."""
    from dsh.store.identity import file_identity

    path = tmp_path / "x.db"
    seen = set()
    for _ in range(3):
        Database.open(path).close()
        seen.add(file_identity(path))
        path.unlink()
    assert len(seen) == 3
