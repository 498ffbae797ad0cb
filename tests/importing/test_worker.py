"""The process that reads: it may be killed, and what it died of is not read again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsh.importing.convert import DONE, END, FAILED, ROWS, SESSION, Job
from dsh.importing.model import source_of
from dsh.importing.worker import Worker, inline
from tests.importing.kit import copied, logs, rest, taken
from tests.importing.stores import ROOT, rows


def jobs(place: Path) -> list[Job]:
    found = [source_of(str(path)) for path in sorted(place.rglob("*.jsonl"))]
    return [Job("claude", source, {}, [], []) for source in found if source is not None]


def test_both_ways_say_the_same(tmp_path: Path) -> None:
    given = jobs(copied("claude", tmp_path))
    worker = Worker()
    try:
        there = list(worker.converted(given))
    finally:
        worker.close()
    assert there == list(inline(given))
    assert [number for number, message in there if message[0] == DONE] == [0, 1, 2, 3]
    assert {message[0] for _, message in there} == {SESSION, ROWS, END, DONE}


def test_a_worker_without_jobs_ends(tmp_path: Path) -> None:
    worker = Worker()
    assert list(worker.converted([])) == []
    worker.close()
    for _ in range(40):  # also one that is told to end while it begins
        Worker().close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_what_it_dies_of_has_failed_and_the_rest_is_done(tmp_path: Path) -> None:
    given = jobs(copied("claude", tmp_path))
    worker = Worker()
    heard: list[tuple[int, str]] = []
    try:
        for number, message in worker.converted([*given, *given]):
            if not heard:
                os.kill(worker.pid, signal.SIGKILL)
            heard.append((number, message[0]))
    finally:
        worker.close()
    ended = {number: kind for number, kind in heard if kind in (DONE, FAILED)}
    assert list(ended) == list(range(2 * len(given)))
    assert list(ended.values()).count(FAILED) <= 1  # all of it may have been in the pipe already


@pytest.mark.slow
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_who_is_told_to_stop_stops_and_goes_on_later(tmp_path: Path, signal_: signal.Signals) -> None:
    place, db = tmp_path / "tree", tmp_path / "dsh.db"
    script = ROOT / "scripts" / "lib" / "bench_import.py"
    subprocess.run([sys.executable, str(script), "make", str(place), "30", "200"], check=True, capture_output=True)
    rest(place)
    process = subprocess.Popen(
        [sys.executable, "-m", "dsh", "import", "claude", str(place), "--db", str(db)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 30
    while time.monotonic() < until and not (db.exists() and db.stat().st_size):
        time.sleep(0.01)
    while time.monotonic() < until and not rows(db, "SELECT 1 FROM import_source"):
        time.sleep(0.01)
    os.killpg(process.pid, signal_)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (-signal_, 128 + signal_), err
    assert out == b""
    assert b"Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # the one that reads is gone, too
    taken("claude", place, db)
    assert len(logs(db)) == 30
