"""Texts stored once, packed, thinned, redacted: the log says what it said."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsh import query
from dsh.core.errors import SessionError, StoreError
from dsh.core.lossless import dumps, loads
from dsh.query.check import check
from dsh.store import migrations, rewriting, writes
from dsh.store.database import Database
from tests.history import History, text

LONG = "The quick brown fox jumps over the lazy dog, again and again. " * 20


def log(db: Database, session: str | None = None) -> list[Any]:
    sql = "SELECT session_id, seq, type, time, data, source_event_seqs, surface_op, span FROM event"
    return db.rows(f"{sql} WHERE :s IS NULL OR session_id = :s ORDER BY session_id, part, seq", {"s": session})


def stored(path: Path, sql: str, bindings: Any = ()) -> list[Any]:
    db = apsw.Connection(str(path))
    try:
        return db.execute(sql, bindings).fetchall()
    finally:
        db.close()


def complaints(db: Database) -> list[Any]:
    return [v for v in check(db) if v.rule != "SQ-70"]


def begun(h: History, id: str = "s") -> str:
    h.session(id)
    h.event(id, "turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    h.event(id, "step/start", {"turn": 1, "step": 1})
    return id


def chunk(**fields: Any) -> dict[str, Any]:
    return {"turn": 1, "step": 1, "chunk": fields}


def closed(h: History, id: str) -> str:
    h.event(id, "step/end", {"turn": 1, "step": 1})
    h.event(id, "turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    return id


def chatty(h: History, id: str = "s") -> str:
    """A session of two turns whose answers were streamed, with long texts."""
    begun(h, id)
    h.event(id, "assistant/chunk", chunk(type="block-start", index=0, blockType="text"))
    for at in range(0, len(LONG), 5):
        h.event(id, "assistant/chunk", chunk(type="text-delta", index=0, text=LONG[at : at + 5]))
    h.event(id, "assistant/chunk", chunk(type="block-end", index=0, block=text(LONG)))
    h.event(id, "assistant/chunk", chunk(type="usage", usage={"inputTokens": 7, "outputTokens": 3}))
    h.event(id, "assistant/chunk", chunk(type="finish", reason={"kind": "stop"}))
    provenance = {"provider": "p", "model": "m"}
    message = {"turn": 1, "step": 1, "content": [text(LONG)], "provenance": provenance}
    h.event(id, "assistant/message", message, "append")
    closed(h, id)
    call = {"type": "tool-call", "id": "c1", "name": "bash", "arguments": dumps({"command": "echo " + LONG})}
    h.turn(id, 2, "how is the weather " + LONG, call, results={"c1": "sunny " + LONG})
    writes.refresh_search(h.db)
    return id


# ------------------------------------------------------------------------------------------------------ fragments


@pytest.mark.rule("PE-81")
def test_a_fragment_is_stored_without_what_stands_around_it(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    begun(h)
    for word in ("Hello", ", ", "wörld", 'a"b\\c\n', "text-delta", ""):
        h.event("s", "assistant/chunk", chunk(type="text-delta", index=0, text=word))
    rows = log(h.db)
    assert [loads(r[4])["chunk"]["text"] for r in rows[2:]] == [
        "Hello", ", ", "wörld", 'a"b\\c\n', "text-delta", "",
    ]  # fmt: skip
    assert rows[2][4] == '{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"Hello"}}'
    kept = stored(h.path, "SELECT data FROM _event WHERE type = 'assistant/chunk' ORDER BY seq")
    assert [data for (data,) in kept][:3] == ['"Hello"', '", "', '"wörld"']
    assert stored(h.path, "SELECT count(*) FROM _frame") == [(2,)]  # one is cut at its type, which says the same


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.builds(lambda t: chunk(type="text-delta", index=0, text=t), st.text(max_size=20)),
            st.builds(lambda t: chunk(type="reasoning-delta", index=1, text=t), st.text(max_size=5)),
            st.builds(
                lambda i, t, n: chunk(type="tool-call-delta", index=0, id=i, argumentsDelta=t, name=n),
                st.text(min_size=1, max_size=4), st.text(max_size=9), st.text(min_size=1, max_size=4),
            ),
            st.builds(lambda v: chunk(type="text-delta", text=v), st.one_of(st.integers(), st.none(), st.just(["x"]))),
            st.builds(lambda v: {"turn": 1, "step": 1, "text": v, "chunk": {"text": v}}, st.text(max_size=5)),
        ),
        max_size=12,
    )
)  # fmt: skip
@pytest.mark.rule("PE-81")
def test_whatever_was_streamed_comes_back_byte_for_byte(tmp_path_factory: Any, chunks: list[dict[str, Any]]) -> None:
    h = History(tmp_path_factory.mktemp("f") / "x.db")
    begun(h)
    for each in chunks:
        h.event("s", "assistant/chunk", each)
    assert [r[4] for r in log(h.db)[2:]] == [dumps(each) for each in chunks]
    h.db.close()


@pytest.mark.rule("SE-43")
def test_a_fragment_of_another_step_is_refused(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    begun(h)
    h.event("s", "assistant/chunk", chunk(type="text-delta", index=0, text="a"))
    for wrong in ({"turn": 1, "step": 2}, {"turn": 2, "step": 1}, {"turn": "1", "step": 1}, {"step": 1}):
        with pytest.raises(SessionError) as refused:
            h.event("s", "assistant/chunk", {**wrong, "chunk": {"type": "text-delta", "index": 0, "text": "a"}})
        assert refused.value.code == "INVARIANT"


# -------------------------------------------------------------------------------------------------- shared headers


def header(system: str, tools: list[Any], **more: Any) -> dict[str, Any]:
    config = {"provider": "p", "model": "m"}
    return {"header": {"config": config, "system": system, "tools": tools, **more}, "reason": "initial"}


@pytest.mark.rule("PE-82")
def test_what_many_headers_have_in_common_is_stored_once(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    tools = [{"name": "bash", "description": LONG}, {"name": "read", "description": "é" + LONG}]
    for n in range(20):
        begun(h, f"s{n}")
        h.event(f"s{n}", "request/header", header("You are dsh. " + LONG, tools))
    begun(h, "other")
    h.event("other", "request/header", header("You are not. " + LONG, tools))
    assert stored(h.path, "SELECT count(*) FROM _block") == [(3,)]
    assert max(stored(h.path, "SELECT length(data) FROM _event WHERE type = 'request/header'"))[0] < 200
    wanted = {f"s{n}": dumps(header("You are dsh. " + LONG, tools)) for n in range(20)}
    wanted["other"] = dumps(header("You are not. " + LONG, tools))
    assert {r[0]: r[4] for r in log(h.db) if r[2] == "request/header"} == wanted
    assert h.db.rows("SELECT header ->> 'system' FROM request_header WHERE session_id = 's3'")[0][0].startswith(
        "You are dsh"
    )
    assert query.row(h.db, "header_in_force", session="s3") is not None
    for n in range(20):
        closed(h, f"s{n}")
        h.db.rows("DELETE FROM session WHERE id = ?", (f"s{n}",))
    assert stored(h.path, "SELECT count(*) FROM _block") == [(2,)]  # what the other one has goes with it
    closed(h, "other")
    h.db.rows("DELETE FROM session WHERE id = 'other'")
    assert stored(h.path, "SELECT count(*) FROM _block") == [(0,)]


@pytest.mark.parametrize(
    "data",
    [
        '{"header":{"config":{"provider":"p","model":"m"}, "system": "LONG"}}',  # not as we write it
        '{"header":{"tools":[{"a":"LONG"}],"system":"LONG","config":{"provider":"p","model":"m"}}}',
        '{"header":{"config":{"provider":"p","model":"m"},"system":["LONG"],"tools":{"x":"LONG"}}}',
        '{"system":"LONG","header":{"config":{"provider":"p","model":"m"},"system":"LONG"}}',
    ],
)
@pytest.mark.rule("PE-82")
def test_headers_of_other_shapes_come_back_as_they_were(tmp_path: Path, data: str) -> None:
    h = History(tmp_path / "x.db")
    begun(h)
    whole = data.replace("LONG", LONG)
    writes.insert_event(h.db, "s", 2, "request/header", 1, whole, None, None)
    assert log(h.db)[2][4] == whole


@pytest.mark.rule("PE-82")
def test_a_stock_shell_reads_what_is_shared_and_can_append(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    begun(h)
    data = header("You are dsh. " + LONG, [])
    h.event("s", "request/header", data)
    h.event("s", "assistant/chunk", chunk(type="text-delta", index=0, text="hi"))
    h.db.close()
    script = (
        "SELECT data FROM event WHERE seq IN (2, 3);"
        "INSERT INTO event(session_id, type, data) VALUES ('s', 'assistant/chunk',"
        ' \'{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"ho"}}\');'
        "SELECT data FROM event WHERE seq = 4;"
    )
    done = subprocess.run(["sqlite3", h.path, script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == dumps(data)
    assert [loads(line)["chunk"]["text"] for line in lines[1:]] == ["hi", "ho"]


# --------------------------------------------------------------------------------------------------------- packing


@pytest.mark.rule("PE-83")
def test_a_packed_session_is_what_it_was_and_a_fraction_of_the_size(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    for n in range(5):
        chatty(h, f"s{n}")
    h.fork("f", "s0")
    h.turn("f", 3, "and now " + LONG, text("well " + LONG))
    h.db.vacuum(1000)
    texts = "SELECT sum(length(data)) FROM _event WHERE type <> 'assistant/chunk'"
    before, size, inside = log(h.db), h.path.stat().st_size, stored(h.path, texts)[0][0]
    views = ("surface", "message", "tool_call", "title", "search_document", "usage", "request_header")
    said = {view: h.db.rows(f"SELECT * FROM {view} ORDER BY 1, 2, 3") for view in views}
    for each in ("s0", "s1", "s2", "s3", "s4", "f"):
        assert rewriting.pack_session(h.db, each) > (3 if each.startswith("s") else 1)
        assert rewriting.pack_session(h.db, each) == 0  # once
    h.db.vacuum(1000)
    assert h.path.stat().st_size < size
    assert stored(h.path, texts)[0][0] < inside / 3
    assert log(h.db) == before
    assert {view: h.db.rows(f"SELECT * FROM {view} ORDER BY 1, 2, 3") for view in views} == said
    assert complaints(h.db) == []
    h.turn("f", 4, "go on", text("yes"))  # it can be gone on with
    assert log(h.db, "f")[: len(log(h.db, "f")) - 8] == [r for r in before if r[0] == "f"]
    rewriting.pack_session(h.db, "f")
    for each in ("s0", "s1", "s2", "s3", "s4", "f"):
        rewriting.unpack_session(h.db, each)
    assert [r for r in log(h.db) if r[0] != "f"] == [r for r in before if r[0] != "f"]
    assert stored(h.path, "SELECT count(*) FROM _piece") == stored(h.path, "SELECT count(*) FROM _block") == [(0,)]


@pytest.mark.rule("PE-83")
def test_packing_leaves_a_driven_session_alone(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    chatty(h)
    writes.claim_lease(h.db, "s", "me")
    before = log(h.db)
    for change in (rewriting.pack_session, rewriting.thin_session):
        with pytest.raises(SessionError) as refused:
            change(h.db, "s")
        assert refused.value.code == "SESSION_LEASED"
    writes.release_lease(h.db, "s", "me")
    assert log(h.db) == before
    assert stored(h.path, "SELECT rewriting FROM _store") == [(None,)]


@pytest.mark.rule("PE-83")
def test_a_rewriting_that_would_change_the_log_is_refused(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    chatty(h)
    before = log(h.db)
    data = before[-5][4]
    seq = before[-5][1]
    sql = "INSERT INTO packing(session_id, seq, data, pieces, whole) VALUES ('s', ?, ?, ?, ?)"
    for wrong in ((seq, '"x"', None, data), (seq, data, None, '"x"'), (9999, data, None, data)):
        with pytest.raises(SessionError) as refused:
            h.db.rows(sql, wrong)
        assert refused.value.code == "REWRITE_INVALID"
    for statement in (
        "UPDATE event SET data = '{}' WHERE seq = 3",
        "DELETE FROM event WHERE seq = 3",
        "INSERT INTO thinning(session_id, first, last) VALUES ('s', 0, 3)",
        "INSERT INTO thinning(session_id, first, last) VALUES ('s', 3, 3)",
        "INSERT INTO thinning(session_id, first, last) VALUES ('s', 3, 9999)",
    ):
        with pytest.raises(SessionError) as refused:
            h.db.rows(statement)
        assert refused.value.code in ("EVENT_IMMUTABLE", "REWRITE_INVALID")
    assert log(h.db) == before


@pytest.mark.rule("PE-83")
def test_a_stock_shell_sees_packed_texts_as_empty(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    chatty(h)
    rewriting.pack_session(h.db, "s")
    h.db.close()
    sql = "SELECT content ->> '$[0].text' FROM message WHERE seq > 2 AND role = 'user'; SELECT count(*) FROM event"
    done = subprocess.run(["sqlite3", h.path, sql], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == ""
    assert int(done.stdout.splitlines()[-1]) == len(log(Database.open(h.path)))


@pytest.mark.rule("PE-83")
def test_a_damaged_block_is_a_damaged_log_and_no_crash(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    chatty(h)
    rewriting.pack_session(h.db, "s")
    h.db.close()
    with apsw.Connection(str(h.path)) as raw:
        raw.execute("UPDATE _block SET body = x'28b52ffd00'")
    db = Database.open(h.path)
    with pytest.raises(StoreError) as damaged:
        log(db)
    assert damaged.value.code == "DB_DAMAGED"
    assert [(v.session, v.message) for v in check(db)] == [("s", "cannot be read: a packed text is damaged")]
    assert db.rows("SELECT count(*) FROM turn") == [(2,)]


# -------------------------------------------------------------------------------------------------------- thinning


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.rule("PE-84")
def test_thinning_leaves_messages_and_usage(tmp_path: Path, packed: bool) -> None:
    h = History(tmp_path / "x.db")
    chatty(h)
    h.fork("f", "s")
    h.turn("f", 3, "more", text("yes"))
    views = ("message", "usage", "tool_call", "turn", "step", "search_document", "session_title")
    said = {view: h.db.rows(f"SELECT * FROM {view} ORDER BY 1, 2, 3") for view in views}
    length = h.db.rows("SELECT id, length FROM session ORDER BY id")
    before = log(h.db, "s")
    if packed:
        rewriting.pack_session(h.db, "s")
    gone = rewriting.thin_session(h.db, "s")
    assert gone == len(LONG) // 5 + 1
    after = log(h.db, "s")
    assert len(after) == len(before) - gone
    thinned = [r for r in after if r[7] > 1]
    assert [(r[1], r[7], loads(r[4])["chunk"]) for r in thinned] == [
        (2, gone + 1, {"type": "thinned", "count": gone + 1})
    ]
    assert [r for r in after if r[7] == 1] == [r for r in before if r[1] < 2 or r[1] > 2 + gone]
    assert {view: h.db.rows(f"SELECT * FROM {view} ORDER BY 1, 2, 3") for view in views} == said
    assert h.db.rows("SELECT id, length FROM session ORDER BY id") == length
    assert rewriting.thin_session(h.db, "s") == 0
    assert complaints(h.db) == []
    assert h.db.rows("SELECT changes FROM session WHERE id = 's'") == [(1,)]
    h.turn("s", 3, "it goes on", text("yes"))
    assert complaints(h.db) == []


@pytest.mark.rule("PE-86")
def test_an_open_turn_keeps_what_was_streamed_in_it(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    chatty(h)
    closed_length = len(log(h.db))
    h.event("s", "turn/start", {"turn": 3, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    h.event("s", "step/start", {"turn": 3, "step": 1})
    for word in ("so ", "far"):
        piece = {"type": "text-delta", "index": 0, "text": word}
        h.event("s", "assistant/chunk", {"turn": 3, "step": 1, "chunk": piece})
    before = log(h.db)
    assert rewriting.pack_session(h.db, "s") > 0
    assert log(h.db) == before
    assert rewriting.thin_session(h.db, "s") > 0
    assert log(h.db)[-4:] == before[closed_length:]
    with pytest.raises(SessionError) as refused:
        h.db.rows("INSERT INTO thinning(session_id, first, last) VALUES ('s', ?, ?)", (before[-2][1], before[-1][1]))
    assert refused.value.code == "REWRITE_INVALID"


# ------------------------------------------------------------------------------------------------------- redaction

SECRET = "hunter2-is-the-word"


def told(h: History) -> None:
    chatty(h)
    h.turn("s", 3, f"my password is {SECRET}. {LONG}", text(f"I will keep {SECRET} for you. {LONG}"))
    writes.refresh_search(h.db)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.rule("PE-85")
def test_what_was_redacted_is_in_no_byte_of_the_file(tmp_path: Path, packed: bool) -> None:
    h = History(tmp_path / "x.db")
    told(h)
    if packed:
        rewriting.pack_session(h.db, "s")
        h.db.vacuum(1000)
        assert SECRET.encode() not in h.path.read_bytes()  # it is compressed
    found = [r for r in log(h.db) if SECRET in r[4]]
    assert len(found) == 2
    for row in found:
        rewriting.redact_event(h.db, row[0], row[1], row[4].replace(SECRET, "[gone]"))
    assert h.db.rows("SELECT session_id, seq FROM redaction ORDER BY seq") == [(r[0], r[1]) for r in found]
    assert not h.db.rows("SELECT rowid FROM search WHERE search MATCH 'hunter2'")
    assert len(h.db.rows("SELECT rowid FROM search WHERE search MATCH 'gone'")) == 2
    assert writes.check_search(h.db) is None
    assert complaints(h.db) == []
    assert rewriting.purge(h.db, 1000)
    h.db.close()
    for file in tmp_path.glob("x.db*"):
        assert SECRET.encode() not in file.read_bytes()
        assert b"hunter2" not in file.read_bytes()


@pytest.mark.rule("PE-85")
def test_a_redaction_changes_texts_and_nothing_else(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    told(h)
    before = log(h.db)
    call = next(r for r in before if r[2] == "tool/call")
    body = loads(call[4])
    for wrong, code in (
        ({**body, "callId": "c2"}, "REWRITE_INVALID"),
        ({**body, "turn": 3}, "REWRITE_INVALID"),
        ({k: v for k, v in body.items() if k != "name"}, "REWRITE_INVALID"),
        ({**body, "more": "x"}, "REWRITE_INVALID"),
        ({**body, "arguments": 1}, "REWRITE_INVALID"),
    ):
        with pytest.raises(SessionError) as refused:
            rewriting.redact_event(h.db, "s", call[1], dumps(wrong))
        assert refused.value.code == code
    with pytest.raises(SessionError) as refused:
        rewriting.redact_event(h.db, "s", call[1], "{")
    assert refused.value.code == "EVENT_NOT_JSON"
    with pytest.raises(SessionError) as refused:
        rewriting.redact_event(h.db, "s", 99999, "{}")
    assert refused.value.code == "EVENT_NOT_FOUND"
    assert log(h.db) == before
    rewriting.redact_event(h.db, "s", call[1], dumps({**body, "arguments": "[gone]"}))
    assert h.db.rows("SELECT arguments FROM tool_call WHERE call_id = 'c1'") == [("[gone]",)]


@pytest.mark.rule("PE-85")
def test_streamed_pieces_can_be_redacted_too(tmp_path: Path) -> None:
    h = History(tmp_path / "x.db")
    begun(h)
    h.event("s", "assistant/chunk", chunk(type="text-delta", index=0, text=SECRET))
    closed(h, "s")
    row = log(h.db)[2]
    rewriting.redact_event(h.db, "s", 2, row[4].replace(SECRET, "x"))
    assert loads(log(h.db)[2][4])["chunk"]["text"] == "x"


# ------------------------------------------------------------------------------------------------------- migration


@pytest.mark.rule("PE-52")
def test_a_history_of_before_is_read_and_packed(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with apsw.Connection(str(path)) as old:
        migrations.run_script(old, (Path(__file__).parent / "schema-1.sql").read_text("utf-8"))
        old.execute("INSERT INTO _store(id, store_id) VALUES (1, 'x')")
        old.execute("INSERT INTO _migration VALUES (1, 'initial', 0, '0.1.0')")
        old.pragma("user_version", 1)
        old.execute("INSERT INTO session(id, cwd) VALUES ('s', '/a')")
        for type_, data in (
            ("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}}),
            ("step/start", {"turn": 1, "step": 1}),
            ("request/header", header(LONG, [])),
            ("assistant/chunk", chunk(type="text-delta", index=0, text="Hel")),
            ("assistant/chunk", chunk(type="text-delta", index=0, text="lo")),
            ("step/end", {"turn": 1, "step": 1}),
            ("turn/end", {"turn": 1, "reason": {"kind": "completed", "detail": LONG}}),
        ):
            old.execute("INSERT INTO event(session_id, type, data) VALUES ('s', ?, ?)", (type_, dumps(data)))
    db = Database.open(path)
    before = log(db)
    assert before
    for (each,) in db.rows("SELECT id FROM session WHERE open_turn IS NULL"):
        rewriting.pack_session(db, each)
        rewriting.thin_session(db, each)
    assert [r for r in log(db) if r[2] != "assistant/chunk"] == [r for r in before if r[2] != "assistant/chunk"]
