"""The query language: what is typed, and what the index is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.query.words import MAX_TERMS, expression, parse


def asked(text: str, words: list[str] | None = None, tags: list[list[str]] | None = None) -> str:
    return expression(parse(text), lambda prefix, limit: (words or [])[:limit], tags or [])


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("one", '({text parts} : ("one"))'),
        ("one two", '({text parts} : ("one" AND "two"))'),
        ('"one two" three', '({text parts} : ("one two" AND ("three" OR "threes")))'),
        ('"never closed', '({text parts} : ("never closed"))'),
        ("a OR b c", '({text parts} : (("a" OR "b") AND "c"))'),
        ("a OR b OR c", '({text parts} : (("a" OR "b" OR "c")))'),
        ("OR", '({text parts} : ("OR"))'),
        ("a OR", '({text parts} : ("a" AND "OR"))'),
        ("OR a", '({text parts} : ("OR" AND "a"))'),
        ("a OR OR b", '({text parts} : ("a" AND ("OR" OR "b")))'),
        ("a OR -b", '(({text parts} : ("a" AND "OR"))) NOT ({text parts} : ("b"))'),
        ("a -b", '(({text parts} : ("a"))) NOT ({text parts} : ("b"))'),
        ('a -"b c" -d', '(({text parts} : ("a"))) NOT ({text parts} : (("b c" OR "d")))'),
        ("--no-cache", '({text parts} : ("--no-cache"))'),
        ("NOT NEAR(a) text:b", '({text parts} : ("NOT" AND "NEAR(a)" AND "text:b"))'),
        ("修改x", '({text parts} : (" 修  改 x"))'),
        ('say "5\'" big', '({text parts} : ("say" AND "5\'" AND "big"))'),
        ("a NEAR b", '({text parts} : (NEAR("a" "b", 10)))'),
        ("a NEAR/3 b NEAR c d", '({text parts} : (NEAR("a" "b" "c", 10) AND "d"))'),
        ("x OR a NEAR/2 b", '({text parts} : (("x" OR NEAR("a" "b", 2))))'),
        ("co* NEAR b", '({text parts} : (NEAR("co*" * "b", 10)))'),
        ("NEAR b", '({text parts} : (("NEAR" OR "nears") AND "b"))'),
        ("a NEAR", '({text parts} : ("a" AND ("NEAR" OR "nears")))'),
        ("a NEAR -b", '(({text parts} : ("a" AND ("NEAR" OR "nears")))) NOT ({text parts} : ("b"))'),
        ("near", '({text parts} : (("near" OR "nears")))'),
        ("v1.2", '({text parts} : (("v1.2" OR "1.2")))'),
        ("1.2.3", '({text parts} : (("1.2.3" OR "v1.2.3")))'),
        ("fooBar", '({text parts} : (("fooBar" OR "foo bar")))'),
        ("errors", '({text parts} : (("errors" OR "error")))'),
        ("queries", '({text parts} : (("queries" OR "query")))'),
        ("-errors a", '(({text parts} : ("a"))) NOT ({text parts} : ("errors"))'),
    ],
)
def test_expression(typed: str, wanted: str) -> None:
    assert asked(typed) == wanted


def test_a_literal_query_has_no_operators() -> None:
    query = parse('a OR "b c" -d e* errors role:user', lambda name, value: True, literal=True)
    assert expression(query, lambda prefix, limit: ["never"]) == (
        '({text parts} : ("a" AND "OR" AND """b" AND "c""" AND "-d" AND "e*" AND "errors" AND "role:user"))'
    )


def test_filters_are_taken_out_of_the_query() -> None:
    taken: list[tuple[str, str]] = []

    def take(name: str, value: str) -> bool:
        taken.append((name, value))
        return name != "nope"

    query = parse('role:user a nope:x cwd:"/a b" -role:tool "role:user" Role:user b', take)
    assert taken == [("role", "user"), ("nope", "x"), ("cwd", "/a b")]
    assert [term.text for term in query.terms] == ["a", "nope:x", "role:user", "Role:user", "b"]
    assert [term.text for term in query.excluded] == ["role:tool"]
    assert parse("role:user", take).notes == []


def test_a_hexadecimal_beginning_becomes_what_begins_so() -> None:
    assert asked("9f3c2a", ["9f3c2a", "9f3c2abb", "9f3c2ax"]) == '({text parts} : (("9f3c2a" OR "9f3c2abb")))'
    assert asked("facade", ["facades", "facaded"]) == '({text parts} : (("facade" OR "facades")))'
    assert asked("9f3c2", ["9f3c2a"]) == '({text parts} : ("9f3c2"))'


def test_prefix_becomes_the_words_that_begin_so() -> None:
    assert asked("conf*", ["config", "confirm"]) == '({text parts} : (("config" OR "confirm")))'
    assert asked("foo_ba*", ["bar", "baz"]) == '({text parts} : (("foo bar" OR "foo baz")))'
    assert asked("nosuch*") == '({text parts} : ("nosuch"))'
    assert asked("服务*", ["never"]) == '({text parts} : (" 服  务 *"))'


def test_wide_and_short_prefixes_are_told_of() -> None:
    query = parse("se*")
    expression(query, lambda prefix, limit: [f"se{n}" for n in range(limit)])
    assert query.notes == ["se* stands for its 64 most frequent words"]
    short = parse("s*")
    assert [t.prefix for t in short.terms] == [False]
    assert "needs 2 characters" in short.notes[0]


def test_tags_are_clauses_of_their_own() -> None:
    assert asked("a", tags=[["x", "y"], ["z"]]) == '({text parts} : ("a")) AND (tags : ("x" OR "y")) AND (tags : ("z"))'


@pytest.mark.parametrize("typed", ["", "   ", "***", '"', "-", '"-"', "\u200d"])
def test_nothing_to_look_for(typed: str) -> None:
    query = parse(typed)
    assert query.groups == []
    assert "no word" in query.notes[-1]


def test_only_words_to_leave_out() -> None:
    assert parse("-a").notes == ["only words to leave out were given"]


def test_a_word_without_letters_is_left_out_aloud() -> None:
    query = parse("a *** b")
    assert [t.text for t in query.terms] == ["a", "b"]
    assert query.notes == ["*** has no letter or digit and was left out"]


def test_very_many_words_are_cut_aloud() -> None:
    query = parse("w " * (MAX_TERMS + 5))
    assert len(query.terms) == MAX_TERMS
    assert "only the first" in query.notes[0]


@given(st.text(max_size=60))
def test_any_text_parses(typed: str) -> None:
    query = parse(typed)
    if query.groups:
        assert expression(query, lambda prefix, limit: [])
    else:
        assert query.notes
