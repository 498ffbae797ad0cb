"""What other processes do in the tests of this folder: `python -m tests.store.actors ROLE DATABASE ARGUMENTS`.

A role that has got going prints a line; most then wait for their standard input to close.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import apsw

from dsh.core.errors import DshError, StoreError
from dsh.session.session import Session
from dsh.store import writes
from tests.session.kit import (
    World,
    call,
    end_turn,
    prompt,
    replace,
    reply,
    result,
    start_step,
    start_turn,
    surface,
    tool_call,
    whole_turn,
    world,
)


def say(*words: object) -> None:
    print(*words, flush=True)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.001)


def open_once(path: Path, go: str) -> None:
    """Open as soon as the file `go` is there."""
    say("ready")
    wait_for(Path(go))
    w = world(path)
    say(w.db.rows("SELECT store_id FROM store")[0][0])
    w.db.close()


def write(path: Path, name: str, turns: str, go: str) -> None:
    """Some turns of a session of its own."""
    say("ready")
    wait_for(Path(go))
    w = world(path)
    session = w.session(name)
    session.claim(name)
    for number in range(int(turns)):
        whole_turn(session, f"{name} {number}", calls=1)
        writes.refresh_search(w.db)
    session.release()
    say(session.length)
    w.db.close()


def hold(path: Path, seconds: str) -> None:
    """The write lock, for a while."""
    db = apsw.Connection(str(path))
    db.execute("BEGIN IMMEDIATE")
    say("held")
    time.sleep(float(seconds))
    db.execute("ROLLBACK")
    db.close()


def claim(path: Path, name: str, go: str) -> None:
    """Drive a stored session as soon as `go` is there; keep it until told to end."""
    w = world(path)
    say("ready")
    wait_for(Path(go))
    try:
        session = w.sessions.prepare_stored(name)
    except DshError as error:
        say(error.code)
        return
    say("mine", session.length)
    sys.stdin.read()


def drive(path: Path, name: str) -> None:
    """Write into a session, new or stored, until killed."""
    w = world(path)
    if w.db.rows("SELECT 1 FROM session WHERE id = ?", (name,)):
        session = w.sessions.publish(w.sessions.prepare_stored(name))
    else:
        session = w.session(name)
        session.claim("driver")
    say("ready")
    number = 0
    while True:
        number += 1
        one_turn(w, session, number)


def one_turn(w: World, session: Session, number: int) -> None:
    start_turn(session)
    session.append("user/message", prompt(f"prompt {number}"), surface="append")
    for step in (1, 2):
        at = start_step(session, step)
        for piece in range(5):
            session.append("assistant/chunk", {**at, "chunk": {"type": "text-delta", "index": 0, "text": str(piece)}})
        reply(session, call(f"a{number}-{step}"), call(f"b{number}-{step}"))
        for letter in "ab":
            tool_call(session, f"{letter}{number}-{step}")
            session.append("tool/result", result(session, f"{letter}{number}-{step}"), surface="append")
        session.append("step/end", at)
    if number % 3 == 0:
        with w.db.transaction():
            nodes = surface(w.db, session.id)
            session.append("user/message", prompt("sum"), surface=replace(nodes[0], nodes[-2]), sources=nodes)
    if number % 4 == 0:
        writes.refresh_search(w.db)
    end_turn(session)


ROLES = {f.__name__: f for f in (open_once, write, hold, claim, drive)}

if __name__ == "__main__":
    try:
        ROLES[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
    except StoreError as failure:
        say(failure.code, failure)
        sys.exit(8)
