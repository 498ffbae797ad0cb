"""A database, a host and sessions on it; short ways of writing turns; the whole stored state as a value."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from dsh.core.errors import DshError
from dsh.core.lossless import dumps
from dsh.kernel.config import Config
from dsh.kernel.host import Host
from dsh.session.session import Session
from dsh.session.sessions import Sessions
from dsh.store import writes
from dsh.store.database import Database

USER = {"kind": "user"}
ROUTE = {"provider": "p", "model": "m"}
REPLACE = "replace"


@dataclass
class World:
    path: Path
    db: Database
    host: Host
    sessions: Sessions

    def session(self, id: str = "s", **meta: Any) -> Session:
        return self.sessions.create(id, meta=meta)

    def reopen(self) -> World:
        """The same file as another process would meet it: nothing but what is stored."""
        return world(self.path)


def world(path: Path, **options: Any) -> World:
    db = Database.open(path, **options)
    host = Host(Config({}, {}))
    return World(path, db, host, Sessions(host, db))


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(id: str, name: str = "bash", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "tool-call", "id": id, "name": name, "arguments": arguments}


def prompt(words: str = "hello") -> dict[str, Any]:
    return {"content": [text(words)], "source": USER}


def replace(start: int, end: int) -> dict[str, Any]:
    return {"op": "replace", "start": start, "end": end}


def start_turn(session: Session) -> int:
    turn = session.turns + 1
    session.append("turn/start", {"turn": turn, "trigger": {"kind": "message", "source": USER}})
    return turn


def end_turn(session: Session, **reason: Any) -> None:
    session.append("turn/end", {"turn": session.turns, "reason": {"kind": "completed", **reason}})


def start_step(session: Session, step: int = 1) -> dict[str, Any]:
    at = {"turn": session.turns, "step": step}
    session.append("step/start", at)
    return at


def reply(session: Session, *blocks: dict[str, Any], **more: Any) -> int:
    data = {"turn": session.open_turn, "step": session.open_step, "content": list(blocks), "provenance": ROUTE, **more}
    return session.append("assistant/message", data, surface="append")["seq"]


def result(session: Session, id: str, words: str = "out", **more: Any) -> dict[str, Any]:
    at = {"turn": session.open_turn, "step": session.open_step}
    return {**at, "callId": id, "content": [text(words)], "isError": False, **more}


def tool_call(session: Session, id: str) -> int:
    at = {"turn": session.open_turn, "step": session.open_step}
    return session.append("tool/call", {**at, "callId": id, "name": "bash", "arguments": "{}"})["seq"]


def whole_turn(session: Session, words: str = "hello", *, calls: int = 0) -> None:
    """One balanced turn: a prompt, a step with a reply and perhaps calls with their results."""
    start_turn(session)
    session.append("user/message", prompt(words), surface="append")
    at = start_step(session)
    session.append("request/header", {"header": {"config": ROUTE}, "reason": "initial"})
    chunk = session.append("assistant/chunk", {**at, "chunk": {"type": "text-delta", "index": 0, "text": "re"}})
    ids = [f"c{session.length}-{n}" for n in range(calls)]
    data = {**at, "content": [text(f"re: {words}"), *map(call, ids)], "provenance": ROUTE}
    session.append("assistant/message", data, surface="append", sources=[chunk["seq"]])
    for name in ids:
        tool_call(session, name)
        session.append("tool/result", result(session, name), surface="append")
    session.append("step/end", at)
    end_turn(session)


def code(action: Any, *args: Any, **options: Any) -> str:
    """The code of the refusal; the test fails if there is none."""
    with pytest.raises(DshError) as caught:
        action(*args, **options)
    return caught.value.code


def surface(db: Database, session: str) -> list[int]:
    return [seq for (seq,) in db.rows("SELECT seq FROM surface WHERE session_id = ? ORDER BY position", (session,))]


def messages(db: Database, session: str) -> list[Any]:
    sql = "SELECT role, content, provenance FROM message WHERE session_id = ? ORDER BY position"
    return db.rows(sql, (session,))


@contextmanager
def raw(path: Path) -> Iterator[apsw.Connection]:
    """An unguarded connection. Never the standard library's sqlite3 in the same process: that is a second copy of
    SQLite, and when it closes the file, the locks of the first one are gone."""
    db = apsw.Connection(str(path))
    db.set_busy_timeout(10_000)
    try:
        yield db
    finally:
        db.close()


def dump(path: Path) -> dict[str, list[Any]]:
    """Every row of every table: equal dumps are equal databases."""
    with raw(path) as db:
        sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        tables = [str(name) for (name,) in db.execute(sql)]
        return {name: sorted(db.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr) for name in tables}


def damage(path: Path, *statements: str) -> None:
    """Change stored rows by hand: the rules are dropped for it and put back."""
    with raw(path) as db:
        named = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, 1) = '_'"
        triggers = db.execute(named).fetchall()
        with db:
            for name, _ in triggers:
                db.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                db.execute(statement)
            for _, sql in triggers:
                db.execute(str(sql))


def fill(db: Database, id: str, *events: tuple[str, Any, Any]) -> None:
    """A session written without a handle: (type, data, surface op or None)."""
    with db.transaction():
        writes.insert_session(db, {"id": id, "version": 0, "createdAt": 1})
        for seq, (type_, data, op) in enumerate(events):
            writes.insert_event(db, id, seq, type_, 1, dumps(data), None, None if op is None else dumps(op))


def shell(path: Path, sql: str) -> subprocess.CompletedProcess[str]:
    """What a stock sqlite3 shell says to this; it stops at the first error."""
    program = shutil.which("sqlite3")
    if program is None:
        pytest.skip("no sqlite3 shell")
    return subprocess.run(
        [program, "-bail", "-batch", str(path)], input=sql, capture_output=True, text=True, check=False
    )


def shell_refusal(path: Path, sql: str) -> str:
    done = shell(path, sql)
    assert done.returncode != 0, done.stdout
    return done.stderr.strip()
