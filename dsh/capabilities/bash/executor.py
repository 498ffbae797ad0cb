"""The executor: runs one command with limits, capture and a sure end; it knows nothing of sessions or tools.

`resolve` is the only place where defaults are applied (BA-1). `run` starts a fresh non-login `bash -c`, reads
both streams while it runs, and comes back when the shell has ended and its pipes are closed or the drain
grace is over. The caller's signal and the time limit are two scopes around that wait; whichever ends it is
the cause (BA-19). What is left of the group is ended before `run` returns.
"""

from __future__ import annotations

import math
import os
import signal as signals
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import trio

from dsh.capabilities.bash.capture import Capture, CollectedOutput, SpillFolder
from dsh.capabilities.bash.environment import compose
from dsh.core.errors import ConfigError, ToolError
from dsh.kernel.config import Config
from dsh.kernel.signal import Signal
from dsh.tools.process import Child, spawn

# Once the whole group is dead, what is in the pipes is there at once; only a stranger could still hold them
# open.
_LAST_DRAIN = 0.25
# How long what is left of the group after an ordinary end may take to stop before it is killed.
_LEFTOVER_GRACE = 0.2
_READ = 65536


class BashExecRequest(NamedTuple):
    """What a caller asks; `timeout_ms` and `stdout_max_bytes` None take the configured values (BA-2, BA-4).

    `stdin`, `env` and `stdout_max_bytes` are for trusted callers only (BA-9).
    """

    command: str
    workdir: str | None = None
    timeout_ms: float | None = None
    stdout_max_bytes: float | None = None
    signal: Signal | None = None
    stdin: str | None = None
    env: Mapping[str, str] | None = None
    dsh_env: Mapping[str, str] | None = None


class BashExecSpec(NamedTuple):
    """What runs: a request with every default applied."""

    command: str
    workdir: str
    timeout_ms: float
    stdout_max_bytes: int
    signal: Signal | None
    stdin: str | None
    env: Mapping[str, str] | None
    dsh_env: Mapping[str, str] | None


class BashRunResult(NamedTuple):
    """How it went; `exit_code` is None when a signal killed the shell. At most one flag is set."""

    exit_code: int | None
    signal: str | None
    timed_out: bool
    aborted: bool
    timeout_ms: float
    stdout: CollectedOutput
    stderr: CollectedOutput


class Executor:
    """The plain executor; limits come from the `bash.*` settings, which are checked when they are read
    (BA-5)."""

    def __init__(self, config: Config) -> None:
        self._timeout_ms: float = config["bash.timeout_ms"]
        self._max_timeout_ms: float = config["bash.max_timeout_ms"]
        self._max_output: int = config["bash.max_output_bytes"]
        self._max_spill: int = config["bash.max_spill_bytes"]
        self._grace = config["bash.grace_ms"] / 1000
        self._spills = SpillFolder()
        if self._timeout_ms > self._max_timeout_ms:
            raise ConfigError("bash.timeout_ms must not be larger than bash.max_timeout_ms")

    def resolve(self, request: BashExecRequest) -> BashExecSpec:
        """Apply defaults and caps (BA-1 to BA-4); ToolError names a value that is not positive and finite."""
        timeout = _positive("timeoutMs", request.timeout_ms, self._timeout_ms)
        return BashExecSpec(
            command=request.command,
            workdir=request.workdir or os.getcwd(),
            timeout_ms=min(timeout, self._max_timeout_ms),
            stdout_max_bytes=int(_positive("stdoutMaxBytes", request.stdout_max_bytes, self._max_output)),
            signal=request.signal,
            stdin=request.stdin,
            env=request.env,
            dsh_env=request.dsh_env,
        )

    async def run(self, spec: BashExecSpec) -> BashRunResult:
        """Run to the end. Only what the infrastructure did wrong raises (BA-18): ToolError, nothing left
        behind."""
        if spec.signal is not None and spec.signal.cancelled:
            raise ToolError("the command was cancelled before it started")
        env = compose(spec.env, spec.dsh_env)
        out = Capture("stdout", spec.stdout_max_bytes, self._max_spill, self._spills)
        err = Capture("stderr", self._max_output, self._max_spill, self._spills)
        try:
            child = await spawn(["bash", "-c", spec.command], cwd=spec.workdir, env=env, stdin=spec.stdin is not None)
        except (OSError, ValueError) as error:
            raise ToolError(_spawn_failure(spec.workdir, error)) from error
        try:
            async with child, trio.open_nursery() as nursery:
                signal = Signal(spec.signal)
                nursery.start_soon(_forward_cancel, signal)
                with trio.CancelScope(shield=True):
                    timed_out, aborted = await self._supervise(child, spec, signal, out, err)
                signal.detach()
                code = child.returncode
                nursery.cancel_scope.cancel()
                assert code is not None
        finally:
            stdout, stderr = out.collected(), err.collected()
        return BashRunResult(
            exit_code=code if code >= 0 else None,
            signal=_signal_name(-code) if code < 0 else None,
            timed_out=timed_out,
            aborted=aborted,
            timeout_ms=spec.timeout_ms,
            stdout=stdout,
            stderr=stderr,
        )

    async def _supervise(
        self, child: Child, spec: BashExecSpec, signal: Signal, out: Capture, err: Capture
    ) -> tuple[bool, bool]:
        """Read until the run settles; `(timed_out, aborted)` tells what ended it early (BA-17, BA-19)."""
        with signal.scope() as stop, trio.move_on_after(spec.timeout_ms / 1000) as limit:
            async with trio.open_nursery() as nursery:
                if child.stdin is not None:
                    nursery.start_soon(_feed, child.stdin, (spec.stdin or "").encode("utf-8", "replace"))
                nursery.start_soon(_pump, child.stdout, out)
                nursery.start_soon(_pump, child.stderr, err)
                await child.wait()
                nursery.cancel_scope.deadline = trio.current_time() + self._grace
        timed_out = limit.cancelled_caught
        aborted = stop.cancelled_caught
        if timed_out or aborted:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pump, child.stdout, out)
                nursery.start_soon(_pump, child.stderr, err)
                await child.end(self._grace)
                await child.wait()
                nursery.cancel_scope.deadline = trio.current_time() + _LAST_DRAIN
        elif child.lingers():
            await child.end(_LEFTOVER_GRACE, everywhere=False)
        return timed_out, aborted


async def _forward_cancel(signal: Signal) -> None:
    """Turn trio's cancellation of the caller into the signal: a cancelled command is a result too (BA-18)."""
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        signal.cancel("caller")


async def _pump(stream: trio.abc.ReceiveStream, capture: Capture) -> None:
    while chunk := await stream.receive_some(_READ):
        capture.feed(bytes(chunk))


async def _feed(stream: trio.abc.SendStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # the child does not read, which is its own business (BA-15)
        await stream.send_all(data)
    await stream.aclose()


def _positive(name: str, given: float | None, default: float) -> float:
    value = default if given is None else given
    if isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise ToolError(f"{name} must be a positive finite number")
    return value


def _spawn_failure(workdir: str, error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):
        return "the command cannot be started: it contains a NUL character"
    if not os.path.isdir(workdir):
        return f"the working directory does not exist: {workdir}"
    return f"bash cannot be started: {error.strerror or error}"


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"
