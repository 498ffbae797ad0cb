"""How costs grow with a file: `bench_growth.py build FOLDER SIZE...` and `bench_growth.py inside ROUNDS FILE...`.

Two kinds of files of each size, told in events: `one-N.db` is a single session that was compacted every thousand
events, so what the model sees is of one size whatever N is; `many-N.db` has sessions of a hundred events. Each is the
next one's beginning. `inside` measures what a step and a resume do, on all files in turns; the commands are measured by
`bench_long.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ROOT / ".venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
sys.path += [str(ROOT), str(_PACKAGES)]

import trio  # noqa: E402

from dsh import query  # noqa: E402
from dsh.core.lossless import freeze  # noqa: E402
from dsh.core.messages import Request  # noqa: E402
from dsh.kernel.config import Config  # noqa: E402
from dsh.kernel.host import Host  # noqa: E402
from dsh.llm.adapters.chat_request import DIALECTS, Encoder  # noqa: E402
from dsh.session.session import APPEND, Session  # noqa: E402
from dsh.session.sessions import Sessions  # noqa: E402
from dsh.store import writes  # noqa: E402
from dsh.store.database import Database  # noqa: E402

ROUTE = {"provider": "bench", "model": "bench"}
USER = {"kind": "user"}
STEPS_A_TURN = 6
COMPACTED_EVERY = 1000
A_SESSION = 100
_LARGE = 4 * 2**20

Entry = tuple[str, Any, str | None]


def turn(number: int, *, header: bool) -> Iterator[Entry]:
    """Some 100 events: a prompt, six steps of ten chunks, a message, a call and its result."""
    yield "turn/start", {"turn": number, "trigger": {"kind": "message", "source": USER}}, None
    said = {"content": [{"type": "text", "text": f"question {number} about the parser and its tests"}], "source": USER}
    yield "user/message", said, APPEND
    for step in range(1, STEPS_A_TURN + 1):
        yield from _step(number, step, header=header and step == 1)
    yield "turn/end", {"turn": number, "reason": {"kind": "completed"}}, None


def _step(number: int, step: int, *, header: bool = False) -> Iterator[Entry]:
    at = {"turn": number, "step": step}
    yield "step/start", at, None
    if header:
        yield "request/header", {"header": {"config": ROUTE, "system": "x" * 3000}, "reason": "resume"}, None
    for _ in range(10):
        yield "assistant/chunk", {**at, "chunk": {"type": "text-delta", "index": 0, "text": " some words"}}, None
    call = {"type": "tool-call", "id": f"c{number}-{step}", "name": "bash", "arguments": '{"command":"true"}'}
    content = [{"type": "text", "text": "some words " * 10}, call]
    yield "assistant/message", {**at, "content": content, "provenance": ROUTE}, APPEND
    yield "tool/call", {**at, "callId": call["id"], "name": "bash", "arguments": call["arguments"]}, None
    text = [{"type": "text", "text": "(no output)"}]
    yield "tool/result", {**at, "callId": call["id"], "content": text, "isError": False}, APPEND
    yield "step/end", at, None


def build(folder: Path, sizes: list[int]) -> dict[str, Any]:
    """The files of each size; seconds that it took."""
    began = time.monotonic()
    for kind, grow in (("one", _grow_one), ("many", _grow_many)):
        path = folder / f"{kind}.db"
        db = Database.open(path)
        sessions = Sessions(Host(Config({}, {})), db)
        for size in sizes:
            grow(db, sessions, size)
            writes.refresh_search(db)
            db.backup(folder / f"{kind}-{size}.db")
        db.close()
        path.unlink()
    return {"seconds": time.monotonic() - began}


def _grow_one(db: Database, sessions: Sessions, size: int) -> None:
    session = sessions.live("one") or sessions.create("one", meta={"cwd": str(db.path.parent)})
    nodes = [seq for (seq,) in query.rows(db, "surface_seqs", session="one")]
    while session.length < size:
        with db.transaction():
            compact = session.length // COMPACTED_EVERY
            while session.length < size and session.length // COMPACTED_EVERY == compact:
                nodes += _play(session, turn(session.turns + 1, header=True))
            _compact(session, nodes)


def _compact(session: Session, nodes: list[int]) -> None:
    """In a turn of its own; the last ten turns' worth of nodes stay."""
    gone = nodes[: -10 * (2 * STEPS_A_TURN + 1)]
    if len(gone) < 2:
        return
    nodes[: len(gone)] = [_replace(session, gone)]


def _replace(session: Session, gone: list[int]) -> int:
    data = {"content": [{"type": "text", "text": "what was said so far " * 50}], "source": {"kind": "plugin"}}
    where = {"op": "replace", "start": gone[0], "end": gone[-1]}
    session.record("turn/start", {"turn": session.turns + 1, "trigger": {"kind": "compaction"}})
    seq = session.record("user/message", data, surface=where, sources=gone)["seq"]
    session.record("turn/end", {"turn": session.turns, "reason": {"kind": "completed"}})
    return int(seq)


def _grow_many(db: Database, sessions: Sessions, size: int) -> None:
    made = len(query.rows(db, "session_names", session=None))
    while made * A_SESSION < size:
        with db.transaction():
            for _ in range(min(50, size // A_SESSION - made)):
                made += 1
                session = sessions.create(f"many{made:06d}", meta={"cwd": str(db.path.parent)})
                _play(session, turn(1, header=True))
                sessions.dispose(session)


def _play(session: Session, events: Iterator[Entry]) -> list[int]:
    """Append; the seqs of what the model sees of it."""
    seen = []
    for kind, data, surface in events:
        event = session.record(kind, data, surface=surface)
        seen += [event["seq"]] if surface else []
    return seen


# --- what a step and a resume do


def inside(rounds: int, files: list[str]) -> dict[str, Any]:
    """Microseconds by operation and file, `rounds` figures each, in turns."""
    return trio.run(_inside, rounds, [Path(f) for f in files])


async def _inside(rounds: int, files: list[Path]) -> dict[str, Any]:
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + 1):
        for path in files[number % len(files) :] + files[: number % len(files)]:
            for part, seconds in (await _once(_kept(path))).items():
                if number:
                    found.setdefault(part, {}).setdefault(path.stem, []).append(seconds * 1e6)
    return found


def _kept(path: Path) -> Path:
    """A copy of a small file, which would not be of its size any more after some rounds; a large one itself."""
    if path.stat().st_size > _LARGE:
        return path
    copy = path.parent / "copy" / path.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(path, copy)
    return copy


async def _once(path: Path) -> dict[str, float]:
    """Resume the session, take a turn of twenty steps, end it."""
    db = Database.open(path)
    sessions = Sessions(Host(Config({}, {})), db)
    name = "one" if path.stem.startswith("one") else "many000003"
    encoder = Encoder(DIALECTS["chat"])
    config = freeze(ROUTE)
    taken: dict[str, float] = {}

    def timed(part: str, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        value = act()
        taken[part] = time.perf_counter() - began
        return value

    session: Session = timed("resume: load, check, repair", lambda: sessions.publish(sessions.prepare_stored(name)))
    timed("first request: derive, write", lambda: encoder.encode(Request(config, session.derive_messages())))
    start, prompt, *_ = turn(session.turns + 1, header=True)
    session.append(start[0], start[1])
    added = [session.append(prompt[0], prompt[1], surface=APPEND)["seq"]]
    steps = []
    for step in range(1, 21):
        began = time.perf_counter()
        for kind, data, surface in _step(session.turns, step):
            seq = session.append(kind, data, surface=surface)["seq"]
            added += [seq] if surface else []
        encoder.encode(Request(config, session.derive_messages()))
        await session.flush()
        steps.append(time.perf_counter() - began)
    taken["a step"] = sorted(steps)[len(steps) // 2]
    session.append("turn/end", {"turn": session.turns, "reason": {"kind": "completed"}})
    timed("index for search", lambda: writes.refresh_search(db))
    began = time.perf_counter()
    await session.flush()
    taken["flush at the turn's end"] = time.perf_counter() - began
    timed("renew the lease", session.beat)
    _replace(session, added)  # so that the next round has as many messages as this one
    sessions.dispose(session)
    timed("close", db.close)
    return taken


if __name__ == "__main__":
    os.environ["DSH_LLM_DISCOVER"] = "false"
    verb, first, *rest = sys.argv[1:]
    result = build(Path(first), [int(n) for n in rest]) if verb == "build" else inside(int(first), rest)
    print(json.dumps(result))
