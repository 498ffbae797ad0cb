"""Kinds and fields that nobody knows pass through everything byte for byte (CO-2, CO-3): one table, all ways."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsh.core.lossless import dumps
from dsh.store import writes
from dsh.store.database import Database
from tests.cli.conftest import DSH, ROOT
from tests.session.kit import ROUTE, USER, world

pytestmark = pytest.mark.slow

AT = {"turn": 1, "step": 1}
ODD = {"z": [1, 1e-07, {"é\u2028": None}], "a": True, "__proto__": {}, "": "\\u0041\n", "n": 2**53 - 1}
BLOCK = {"type": "hologram", "b": ODD, "a": "x"}
SOURCE = {"kind": "oracle", "of": ODD}

# What is unknown, and where it stands in a turn. Everything else is as the loop writes it.
KINDS: dict[str, dict[str, Any]] = {
    "content block": {"block": BLOCK},
    "nested block": {"block": {"type": "tool-result", "toolCallId": "c", "content": [BLOCK], "isError": False}},
    "message source": {"source": SOURCE},
    "finish reason": {"finish": {"kind": "astonished", "why": ODD}},
    "stream chunk field": {"finish": {"kind": "stop", "more": ODD}},
    "turn trigger": {"trigger": {"kind": "comet", "of": ODD}},
    "turn end reason": {"reason": {"kind": "enlightened", "by": ODD}},
    "event type": {"event": ("hologram/shown", ODD)},
    "event type of a scalar": {"event": ("hologram/count", 7)},
    "fields of payloads": {"fields": {"more": ODD, "again": [BLOCK]}},
    "fields of a block": {"block": {"type": "text", "text": "known", "more": ODD}},
    "fields of a source": {"source": {"kind": "user", "rpcId": ODD}},
}


def turn(
    *,
    block: Any = None,
    source: Any = USER,
    finish: Any = None,
    trigger: Any = None,
    reason: Any = None,
    event: tuple[str, Any] = ("x", 1),
    fields: Any = None,
) -> list[tuple[str, Any, str | None]]:
    """A turn of one step as (type, data, surface op)."""
    more = fields or {}
    blocks = [{"type": "text", "text": "findable words"}, *([block] if block else [])]
    header = {"header": {"config": ROUTE}, "reason": "initial"}
    chunk = {"type": "finish", "reason": finish or {"kind": "stop"}}
    answer = {**AT, "content": blocks, "provenance": {**ROUTE, **more}, **more}
    call = {"callId": "c", "name": "bash", "arguments": "{", **more}
    result = {"callId": "c", "content": blocks, "isError": False, "meta": more, **more}
    return [
        ("turn/start", {"turn": 1, "trigger": trigger or {"kind": "message", "source": source}, **more}, None),
        ("user/message", {"content": blocks, "source": source, **more}, "append"),
        ("step/start", {**AT, **more}, None),
        ("request/header", {**header, **more}, None),
        ("assistant/chunk", {**AT, "chunk": {**chunk, **more}, **more}, None),
        ("assistant/message", answer, "append"),
        ("tool/call", {**AT, **call}, None),
        ("tool/result", {**AT, **result}, "append"),
        ("steering/message", {"turn": 1, "content": blocks, "source": source, **more}, "append"),
        (*event, None),
        ("step/end", {**AT, **more}, None),
        ("turn/end", {"turn": 1, "reason": reason or {"kind": "completed"}, **more}, None),
    ]


@dataclass
class Carried:
    """Where all the sessions of the table are: the database, a second one they were imported into, and the files."""

    folder: Path
    found: str = ""  # what a search printed

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*DSH, "--db", str(self.folder / "dsh.db"), *arguments], capture_output=True, cwd=ROOT, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode()

    def rows(self, name: str, session: str) -> list[Any]:
        db = Database.open(self.folder / name)
        try:
            return db.rows("SELECT type, data, surface_op FROM event WHERE session_id = ? ORDER BY seq", (session,))
        finally:
            db.close()


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    made = Carried(tmp_path_factory.mktemp("kinds"))
    db = Database.open(made.folder / "dsh.db")
    for name, kind in KINDS.items():
        with db.transaction():
            writes.insert_session(db, {"id": name, "version": 0, "createdAt": 1})
            for seq, (type_, data, op) in enumerate(turn(**kind)):
                writes.insert_event(db, name, seq, type_, seq, dumps(data), None, None if op is None else dumps(op))
        writes.insert_fork(db, f"fork of {name}", name, seq, 2, None)
    db.close()
    root = made.folder / "root"
    made.run("export", "--all", "--to", str(root))
    made.run("--db", str(made.folder / "other.db"), "import", str(root))
    made.run("--db", str(made.folder / "other.db"), "export", "--all", "--zstd", "--to", str(made.folder / "again"))
    made.run("--db", str(made.folder / "third.db"), "import", str(made.folder / "again"))
    made.found = made.run("search", "findable words", "--limit", "200", "--json")
    return made


@pytest.mark.rule("CO-2", "CO-3")
@pytest.mark.parametrize("name", KINDS)
def test_what_nobody_knows_passes_through(carried: Carried, name: str) -> None:
    events = turn(**KINDS[name])
    stored = [(type_, dumps(data), None if op is None else dumps(op)) for type_, data, op in events]
    for database in ("dsh.db", "other.db", "third.db"):  # stored, exported and imported, and once more, compressed
        assert carried.rows(database, name) == stored
        assert carried.rows(database, f"fork of {name}") == stored
    w = world(carried.folder / "third.db")
    try:
        session = w.sessions.publish(w.sessions.prepare_stored(f"fork of {name}"))
        derived = [dumps(message["content"]) for message in session.derive_messages()]
        w.sessions.dispose(session)
    finally:
        w.db.close()
    blocks = dumps(events[1][1]["content"])
    answered = f'[{{"type":"tool-result","toolCallId":"c","content":{blocks},"isError":false}}]'
    assert derived == [blocks, blocks, answered, blocks]
    shown = carried.run("show", name, "--json").split("\n")[:-1]
    assert [line[line.index('"data":') :] for line in shown] == [
        f'"data":{data}{"" if op is None else f",{chr(34)}surfaceOp{chr(34)}:{op}"},"sessionId":"{name}"}}'
        for _, data, op in stored
    ]
    assert blocks in carried.run("show", name, "--messages")
    for form in ([], ["--full"], ["--markdown"]):
        assert "findable words" in carried.run("show", name, *form)
    assert name in [json.loads(line)["sessionId"] for line in carried.found.split("\n")[:-1]]
