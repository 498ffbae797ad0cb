"""Databases that cannot be used, or not fully: locked, damaged, foreign, newer, on read-only media."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from dsh.store import writes
from tests.cli.conftest import ROOT, Run
from tests.history import History

READERS = [["search", "x"], ["sessions"], ["show", "last"], ["sql", "select 1"], ["config", "list"]]

pytestmark = pytest.mark.slow  # each test starts the program, some many times

HOLD = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.execute("PRAGMA locking_mode = exclusive")
db.execute("BEGIN EXCLUSIVE")
db.execute("CREATE TABLE held(a)")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(path: Path) -> Iterator[int]:
    """Another process keeps the whole database to itself; gives its id."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(timeout=20)
        process.stdout.close()


@pytest.mark.rule("HD-14")
@pytest.mark.parametrize("arguments", READERS, ids=lambda a: a[0])
def test_a_locked_database_names_file_and_holder(
    dsh: Run, history: History, tmp_path: Path, arguments: list[str]
) -> None:
    history.say("s", "x")
    history.db.close()
    with held(tmp_path / "dsh.db") as pid:
        done = dsh(*arguments, env={"DSH_STORE_BUSY_TIMEOUT_MS": "200"})
    assert (done.returncode, done.stdout) == (8, "")
    assert str(tmp_path / "dsh.db") in done.stderr
    assert "is locked" in done.stderr
    assert "waited 0.2 s" in done.stderr
    if sys.platform == "linux":
        assert f"by process {pid}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert dsh(*arguments).returncode == 0


@pytest.mark.rule("HD-14", "SQ-73")
@pytest.mark.parametrize("arguments", READERS, ids=lambda a: a[0])
def test_a_foreign_file_is_refused_and_not_touched(dsh: Run, tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "dsh.db"
    with apsw.Connection(str(path)) as other:
        other.execute("CREATE TABLE mine(a)")
    other.close()
    before = path.read_bytes()
    done = dsh(*arguments)
    assert (done.returncode, done.stdout) == (8, "")
    assert f"{path} is not a dsh database" in done.stderr
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("dsh.db")] == ["dsh.db"]


@pytest.mark.rule("HD-14")
@pytest.mark.parametrize("arguments", READERS, ids=lambda a: a[0])
def test_a_newer_schema_is_refused_and_not_touched(
    dsh: Run, history: History, tmp_path: Path, arguments: list[str]
) -> None:
    history.say("s", "x")
    history.db.close()
    path = tmp_path / "dsh.db"
    db = apsw.Connection(str(path))
    db.execute("PRAGMA user_version = 999")
    db.close()
    before = path.read_bytes()
    done = dsh(*arguments)
    assert (done.returncode, done.stdout) == (8, "")
    assert "schema version 999, made by a newer dsh" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.rule("HD-14")
@pytest.mark.parametrize(
    "content", [b"this is a text file, not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_file_that_is_no_database(dsh: Run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "dsh.db"
    path.write_bytes(content)
    for arguments in READERS:
        done = dsh(*arguments)
        assert (done.returncode, done.stdout) == (8, ""), arguments
        assert str(path) in done.stderr
    assert path.read_bytes() == content


@pytest.mark.rule("HD-14")
def test_a_damaged_file(dsh: Run, history: History, tmp_path: Path) -> None:
    for number in range(40):
        history.say(f"s{number}", "needle " * 50)
    history.db.close()
    path = tmp_path / "dsh.db"
    raw = bytearray(path.read_bytes())
    for page in range(12, len(raw) // 4096):
        raw[page * 4096 : page * 4096 + 2000] = b"\xa5" * 2000
    path.write_bytes(raw)
    for arguments in (["search", "needle"], ["sql", "select data from event"], ["show", "s1", "--json"]):
        done = dsh(*arguments)
        assert done.returncode == 8, (arguments, done.stderr)
        assert f"{path} is damaged" in done.stderr
        assert "Traceback" not in done.stderr
    report = dsh("doctor", "--full")
    assert report.returncode == 1
    assert "broken" in report.stdout


# Runs a command twice: on a copy, so that everything is loaded, then without root's rights, for which file modes do not
# hold. (Python's own library may be out of reach without them.)
UNPRIVILEGED = """
import os, sys, traceback
from dsh.cli.main import main
real, out = os.environ["DSH_DB"], sys.stdout
os.environ["DSH_DB"] = sys.argv[1]
with open(os.devnull, "w") as sys.stdout:
    main(sys.argv[2:])
os.environ["DSH_DB"], sys.stdout = real, out
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("indexed", [True, False])
def test_read_only_media(history: History, indexed: bool) -> None:
    history.say("s", "needle")
    if indexed:
        writes.refresh_search(history.db)
    history.db.close()
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        shutil.copy(history.path, folder / "dsh.db")
        (folder / "dsh.db").chmod(0o444)
        folder.chmod(0o555)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "DSH_DB": str(folder / "dsh.db"), "HOME": name}
        for arguments in (
            ["sessions"],
            ["search", "needle"],
            ["show", "s", "--json"],
            ["sql", "select id from session"],
            ["config", "get", "search.limit"],
            ["doctor", "--full"],
        ):
            command = [sys.executable, "-c", UNPRIVILEGED, str(history.path), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
            if arguments[0] == "search" and not indexed:
                assert "the newest events are not searched" in done.stderr
                assert done.returncode == 1
            else:
                assert (done.returncode, done.stderr) == (0, "")
                assert done.stdout != ""
        assert sorted(p.name for p in folder.iterdir()) == ["dsh.db"]
        if os.getuid() == 0:  # of another user, or closed
            (folder / "dsh.db").chmod(0)
            done = subprocess.run(
                [sys.executable, "-c", UNPRIVILEGED, str(history.path), "sessions"],
                capture_output=True, text=True, env=env, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (8, "")
            assert "cannot be read: permission denied" in done.stderr
            folder.chmod(0)
            for words in ("sessions", "search needle", "config list", "config set search.limit 3"):
                done = subprocess.run(
                    [sys.executable, "-c", UNPRIVILEGED, str(history.path), *words.split()],
                    capture_output=True, text=True, env={**env, "HOME": "/"}, check=False,
                )  # fmt: skip
                assert (done.returncode, done.stderr) == (8, f"dsh: {folder / 'dsh.db'}: Permission denied\n")
            done = subprocess.run(
                [sys.executable, "-c", UNPRIVILEGED, str(history.path), "doctor"],
                capture_output=True, text=True, env={**env, "HOME": "/"}, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (1, "")
            assert f"database opens\tbroken\t{folder / 'dsh.db'}: Permission denied" in done.stdout
        folder.chmod(0o755)


def test_doctor_does_not_call_a_busy_index_broken(dsh: Run, history: History, tmp_path: Path) -> None:
    history.say("s", "needle")
    other = apsw.Connection(str(tmp_path / "dsh.db"))
    other.execute("BEGIN IMMEDIATE")
    done = dsh("doctor", "--full", env={"DSH_STORE_BUSY_TIMEOUT_MS": "200"})
    other.close()
    assert done.returncode == 0, done.stdout
    assert "index matches log\t-\tnot checked: " in done.stdout
    assert "integrity\tok" in done.stdout


def test_doctor_tells_of_hard_links(dsh: Run, history: History, tmp_path: Path) -> None:
    history.say("s", "needle")
    os.link(tmp_path / "dsh.db", tmp_path / "second.db")
    assert "has 2 names" in dsh("doctor").stdout
