"""Snippets: where the match stands in the real text, and what is cut around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.query.folding import fold
from dsh.query.snippet import Snippet, snippet, tidy, window
from dsh.query.words import parse


def cut(text: str, query: str, limit: int = 240) -> Snippet:
    return snippet(text, parse(query).terms, limit)


def marked(text: str, query: str, limit: int = 240) -> list[str]:
    found = cut(text, query, limit)
    return [found.text[start:end] for start, end in found.matches]


@pytest.mark.rule("SQ-57")
@pytest.mark.parametrize(
    ("text", "first", "limit", "wanted"),
    [
        ("abcdefghij", 2, 5, "…bcd…"),
        ("abcdefghij", 2, 3, "…c…"),
        ("abcdef", 5, 2, "…f"),
        ("abcdef", 5, 5, "…cdef"),
        ("abcdef", 0, 5, "abcd…"),
        ("abcdef", 3, 6, "abcdef"),
        ("abcdef", 3, 1, "…"),
    ],
)
def test_window_of_the_specification(text: str, first: int, limit: int, wanted: str) -> None:
    start, end, before, after = window(len(text), first, limit)
    assert "…" * before + text[start:end] + "…" * after == wanted


@pytest.mark.rule("SQ-57")
@given(st.integers(1, 60), st.integers(0, 59), st.integers(1, 30))
def test_window_never_exceeds_the_limit_and_holds_the_match(length: int, first: int, limit: int) -> None:
    first = min(first, length - 1)
    start, end, before, after = window(length, first, limit)
    assert 0 <= start <= end <= length
    assert (end - start) + before + after <= max(limit, 1)
    assert before == (start > 0) or limit == 1
    if limit > 1:
        assert start <= first < end
        assert after == (end < length) or limit == 2


@pytest.mark.rule("SQ-57")
def test_whitespace_is_one_space() -> None:
    assert tidy("  a\n\tb\u3000c\ufeff ") == "a b c"
    assert tidy("a\x1cb") == "a\x1cb"  # not whitespace here, though it is to Python


def test_case_and_diacritics_do_not_count() -> None:
    assert marked("Le CAFÉ noir", "cafe") == ["CAFÉ"]
    assert marked("decomposed cafe\u0301 here", "café") == ["cafe\u0301"]
    assert marked("plain cafe", "CAFÉ") == ["cafe"]


def test_whole_words_before_parts() -> None:
    assert marked("concatenate the cat", "cat") == ["cat"]
    assert cut("concatenate the cat", "cat").matches == ((16, 19),)
    assert marked("see camelCaseName there", "case") == ["Case"]
    assert marked("configuration of conf", "conf*") == ["conf", "conf"]


def test_phrases_may_be_spread_by_punctuation() -> None:
    assert marked("a foo_bar b", '"foo bar"') == ["foo_bar"]
    assert marked("a foo -- bar b", '"foo bar"') == ["foo -- bar"]
    assert marked("foo baz bar", '"foo bar"') == []


def test_chinese_is_found_inside_a_run() -> None:
    text = "修改youer服务端的计划"
    assert marked(text, "服务端") == ["服务端"]
    assert marked(text, "youer") == ["youer"]
    assert marked(text, "改") == ["改"]
    assert marked(text, "youer 服务端 修改") == ["修改youer服务端"]
    found = cut("字" * 300 + text + "字" * 300, "服务", 20)
    assert len(found.text) == 20
    assert "服务端" in found.text


@given(st.text(alphabet="aé修B\u0301 _-\nß가İ🐻", max_size=80), st.integers(2, 20))
def test_cutting_keeps_to_the_limit_and_marks_what_it_found(text: str, limit: int) -> None:
    found = cut(text, "a 修", limit)
    assert len(found.text) <= limit
    assert all(0 <= start < end <= len(found.text) for start, end in found.matches)
    assert "\n" not in found.text


@given(st.text())
def test_folding_keeps_every_position(text: str) -> None:
    assert len(fold(text)) == len(text)
