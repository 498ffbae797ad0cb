"""Child processes of tools: each leads a group of its own, and the group ends with the call that started it.

Three things keep a child from outliving its owner. Leaving `async with child` kills what is left of the
group. `end` does so politely: SIGTERM, a grace, SIGKILL, and it also reaches descendants that moved to a
session of their own, as far as /proc still shows whose they are. And on Linux every child holds one end of a
pipe, the leash: the kernel is told to send SIGKILL to the group when the other end closes, so the death of
this very process, even by SIGKILL, takes the command along. The leash costs a few system calls and no further
process.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

import trio

# Inherited descriptors start here, out of the way of the numbers that scripts like to use.
_LEASH_FD = 64
# A killed process is gone within moments, unless it hangs in the kernel, where nobody can help.
_DEATH = 1.0
_LINUX = sys.platform == "linux"


class Child:
    """A running command with pipes on its output; `pid` is also the id of its group and session."""

    def __init__(self, process: trio.Process, leash: int | None, far_fd: int | None) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.pid = process.pid
        self.stdout = process.stdout
        self.stderr = process.stderr
        self.stdin = process.stdin
        self._process = process
        self._leash = leash
        self._leash_fd = far_fd
        self._leash_name = None if leash is None else f"pipe:[{os.fstat(leash).st_ino}]"
        self._strays: dict[int, str] = {}

    async def __aenter__(self) -> Child:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            if self.group_alive() or self._strays_alive():
                await self._kill()
            if self._leash is not None:
                os.close(self._leash)
                self._leash = None
            await self._process.wait()
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    await stream.aclose()

    async def wait(self) -> int:
        """Wait for the command itself, not for its descendants; a negative number is the signal that killed
        it."""
        return await self._process.wait()

    @property
    def returncode(self) -> int | None:
        """How the command ended, None while it runs."""
        return self._process.returncode

    def group_alive(self) -> bool:
        """Whether any process of the group still runs; dead ones that nobody has reaped do not count."""
        self._process.poll()
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        table = _processes()
        return not table or any(p.group == self.pid and p.state not in "ZX" for p in table.values())

    def lingers(self) -> bool:
        """Whether anything of the group or session is left behind. Usually two system calls tell that nothing
        is."""
        if self.group_alive():
            return True
        if self._leash is None or not self._leash_held():
            return False
        self._find_strays(everywhere=False)
        return bool(self._strays_alive())

    async def end(self, grace: float, *, everywhere: bool = True) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds or once all are gone (BA-16). Not cancellable.

        `everywhere` includes descendants that have left the session.
        """
        with trio.CancelScope(shield=True):
            self._find_strays(everywhere)
            self._send(signal.SIGTERM)
            await self._until_gone(grace)
            self._find_strays(everywhere)
            await self._kill()

    async def _kill(self) -> None:
        self._send(signal.SIGKILL)
        await self._until_gone(_DEATH)

    async def _until_gone(self, limit: float) -> None:
        with trio.move_on_after(limit):
            pause = 0.001
            while self.group_alive() or self._strays_alive():
                await trio.sleep(pause)
                pause = min(pause * 1.5, 0.05)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        for pid in self._strays_alive():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _leash_held(self) -> bool:
        """Whether some process still holds the far end: one that was started by the command, however
        indirectly."""
        assert self._leash is not None
        poll = select.poll()
        poll.register(self._leash, 0)
        return not poll.poll(0)

    def _find_strays(self, everywhere: bool) -> None:
        """Remember processes outside the group: those of the session and, if wanted, everywhere those that
        hold the leash or have a parent known to be ours."""
        table = _processes()
        ours = {pid for pid, p in table.items() if p.session == self.pid or p.group == self.pid}
        ours |= {self.pid, *self._strays_alive(table)}
        if everywhere:
            ours |= {pid for pid in table if self._holds_leash(pid)}
            while more := {pid for pid, p in table.items() if pid not in ours and p.parent in ours}:
                ours |= more
        ours.discard(os.getpid())
        self._strays |= {pid: table[pid].started for pid in ours if pid in table and table[pid].group != self.pid}

    def _holds_leash(self, pid: int) -> bool:
        try:
            return self._leash_name is not None and os.readlink(f"/proc/{pid}/fd/{self._leash_fd}") == self._leash_name
        except OSError:
            return False

    def _strays_alive(self, table: Mapping[int, _Process] | None = None) -> list[int]:
        if not self._strays:
            return []
        table = _processes() if table is None else table
        return [
            pid
            for pid, started in self._strays.items()
            if pid in table and table[pid].started == started and table[pid].state not in "ZX"
        ]


class _Process:
    """The fields of /proc/PID/stat that say whose a process is; `started` tells a reused pid from the old
    one."""

    __slots__ = ("group", "parent", "session", "started", "state")

    def __init__(self, stat: str) -> None:
        fields = stat[stat.rindex(")") + 2 :].split()
        self.state = fields[0]
        self.parent, self.group, self.session = (int(field) for field in fields[1:4])
        self.started = fields[19]


def _processes() -> dict[int, _Process]:
    """The process table, empty where there is no /proc."""
    table: dict[int, _Process] = {}
    if not _LINUX:
        return table
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                suppress(OSError, ValueError),
                open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file,
            ):
                table[int(name)] = _Process(file.read())
    return table


async def spawn(argv: Sequence[str], *, cwd: str, env: Mapping[str, str] | None = None, stdin: bool = False) -> Child:
    """Start `argv` in a session of its own, to be used as `async with await spawn(...) as child`.

    Standard input is /dev/null, or with `stdin` a pipe. Raises OSError when the program or `cwd` is not
    usable.
    """
    near, far = _leash_pair()
    try:
        process = await trio.lowlevel.open_process(
            list(argv),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            start_new_session=True,
            pass_fds=() if far is None else (far,),
        )
        if far is not None:
            with suppress(OSError):
                fcntl.fcntl(far, fcntl.F_SETOWN, -process.pid)
                fcntl.fcntl(far, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(far, fcntl.F_SETFL, fcntl.fcntl(far, fcntl.F_GETFL) | os.O_ASYNC)
    except BaseException:
        if near is not None:
            os.close(near)
        raise
    finally:
        if far is not None:
            os.close(far)
    return Child(process, near, far)


def _leash_pair() -> tuple[int | None, int | None]:
    """Our end and the child's end of the leash; nothing where the kernel cannot signal a group for a closed
    pipe."""
    if not _LINUX:
        return None, None
    read, write = os.pipe()
    try:
        return write, fcntl.fcntl(read, fcntl.F_DUPFD_CLOEXEC, _LEASH_FD)
    except OSError:
        os.close(write)
        return None, None
    finally:
        os.close(read)
