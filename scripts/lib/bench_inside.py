"""Benchmarks inside one process: `bench_inside.py append|steps FOLDER NUMBER` prints its figures as JSON.

What is compared runs in short slices that take turns, so that both sides meet the same moments of the machine.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ROOT / ".venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
sys.path += [str(ROOT), str(_PACKAGES)]

import apsw  # noqa: E402
import trio  # noqa: E402

from dsh.core.lossless import dumps, freeze, loads  # noqa: E402
from dsh.core.messages import Request, same_header  # noqa: E402
from dsh.kernel.config import load  # noqa: E402
from dsh.kernel.host import Host  # noqa: E402
from dsh.llm.adapters.chat_request import DIALECTS, Encoder  # noqa: E402
from dsh.session.session import APPEND, Session  # noqa: E402
from dsh.session.sessions import Sessions  # noqa: E402
from dsh.store import writes  # noqa: E402
from dsh.store.database import Database  # noqa: E402

USER = {"kind": "user"}
CONFIG = {"provider": "bench", "model": "bench"}


# --- append


def append(folder: Path, count: int) -> dict[str, Any]:
    """Events a second, one transaction each, `count` slices of 2000: through the view, and into a table of the same
    columns and the same uniqueness in a database with the same settings, but without rules. `work` are the events of
    steps as they come, two thirds of them chunks, with the index brought up to date after every five steps."""
    db = Database.open(folder / "view.db")
    session = Sessions(Host(load()), db).create()
    _open_step(session, 1, 1)
    working = Sessions(Host(load()), db).create()
    working.record("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": USER}})
    plain = apsw.Connection(str(folder / "plain.db"))
    for setting in ("journal_mode = wal", "synchronous = NORMAL", "foreign_keys = 1", "temp_store = MEMORY"):
        plain.execute(f"PRAGMA {setting}").fetchall()
    plain.execute(
        "CREATE TABLE event(id INTEGER PRIMARY KEY, session INTEGER NOT NULL, seq INTEGER NOT NULL, type TEXT NOT NULL,"
        " time INTEGER NOT NULL, data TEXT NOT NULL, source TEXT, op TEXT, UNIQUE (session, seq)) STRICT"
    )
    chunk = {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": " a few words of an answer"}}
    text = dumps(freeze(chunk))
    seqs = iter(range(10**9))

    def into_view() -> None:
        writes.insert_event(db, session.id, session.length, "assistant/chunk", writes.now_ms(), text, None, None)
        session.length += 1

    def into_table() -> None:
        row = (1, next(seqs), "assistant/chunk", writes.now_ms(), text, None, None)
        plain.execute("INSERT INTO event(session, seq, type, time, data, source, op) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def through_session() -> None:
        session.append("assistant/chunk", chunk)

    work = _work(folder)

    def work_into_view() -> None:
        name, data, op = next(work)
        if name is None:
            writes.refresh_search(db)
            return
        writes.insert_event(db, working.id, working.length, name, writes.now_ms(), data, None, op)
        working.length += 1

    same_work = _work(folder)

    def work_into_table() -> None:
        name, data, op = next(same_work)
        if name is None:
            return
        row = (2, next(seqs), name, writes.now_ms(), data, None, op)
        plain.execute("INSERT INTO event(session, seq, type, time, data, source, op) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    sides = {
        "view": into_view, "plain": into_table, "session": through_session,
        "work": work_into_view, "plain work": work_into_table,
    }  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(count + 1):
        for name, act in sides.items():
            seconds = _timed(act, 2000)
            if number:
                found[name].append(2000 / seconds)
    db.close()
    plain.close()
    return found


def _work(folder: Path) -> Iterator[tuple[str | None, str, str | None]]:
    """Events of steps without end: type, data and surface operation; None as the type where a turn would end."""
    draw = random.Random(3)
    words = "".join(path.read_text("utf-8", "replace") for path in sorted(Path(random.__file__).parent.glob("a*.py")))
    step = 0
    while True:
        step += 1
        at = {"turn": 1, "step": step}
        place = draw.randrange(len(words) - 8000)
        said, asked = words[place : place + 400], words[place + 400 : place + 500]
        result = words[place + 500 : place + 500 + draw.choice((200, 800, 2000, 6000))]
        call = {"type": "tool-call", "id": f"call_{step}", "name": "bash", "arguments": dumps({"command": asked})}
        message = {"content": [{"type": "text", "text": said}, call], "provenance": CONFIG}
        answer = {"callId": call["id"], "content": [{"type": "text", "text": result}], "isError": False}
        called = {"callId": call["id"], "name": "bash", "arguments": call["arguments"]}
        yield "step/start", dumps(at), None
        for start in range(0, 400, 50):
            chunk = {"type": "text-delta", "index": 0, "text": said[start : start + 50]}
            yield "assistant/chunk", dumps({**at, "chunk": chunk}), None
        yield "assistant/message", dumps({**at, **message}), '"append"'
        yield "tool/call", dumps({**at, **called}), None
        yield "tool/result", dumps({**at, **answer}), '"append"'
        yield "step/end", dumps(at), None
        if step % 5 == 0:
            yield None, "", None


def _timed(act: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        act()
    return time.perf_counter() - began


# --- the cost of a step


def steps(folder: Path, count: int) -> dict[str, Any]:
    """Microseconds of what a step does to the log, on a short and on a long session, in turns; `count` slices of 20."""
    return trio.run(_steps, folder, count)


async def _steps(folder: Path, count: int) -> dict[str, Any]:
    shapes = ((100, 0), (100_000, 5_000), (100_000, 0))
    sides = [_Stepper(folder / f"{number}.db", *shape) for number, shape in enumerate(shapes)]
    lengths = [s.session.length for s in sides]
    for number in range(count + 1):
        for side in sides:
            for _ in range(20):
                await side.step()
            if not number:
                side.found.clear()
            side.close_slice()
    messages = [len(s.session.derive_messages()) for s in sides]
    return {"sizes": lengths, "messages": messages, "slices": [s.slices for s in sides]}


class _Stepper:
    """A session of so many events, compacted every so many (0: never), and the operations of one more step on it."""

    def __init__(self, path: Path, size: int, compacted: int) -> None:
        self.db = Database.open(path)
        self.session = Sessions(Host(load()), self.db).create()
        self.found: dict[str, list[float]] = {}
        self.slices: dict[str, list[float]] = {}
        self.number = 0
        self.encoder = Encoder(DIALECTS["chat"])
        self.config = freeze(CONFIG)
        tools = [{"name": "bash", "description": "y" * 500}]
        self.header = freeze({"config": CONFIG, "system": "x" * 3000, "tools": tools})
        self.session.record("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": USER}})
        nodes: list[int] = []
        while self.session.length < size:
            with self.db.transaction():
                nodes += self._past(min(size, self.session.length + (compacted or 5_000)))
                if compacted:
                    where = {"op": "replace", "start": nodes[0], "end": nodes[-1]}
                    data = {"content": [{"type": "text", "text": "what was said so far " * 50}], "source": USER}
                    nodes = [self.session.record("user/message", data, surface=where, sources=nodes)["seq"]]
        self.session.derive_messages()
        writes.refresh_search(self.db)

    def _past(self, size: int) -> list[int]:
        """Steps until the session is so long; the seqs of what the model sees of them."""
        seen = []
        while self.session.length < size:
            for name, data, surface in self._events():
                event = self.session.record(name, data, surface=surface)
                seen += [event["seq"]] if surface else []
        return seen

    def _events(self) -> Iterator[tuple[str, Any, str | None]]:
        """The events of one step: ten chunks, a message, a tool call and its result."""
        self.number += 1
        where = {"turn": 1, "step": self.number}
        call = f"call{self.number}"
        yield "step/start", where, None
        for _ in range(10):
            yield "assistant/chunk", {**where, "chunk": {"type": "text-delta", "index": 0, "text": " some words"}}, None
        content = [
            {"type": "text", "text": "some words " * 10},
            {"type": "tool-call", "id": call, "name": "bash", "arguments": '{"command":"true"}'},
        ]
        yield "assistant/message", {**where, "content": content, "provenance": CONFIG}, APPEND
        yield "tool/call", {**where, "callId": call, "name": "bash", "arguments": '{"command":"true"}'}, None
        result = {**where, "callId": call, "content": [{"type": "text", "text": "(no output)"}], "isError": False}
        yield "tool/result", result, APPEND
        yield "step/end", where, None

    async def step(self) -> None:
        events = list(self._events())
        began = time.perf_counter()
        for name, data, surface in events:
            self.session.append(name, data, surface=surface)
        appended = time.perf_counter()
        messages = self.session.derive_messages()
        derived = time.perf_counter()
        self.encoder.encode(Request(self.config, messages))
        encoded = time.perf_counter()
        same_header(self.header, freeze(loads(dumps(self.header))))
        compared = time.perf_counter()
        await self.session.flush()
        flushed = time.perf_counter()
        for part, seconds in (
            ("append 15 events", appended - began),
            ("derive 2 messages", derived - appended),
            ("write the request's body", encoded - derived),
            ("compare the header", compared - encoded),
            ("flush", flushed - compared),
            ("all", flushed - began),
        ):
            self.found.setdefault(part, []).append(seconds * 1e6)

    def close_slice(self) -> None:
        """Keep the median of each part since the last time."""
        for part, values in self.found.items():
            self.slices.setdefault(part, []).append(sorted(values)[len(values) // 2])
        self.found.clear()


def _open_step(session: Session, turn: int, step: int) -> None:
    session.record("turn/start", {"turn": turn, "trigger": {"kind": "message", "source": USER}})
    session.record("step/start", {"turn": turn, "step": step})


if __name__ == "__main__":
    part = {"append": append, "steps": steps}[sys.argv[1]]
    print(json.dumps(part(Path(sys.argv[2]), int(sys.argv[3])), ensure_ascii=False))
