"""The view `usage`: one figure per step that reported, whatever the provider did, and shared steps told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh import query
from dsh.session.session import Session
from tests.session.kit import ROUTE, World, end_turn, reply, start_step, start_turn, world
from tests.store.test_flat import cost


@pytest.fixture
def w(tmp_path: Path) -> World:
    return world(tmp_path / "u.db")


def used(input: int, output: int = 1, **more: int) -> dict[str, int]:
    return {"inputTokens": input, "outputTokens": output, **more}


def header(session: Session, model: str = "m") -> None:
    session.append("request/header", {"header": {"config": {**ROUTE, "model": model}}, "reason": "change"})


def step(session: Session, *reports: Any, message: Any = None, answered: bool = True, model: str | None = None) -> None:
    """A step of the open turn with usage chunks and an answer, or without."""
    at = start_step(session, session.steps + 1)
    if model is not None:
        header(session, model)
    for report in reports:
        session.append("assistant/chunk", {**at, "chunk": {"type": "usage", "usage": report}})
    if answered:
        reply(session, **({"usage": message} if message is not None else {}))
    session.append("step/end", at)


def rows(w: World, session: str = "s") -> list[tuple[Any, ...]]:
    columns = "turn, step, model, input_tokens, output_tokens, inherited"
    return w.db.rows(f"SELECT {columns} FROM usage WHERE session_id = ? ORDER BY start_seq", (session,))


@pytest.mark.rule("SE-35")
def test_one_figure_a_step(w: World) -> None:
    s = w.session()
    start_turn(s)
    step(s, used(10), message=used(99), model="m")
    step(s, used(1), used(20), message=used(20))  # twice: the last one, as in the message
    step(s, message=used(30))  # only with the message
    step(s)  # nothing at all
    step(s, used(0, 0))  # nothing, and said so
    step(s, used(50), answered=False)  # a failed try
    end_turn(s)
    start_turn(s)
    step(s, used(60), model="n")
    assert [r[:4] for r in rows(w)] == [
        (1, 1, "m", 10),
        (1, 2, "m", 20),
        (1, 3, "m", 30),
        (1, 5, "m", 0),
        (1, 6, "m", 50),
        (2, 1, "n", 60),
    ]


@pytest.mark.rule("SE-35")
def test_every_kind_of_token_and_the_time_of_the_step(w: World) -> None:
    s = w.session()
    start_turn(s)
    step(s, used(1, 2, cacheReadTokens=3, cacheWriteTokens=4, reasoningTokens=5), model="m")
    columns = "provider, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens"
    found = w.db.row(f"SELECT {columns}, started_at, start_seq FROM usage")
    assert found is not None
    assert found[:6] == ("p", 1, 2, 3, 4, 5)
    assert found[6] == s.events()[found[7]]["time"]
    step(s, used(1))
    more = w.db.row("SELECT cache_read_tokens, reasoning_tokens FROM usage WHERE step = 2")
    assert more == (None, None)


def test_an_open_step_counts(w: World) -> None:
    s = w.session()
    start_turn(s)
    at = start_step(s)
    header(s)
    s.append("assistant/chunk", {**at, "chunk": {"type": "usage", "usage": used(7)}})
    assert [r[3] for r in rows(w)] == [7]


def test_a_fork_shows_its_parents_steps_and_sums_count_them_once(w: World) -> None:
    s = w.session()
    start_turn(s)
    step(s, used(10), model="m")
    end_turn(s)
    child = w.sessions.fork(s, child="child")
    start_turn(child)
    step(child, used(20))  # under the header that it inherited
    end_turn(child)
    start_turn(s)
    step(s, used(40), model="n")
    end_turn(s)
    assert rows(w, "child") == [(1, 1, "m", 10, 1, 1), (2, 1, "m", 20, 1, 0)]
    assert rows(w) == [(1, 1, "m", 10, 1, 0), (2, 1, "n", 40, 1, 0)]
    assert w.db.row("SELECT sum(input_tokens) FROM usage WHERE NOT inherited") == (70,)
    assert [(r[1], r[6]) for r in query.rows(w.db, "usage_report", since=None, until=None, session="child")] == [
        ("child", 20.0)
    ]


def test_a_turn_by_model(w: World) -> None:
    s = w.session()
    start_turn(s)
    step(s, used(1), model="m")
    step(s, used(2, 5), model="n")
    step(s, used(4, 5, reasoningTokens=3))
    end_turn(s)
    start_turn(s)
    step(s)
    end_turn(s)
    assert query.rows(w.db, "turn_usage", session="s", turn=1) == [
        ("p", "m", 1, 1, None, None, None),
        ("p", "n", 6, 10, None, None, 3),
    ]
    assert query.rows(w.db, "turn_usage", session="s", turn=2) == []


def test_a_turns_usage_costs_what_the_turn_has(w: World) -> None:
    """However many turns, headers and steps there are before it."""
    s = w.session()

    def grow(turns: int) -> None:
        with w.db.transaction():
            for number in range(turns):
                start_turn(s)
                step(s, used(1), model=f"m{number % 3}")
                step(s, used(1))
                end_turn(s)

    def price() -> int:
        return cost(w.db, lambda: query.rows(w.db, "turn_usage", session="s", turn=s.turns))

    grow(20)
    price()
    short = price()
    grow(400)
    assert price() < short * 1.2 + 20


def test_the_report_costs_the_same_for_each_step(w: World) -> None:
    """No step looks through the headers or steps of the others."""

    def grow(session: Session, turns: int) -> None:
        with w.db.transaction():
            for _ in range(turns):
                start_turn(session)
                step(session, used(1), model="m")
                end_turn(session)

    def price() -> int:
        return cost(w.db, lambda: query.rows(w.db, "usage_report", since=None, until=None, session=None))

    s = w.session()
    grow(s, 50)
    price()
    few = price()
    grow(s, 450)
    assert price() < few * 10 * 1.3


def test_a_sessions_report_costs_the_same_among_many(w: World) -> None:
    def price() -> int:
        return cost(w.db, lambda: query.rows(w.db, "usage_report", since=None, until=None, session="s0"))

    for number in range(60):
        s = w.session(f"s{number}")
        start_turn(s)
        step(s, used(1), model="m")
        end_turn(s)
        if number == 2:
            price()
            few = price()
    assert price() == few
    report = query.rows(w.db, "usage_report", since=None, until=None, session=None)
    assert len(report) == 60
    assert query.rows(w.db, "usage_report", since=None, until=None, session="s0") == report[:1]
