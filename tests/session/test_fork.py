"""Seeds and forks (SE-50 to SE-56), deleting, and who may (PE-50, PE-72)."""

from __future__ import annotations

from typing import Any

import pytest

from dsh import query
from dsh.core.lossless import thaw
from dsh.query.naming import find_session
from dsh.session.session import Session
from dsh.store import writes
from tests.session.kit import (
    ROUTE,
    World,
    code,
    dump,
    end_turn,
    messages,
    prompt,
    replace,
    start_turn,
    surface,
    whole_turn,
)


def envelopes(session: Session) -> list[Any]:
    return [thaw(dict(e)) for e in session.events()]


@pytest.fixture
def parent(w: World) -> Session:
    """Three turns; the second one has a replacement."""
    s = w.session("parent", cwd="/folder", delegationDepth=2)
    whole_turn(s, "one", calls=1)
    start_turn(s)
    nodes = surface(w.db, "parent")
    s.append("user/message", prompt("summary"), surface=replace(nodes[0], nodes[1]), sources=nodes[:2])
    end_turn(s)
    whole_turn(s, "three")
    return s


def ends(w: World, session: str) -> list[int]:
    return [seq for (seq,) in w.db.rows("SELECT end_seq FROM turn WHERE session_id = ? ORDER BY turn", (session,))]


# ---------------------------------------------------------------------------------------------------------- seeds


@pytest.mark.rule("SE-50", "PE-18")
def test_a_seed_is_the_log_it_was(w: World, parent: Session) -> None:
    heard: list[Any] = []
    w.host.root.on("session/event", lambda session, event: heard.append(event))
    seed = envelopes(parent)
    child = w.sessions.create("child", seed=seed)
    assert envelopes(child) == seed
    assert heard == []
    assert child.derive_messages() == parent.derive_messages()
    assert (child.length, child.turns, child.generation) == (parent.length, 3, 1)
    assert child.header_in_force() == parent.header_in_force()
    assert w.db.row("SELECT revision FROM session WHERE id = 'child'") == (parent.length,)
    whole_turn(child, "four")
    assert len(heard) == 8


def seed() -> list[Any]:
    return [
        {"type": "turn/start", "seq": 0, "time": 5, "data": {"turn": 1, "trigger": {}}},
        {"type": "user/message", "seq": 1, "time": 5, "data": prompt(), "surfaceOp": "append"},
        {"type": "step/start", "seq": 2, "time": 5, "data": {"turn": 1, "step": 1}},
        {"type": "request/header", "seq": 3, "time": 5, "data": {"header": {"config": ROUTE}, "reason": "initial"}},
        {
            "type": "assistant/message",
            "seq": 4,
            "time": 5,
            "data": {"turn": 1, "step": 1, "content": [], "provenance": ROUTE},
            "surfaceOp": "append",
            "sourceEventSeqs": [],
        },
        {"type": "step/end", "seq": 5, "time": 5, "data": {"turn": 1, "step": 1}},
        {"type": "turn/end", "seq": 6, "time": 5, "data": {"turn": 1, "reason": {"kind": "aborted"}}},
    ]


@pytest.mark.parametrize(
    ("index", "change"),
    [
        (0, {"seq": 1}),
        (0, {"seq": True}),
        (0, {"seq": "0"}),
        (1, {"seq": 0}),
        (2, {"seq": 3}),
        (3, {"time": -1}),
        (3, {"time": 1.5}),
        (3, {"time": None}),
        (3, {"time": True}),
        (3, {"time": 2**53}),
        (2, {"extra": 1}),
        (2, {"type": ""}),
        (2, {"type": None}),
        (2, {"type": "\ud800"}),
        (2, {"surfaceOp": None}),
        (2, {"sourceEventSeqs": None}),
        (2, {"surfaceOp": "append"}),
        (1, {"surfaceOp": replace(1, 1)}),
        (1, {"sourceEventSeqs": [1]}),
        (1, {"data": float("nan")}),
        (3, {"data": {"header": {"config": {"provider": "p"}}}}),
        (3, {"data": {"header": {"config": {**ROUTE, "reasoningEffort": ""}}}}),
        (4, {"data": {"turn": 1, "step": 1, "content": []}}),
        (6, {"data": {"turn": 1, "reason": {"kind": "aborted", "by": "x"}}}),
        (5, {"data": {"turn": 1, "step": 2}}),
        (6, "not an object"),
        (4, None),
    ],
    ids=repr,
)
@pytest.mark.rule("SE-50", "SE-51")
def test_the_first_bad_event_refuses_the_whole_seed(w: World, index: int, change: Any) -> None:
    bad = seed()
    bad[index] = {**bad[index], **change} if isinstance(change, dict) else change
    created: list[Any] = []
    w.host.root.on("session/created", created.append)
    before = dump(w.path)
    with pytest.raises(Exception, match=f"event {index} of the seed") as caught:
        w.sessions.create("s", seed=bad)
    assert getattr(caught.value, "code", None) == "SEED_INVALID"
    assert dump(w.path) == before
    assert created == []
    assert w.sessions.live("s") is None
    assert w.sessions.create("s", seed=seed()).length == 7


@pytest.mark.parametrize("key", ["type", "seq", "time", "data"])
@pytest.mark.rule("SE-50")
def test_a_seed_has_whole_envelopes(w: World, key: str) -> None:
    bad = seed()
    del bad[3][key]
    assert code(w.sessions.create, "s", seed=bad) == "SEED_INVALID"


# -------------------------------------------------------------------------------------------------------- creating


@pytest.mark.rule("SE-52", "PE-2")
def test_an_id_is_used_once(w: World, parent: Session) -> None:
    before = dump(w.path)
    assert code(w.sessions.create, "parent") == "SESSION_ALREADY_EXISTS"
    assert code(w.reopen().sessions.create, "parent", meta={"cwd": "/elsewhere"}) == "SESSION_ALREADY_EXISTS"
    empty = w.session("empty")
    assert code(w.sessions.create, "empty") == "SESSION_ALREADY_EXISTS"
    assert dump(w.path) == before
    w.sessions.dispose(empty)
    w.session("empty")  # never appended to, so never stored: the id is free again
    assert w.sessions.create().id != w.sessions.create().id


@pytest.mark.rule("PE-1", "PE-5")
def test_a_session_is_stored_with_its_first_event(w: World) -> None:
    before = dump(w.path)
    s = w.session("s", cwd="/x")
    with w.db.transaction():
        pass
    assert dump(w.path) == before
    start_turn(s)
    assert w.db.rows("SELECT id, cwd, length, delegation_depth FROM session") == [("s", "/x", 1, 0)]


@pytest.mark.rule("PE-2", "PE-3")
def test_another_process_took_the_id_meanwhile(w: World) -> None:
    mine, theirs = w.session("s"), w.reopen().session("s")
    start_turn(theirs)
    before = dump(w.path)
    assert code(start_turn, mine) == "SESSION_ALREADY_EXISTS"
    assert dump(w.path) == before
    assert mine.length == 0


@pytest.mark.parametrize(
    "meta",
    [
        {"createdAt": -1},
        {"createdAt": 1.5},
        {"createdAt": True},
        {"createdAt": "1"},
        {"createdAt": 2**53},
        {"createdAt": None},
        {"cwd": "relative"},
        {"cwd": ""},
        {"cwd": 5},
        {"cwd": "/\ud800"},
        {"parentSession": ""},
        {"parentSession": 1},
        {"seedLength": -1},
        {"seedLength": 1.0},
        {"delegationDepth": -1},
        {"delegationDepth": True},
        {"version": 0},
        {"id": "x"},
        {"unknown": 1},
    ],
    ids=repr,
)
@pytest.mark.rule("SE-53", "PE-2")
def test_a_header_is_checked_before_the_session_is_seen(w: World, meta: Any) -> None:
    created: list[Any] = []
    w.host.root.on("session/created", created.append)
    assert code(w.sessions.create, "s", meta=meta) == "HEADER_INVALID"
    assert created == []
    assert w.sessions.live("s") is None
    w.sessions.create("s")


@pytest.mark.parametrize("id", ["", 5, "\ud800"])
@pytest.mark.rule("SE-53")
def test_an_id_is_text(w: World, id: Any) -> None:
    assert code(w.sessions.create, id) == "HEADER_INVALID"


@pytest.mark.rule("SE-53", "PE-51")
def test_the_header_is_stored_as_given(w: World) -> None:
    meta = {"cwd": "/ü", "parentSession": "p", "createdAt": 7, "seedLength": 3, "delegationDepth": 1}
    s = w.sessions.create("s", meta=meta)
    start_turn(s)
    end_turn(s)
    wanted = {"version": 0, "id": "s", **meta}
    assert dict(s.header) == wanted
    assert dict(w.reopen().sessions.prepare_stored("s").header) == wanted
    with pytest.raises(TypeError):
        s.header["cwd"] = "/y"


@pytest.mark.rule("SE-54")
def test_created_and_disposed_are_announced_once(w: World) -> None:
    heard: list[str] = []
    w.host.root.on("session/created", lambda s: heard.append(f"+{s.id}"))
    w.host.root.on("session/disposed", lambda s: heard.append(f"-{s.id}"))
    s = w.session()
    assert w.sessions.live("s") is s
    w.sessions.dispose(s)
    w.sessions.dispose(s)
    assert heard == ["+s", "-s"]
    assert w.sessions.live("s") is None


@pytest.mark.rule("SE-54")
def test_an_observer_that_fails_vetoes_the_session(w: World, parent: Session) -> None:
    heard: list[str] = []

    def veto(session: Session) -> None:
        if session.id.startswith("bad"):
            raise RuntimeError("not this one")

    w.host.root.on("session/created", veto)
    w.host.root.on("session/created", lambda s: heard.append(f"+{s.id}"))
    w.host.root.on("session/disposed", lambda s: heard.append(f"-{s.id}"))
    before = dump(w.path)
    for make in (
        lambda: w.sessions.create("bad1"),
        lambda: w.sessions.create("bad2", seed=seed()),
        lambda: w.sessions.fork(parent, child="bad3"),
    ):
        with pytest.raises(RuntimeError, match="not this one"):
            make()
    assert heard == ["+bad1", "-bad1", "+bad2", "-bad2", "+bad3", "-bad3"]
    assert w.db.rows("SELECT id FROM session") == [("parent",)]
    derived = ("search", "_store", "_deleted")  # the index, and what is kept of sessions that went
    assert {k: v for k, v in dump(w.path).items() if not k.startswith(derived)} == {
        k: v for k, v in before.items() if not k.startswith(derived)
    }
    assert [s.id for s in w.sessions] == ["parent"]


@pytest.mark.rule("SE-54")
def test_a_resumed_session_survives_a_veto(w: World, parent: Session) -> None:
    other = w.reopen()

    def veto(session: Session) -> None:
        raise RuntimeError

    other.host.root.on("session/created", veto)
    session = other.sessions.prepare_stored("parent")
    with pytest.raises(RuntimeError):
        other.sessions.publish(session)
    assert other.db.rows("SELECT length FROM session") == [(parent.length,)]
    assert other.db.rows("SELECT * FROM lease") == []


@pytest.mark.rule("SE-54")
def test_removal_during_the_announcement_waits_for_all_observers(w: World) -> None:
    heard: list[str] = []

    def remove(session: Session) -> None:
        w.sessions.dispose(session)
        heard.append("asked")

    w.host.root.on("session/created", remove)
    w.host.root.on("session/created", lambda s: heard.append(f"seen {w.sessions.live('s') is s}"))
    w.host.root.on("session/disposed", lambda s: heard.append("gone"))
    w.session()
    assert heard == ["asked", "seen True", "gone"]
    assert w.sessions.live("s") is None


# ---------------------------------------------------------------------------------------------------------- forks


@pytest.mark.rule("SE-55")
def test_a_child_has_the_events_up_to_the_boundary(w: World, parent: Session) -> None:
    for turn, boundary in enumerate(ends(w, "parent"), 1):
        child = w.sessions.fork("parent", boundary, f"child{turn}")
        assert envelopes(child) == envelopes(parent)[: boundary + 1]
        copied = w.sessions.create(f"copy{turn}", seed=envelopes(child))
        assert child.derive_messages() == copied.derive_messages()
        assert (child.turns, child.length, child.generation) == (copied.turns, copied.length, copied.generation)
        header = dict(child.header)
        header.pop("createdAt")
        assert header == {
            "version": 0,
            "id": f"child{turn}",
            "parentSession": "parent",
            "seedLength": boundary + 1,
            "cwd": "/folder",
        }
        whole_turn(child, f"own {turn}")
        assert child.turns == turn + 1
    assert [row[0] for row in w.db.rows("SELECT id FROM fork ORDER BY id")] == ["child1", "child2", "child3"]


@pytest.mark.rule("SE-55")
def test_the_default_boundary_is_the_last_event(w: World, parent: Session) -> None:
    assert w.sessions.fork(parent).length == parent.length
    start_turn(parent)
    assert code(w.sessions.fork, parent) == "OPEN_TURN"
    assert w.sessions.fork(parent, parent.length - 2, "older").length == parent.length - 1


@pytest.mark.rule("SE-55")
def test_a_child_does_not_change_when_the_parent_goes_on(w: World, parent: Session) -> None:
    child = w.sessions.fork(parent, ends(w, "parent")[0], "child")
    nodes = surface(w.db, "child")
    before = (envelopes(child), messages(w.db, "child"), query.row(w.db, "session_state", session="child"))
    whole_turn(parent, "later")
    start_turn(parent)
    now = surface(w.db, "parent")
    parent.append("user/message", prompt("all"), surface=replace(now[0], now[-1]), sources=sorted(now))
    assert (envelopes(child), messages(w.db, "child"), query.row(w.db, "session_state", session="child")) == before
    # and the other way round: the child replaces what the parent still sees
    kept = surface(w.db, "parent")
    start_turn(child)
    child.append("user/message", prompt("mine"), surface=replace(nodes[0], nodes[-1]), sources=nodes)
    assert surface(w.db, "parent") == kept
    assert len(surface(w.db, "child")) == 1


@pytest.mark.rule("SE-55")
def test_a_fork_of_a_fork_below_its_own_part(w: World, parent: Session) -> None:
    one, two, _ = ends(w, "parent")
    child = w.sessions.fork(parent, two, "child")
    whole_turn(child, "own")
    grandchild = w.sessions.fork(child, one, "grandchild")
    assert envelopes(grandchild) == envelopes(parent)[: one + 1]
    assert grandchild.generation == 0
    assert surface(w.db, "grandchild") == [n for n in surface(w.db, "grandchild") if n <= one]
    assert grandchild.header["parentSession"] == "child"
    later = w.sessions.fork(child, two, "later")
    assert (later.generation, later.derive_messages()) == (1, w.sessions.fork(parent, two, "again").derive_messages())


@pytest.mark.rule("SE-55")
def test_an_empty_session_forks_into_an_empty_one(w: World) -> None:
    empty = w.session("empty", cwd="/folder")
    for source, name in ((empty, "a"), ("empty", "b")):
        child = w.sessions.fork(source, child=name)
        assert (child.length, child.header["seedLength"], child.cwd) == (0, 0, "/folder")
        assert child.header["parentSession"] == "empty"
    assert w.db.rows("SELECT * FROM session") == []
    assert code(w.sessions.fork, empty, 0) == "INVALID_BOUNDARY"


@pytest.mark.parametrize("kind", ["completed", "aborted", "disposed", "rejected", "interrupted", "other"])
@pytest.mark.rule("SE-55")
def test_any_end_of_a_turn_is_a_boundary(w: World, kind: str) -> None:
    s = w.session()
    start_turn(s)
    s.append("turn/end", {"turn": 1, "reason": {"kind": kind}})
    start_turn(s)
    assert w.sessions.fork(s, 1).turns == 1


@pytest.mark.rule("SE-55", "SE-56")
def test_what_is_wrong_is_told_in_order(w: World, parent: Session) -> None:
    fork = w.sessions.fork
    assert code(fork, "nobody", -1, "parent") == "SESSION_ALREADY_EXISTS"
    assert code(fork, "nobody", -1, "child") == "SESSION_NOT_FOUND"
    gone = w.session("gone")
    w.sessions.dispose(gone)
    assert code(fork, gone) == "SESSION_NOT_LIVE"
    for boundary in (-1, parent.length, 1.0, True, "5", 2**70):
        assert code(fork, parent, boundary, "child") == "INVALID_BOUNDARY"
    for boundary in (0, 1, ends(w, "parent")[0] - 1):
        assert code(fork, parent, boundary, "child") == "OPEN_TURN"
    assert w.sessions.live("child") is None
    assert w.db.rows("SELECT id FROM session") == [("parent",)]


@pytest.mark.rule("SE-53", "SE-55")
def test_a_childs_id_is_text(w: World, parent: Session) -> None:
    assert code(w.sessions.fork, parent, None, "") == "HEADER_INVALID"
    assert code(writes.insert_fork, w.db, "c", "parent", parent.length - 1, -5, None) == "HEADER_INVALID"
    assert code(writes.insert_fork, w.db, "c", "parent", parent.length - 1, 5, "here") == "HEADER_INVALID"


# ------------------------------------------------------------------------------------------------ deleting, finding


@pytest.mark.rule("PE-50", "PE-70")
def test_deleting_a_session_deletes_its_events(w: World, parent: Session) -> None:
    other = w.session("other")
    whole_turn(other)
    writes.refresh_search(w.db)
    kept = envelopes(other)
    writes.delete_session(w.db, "parent")
    assert w.db.rows("SELECT DISTINCT session_id FROM event") == [("other",)]
    left = dump(w.path)
    assert (
        {row[0] for row in left["_surface"]}
        == {row[0] for row in left["_session"]}
        == {row[0] for row in left["_lineage"]}
    )
    assert envelopes(other) == kept
    assert code(writes.delete_session, w.db, "parent") == "SESSION_NOT_FOUND"


@pytest.mark.rule("PE-50", "PE-70")
def test_a_session_that_others_read_stays(w: World, parent: Session) -> None:
    child = w.sessions.fork(parent, child="child")
    before = dump(w.path)
    assert code(writes.delete_session, w.db, "parent") == "SESSION_HAS_FORKS"
    assert dump(w.path) == before
    w.sessions.dispose(child)
    writes.delete_session(w.db, "child")
    writes.delete_session(w.db, "parent")
    left = dump(w.path)
    assert [left[t] for t in ("_session", "_event", "_surface", "_lineage")] == [[], [], [], []]


@pytest.mark.rule("PE-72", "PE-73")
def test_a_driven_session_is_not_deleted(w: World, parent: Session) -> None:
    parent.claim("me")
    before = dump(w.path)
    assert code(writes.delete_session, w.db, "parent") == "SESSION_LEASED"
    assert dump(w.path) == before
    parent.release()
    writes.delete_session(w.db, "parent")


def test_a_session_is_found_by_the_beginning_of_its_id(w: World) -> None:
    for name in ("abc1", "abc2", "abd", "a%c"):
        whole_turn(w.session(name))
    assert find_session(w.db, "abd") == "abd"
    assert find_session(w.db, "a%") == "a%c"
    assert find_session(w.db, "abc1") == "abc1"
    for typed in ("abc", "x", ""):
        assert code(find_session, w.db, typed) == "SESSION_NOT_FOUND"


@pytest.mark.rule("PE-45")
def test_a_revision_names_one_state_of_one_log(w: World, parent: Session) -> None:
    def revision() -> Any:
        other = w.reopen()
        row = other.db.row("SELECT store_id, incarnation, revision FROM store, session WHERE id = 'parent'")
        other.db.close()
        return row

    first = revision()
    parent.derive_messages()
    parent.claim("x")
    parent.beat()
    parent.release()
    writes.refresh_search(w.db)
    w.sessions.dispose(parent)
    assert w.sessions.prepare_stored("parent").length == parent.length  # nothing to repair
    assert revision() == first
    again = w.reopen().sessions.prepare_stored
    w.db.rows("DELETE FROM lease")
    session = again("parent")
    start_turn(session)
    second = revision()
    session.release()
    again("parent").release()  # repairs the open turn
    third = revision()
    assert len({first, second, third}) == 3
    writes.delete_session(w.db, "parent")
    whole_turn(w.reopen().session("parent", createdAt=parent.header["createdAt"]))
    assert revision()[1] != first[1]
