"""The local file system: identity, guards, atomic replacement, listing, the fence."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dsh.capabilities.fs import local
from dsh.capabilities.fs.edit import EditRequest
from dsh.capabilities.fs.errors import FsError
from dsh.capabilities.fs.fence import contains, writable_target
from dsh.capabilities.fs.local import Target, WriteIntent
from dsh.kernel.signal import Signal

not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root is refused nothing")


def _target(path: Path) -> Target:
    return local.resolve(str(path), "/")


def _code(call: Any, *args: Any) -> str:
    with pytest.raises(FsError) as caught:
        call(*args)
    return caught.value.code


@pytest.mark.rule("FS-1", "FS-21")
def test_all_spellings_of_a_file_have_one_key(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "d" / "f").write_text("x")
    keys = {
        local.resolve(spelling, str(tmp_path)).key
        for spelling in ("d/f", "./d//f", "link/f", "d/../d/f", str(tmp_path / "d/f"))
    }
    assert keys == {str(tmp_path / "d" / "f")}
    assert local.resolve("link/f", str(tmp_path)).display == str(tmp_path / "link" / "f")


@pytest.mark.rule("FS-21")
def test_the_key_of_a_missing_file_stays_once_it_exists(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    before = local.resolve("link/new/f", str(tmp_path))
    local.write_text(before, "x")
    assert local.resolve("real/new/f", str(tmp_path)).key == before.key


@pytest.mark.rule("FS-62")
def test_dots_mean_the_physical_parent(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    for path, cwd in (("../f", tmp_path / "link"), ("link/../f", tmp_path), ("f", tmp_path / "link" / "..")):
        target = local.resolve(path, str(cwd))
        assert target.key == str(tmp_path / "a" / "f")
    assert local.resolve("link/../f", str(tmp_path)).display == str(tmp_path / "a" / "f")


@pytest.mark.rule("FS-20", "FS-21")
def test_paths_that_can_be_no_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    for path in ("", "  ", "f/below", "a\0b"):
        assert _code(local.resolve, path, str(tmp_path)) == "FS_NOT_FOUND"
    assert _code(local.lstat, " ", str(tmp_path)) == "FS_NOT_FOUND"


@pytest.mark.rule("FS-2")
def test_stat_follows_and_lstat_does_not(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("abc")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "broken").symlink_to("gone")
    info = local.stat(_target(tmp_path / "link"))
    assert info is not None
    assert (info.type, info.size) == ("file", 3)
    link = local.lstat("link", str(tmp_path))
    assert link is not None
    assert link.type == "symlink"
    assert local.stat(_target(tmp_path / "broken")) is None
    assert local.lstat("gone", str(tmp_path)) is None
    assert local.stat(Target(str(tmp_path / "f" / "x"), "x")) is None


@pytest.mark.rule("FS-22")
def test_any_change_of_a_file_changes_its_version(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("x")

    def version() -> str:
        info = local.stat(_target(path))
        assert info is not None
        return info.version

    seen = [version()]
    assert version() == seen[0]
    os.utime(path, ns=(1, 1))
    seen.append(version())
    path.chmod(0o600)
    seen.append(version())
    path.write_text("y")
    seen.append(version())
    assert len(set(seen)) == 4
    assert all("." not in v for v in seen)


@pytest.mark.rule("FS-23", "FS-25")
def test_reading_checks_the_text_and_hides_the_mark(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert local.read_text(_target(path)) == "a\r\nb"
    for data in (b"a\0", b"a" * 8191 + b"\0", b"a\xffb", "é".encode()[:1]):
        path.write_bytes(data)
        assert _code(local.read_text, _target(path)) == "FS_NOT_TEXT"
    path.write_bytes(b"a" * 8192 + b"\0")
    assert local.read_text(_target(path)).endswith("\0")


@pytest.mark.rule("FS-3", "FS-23")
def test_a_character_split_over_chunks_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    text = "x" + "🐻" * 200_000
    path.write_text(text, encoding="utf-8")
    chunks = list(local.stream_text(_target(path)))
    assert len(chunks) > 1
    assert "".join(chunks) == text


@pytest.mark.rule("FS-9")
def test_special_files_are_refused_without_hanging(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for target in (_target(fifo), _target(tmp_path), _target(Path("/dev/zero"))):
        assert _code(local.read_text, target) == "FS_NOT_REGULAR_FILE"
        assert _code(local.write_text, target, "x") == "FS_NOT_REGULAR_FILE"
        assert _code(local.edit_text, target, EditRequest("a", "b")) == "FS_NOT_REGULAR_FILE"


@pytest.mark.rule("FS-5")
def test_write_guards(tmp_path: Path) -> None:
    target = _target(tmp_path / "f")
    outcome = local.write_text(target, "one", WriteIntent())
    assert (outcome.operation, outcome.before, outcome.after) == ("create", None, "one")
    assert _code(local.write_text, target, "x", WriteIntent()) == "FS_NOT_OBSERVED"
    again = local.write_text(target, "two\r\n", WriteIntent(outcome.version))
    assert (again.operation, again.before, again.after) == ("update", "one", "two\n")
    assert (tmp_path / "f").read_bytes() == b"two\r\n"
    assert _code(local.write_text, target, "x", WriteIntent(outcome.version)) == "FS_STALE_VERSION"
    (tmp_path / "f").unlink()
    assert _code(local.write_text, target, "x", WriteIntent(again.version)) == "FS_STALE_VERSION"
    assert local.write_text(target, "free").operation == "create"


@pytest.mark.rule("FS-26")
def test_what_was_no_text_before_has_no_before(tmp_path: Path) -> None:
    for data in (b"a\0", b"\xff"):
        (tmp_path / "f").write_bytes(data)
        outcome = local.write_text(_target(tmp_path / "f"), "x")
        assert (outcome.operation, outcome.before) == ("update", None)


@pytest.mark.rule("FS-6")
def test_an_outdated_edit_says_so_before_it_looks_for_the_text(tmp_path: Path) -> None:
    path = tmp_path / "f"
    edit = EditRequest("nowhere", "x")
    assert _code(local.edit_text, _target(path), edit) == "FS_STALE_VERSION"
    path.write_text("abc")
    assert _code(local.edit_text, _target(path), edit, "old") == "FS_STALE_VERSION"
    assert _code(local.edit_text, _target(path), edit) == "FS_EDIT_NOT_FOUND"


@pytest.mark.rule("FS-7")
def test_of_two_edits_of_one_version_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("abc")
    info = local.stat(_target(path))
    assert info is not None
    local.edit_text(_target(path), EditRequest("a", "A"), info.version)
    assert _code(local.edit_text, _target(path), EditRequest("b", "B"), info.version) == "FS_STALE_VERSION"
    assert path.read_text() == "Abc"


@pytest.mark.rule("FS-29", "FS-30")
def test_mode_bits_stay_and_new_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "f"
    local.write_text(_target(path), "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o755)
    local.edit_text(_target(path), EditRequest("x", "y"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    local.write_text(_target(path), "z")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == ["f"]


@pytest.mark.rule("FS-29")
def test_a_symlink_keeps_pointing_to_the_changed_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    local.write_text(_target(tmp_path / "link"), "y")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "y"


@pytest.mark.rule("FS-29")
def test_parents_are_made_and_long_names_fit(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / ("é" * 127)
    local.write_text(_target(path), "x")
    assert path.read_text() == "x"


@pytest.mark.rule("FS-8", "FS-10", "FS-31")
def test_a_cancelled_or_failed_mutation_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    signal = Signal()
    signal.cancel()
    assert _code(local.write_text, _target(path), "new", None, signal) == "FS_ABORTED"
    assert _code(local.edit_text, _target(path), EditRequest("old", "new"), None, signal) == "FS_ABORTED"
    signal = Signal()
    sync = os.fsync

    def cancelling(descriptor: int) -> None:
        signal.cancel()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", cancelling)
    assert _code(local.write_text, _target(path), "new", None, signal) == "FS_ABORTED"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert _code(local.write_text, _target(path), "new") == "FS_IO_ERROR"
    assert path.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "home"]


@pytest.mark.rule("FS-5")
def test_a_file_that_appears_during_a_create_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    sync = os.fsync

    def racing(descriptor: int) -> None:
        path.write_text("theirs")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", racing)
    assert _code(local.write_text, _target(path), "mine", WriteIntent()) == "FS_NOT_OBSERVED"
    assert path.read_text() == "theirs"


@not_root
def test_what_the_system_refuses_is_permission_denied(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    assert _code(local.write_text, _target(folder / "f"), "x") == "FS_PERMISSION_DENIED"


@pytest.mark.rule("FS-4", "FS-33", "FS-34")
def test_listing_is_ordered_by_code_points(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for name in ("b", "B", "é", "a\nb"):
        (folder / name).write_text("xy")
    (folder / "sub").mkdir()
    (folder / "broken").symlink_to("gone")
    (folder / "link").symlink_to("b")
    entries = local.list_dir(_target(folder))
    assert [e.name for e in entries] == sorted(["b", "B", "é", "a\nb", "sub", "broken", "link"])
    by_name = {e.name: e for e in entries}
    assert (by_name["broken"].type, by_name["broken"].version, by_name["broken"].size) == ("other", None, None)
    assert (by_name["sub"].type, by_name["sub"].size) == ("directory", None)
    assert (by_name["link"].type, by_name["link"].size) == ("file", 2)
    assert by_name["link"].target.key == str(folder / "b")
    assert _code(local.list_dir, _target(folder / "b")) == "FS_NOT_DIRECTORY"
    assert _code(local.list_dir, _target(folder / "gone")) == "FS_NOT_FOUND"


@pytest.mark.rule("FS-41", "FS-42", "FS-43", "FS-44")
def test_the_fence_looks_at_real_paths(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "work-outside"
    work.mkdir()
    outside.mkdir()
    (work / "out").symlink_to(outside)
    (work / "in").symlink_to(".")
    (work / "dangling").symlink_to(outside / "new")
    (tmp_path / "way").symlink_to(work)
    for inside in ("f", "a/b/f", "in/f", str(work / "f"), str(tmp_path / "way" / "f"), "x/../f"):
        assert writable_target(inside, str(work)).key.startswith(str(work) + "/")
    assert writable_target("f", str(tmp_path / "way")).key == str(work / "f")
    for path in ("../f", str(outside / "f"), "out/f", "dangling", "/tmp/f", "/etc/passwd", "in/../../f"):
        assert _code(writable_target, path, str(work)) == "FS_SANDBOX_DENIED"
    with pytest.raises(FsError, match=r"\n\[sandbox: file access denied under workspace-write mode\]$"):
        writable_target("/f", str(work))


@pytest.mark.rule("FS-42")
def test_containment_knows_a_root_by_its_inode_too(tmp_path: Path) -> None:
    (tmp_path / "work" / "d").mkdir(parents=True)
    assert contains(str(tmp_path / "work"), str(tmp_path / "other" / ".." / "work" / "d")) is False
    (tmp_path / "other").mkdir()
    assert contains(str(tmp_path / "work"), str(tmp_path / "other" / ".." / "work" / "d" / "new"))
    assert contains("/", "/anything")
    assert not contains(str(tmp_path / "gone"), str(tmp_path))
