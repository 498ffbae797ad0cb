"""Compressed exports (PE-63), the folders they lie in (PE-64) and how files get there (PE-65)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.session.folders import check_place, path_of, places, project_segment, published, session_segment, sessions_in
from dsh.session.frames import compressed
from dsh.session.jsonl import event_lines, header_line
from tests.session.kit import code
from tests.session.logs import HEADER, Row, logs, read, reader, rows_in

HEAD = header_line(HEADER)
LINES = [f'{{"type":"x","seq":{n},"time":1,"data":"{"é" * 40}"}}\n' for n in range(6)]
END = '{"type":"turn/end","seq":6,"time":1,"data":{}}\n'


def frames(lines: Iterable[str], *, batch_bytes: int = 1) -> list[bytes]:
    """The header's frame, then one for each line, or as many as the batch says."""
    return list(compressed(HEAD, lines, batch_bytes=batch_bytes))


def pack(text: str | bytes, *, checksum: bool = True) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return zstandard.ZstdCompressor(write_checksum=checksum).compress(data)


@pytest.mark.rule("PE-63")
def test_the_header_is_a_frame_and_each_batch_is_one() -> None:
    made = frames(LINES, batch_bytes=200)
    plain = [zstandard.ZstdDecompressor().decompress(frame).decode() for frame in made]
    assert plain == [HEAD, *("".join(LINES[n : n + 2]) for n in (0, 2, 4))]
    assert all(zstandard.get_frame_parameters(frame).has_checksum for frame in made)
    assert len(rows_in(b"".join(made))) == 6


@pytest.mark.rule("PE-63")
def test_a_whole_log_of_many_blocks_comes_back() -> None:
    rows: list[Row] = [(n, "x", n, f'"{os.urandom(400).hex()}"', None, None) for n in range(1500)]
    data = b"".join(compressed(HEAD, event_lines(rows), batch_bytes=500_000))
    assert rows_in(data) == rows


def flipped(frame: bytes, at: int, bits: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ bits]) + frame[at + 1 :]


BAD: dict[str, list[bytes]] = {
    "a wrong checksum": [*frames(LINES[:2]), flipped(pack(LINES[2]), -1 + len(pack(LINES[2])), 1)],
    "a wrong magic number": [*frames(LINES[:2]), b"\x29" + pack(LINES[2])[1:]],
    "a skippable frame": [*frames(LINES[:2]), b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab"],
    "a reserved bit": [*frames(LINES[:2]), flipped(pack(LINES[2]), 4, 0x08)],
    "a dictionary": [*frames(LINES[:2]), flipped(pack(LINES[2]), 4, 0x01)],
    "no checksum": [*frames(LINES[:2]), pack(LINES[2], checksum=False)],
    "a reserved block type": [*frames(LINES[:2]), b"\x28\xb5\x2f\xfd\x24\x00\x07\x00\x00abcd"],
    "a torn record": [*frames(LINES[:2]), pack(LINES[2][:-1])],
    "an empty frame": [*frames(LINES[:2]), pack("")],
    "a header with company": [pack(HEAD + LINES[0])],
    "half a header": [pack(HEAD)[:-8]],
    "no header": [pack(LINES[0] + LINES[1])],
}


@pytest.mark.rule("PE-63")
@pytest.mark.parametrize("parts", BAD.values(), ids=BAD.keys())
def test_a_bad_complete_frame_is_damage(parts: list[bytes]) -> None:
    assert read(b"".join(parts)) == "LOG_CORRUPT"
    assert read(b"".join([*parts, *frames(LINES)[1:]])) == "LOG_CORRUPT"


@pytest.mark.rule("PE-63")
def test_a_damaged_length_is_no_cut(tmp_path: Path) -> None:
    made = frames(LINES)
    at = made[3].index(b"\x28\xb5\x2f\xfd") + 4 + 1 + 1  # descriptor, content size, then the block's header
    longer = int.from_bytes(made[3][at : at + 3], "little") + (200 << 3)
    bad = made[3][:at] + longer.to_bytes(3, "little") + made[3][at + 3 :]
    assert read(b"".join([*made[:3], bad, *made[4:]])) == "LOG_CORRUPT"
    assert read(b"".join([*made[:3], bad])) == rows_in(b"".join(made[:3]))


@pytest.mark.rule("PE-63")
def test_of_a_frame_that_was_cut_off_the_readable_lines_are_kept() -> None:
    lines = [f'{{"type":"x","seq":{n},"time":1,"data":"{os.urandom(500).hex()}"}}\n' for n in range(400)]
    header, batch = frames(lines, batch_bytes=10**9)
    assert sum(map(len, lines)) > 3 * 128 * 1024  # several blocks, of which the first can be read alone
    log = reader(header + batch[:-40])
    kept = [place.event["seq"] for place in log.events()]
    assert 100 < len(kept) < 400
    assert kept == list(range(len(kept)))
    assert log.dropped == 2  # a torn line, and what was behind it
    assert rows_in(header + batch[:2]) == []
    assert rows_in(header) == []


@pytest.mark.rule("PE-63")
@settings(max_examples=50, deadline=None)
@given(logs(), st.data())
def test_a_compressed_log_cut_or_changed_anywhere_is_told_apart(rows: list[Row], data: st.DataObject) -> None:
    made = frames(event_lines(rows), batch_bytes=data.draw(st.sampled_from([1, 300, 10**6])))
    whole = b"".join(made)
    assert rows_in(whole) == rows
    cut = data.draw(st.integers(0, len(whole)))
    found = read(whole[:cut])
    there = [frame for n, frame in enumerate(made) if n == 0 or cut >= sum(map(len, made[: n + 1]))]
    whole_frames = rows_in(b"".join(there))
    assert found[: len(whole_frames)] == whole_frames or (found == "LOG_CORRUPT" and cut < len(made[0]))
    assert found == "LOG_CORRUPT" or found == rows[: len(found)]
    at = data.draw(st.integers(0, len(whole) - 1))
    found = read(flipped(whole, at, data.draw(st.integers(1, 255))))
    last = at >= len(whole) - len(made[-1])  # a last frame may look as if it were cut off, no other
    assert found == "LOG_CORRUPT" or found == rows or (last and found == rows[: len(found)])


# ---------------------------------------------------------------------------------------------------------- folders

SEGMENTS = {
    "aZ09._-": "aZ09._-",
    "a/b": "a~002Fb",
    "a~b": "a~007Eb",
    "é": "~00E9",
    "😀": "~D83D~DE00",
    ".": "~002E",
    "..": "~002E~002E",
    "...": "...",
    " ": "~0020",
}
PROJECTS = {
    "/home/me/my app": "--home-me-my~0020app--",
    "C:\\Users\\x": "--C-Users-x--",
    "//a//b": "--a-b--",
    "/": "--root--",
    "/-x": "--x--",
    "/é~": "--~00E9~007E--",
    "/" + "a" * 300: f"--{'a' * 251}--",
}


@pytest.mark.rule("PE-64")
def test_ids_and_folders_become_names() -> None:
    assert {text: session_segment(text) for text in SEGMENTS} == SEGMENTS
    assert code(session_segment, "") == "USAGE"
    assert {text: project_segment(text) for text in PROJECTS} == PROJECTS
    assert project_segment(None) == "_no-cwd"
    header: Any = {"id": "a:b", "cwd": "/w"}
    assert path_of(Path("r"), header, zstd=False) == Path("r/--w--/a~003Ab/session.jsonl")
    assert path_of(Path("r"), {"id": "x"}, zstd=True) == Path("r/_no-cwd/x/session.jsonl.zstd")


def put(root: Path, header: Any, *, zstd: bool = False) -> Path:
    path = path_of(root, header, zstd=zstd)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(frames(LINES)) if zstd else HEAD.encode())
    return path


@pytest.mark.rule("PE-64")
def test_a_root_holds_one_encoding_and_an_id_once(tmp_path: Path) -> None:
    one, two = {"id": "a", "cwd": "/x"}, {"id": "b", "cwd": "/x"}
    files = [put(tmp_path, one), put(tmp_path, two)]  # two sessions, one project
    (tmp_path / "notes.txt").write_text("x")
    assert sessions_in(tmp_path) == files
    new: Any = {"id": "c", "cwd": "/y"}
    assert places(tmp_path, [new], zstd=False) == [tmp_path / "--y--" / "c" / "session.jsonl"]
    assert code(places, tmp_path, [new], zstd=True) == "USAGE"
    assert code(places, tmp_path, [new, {"id": "a", "cwd": "/y"}], zstd=False) == "USAGE"
    assert places(tmp_path / "none", [new], zstd=True) == [tmp_path / "none" / "--y--" / "c" / "session.jsonl.zstd"]
    twice = put(tmp_path, {"id": "a", "cwd": "/z"})
    assert code(sessions_in, tmp_path) == "LOG_CORRUPT"
    twice.unlink()
    put(tmp_path, new, zstd=True)
    assert code(sessions_in, tmp_path) == "LOG_CORRUPT"


@pytest.mark.rule("PE-64")
def test_a_header_belongs_where_its_file_is(tmp_path: Path) -> None:
    header: Any = {"id": "a", "cwd": "/x"}
    check_place(tmp_path, tmp_path / "--x--" / "a" / "session.jsonl", header)
    for path in ("--x--/b/session.jsonl", "--y--/a/session.jsonl", "_no-cwd/a/session.jsonl"):
        assert code(check_place, tmp_path, tmp_path / path, header) == "LOG_CORRUPT"


# ------------------------------------------------------------------------------------------------------- publishing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.rule("PE-65")
def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    with published(path, folders=True) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"half"
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (0o600, 0o700, 0o700)
    assert names(path.parent) == ["file"]


@pytest.mark.rule("PE-65")
@pytest.mark.parametrize("links", [True, False])
def test_nothing_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    path = tmp_path / "file"
    assert code(write, path, lambda: path.write_bytes(b"another's")) == "USAGE"  # while ours is being written
    assert path.read_bytes() == b"another's"
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for there in (path, tmp_path / "dangling"):
        assert code(write, there, lambda: pytest.fail("not reached")) == "USAGE"
    assert names(tmp_path) == ["dangling", "file", "home"]
    write(tmp_path / "new", lambda: None)
    assert (tmp_path / "new").read_bytes() == b"mine"


def write(path: Path, meanwhile: Callable[[], Any], *, folders: bool = False) -> None:
    with published(path, folders=folders) as file:
        file.write(b"mine")
        meanwhile()


def _no_links(*_: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.rule("PE-65")
def test_a_failure_leaves_no_file_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a" / "b" / "file", interrupt, folders=True)
    assert names(tmp_path) == ["home"]
    with pytest.raises(OSError, match="No space") as full:
        write(tmp_path / "file", fill_the_disk)
    assert full.value.filename == str(tmp_path / "file")
    with pytest.raises(FileNotFoundError) as missing:
        write(tmp_path / "none" / "file", interrupt)
    assert missing.value.filename == str(tmp_path / "none" / "file")
    assert names(tmp_path) == ["home"]


def interrupt() -> None:
    raise KeyboardInterrupt


def fill_the_disk() -> None:
    raise OSError(28, "No space left on device")
