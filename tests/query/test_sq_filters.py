"""Clauses of requests, and the literal scan: each against a plain reading of its rule."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.query.service import filters
from dsh.query.service.filters import admits_event, admits_session, canonical, event_filters, session_filters
from dsh.query.service.scan import Pattern, fold
from dsh.query.service.values import SessionRecord
from tests.session.kit import code

IDS, FOLDERS = ["a", "b", "c"], [None, "/x", "/y"]

records = st.builds(
    lambda id_, cwd, parent, at, live, persisted: SessionRecord(
        {
            "version": 0,
            "id": id_,
            "createdAt": at,
            **({"cwd": cwd} if cwd else {}),
            **({"parentSession": parent} if parent else {}),
        },
        live,
        persisted or not live,
    ),
    st.sampled_from(IDS),
    st.sampled_from(FOLDERS),
    st.sampled_from([None, "a", "z"]),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
)
numbers = st.integers(-3, 12) | st.floats(-3, 12)


@st.composite
def ranges(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    bounds = sorted(draw(st.lists(numbers, min_size=2, max_size=2)))
    named = draw(st.sampled_from([{}, {"from": bounds[0]}, {"to": bounds[1]}, {"from": bounds[0], "to": bounds[1]}]))
    return {"kind": kind, **named}


def lists(kind: str, values: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"kind": st.just(kind), "values": st.lists(st.sampled_from(values), max_size=3)})


session_clauses = st.lists(
    lists("id", IDS)
    | lists("cwd", FOLDERS)
    | lists("parent", [None, "a", "z"])
    | lists("availability", ["live", "persisted"])
    | ranges("created-at"),
    max_size=4,
)
event_clauses = st.lists(ranges("seq") | ranges("time") | lists("type", ["x", "y"]), max_size=4)


def fits(clause: dict[str, Any], *values: Any) -> bool:
    """What a clause says, read aloud: one of its values, or within both bounds."""
    if "values" in clause:
        return any(value in clause["values"] for value in values)
    return clause.get("from", -math.inf) <= values[0] <= clause.get("to", math.inf)


@pytest.mark.rule("SQ-30", "SQ-31")
@settings(deadline=None)
@given(session_clauses, records)
def test_a_session_fits_when_every_clause_admits_it(clauses: list[dict[str, Any]], record: SessionRecord) -> None:
    header = record.header
    facts: dict[str, tuple[Any, ...]] = {
        "id": (header["id"],),
        "cwd": (header.get("cwd"),),
        "parent": (header.get("parentSession"),),
        "created-at": (header["createdAt"],),
        "availability": tuple(n for n, there in (("live", record.live), ("persisted", record.persisted)) if there),
    }
    wanted = all(fits(clause, *facts[clause["kind"]]) for clause in clauses)
    assert admits_session(session_filters(clauses), record) == wanted


@pytest.mark.rule("SQ-30", "SQ-31")
@settings(deadline=None)
@given(event_clauses, st.integers(0, 9), st.sampled_from(["x", "y", "z"]), st.integers(0, 9))
def test_an_event_fits_when_every_clause_admits_it(
    clauses: list[dict[str, Any]], seq: int, type_: str, time: int
) -> None:
    facts = {"seq": seq, "type": type_, "time": time}
    wanted = all(fits(clause, facts[clause["kind"]]) for clause in clauses)
    assert admits_event(event_filters(clauses), seq, type_, time) == wanted


@pytest.mark.rule("SQ-32")
@pytest.mark.parametrize(
    "given",
    [
        None, "id", {"kind": "id", "values": []}, [None], ["id"], [{}], [{"kind": None}], [{"kind": "seq"}],
        [{"kind": ["id"]}], [{"kind": "id"}], [{"kind": "id", "values": "a"}], [{"kind": "id", "values": [1]}],
        [{"kind": "id", "values": [None]}], [{"kind": "cwd", "values": [1]}], [{"kind": "parent", "values": [True]}],
        [{"kind": "availability", "values": ["gone"]}], [{"kind": "availability", "values": [None]}],
        [{"kind": "created-at", "from": "1"}], [{"kind": "created-at", "from": None}],
        [{"kind": "created-at", "to": True}], [{"kind": "created-at", "to": math.inf}],
        [{"kind": "created-at", "from": math.nan}], [{"kind": "created-at", "from": 2, "to": 1}],
        [{"kind": "created-at", "from": 10**400, "to": 1}],
    ],
)  # fmt: skip
def test_what_is_no_clause_about_sessions(given: Any) -> None:
    assert code(session_filters, given) == "SESSION_QUERY_INVALID_FILTER"


@pytest.mark.rule("SQ-32")
@pytest.mark.parametrize(
    "given",
    [
        [{"kind": "id", "values": []}], [{"kind": "type", "values": [None]}], [{"kind": "type"}],
        [{"kind": "surface", "values": ["gone"]}], [{"kind": "seq", "from": True}], [{"kind": "time", "from": [1]}],
        [{"kind": "seq", "from": 1, "to": 0.5}], [{"kind": "text"}], [{"kind": "text", "text": None}],
        [{"kind": "text", "text": ""}], [{"kind": "text", "text": " \u3000\n"}], [{"kind": "text", "text": ["a"]}],
    ],
)  # fmt: skip
def test_what_is_no_clause_about_events(given: Any) -> None:
    assert code(event_filters, given, scan=True) == "SESSION_QUERY_INVALID_FILTER"


@pytest.mark.rule("SQ-32")
def test_what_is_legal_all_the_same() -> None:
    session_filters(
        [{"kind": "created-at", "from": -1.5, "to": 10**400}, {"kind": "cwd", "values": [None, "anything"]}]
    )
    event_filters([{"kind": "seq", "from": -0.5}, {"kind": "type", "values": ["no such", ""]}])
    session_filters(())


@pytest.mark.rule("SQ-53")
def test_a_search_takes_no_text_clause() -> None:
    assert code(event_filters, [{"kind": "text", "text": "a"}]) == "SESSION_QUERY_INVALID_FILTER"


@pytest.mark.rule("SQ-33")
def test_clauses_are_copied() -> None:
    values = ["a"]
    given = [{"kind": "id", "values": values}]
    made = session_filters(given)
    values.append("b")
    given.append({"kind": "id", "values": []})
    assert made[0].values == ("a",)
    assert len(made) == 1


@pytest.mark.rule("SQ-62")
def test_how_much_a_search_may_ask() -> None:
    one = {"kind": "type", "values": []}
    both = {"kind": "seq", "from": 0, "to": 1}
    free = [{"kind": "availability", "values": ["live", "persisted", "live"]}, {"kind": "time"}]
    for scope, most in (("sessions", 14), ("events", 13)):
        many = event_filters([one] * (most - 2) + [both])
        filters.check_size(scope, session_filters(free[:1]), many, event_filters(free[1:]))
        for more in ([one], [{"kind": "time", "to": 0}], [{"kind": "surface", "values": ["current"]}]):
            assert code(filters.check_size, scope, many, event_filters(more)) == "SESSION_QUERY_INVALID_FILTER"
    partly = session_filters([{"kind": "availability", "values": ["live"]}] * 15)
    assert code(filters.check_size, "sessions", partly) == "SESSION_QUERY_INVALID_FILTER"
    full = session_filters([{"kind": "id", "values": ["a"] * 32_766}])
    filters.check_size("sessions", full)
    assert code(filters.check_size, "sessions", full, event_filters([{"kind": "seq", "from": 1}]))
    assert code(filters.check_size, "sessions", session_filters([{"kind": "id", "values": ["a"] * 125_000}]))


@pytest.mark.rule("SQ-58")
@settings(deadline=None)
@given(session_clauses, st.randoms(use_true_random=False))
def test_the_order_of_clauses_and_values_says_nothing(clauses: list[dict[str, Any]], chance: Any) -> None:
    def shuffled(values: list[Any]) -> list[Any]:
        return chance.sample(values, len(values))

    other = [{**c, "values": shuffled(c["values"])} if "values" in c else c for c in shuffled(clauses)]
    assert canonical(session_filters(clauses)) == canonical(session_filters(other))


@pytest.mark.rule("SQ-58")
def test_repeated_values_and_bounds_say_something() -> None:
    def same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
        return canonical(event_filters(a)) == canonical(event_filters(b))

    assert not same([{"kind": "type", "values": ["x"]}], [{"kind": "type", "values": ["x", "x"]}])
    assert not same([{"kind": "seq", "from": 1}], [{"kind": "seq", "to": 1}])
    assert not same([{"kind": "seq", "from": 1}], [{"kind": "time", "from": 1}])
    assert not same([], [{"kind": "seq"}])
    assert same([{"kind": "seq", "from": 1}], [{"kind": "seq", "from": 1.0}])


# -------------------------------------------------------------------------------------------------------------- scan

WS = "\t\n\v\f\r \u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"
letters = st.text("aAbBéÉſkK\u212aßẞİıi.*\\[\x1c\x85" + WS[:8] + "\u3000\ufeff", max_size=12)


def simply(text: str) -> str:
    """Simple case folding, from the table of full folding: what folds to several characters goes by its lower case, if
    that is one."""
    return "".join(min((c.casefold(), c.lower(), c), key=lambda f: len(f) != 1) for c in text)


@pytest.mark.rule("SQ-35")
@settings(deadline=None)
@given(letters, letters)
def test_a_scan_finds_what_its_words_spell(text: str, wanted: str) -> None:
    pattern = Pattern.of(wanted)
    words = [word for word in re.split(f"[{WS}]+", wanted) if word]
    if not words:
        assert pattern is None
        return
    assert pattern is not None
    squeezed = re.sub(f"[{WS}]+", " ", simply(text))
    assert pattern.found_in(text) == (" ".join(map(simply, words)) in squeezed)


@pytest.mark.rule("SQ-35")
@pytest.mark.parametrize(
    ("wanted", "text", "found"),
    [
        ("ai", "BRAID", True), ("  ai\n", "a i", False), ("a  b", "xA\u3000\tbx", True), ("a b", "ab", False),
        ("cafe", "café", False), ("É", "é", True), ("a.c", "abc", False), ("a.c", "A.C", True), ("K", "\u212a", True),
        ("ẞ", "ß", True), ("ss", "ß", False), ("i", "İ", False), ("i", "ı", False), ("a\x1cb", "a b", False),
        ("a b", "a\x85b", False), ("ς", "Σ", True),
    ],
)  # fmt: skip
def test_examples_of_a_scan(wanted: str, text: str, found: bool) -> None:
    pattern = Pattern.of(wanted)
    assert pattern is not None
    assert pattern.found_in(text) is found


@settings(deadline=None)
@given(st.text())
def test_folding_keeps_places(text: str) -> None:
    assert len(fold(text)) == len(text)
