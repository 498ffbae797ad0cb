"""Many processes on one file: `bench_concurrency.py writer|reader FILE NAME SECONDS`, and what starts them.

A writer takes turns as fast as the file lets it, with the loop's own checkpoints: each event is a transaction of its
own, the log is synced before a request, before a tool and at a turn's end, where the search index follows. A reader
lists, searches and reads a session, and pauses, as people's shells do. Both begin on a line on their standard input
and end with one line of JSON. A refusal, a lock that is not waited for, anything that is raised, ends the process with
exit code 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ROOT / ".venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

TURNS_A_SESSION = 50
CHUNKS = 40
PAUSE_S = 0.02


class Result(NamedTuple):
    """Figures of one round: events a second of all writers together, and the longest waits of any in ms."""

    rate: float
    slowest: float  # append
    least: float  # the least busy writer's share of an equal one
    reads: float  # a second, of all readers together
    slowest_read: float


class Broken(Exception):
    """A process failed, or something that was acknowledged is not in the file."""


def measure(path: Path, seconds: float, writers: int, readers: int, label: str) -> Result:
    """Let so many writers and readers loose on a file for so long. Raises Broken."""
    names = [*(f"{label}w{n}" for n in range(writers)), *(f"{label}r{n}" for n in range(readers))]
    roles = ["writer"] * writers + ["reader"] * readers
    processes = [_start(role, path, name, seconds) for role, name in zip(roles, names, strict=True)]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise Broken(_words(process))
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        told = []
        for process in processes:
            out, err = process.communicate(timeout=seconds + 120)
            if process.returncode:
                raise Broken(err[-2000:])
            told.append(json.loads(out))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    wrote, read = told[:writers], told[writers:]
    rate = sum(w["events"] / w["seconds"] for w in wrote)
    counts = {name: length for w in wrote for name, length in w["sessions"].items()}
    _compare(path, counts)
    return Result(
        rate,
        max(w["slowest"] for w in wrote),
        min(w["events"] for w in wrote) * writers / sum(w["events"] for w in wrote),
        sum(r["reads"] / r["seconds"] for r in read),
        max((r["slowest"] for r in read), default=0.0),
    )


def _start(role: str, path: Path, name: str, seconds: float) -> subprocess.Popen[str]:
    words = [sys.executable, str(Path(__file__).resolve()), role, str(path), name, str(seconds)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def _words(process: subprocess.Popen[str]) -> str:
    return process.communicate()[1][-2000:]


def _compare(path: Path, counts: dict[str, int]) -> None:
    """Every event that was acknowledged is there (PE-15)."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "look", str(path), "", "0"],
        input=json.dumps(counts),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or done.stdout.strip() != "[]":
        raise Broken(done.stdout[-1000:] + done.stderr[-1000:])


# --- in the processes


def _events(turn: int, name: str) -> list[tuple[str, Any, str | None]]:
    """One turn of a session; None in place of an event is a checkpoint."""
    at = {"turn": turn, "step": 1}
    route = {"provider": "bench", "model": "bench"}
    said = {"content": [{"type": "text", "text": f"{name} asks about turn {turn}"}], "source": {"kind": "user"}}
    call = {"type": "tool-call", "id": "c1", "name": "bash", "arguments": '{"command":"true"}'}
    chunk = {**at, "chunk": {"type": "text-delta", "index": 0, "text": " a few words"}}
    output = {**at, "callId": "c1", "content": [{"type": "text", "text": "(no output)"}], "isError": False}
    answer = {**at, "content": [{"type": "text", "text": "a few words " * CHUNKS}, call], "provenance": route}
    return [
        ("turn/start", {"turn": turn, "trigger": {"kind": "message", "source": {"kind": "user"}}}, None),
        ("user/message", said, "append"),
        ("step/start", at, None),
        ("", None, None),
        *[("assistant/chunk", chunk, None)] * CHUNKS,
        ("assistant/message", answer, "append"),
        ("tool/call", {**at, "callId": "c1", "name": "bash", "arguments": '{"command":"true"}'}, None),
        ("", None, None),
        ("tool/result", output, "append"),
        ("step/end", at, None),
        ("turn/end", {"turn": turn, "reason": {"kind": "completed"}}, None),
    ]


def writer(path: Path, name: str, seconds: float) -> dict[str, Any]:
    from dsh.kernel.config import Config
    from dsh.kernel.host import Host
    from dsh.session.sessions import Sessions
    from dsh.store import writes
    from dsh.store.database import Database

    db = Database.open(path)
    sessions = Sessions(Host(Config({}, {})), db)
    _wait()
    began = time.monotonic()
    slowest = 0.0
    lengths: dict[str, int] = {}
    while time.monotonic() - began < seconds:
        session = sessions.create(f"{name}-{len(lengths)}")
        session.claim(name)
        for turn in range(1, TURNS_A_SESSION + 1):
            for kind, data, surface in _events(turn, name):
                at = time.monotonic()
                if kind:
                    session.append(kind, data, surface=surface)
                else:
                    db.sync()
                slowest = max(slowest, time.monotonic() - at)
            writes.refresh_search(db)
            db.sync()
            if time.monotonic() - began >= seconds:
                break
        lengths[session.id] = session.length
        sessions.dispose(session)
    lasted = time.monotonic() - began
    db.close()
    return {"events": sum(lengths.values()), "seconds": lasted, "slowest": slowest * 1000, "sessions": lengths}


def reader(path: Path, name: str, seconds: float) -> dict[str, Any]:
    from dsh import query
    from dsh.store.database import Database

    db = Database.open(path, read_only=True)
    _wait()
    began = time.monotonic()
    reads, slowest = 0, 0.0
    while time.monotonic() - began < seconds:
        at = time.monotonic()
        newest = query.row(db, "latest_session", cwd=None)
        if newest is not None:
            query.rows(db, "messages_since", session=newest[0], seq=0)
        db.rows("SELECT count(*) FROM search WHERE search MATCH 'turn'")
        query.row(db, "store_state")
        slowest = max(slowest, time.monotonic() - at)
        reads += 4
        time.sleep(PAUSE_S)
    db.close()
    return {"reads": reads, "seconds": time.monotonic() - began, "slowest": slowest * 1000}


def look(path: Path, name: str, seconds: float) -> list[str]:
    """What is wrong with the file, given the lengths of sessions on standard input."""
    from dsh import query
    from dsh.store import writes
    from dsh.store.database import Database

    db = Database.open(path)
    found = [str(complaint) for complaint in db.integrity()]
    for session, length in json.load(sys.stdin).items():
        state = query.row(db, "session_state", session=session)
        count = db.rows("SELECT count(*) FROM event WHERE session_id = ?", (session,))[0][0]
        if state is None or state[9] != length or count != length:
            found.append(f"{session}: {length} events were written, {count} are there")
    writes.refresh_search(db)
    complaint = writes.check_search(db)
    db.close()
    return found + ([complaint] if complaint else [])


def _wait() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    sys.path += [str(ROOT), str(_PACKAGES)]
    os.environ["DSH_LLM_DISCOVER"] = "false"
    part = {"writer": writer, "reader": reader, "look": look}[sys.argv[1]]
    print(json.dumps(part(Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))))
