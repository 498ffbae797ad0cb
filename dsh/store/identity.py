"""Which file a database is, as one text: device, inode and, where the system tells, the time it was made (PE-51)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_AT_FDCWD, _STATX_BTIME, _SIZE, _BTIME = -100, 0x800, 256, 80


def file_identity(path: Path) -> str:
    """`DEVICE:INODE:BIRTH`; a copy, and a file that took another's inode, are another. OSError if there is none."""
    found = os.stat(path)
    return f"{found.st_dev}:{found.st_ino}:{_birth(path, found)}"


def _birth(path: Path, found: os.stat_result) -> str:
    told = getattr(found, "st_birthtime", None)
    if told is not None:
        return str(told)
    return _linux_birth(path) if sys.platform == "linux" else ""


def _linux_birth(path: Path) -> str:
    """Python's stat leaves it out on Linux, so the C library is asked; empty where it does not know."""
    import ctypes

    buffer = ctypes.create_string_buffer(_SIZE)
    try:
        statx = ctypes.CDLL(None).statx
    except AttributeError:
        return ""
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return ""
    mask = int.from_bytes(buffer.raw[:4], sys.byteorder)
    return buffer.raw[_BTIME : _BTIME + 12].hex() if mask & _STATX_BTIME else ""
