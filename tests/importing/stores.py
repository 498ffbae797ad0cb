"""Stores of other agents, made from the samples beside this file, and ways to read them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw

from dsh.importing import registry
from dsh.importing.model import Home, Item, Transcript
from dsh.importing.run import Import, Report
from dsh.store.database import Database

SAMPLES = Path(__file__).parent / "samples"
ROOT = Path(__file__).resolve().parent.parent.parent


def database(path: Path, *scripts: str, wal: bool = False) -> Path:
    """A database from SQL texts. With `wal` all of it is in the -wal file, as a tool leaves it that was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if wal:
        made = "import apsw, os, sys; db = apsw.Connection(sys.argv[1])\n"
        made += "db.pragma('journal_mode', 'wal'); db.pragma('synchronous', 'off')\n"
        made += "for script in sys.argv[2:]: db.execute(script).fetchall()\nos._exit(0)"
        subprocess.run([sys.executable, "-c", made, str(path), *scripts], check=True)
        return path
    db = apsw.Connection(str(path))
    db.pragma("synchronous", "off")
    for script in scripts:
        db.execute(script).fetchall()
    db.close()
    return path


def changed(path: Path, *statements: str) -> None:
    """What the owner of a store does to it."""
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement).fetchall()
    db.close()


def sample(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def tree(root: Path, name: str) -> Path:
    """A folder of JSON files from one that has them all by their paths."""
    for path, value in json.loads(sample(name)).items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value, ensure_ascii=False, indent=2), encoding="utf-8")
    return root


def store(tool: str, root: Path, home: str = "/home/ann") -> Path:
    """The sample store of a tool in a folder, which is also the place to name to an import. `home` is whose it is."""

    def sample(name: str) -> str:
        return (SAMPLES / name).read_text(encoding="utf-8").replace("/home/ann", home)

    if tool == "opencode":
        database(root / "opencode.db", sample("opencode/opencode.sql"), wal=True)
    elif tool == "goose":
        database(root / "sessions.db", sample("goose/sessions.sql"))
        (root / "20250320_152628.jsonl").write_text(sample("goose/20250320_152628.jsonl"), encoding="utf-8")
    elif tool == "crush":
        database(root / ".crush" / "crush.db", sample("crush/crush.sql"))
    elif tool == "llm":
        database(root / "logs.db", sample("llm/logs.sql"))
    elif tool == "aider":
        root.mkdir(parents=True, exist_ok=True)
        (root / ".aider.chat.history.md").write_text(sample("aider/chat.history.md"), encoding="utf-8")
        (root / ".aider.input.history").write_text(sample("aider/input.history"), encoding="utf-8")
    return root


def read(tool: str, place: Path) -> dict[str, tuple[Transcript, list[Item]]]:
    """The transcripts of a place with their records, by their ids."""
    reader = registry.reader(tool)
    found: dict[str, tuple[Transcript, list[Item]]] = {}
    for source in reader.sources(str(place)):
        for transcript in reader.transcripts(source):
            found[transcript.id] = (transcript, list(transcript.items))
    return found


def imported(tool: str, place: Path, db: Path) -> Report:
    """Import a place in this process, as `dsh import TOOL PLACE` does."""
    work = Import(Home(str(place), {}))
    work.find(tool, [str(place)])
    (report,) = work.run(lambda: Database.open(db))
    return report


def dsh(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The real program, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "dsh", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def state(folder: Path) -> dict[str, Any]:
    """Every file below a folder, with its bytes and its time of change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def texts(item: Any) -> list[str]:
    """The texts of a record's blocks."""
    return [block["text"] for block in item.blocks if "text" in block]


def told(db: Path, session: str) -> list[tuple[str, str]]:
    """What the model of a session would be sent: roles and texts."""
    with_texts: list[tuple[str, str]] = []
    opened = Database.open(db, read_only=True)
    try:
        found = opened.rows("SELECT role, content FROM message WHERE session_id = ? ORDER BY position, seq", (session,))
    finally:
        opened.close()
    for role, content in found:
        for block in json.loads(content):
            shown = block.get("text") or block.get("name") or "".join(b["text"] for b in block.get("content", ()))
            with_texts.append((role, shown))
    return with_texts


def rows(db: Path, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
    opened = Database.open(db, read_only=True)
    try:
        return opened.rows(sql, bindings)
    finally:
        opened.close()
