"""What is saved from a damaged database (PE-77): everything readable, in order, and nothing that breaks a rule."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsh.core.errors import StoreError
from dsh.core.lossless import dumps
from dsh.query.check import check, index, structure
from dsh.session.salvage import Carried, carry
from dsh.store import recover, rewriting, writes
from dsh.store.database import Database
from tests.session.kit import code, damage, dump, fill, messages, raw, start_turn, whole_turn, world
from tests.store.test_processes import actor, line
from tests.store.test_rebuild import varied

pytestmark = pytest.mark.slow

Events = dict[str, list[tuple[Any, ...]]]


def saved(path: Path, folder: Path) -> tuple[Database, dict[str, Carried], int]:
    """The new database, what became of each session, and how many pages of the old one were bad."""
    folder.mkdir()
    with recover.alone(path) as file:
        old = recover.read(file, path, folder)
        db = Database.open(folder / "new.db")
        carried = {each.id: each for each in carry(old, db)}
        old.close()
    assert list(structure(db)) == []
    assert check(db) == []
    assert list(index(db)) == []
    return db, carried, old.bad_pages


def events(db: Database) -> Events:
    """Every session's log, as it reads it."""
    found: Events = {}
    for name, *event in db.rows(
        "SELECT session_id, seq, type, time, data, source_event_seqs, surface_op FROM event ORDER BY session_id, seq"
    ):
        found.setdefault(name, []).append(tuple(event))
    return found


def rich(path: Path) -> Events:
    """A closed database with everything in it that is to be carried over; its events."""
    w = varied(path)
    other = w.sessions.live("other")
    assert other is not None
    for number in range(20):
        whole_turn(other, f"{number} words " * 400)
    writes.set_setting(w.db, "search.limit", 7)
    writes.trust_folder(w.db, "/trusted", 5)
    writes.save_query(w.db, "mine", "SELECT 1", "one")
    whole_turn(w.sessions.create("gone"), "this goes")
    w.sessions.live("gone").release()  # type: ignore[union-attr]
    writes.delete_session(w.db, "gone")
    writes.pin_session(w.db, "s", 11)
    writes.hide_session(w.db, "child", 12)
    source = {"kind": "user"}
    for number in range(3):
        block = {"type": "text", "text": f"m{number}"}
        writes.put_message(w.db, "other", f"m{number}", "followup", [block], source, meta={"n": number}, sent_at=number)
    found = events(w.db)
    for name in ("other", "s"):
        writes.free_session(w.db, name)
        rewriting.pack_session(w.db, name)
    assert events(w.db) == found
    w.db.close()
    return found


HEADERS = (
    "SELECT id, version, created_at, cwd, parent_session, seed_length, delegation_depth, length, replace_generation,"
    " turns, steps, open_turn, open_step, updated_at, pinned, hidden, source FROM session ORDER BY id"
)
REST = (
    "SELECT key, value FROM setting",
    "SELECT folder, trusted_at FROM trusted_folder",
    "SELECT id, deleted_at FROM deleted_session",
    "SELECT name, sql, about FROM saved_query",
    "SELECT session_id, message_id, route, content, source, contexts, meta, sent_at FROM inbox ORDER BY position",
    "SELECT id, parent_session, boundary FROM fork ORDER BY id",
    "SELECT * FROM surface_history ORDER BY session_id, seq",
    HEADERS,
)


@pytest.mark.rule("PE-77")
def test_of_a_sound_database_everything_is_saved_and_it_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    before = rich(path)
    content = path.read_bytes()
    db, carried, bad = saved(path, tmp_path / "new")
    assert events(db) == before
    assert bad == 0
    assert {name: (c.kept, c.lost) for name, c in carried.items()} == {n: (len(e), 0) for n, e in before.items()}
    old = Database.open(path, read_only=True)
    assert [db.rows(sql) for sql in REST] == [old.rows(sql) for sql in REST]
    for name in before:
        assert messages(db, name) == messages(old, name)
    with raw(path) as first, raw(db.path) as second:  # forks still share their parents' rows
        one, two = (list(each.execute("SELECT count(*) FROM _event")) for each in (first, second))
        assert one == two
    old.close()
    db.close()
    assert path.read_bytes() == content
    assert not (tmp_path / "x.db-wal").exists()


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def one_page(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) // 4096) * 4096
    data[at : at + 4096] = chance.randbytes(4096)


def six_pages(data: bytearray, chance: random.Random) -> None:
    for _ in range(6):
        one_page(data, chance)


def first_page(data: bytearray, chance: random.Random) -> None:
    data[:4096] = chance.randbytes(4096)


def header(data: bytearray, chance: random.Random) -> None:
    data[:100] = chance.randbytes(100)


def zeros(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at : at + 20_000] = bytes(len(data[at : at + 20_000]))


def truncated(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data) // 2, len(data)) :]


@pytest.mark.rule("PE-77")
@pytest.mark.parametrize("harm", [one_page, six_pages, first_page, header, zeros, truncated], ids=lambda h: h.__name__)
def test_each_log_is_saved_up_to_its_first_hole(tmp_path: Path, harm: Callable[..., None]) -> None:
    path = tmp_path / "x.db"
    whole = rich(path)
    original = path.read_bytes()
    total = 0
    for number in range(12):
        data = bytearray(original)
        harm(data, random.Random(f"{harm.__name__} {number}"))
        path.write_bytes(data)
        db, carried, _ = saved(path, tmp_path / f"new{number}")
        assert path.read_bytes() == data
        now = events(db)
        for name, after in now.items():
            kept = carried[name].kept
            total += kept
            if name in whole:
                assert after[:kept] == whole[name][:kept], (harm, number, name)
                assert kept + carried[name].lost <= len(whole[name])
                if carried[name].lost:  # what nothing speaks of any more is not known to be lost
                    assert after[-1][1] == "turn/end"
            else:
                assert name.startswith("recovered-")
        if harm in (header, first_page):  # nothing but the schema was there
            assert now == whole
        db.close()
    assert total > 100


@pytest.mark.rule("PE-77", "PE-34")
def test_a_log_that_is_cut_is_closed_as_after_a_crash(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    s = w.session("s")
    whole_turn(s, "one", calls=2)
    whole_turn(s, "two", calls=2)  # 12 to 23; its calls are 18 and 20
    child = w.sessions.fork(s, child="child")
    whole_turn(child, "three")
    early = w.sessions.fork(s, 11, child="early")
    whole_turn(early, "three")
    w.db.close()
    damage(w.path, "UPDATE _event SET data = '[1e999]' WHERE seq = 20 AND session = 1")
    db, carried, bad = saved(w.path, tmp_path / "new")
    assert bad == 0
    assert carried["s"] == Carried("s", 20, 4)
    assert carried["child"] == Carried("child", 12, 20)  # at the last end of a turn that it shares
    assert carried["early"] == Carried("early", 20, 0)
    now = events(db)
    assert [e[1] for e in now["s"]][18:] == ["tool/call", "tool/result", "tool/result", "step/end", "turn/end"]
    assert [e[1] for e in now["s"]].count("tool/result") == 4
    assert now["child"] == now["s"][:12]
    assert db.rows("SELECT id, parent_session, boundary FROM fork ORDER BY id") == [
        ("child", "s", 11),
        ("early", "s", 11),
    ]
    again = world(db.path)
    for name in ("s", "child", "early"):
        whole_turn(again.sessions.publish(again.sessions.prepare_stored(name)), "goes on")
    assert check(again.db) == []
    again.db.close()
    db.close()


@pytest.mark.rule("PE-77")
@pytest.mark.parametrize(
    ("statement", "kept"),
    [
        ('UPDATE _event SET data = \'{"content":[],"n":1e999}\' WHERE seq = 9 AND session = 1', 9),
        ("UPDATE _event SET type = 'mode/set' WHERE seq = 5 AND session = 1", 5),
        ("UPDATE _event SET op = NULL WHERE seq = 1 AND session = 1", 1),
        ("UPDATE _event SET data = json_set(data, '$.callId', 7) WHERE seq = 6 AND session = 1", 7),
        ("DELETE FROM _event WHERE seq = 3 AND session = 1", 3),
        ("DELETE FROM _event WHERE seq = 0 AND session = 1", 0),
        ("UPDATE _event SET data = 'x' WHERE seq = 0 AND session = 1", 0),
        ("UPDATE _session SET cwd = 'nowhere', created_at = -5 WHERE id = 1", 10),
        ("UPDATE _session SET turns = 9, open_turn = 4, generation = 3, updated_at = 0 WHERE id = 1", 10),
        ("DELETE FROM _surface", 10),
        ("DELETE FROM _lineage", 10),
        ("DELETE FROM _session", 10),
    ],
)
def test_what_breaks_a_rule_ends_a_log(tmp_path: Path, statement: str, kept: int) -> None:
    w = world(tmp_path / "x.db")
    whole_turn(w.session("s", cwd="/a"), "one", calls=1)
    whole_turn(w.session("t"), "two")
    w.db.close()
    damage(w.path, "PRAGMA foreign_keys = 0", statement)
    db, carried, _ = saved(w.path, tmp_path / "new")
    if statement == "DELETE FROM _session":  # and its index: only the events know of it
        assert sorted(carried.values()) == [Carried("recovered-1", 10, 0), Carried("recovered-2", 8, 0)]
    else:
        assert (carried["s"].kept, carried["s"].lost) == (kept, 10 - kept)
        assert carried["t"] == Carried("t", 8, 0)
        assert len(db.rows("SELECT * FROM session")) == (2 if kept else 1)
    db.close()


@pytest.mark.rule("PE-77")
def test_the_log_of_a_killed_process_is_read_up_to_where_it_is_torn(tmp_path: Path) -> None:
    """What only the -wal file has is saved too, up to the first frame that is damaged; without it, what was there
    before."""
    path, living = tmp_path / "x.db", tmp_path / "living.db"
    w = world(living)
    whole_turn(w.session("early"), "in the file")
    w.db.close()
    w = world(living)
    late = w.session("late")
    for number in range(8):
        whole_turn(late, f"turn {number}", calls=1)
    for end in ("", "-wal"):  # as a process that is killed now would leave them
        shutil.copyfile(f"{living}{end}", f"{path}{end}")
    w.db.close()
    wal = path.with_name("x.db-wal")
    content = (path.read_bytes(), wal.read_bytes())
    db, carried, _ = saved(path, tmp_path / "whole")
    whole = events(db)
    db.close()
    assert (path.read_bytes(), wal.read_bytes()) == content
    assert carried["late"] == Carried("late", 80, 0)

    frame = 24 + 4096  # those of the present salt are in force, later ones are of before the last checkpoint
    starts = range(32, len(content[1]) - frame + 1, frame)
    live = next((i for i, at in enumerate(starts) if content[1][at + 8 : at + 16] != content[1][16:24]), len(starts))
    assert live > 10
    torn = bytearray(content[1])
    torn[starts[live // 2] + 100] ^= 1
    for name, log in (("torn", bytes(torn)), ("short", content[1][: starts[live // 2] + 100]), ("none", None)):
        wal.unlink(missing_ok=True)
        if log is not None:
            wal.write_bytes(log)
        db, carried, _ = saved(path, tmp_path / name)
        now = events(db)
        kept = carried["late"].kept if "late" in carried else 0
        assert kept < len(whole["late"])
        assert now.get("late", [])[:kept] == whole["late"][:kept]
        assert now["early"] == whole["early"]
        db.close()


@pytest.mark.rule("PE-77", "PE-75")
def test_a_database_in_use_is_left_alone(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    whole_turn(w.session("s"))
    w.db.close()
    with actor("claim", w.path, "s", tmp_path) as user:
        assert line(user) == "ready"
        with pytest.raises(StoreError, match=f"in use by process {user.pid}") as caught, recover.alone(w.path):
            raise AssertionError
        assert caught.value.code == "DB_BUSY"
    with recover.alone(w.path), actor("hold", w.path, 0) as kept_out:
        assert line(kept_out) == ""


@pytest.mark.rule("PE-77")
def test_a_database_without_sessions_is_saved_too(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    writes.save_query(w.db, "mine", "SELECT 1", None)
    w.db.close()
    db, carried, bad = saved(w.path, tmp_path / "new")
    assert (carried, bad) == ({}, 0)
    assert db.rows("SELECT name, sql FROM saved_query") == [("mine", "SELECT 1")]
    db.close()


@pytest.mark.rule("PE-77", "PE-52")
def test_what_is_not_ours_is_not_recovered(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        folder = tmp_path / f"scratch of {path.name}"
        folder.mkdir()
        with recover.alone(path) as file:
            return code(recover.read, file, path, folder)

    (tmp_path / "empty").touch()
    (tmp_path / "text").write_bytes(b"no database at all " * 1000)
    with raw(tmp_path / "foreign") as db:
        db.execute("CREATE TABLE t(a, b, c)")
        db.execute("INSERT INTO t VALUES (1, 'x', 'y')")
    w = world(tmp_path / "newer")
    whole_turn(w.session("s"))
    w.db.close()
    with raw(w.path) as db:
        db.execute("INSERT INTO _migration VALUES (99, 'later', 0, 'x')")
    assert {n: refusal(tmp_path / n) for n in ("empty", "text", "foreign", "newer")} == {
        "empty": "DB_FOREIGN",
        "text": "DB_FOREIGN",
        "foreign": "DB_FOREIGN",
        "newer": "DB_VERSION",
    }


@pytest.mark.rule("PE-77")
def test_a_new_one_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path, new = tmp_path / "x.db", tmp_path / "new.db"
    path.write_text("old")
    (tmp_path / "x.db-wal").write_text("its log")
    new.write_text("new")
    kept = recover.put_in_place(path, new)
    assert kept.name.startswith("x.db.damaged-")
    assert (path.read_text(), kept.read_text()) == ("new", "old")
    assert kept.with_name(f"{kept.name}-wal").read_text() == "its log"
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [
        "x.db",
        kept.name,
        f"{kept.name}-wal",
    ]


@pytest.mark.rule("PE-77")
def test_deleted_sessions_stay_deleted_and_big_events_come_whole(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    for name in ("a", "b", "c"):
        note = {"text": name * 9000, "unicode": "é中𝄞", "number": 1.5, "none": None}
        fill(w.db, name, ("turn/start", {"turn": 1}, None), *[("note", note, None)] * 30)
    writes.delete_session(w.db, "b")
    start_turn(w.session("d"))
    w.db.close()
    before = dump(w.path)["_event"]
    db, carried, _ = saved(w.path, tmp_path / "new")
    assert sorted(carried) == ["a", "c", "d"]
    assert events(db)["c"][7][3] == dumps({"text": "c" * 9000, "unicode": "é中𝄞", "number": 1.5, "none": None})
    assert db.rows("SELECT count(*) FROM event") == [(len(before),)]
    assert db.rows("SELECT open_turn FROM session ORDER BY id") == [(1,), (1,), (1,)]  # as they were left
    db.close()
