"""read, write and edit through the whole pipeline."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.agent.prompt import AssembleContext, Prompt
from dsh.capabilities.fs.errors import FsError
from dsh.capabilities.fs.window import Limits, Window
from dsh.kernel.signal import Signal
from dsh.tools.present import call_view, result_view
from tests.tools.kit import Bench, code, make_agent, text

FS = ("dsh.capabilities.fs",)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def bench(work: Path) -> Bench:
    return Bench(work, FS)


# --- read
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("FS-63", "FS-67")
async def test_read_shows_numbered_lines_and_how_to_go_on(bench: Bench, work: Path) -> None:
    (work / "f").write_bytes(b"one\r\ntwo\n\nfour")
    head = f"<path>{work}/f</path>\n<type>file</type>\n<content>\n"
    whole = await bench.call("read", file_path="f")
    assert text(whole) == head + "1: one\n2: two\n3: \n4: four\n\n(End of file - total 4 lines)\n</content>"
    assert whole.value["lines"][0] == {"number": 1, "text": "one"}
    part = await bench.call("read", file_path="f", offset=2, limit=2)
    assert text(part) == (head + "2: two\n3: \n\n(Showing lines 2-3 of 4. Use offset=4 to continue.)\n</content>")
    last = await bench.call("read", file_path="f", offset=4)
    assert last.value == {
        "path": f"{work}/f",
        "offset": 4,
        "lines": [{"number": 4, "text": "four"}],
        "totalLines": 4,
    }


@pytest.mark.rule("FS-63")
async def test_empty_files_and_offsets_beyond_the_end(bench: Bench, work: Path) -> None:
    (work / "empty").write_bytes(b"")
    (work / "mark").write_bytes(b"\xef\xbb\xbf")
    (work / "f").write_bytes(b"a\nb\n")
    for name in ("empty", "mark"):
        result = await bench.call("read", file_path=name)
        assert text(result).endswith("<content>\n(End of file - total 0 lines)\n</content>")
    result = await bench.call("read", file_path="f", offset=3)
    assert code(result) == "FS_NOT_FOUND"
    assert "offset 3" in text(result)
    assert "2 lines" in text(result)
    assert code(await bench.call("read", file_path="empty", offset=2)) == "FS_NOT_FOUND"


@pytest.mark.rule("FS-64", "FS-65", "FS-67")
async def test_long_lines_and_large_windows_are_cut(work: Path) -> None:
    bench = Bench(work, FS, read__max_line_length=5, read__max_bytes=100)
    (work / "f").write_text("éééééé\nabcde\r\n" + "x\n" * 40)
    result = await bench.call("read", file_path="f")
    lines = result.value["lines"]
    assert lines[0]["text"] == "ééééé... (line truncated to 5 chars)"
    assert lines[1]["text"] == "abcde"
    size = sum(len(line["text"].encode()) for line in lines) + len(lines) - 1
    assert 98 <= size <= 100
    last = lines[-1]["number"]
    assert f"(Output capped. Showing lines 1-{last}. Use offset={last + 1} to continue.)" in text(result)
    assert result.value["totalLines"] == 42


@pytest.mark.rule("FS-64")
async def test_one_huge_line_costs_no_memory_for_its_text(bench: Bench, work: Path) -> None:
    (work / "f").write_bytes(b"x" * 30_000_000)
    result = await bench.call("read", file_path="f")
    assert len(result.value["lines"][0]["text"]) < 2100
    assert result.value["totalLines"] == 1


@pytest.mark.rule("TC-2", "TC-6", "FS-66")
async def test_read_arguments_and_mode(bench: Bench) -> None:
    wrongs: list[dict[str, Any]] = [{"offset": 0}, {"offset": 1.5}, {"limit": 0}, {"limit": 2001}]
    for wrong in wrongs:
        assert code(await bench.call("read", file_path="f", **wrong)) is None
    assert code(await bench.call("read", file_path="f", limit="2")) == "INVALID_ARGS"
    assert bench.tools.mode(None, "read", {"file_path": "f"}) == "parallel"
    assert bench.tools.mode(None, "write", {"file_path": "f", "content": ""}) == "exclusive"
    assert bench.tools.mode(None, "edit", {"file_path": "f", "old_string": "", "new_string": ""}) == "exclusive"


@pytest.mark.rule("FS-9", "FS-60")
async def test_reading_what_is_no_file_never_hangs(bench: Bench, work: Path) -> None:
    os.mkfifo(work / "fifo")
    (work / "loop").symlink_to("loop")
    with trio.fail_after(5):
        for path, wanted in (
            ("fifo", "FS_NOT_REGULAR_FILE"),
            (".", "FS_NOT_REGULAR_FILE"),
            ("/dev/zero", "FS_NOT_REGULAR_FILE"),
            ("gone", "FS_NOT_FOUND"),
            ("fifo/x", "FS_NOT_FOUND"),
            ("loop", "FS_IO_ERROR"),
            ("x" * 300, "FS_IO_ERROR"),
            ("nul\0", "FS_NOT_FOUND"),
            ("", "FS_NOT_FOUND"),
        ):
            assert code(await bench.call("read", file_path=path)) == wanted, path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
async def test_files_that_claim_to_be_empty_are_read(bench: Bench) -> None:
    assert Path("/proc/self/status").stat().st_size == 0
    assert (await bench.call("read", file_path="/proc/self/status")).value["totalLines"] > 5


async def test_names_with_line_breaks_and_bytes_that_are_no_utf8(bench: Bench, work: Path) -> None:
    (work / "a\nb").write_text("x\n")
    assert not (await bench.call("read", file_path="a\nb")).is_error
    odd = Path(os.fsdecode(os.fsencode(work) + b"/\xff"))
    odd.mkdir()
    (odd / "f").write_text("x")
    result = await bench.call("read", agent=make_agent(odd), file_path="f")
    text(result).encode()
    assert result.value["path"].endswith("\ufffd/f")


async def test_control_characters_come_through(bench: Bench, work: Path) -> None:
    (work / "f").write_bytes(b"a" * 8200 + b"\x00\x1b[0m\x0c\x85".replace(b"\x85", "\x85".encode()))
    result = await bench.call("read", file_path="f", limit=1)
    assert not result.is_error
    (work / "g").write_bytes("a\x1b\x0c\u2028b\n".encode())
    assert (await bench.call("read", file_path="g")).value["lines"][0]["text"] == "a\x1b\x0c\u2028b"


_chunks = st.lists(st.text("ab\r\né", max_size=6), max_size=8)


@pytest.mark.slow
@pytest.mark.rule("FS-63", "FS-64", "FS-65")
@settings(max_examples=300, deadline=None)
@given(_chunks, st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 120))
def test_the_window_agrees_with_a_plain_reading(
    chunks: list[str], offset: int, limit: int, length: int, size: int
) -> None:
    whole = "".join(chunks)
    lines = whole.split("\n")
    if lines[-1] == "":
        lines.pop()
    window = Window(offset, limit, Limits(2000, length, size))
    for chunk in filter(None, chunks):
        window.feed(chunk)
    if offset > max(len(lines), 1):
        with pytest.raises(FsError):
            window.finish()
        return
    window.finish()
    wanted: list[Any] = []
    used = 0
    for number, line in list(enumerate(lines, 1))[offset - 1 : offset - 1 + limit]:
        line = line.removesuffix("\r")
        if len(line) > length:
            line = line[:length] + f"... (line truncated to {length} chars)"
        used += len(line.encode()) + bool(wanted)
        if used > size:
            break
        wanted.append({"number": number, "text": line})
    assert window.lines == wanted
    assert window.total == len(lines)


# --- write and edit
# -------------------------------------------------------------------------------------------------


@pytest.mark.rule("FS-52", "FS-53", "FS-54")
async def test_read_before_replacing(bench: Bench, work: Path) -> None:
    (work / "f").write_text("one\n")
    assert code(await bench.call("write", file_path="f", content="x")) == "FS_NOT_OBSERVED"
    assert code(await bench.call("edit", file_path="f", old_string="one", new_string="x")) == "FS_NOT_OBSERVED"
    assert (work / "f").read_text() == "one\n"
    await bench.call("read", file_path="f", limit=1)
    for old, new in (("one", "two"), ("two", "three")):
        assert not (await bench.call("edit", file_path="f", old_string=old, new_string=new)).is_error
    assert not (await bench.call("write", file_path="f", content="four\n")).is_error
    assert not (await bench.call("write", file_path="new", content="a")).is_error
    assert not (await bench.call("edit", file_path="new", old_string="a", new_string="b")).is_error
    (work / "f").write_text("theirs\n")
    assert code(await bench.call("write", file_path="f", content="x")) == "FS_STALE_VERSION"
    assert code(await bench.call("edit", file_path="f", old_string="four", new_string="x")) == "FS_STALE_VERSION"
    assert (work / "f").read_text() == "theirs\n"


@pytest.mark.rule("FS-51", "FS-55", "FS-56")
async def test_observations_belong_to_one_session(bench: Bench, work: Path) -> None:
    (work / "f").write_text("x")
    (work / "link").symlink_to("f")
    await bench.call("read", file_path="f")
    edit: dict[str, Any] = {"file_path": "link", "old_string": "x", "new_string": "y"}
    assert code(await bench.call("edit", agent=make_agent(work, "s2"), **edit)) == "FS_NOT_OBSERVED"
    assert not (await bench.call("edit", **edit)).is_error
    bench.host.hooks.notify("session/disposed", None, bench.agent.session)
    assert code(await bench.call("write", file_path="f", content="")) == "FS_NOT_OBSERVED"


@pytest.mark.rule("FS-56")
async def test_without_a_session_only_reading_and_creating(
    bench: Bench, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    assert not (await bench.call("write", agent=None, file_path="f", content="x")).is_error
    assert not (await bench.call("read", agent=None, file_path="f")).is_error
    assert code(await bench.call("write", agent=None, file_path="f", content="y")) == "FS_NOT_OBSERVED"
    edit = await bench.call("edit", agent=None, file_path="f", old_string="x", new_string="y")
    assert code(edit) == "FS_NOT_OBSERVED"


@pytest.mark.rule("FS-27", "FS-29", "FS-68")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nb\r\nc\n", b"a\r\nB\r\nc\n"),
        (b"\xef\xbb\xbfa\r\nb\r\nc\n", b"\xef\xbb\xbfa\r\nB\r\nc\n"),
        (b"a\r\nb\r\nc", b"a\r\nB\r\nc"),
        (b"a\nb\r\nc\r\n", b"a\nB\r\nc\r\n"),
    ],
)
async def test_an_edit_of_crlf_changes_one_line_in_file_and_diff(
    bench: Bench, work: Path, before: bytes, after: bytes
) -> None:
    # case P9 and its variants
    path = work / "f"
    path.write_bytes(before)
    path.chmod(0o640)
    await bench.call("read", file_path="f")
    result = await bench.call("edit", file_path="f", old_string="a\nb", new_string="a\nB")
    assert path.read_bytes() == after
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    (hunk,) = result.meta["diffs"]
    changed = [
        pair
        for pair in zip(hunk["oldText"].split("\n"), hunk["newText"].split("\n"), strict=True)
        if pair[0] != pair[1]
    ]
    assert (hunk["path"], changed) == ("f", [("b", "B")])


@pytest.mark.rule("TC-2")
async def test_edits_that_mean_nothing_are_refused(bench: Bench, work: Path) -> None:
    (work / "f").write_bytes(b"a\r\n")
    await bench.call("read", file_path="f")
    for old, new in (("", "x"), ("a", "a"), ("a\r\n", "a\n")):
        assert code(await bench.call("edit", file_path="f", old_string=old, new_string=new)) is None
    assert (work / "f").read_bytes() == b"a\r\n"


@pytest.mark.rule("FS-41", "FS-43", "FS-44", "FS-61")
async def test_nothing_is_written_outside_the_working_directory(bench: Bench, work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("x")
    (work / "way").symlink_to(outside)
    (work / "file").symlink_to(outside / "f")
    await bench.call("read", file_path="way/f")
    for path in ("way/f", "file", "../outside/f", str(outside / "f"), str(outside / "new"), "way/new"):
        write = await bench.call("write", file_path=path, content="y")
        assert code(write) == "FS_SANDBOX_DENIED", path
        assert text(write).endswith("[sandbox: file access denied under workspace-write mode]")
    edit = await bench.call("edit", file_path="file", old_string="x", new_string="y")
    assert code(edit) == "FS_SANDBOX_DENIED"
    assert [p.name for p in outside.iterdir()] == ["f"]
    assert (outside / "f").read_text() == "x"


@pytest.mark.rule("FS-44", "TC-1")
async def test_escalation_is_neither_offered_nor_taken(bench: Bench, work: Path) -> None:
    for name in ("write", "edit"):
        parameters = bench.tools.visible(None)[name].parameters["properties"]
        assert "sandbox_permissions" not in parameters
    result = await bench.call("write", file_path="f", content="", sandbox_permissions="danger-full-access")
    assert code(result) is None
    assert not (work / "f").exists()


async def test_a_cancelled_write_leaves_no_file(bench: Bench, work: Path) -> None:
    signal = Signal()
    signal.cancel()
    assert (await bench.call("write", signal, file_path="f", content="x")).is_error
    assert list(work.iterdir()) == []


@pytest.mark.rule("FS-68", "TL-81")
async def test_mutations_are_shown_as_diffs(bench: Bench, work: Path) -> None:
    tools = bench.tools.visible(None)
    args: dict[str, Any] = {"file_path": "f", "content": "a\nb\n"}
    whole = {"path": "f", "oldText": None, "newText": "a\nb\n"}
    assert call_view(tools["write"], "write", args)["diffs"] == [whole]
    made = await bench.call("write", **args)
    assert (made.meta, made.value["operation"], made.value["before"]) == ({"diffs": []}, "create", None)
    assert text(made).splitlines()[-2:] == ["Created file", "</content>"]
    assert result_view(tools["write"], args, made.content, False, made.meta)["diffs"] == [whole]
    again = await bench.call("write", file_path="f", content="a\nc\n")
    assert again.meta == {"diffs": [{"path": "f", "oldText": "a\nb\n", "newText": "a\nc\n"}]}
    assert result_view(tools["write"], args, again.content, False, again.meta)["diffs"] == again.meta["diffs"]
    edit: dict[str, Any] = {"file_path": "f", "old_string": "c", "new_string": "d", "replace_all": True}
    assert call_view(tools["edit"], "edit", edit)["diffs"] == [{"path": "f", "oldText": "c", "newText": "d"}]
    done = await bench.call("edit", **edit)
    assert done.value == {"path": f"{work}/f", "before": "a\nc\n", "after": "a\nd\n"}
    assert "All occurrences were replaced." in text(done)
    old: list[Any] = [None, {"diffs": []}, {"diffs": [{"path": 1}]}, {"diffs": "x"}, []]
    for meta in old:
        assert result_view(tools["edit"], edit, done.content, False, meta)["card"] == "generic"
        assert result_view(tools["write"], args, done.content, False, meta)["diffs"] == [whole]


def test_the_prompt_sections_have_their_places(work: Path) -> None:
    bench = Bench(work)
    prompt = Prompt(bench.host)
    bench.host.root.provide(Prompt, prompt)
    bench.host.start(FS)
    names = [name for name, _ in prompt.assemble(AssembleContext()).sections]
    assert names == ["tool:read", "tool:write", "tool:edit"]
