"""What is on the path of every step costs the same however long the log is.

Measured in steps of SQLite's virtual machine, which are the same on every machine and under every load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from dsh import query
from dsh.session.session import Session
from dsh.store import rewriting, writes
from dsh.store.database import Database
from tests.session.kit import World, call, end_turn, prompt, reply, start_step, start_turn, tool_call, whole_turn, world

ALL = {"cwd": None, "depth": 0, "hidden": 0, "ids": None}


@contextmanager
def counting(db: Database) -> Iterator[list[int]]:
    steps = [0]

    def note(event: dict[str, Any]) -> None:
        if "'search_" not in str(event["sql"]):  # FTS5's own statements are counted since they were prepared
            steps[0] += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    db._db.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
    try:
        yield steps
    finally:
        db._db.trace_v2(0, None)


def cost(db: Database, action: Callable[[], Any]) -> int:
    with counting(db) as steps:
        action()
    return steps[0]


def more(w: World, session: Session, turns: int) -> None:
    with w.db.transaction():
        for _ in range(turns):
            whole_turn(session, "words", calls=1)


def measure(w: World, s: Session) -> dict[str, int]:
    """The virtual machine's steps of each operation, at the present length."""
    s.derive_messages()
    writes.refresh_search(w.db)
    found: dict[str, int] = {}
    whole_turn(s)
    found["a turn of 8 appends"] = cost(w.db, lambda: whole_turn(s))
    found["derive what two turns added"] = cost(w.db, s.derive_messages)
    found["index what two turns added"] = cost(w.db, lambda: writes.refresh_search(w.db))
    for name in ("header_in_force", "last_event_time", "session_state"):
        found[name] = cost(w.db, partial(query.row, w.db, name, session="s"))
    found["turn_usage"] = cost(w.db, lambda: query.row(w.db, "turn_usage", session="s", turn=s.turns))
    tail = {"low": s.length - 20, "high": s.length - 1}
    found["the last 20 events"] = cost(w.db, lambda: query.rows(w.db, "events_between", session="s", **tail))
    found["the first 20 events"] = cost(w.db, lambda: query.rows(w.db, "events_between", session="s", low=0, high=19))
    found["session_list"] = cost(w.db, lambda: query.rows(w.db, "session_list", **ALL, limit=20))
    start_turn(s)
    node = s.append("user/message", prompt("x"), surface="append")["seq"]
    op = {"op": "replace", "start": node, "end": node}
    found["a replacement"] = cost(w.db, lambda: s.append("user/message", prompt("y"), surface=op, sources=[node]))
    start_step(s)
    reply(s, call("a"), call("b"))
    tool_call(s, "a")
    found["unanswered_calls"] = cost(w.db, lambda: query.rows(w.db, "unanswered_calls", session="s"))
    assert len(query.rows(w.db, "unanswered_calls", session="s")) == 2
    s.append("step/end", {"turn": s.turns, "step": 1})
    end_turn(s)
    return found


def test_nothing_on_the_way_of_a_step_grows_with_the_log(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    s = w.session("s")
    more(w, s, 20)
    measure(w, s)  # everything is prepared and cached
    short = measure(w, s)
    more(w, s, 380)
    long = measure(w, s)
    grown = {name: (short[name], long[name]) for name in short if long[name] > short[name] * 1.2 + 20}
    assert grown == {}
    assert min(short.values()) > 0
    w.db.close()


def test_listing_looks_up_only_what_it_shows(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    with w.db.transaction():
        for number in range(300):
            whole_turn(w.session(f"s{number:03}", cwd=f"/{number % 3}"))
    few = cost(w.db, lambda: query.rows(w.db, "session_list", **ALL, limit=10))
    many = cost(w.db, lambda: query.rows(w.db, "session_list", **ALL, limit=300))
    assert few < many / 4
    w.db.close()


def test_redacting_many_events_reads_their_session_once(tmp_path: Path) -> None:
    w = world(tmp_path / "x.db")
    s = w.session("s")
    more(w, s, 200)

    def price(count: int) -> int:
        rows = w.db.rows(
            "SELECT seq, data FROM event WHERE session_id = 's' AND type = 'user/message' LIMIT ?", (count,)
        )
        changes = [(seq, data.replace("words", "[redacted]")) for seq, data in rows]
        return cost(w.db, lambda: rewriting.redact_events(w.db, "s", changes))

    s.release()
    price(1)
    one = price(1)
    assert price(21) - one < 20 * one / 2
    w.db.close()
