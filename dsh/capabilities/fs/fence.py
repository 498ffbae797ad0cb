"""Where the tools may write: below the call's working directory, whatever the path is spelled like (FS-40 to
FS-43).

The mode is fixed to workspace-write and the one writable root is the working directory. The path is resolved
again right before the mutation, and the fresh target is the one that is mutated.
"""

from __future__ import annotations

import os

from dsh.capabilities.fs.errors import FsError
from dsh.capabilities.fs.local import Target, resolve

MODE = "workspace-write"


def writable_target(path: str, cwd: str) -> Target:
    """The target of a mutation, resolved now; FS_SANDBOX_DENIED if it is outside (FS-42, FS-44)."""
    target = resolve(path, cwd)
    root = os.path.realpath(cwd)
    if not contains(root, target.key):
        raise FsError(
            f"{target.display} is outside the working directory {root}\n"
            f"[sandbox: file access denied under {MODE} mode]",
            "FS_SANDBOX_DENIED",
        )
    return target


def contains(root: str, path: str) -> bool:
    """Whether a real path is `root` or below it, by name or, for other spellings, by device and inode
    (FS-42)."""
    if path == root or path.startswith(root.rstrip(os.sep) + os.sep):
        return True
    try:
        wanted = os.stat(root)
    except OSError:
        return False
    while True:
        try:
            status = os.stat(path)
        except OSError:
            pass  # a missing part has no identity; its ancestors do
        else:
            if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
        parent = os.path.dirname(path)
        if parent == path:
            return False
        path = parent
