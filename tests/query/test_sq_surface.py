"""The surface fold of the query service against a list in plain Python, and against what the database keeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.core.lossless import dumps
from dsh.query.service import reads
from dsh.query.service.reads import finished, stored_log
from dsh.query.service.surface import Surface
from dsh.query.service.values import QueryError
from dsh.store import rewriting
from tests.session.kit import (
    World,
    code,
    damage,
    end_turn,
    prompt,
    replace,
    reply,
    start_step,
    start_turn,
    surface,
    text,
    whole_turn,
)

SURFACE = ("user/message", "assistant/message", "tool/result", "steering/message")
Envelope = tuple[int, str, Any, Any]  # seq, type, sources, op


def plainly(log: list[Envelope]) -> tuple[list[int], dict[int, list[int]]] | None:
    """The nodes at the end and what each event removed; None if the log is not valid (SQ-8)."""
    nodes: list[int] = []
    removed: dict[int, list[int]] = {}
    for index, (seq, type_, sources, op) in enumerate(log):
        if seq != index or (type_ in SURFACE) != (op is not None) or (op is None and sources is not None):
            return None
        if sources is not None:
            earlier = isinstance(sources, list) and all(type(s) is int and 0 <= s < seq for s in sources)
            if not earlier or len(set(sources)) < len(sources) or (not sources and type_ != "assistant/message"):
                return None
        if op == "append":
            nodes.append(seq)
        elif op is not None:
            if not isinstance(op, dict) or set(op) != {"op", "start", "end"} or op["op"] != "replace":
                return None
            if type(op["start"]) is not int or type(op["end"]) is not int:
                return None
            if op["start"] not in nodes or op["end"] not in nodes:
                return None
            first, last = nodes.index(op["start"]), nodes.index(op["end"])
            if first > last or not set(nodes[first : last + 1]) <= set(sources or []):
                return None
            removed[seq] = nodes[first : last + 1]
            nodes[first : last + 1] = [seq]
    return nodes, removed


@st.composite
def envelopes(draw: st.DrawFn) -> list[Envelope]:
    """Logs that are mostly valid: a fault is put into some."""
    log: list[Envelope] = []
    nodes: list[int] = []
    for seq in range(draw(st.integers(0, 14))):
        type_ = draw(st.sampled_from([*SURFACE, "turn/start", "assistant/chunk"]))
        earlier: Any = st.lists(st.integers(0, max(0, seq - 1)), unique=True, min_size=1, max_size=3)
        sources: Any = draw(earlier | st.none())
        op: Any = None
        if type_ not in SURFACE or not seq:
            sources = None
        if type_ in SURFACE:
            op = "append"
            replacing: bool = draw(st.booleans())
            if nodes and replacing:
                first = draw(st.integers(0, len(nodes) - 1))
                last = draw(st.integers(first, len(nodes) - 1))
                op = replace(nodes[first], nodes[last])
                sources = [*nodes[first : last + 1], *(s for s in sources or [] if s not in nodes[first : last + 1])]
                nodes[first : last + 1] = [seq]
            else:
                nodes.append(seq)
        log.append((seq, type_, sources, op))
    if log and draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(0, len(log) - 1))
        seq, type_, sources, op = log[at]
        log[at] = draw(
            st.sampled_from(
                [
                    (seq + 1, type_, sources, op),
                    (seq, "user/message" if op is None else "step/start", sources, op),
                    (seq, type_, [seq], op),
                    (seq, type_, [0, 0], op),
                    (seq, type_, [], op),
                    (seq, type_, None, op),
                    (seq, type_, sources, replace(0, seq)),
                    (seq, type_, sources, replace(-1, 0)),
                    (seq, type_, sources, {"op": "replace", "start": True, "end": 0}),
                    (seq, type_, sources, {"op": "replace", "start": 0, "end": 0, "more": 1}),
                    (seq, type_, sources, "prepend"),
                ]
            )
        )
    return log


def folded(log: list[Envelope]) -> Surface:
    made = Surface("s")
    for seq, type_, sources, op in log:
        made.add(seq, type_, None if sources is None else dumps(sources), None if op is None else dumps(op))
    return made


@pytest.mark.rule("SQ-8", "SQ-21", "SQ-22")
@settings(deadline=None)
@given(envelopes())
def test_the_fold_is_the_plain_one(log: list[Envelope]) -> None:
    expected = plainly(log)
    if expected is None:
        with pytest.raises(QueryError) as caught:
            folded(log)
        assert caught.value.code == "SESSION_QUERY_INVALID_SURFACE"
        return
    nodes, removed = expected
    made = folded(log)
    assert list(made.nodes()) == nodes
    assert made.removed == {seq: tuple(gone) for seq, gone in removed.items()}
    by = {gone: seq for seq, many in removed.items() for gone in many}
    for seq in range(len(log)):
        assert made.class_of(seq) == ("current" if seq in nodes else "shadowed" if seq in by else "log-only")
        chain = made.chain(seq)
        assert list(chain) == [by[at] for at in (seq, *chain) if at in by]


@pytest.mark.rule("SQ-8", "SQ-10")
def test_a_thinned_run_stands_for_what_it_was(w: World) -> None:
    session = w.session()
    for _ in range(2):
        start_turn(session)
        session.append("user/message", prompt("p"), surface="append")
        at = start_step(session)
        for piece in "abcdef":
            session.append("assistant/chunk", {**at, "chunk": {"type": "text-delta", "index": 0, "text": piece}})
        reply(session, text("abcdef"))
        session.append("step/end", at)
        end_turn(session)
    w.sessions.dispose(session)
    before = {record.seq: record for record in finished(reads.records(stored_log(w.db, "s")))}
    rewriting.thin_session(w.db, "s")
    log = stored_log(w.db, "s")
    after = {record.seq: record for record in finished(reads.records(log))}
    gone = before.keys() - after.keys()
    assert gone
    assert {seq: before[seq] for seq in after} == after
    assert log.length == len(before)
    for seq in gone:
        assert code(lambda seq=seq: finished(reads.window(log, seq, 1, 1))) == "SESSION_QUERY_EVENT_NOT_FOUND"
        assert code(lambda seq=seq: finished(reads.trace(log, seq))) == "SESSION_QUERY_EVENT_NOT_FOUND"
    assert len(finished(reads.whole(log)).events) == len(after)
    assert [d.text for d in finished(reads.documents(log, ()))] == ["p", "abcdef"] * 2


def test_a_long_list_of_replacements_does_not_count_the_list() -> None:
    count = 20_000
    made = Surface("s")
    for seq in range(count):
        made.add(seq, "user/message", None, '"append"')
    for seq in range(count):  # the last node each time: a search from the front would take minutes
        at = count - 1 if seq == 0 else count + seq - 1
        made.add(count + seq, "user/message", f"[{at}]", dumps(replace(at, at)))
    assert list(made.nodes()) == [*range(count - 1), 2 * count - 1]
    assert len(made.chain(count - 1)) == count


@pytest.mark.rule("SQ-8", "SQ-9", "SQ-71")
def test_the_fold_of_a_stored_log_is_what_the_database_keeps(w: World) -> None:
    session = w.session()
    for number in range(6):
        whole_turn(session, f"p{number}", calls=number % 2)
    start_turn(session)
    before = surface(w.db, "s")
    for first, last in ((2, 4), (0, 0), (3, 6)):
        nodes = surface(w.db, "s")[first : last + 1]
        session.append("user/message", prompt("sum"), surface=replace(nodes[0], nodes[-1]), sources=nodes)
    found = finished(reads.surface(stored_log(w.db, "s")))
    assert [event["seq"] for event in found.events] == surface(w.db, "s")
    assert found.captured_through_seq == session.length - 1
    classes = {record.seq: record.surface for record in finished(reads.records(stored_log(w.db, "s")))}
    assert {seq for seq, name in classes.items() if name == "current"} == set(surface(w.db, "s"))
    assert {seq for seq, name in classes.items() if name == "shadowed"} == set(before) - set(surface(w.db, "s"))
    assert len(classes) == session.length


@pytest.mark.rule("SQ-8")
@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE _event SET seq = seq + 1 WHERE seq = (SELECT max(seq) FROM _event)",
        "UPDATE _event SET op = NULL WHERE seq = 1",
        "UPDATE _event SET op = '\"append\"' WHERE seq = 0",
        "UPDATE _event SET source = '[1, 1]' WHERE type = 'assistant/message'",
        "UPDATE _event SET source = '[900]' WHERE type = 'assistant/message'",
        "UPDATE _event SET source = '[]' WHERE seq = 1",
        "UPDATE _event SET source = 'x' WHERE seq = 1",
        'UPDATE _event SET op = \'{"op":"replace","start":0,"end":0}\' WHERE seq = 1',
        'UPDATE _event SET op = \'{"op":"replace","start":1,"end":1}\' WHERE type = \'assistant/message\'',
    ],
)
def test_a_log_that_does_not_fold_is_refused(w: World, harm: str) -> None:
    whole_turn(w.session())
    w.db.close()
    damage(w.path, harm)
    log = stored_log(w.reopen().db, "s")
    for read in (reads.records, reads.surface, lambda log: reads.documents(log, ()), lambda log: reads.trace(log, 0)):
        assert code(lambda read=read: finished(read(log))) == "SESSION_QUERY_INVALID_SURFACE"
    assert finished(reads.window(log, 0, 0, 0)).target["seq"] == 0  # SQ-10: without a look at the surface
