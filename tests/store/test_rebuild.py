"""Making what is derived anew gives what the triggers have kept (PE-79, SE-17, SQ-73)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dsh import query
from dsh.query.check import check
from dsh.store import writes
from dsh.store.database import Database
from tests.session.kit import (
    World,
    call,
    code,
    damage,
    dump,
    end_turn,
    prompt,
    raw,
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

INDEX = ("search_data", "search_idx")  # how the words are laid out follows from what was indexed together


def varied(path: Path, seed: int = 1) -> World:
    """Sessions with replacements before and after forks, forks of forks, below their own part, and open turns."""
    w = world(path)
    chance = random.Random(seed)
    s = w.session("s", cwd="/folder")
    for number in range(4):
        whole_turn(s, f"prompt {number}", calls=number % 3)
    compact(w, s, chance)
    child = w.sessions.fork(s, child="child")
    compact(w, child, chance)
    whole_turn(child, "of the child", calls=1)
    compact(w, child, chance)
    grandchild = w.sessions.fork(child, child="grandchild")
    compact(w, grandchild, chance)
    ends = [seq for (seq,) in w.db.rows("SELECT end_seq FROM turn WHERE session_id = 's' ORDER BY 1")]
    early = w.sessions.fork(child, ends[1], child="early")
    start_turn(early)
    start_step(early)
    reply(early, call("a"), call("b"))
    tool_call(early, "a")
    early.append("tool/result", result(early, "a"), surface="append")
    compact(w, s, chance)
    start_turn(s)
    start_step(s)
    start_turn(w.session("begun"))
    w.sessions.fork(grandchild, child="untouched")
    whole_turn(w.session("other"), "中文 camelCase words")
    writes.refresh_search(w.db)
    return w


def compact(w: World, session: Any, chance: random.Random) -> None:
    """A turn that puts one message in the place of some neighbours."""
    start_turn(session)
    nodes = surface(w.db, session.id)
    low = chance.randrange(len(nodes) - 1)
    high = chance.randrange(low, len(nodes))
    session.append(
        "user/message", prompt("sum"), surface=replace(nodes[low], nodes[high]), sources=nodes[low : high + 1]
    )
    end_turn(session)


def rebuild(db: Database) -> None:
    for (name,) in query.rows(db, "session_parents_first"):
        writes.rebuild_session(db, name)
    list(writes.rebuild_search(db))


def kept(path: Path) -> dict[str, Any]:
    """Every row but the index's own, and the index by its words."""
    found: dict[str, Any] = {name: rows for name, rows in dump(path).items() if name not in INDEX}
    with raw(path) as db:
        found["words"] = list(db.execute("SELECT * FROM search_word ORDER BY term"))
    return found


@pytest.mark.rule("PE-79", "SE-17", "SQ-73")
@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_same_row_for_row(tmp_path: Path, seed: int) -> None:
    w = varied(tmp_path / "x.db", seed)
    before = kept(w.path)
    assert len(before["_surface"]) > 20
    rebuild(w.db)
    assert kept(w.path) == before
    assert writes.check_search(w.db) is None
    w.db.close()


@pytest.mark.rule("PE-79", "SE-17", "SQ-73")
def test_what_was_damaged_is_put_right(tmp_path: Path) -> None:
    w = varied(tmp_path / "x.db")
    before = kept(w.path)
    damage(
        w.path,
        "DELETE FROM _surface WHERE seq % 3 = 0",
        "UPDATE _surface SET died = NULL",
        "UPDATE _surface SET event = 1",
        "UPDATE _session SET generation = 77, turns = 9, steps = 5, open_turn = 3, open_step = 2, updated_at = 1",
        "UPDATE _store SET indexed = 3",
    )
    assert {v.session for v in check(w.db)} == {name for (name,) in query.rows(w.db, "session_names", session=None)}
    rebuild(w.db)
    assert kept(w.path) == before
    assert check(w.db) == []
    w.db.close()


@pytest.mark.rule("PE-79")
def test_events_that_give_no_surface_change_nothing(tmp_path: Path) -> None:
    w = varied(tmp_path / "x.db")
    damage(
        w.path, 'UPDATE _event SET op = \'{"op":"replace","start":99,"end":99}\' WHERE op LIKE \'{%\' AND session = 1'
    )
    before = kept(w.path)
    assert code(writes.rebuild_session, w.db, "s") == "SURFACE_INVALID"
    assert code(writes.rebuild_session, w.db, "nobody") == "SESSION_NOT_FOUND"
    assert kept(w.path) == before
    w.db.close()


@pytest.mark.rule("PE-79")
def test_the_index_grows_again_in_pieces_that_others_can_write_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = varied(tmp_path / "x.db")
    monkeypatch.setattr(writes, "_INDEX_EVENTS", 10)
    other = world(w.path)
    session = other.session("written meanwhile")
    for number, left in enumerate(writes.rebuild_search(w.db)):
        whole_turn(session, f"meanwhile {number}") if number < 3 else None
        assert left >= 0
    assert number > 5
    assert writes.check_search(w.db) is None
    assert len(w.db.rows("SELECT 1 FROM search WHERE search MATCH 'meanwhile'")) == 6
    other.db.close()
    w.db.close()
