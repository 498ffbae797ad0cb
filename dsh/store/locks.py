"""Who holds the database, and which process is which: facts of this machine, best effort, never an error."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def holder_of(path: Path, *, reading: bool = False) -> int | None:
    """The process that has a write lock on the database, or with `reading` any lock, where the system tells (Linux,
    /proc/locks)."""
    try:
        inodes = {os.stat(p).st_ino for p in (path, Path(f"{path}-shm")) if p.exists()}
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()  # 1: POSIX ADVISORY WRITE 123 fd:01:4567 0 EOF
            if len(fields) >= 6 and (reading or fields[3] == "WRITE") and int(fields[5].rpartition(":")[2]) in inodes:
                pid = int(fields[4])
                if pid not in (os.getpid(), -1):
                    return pid
    except (OSError, ValueError):
        pass
    return None


@cache
def boot_id() -> str:
    """Names this boot of this machine, and after a space the namespace that process ids count in, where there is one:
    a lease of another boot is stale, the process of one from another namespace (a container) cannot be asked."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
    try:
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return boot


def process_start(pid: int) -> str:
    """When a process began, as the system writes it: with the pid it names one process; empty if it is gone. One that
    has ended is gone, though nobody may collect it: the first process of a container often does not."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in ("Z", "X") else facts[18]
    except (OSError, IndexError):
        return "" if not _alive(pid) else "unknown"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
