"""`dsh run --detach`: the run goes on in a process that no shell ends.

The process is forked, not started anew: what was typed is checked and read already, and a fork is the same program
from a checkout, an installation or the one file. It happens before anything that a fork would harm is imported: no
trio, no thread, no open database. The child gets a session of its own (no terminal, hence no hang-up of one), ignores
SIGHUP as under `nohup`, and reads and writes nothing. Nor does it keep what else the shell had open: a `$(…)` would
wait for it, a lock of `flock` stay taken.

Two pipes lead back. One carries what the child says on standard error until its turn has begun, a failure included;
the other carries the session's id at that moment, or ends with the child. So the command tells the truth: with an id
on standard output the prompt is in the log, without one nothing runs and the exit code is the run's.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dsh.cli import output
from dsh.core.errors import DshError
from dsh.core.messages import Block

Go = Callable[[Callable[[], list[Block]], Callable[[str], None]], int]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_detached(content: list[Block], go: Go) -> int:
    """Start the run and return when its turn has begun (0) or it has failed before (its exit code). In the child,
    return when the run is over."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # one that comes now finds both sides ready for it
    try:
        news, teller = _pipe()
        complaints, errors = _pipe()
        child = os.fork()
    except OSError as error:  # too many processes or open files
        raise DshError(f"no process can be started for the run: {error.strerror}") from error
    if child == 0:
        _leave_the_shell(errors, teller)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return go(lambda: content, _Teller(teller))
    os.close(teller)
    os.close(errors)
    return _Starting(child, news, complaints).wait(held)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are none of the three standard descriptors, which may be closed."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _leave_the_shell(errors: int, teller: int) -> None:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _to_nothing(0, 1)
    os.dup2(errors, 2)
    for descriptor in map(int, os.listdir("/dev/fd")):
        if descriptor > 2 and descriptor != teller:
            with suppress(OSError):  # that of the listing is closed already
                os.close(descriptor)


def _to_nothing(*descriptors: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        if descriptor != nothing:
            os.dup2(nothing, descriptor)
    if nothing not in descriptors:
        os.close(nothing)


class _Teller:
    """Tells the waiting command the session's id, once; from then on nobody hears what the run says."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def __call__(self, session: str) -> None:
        if self._fd is None:
            return
        _to_nothing(2)
        with suppress(OSError):  # the command was killed while it waited; dsh ps finds the run
            os.write(self._fd, session.encode())
        os.close(self._fd)
        self._fd = None


class _Starting:
    """The command's side: waits for the child's news and passes its complaints on."""

    def __init__(self, child: int, news: int, complaints: int) -> None:
        self._child = child
        self._news = news
        self._complaints = complaints
        self._signal: int | None = None

    def wait(self, mask: set[int]) -> int:
        """The exit code. `mask` is what signals are to be blocked from now on; our handlers stay, as the process ends
        with this: a signal ends the run or finds its id printed."""
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._received)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        session = self._session()
        if session is None:
            return self._failed()
        output.told(session, f"session {session} is at work")
        return 0 if self._signal is None else 128 + self._signal

    def _received(self, number: int, frame: Any) -> None:
        """The run is told to end, and is still waited for; a second signal ends both at once, as it does without -d."""
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGTERM if number == signal.SIGHUP else number)
        if self._signal is not None:
            os._exit(128 + self._signal)
        self._signal = number

    def _session(self) -> str | None:
        """The id, or None if the child ended without one."""
        told = b""
        sources = {self._news, self._complaints}
        while self._news in sources:
            for source in select.select(sources, [], [])[0]:
                piece = os.read(source, 65536)
                if not piece:
                    sources.discard(source)
                elif source == self._news:
                    told += piece
                else:
                    _pass_on(piece)
        while self._complaints in sources and select.select([self._complaints], [], [], 0)[0]:
            piece = os.read(self._complaints, 65536)
            if not piece:
                break
            _pass_on(piece)
        return told.decode() or None

    def _failed(self) -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        if self._signal is not None:
            return 128 + self._signal
        if code < 0:
            raise DshError(f"the run was ended by {signal.Signals(-code).name} before its turn began")
        return code


def _pass_on(said: bytes) -> None:
    with suppress(OSError):  # nobody reads complaints; whether the run works matters
        while said:
            said = said[os.write(2, said) :]
