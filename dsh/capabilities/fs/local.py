"""The local file system as the tools see it: targets, versions, reading, guarded and atomic mutation.

Every operation is synchronous and short, so within one process it is a critical section by itself and
mutations of a file happen in the order they were asked for (FS-7). Reading streams, so its caller can let
other work run between two chunks. Nothing here confines anything: that is the fence's job (FS-35).
"""

from __future__ import annotations

import codecs
import os
import stat as stat_bits
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple

from dsh.capabilities.fs.edit import BOM, EditRequest, apply_edit, decode, lf
from dsh.capabilities.fs.errors import FsError, from_os, not_found, not_regular, stale
from dsh.kernel.signal import Signal

_BINARY_SAMPLE = 8192
_CHUNK = 262_144
_NAME_MAX = 255

EntryType = Literal["file", "directory", "other"]


class Target(NamedTuple):
    """A resolved file: `key` is its identity under every spelling, `display` the path to show."""

    key: str
    display: str


class Info(NamedTuple):
    """`version` is opaque and only ever compared for equality (FS-22)."""

    version: str
    type: EntryType
    size: int | None


class PathInfo(NamedTuple):
    """What stands at a path itself, not where a final symlink leads (FS-2)."""

    version: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int | None


class DirEntry(NamedTuple):
    name: str
    type: EntryType
    target: Target
    version: str | None = None
    size: int | None = None


class WriteIntent(NamedTuple):
    """The guard of a write: `version` None means the file must not exist yet (FS-5)."""

    version: str | None = None


class Outcome(NamedTuple):
    """A mutation: `before` and `after` are whole texts with LF; `before` None where there was no text."""

    operation: Literal["create", "update"]
    version: str
    before: str | None
    after: str


def resolve(path: str, cwd: str) -> Target:
    """The target of a path, existing or not; symlinks are followed (FS-1, FS-20, FS-21, FS-62)."""
    if not path.strip():
        raise FsError("file_path must be a non-empty string", "FS_NOT_FOUND")
    if "\0" in path:
        raise FsError("file_path must not contain a NUL character", "FS_NOT_FOUND")
    if ".." in cwd.split(os.sep) or ".." in path.split(os.sep):
        cwd = os.path.realpath(cwd)
    joined = os.path.join(cwd, path)
    key = os.path.realpath(joined)
    try:
        os.lstat(key)
    except NotADirectoryError as error:
        raise not_found(path) from error
    except OSError:  # absent, or not reachable: what is wanted with it decides whether that is an error
        pass
    # A `..` behind a symlink cannot be normalised away: the physical path is the one that is true.
    display = key if ".." in path.split(os.sep) else os.path.normpath(joined)
    return Target(key, display)


def version_of(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def _type_of(status: os.stat_result) -> EntryType:
    if stat_bits.S_ISREG(status.st_mode):
        return "file"
    return "directory" if stat_bits.S_ISDIR(status.st_mode) else "other"


def stat(target: Target) -> Info | None:
    """What the target is now, None if absent; never its content (FS-2)."""
    try:
        status = os.stat(target.key)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise from_os(error, target.display) from error
    return Info(version_of(status), _type_of(status), status.st_size)


def lstat(path: str, cwd: str) -> PathInfo | None:
    """What stands at `path`, without following a final symlink (FS-2)."""
    if not path.strip():
        raise FsError("file_path must be a non-empty string", "FS_NOT_FOUND")
    try:
        status = os.lstat(os.path.join(cwd, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise from_os(error, path) from error
    link = stat_bits.S_ISLNK(status.st_mode)
    return PathInfo(version_of(status), "symlink" if link else _type_of(status), status.st_size)


def list_dir(target: Target) -> list[DirEntry]:
    """Direct children in code-point order of their names, metadata only (FS-4, FS-33, FS-34)."""
    try:
        names = sorted(os.listdir(target.key))
    except NotADirectoryError as error:
        raise FsError(f"not a directory: {target.display}", "FS_NOT_DIRECTORY") from error
    except OSError as error:
        raise from_os(error, target.display) from error
    return [_entry(target, name) for name in names]


def _entry(parent: Target, name: str) -> DirEntry:
    display = os.path.join(parent.display, name)
    child = Target(os.path.realpath(os.path.join(parent.key, name)), display)
    info = stat(child)
    if info is None:  # vanished meanwhile, or a broken link
        return DirEntry(name, "other", child)
    return DirEntry(name, info.type, child, info.version, info.size if info.type == "file" else None)


@contextmanager
def _opened(target: Target) -> Iterator[int]:
    """A descriptor of a regular file. Opening cannot hang: a pipe that took its place is noticed (FS-9)."""
    try:
        descriptor = os.open(target.key, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise from_os(error, target.display) from error
    try:
        if not stat_bits.S_ISREG(os.fstat(descriptor).st_mode):
            raise not_regular(target.display)
        yield descriptor
    except OSError as error:
        raise from_os(error, target.display) from error
    finally:
        os.close(descriptor)


def stream_text(target: Target) -> Iterator[str]:
    """The decoded text in chunks whose borders mean nothing (FS-3, FS-23, FS-25).

    Raises FS_NOT_TEXT for a NUL byte among the first 8192 bytes and for invalid UTF-8 anywhere.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = True
    with _opened(target) as descriptor:
        while True:
            data = os.read(descriptor, _CHUNK)
            if start and b"\0" in data[:_BINARY_SAMPLE]:
                raise FsError(f"binary file: {target.display}", "FS_NOT_TEXT")
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise FsError(f"not valid UTF-8: {target.display}", "FS_NOT_TEXT") from error
            if start and text:
                text = text.removeprefix(BOM)
                start = False
            if text:
                yield text
            if not data:
                return


def read_text(target: Target) -> str:
    """The whole text, with the checks of `stream_text`."""
    return "".join(stream_text(target))


def write_text(
    target: Target, content: str, intent: WriteIntent | None = None, signal: Signal | None = None
) -> Outcome:
    """Create or replace a file, atomically; without an intent unconditionally (FS-5, FS-8, FS-26).

    Raises FS_NOT_OBSERVED when an intent to create meets a file, FS_STALE_VERSION when the file is not the
    one seen.
    """
    _require_live(signal)
    info = stat(target)
    if info is not None and info.type != "file":
        raise not_regular(target.display)
    if intent is not None:
        if intent.version is None and info is not None:
            raise _unobserved(target)
        if intent.version is not None and (info is None or info.version != intent.version):
            raise stale(target.display)
    before = None
    if info is not None:
        with suppress(FsError):
            before = lf(decode(_read_bytes(target), target.display))
    fresh = intent is not None and intent.version is None
    version = _publish(target, content.encode(), signal, must_be_new=fresh)
    return Outcome("create" if info is None else "update", version, before, lf(content))


def edit_text(target: Target, edit: EditRequest, version: str | None = None, signal: Signal | None = None) -> Outcome:
    """Replace text in a file; `version` is the optional guard (FS-6). Raises what `apply_edit` does too."""
    _require_live(signal)
    info = stat(target)
    if info is None:
        raise stale(target.display)
    if info.type != "file":
        raise not_regular(target.display)
    if version is not None and info.version != version:
        raise stale(target.display)
    changed = apply_edit(_read_bytes(target), edit, target.display)
    return Outcome("update", _publish(target, changed.data, signal), changed.before, changed.after)


def _require_live(signal: Signal | None) -> None:
    if signal is not None and signal.cancelled:
        raise FsError("the file operation was cancelled", "FS_ABORTED")


def _unobserved(target: Target) -> FsError:
    return FsError(f"{target.display} exists but was not read yet; read it before replacing it", "FS_NOT_OBSERVED")


def _read_bytes(target: Target) -> bytes:
    with _opened(target) as descriptor:
        parts: list[bytes] = []
        while data := os.read(descriptor, _CHUNK):
            parts.append(data)
        return b"".join(parts)


def _publish(target: Target, data: bytes, signal: Signal | None, *, must_be_new: bool = False) -> str:
    """Put `data` in the target's place and return the new version (FS-29 to FS-32).

    The bytes are written and synced inside a private folder beside the target and appear by one rename, or,
    for a file that must be new, by a link, which cannot replace anything.
    """
    parent, name = os.path.split(target.key)
    suffix = f".{os.getpid()}.{os.urandom(16).hex()}.tmpdir"
    stem = os.fsdecode(os.fsencode(name)[: _NAME_MAX - len(suffix) - 1])
    staging = os.path.join(parent, f".{stem}{suffix}")
    staged = os.path.join(staging, "file")
    try:
        os.makedirs(parent, exist_ok=True)
        os.mkdir(staging, 0o700)
    except OSError as error:
        raise from_os(error, target.display) from error
    try:
        _write_synced(staged, data, target.key)
        _require_live(signal)
        if must_be_new:
            _link_or_rename(staged, target)
        else:
            os.rename(staged, target.key)
    except OSError as error:
        raise from_os(error, target.display) from error
    finally:
        # What cannot be cleared away is an empty or private folder; the mutation is judged by its own
        # outcome.
        with suppress(OSError):
            os.unlink(staged)
        with suppress(OSError):
            os.rmdir(staging)
    try:
        return version_of(os.stat(target.key))
    except FileNotFoundError:
        return f"missing:{target.key}"


def _write_synced(path: str, data: bytes, replaced: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            old = os.stat(replaced)
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):  # only a privileged process can leave a file to its owner
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), old.st_mode & 0o777)


def _link_or_rename(staged: str, target: Target) -> None:
    try:
        os.link(staged, target.key)
    except FileExistsError as error:
        raise _unobserved(target) from error
    except OSError:  # a file system without hard links: the check made before has to do
        if os.path.lexists(target.key):
            raise _unobserved(target) from None
        os.rename(staged, target.key)
