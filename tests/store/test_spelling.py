"""How words are spelled for the index, in documents and in queries."""

from __future__ import annotations

import unicodedata

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.store.spelling import name_parts, segment_text, shown_character


def words(text: str) -> list[str]:
    return segment_text(text).split()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("修改youer服务端", ["修", "改", "youer", "服", "务", "端"]),
        ("データ", ["デ", "ー", "タ"]),
        ("검색x", ["검", "색", "x"]),
        ("กินน้ำ", ["ก", "m0e34", "น", "น", "m0e49", "ำ"]),
        ("ກິນ", ["ກ", "m0eb4", "ນ"]),
        ("ភាសា", ["ភ", "m17b6", "ស", "m17b6"]),
        ("မြန်", ["မ", "m103c", "န", "m103a"]),
        ("ok👍🏽", ["ok", "u1f44d"]),
        ("👩\u200d💻", ["u1f469", "\u200d", "u1f4bb"]),
        ("✅", ["u2705"]),
        ("🇹🇭", ["u1f1f9", "u1f1ed"]),
        ("Straße", ["Strasse"]),
        ("ﬁle æther Œuvre", ["file", "aether", "OEuvre"]),
        ("ışık Łódź", ["işik", "Lódź"]),
        ("tiếng Việt", ["tieng", "Viet"]),
        ("ＡＰＩ１", ["API1"]),
        ("main\ue0b0x", ["main\ufffdx"]),
        ("a\0b\ufdd0c", ["a\ufffdb\ufffdc"]),
        ("naïve — “x”", ["naïve", "—", "“x”"]),
    ],
)
def test_words(text: str, wanted: list[str]) -> None:
    assert words(text) == wanted


@pytest.mark.parametrize("text", ["が", "パス", "데이터", "각"])
def test_names_in_pieces_are_put_together(text: str) -> None:
    assert words(unicodedata.normalize("NFD", text)) == words(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("camelCaseName", "camel case name"),
        ("PascalCase", "pascal case"),
        ("HTTPServer", "http server"),
        ("parseHTTPHeader", "parse http header"),
        ("utf8ToString", "utf8 to string"),
        ("getX", "get"),
        ("my_fooBar2", "foo bar2"),
        ("a.fooBar::BazQux(x)", "foo bar baz qux"),
        ("übungsBlatt", "übungs blatt"),
        ("plain snake_case kebab-case UPPER 3FA2B", ""),
        ("修改fooBar的", "foo bar"),
        ("x" * 40 + "Y" * 40 + "z", ""),
        ("fooBar again fooBar", "foo bar"),
    ],
)
def test_parts_of_names(text: str, parts: str) -> None:
    assert name_parts(text) == parts


def test_marks_and_emoji_are_shown_as_themselves() -> None:
    assert shown_character("m0e34") == "\u0e34"
    assert shown_character("u1f600") == "😀"
    for word in ("m0e01", "mango", "u1f3fb", "u0041", "u1f60", "", "m0e345"):
        assert shown_character(word) is None


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_spelling_what_is_spelled_changes_no_word(text: str) -> None:
    assert words(segment_text(text)) == words(text)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_the_words_of_a_text_are_those_of_its_characters_in_a_row(text: str) -> None:
    """Nothing is lost: a piece of a text is found in the text, wherever it is cut between words."""
    db = apsw.Connection(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize = 'unicode61')")
    db.execute("INSERT INTO t VALUES (?)", (segment_text(text),))
    phrase = segment_text(text).replace('"', '""')
    has_words = db.execute("SELECT 1 FROM t WHERE t MATCH ?", (f'"{phrase}"',)).fetchone() is not None
    assert has_words or not any(character.isascii() and character.isalnum() for character in text)
    db.close()
