"""A run on a disk that gets full, as a process that has the disk for itself: `… -m tests.cli.small_disk DISK FOLDER`.

Everything that was acknowledged, the lines that `run --json` printed, is stored; every command says what is wrong in a
line and ends with its code; with room again the same session goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.provider import FakeProvider, text
from tests.shell.process import Done, Dsh

FULL = "cannot grow: the disk is full"


def refused(done: Done) -> None:
    assert (done.code, done.out) == (8, b""), done
    assert FULL in done.errors
    assert done.errors.count("\n") == 1


def main(disk: Path, folder: Path) -> None:
    filler = disk / "filler"
    filler.write_bytes(b"x" * 1_000_000)
    with FakeProvider(text("word " * 60_000, pieces=3000), text("fine")) as fake:
        dsh = Dsh(folder, fake, DSH_DB=str(disk / "dsh.db"))
        dsh.db = disk / "dsh.db"
        run = dsh("run", "--json", "go on and on")
        assert run.code == 8, run
        assert FULL in run.errors
        assert run.errors.count("\n") == 1
        assert (run.result["status"], run.result["error"]["code"]) == ("error", "DB_FULL")
        told = [line for line in run.lines if "seq" in line]
        stored = dsh.log()
        assert len(stored) > 50
        assert [line["seq"] for line in told] == [event["seq"] for event in stored]
        assert [line["data"] for line in told] == [event["data"] for event in stored]

        refused(dsh("run", "--resume", "last", "more"))
        refused(dsh("config", "set", "search.limit", "3"))
        refused(dsh("db", "backup", str(disk / "copy.db")))
        refused(dsh("db", "vacuum"))
        refused(dsh("db", "rebuild"))
        recovering = dsh("db", "recover")
        assert recovering.code == 8, recovering
        assert [p.name for p in disk.iterdir() if not p.name.startswith("dsh.db")] == ["filler"]
        assert not (disk / "dsh.db.recovered").exists()
        search = dsh("search", "word")
        assert search.code == 1  # nothing is indexed yet, and that is said
        assert "the newest events are not searched" in search.errors
        check = dsh("db", "check")
        assert (check.code, check.out) == (0, b"")
        assert f"the search index was not checked: {dsh.db} {FULL}" in check.errors
        for words in (["sessions"], ["show", "last"], ["sql", "SELECT count(*) FROM event"], ["db", "stats"]):
            read = dsh(*words)
            assert (read.code, read.errors) == (0, ""), read
            assert read.out != b""
        assert dsh.log() == stored

        filler.unlink()
        again = dsh("run", "--resume", "last", "more")
        assert (again.code, again.out) == (0, b"fine\n"), again
        now = dsh.log()
        assert now[: len(stored)] == stored
        assert now[-1]["data"]["reason"] == {"kind": "completed"}
        check = dsh("db", "check")
        assert (check.code, check.out, check.errors) == (0, b"", "")
        assert dsh("search", "fine").code == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
