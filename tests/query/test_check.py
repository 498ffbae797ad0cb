"""The consistency check finds what was damaged, and finds nothing else (SE-47)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh.query.check import check
from dsh.store.database import Database
from tests.session.kit import (
    World,
    call,
    damage,
    dump,
    end_turn,
    prompt,
    replace,
    reply,
    result,
    start_step,
    start_turn,
    surface,
    tool_call,
    whole_turn,
    world,
)


@pytest.fixture
def w(tmp_path: Path) -> Iterator[World]:
    """Session s: two whole turns, one with a call (seqs 0 to 9, 10 to 17), then replacements; and a fork of it."""
    opened = world(tmp_path / "dsh.db")
    s = opened.session("s", cwd="/folder")
    whole_turn(s, "one", calls=1)
    whole_turn(s, "two")
    start_turn(s)  # 18
    nodes = surface(opened.db, "s")
    s.append("user/message", prompt("sum"), surface=replace(nodes[0], nodes[1]), sources=nodes[:2])  # 19
    answer = s.events(nodes[2], nodes[2])[0]
    s.append("tool/result", {**answer["data"], "content": []}, surface=replace(nodes[2], nodes[2]), sources=[nodes[2]])
    s.append("steering/message", {**prompt("more"), "turn": 3}, surface="append")  # 21
    end_turn(s)  # 22
    child = opened.sessions.fork(s, child="child")
    start_turn(child)
    start_step(child)
    reply(child, call("a"))
    tool_call(child, "a")
    child.append("tool/result", result(child, "a"), surface="append")
    yield opened
    opened.db.close()


@pytest.mark.rule("SE-47")
def test_a_sound_log_has_no_violations(w: World) -> None:
    before = dump(w.path)
    reader = Database.open(w.path, read_only=True)
    assert check(reader) == []
    assert check(reader, "child") == []
    assert check(reader, "nobody") == []
    reader.close()
    assert dump(w.path) == before


S = "session = 1"
DAMAGE = [
    # payloads and envelopes
    ("UPDATE _event SET data = '{oops' WHERE seq = 1 AND session = 1", 1, "PE-55"),
    ("UPDATE _event SET data = '[1e999]' WHERE seq = 21 AND session = 1", 21, "SE-2"),
    ('UPDATE _event SET data = \'{"content":[],"n":-0.0}\' WHERE seq = 21 AND session = 1', 21, "SE-2"),
    ('UPDATE _event SET data = \'{"content":[],"n":9007199254740992}\' WHERE seq = 21 AND session = 1', 21, "SE-2"),
    (
        f'UPDATE _event SET data = \'{{"content":[],"n":{"[" * 600}{"]" * 600}}}\' WHERE seq = 21 AND session = 1',
        21,
        "SE-2",
    ),
    ("UPDATE _event SET time = -1 WHERE seq = 3 AND session = 1", 3, "SE-1"),
    ("UPDATE _event SET type = 'mode/set' WHERE seq = 3 AND session = 1", 3, "SE-9"),
    ("UPDATE _event SET data = json_set(data, '$.reason', 'fallback') WHERE seq = 3 AND session = 1", 3, "SE-9"),
    ("UPDATE _event SET data = json_remove(data, '$.header.config.model') WHERE seq = 3 AND session = 1", 3, "SE-51"),
    (
        "UPDATE _event SET data = json_set(data, '$.header.config.reasoningEffort', '') WHERE seq = 3 AND session = 1",
        3,
        "SE-51",
    ),
    ("UPDATE _event SET data = json_remove(data, '$.provenance') WHERE seq = 5 AND session = 1", 5, "SE-51"),
    (
        "UPDATE _event SET data = json_set(data, '$.reason.kind', 'aborted', '$.reason.by', 1)"
        " WHERE seq = 9 AND session = 1",
        9,
        "SE-51",
    ),
    # holes
    ("DELETE FROM _event WHERE seq = 4 AND session = 1", 5, "PE-32"),
    ("DELETE FROM _event WHERE seq = 22 AND session = 1", None, "SE-17"),
    ("DELETE FROM _event WHERE session = 1", None, "PE-1"),
    # the surface
    ("UPDATE _event SET op = NULL WHERE seq = 1 AND session = 1", 1, "SE-5"),
    ("UPDATE _event SET op = '\"append\"' WHERE seq = 3 AND session = 1", 3, "SE-5"),
    ("UPDATE _event SET source = '[0]' WHERE seq = 3 AND session = 1", 3, "SE-5"),
    ("UPDATE _event SET op = '{oops' WHERE seq = 19 AND session = 1", 19, "SE-12"),
    ('UPDATE _event SET op = \'{"op":"replace","start":1,"end":99}\' WHERE seq = 19 AND session = 1', 19, "SE-12"),
    ('UPDATE _event SET op = \'{"op":"replace","start":5,"end":1}\' WHERE seq = 19 AND session = 1', 19, "SE-12"),
    ('UPDATE _event SET op = \'{"op":"replace","start":1,"end":5,"x":1}\' WHERE seq = 19 AND session = 1', 19, "SE-12"),
    ("UPDATE _event SET source = '[1,1,5]' WHERE seq = 19 AND session = 1", 19, "SE-13"),
    ("UPDATE _event SET source = '[1,5,19]' WHERE seq = 19 AND session = 1", 19, "SE-13"),
    ("UPDATE _event SET source = '[]' WHERE seq = 1 AND session = 1", 1, "SE-13"),
    ("UPDATE _event SET source = '{}' WHERE seq = 1 AND session = 1", 1, "SE-13"),
    ("UPDATE _event SET source = '[1]' WHERE seq = 19 AND session = 1", 19, "SE-14"),
    ("UPDATE _event SET source = NULL WHERE seq = 19 AND session = 1", 19, "SE-14"),
    ("UPDATE _event SET data = json_set(data, '$.isError', 1) WHERE seq = 20 AND session = 1", 20, "SE-15"),
    ("UPDATE _event SET data = json_set(data, '$.meta', 1) WHERE seq = 20 AND session = 1", 20, "SE-15"),
    ("UPDATE _surface SET died = NULL WHERE session = 1 AND seq = 1", None, "SE-17"),
    ("DELETE FROM _surface WHERE session = 1 AND seq = 21", None, "SE-17"),
    ("UPDATE _surface SET ord = 0 WHERE session = 1 AND seq = 21", None, "SE-17"),
    # turns and steps
    ("UPDATE _event SET type = 'x' WHERE seq = 0 AND session = 1", 0, "SE-46"),
    ("UPDATE _event SET data = '{\"turn\":3}' WHERE seq = 10 AND session = 1", 10, "SE-41"),
    ("UPDATE _event SET data = '{\"turn\":true}' WHERE seq = 0 AND session = 1", 0, "SE-41"),
    ('UPDATE _event SET data = \'{"turn":1,"step":2}\' WHERE seq = 2 AND session = 1', 2, "SE-41"),
    ("UPDATE _event SET type = 'x' WHERE seq = 9 AND session = 1", 10, "SE-42"),
    ("UPDATE _event SET type = 'x' WHERE seq = 8 AND session = 1", 9, "SE-42"),
    ("UPDATE _event SET data = '{\"turn\":7}' WHERE seq = 9 AND session = 1", 9, "SE-42"),
    (
        'UPDATE _event SET data = \'{"turn":1,"step":9,"chunk":{}}\', frame = NULL WHERE seq = 4 AND session = 1',
        4,
        "SE-43",
    ),
    ("UPDATE _event SET data = json_set(data, '$.turn', '1') WHERE seq = 5 AND session = 1", 5, "SE-43"),
    ("UPDATE _event SET data = json_set(data, '$.callId', 'zz') WHERE seq = 7 AND session = 1", 7, "SE-44"),
    ("UPDATE _event SET type = 'x' WHERE seq = 6 AND session = 1", 7, "SE-44"),
    ("UPDATE _event SET type = 'turn/end', data = '{\"turn\":3}' WHERE seq = 18 AND session = 1", 19, "SE-40"),
    # what the triggers keep
    ("UPDATE _session SET updated_at = 99 WHERE id = 1", None, "SE-17"),
    ("UPDATE _session SET generation = 5 WHERE id = 1", None, "SE-17"),
    ("UPDATE _session SET turns = 5 WHERE id = 1", None, "SE-17"),
    ("UPDATE _session SET open_turn = 3 WHERE id = 1", None, "SE-17"),
    ("UPDATE _session SET updated_at = 5 WHERE id = 1", None, "SE-17"),
    ("UPDATE _session SET version = 1 WHERE id = 1", None, "PE-31"),
    ("UPDATE _session SET cwd = 'x' WHERE id = 1", None, "SE-53"),
    ("UPDATE _session SET created_at = -1 WHERE id = 1", None, "SE-53"),
    ("UPDATE _session SET delegation_depth = -1 WHERE id = 1", None, "SE-53"),
]


@pytest.mark.parametrize(("statement", "seq", "rule"), DAMAGE, ids=[f"{r}-{s[:50]}" for s, _, r in DAMAGE])
@pytest.mark.rule("SE-47")
def test_damage_is_found_and_named(w: World, statement: str, seq: int | None, rule: str) -> None:
    damage(w.path, statement)
    reader = Database.open(w.path, read_only=True)
    found = check(reader, "s")
    assert (seq, rule) in [(v.seq, v.rule) for v in found], found
    assert {v.session for v in found} == {"s"}
    assert all(v.message for v in found)
    reader.close()


@pytest.mark.rule("SE-47")
def test_damage_of_a_parent_is_damage_of_its_child(w: World) -> None:
    damage(w.path, "UPDATE _event SET data = '{oops' WHERE seq = 1 AND session = 1")
    assert {v.session for v in check(w.db)} == {"s", "child"}


@pytest.mark.rule("SE-47")
def test_the_open_step_of_a_child_is_known(w: World) -> None:
    damage(w.path, "UPDATE _session SET open_step = NULL, steps = 4 WHERE name = 'child'")
    assert [v.rule for v in check(w.db)] == ["SE-17", "SE-17"]


@pytest.mark.rule("SE-47")
def test_a_page_that_cannot_be_read_is_a_violation_not_a_crash(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    for number in range(60):
        whole_turn(w.session(f"s{number}"), "words " * 200)
    w.db.close()
    path = tmp_path / "x.db"
    data = bytearray(path.read_bytes())
    for page in range(len(data) // 8192, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    db = Database.open(path)
    found = check(db)
    assert found
    assert {"PE-32"} <= {v.rule for v in found}
    db.close()


@pytest.mark.rule("SE-47")
def test_the_list_is_bounded(w: World) -> None:
    damage(w.path, "UPDATE _event SET data = '{oops' WHERE session = 1 AND type LIKE 'turn%'")
    assert len(check(w.db, limit=5)) == 5


@pytest.mark.slow
@pytest.mark.rule("SE-47")
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    s = w.session("s")
    with w.db.transaction():
        start_turn(s)
        at = start_step(s)
        for _ in range(6000):
            s.append("assistant/chunk", {**at, "chunk": {"type": "text-delta", "index": 0, "text": "x" * 1000}})
    tracemalloc.start()
    assert check(w.db) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000  # the log is 6.5 MB; a page of it is 0.6
    w.db.close()
