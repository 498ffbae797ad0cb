"""Runs the local model's server as a child process for the length of a block.

The child lives in a session of its own, so Ctrl-C in the terminal does not reach it before its owner is done
with it. Three bonds end it with its owner: the end of the block (SIGTERM, SIGKILL after a grace, under a
shield), the end of its stdin (it exits when the owner's end of the pipe closes, whatever closes it), and on
Linux the kernel's parent-death signal. The last is bound to the thread that started the child, not to the
process: trio starts processes in short-lived worker threads, so the child is started here directly, which
takes about a millisecond.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import trio

from . import CONTEXT_WINDOW, GGUF, MODEL_ID, LocalModelError, child_environment, is_installed, payload_dir

_START_TIMEOUT = 120.0
_GRACE = 3.0
_LOG_LINES = 8
_REPAIR = "`dsh models install local` checks the installation and repairs it"


@asynccontextmanager
async def serve(
    *, threads: int | None = None, context: int = CONTEXT_WINDOW, think: bool = False
) -> AsyncIterator[str]:
    """Start the server, yield its base URL (`http://127.0.0.1:PORT/v1`) once it answers, end it after.

    `threads` is half of the usable cores if None; `context` is in tokens, at most CONTEXT_WINDOW; `think`
    makes the model write thoughts first (`reasoning_content`). One request is worked on at a time, others
    wait. Raises LocalModelError (code LOCAL_MODEL_FAILED) when it is not installed or does not start.
    """
    config = configuration(threads=threads, context=context, think=think)
    with launch(config, stdin=subprocess.PIPE) as (process, log):
        assert process.stdout is not None
        async with trio.lowlevel.FdStream(os.dup(process.stdout.fileno())) as announced:
            try:
                yield base_url(await _announcement(announced), log)
            finally:
                with trio.CancelScope(shield=True):
                    await _end(process, announced)


def configuration(
    *,
    threads: int | None = None,
    context: int = CONTEXT_WINDOW,
    think: bool = False,
    parent: int | None = None,
) -> dict[str, Any]:
    """What the server is told; `parent` is the process it dies with, by default this one, 0 is none."""
    if not is_installed():
        raise LocalModelError("the local model is not installed", hint="`dsh models install local` installs it")
    if threads is None:
        threads = (_usable_cores() + 1) // 2
    template = importlib.resources.files(__package__).joinpath("template.jinja").read_text("utf-8")
    folder = payload_dir()
    return {
        "engine": str(folder / "engine"),
        "gguf": str(folder / GGUF),
        "alias": MODEL_ID,
        "template": template,
        "threads": max(1, threads),
        "context": min(context, CONTEXT_WINDOW),
        "think": think,
        "parent": os.getpid() if parent is None else parent,
    }


@contextmanager
def launch(config: dict[str, Any], *, stdin: int) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start the server process; it announces its port on its stdout. The caller ends it.

    `stdin` is PIPE (the configuration is sent here) or the descriptor of a pipe's reading end, into which the
    caller has put the line of `configuration`. Yields the process and its log, a file without a name.
    """
    source = importlib.resources.files(__package__).joinpath("serve.py")
    with importlib.resources.as_file(source) as script, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(script)],
            bufsize=0,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=child_environment(Path(config["engine"])),
        )
        try:
            if process.stdin is not None:
                with suppress(BrokenPipeError):  # it has ended already: its log tells why
                    process.stdin.write(json.dumps(config).encode() + b"\n")
            yield process, log
        finally:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def base_url(announcement: bytes, log: IO[bytes]) -> str:
    """The URL from the line that a started server wrote; an empty line is a server that ended instead."""
    if not announcement.endswith(b"\n"):
        log.seek(0)
        lines = log.read().decode("utf-8", "replace").strip().splitlines()[-_LOG_LINES:]
        said = "\n".join(lines) or "it said nothing"
        raise LocalModelError(f"the local model did not start: {said}", hint=_REPAIR)
    return f"http://127.0.0.1:{json.loads(announcement)['port']}/v1"


async def _announcement(stream: trio.lowlevel.FdStream) -> bytes:
    line = b""
    with trio.move_on_after(_START_TIMEOUT):
        while not line.endswith(b"\n") and (piece := await stream.receive_some(256)):
            line += piece
    return line


async def _end(process: subprocess.Popen[bytes], announced: trio.lowlevel.FdStream) -> None:
    """End the process surely. The end of its stdout tells that it is gone."""
    signal_group(process, signal.SIGTERM)
    with trio.move_on_after(_GRACE):
        while await announced.receive_some(256):
            pass
    signal_group(process, signal.SIGKILL)
    process.wait()


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal the server's process group, unless the process has ended and been waited for."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
