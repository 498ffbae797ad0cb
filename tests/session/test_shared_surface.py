"""A fork reads what it inherited where it is: equal to a copy in every respect, and nearly free."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.lossless import thaw
from dsh.query.check import check
from dsh.session import forks
from dsh.session.session import Session
from dsh.store import writes
from tests.session.kit import World, code, end_turn, messages, prompt, replace, start_turn, surface, whole_turn, world

PICK = st.integers(0, 1000)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), PICK, st.integers(1, 4)),
        st.tuples(st.just("replace"), PICK, PICK, PICK),
        st.tuples(st.just("fork"), PICK, PICK),
        st.tuples(st.just("delete"), PICK),
    ),
    max_size=40,
)


def envelopes(session: Session) -> list[Any]:
    return [thaw(dict(e)) for e in session.events()]


class Pairs:
    """Sessions of one database that fork freely, each with a twin in another one that copied the events instead."""

    def __init__(self, shared: World, copied: World) -> None:
        self.shared, self.copied = shared, copied
        self.pairs = [(shared.session("s0"), copied.session("s0"))]
        self.made = 1
        self.say(0, 2)

    def say(self, which: int, count: int) -> None:
        words = f"message {self.made}"
        for session in self.pairs[which % len(self.pairs)]:
            start_turn(session)
            for number in range(count):
                session.append("user/message", prompt(f"{words} {number}"), surface="append")
            end_turn(session)

    def replace(self, which: int, one: int, two: int) -> None:
        pair = self.pairs[which % len(self.pairs)]
        nodes = surface(self.copied.db, pair[1].id)
        first, last = sorted((one % len(nodes), two % len(nodes)))
        removed = nodes[first : last + 1]
        for session in pair:
            start_turn(session)
            op = replace(removed[0], removed[-1])
            session.append("user/message", prompt(f"summary of {removed}"), surface=op, sources=removed)
            end_turn(session)

    def fork(self, which: int, end: int) -> None:
        parent, twin = self.pairs[which % len(self.pairs)]
        ends = [e["seq"] for e in twin.events() if e["type"] == "turn/end"]
        boundary = ends[end % len(ends)]
        name = f"s{self.made}"
        self.made += 1
        child = self.shared.sessions.fork(parent, boundary, name)
        self.pairs.append((child, self.copied.sessions.create(name, seed=envelopes(twin)[: boundary + 1])))

    def delete(self, which: int) -> None:
        if len(self.pairs) == 1:
            return
        pair = self.pairs[which % len(self.pairs)]
        others = {session.id for session, _ in self.pairs} - {pair[0].id}
        readers = {row[0] for row in query.rows(self.shared.db, "sharers", session=pair[0].id)}
        if readers & others:
            assert code(forks.delete, self.shared.db, [pair[0].id]) == "SESSION_HAS_FORKS"
            return
        forks.delete(self.shared.db, [pair[0].id])
        self.pairs.remove(pair)
        for side, session in zip((self.shared, self.copied), pair, strict=True):
            side.sessions.dispose(session)

    def compare(self) -> None:
        sql = "SELECT seq, position, replaced_by FROM surface_history WHERE session_id = ? ORDER BY seq"
        for session, twin in self.pairs:
            assert [without_time(e) for e in session.events()] == [without_time(e) for e in twin.events()]
            assert surface(self.shared.db, session.id) == surface(self.copied.db, twin.id)
            assert messages(self.shared.db, session.id) == messages(self.copied.db, twin.id)
            assert self.shared.db.rows(sql, (session.id,)) == self.copied.db.rows(sql, (twin.id,))
            assert session.derive_messages() == twin.derive_messages()
            assert session.generation == twin.generation
            states = [query.row(w.db, "session_state", session=session.id) for w in (self.shared, self.copied)]
            assert states[0] is not None
            assert states[1] is not None
            assert states[0][8:15] == states[1][8:15]  # revision, length, generation, turns, steps, open ones


def without_time(event: Any) -> dict[str, Any]:
    return {k: v for k, v in event.items() if k != "time"}


def play(operations: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shared, copied = world(Path(folder) / "shared.db"), world(Path(folder) / "copied.db")
        try:
            pairs = Pairs(shared, copied)
            for name, *arguments in operations:
                getattr(pairs, name)(*arguments)
                pairs.pairs[-1][0].derive_messages()  # what was derived before must not matter
            pairs.compare()
            assert check(shared.db) == []
        finally:
            shared.db.close()
            copied.db.close()


@pytest.mark.rule("SE-11", "SE-17", "SE-55")
@given(OPERATIONS)
@settings(deadline=None, max_examples=12, database=None)
def test_a_fork_is_what_a_copy_would_be(operations: list[Any]) -> None:
    play(operations)


@pytest.mark.slow
@pytest.mark.rule("SE-11", "SE-17", "SE-55")
@given(OPERATIONS)
@settings(deadline=None, max_examples=200, database=None)
def test_a_fork_is_what_a_copy_would_be_for_longer(operations: list[Any]) -> None:
    play(operations)


@pytest.mark.rule("SE-55")
def test_a_long_chain_of_forks_keeps_what_each_replaced(w: World) -> None:
    session = w.session("c0")
    whole_turn(session, "first")
    for number in range(1, 40):
        session = w.sessions.fork(session, child=f"c{number}")
        nodes = surface(w.db, session.id)
        start_turn(session)
        session.append("user/message", prompt(f"sum {number}"), surface=replace(nodes[0], nodes[0]), sources=[nodes[0]])
        session.append("user/message", prompt(f"more {number}"), surface="append")
        end_turn(session)
    words = [m["content"][0]["text"] for m in session.derive_messages()]
    assert words == ["sum 39", "re: first", *(f"more {n}" for n in range(1, 40))]
    assert session.generation == 39
    middle = w.sessions.live("c20")
    assert middle is not None
    assert [m["content"][0]["text"] for m in middle.derive_messages()] == [
        "sum 20",
        "re: first",
        *(f"more {n}" for n in range(1, 21)),
    ]


@pytest.mark.rule("SE-12", "SE-14", "SE-15")
def test_inherited_nodes_are_replaced_by_the_same_rules(w: World) -> None:
    parent = w.session("parent")
    whole_turn(parent, "one", calls=1)
    whole_turn(parent, "two", calls=1)
    child = w.sessions.fork(parent, child="child")
    nodes = surface(w.db, "child")
    start_turn(child)
    refused = [
        (replace(nodes[1], nodes[0]), nodes),  # backwards
        (replace(nodes[0], nodes[2]), nodes[:2]),  # not all of them named
        (replace(2, 2), [2]),  # never on the surface
    ]
    for op, sources in refused:
        with pytest.raises(SessionError) as caught:
            child.append("user/message", prompt("sum"), surface=op, sources=sources)
        assert caught.value.code == "SURFACE_INVALID"
    seq = next(e["seq"] for e in child.events() if e["type"] == "tool/result")
    old = child.events(seq, seq)[0]["data"]
    with pytest.raises(SessionError):
        child.append("tool/result", {**old, "isError": True}, surface=replace(seq, seq), sources=[seq])
    child.append("tool/result", {**old, "content": []}, surface=replace(seq, seq), sources=[seq])
    with pytest.raises(SessionError):  # it is gone from the child's surface, though not from the parent's
        child.append("tool/result", {**old, "content": []}, surface=replace(seq, seq), sources=[seq])
    assert seq in surface(w.db, "parent")


def pages(w: World) -> int:
    return int(w.db.pragma("page_count"))


@pytest.mark.slow
@pytest.mark.rule("SE-55")
def test_a_fork_of_a_long_log_takes_no_room(w: World) -> None:
    session = w.session("long")
    with w.db.transaction():
        while session.length < 100_000:
            session.record("turn/start", {"turn": session.turns + 1, "trigger": {}})
            for _ in range(1000):
                session.record("user/message", prompt("a message"), surface="append")
            session.record("turn/end", {"turn": session.turns, "reason": {"kind": "completed"}})
    before = pages(w)
    ends = [seq for (seq,) in w.db.rows("SELECT end_seq FROM turn WHERE session_id = 'long' ORDER BY turn")]
    made = [forks.store(w.db, "long", ends[n], f"f{n}") for n in (0, len(ends) // 2, -1)]
    assert pages(w) - before <= 4  # three forks, at the beginning, in the middle, at the end
    assert len(surface(w.db, made[-1])) == 100_000 // 1002 * 1000 + 1000
    before = pages(w)
    forks.delete(w.db, made)
    assert query.rows(w.db, "sharers", session="long") == [("long", 0)]
    assert pages(w) == before


def test_a_fork_of_an_older_schema_reads_its_parent(tmp_path: Path) -> None:
    """A database in which a fork had copied its surface: the copies go when it is brought up to date."""
    from tests.session.kit import raw

    path = tmp_path / "old.db"
    with raw(path) as db:
        text = (Path(__file__).parent.parent / "store" / "schema-1.sql").read_text("utf-8")
        for name, count in (("segment", -1), ("search_tags", -1)):
            db.create_scalar_function(name, lambda *a: "", count, deterministic=True, flags=0x200000)
        for _ in db.execute(text):
            pass
        for statement in (
            "INSERT INTO _store(id, store_id) VALUES (1, 'x')",
            "INSERT INTO _migration VALUES (1, 'initial', 1, '0')",
            "INSERT INTO session(id) VALUES ('p')",
            "INSERT INTO event(session_id, type, data) VALUES ('p', 'turn/start', '{\"turn\":1}')",
            "INSERT INTO event(session_id, type, data, surface_op) VALUES ('p', 'user/message',"
            ' \'{"content":[{"type":"text","text":"a"}]}\', \'"append"\')',
            "INSERT INTO event(session_id, type, data, surface_op) VALUES ('p', 'user/message',"
            ' \'{"content":[{"type":"text","text":"b"}]}\', \'"append"\')',
            "INSERT INTO event(session_id, type, data) VALUES ('p', 'turn/end', '{\"turn\":1}')",
            "INSERT INTO fork(id, parent_session, boundary) VALUES ('f', 'p', 3)",
            "INSERT INTO event(session_id, type, data) VALUES ('f', 'turn/start', '{\"turn\":2}')",
            "INSERT INTO event(session_id, type, data, source_event_seqs, surface_op) VALUES ('f', 'user/message',"
            ' \'{"content":[{"type":"text","text":"c"}]}\', \'[1]\', \'{"op":"replace","start":1,"end":1}\')',
            "PRAGMA user_version = 1",
        ):
            db.execute(statement)
        assert db.execute("SELECT count(*) FROM _surface").fetchall() == [(5,)]
    w = world(path)
    assert surface(w.db, "p") == [1, 2]
    assert surface(w.db, "f") == [5, 2]
    with raw(path) as db:
        assert sorted(db.execute("SELECT session, seq, died FROM _surface")) == [
            (1, 1, None),
            (1, 2, None),
            (2, 1, 5),
            (2, 5, None),
        ]
    writes.insert_fork(w.db, "g", "p", 3, 1, None)
    assert surface(w.db, "g") == [1, 2]
    w.db.close()
