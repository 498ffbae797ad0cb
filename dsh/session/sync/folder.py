"""A folder as a place of `sync`: on a share, on a stick, in what a cloud service copies.

`FOLDER/FAMILY/LENGTH-DIGEST.jsonl.zstd`: a file holds one log and is never changed, so what is listed tells what is
there, no two writers meet, and a file that has not been copied whole is merely not a log yet. When a log has grown it
is a new file, and those that hold a beginning of it are removed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dsh.core.errors import SessionError, UsageError
from dsh.session.sync.model import Broken, Fetch, NotWhole, Offer, Outcome, key_of, same_digest
from dsh.session.transfer import read_log
from dsh.store.database import publish

_NAME = re.compile(r"([1-9][0-9]{0,15})-([0-9a-f]{16}-(?:[0-9a-f]{16}|redacted))\.jsonl\.zstd")
# What goes wrong with one file goes wrong with all of them.
_WHOLE_FOLDER = {getattr(errno, name) for name in ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EIO", "ESTALE")}
_PART = re.compile(r"\..*\.([0-9a-f-]+)\.(\d+)\.part")


class Folder:
    """A folder of logs. `digest` gives that of a log of ours at some length; `writer` names our database, so that what
    was left of its interrupted runs can be cleared away."""

    def __init__(self, root: Path, digest: Callable[[str, int], str], writer: str, *, create: bool) -> None:
        self.root = root
        self._digest = digest
        self._writer = writer
        if not root.is_dir():
            if root.exists() or root.is_symlink():
                raise UsageError(f"{root} is not a folder")
            if not create or not root.parent.is_dir():
                raise UsageError(f"there is no folder {root}")

    def offers(self) -> Iterator[Offer]:
        if not self.root.exists():  # it is made with its first file
            return
        for family in sorted(self.root.iterdir()):
            if not family.name.startswith(".") and family.is_dir() and not family.is_symlink():
                yield from self._logs(family.name)

    def _logs(self, key: str) -> list[Offer]:
        found = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.root / key) as entries:
            for entry in entries:
                name = _NAME.fullmatch(entry.name)
                if name and entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size:
                    found.append(Offer(key, int(name[1]), name[2]))
        return sorted(found)

    def _path(self, offer: Offer) -> Path:
        return self.root / offer.key / f"{offer.length}-{offer.digest}.jsonl.zstd"

    def described(self, offer: Offer) -> Offer:
        with self.fetch(offer) as file:
            header = read_log(file).header
        if header is None:
            raise SessionError("it has no header", code="LOG_CORRUPT")
        if key_of(header["id"]) != offer.key:
            raise NotWhole("it is of another session")
        return offer._replace(id=header["id"], parent=header.get("parentSession"))

    @contextmanager
    def fetch(self, offer: Offer) -> Iterator[BinaryIO]:
        try:
            handle = os.open(self._path(offer), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:  # a longer one has taken its place, or it has not been copied yet
            raise NotWhole("it is gone") from None
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NotWhole("it is no regular file")
            yield file

    def wanted(self, offers: Iterable[Offer]) -> list[Offer]:
        return [offer for offer in offers if not self._has(offer)]

    def _has(self, offer: Offer) -> bool:
        there = self._logs(offer.key)
        held = any(log.length == offer.length and same_digest(log.digest, offer.digest) for log in there)
        if held:
            self._clear(offer, there)
        return held

    def put(self, offer: Offer, fetch: Fetch, *, dry_run: bool) -> Outcome:
        there = self._logs(offer.key)
        outcome = Outcome("grown" if self._beginnings(offer, there) else "diverged" if there else "new", str(offer.id))
        if dry_run:
            return outcome._replace(events=offer.length)
        with fetch() as log:
            self._write(log, self._path(offer))
        self._clear(offer, there)
        return outcome._replace(events=offer.length)

    def _write(self, log: BinaryIO, path: Path) -> None:
        import shutil

        part = path.with_name(f".{path.name}.{self._writer}.{os.getpid()}.part")
        try:
            for folder in (self.root, path.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
            with open(part, "wb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as file:
                shutil.copyfileobj(log, file, 1 << 20)
            publish(part, path, replace=True)
        except OSError as error:
            if error.errno not in _WHOLE_FOLDER:
                raise
            raise Broken(f"{self.root} cannot be written: {error.strerror}") from error
        finally:
            with suppress(OSError):
                part.unlink()

    def _beginnings(self, offer: Offer, there: Iterable[Offer]) -> list[Offer]:
        """The logs that this one begins with."""
        return [
            log
            for log in there
            if log.length < offer.length and same_digest(self._digest(str(offer.id), log.length), log.digest)
        ]

    def _clear(self, offer: Offer, there: Iterable[Offer]) -> None:
        """Remove what a log that is there makes superfluous, and what our own interrupted runs have left."""
        for log in self._beginnings(offer, there):
            self._path(log).unlink(missing_ok=True)
        for name in os.listdir(self.root / offer.key):
            part = _PART.fullmatch(name)
            if part and part[1] == self._writer and not _runs(int(part[2])):
                (self.root / offer.key / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Every file is on disk when it has its name."""


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
