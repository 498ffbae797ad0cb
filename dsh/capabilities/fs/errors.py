"""The coded failures of file operations (docs/spec/filesystem.md)."""

from __future__ import annotations

import errno

from dsh.core.errors import ToolError
from dsh.core.lossless import mend_surrogates


class FsError(ToolError):
    """A file operation failed; the code is one of the `FS_*` table."""

    code = "FS_IO_ERROR"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(mend_surrogates(message), code=code)


def not_found(path: str) -> FsError:
    return FsError(f"file not found: {path}", "FS_NOT_FOUND")


def not_regular(path: str) -> FsError:
    return FsError(f"not a regular file: {path}", "FS_NOT_REGULAR_FILE")


def stale(path: str) -> FsError:
    return FsError(f"{path} changed since it was last read; read it again", "FS_STALE_VERSION")


def from_os(error: OSError, path: str) -> FsError:
    """The coded form of what the operating system said."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return not_found(path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FsError(f"permission denied: {path} ({error.strerror})", "FS_PERMISSION_DENIED")
    return FsError(f"{path}: {error.strerror or error}", "FS_IO_ERROR")
