"""Starts `dsh` without its start-up time: everything is imported once, and each job is a process forked from that.

Reads one JSON object a line: `words` (the command) or `call` (a module whose `main` gets `words`), `env`, `cwd`, and
the files `out`, `err` and `code`, the last of which is written when the process ends by itself. Answers with the
process id. Each process leads a group of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.shell.process import ROOT, Done, Dsh


class Zygote:
    """The test's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._lock = threading.Lock()
        self._jobs = 0

    def start(self, dsh: Dsh, *words: str) -> Job:
        self._jobs += 1
        files = {name: str(dsh.home / f"{name}.{self._jobs}") for name in ("out", "err", "code")}
        command = [str(word) for word in dsh.command(*words)][3:]  # without `python -m dsh`
        return self._fork({"words": command, "env": dsh.env, "cwd": str(dsh.cwd), **files}, files)

    def call(self, module: str, arguments: Any, folder: Path) -> Job:
        """A process that runs `main(arguments)` of a module; its files are in `folder`."""
        self._jobs += 1
        files = {name: str(folder / f"{name}.{self._jobs}") for name in ("out", "err", "code")}
        job = {"call": module, "words": arguments, "env": {"PATH": os.environ["PATH"]}, "cwd": str(folder)}
        return self._fork({**job, **files}, files)

    def _fork(self, job: dict[str, Any], files: dict[str, str]) -> Job:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            return Job(int(self._process.stdout.readline()), files)

    def run(self, dsh: Dsh, *words: str) -> Done:
        return self.start(dsh, *words).wait()

    def close(self) -> None:
        self._process.communicate()


class Job:
    def __init__(self, pid: int, files: dict[str, str]) -> None:
        self.pid = pid
        self._files = files

    def kill(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        while Path(f"/proc/{self.pid}").exists():
            time.sleep(0.002)

    def errors(self) -> str:
        return Path(self._files["err"]).read_text()

    @property
    def ended(self) -> bool:
        return Path(self._files["code"]).exists()

    def wait(self, timeout: float = 60) -> Done:
        end = time.monotonic() + timeout
        while not self.ended:
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"still running after {timeout} s")
            time.sleep(0.005)
        out, err = (Path(self._files[name]).read_bytes() for name in ("out", "err"))
        return Done(int(Path(self._files["code"]).read_text()), out, err)


def serve() -> None:
    from dsh.capabilities import BUILTIN

    for name in (
        "dsh.cli.main",
        "dsh.cli.group",
        "dsh.cli.headless",
        "dsh.llm.adapters.chat",
        *BUILTIN,
        "tests.crash.driver",
    ):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(job)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _become(job: dict[str, Any]) -> None:
    code = 99
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(job["env"])
        os.chdir(job["cwd"])
        for fd, name, flags in (
            (0, "/dev/null", os.O_RDONLY),
            (1, job["out"], os.O_WRONLY | os.O_CREAT),
            (2, job["err"], os.O_WRONLY | os.O_CREAT),
        ):
            opened = os.open(name, flags, 0o600)
            os.dup2(opened, fd)
            os.close(opened)
        if "call" in job:
            importlib.import_module(job["call"]).main(job["words"])
        else:
            from dsh.cli.main import main

            code = main(job["words"])
    except Exception:
        traceback.print_exc()
        raise
    finally:
        written = Path(f"{job['code']}.part")
        written.write_text(str(code))
        written.rename(job["code"])
        os._exit(0)


if __name__ == "__main__":
    serve()
