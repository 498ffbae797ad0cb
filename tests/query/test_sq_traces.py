"""Where events and sessions come from (SQ-20 to SQ-25)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.query.service import reads
from dsh.query.service.lineage import lineage
from dsh.query.service.reads import finished, live_log, stored_log
from dsh.query.service.values import EventTrace, LineageNode, SessionRecord
from dsh.session.session import Session
from tests.session.kit import World, code, damage, prompt, replace, start_step, start_turn, text, whole_turn


def trace(session: Session, seq: Any) -> EventTrace:
    found = finished(reads.trace(live_log(session), seq))
    assert found == finished(reads.trace(stored_log(session.db, session.id), seq))
    return found


@pytest.mark.rule("SQ-20")
def test_the_target_comes_before_the_log(w: World) -> None:
    whole_turn(w.session())
    w.db.close()
    damage(w.path, "UPDATE _event SET op = NULL WHERE seq = 1")
    log = stored_log(w.reopen().db, "s")
    for seq in (-1, log.length, True, 1.0, None, "1"):
        assert code(lambda seq=seq: finished(reads.trace(log, seq))) == "SESSION_QUERY_EVENT_NOT_FOUND"
    for seq in range(log.length):
        assert code(lambda seq=seq: finished(reads.trace(log, seq))) == "SESSION_QUERY_INVALID_SURFACE"


@pytest.mark.rule("SQ-21", "SQ-22")
def test_what_replaced_what(w: World) -> None:
    s = w.session()
    start_turn(s)
    for number in range(5):
        s.append("user/message", prompt(f"p{number}"), surface="append")  # 1 to 5
    assert s.append("user/message", prompt("a"), surface=replace(2, 3), sources=[3, 1, 2])["seq"] == 6
    assert s.append("user/message", prompt("b"), surface=replace(6, 4), sources=[4, 6])["seq"] == 7
    assert s.append("user/message", prompt("c"), surface=replace(7, 7), sources=[7, 2])["seq"] == 8
    assert [trace(s, seq).replaced_by for seq in range(9)] == [None, None, 6, 6, 7, None, 7, 8, None]
    assert trace(s, 3).replacement_chain == (6, 7, 8)
    assert trace(s, 8).replacement_chain == trace(s, 0).replacement_chain == ()
    assert trace(s, 7).replaced_event_seqs == (6, 4)  # in surface order: 6 stands where 2 stood
    assert trace(s, 6).replaced_event_seqs == (2, 3)
    assert trace(s, 6).source_event_seqs == (3, 1, 2)
    assert trace(s, 1).source_event_seqs == ()
    assert trace(s, 2).derived_event_seqs == (6, 8)  # not 7, which was made of 6
    assert trace(s, 8).derived_event_seqs == ()
    assert (trace(s, 4).target.type, trace(s, 4).target.surface) == ("user/message", "shadowed")
    assert trace(s, 8).session == s.header


@pytest.mark.rule("SQ-22")
def test_an_empty_list_of_sources_and_none(w: World) -> None:
    s = w.session()
    start_turn(s)
    at = start_step(s)
    data = {**at, "content": [text("a")], "provenance": {"provider": "p", "model": "m"}}
    seq = s.append("assistant/message", data, surface="append", sources=[])["seq"]
    assert trace(s, seq).source_event_seqs == ()


# ------------------------------------------------------------------------------------------------------------ lineage


def record(id: str, parent: str | None = None, at: int = 0) -> SessionRecord:
    header: Any = {"version": 0, "id": id, "createdAt": at}
    if parent is not None:
        header["parentSession"] = parent
    return SessionRecord(header, False, True)


def names(nodes: tuple[LineageNode, ...]) -> list[Any]:
    return [[node.session.id, *names(node.descendants)] for node in nodes]


@pytest.mark.rule("SQ-23", "SQ-25")
def test_a_family() -> None:
    records = [
        record("root"), record("up", "root"), record("me", "up"), record("b", "me", 2), record("c", "me", 1),
        record("a", "me", 2), record("a1", "a"), record("cousin", "up"), record("orphan", "gone"),
        record("child", "orphan"),
    ]  # fmt: skip
    found = lineage(records, "me")
    assert found.target.id == "me"
    assert [r.id for r in found.ancestors] == ["up", "root"]
    assert (found.complete, found.root, found.unresolved_parent_id) == (True, record("root"), None)
    assert names(found.descendants) == [["c"], ["a", ["a1"]], ["b"]]
    alone = lineage(records, "root")
    assert (alone.root, alone.ancestors) == (record("root"), ())
    lost = lineage(records, "child")
    assert [r.id for r in lost.ancestors] == ["orphan"]
    assert (lost.complete, lost.root, lost.unresolved_parent_id) == (False, None, "gone")
    assert code(lineage, records, "gone") == "SESSION_QUERY_SESSION_NOT_FOUND"


@pytest.mark.rule("SQ-24")
def test_parents_in_a_circle() -> None:
    assert code(lineage, [record("a", "a")], "a") == "SESSION_QUERY_INVALID_LINEAGE"
    circle = [record("a", "b"), record("b", "c"), record("c", "b"), record("free")]
    for id_ in "abc":
        assert code(lineage, circle, id_) == "SESSION_QUERY_INVALID_LINEAGE"
    assert lineage(circle, "free").descendants == ()


@pytest.mark.rule("SQ-23", "SQ-24", "SQ-25")
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 11)), max_size=12))
def test_families_at_random(made: list[tuple[int, int | None]]) -> None:
    records = [record(f"s{n}", None if p is None else f"s{p}", at) for n, (at, p) in enumerate(made)]
    parents = {r.id: r.header.get("parentSession") for r in records}
    times = {r.id: (r.header["createdAt"], r.id) for r in records}

    def below(id_: str) -> list[Any]:
        return [[c, *below(c)] for c in sorted((c for c in parents if parents[c] == id_), key=times.__getitem__)]

    for target in parents:
        chain: list[str] = []
        at = parents[target]
        while at in parents and at not in chain and at != target:
            assert at is not None
            chain.append(at)
            at = parents[at]
        if at in parents:
            assert code(lineage, records, target) == "SESSION_QUERY_INVALID_LINEAGE"
            continue
        found = lineage(records, target)
        assert [r.id for r in found.ancestors] == chain
        assert found.unresolved_parent_id == at
        assert names(found.descendants) == below(target)


@pytest.mark.rule("SQ-25")
def test_a_chain_of_ten_thousand() -> None:
    records = [record(f"s{n}", f"s{n - 1}" if n else None) for n in range(10_001)]
    assert len(lineage(records, "s10000").ancestors) == 10_000
    found = lineage(records, "s0")
    depth, nodes = 0, found.descendants
    while nodes:
        depth, nodes = depth + 1, nodes[0].descendants
    assert depth == 10_000
