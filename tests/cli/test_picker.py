"""The interactive search without a terminal: keys from bytes, the line, the state, the frames."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.cli import output, searcher
from dsh.cli.drawing import Block, Drawing, Preview, wrapped
from dsh.cli.keys import Key, Keys, Line
from dsh.cli.output import width_of
from dsh.cli.picker import VERBS, Choice, Item, Picker, Scope, Wanted
from dsh.cli.searcher import matcher, typed
from dsh.core.errors import StoreError
from dsh.query.search import Filters
from tests.history import History

NAMES = [
    "up", "down", "left", "right", "home", "end", "page-up", "page-down", "ctrl-home", "ctrl-end", "tab", "shift-tab",
    "enter", "escape", "backspace", "delete", "ctrl-p", "ctrl-n", "ctrl-u", "ctrl-w", "ctrl-k", "ctrl-a", "ctrl-e",
    "ctrl-b", "ctrl-f", "ctrl-d", "ctrl-g", "alt-b", "alt-f", "alt-d", "alt-backspace", "ctrl-left", "ctrl-right",
    "shift-up", "shift-down", "f13", *VERBS,
]  # fmt: skip
# Narrow, wide, marks, joiners, what is not printable.
TEXTS = st.text(st.sampled_from('ab -"é€한中文🎉👩‍\u0301\ufe0f\t\n\x1b\x07\u202e'), max_size=12)
KEYS = st.lists(st.builds(Key, st.sampled_from(NAMES)) | st.builds(lambda t: Key("text", output.printable(t)), TEXTS))


def item(number: int, **more: object) -> Item:
    return Item(**{"session_id": f"s{number}", "seq": None, "time": 0, "title": f"title {number}", "cwd": "/a", **more})  # type: ignore[arg-type]


def pressed(picker: Picker, *names: str) -> Choice | int | None:
    outcome = None
    for name in names:
        outcome = picker.press(Key(name) if name in NAMES or name == "ctrl-c" else Key("text", name))
    return outcome


def filled(count: int = 3, **options: object) -> Picker:
    picker = Picker(**options)  # type: ignore[arg-type]
    picker.take(picker.wanted, [item(n) for n in range(count)])
    picker.fit(10)
    return picker


# ------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x1b[A", "up"), (b"\x1bOA", "up"), (b"\x1b[1;5C", "ctrl-right"), (b"\x1b[1;3D", "alt-left"),
        (b"\x1b\x1b[D", "alt-left"), (b"\x1b[H", "home"), (b"\x1b[1~", "home"), (b"\x1b[7~", "home"),
        (b"\x1bOF", "end"),
        (b"\x1b[8~", "end"), (b"\x1b[3~", "delete"), (b"\x1b[5~", "page-up"), (b"\x1b[6~", "page-down"),
        (b"\x1b[1;5H", "ctrl-home"), (b"\x1b[Z", "shift-tab"), (b"\t", "tab"), (b"\r", "enter"), (b"\n", "enter"),
        (b"\x7f", "backspace"), (b"\x08", "backspace"), (b"\x10", "ctrl-p"), (b"\x1bb", "alt-b"),
        (b"\x1b\x7f", "alt-backspace"), (b"\x03", "ctrl-c"),
    ],
)  # fmt: skip
def test_keys_of_terminals(data: bytes, name: str) -> None:
    assert Keys().feed(data) == [Key(name)]
    keys = Keys()  # one byte at a time, as over a slow line
    assert [key for byte in data for key in keys.feed(bytes([byte]))] == [Key(name)]


def test_an_escape_alone_is_one_when_nothing_follows() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.waiting
    assert keys.flush() == [Key("escape")]
    assert not keys.waiting
    assert keys.feed(b"x\x1b") == [Key("text", "x")]
    assert keys.feed(b"[A") == [Key("up")]


@pytest.mark.parametrize("sequence", [b"\x1b[15~", b"\x1b[1;2R", b"\x1b[?1;2c", b"\x1b[M", b"\x1bOP", b"\x1b[[A"])
def test_sequences_that_mean_nothing_type_nothing(sequence: bytes) -> None:
    assert [key for key in Keys().feed(sequence + b"x") if key.name == "text"] == [Key("text", "x")]


def test_a_paste_is_text_whatever_is_in_it() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b[200~two\nlines\t\x1b[31mred\x03") == []
    assert keys.feed(b"\x1b[201~\r") == [Key("text", "two lines ␛[31mred␃"), Key("enter")]


BYTES = st.lists(
    st.binary(max_size=3)
    | st.sampled_from(
        [b"\x1b", b"[", b"O", b"A", b"1;5C", b"\x1b[200~", b"\x1b[201~", b"\r", "中🎉".encode(), b"\xf0\x9f"]
    ),
    max_size=12,
).map(b"".join)


@given(BYTES, st.lists(st.integers(0, 40), max_size=4))
def test_bytes_may_be_cut_anywhere(data: bytes, cuts: list[int]) -> None:
    whole, pieces = Keys(), Keys()
    expected = whole.feed(data) + whole.flush()
    found: list[Key] = []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        found += pieces.feed(data[start:end])
    found += pieces.flush()

    def joined(keys: list[Key]) -> list[Key]:
        """Typed text comes in pieces of any length."""
        result: list[Key] = []
        for key in keys:
            if key.name == "text" and result and result[-1].name == "text":
                key = Key("text", result.pop().text + key.text)
            result.append(key)
        return result

    assert joined(found) == joined(expected)
    assert all(output.printable(key.text) == key.text for key in found)


def edited(text: str, *names: str) -> tuple[str, int]:
    line = Line(text)
    for name in names:
        line.edit(Key(name) if name in NAMES else Key("text", name))
    return line.text, line.cursor


def test_editing_a_line() -> None:
    assert edited("one two", "ctrl-w") == ("one ", 4)
    assert edited("one two", "ctrl-u") == ("", 0)
    assert edited("one two", "ctrl-a", "alt-f", "ctrl-k", "!") == ("one!", 4)
    assert edited("one two", "ctrl-left", "x") == ("one xtwo", 5)
    assert edited("one two", "home", "delete", "right", "backspace") == ("e two", 0)
    assert edited("ae\u0301", "backspace") == ("a", 1)  # a letter goes with the marks on it
    assert edited("e\u0301a", "home", "right", "x") == ("e\u0301xa", 3)
    assert edited("a/b c", "alt-backspace", "alt-b") == ("a/b ", 2)


# ------------------------------------------------------------------------------------------------------------ state


def test_moving_stays_in_the_list() -> None:
    picker = filled(30)
    assert pressed(picker, "up") is None
    assert picker.selected == 0
    pressed(picker, "down", "ctrl-n", "ctrl-p")
    assert picker.selected == 1
    pressed(picker, "page-down")
    picker.fit(10)
    assert (picker.selected, picker.top) == (11, 2)
    pressed(picker, "ctrl-end", "down")
    picker.fit(10)
    assert (picker.selected, picker.top) == (29, 20)
    pressed(picker, "ctrl-home")
    picker.fit(10)
    assert (picker.selected, picker.top) == (0, 0)


def test_leaving() -> None:
    for name in ("escape", "ctrl-g", "ctrl-d"):
        assert pressed(filled(), name) == 1
    assert pressed(filled(), "ctrl-c") == 130
    assert pressed(filled(), "x", "ctrl-d") is None  # with text it is no end of input


def test_resume_asks_for_a_prompt_first() -> None:
    picker = filled()
    assert pressed(picker, "down", "enter") is None
    assert pressed(picker, "enter") is None  # an empty one goes back to the list
    assert picker.ask is None
    assert pressed(picker, "enter", "why", " not?", "ctrl-t") is None
    assert pressed(picker, "enter") == Choice("resume", item(1), "why not?")
    pressed(picker, "ctrl-t", "x", "escape")
    assert picker.ask is None
    assert pressed(picker, "ctrl-t", "ctrl-c") == 130


def test_choosing_without_asking() -> None:
    assert pressed(filled(enter="id"), "enter") == Choice("id", item(0))
    assert pressed(filled(asks=False), "enter") == Choice("resume", item(0))
    assert pressed(filled(asks=False), "ctrl-t") == Choice("fork", item(0))
    assert pressed(filled(), "ctrl-o") == Choice("show", item(0))
    assert pressed(filled(), "down", "ctrl-y") == Choice("id", item(1))
    assert pressed(filled(0), "enter") is None


def test_a_choice_waits_for_what_was_typed() -> None:
    picker = filled(enter="id")
    asked = picker.wanted
    pressed(picker, "down", "x")
    assert picker.behind
    assert [i.session_id for i in picker.items] == ["s0", "s1", "s2"]  # until others are there
    assert pressed(picker, "enter") is None
    assert picker.take(asked, [item(7)]) is None  # late, and of another query
    assert picker.take(Wanted("x", "all", None), [item(8), item(9)]) == Choice("id", item(8))


def test_typing_on_takes_a_waiting_choice_back() -> None:
    picker = filled(enter="id")
    pressed(picker, "x", "enter", "y", "backspace")
    assert picker.take(picker.wanted, [item(8)]) is None


def test_a_search_that_failed_chooses_nothing() -> None:
    picker = filled(enter="id")
    pressed(picker, "x", "enter")
    picker.fail(picker.wanted, "too long")
    assert (picker.notice, len(picker.items)) == ("too long", 3)
    assert pressed(picker, "enter") is None
    pressed(picker, "backspace")
    assert picker.take(picker.wanted, [item(4)]) is None


def test_scopes() -> None:
    picker = filled()
    seen: list[tuple[str, str | None]] = []
    pressed(picker, "down")
    for _ in range(3):
        pressed(picker, "tab")
        seen.append((picker.wanted.scope, picker.wanted.session))
    assert seen == [("here", None), ("session", "s1"), ("all", None)]
    pressed(picker, "shift-tab")
    assert picker.wanted == Wanted("", "session", "s1")
    nothing = Picker()
    pressed(nothing, "tab", "tab")
    assert nothing.wanted.scope == "all"  # there is no session to stay in
    one = Picker(scopes=("all",))
    pressed(one, "tab")
    assert one.wanted.scope == "all"


SCOPES = st.sampled_from([("all",), ("all", "here"), ("all", "session"), ("all", "here", "session")])


@given(st.data(), st.booleans(), SCOPES)
def test_no_keys_and_no_answers_break_it(data: st.DataObject, asks: bool, scopes: Sequence[Scope]) -> None:
    picker = Picker(asks=asks, scopes=scopes)
    drawing = Drawing(paint=False)
    for key in data.draw(KEYS):
        outcome = picker.press(key)
        assert outcome is None or outcome in (1, 130) or isinstance(outcome, Choice)
        event = data.draw(st.sampled_from(["", "", "answer", "late", "fail"]))
        if event == "fail":
            picker.fail(picker.wanted, "no")
        elif event:
            asked = picker.wanted if event == "answer" else Wanted("other", "all", None)
            picker.take(asked, [item(n) for n in range(data.draw(st.integers(0, 20)))])
        columns, lines = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 60))
        frame = drawing.frame(picker, None, columns, lines)
        assert len(frame.lines) <= lines
        assert 0 <= frame.cursor[1] < columns
        line = picker.ask[2] if picker.ask else picker.query
        assert 0 <= line.cursor <= len(line.text)
        assert picker.selected in range(max(1, len(picker.items)))
        assert picker.top <= picker.selected < picker.top + picker.page
        assert picker.wanted.scope in scopes


# ---------------------------------------------------------------------------------------------------------- frames

_CODES = re.compile(r"\x1b\[[0-9;]*[mG]")
HOSTILE = st.text(st.sampled_from('ab c"é€한中文🎉👩‍\u0301\ufe0f\x1b\x07\u202e\r\x9b'), max_size=60)


def columns_used(line: str) -> int:
    """How far a line of a frame reaches, the part beside the list counted from where it begins."""
    used = at = 0
    for piece in re.split(r"(\x1b\[\d+G)", line):
        if place := re.fullmatch(r"\x1b\[(\d+)G", piece):
            at = int(place[1]) - 1
            assert used <= at, "the list reaches into the preview"
        else:
            used = at + width_of(_CODES.sub("", piece))
    return used


@given(HOSTILE, HOSTILE, st.integers(1, 200), st.integers(1, 60), st.booleans(), TEXTS)
def test_no_line_is_wider_than_the_screen_or_drives_it(
    title: str, text: str, columns: int, lines: int, paint: bool, query: str
) -> None:
    safe = output.printable(text)
    one = item(1, title=output.title(title), cwd=output.one_line(title), snippet=safe, matches=((0, len(safe) // 2),))
    picker = Picker(output.printable(query.replace("\n", " ").replace("\t", " ")))
    picker.take(picker.wanted, [one, one], notice=output.one_line(text))
    block = Block(output.one_line(title), safe, ((0, len(safe) // 3),), hit=True)
    frame = Drawing(paint=paint).frame(picker, Preview(one, one.title, one.cwd, (block, block)), columns, lines)
    assert len(frame.lines) <= lines
    for line in frame.lines:
        assert columns_used(line) <= columns
        rest = _CODES.sub("", line)
        assert output.printable(rest) == rest
        if not paint:
            assert not re.search(r"\x1b\[[0-9;]*m", line)


def test_a_frame_shows_what_there_is() -> None:
    picker = Picker("need", enter="id")
    hits = [item(n, seq=1, snippet="a needle here", matches=((2, 8),), cwd="/srv/a", time=0) for n in range(3)]
    picker.take(picker.wanted, hits, more=True)
    pressed(picker, "down")
    preview = Preview(hits[1], "title 1", "s1 · /srv/a", (Block("you", "where is the needle", ((13, 19),), hit=True),))
    for columns, lines in ((120, 12), (80, 30)):
        frame = Drawing(paint=True).frame(picker, preview, columns, lines)
        text = [_CODES.sub("", line) for line in frame.lines]
        assert len(text) == lines
        assert text[0].startswith("> need ")
        assert text[0].endswith("3+  everywhere")
        assert frame.cursor == (0, 6)
        assert text[1].startswith("  title 0")
        assert text[3].startswith("> title 1")
        assert "/srv/a" in text[3]
        assert "a needle here" in text[4]
        assert any("where is the needle" in line for line in text)
        assert sum("\x1b[1;31mneedle\x1b[0m" in line for line in frame.lines) == 4
        assert "Enter print the id" in text[-1]
    small = Drawing(paint=False).frame(picker, preview, 20, 3).lines
    assert [line.rstrip() for line in small] == ["> need", "  title 0", "> title 1"]


def test_the_line_scrolls_with_its_cursor() -> None:
    picker = Picker("x" * 50 + "end")
    frame = Drawing(paint=False).frame(picker, None, 20, 1)
    assert frame.lines[0].endswith("xend")
    assert frame.cursor == (0, 19)
    pressed(picker, "home")
    frame = Drawing(paint=False).frame(picker, None, 20, 1)
    assert frame.lines[0] == "> " + "x" * 17
    assert frame.cursor == (0, 2)


def test_the_preview_begins_near_the_match() -> None:
    blocks = (*(Block("you", f"word {n}") for n in range(40)), Block("assistant", "the needle", ((4, 10),), hit=True))
    one = item(1)
    picker = filled(2)
    picker.take(picker.wanted, [one])
    drawing = Drawing(paint=False)

    def shown() -> str:
        return "\n".join(drawing.frame(picker, Preview(one, "t", "a", blocks), 120, 20).lines)

    assert "the needle" in shown()
    for _ in range(500):
        pressed(picker, "shift-up")
    assert "word 0" in shown()
    assert "the needle" not in shown()
    for _ in range(500):
        pressed(picker, "shift-down")
    assert "the needle" in shown()


@given(st.text(st.sampled_from("ab  \n中🎉\u0301"), max_size=80), st.integers(2, 20))
def test_wrapping_keeps_every_character_and_no_line_too_wide(text: str, columns: int) -> None:
    spans = wrapped(text, columns)
    assert "".join(text[start:end] for start, end in spans) == text.replace("\n", "")
    assert all(width_of(text[start:end]) <= columns for start, end in spans)


def test_wrapping_breaks_after_a_blank_where_there_is_one() -> None:
    assert [("one two three four"[a:b]) for a, b in wrapped("one two three four", 9)] == ["one two ", "three ", "four"]


def test_width_of_what_joins_and_stands_above() -> None:
    assert width_of("e\u0301") == 1
    assert width_of("👩\u200d👧") == 4
    assert width_of("❤\ufe0f") == 1
    assert width_of("中文") == 4
    assert width_of("co\u00adop") == 5


# --------------------------------------------------------------------------------------------------------- searches


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("need", "need*"), ("n", "n"), ("two wo", "two wo*"), ("done ", "done "), ('"two wo', '"two wo'),
        ('"two words" th', '"two words" th*'), ("a OR", "a OR"), ("src/ma", "src/ma"), ("pre*", "pre*"), ("-wo", "-wo"),
        ("role:us", "role:us"),
    ],
)  # fmt: skip
def test_the_word_that_is_typed_may_go_on(text: str, sent: str) -> None:
    assert typed(text) == sent


def test_marks_are_found_by_the_words_of_the_snippet() -> None:
    marks = matcher(item(1, snippet="The Needle (x) and two words", matches=((4, 10), (11, 14), (19, 28))))
    assert marks is not None
    assert marks.findall("needle, NEEDLE, two\n   words, (x), x") == ["needle", "NEEDLE", "two\n   words", "(x)"]
    assert matcher(item(1, snippet="none")) is None


@pytest.mark.slow
def test_no_search_takes_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes too long is given up, is told, and the next search is answered."""
    history = History(tmp_path / "dsh.db")
    with history.db.transaction():
        for number in range(12_000):
            history.session(f"s{number}")
            history.event(f"s{number}", "turn/start", {"turn": 1, "trigger": {"kind": "message"}})
    history.db.close()
    rung = threading.Event()
    patience = searcher._LONGEST_S
    monkeypatch.setattr(searcher, "_LONGEST_S", 0.0)
    with closing(searcher.Searcher(history.path, Filters(), None, rung.set, {})) as asked:

        def answer(wanted: Wanted) -> searcher.Found:
            rung.clear()
            asked.search(wanted)
            assert rung.wait(30)
            (found,) = asked.answers()
            assert isinstance(found, searcher.Found)
            return found

        found = answer(Wanted("", "all", None))
        assert (found.items, found.notice[:9]) == (None, "not found")
        monkeypatch.setattr(searcher, "_LONGEST_S", patience)
        found = answer(Wanted("", "all", None))
        assert found.items is not None
        assert len(found.items) == searcher.LISTED
        assert found.more


def test_a_failure_of_the_thread_is_raised_where_it_can_be_told(tmp_path: Path) -> None:
    path = tmp_path / "dsh.db"
    path.write_text("no database" * 100)
    rung = threading.Event()
    with closing(searcher.Searcher(path, Filters(), None, rung.set, {})) as asked:
        asked.search(Wanted("x", "all", None))
        assert rung.wait(30)
        with pytest.raises(StoreError, match="is not an SQLite database"):
            asked.answers()
