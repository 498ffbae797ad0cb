"""`dsh` as a real process: a home, a folder and a database of its own, no keys, the fake provider as its server.

with FakeProvider(text("hello")) as fake:
    dsh = Dsh(tmp_path, fake)
    done = dsh("run", "hi")
    done.code, done.out, done.err        # bytes; .text and .errors are decoded
    process = dsh.start("run", "hi")     # to be signalled
    dsh.log()                            # the events of the newest session, as stored
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.provider import FakeProvider

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = "fake-model"


@dataclass(frozen=True)
class Done:
    """How a process ended; `code` is negative for a signal that killed it."""

    code: int
    out: bytes
    err: bytes
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def errors(self) -> str:
        return self.err.decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Standard output as JSON Lines; every line must be an object."""
        found = [json.loads(line) for line in self.text.split("\n") if line]  # not U+2028
        assert all(isinstance(line, dict) for line in found)
        return found

    @property
    def result(self) -> dict[str, Any]:
        last = self.lines[-1]
        assert last["type"] == "result"
        assert all(line["type"] != "result" for line in self.lines[:-1])
        return last


class Dsh:
    """Starts `dsh`; options given here hold for every call."""

    def __init__(self, folder: Path, fake: FakeProvider | None = None, **env: str) -> None:
        self.home = folder / "home"
        self.cwd = folder / "project"
        self.db = folder / "dsh.db"
        for made in (self.home, self.cwd):
            made.mkdir(exist_ok=True)
        self.fake = fake
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "error",
            "DSH_DB": str(self.db),
            "DSH_LLM_DISCOVER": "false",
            "DSH_CHECK": "1",
            **env,
        }

    def command(self, *words: str | bytes) -> list[str | bytes]:
        given = list(words)
        if words[:1] == ("run",) and self.fake is not None and "--base-url" not in words and "--mock" not in words:
            given += ["--base-url", self.fake.base_url]
            if not {"-m", "--model"} & set(words):
                given += ["-m", MODEL]
        return [sys.executable, "-m", "dsh", *given]

    def start(
        self,
        *words: str | bytes,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        cwd: Path | None = None,
        env: dict[str, str | None] | None = None,
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        """A running process, in a session of its own so that no test's signal goes astray. `env` None removes."""
        full = {k: v for k, v in {**self.env, **(env or {})}.items() if v is not None}
        return subprocess.Popen(
            self.command(*words), stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd or self.cwd, env=full,
            start_new_session=True, **more,
        )  # fmt: skip

    def __call__(self, *words: str | bytes, input: bytes | None = None, timeout: float = 60, **more: Any) -> Done:
        """Run to the end."""
        if input is not None:
            more["stdin"] = subprocess.PIPE
        return finish(self.start(*words, **more), input, timeout)

    def words(self, *given: str) -> str:
        """The command as a shell writes it."""
        return shlex.join(str(word) for word in self.command(*given))

    def shell(self, script: str) -> Done:
        """Run a bash script, with nothing on standard input."""
        return finish(
            subprocess.Popen(
                ["bash", "-c", script], env=self.env, cwd=self.cwd, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )
        )  # fmt: skip

    # ---------------------------------------------------------------------------------------------------- the database

    def rows(self, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
        """Read a view with a stock SQLite."""
        with closing(sqlite3.connect(f"file:{self.db}?mode=ro", uri=True)) as db:
            return db.execute(sql, bindings).fetchall()

    def integrity(self) -> list[str]:
        """Complaints of the SQLite that the program uses; the one beside Python may be years older."""
        import apsw

        db = apsw.Connection(str(self.db))
        try:
            found = [str(row[0]) for row in db.execute("PRAGMA integrity_check")]
        finally:
            db.close()
        return [] if found == ["ok"] else found

    def session(self) -> str:
        """The newest session."""
        found: str = self.rows("SELECT id FROM session ORDER BY created_at DESC, id DESC LIMIT 1")[0][0]
        return found

    def log(self, session: str | None = None) -> list[dict[str, Any]]:
        """The events of a session, as the program would read them."""
        events = []
        columns = "seq, type, time, data, source_event_seqs, surface_op"
        sql = f"SELECT {columns} FROM event WHERE session_id = ? ORDER BY seq"
        for seq, kind, at, data, sources, op in self.rows(sql, session or self.session()):
            event = {"seq": seq, "type": kind, "time": at, "data": json.loads(data)}
            if sources is not None:
                event["sourceEventSeqs"] = json.loads(sources)
            if op is not None:
                event["surfaceOp"] = json.loads(op)
            events.append(event)
        return events

    def data(self, kind: str) -> list[dict[str, Any]]:
        """The payloads of one type in the newest session."""
        return [e["data"] for e in self.log() if e["type"] == kind]

    def wait_for(self, condition: Callable[[], Any], timeout: float = 20) -> Any:
        """Poll until true; a database that is not there yet counts as not yet."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                if found := condition():
                    return found
            except (sqlite3.OperationalError, IndexError):
                pass
            time.sleep(0.02)
        raise TimeoutError("it did not happen")


def finish(process: subprocess.Popen[bytes], input: bytes | None = None, timeout: float = 60) -> Done:
    """Wait for the end; a process that takes longer is killed and the test fails."""
    began = time.monotonic()
    try:
        out, err = process.communicate(input, timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s; stdout {out!r}, stderr {err!r}") from None
    return Done(process.returncode, out or b"", err or b"", time.monotonic() - began)


def errors_of(process: subprocess.Popen[bytes], timeout: float = 30) -> tuple[int, str]:
    """Exit code and standard error of a process whose standard output is somebody else's matter."""
    assert process.stderr is not None
    with process.stderr:
        err = process.stderr.read().decode()
    return process.wait(timeout), err


def on_terminal(process: subprocess.Popen[bytes], main: int, timeout: float = 60) -> tuple[int, bytes]:
    """Everything that a process showed on the pseudo-terminal whose main side is `main`, and its exit code."""
    shown = b""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if not select.select([main], [], [], 0.1)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            piece = os.read(main, 65536)
        except OSError:  # how Linux tells that the other side is closed
            break
        if not piece:
            break
        shown += piece
    return process.wait(timeout), shown


def _processes(marker: str) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marker in words and state != "Z" and int(folder.name) != os.getpid():
            yield int(folder.name), words


def alive(marker: str) -> list[str]:
    """Command lines of processes that contain `marker`, this one left out."""
    return [words for _, words in _processes(marker)]


def end_all(marker: str) -> None:
    """Kill what a test has left behind; `marker` must be a word that only the test uses."""
    for pid, _ in _processes(marker):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
