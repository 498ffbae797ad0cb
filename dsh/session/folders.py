"""Where exported sessions lie: `ROOT/PROJECT/SESSION/session.jsonl[.zstd]` (PE-64), and how they get there (PE-65).

A file appears under its name only when it is whole and on disk, and never in place of another: it is written beside
it, synced, and linked. One root holds one encoding, and one id once.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dsh.core.errors import SessionError, UsageError
from dsh.core.events import SessionHeader

PLAIN, COMPRESSED = "session.jsonl", "session.jsonl.zstd"
_PROJECT_UNITS = 251


def session_segment(id: str) -> str:
    """The folder name of a session id. UsageError for an empty one."""
    if not id:
        raise UsageError("an empty id names no folder")
    if id in (".", ".."):
        return "~002E" * len(id)
    return _escaped(id, "A-Za-z0-9._-")


def project_segment(cwd: str | None) -> str:
    """The folder name of a working directory; several may share one."""
    if cwd is None:
        return "_no-cwd"
    name = _escaped(re.sub(r"[/\\:]+", "-", cwd), "A-Za-z0-9._-").lstrip("-")
    return f"--{name[:_PROJECT_UNITS] or 'root'}--"


def _escaped(text: str, kept: str) -> str:
    def units(found: re.Match[str]) -> str:
        raw = found[0].encode("utf-16-be", "surrogatepass")
        return "".join(f"~{raw[at]:02X}{raw[at + 1]:02X}" for at in range(0, len(raw), 2))

    return re.sub(f"[^{kept}]", units, text)


def path_of(root: Path, header: SessionHeader, *, zstd: bool) -> Path:
    """Where a session belongs in a root."""
    folder = root / project_segment(header.get("cwd")) / session_segment(header["id"])
    return folder / (COMPRESSED if zstd else PLAIN)


def sessions_in(root: Path) -> list[Path]:
    """Every session file of a root, by path.

    LOG_CORRUPT if it holds both encodings, or one id in two projects; OSError if it cannot be listed.
    """
    files = [
        file
        for project in sorted(root.iterdir())
        if project.is_dir()
        for folder in sorted(project.iterdir())
        for file in (folder / PLAIN, folder / COMPRESSED)
        if file.is_file()
    ]
    if len({file.name for file in files}) > 1:
        raise SessionError(f"{root} holds plain and compressed sessions", code="LOG_CORRUPT")
    seen: dict[str, Path] = {}
    for file in files:
        other = seen.setdefault(file.parent.name, file)
        if other is not file:
            raise SessionError(f"{other} and {file} are of one session", code="LOG_CORRUPT")
    return files


def places(root: Path, headers: list[SessionHeader], *, zstd: bool) -> list[Path]:
    """Where new sessions go in a root. UsageError if one is there already, or those that are there are of the other
    encoding; LOG_CORRUPT as `sessions_in`. Nothing is made yet."""
    there = sessions_in(root) if root.is_dir() else []
    if there and (there[0].name == COMPRESSED) != zstd:
        kind = "plain" if zstd else "compressed"
        raise UsageError(f"{root} holds {kind} sessions", hint="one folder holds one kind")
    taken = {file.parent.name: file for file in there}
    for header in headers:
        if other := taken.get(session_segment(header["id"])):
            raise taken_by(other)
    return [path_of(root, header, zstd=zstd) for header in headers]


def check_place(root: Path, file: Path, header: SessionHeader) -> None:
    """LOG_CORRUPT unless this header belongs where its file lies."""
    if path_of(root, header, zstd=file.name == COMPRESSED) != file:
        raise SessionError(f"{file} is of session {header['id']} and does not belong there", code="LOG_CORRUPT")


@contextmanager
def published(path: Path, *, folders: bool = False) -> Iterator[BinaryIO]:
    """A new file to write; when the block ends well it is on disk under its name, otherwise there is none.

    Mode 0600; `folders` makes missing parent folders, mode 0700. UsageError if something is there already, OSError
    with the file's name.
    """
    made = _folders(path.parent) if folders else []
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        if os.path.lexists(path):
            raise _there(path)
        try:  # from here on, since a signal may come as soon as the file is there
            with open(part, "xb", opener=_private) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _link(part, path)
        finally:
            part.unlink(missing_ok=True)
        for folder in {path.parent, *(new.parent for new in made)}:
            _sync(folder)
    except BaseException as error:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError) and (error.filename is None or error.filename == str(part)):
            error.filename = str(path)
        raise


def _private(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_CLOEXEC, 0o600)


def _folders(folder: Path) -> list[Path]:
    """Make a folder and its parents; those that were made, outermost first."""
    made = []
    for each in [*reversed(folder.parents), folder]:
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)
            made.append(each)
    return made


def _link(part: Path, path: Path) -> None:
    try:
        os.link(part, path)
    except FileExistsError:
        raise _there(path) from None
    except OSError:  # a file system without links: claim the name, then take its place
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            raise _there(path) from None
        os.replace(part, path)


def taken_by(file: Path) -> UsageError:
    """Why a session does not go to a root again."""
    return UsageError(f"{file} exists already", hint="name a new folder; dsh sync push DIR keeps one up to date")


def _there(path: Path) -> UsageError:
    return UsageError(f"{path} exists already")


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
