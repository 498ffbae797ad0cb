"""A second process that reads and builds while the first one writes.

It is a fork, made before the database is opened. It takes all of its jobs, then sends messages until it is done. Both
ends are the same program, so the messages are marshalled: no other form costs as little.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from dsh.importing.convert import FAILED, Job, Message, converted
from dsh.importing.model import Source


class Worker:
    """A forked converter. `converted` is asked once; `close` ends it, whatever it is doing."""

    def __init__(self) -> None:
        jobs_out, self._jobs = os.pipe()
        self._messages, messages_in = os.pipe()
        _widen(messages_in)
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._jobs)
                os.close(self._messages)
                _work(jobs_out, messages_in)
                code = 0
            finally:
                os._exit(code)
        os.close(jobs_out)
        os.close(messages_in)

    def converted(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Message]]:
        """The number of each job with the messages that it gives, job by job. A job that the process dies of has
        failed; those behind it are done here."""
        with open(self._jobs, "wb") as out:
            self._jobs = -1
            marshal.dump([(job.tool, tuple(job.source), job.known, job.continued, job.gone) for job in jobs], out)
        with open(self._messages, "rb", closefd=False) as messages:
            for number in range(len(jobs)):
                while True:
                    try:
                        message = marshal.load(messages)
                    except (EOFError, ValueError, TypeError):
                        yield number, (FAILED, "the process that read it has died")
                        yield from ((number + 1 + later, each) for later, each in inline(jobs[number + 1 :]))
                        return
                    if message is None:
                        break
                    yield number, message

    def close(self) -> None:
        import signal

        # A signal that comes while a fork begins is lost in it, so the pipes are closed too: it cannot wait for ever.
        os.close(self._messages)
        if self._jobs >= 0:
            os.close(self._jobs)
        os.kill(self.pid, signal.SIGTERM)  # it is our child and not waited for, so nobody else has its number
        os.waitpid(self.pid, 0)


def _widen(pipe: int) -> None:
    """Let a pipe hold more than a few messages, so that neither end waits for the other at each."""
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # a limit of the system, or of the user
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1024 * 1024)


def _work(jobs_out: int, messages_in: int) -> None:
    import gc
    import signal

    gc.disable()  # nothing here makes cycles; the whole process goes when it is done
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process hears of it, and closes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with open(jobs_out, "rb") as file:
        jobs = [Job(tool, Source(*source), *rest) for tool, source, *rest in marshal.load(file)]
    with open(messages_in, "wb") as out:
        try:
            for job in jobs:
                for message in converted(job):
                    marshal.dump(message, out)
                    out.flush()
                marshal.dump(None, out)
        except BrokenPipeError:
            os._exit(0)


def inline(jobs: Sequence[Job]) -> Iterator[tuple[int, Message]]:
    """The same without another process, for what is not worth one."""
    for number, job in enumerate(jobs):
        for message in converted(job):
            yield number, message
