"""How much space a history takes: `bench_size.py KIND FOLDER SESSIONS` prints its figures as JSON.

KIND `streamed` is what dsh logs itself: an answer comes in pieces of some tokens, and is then a message. `messages` is
the same without the pieces, as after an import. Text is Python's own source. "Raw" is the same history as JSON Lines,
one event a line, as `dsh export --json` writes it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ROOT / ".venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
sys.path += [str(ROOT), str(_PACKAGES)]

from dsh.core.lossless import dumps  # noqa: E402
from dsh.session.jsonl import header_line  # noqa: E402
from dsh.session.transfer import export_lines  # noqa: E402
from dsh.store import rewriting, writes  # noqa: E402
from dsh.store.database import Database  # noqa: E402

USER = {"kind": "user"}
CONFIG = {"provider": "bench", "model": "bench"}
_TURNS, _STEPS = 3, 8


class _Writer:
    """Sessions of three turns of eight steps: a message of 300 characters, a call, a result of 100 to 6,000."""

    def __init__(self, db: Database, streamed: bool) -> None:
        self.db = db
        self.streamed = streamed
        self.draw = random.Random(1)
        files = sorted(Path(random.__file__).parent.glob("*.py"))
        self.words = "".join(path.read_text("utf-8", "replace") for path in files)
        tools = [{"name": name, "description": self.piece(3000)} for name in ("bash", "read", "edit")]
        self.header = {"header": {"config": CONFIG, "system": self.piece(4000), "tools": tools}, "reason": "initial"}

    def piece(self, length: int) -> str:
        at = self.draw.randrange(len(self.words) - length)
        return self.words[at : at + length]

    def session(self, name: str) -> None:
        self.name, self.seq = name, 0
        with self.db.transaction():
            writes.insert_session(self.db, {"id": name, "cwd": f"/home/me/project{self.draw.randrange(9)}"})
            for turn in range(1, _TURNS + 1):
                self.event("turn/start", {"turn": turn, "trigger": {"kind": "message", "source": USER}})
                content = [{"type": "text", "text": self.piece(200)}]
                self.event("user/message", {"content": content, "source": USER}, '"append"')
                for step in range(1, _STEPS + 1):
                    self.step({"turn": turn, "step": step}, first=turn == step == 1)
                self.event("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
        writes.refresh_search(self.db)

    def step(self, at: dict[str, int], *, first: bool) -> None:
        said, asked = self.piece(300), dumps({"command": self.piece(100)})
        call = {"type": "tool-call", "id": f"call_{self.draw.getrandbits(96):024x}", "name": "bash", "arguments": asked}
        text = {"type": "text", "text": said}
        self.event("step/start", at)
        if first:
            self.event("request/header", self.header)
        if self.streamed:
            self.streamed_block(at, 0, text, said, {"type": "text-delta", "index": 0}, "text")
            lane = {"type": "tool-call-delta", "index": 1, "id": call["id"]}
            self.streamed_block(at, 1, call, asked, lane, "argumentsDelta")
            self.event(
                "assistant/chunk", {**at, "chunk": {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 1}}}
            )
            self.event("assistant/chunk", {**at, "chunk": {"type": "finish", "reason": {"kind": "tool-calls"}}})
        self.event("assistant/message", {**at, "content": [text, call], "provenance": CONFIG}, '"append"')
        self.event("tool/call", {**at, "callId": call["id"], "name": "bash", "arguments": asked})
        result = [{"type": "text", "text": self.piece(self.draw.choice((100, 500, 2000, 6000)))}]
        self.event("tool/result", {**at, "callId": call["id"], "content": result, "isError": False}, '"append"')
        self.event("step/end", at)

    def streamed_block(
        self, at: dict[str, int], index: int, block: dict[str, Any], text: str, lane: dict[str, Any], field: str
    ) -> None:
        self.event(
            "assistant/chunk", {**at, "chunk": {"type": "block-start", "index": index, "blockType": block["type"]}}
        )
        for start in range(0, len(text), 5):
            self.event("assistant/chunk", {**at, "chunk": {**lane, field: text[start : start + 5]}})
        self.event("assistant/chunk", {**at, "chunk": {"type": "block-end", "index": index, "block": block}})

    def event(self, type_: str, data: dict[str, Any], op: str | None = None) -> None:
        at = 1_790_000_000_000 + self.seq * 37
        writes.insert_event(self.db, self.name, self.seq, type_, at, dumps(data), None, op)
        self.seq += 1


def main(folder: Path, sessions: int, kind: str) -> dict[str, Any]:
    path = folder / f"{kind}.db"
    db = Database.open(path)
    writer = _Writer(db, kind == "streamed")
    names = [f"s{number}" for number in range(sessions)]
    for name in names:
        writer.session(name)
    raw = 0
    for name in names:
        header, lines = export_lines(db, name, packed=False)
        raw += len(header_line(header).encode()) + sum(len(line.encode()) for line in lines)
    figures: dict[str, Any] = {"raw": raw, "events": db.rows("SELECT count(*) FROM event")[0][0]}
    changes: dict[str, Callable[[Database, str], int] | None] = {
        "hot": None, "packed": rewriting.pack_session, "thinned": rewriting.thin_session,
    }  # fmt: skip
    for state, change in changes.items():
        if change is not None:
            for name in names:
                change(db, name)
            rewriting.merge_index(db)
        db.vacuum(1000)
        figures[state] = path.stat().st_size
        figures[f"index {state}"] = db.rows(
            "SELECT sum(pgsize) FROM dbstat WHERE aggregate = TRUE AND name GLOB 'search*'"
        )[0][0]
    db.close()
    return figures


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[1])))
