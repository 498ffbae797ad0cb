"""Waking the process that drives a session: a datagram that says no more than "look at the inbox".

The truth is the row in the database; the datagram only saves the wait for the next heartbeat, when the driver looks
anyway. So a lost one costs time and no message, and a forged one costs a query. The address follows from the random
token of the lease: on Linux it is a name in no folder, which ends with its process; elsewhere a file in the folder
for temporary files, which the driver removes.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress


def address(holder: str) -> str:
    name = f"dsh-{holder}"
    if sys.platform != "linux":
        import tempfile

        return os.path.join(tempfile.gettempdir(), f"{name}.sock")
    return f"\0{name}"


def listen(holder: str) -> socket.socket | None:
    """The socket that `ring` reaches, not blocking; None where there can be none."""
    try:
        ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:  # no descriptor is left
        return None
    try:
        ear.bind(address(holder))
    except OSError:
        ear.close()
        return None
    ear.setblocking(False)
    return ear


def heard(ear: socket.socket) -> None:
    """Take what has come in; one look at the inbox answers all of it."""
    with suppress(OSError):
        while True:
            ear.recv(1)


def hang_up(ear: socket.socket, holder: str) -> None:
    ear.close()
    where = address(holder)
    if not where.startswith("\0"):
        with suppress(OSError):
            os.unlink(where)


def ring(holder: str) -> bool:
    """Wake the holder of a lease; False if nobody listens (another machine, container or user, or just gone)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.setblocking(False)
        try:
            bell.sendto(b".", address(holder))
        except BlockingIOError:  # it has not yet looked after many others: it will
            return True
        except OSError:
            return False
    return True
