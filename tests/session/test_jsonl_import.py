"""Storing what was exported (SE-50 to SE-53): any file ends in a session that is whole, or in a code and nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsh.core.errors import DshError
from dsh.core.lossless import dumps
from dsh.query.check import check
from dsh.session.jsonl import LogReader, event_lines, header_line, plain_lines
from dsh.session.transfer import Imported, import_log, write_export
from tests.session.kit import World, code, dump, end_turn, replace, start_turn, whole_turn
from tests.session.logs import HEADER, Row, json_values, logs, reader

REFUSALS = {"SEED_INVALID", "LOG_CORRUPT", "LEGACY_EVENT", "VERSION_UNSUPPORTED", "SESSION_ALREADY_EXISTS"}
SHARED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def take(w: World, data: bytes, as_id: str | None = None) -> Imported:
    return import_log(w.db, reader(data), as_id=as_id)


def exported(w: World, id: str, **options: Any) -> bytes:
    out = io.BytesIO()
    with w.db.snapshot():
        write_export(w.db, id, out, **options)
    return out.getvalue()


def stored(w: World, id: str) -> list[Row]:
    columns = "seq, type, time, data, source_event_seqs, surface_op"
    return w.db.rows(f"SELECT {columns} FROM event WHERE session_id = ? ORDER BY seq", (id,))


@pytest.mark.rule("PE-60", "PE-61", "PE-62", "PE-63")
@SHARED
@given(logs())
def test_a_stored_log_goes_out_and_comes_back(w: World, rows: list[Row]) -> None:
    number = w.db.rows("SELECT count(*) FROM session")[0][0]
    first = take(w, (header_line(HEADER) + "".join(event_lines(rows))).encode(), f"s{number}")
    assert stored(w, first.id)[: len(rows)] == rows
    assert first.events == len(rows)
    assert first.closers == (rows[-1][1] != "turn/end")
    for options in ({}, {"packed": False}, {"zstd": True}):
        again = take(w, exported(w, first.id, **options), f"s{number}-{len(options)}{options.get('zstd', '')}")
        assert stored(w, again.id) == stored(w, first.id)
        assert (again.closers, again.dropped) == (0, 0)
    assert check(w.db, first.id) == []


def outcome(w: World, data: bytes, as_id: str) -> Imported | str:
    try:
        return take(w, data, as_id)
    except DshError as error:
        return error.code


FIELDS = ["type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs", "more"]


@SHARED
@given(logs(), st.data())
def test_any_change_is_taken_as_a_legal_log_or_refused(w: World, rows: list[Row], data: st.DataObject) -> None:
    """Whatever stands in a file: what is stored passes the check of a stored log, what is refused leaves nothing."""
    lines = [json.loads(line) for line in [header_line(HEADER), *event_lines(rows, packed=data.draw(st.booleans()))]]
    for _ in range(data.draw(st.integers(1, 3))):
        line = data.draw(st.sampled_from(lines))
        field = data.draw(st.sampled_from([*FIELDS, *line]))
        inner = line.get("data")
        if isinstance(inner, dict) and inner and data.draw(st.booleans()):
            line, field = inner, data.draw(st.sampled_from([*inner]))
        line[field] = data.draw(json_values)
    number = w.db.rows("SELECT count(*) FROM session")[0][0]
    before = w.db.rows("SELECT count(*), max(id) FROM session")
    found = outcome(w, "".join(dumps(line) + "\n" for line in lines).encode(), f"s{number}")
    if isinstance(found, str):
        assert found in REFUSALS
        assert w.db.rows("SELECT count(*), max(id) FROM session") == before
    else:
        assert check(w.db, found.id) == []


@SHARED
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_read_without_a_crash(w: World, data: bytes, headed: bool) -> None:
    with pytest.raises(DshError) as caught:
        take(w, (header_line(HEADER).encode() if headed else b"") + data)
    assert caught.value.code in REFUSALS


def test_an_import_that_is_interrupted_stores_nothing(w: World) -> None:
    whole_turn(w.session())
    data = exported(w, "s", packed=False)
    before = dump(w.path)

    def lines() -> Iterator[bytes]:
        for n, line in enumerate(plain_lines(io.BytesIO(data))):
            if n == 5:
                assert w.db.rows("SELECT count(*) FROM event WHERE session_id = 't'") == [(4,)]
                raise KeyboardInterrupt
            yield line

    with pytest.raises(KeyboardInterrupt):
        import_log(w.db, LogReader(lines()), as_id="t")
    assert dump(w.path) == before


@pytest.mark.rule("SE-50", "SE-53")
def test_the_header_is_taken_over_whole(w: World) -> None:
    meta = {"cwd": "/a", "parentSession": "gone", "createdAt": 7, "seedLength": 3, "delegationDepth": 2}
    s = w.session("s", **meta)
    whole_turn(s)
    done = take(w, exported(w, "s"), "t")
    assert not done.shared
    assert exported(w, "t") == exported(w, "s").replace(b'"id":"s"', b'"id":"t"')
    assert code(take, w, exported(w, "s")) == "SESSION_ALREADY_EXISTS"
    assert code(take, w, exported(w, "s"), "\ud800") == "HEADER_INVALID"
    windows = b'{"type":"session","version":0,"id":"u","createdAt":1,"cwd":"C:\\\\x","origin":"subagent"}\n'
    done = take(w, windows + exported(w, "s").split(b"\n", 1)[1])
    assert (done.id, done.left_out) == ("u", ["origin"])
    assert code(take, w, header_line(HEADER).encode(), "v") == "SEED_INVALID"


def test_an_imported_log_is_searched_and_goes_on(w: World) -> None:
    s = w.session()
    whole_turn(s, "needle")
    first = s.append("turn/start", {"turn": 2, "trigger": {"kind": "x"}})
    node = s.append("user/message", {"content": [], "source": {"kind": "user"}}, surface="append")["seq"]
    s.append("user/message", {"content": [], "source": {"kind": "x"}}, surface=replace(node, node), sources=[node])
    end_turn(s)
    assert first["seq"]
    done = take(w, exported(w, "s"), "t")
    assert w.db.rows("SELECT search_indexed = last_event FROM store") == [(1,)]
    copy = w.sessions.publish(w.sessions.prepare_stored(done.id))
    assert copy.derive_messages() == s.derive_messages()
    assert (copy.turns, copy.generation, copy.header_in_force()) == (2, 1, s.header_in_force())
    start_turn(copy)


def test_a_fork_that_differs_from_its_parent_keeps_its_own_events(w: World) -> None:
    """The comparison ends anywhere: at an event that differs, where the file ends, at a boundary that is no turn's."""
    s = w.session("p")
    for words in ("one", "two"):
        whole_turn(s, words)
    length = s.length // 2
    w.sessions.fork("p", length - 1, "f")
    child = w.sessions.live("f")
    assert child is not None
    whole_turn(child, "own")
    whole = exported(w, "f", packed=False)
    lines = whole.split(b"\n")
    assert take(w, whole, "same").shared
    assert stored(w, "same") == stored(w, "f")
    changed = whole.replace(b"one", b"eno")
    assert not take(w, changed, "changed").shared
    assert json.dumps(stored(w, "changed")) == json.dumps(stored(w, "f")).replace("one", "eno")
    short = take(w, b"\n".join([*lines[:4], b""]), "short")
    assert (short.shared, short.events, short.closers) == (False, 3, 2)
    later = whole.replace(b'"seedLength":%d' % length, b'"seedLength":%d' % (length - 1))
    assert not take(w, later, "later").shared
    assert stored(w, "later") == stored(w, "f")
    deep = whole.replace(b'"delegationDepth":0', b'"delegationDepth":1')
    assert not take(w, deep, "deep").shared
    for name in ("same", "changed", "short", "later", "deep"):
        assert check(w.db, name) == []
