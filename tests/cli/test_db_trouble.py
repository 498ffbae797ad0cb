"""Databases in trouble, met by the commands that people use (HD-14): a clear line, the exit code, nothing lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw
import pytest

from dsh.cli.main import main
from dsh.store import writes
from dsh.store.migrations import APPLICATION_ID
from tests.cli.test_files import held
from tests.provider import FakeProvider, text
from tests.session.kit import dump, whole_turn, world
from tests.shell.process import ROOT, Done, Dsh, finish
from tests.store.test_rebuild import varied

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap for a file system of its own")
WRITER = ["run", "hi"]
READERS = [["search", "words"], ["sessions"], ["show", "last"], ["sql", "SELECT * FROM session"], ["db", "check"]]
COMMANDS = [WRITER, *READERS]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Dsh]:
    """The real binary on a database in a folder of its own, with a session in it."""
    (tmp_path / "disk").mkdir()
    with FakeProvider() as fake:
        dsh = Dsh(tmp_path, fake, DSH_DB=str(tmp_path / "disk" / "dsh.db"), DSH_STORE_BUSY_TIMEOUT_MS="300")
        dsh.db = tmp_path / "disk" / "dsh.db"
        w = world(dsh.db)
        whole_turn(w.session("s"), "words")
        writes.refresh_search(w.db)
        w.db.close()
        yield dsh


def refused(done: Done, *words: str) -> None:
    """Exit code 8, nothing on standard output, one line and perhaps a hint, with these words."""
    assert (done.code, done.out) == (8, b""), done
    lines = done.errors.splitlines()
    assert 1 <= len(lines) <= 2, done.errors
    assert all(line.startswith("dsh: ") for line in lines)
    assert all(word in lines[0] for word in words), done.errors
    assert "internal error" not in done.errors


def boxed(dsh: Dsh, options: list[str], *words: str) -> Done:
    """The command in a file system of its own."""
    command = ["bwrap", "--dev-bind", "/", "/", *options, "--", *dsh.command(*words)]
    return finish(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dsh.env, cwd=dsh.cwd))


@needs_bwrap
@pytest.mark.slow
@pytest.mark.rule("HD-14", "PE-16", "PE-78")
def test_a_disk_that_gets_full_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", "--size", "3000000", "--tmpfs", str(tmp_path / "disk"), "--",
         sys.executable, "-m", "tests.cli.small_disk", str(tmp_path / "disk"), str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@needs_bwrap
@pytest.mark.slow
@pytest.mark.rule("HD-14")
def test_a_disk_that_has_no_room_for_anything(program: Dsh, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    copy = 'cp "$DSH_DB" "$1/dsh.db"; export DSH_DB="$1/dsh.db"'
    script = f'{copy}; cat /dev/zero >"$1/rest" 2>/dev/null; shift; exec "$@"'
    for words in COMMANDS:
        box = ["bwrap", "--dev-bind", "/", "/", "--size", "1000000", "--tmpfs", str(full), "--"]
        command = [*box, "sh", "-c", script, "sh", str(full), *program.command(*words)]
        done = finish(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=program.env, cwd=program.cwd)
        )
        refused(done, str(full / "dsh.db"), "the disk is full")


@needs_bwrap
@pytest.mark.slow
@pytest.mark.rule("HD-14", "PE-39")
def test_a_file_system_that_is_read_only(program: Dsh) -> None:
    disk = str(program.db.parent)
    before = program.db.read_bytes()
    box = ["--ro-bind", disk, disk]
    refused(boxed(program, box, *WRITER), str(program.db), "cannot be written")
    for words in READERS:
        done = boxed(program, box, *words)
        assert (done.code, done.err.count(b"\n")) == (0, int(words[0] == "db")), done
        assert bool(done.out) == (words[0] != "db")
    refused(boxed(program, box, "db", "vacuum"), "cannot be written")
    refused(boxed(program, box, "db", "rebuild"), "cannot be written")
    refused(boxed(program, box, "db", "recover"), disk, "Read-only")
    to = program.cwd / "recovered.db"
    assert boxed(program, box, "db", "recover", "--to", str(to)).code == 0
    assert boxed(program, box, "db", "backup", str(program.cwd / "copy.db")).code == 0
    assert program.db.read_bytes() == before
    assert sorted(p.name for p in program.db.parent.iterdir()) == ["dsh.db"]

    # What a killed process has left in the -wal file needs a -shm file to be read, and there is none.
    with_log = world(program.db)
    whole_turn(with_log.session("t"))
    kept = program.db.with_name("dsh.db-wal").read_bytes()
    copy = program.db.read_bytes()
    with_log.db.close()
    program.db.write_bytes(copy)
    program.db.with_name("dsh.db-wal").write_bytes(kept)
    for words in COMMANDS:
        refused(boxed(program, box, *words), str(program.db))
    to.unlink()
    assert boxed(program, box, "db", "recover", "--to", str(to)).code == 0
    with apsw.Connection(str(to)) as db:
        assert list(db.execute("SELECT id, length FROM session ORDER BY id")) == [("s", 8), ("t", 8)]
    db.close()


@needs_bwrap
@pytest.mark.slow
@pytest.mark.rule("HD-14", "PE-54")
def test_a_file_that_we_may_not_read(program: Dsh) -> None:
    for mode, word in ((0o000, "permission denied"), (0o400, "cannot be written")):
        program.db.chmod(mode)
        for words in COMMANDS if mode == 0 else [WRITER]:
            refused(boxed(program, ["--cap-drop", "ALL"], *words), str(program.db), word)
    program.db.chmod(0o600)
    program.db.parent.chmod(0o000)
    for words in COMMANDS:
        refused(boxed(program, ["--cap-drop", "ALL"], *words), str(program.db), "ermission denied")
    program.db.parent.chmod(0o700)


@pytest.mark.slow
@pytest.mark.rule("HD-14", "PE-75")
def test_a_file_that_somebody_else_has_to_himself(program: Dsh) -> None:
    before = dump(program.db)
    with held(program.db) as pid:
        for words in COMMANDS:
            refused(program(*words), f"{program.db} is locked by process {pid}; waited 0.3 s")
    assert dump(program.db) == before


@pytest.mark.slow
@pytest.mark.rule("HD-14", "PE-75")
def test_a_file_that_somebody_else_writes_to(program: Dsh) -> None:
    other = apsw.Connection(str(program.db))
    other.execute("BEGIN IMMEDIATE")
    refused(program(*WRITER), f"{program.db} is locked by process {os.getpid()}")
    for words in READERS:
        assert program(*words).code == 0
    other.close()
    assert len(program.rows("SELECT id FROM session")) == 1


def newer(path: Path) -> str:
    with apsw.Connection(str(path)) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    return "schema version 999, made by a newer dsh"


def foreign(path: Path) -> str:
    path.unlink()
    with apsw.Connection(str(path)) as db:
        db.execute("CREATE TABLE t(x)")
    db.close()
    return f"is not a dsh database (application id 0x0, ours is {APPLICATION_ID:#x})"


def no_sqlite(path: Path) -> str:
    path.write_bytes(b"just a text, and a long one " * 200)
    return "is not an SQLite database"


def a_folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return ""


def in_a_file(path: Path) -> str:
    shutil.rmtree(path.parent)
    path.parent.write_text("not a folder")
    return ""


@pytest.mark.slow
@pytest.mark.rule("HD-14", "PE-52")
@pytest.mark.parametrize("make", [newer, foreign, no_sqlite, a_folder, in_a_file], ids=lambda f: f.__name__)
def test_a_file_that_is_not_ours(program: Dsh, make: Callable[[Path], str]) -> None:
    told = make(program.db)
    before = program.db.read_bytes() if program.db.is_file() else None
    for words in COMMANDS:
        done = program(*words)
        if make is in_a_file and words is not WRITER:  # there is no database there
            assert (done.code in (0, 1, 2), done.out) == (True, b""), done
            continue
        refused(done, str(program.db), told)
    if before is not None:
        assert program.db.read_bytes() == before
        assert sorted(p.name for p in program.db.parent.iterdir()) == ["dsh.db"]


@pytest.mark.slow
@pytest.mark.rule("HD-14", "PE-52")
def test_an_empty_file_is_a_database_without_sessions(program: Dsh) -> None:
    for words in READERS:
        program.db.write_bytes(b"")
        done = program(*words)
        assert done.code == {"search": 1, "show": 2}.get(words[0], 0), done
        assert "internal error" not in done.errors
    program.db.write_bytes(b"")
    assert program(*WRITER).code == 0
    assert len(program.log()) > 5


# -------------------------------------------------------------------------------------------------- a flipped byte


def in_process(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


EVENTS = "SELECT session_id, seq, type, time, data, source_event_seqs, surface_op FROM event ORDER BY 1, 2"
MORE = [["db", "check", "--quick"], ["db", "stats"], ["doctor", "--full"], ["config", "list"]]


@pytest.mark.slow
@pytest.mark.rule("HD-14", "PE-76", "PE-55")
@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    """No command fails in a way of its own, and the check is not content with a log that has changed, unless what
    changed is a text, a key, a number or a time that could as well have been written so (PE-76)."""
    path = tmp_path / "dsh.db"
    w = varied(path)
    w.db.close()
    original = path.read_bytes()
    used = [at for at, byte in enumerate(original) if byte]
    whole = in_process(capsys, "sql", "--jsonl", EVENTS)
    chance = random.Random(seed)
    unseen = 0
    for _ in range(40):
        data = bytearray(original)
        at = chance.choice(used)
        data[at] ^= 1 << chance.randrange(8)
        for beside in ("-wal", "-shm"):
            Path(f"{path}{beside}").unlink(missing_ok=True)
        path.write_bytes(data)
        checked = 0
        for words in [*READERS, *MORE]:
            code, _, err = in_process(capsys, *words)
            allowed = {0, 1, 8} if words[0] in ("db", "doctor", "search") else {0, 8}
            assert code in allowed, (at, words, err)
            assert "internal error" not in err, (at, words, err)
            if words == ["db", "check"]:
                checked = code
        if checked == 0:
            now = in_process(capsys, "sql", "--jsonl", EVENTS)
            assert now[0] == 0
            unseen += only_valid_changes(whole[1], now[1])
    assert unseen < 10


def only_valid_changes(before: str, after: str) -> bool:
    """Whether anything changed; fails where the change is not of the kind that no check can know."""
    old, new = ([json.loads(line) for line in lines.splitlines()] for lines in (before, after))
    assert len(old) == len(new)
    for one, two in zip(old, new, strict=True):
        for fixed in ("session_id", "seq", "source_event_seqs", "surface_op"):
            assert one[fixed] == two[fixed]
        json.loads(two["data"])
        if one["type"] != two["type"]:
            assert one["type"] not in ("turn/start", "turn/end", "step/start", "step/end", "tool/call", "tool/result")
    return old != new


@pytest.mark.slow
@pytest.mark.rule("HD-14")
def test_a_flipped_bit_and_the_real_program(program: Dsh) -> None:
    original = program.db.read_bytes()
    used = [at for at, byte in enumerate(original) if byte]
    chance = random.Random(7)
    seen: set[int] = set()
    for _ in range(8):
        data = bytearray(original)
        data[chance.choice(used)] ^= 1 << chance.randrange(8)
        for words in (["run", "--resume", "s", "more"], ["db", "check"]):
            for beside in ("-wal", "-shm"):
                Path(f"{program.db}{beside}").unlink(missing_ok=True)
            program.db.write_bytes(data)
            done = program(*words)
            seen.add(done.code)
            assert done.code in (0, 1, 2, 8), done
            assert "Traceback" not in done.errors
            assert "internal error" not in done.errors
    assert {0, 8} <= seen


@pytest.mark.slow
@pytest.mark.rule("PE-52", "HD-14")
def test_eight_first_runs_at_once(tmp_path: Path) -> None:
    with FakeProvider(*[text(f"answer {n}") for n in range(8)]) as fake, ExitStack() as stack:
        dsh = Dsh(tmp_path, fake)
        runs: list[Any] = [dsh.start("run", f"question {n}") for n in range(8)]
        for process in runs:
            stack.callback(process.kill)
        done = [finish(process) for process in runs]
        assert [(d.code, d.errors) for d in done] == [(0, "")] * 8
        assert sorted(d.text for d in done) == sorted(f"answer {n}\n" for n in range(8))
        assert dsh.rows("SELECT count(*), sum(turns) FROM session") == [(8, 8)]
        assert dsh("db", "check").code == 0
