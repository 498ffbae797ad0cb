"""SIGKILL at random moments of packing, thinning and redacting: the log says what it said, whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dsh.query.check import check
from dsh.store import rewriting, writes
from dsh.store.database import Database
from tests.history import History, text

ROOT = Path(__file__).resolve().parent.parent.parent
LONG = "Something is said here that is long enough to be packed, and goes on for a while. " * 40
ROUNDS = 12


def filled(path: Path) -> None:
    h = History(path)
    with h.db.transaction():
        for number in range(40):
            for turn in range(3):
                if turn == 0:
                    h.session(f"s{number}")
                h.turn(f"s{number}", turn + 1, f"ask {number} {LONG}", text(f"answer {number} {LONG}"))
    writes.refresh_search(h.db)
    h.db.close()


def said(db: Database) -> list[Any]:
    return db.rows("SELECT session_id, position, role, content FROM message ORDER BY 1, 2")


@pytest.mark.slow
@pytest.mark.rule("PE-83")
@pytest.mark.parametrize(
    "command",
    [
        ["db", "pack", "--all", "--vacuum"],
        ["db", "pack", "--all", "--unpack"],
        ["prune", "--older-than", "0d", "--vacuum"],
    ],
)
def test_a_killed_upkeep_leaves_the_log_as_it_was(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "dsh.db"
    filled(path)
    draw = random.Random(str(command))
    with_db = {**os.environ, "DSH_DB": str(path), "PYTHONPATH": str(ROOT)}
    before = said(Database.open(path))
    for _ in range(ROUNDS):
        if "--unpack" in command:
            db = Database.open(path)
            for number in range(40):
                rewriting.pack_session(db, f"s{number}")
            db.close()
        process = subprocess.Popen(
            [sys.executable, "-m", "dsh", *command], env=with_db, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(0.1 + draw.random() * 0.35)
        process.send_signal(signal.SIGKILL)
        process.wait()
        db = Database.open(path)
        assert said(db) == before
        assert db.integrity(quick=True) == []
        db.close()
    db = Database.open(path)
    assert check(db) == []
    assert writes.check_search(db) is None
