"""Titles as they follow from the log: which prompts count, what text becomes as a title, which one is in force."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsh.core.lossless import thaw
from dsh.session import titles
from dsh.session.session import Session
from tests.session.kit import World, code, end_turn, prompt, replace, start_turn, text, whole_turn

USER = {"kind": "user"}
FALLBACK = {"kind": "fallback"}


def titled(session: Session, title: Any, source: Any = FALLBACK, seqs: Any = ()) -> int:
    """Log a title event; its seq."""
    data = {"title": title, "messageSeqs": list(seqs) if isinstance(seqs, tuple) else seqs, "source": source}
    return session.append("session/title", data)["seq"]


# ------------------------------------------------------------------------------------------------- normalised text

# What the patterns are made of, so that sequences are begun, ended, cut and nested often.
PIECES = [
    "\x1b", "]", "[", "\\", "\x07", "\x9d", "\x9b", "m", "3", ";", "_", "@", "~", "?", "M", " ", "\n", "\t", "\r",
    "\x0b", "\x00", "\x1f", "\x7f", "\x85", "\u200b", "\u200e", "\u202e", "\u2060", "\u2065", "\u2066", "\ufeff",
    "\u3000", "\u00a0", "\u2028", "a", "bc", "é", "題", "😀", "e\u0301",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.characters(codec="utf-8")), max_size=40).map("".join)


def by_hand(text: str) -> str:
    """ST-10 as it is written, one character after the other."""
    kept, at = [], 0
    while at < len(text):
        two = text[at : at + 2]
        if two == "\x1b]" or two[0] == "\x9d":
            at += 2 if two[0] == "\x1b" else 1
            while at < len(text) and text[at] != "\x07" and text[at : at + 2] != "\x1b\\":
                at += 1
            at += 2 if text[at : at + 1] == "\x1b" else 1
        elif two == "\x1b[" or two[0] == "\x9b":
            at += 2 if two[0] == "\x1b" else 1
            while at < len(text) and not "@" <= text[at] <= "~":
                at += 1
            at += 1
        elif two[0] == "\x1b" and len(two) == 2 and "@" <= two[1] <= "_":
            at += 2
        else:
            point = ord(two[0])
            control = (point < 0x20 and point not in (0x09, 0x0A, 0x0D)) or 0x7F <= point <= 0x9F
            marks = (
                0x200B,
                0x200E,
                0x200F,
                *range(0x202A, 0x202F),
                *range(0x2060, 0x2065),
                *range(0x2066, 0x2070),
                0xFEFF,
            )
            if not control and point not in marks:
                kept.append(" " if two[0].isspace() else two[0])
            at += 1
    return " ".join(word for word in "".join(kept).split(" ") if word)


@pytest.mark.rule("ST-10")
@settings(deadline=None)
@given(TEXTS)
@example("\x1b]0;a\x1b")
@example("\x1b\x1bM]x")
def test_normalising_follows_the_rule_to_the_letter(given: str) -> None:
    title = titles.normalised(given)
    assert title == by_hand(given)
    assert titles.normalised(title) == title


@pytest.mark.rule("ST-10")
@pytest.mark.parametrize(
    ("given", "title"),
    [
        ("plain words", "plain words"),
        ("  two\r\n\tlines \u3000 here ", "two lines here"),
        ("\x1b]0;window\x07a\x1b]8;;http://x\x1b\\b\x9dosc\x07c", "abc"),
        ("a\x1b]0;never ends", "a"),
        ("\x1b[1;31mred\x1b[0m \x9b2Jx", "red x"),
        ("a\x1bMb\x1b_c", "abc"),
        ("nul\x00bell\x07del\x7fc1\x85", "nulbelldelc1"),
        ("zero\u200bwidth \u202eturned\u202c \u2066x\ufeff\u2060", "zerowidth turned x"),
        ("修改\u200f标题", "修改标题"),
        ("\x1b[31m\u200b \t", ""),
    ],
)
def test_a_title_is_one_harmless_line(given: str, title: str) -> None:
    assert titles.normalised(given) == title


@pytest.mark.rule("ST-11", "ST-14")
@settings(deadline=None)
@given(TEXTS, st.integers(1, 30))
def test_a_cut_is_the_longest_beginning_that_fits(given: str, size: int) -> None:
    title = titles.normalised(given)
    beginnings = [title[:n] for n in range(len(title) + 1) if len(title[:n].encode()) <= size]
    assert titles.cut(title, size) == beginnings[-1].rstrip(" ")


@pytest.mark.rule("ST-11", "ST-14")
def test_a_cut_falls_between_code_points_and_adds_nothing() -> None:
    assert titles.cut("héllo", 2) == "h"
    assert titles.cut("héllo", 3) == "hé"
    assert titles.cut("one two", 4) == "one"
    assert titles.cut("題名", 5) == "題"
    assert titles.cut("😀", 3) == ""


@pytest.mark.rule("ST-12")
@settings(deadline=None)
@given(TEXTS, st.integers(1, 6), st.integers(1, 30), st.integers(1, 5))
def test_a_fallback_is_the_first_words_cut(given: str, words: int, size: int, window: int) -> None:
    whole = titles.cut(" ".join(by_hand(given).split(" ")[:words]), size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(titles, "_WINDOW", window)  # however little is read at first
        assert titles.fallback(given, words, size) == whole


@pytest.mark.parametrize(
    "prompt",
    [
        "use sk-proj-{0} for the service",
        "export OPENAI_API_KEY=sk-proj-{0}",
        "curl -H 'Authorization: Bearer {0}' it",
        "-----BEGIN RSA PRIVATE KEY-----\n{0}\n{0}\n-----END RSA PRIVATE KEY----- is leaked",
        "postgres://me:{0}@example.org/db",
    ],
)
def test_a_secret_is_no_part_of_a_title(prompt: str) -> None:
    key = "Zx9" * 20
    title = titles.fallback(prompt.format(key), 8, 400)
    assert "[redacted:" in title
    assert "Zx9" not in title
    assert "Zx9" not in titles.fallback(prompt.format(key), 5, 40)  # where half of it would fit


@pytest.mark.rule("ST-12", "ST-14")
def test_fallbacks() -> None:
    assert titles.fallback("one  two\nthree four five six", 5, 40) == "one two three four five"
    assert (
        titles.fallback("incomprehensibilities of electroencephalographs", 5, 40)
        == "incomprehensibilities of electroencephal"
    )
    assert titles.fallback("请解释一下传输控制协议和用户数据报协议", 5, 40) == "请解释一下传输控制协议和用"
    assert titles.fallback("題", 5, 2) == ""
    assert titles.fallback("\x1b]" + "x" * 100_000 + "\x07the words", 5, 40) == "the words"


# ------------------------------------------------------------------------------------------------ what counts


def texts(w: World, session: str = "s") -> list[tuple[int, str]]:
    return [(m.seq, m.text) for m in titles.eligible(w.db, session)]


@pytest.mark.rule("ST-1")
def test_only_what_people_ask_counts(w: World) -> None:
    s = w.session()
    start_turn(s)
    for source in ({"kind": "plugin", "plugin": "p"}, {"kind": "goal"}, {"kind": "x"}, USER):
        s.append("user/message", {"content": [text(source["kind"])], "source": source}, surface="append")
    s.append("steering/message", {"content": [text("steered")], "source": USER, "turn": 1}, surface="append")
    s.append("user/message", {"content": [text("no source")]}, surface="append")
    s.append("prompt/blocked", {**prompt("blocked"), "reason": "no"})
    end_turn(s)
    assert texts(w) == [(4, "user")]
    assert [titles.eligible_in(e) for e in s.events() if e["type"].endswith("/message")] == [
        *[None] * 3, (4, "user"), None, None,
    ]  # fmt: skip


@pytest.mark.rule("ST-2", "ST-3")
@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"content": [text("one"), {"type": "image", "text": "no"}, text("two")]}, "one\ntwo"),
        ({"content": [text("baked in"), text("asked")], "envelope": {"displayContent": [text("asked")]}}, "asked"),
        ({"content": [text("asked")], "envelope": {}}, "asked"),
        ({"content": [text("asked")], "envelope": {"displayContent": []}}, None),
        ({"content": [text(" \n"), text("\u200b\x1b[1m")]}, None),
        ({"content": [{"type": "reasoning", "text": "thought"}]}, None),
        ({"content": []}, None),
    ],
)
def test_the_text_is_what_people_are_shown(w: World, data: Any, found: str | None) -> None:
    s = w.session()
    start_turn(s)
    event = s.append("user/message", {**data, "source": USER}, surface="append")
    end_turn(s)
    assert texts(w) == ([] if found is None else [(1, found)])
    message = titles.eligible_in(event)
    assert (None if message is None else message.text) == found


@pytest.mark.rule("ST-4")
def test_what_was_replaced_counts_still(w: World) -> None:
    s = w.session()
    for words in ("first", "second"):
        whole_turn(s, words)
    before = texts(w)
    shown = [e["seq"] for e in s.events() if "surfaceOp" in e]
    start_turn(s)
    summary = {"content": [text("summary")], "source": {"kind": "plugin", "plugin": "p"}}
    s.append("user/message", summary, surface=replace(shown[0], shown[-1]), sources=shown)
    end_turn(s)
    assert len(s.derive_messages()) == 1
    assert texts(w) == before
    assert [t for _, t in before] == ["first", "second"]


def test_a_log_of_many_prompts_is_read_in_pages(w: World) -> None:
    s = w.session()
    start_turn(s)
    for number in range(250):
        s.append("user/message", prompt(f"n{number}" if number else " "), surface="append")
    end_turn(s)
    assert [t for _, t in texts(w)] == [f"n{number}" for number in range(1, 250)]
    assert [m.seq for m in titles.eligible(w.db, "s", last=3)] == [2, 3]


# -------------------------------------------------------------------------------------------- the title in force


@pytest.mark.rule("ST-73")
def test_the_newest_event_is_the_title(w: World) -> None:
    s = w.session()
    whole_turn(s)
    assert titles.newest(w.db, "s") is None
    start_turn(s)
    titled(s, "first words", seqs=[1])
    seq = titled(s, "a title", {"kind": "provider", "provider": "x"}, [1, 4])
    end_turn(s)
    w.sessions.dispose(s)  # closed, or of another process
    found = titles.newest(w.reopen().db, "s")
    assert found is not None
    assert (found.title, found.message_seqs, found.event_seq) == ("a title", (1, 4), seq)
    assert found.source == {"kind": "provider", "provider": "x"}
    assert found.updated_at == s.events(seq, seq)[0]["time"]
    sql = "SELECT title, source ->> 'kind', event_seq, updated_at FROM session_title WHERE session_id = 's'"
    assert w.db.rows(sql) == [("a title", "provider", seq, found.updated_at)]
    assert titles.newest(w.db, "nobody") is None


@pytest.mark.rule("ST-73")
def test_what_is_no_title_does_not_count(w: World) -> None:
    s = w.session()
    start_turn(s)
    titled(s, "good", source="odd", seqs=["x", 1, True, 2])
    for bad in (7, None, ["x"], {"title": "x"}):
        titled(s, bad)
    end_turn(s)
    found = titles.newest(w.db, "s")
    assert found is not None
    assert (found.title, found.source, found.message_seqs, found.by_person) == ("good", {}, (1, 2), False)
    start_turn(s)
    titled(s, "mine", USER, 5)
    end_turn(s)
    mine = titles.newest(w.db, "s")
    assert mine is not None
    assert (mine.title, mine.message_seqs, mine.by_person) == ("mine", (), True)


@pytest.mark.rule("ST-70")
def test_a_fork_begins_with_its_parents_title(w: World) -> None:
    s = w.session()
    start_turn(s)
    s.append("user/message", prompt("asked"), surface="append")
    titled(s, "asked", seqs=[1])
    end_turn(s)
    boundary = s.length - 1
    start_turn(s)
    titled(s, "later", USER)
    end_turn(s)
    child = w.sessions.fork(s, boundary, "child")
    assert [thaw(e) for e in child.events()] == [thaw(e) for e in s.events(0, boundary)]
    of_child, of_parent = titles.newest(w.db, "child"), titles.newest(w.db, "s")
    assert (of_child and of_child.title, of_parent and of_parent.title) == ("asked", "later")
    start_turn(child)
    titled(child, "own", USER)
    end_turn(child)
    assert [t and t.title for t in (titles.newest(w.db, "child"), titles.newest(w.db, "s"))] == ["own", "later"]
    assert w.db.rows("SELECT session_id, title FROM title ORDER BY 1") == [("child", "own"), ("s", "later")]
    assert texts(w, "child") == [(1, "asked")]


@pytest.mark.rule("ST-74")
def test_a_persons_title_is_checked() -> None:
    assert titles.given(" My \x1b[1mtitle \ud800") == "My title \ufffd"
    for bad in ("", " \u200b ", "x" * 201):
        assert code(titles.given, bad) == "USAGE"
