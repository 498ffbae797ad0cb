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
        ("one", '(text : ("one"))'),
        ("one two", '(text : ("one" AND "two"))'),
        ('"one two" three', '(text : ("one two" AND "three"))'),
        ('"never closed', '(text : ("never closed"))'),
        ("a OR b c", '(text : (("a" OR "b") AND "c"))'),
        ("a OR b OR c", '(text : (("a" OR "b" OR "c")))'),
        ("OR", '(text : ("OR"))'),
        ("a OR", '(text : ("a" AND "OR"))'),
        ("OR a", '(text : ("OR" AND "a"))'),
        ("a OR OR b", '(text : ("a" AND ("OR" OR "b")))'),
        ("a OR -b", '((text : ("a" AND "OR"))) NOT (text : ("b"))'),
        ("a -b", '((text : ("a"))) NOT (text : ("b"))'),
        ('a -"b c" -d', '((text : ("a"))) NOT (text : (("b c" OR "d")))'),
        ("--no-cache", '(text : ("--no-cache"))'),
        ("NOT NEAR(a) text:b", '(text : ("NOT" AND "NEAR(a)" AND "text:b"))'),
        ("修改x", '(text : (" 修  改 x"))'),
        ('say "5\'" tall', '(text : ("say" AND "5\'" AND "tall"))'),
    ],
)
def test_expression(typed: str, wanted: str) -> None:
    assert asked(typed) == wanted


def test_prefix_becomes_the_words_that_begin_so() -> None:
    assert asked("conf*", ["config", "confirm"]) == '(text : (("config" OR "confirm")))'
    assert asked("foo_ba*", ["bar", "baz"]) == '(text : (("foo bar" OR "foo baz")))'
    assert asked("nosuch*") == '(text : ("nosuch"))'
    assert asked("服务*", ["never"]) == '(text : (" 服  务 *"))'


def test_wide_and_short_prefixes_are_told_of() -> None:
    query = parse("se*")
    expression(query, lambda prefix, limit: [f"se{n}" for n in range(limit)])
    assert query.notes == ["se* stands for its 64 most frequent words"]
    short = parse("s*")
    assert [t.prefix for t in short.terms] == [False]
    assert "needs 2 characters" in short.notes[0]


def test_tags_are_clauses_of_their_own() -> None:
    assert asked("a", tags=[["x", "y"], ["z"]]) == '(text : ("a")) AND (tags : ("x" OR "y")) AND (tags : ("z"))'


@pytest.mark.parametrize("typed", ["", "   ", "***", '"', "-", '"-"', "🐻"])
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
