"""Files of other agents made line by line, and what an import has made of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from dsh.importing.model import Home
from dsh.importing.run import Import, Report
from dsh.query.check import check
from dsh.store.database import Database
from tests.importing.stores import SAMPLES, rows

FOLDER = "/home/user/project"  # of the samples
LONG_AGO = 1_700_000_000  # epoch seconds; a file of then is not being written any more
PLACES = {
    "claude": "claude/projects",
    "codex": "codex/sessions",
    "gemini": "gemini/tmp",
    "pi": "pi/agent/sessions",
}
JSONL = list(PLACES)


def rest(path: Path, at: int = LONG_AGO) -> None:
    """Make a file, or all below a folder, one that nobody has touched for long."""
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if each.is_file():
            os.utime(each, (at, at))


def copied(tool: str, folder: Path) -> Path:
    """The samples of a tool where they may be written to, each as if just written; copies after their originals."""
    target = folder / tool
    shutil.copytree(SAMPLES / PLACES[tool], target, copy_function=shutil.copyfile)
    for number, path in enumerate(sorted(target.rglob("*"), reverse=True)):
        os.utime(path, (time.time() - 1000 + number,) * 2)
    return target


def at_home(place: Path, folder: Path) -> Path:
    """Let the sessions below a place have been held in a folder that is there."""
    folder.mkdir(exist_ok=True)
    before, hashed = FOLDER.encode(), hashlib.sha256(FOLDER.encode()).hexdigest().encode()
    for path in place.rglob("*"):
        if path.is_file():
            content = path.read_bytes().replace(before, str(folder).encode())
            path.write_bytes(content.replace(hashed, hashlib.sha256(str(folder).encode()).hexdigest().encode()))
    return place


def write(path: Path, *records: Any) -> Path:
    """A JSONL file; a text or bytes is taken as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for record in records:
            line = record if isinstance(record, bytes) else record.encode() if isinstance(record, str) else None
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n" if line is None else line)
    return path


def append(path: Path, *records: Any) -> None:
    with path.open("ab") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def taken(tool: str, place: Path, db: Path, **more: Any) -> Report:
    """Import a place that the user names, and check the logs that it gave."""
    work = Import(Home(str(place), {}))
    work.find(tool, [str(place)])
    (report,) = work.run(lambda: Database.open(db), **more)
    sound(db)
    return report


def sound(db: Path) -> None:
    """Every log obeys the rules under which it could have been written."""
    opened = Database.open(db, read_only=True)
    try:
        assert [str(found) for found in check(opened)] == []
    finally:
        opened.close()


def log(db: Path, session: str) -> list[tuple[Any, ...]]:
    sql = (
        "SELECT seq, type, json(data), source_event_seqs, surface_op FROM event WHERE session_id = ? ORDER BY part, seq"
    )
    return rows(db, sql, session)


def logs(db: Path) -> dict[str, list[tuple[Any, ...]]]:
    return {name: log(db, name) for (name,) in rows(db, "SELECT id FROM session ORDER BY id")}


def kinds(db: Path, session: str) -> list[str]:
    return [row[1] for row in log(db, session)]


def ends(db: Path, session: str) -> list[str]:
    """How the turns of a session ended."""
    return [row[0] for row in rows(db, "SELECT outcome FROM turn WHERE session_id = ? ORDER BY turn", session)]


def seen(db: Path, session: str) -> list[str]:
    """What the model would see, as texts with the role before each."""
    found: list[str] = []
    for role, content in rows(
        db, "SELECT role, content FROM message WHERE session_id = ? ORDER BY position, seq", session
    ):
        for block in json.loads(content):
            if block["type"] == "tool-call":
                found.append(f"call {block['name']} {block['arguments']}")
            elif block["type"] == "tool-result":
                said = "".join(inner.get("text", "") for inner in block["content"])
                found.append(f"{'error' if block['isError'] else 'result'} {said}")
            else:
                mark = "thinks" if block["type"] == "reasoning" else role
                found.append(f"{mark} {block['text']}")
    return found
