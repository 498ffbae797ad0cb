"""Edits as bytes in and bytes out."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dsh.capabilities.fs.diff import diffs, lines_of, opcodes
from dsh.capabilities.fs.edit import EditRequest, apply_edit
from dsh.capabilities.fs.errors import FsError


def _edit(data: bytes, old: str, new: str, *, all: bool = False) -> bytes:
    return apply_edit(data, EditRequest(old, new, all), "f").data


BOM = b"\xef\xbb\xbf"


@pytest.mark.rule("FS-27")
@pytest.mark.parametrize(
    ("data", "old", "new", "wanted"),
    [
        # case P9 and its variants
        (b"a\r\nb\r\nc\n", "a\nb", "a\nB", b"a\r\nB\r\nc\n"),
        (BOM + b"a\r\nb\r\nc\n", "a\nb", "a\nB", BOM + b"a\r\nB\r\nc\n"),
        (b"a\r\nb\r\nc", "b\nc", "B\nc", b"a\r\nB\r\nc"),
        (b"a\r\nb\r\nc", "c", "C", b"a\r\nb\r\nC"),
        # what the model writes may have CRLF too
        (b"a\r\nb\r\n", "a\r\nb", "a\r\nx\r\nb", b"a\r\nx\r\nb\r\n"),
        (b"a\nb\n", "a\r\nb", "a\r\nx\r\nb", b"a\nx\nb\n"),
        # new lines take the file's style, the majority of its line ends; a tie is LF
        (b"a\r\nb\r\nc\nd\n", "c\nd", "c\nx\ny\nd", b"a\r\nb\r\nc\nx\ny\nd\n"),
        (b"a\r\nb\r\nc\n", "c", "c\nx", b"a\r\nb\r\nc\r\nx\n"),
        (b"a\r\nb\n", "b", "x\ny", b"a\r\nx\ny\n"),
        # lines inside the match that do not change keep their ends, each its own
        (b"1\r\n2\n3\r\n4\n", "1\n2\n3\n4", "1\n2\nX\n4", b"1\r\n2\nX\r\n4\n"),
        # a lone CR is an ordinary character
        (b"a\rb\nc\n", "c", "C", b"a\rb\nC\n"),
        (b"a\r\r\nb\r\nc\r\n", "b", "B", b"a\r\r\nB\r\nc\r\n"),
        # only the final line end
        (b"a\n", "a\n", "a", b"a"),
        (b"a", "a", "a\n", b"a\n"),
    ],
)
def test_only_what_was_edited_changes(data: bytes, old: str, new: str, wanted: bytes) -> None:
    assert _edit(data, old, new) == wanted


@pytest.mark.rule("FS-28")
def test_replacement_is_literal_and_counts_matches() -> None:
    assert _edit(b"a.b axb", "a.b", r"\1$&") == rb"\1$& axb"
    assert _edit(b"aaaa", "aa", "b", all=True) == b"bb"
    assert _edit(b"x\r\ny\r\nx\r\ny\r\n", "x\ny", "x\nz", all=True) == b"x\r\nz\r\nx\r\nz\r\n"
    for old, code in (("aa", "FS_AMBIGUOUS_EDIT"), ("z", "FS_EDIT_NOT_FOUND"), ("", "FS_EDIT_NOT_FOUND")):
        with pytest.raises(FsError) as caught:
            _edit(b"aaaa", old, "b")
        assert caught.value.code == code
    with pytest.raises(FsError, match=r"2 times.*replace_all"):
        _edit(b"aaaa", "aa", "b")


@pytest.mark.rule("FS-24", "FS-23")
@pytest.mark.parametrize("data", [b"a" * 10_000 + b"\0", b"a\xff", b"\xc3"])
def test_what_is_no_text_is_not_edited(data: bytes) -> None:
    with pytest.raises(FsError) as caught:
        _edit(data, "a", "b", all=True)
    assert caught.value.code == "FS_NOT_TEXT"


@pytest.mark.rule("FS-25")
def test_the_byte_order_mark_is_no_text_but_stays() -> None:
    with pytest.raises(FsError):
        _edit(BOM + b"a", "\ufeffa", "b")
    assert _edit(BOM + b"a", "a", "b") == BOM + b"b"


_pieces = st.lists(st.sampled_from(["a", "b", "é", "🐻", " ", "\t", "\n", "\r\n"]), max_size=12).map("".join)


@pytest.mark.slow
@pytest.mark.rule("FS-27")
@settings(max_examples=300, deadline=None)
@given(head=_pieces, old=_pieces, tail=_pieces, new=_pieces, bom=st.booleans())
def test_bytes_outside_the_match_never_change(head: str, old: str, tail: str, new: str, bom: bool) -> None:
    mark = BOM if bom else b""
    text = head + old + tail
    lf = text.replace("\r\n", "\n")
    wanted = old.replace("\r\n", "\n")
    assume(wanted and lf.count(wanted) == 1 and lf.index(wanted) == len(head.replace("\r\n", "\n")))
    edited = apply_edit(mark + text.encode(), EditRequest(old, new), "f")
    assert edited.data.startswith(mark + head.encode())
    assert edited.data.endswith(tail.encode())
    after = lf.replace(wanted, new.replace("\r\n", "\n"))
    assert edited.after == after
    assert edited.data.decode().removeprefix("\ufeff").replace("\r\n", "\n") == after
    assert b"\r\r" not in edited.data
    if "\n" not in lf.replace("\n", "", text.count("\r\n")):  # a file of CRLF alone stays one
        assert edited.data.count(b"\n") == edited.data.count(b"\r\n") or "\r\n" not in text


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from("abcd"), max_size=12).map("\n".join),
    st.lists(st.sampled_from("abcd"), max_size=12).map("\n".join),
)
def test_steps_rebuild_the_new_text(before: str, after: str) -> None:
    old, new = lines_of(before), lines_of(after)
    rebuilt: list[str] = []
    for kind, i1, i2, j1, j2 in opcodes(old, new):
        if kind == "equal":
            assert old[i1:i2] == new[j1:j2]
        rebuilt += old[i1:i2] if kind == "equal" else new[j1:j2]
    assert rebuilt == new
    assert (diffs("f", before, after) == []) is (before == after)


def _numbers(*changed: int, until: int = 40) -> str:
    return "".join(f"{'X' if n in changed else n}\n" for n in range(1, until))


@pytest.mark.rule("FS-68")
def test_a_hunk_has_three_lines_around_and_far_changes_are_two() -> None:
    hunks = diffs("f", _numbers(), _numbers(10, 16, 30))
    assert [h["path"] for h in hunks] == ["f", "f"]
    first, second = hunks
    assert first["oldText"] == "".join(f"{n}\n" for n in range(7, 20))
    assert second["newText"] == "27\n28\n29\nX\n31\n32\n33\n"
    assert diffs("f", _numbers(), _numbers(1))[0]["oldText"] == "1\n2\n3\n4\n"
    assert diffs("f", _numbers(), _numbers(39))[0]["oldText"] == "36\n37\n38\n39\n"
    assert diffs("f", "", "a\n") == [{"path": "f", "oldText": None, "newText": "a\n"}]
    assert diffs("f", "a\n", "") == [{"path": "f", "oldText": "a\n", "newText": ""}]


@pytest.mark.rule("FS-68")
def test_large_and_repetitive_texts_are_compared_quickly() -> None:
    old = "\n" * 20_000 + "a\n" + "}\n" * 20_000
    new = "x\n" * 20_000 + "b\n" + "}\n" * 20_000
    started = time.perf_counter()
    shown: Any = diffs("f", old, new)
    apply_edit(b"a\r\n" + old.encode(), EditRequest(old, new), "f")
    assert time.perf_counter() - started < 2
    assert len(shown) == 1
