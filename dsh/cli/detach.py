"""`dsh run --detach`: the run goes on in a process that no shell ends.

The process is forked, not started anew: what was typed is checked and read already, and a fork is the same program
from a checkout, an installation or the one file. It happens before anything that a fork would harm is imported: no
trio, no thread, no open database. The child gets a session of its own (no terminal, hence no hang-up of one), ignores
SIGHUP as under `nohup`, and reads and writes nothing.

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
    news, teller = _pipe()
    complaints, errors = _pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    child = os.fork()
    if child == 0:
        os.close(news)
        os.close(complaints)
        _leave_the_shell(errors)
        return go(lambda: content, _Teller(teller))
    os.close(teller)
    os.close(errors)
    return _Starting(child, news, complaints).wait()


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are none of the three standard descriptors, which may be closed."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _leave_the_shell(errors: int) -> None:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _to_nothing(0, 1)
    os.dup2(errors, 2)
    os.close(errors)


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

    def wait(self) -> int:
        heeded = [n for n in _ENDING if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._received) for number in heeded}
        try:
            session = self._session()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if session is None:
            return self._failed()
        output.line(session)
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
