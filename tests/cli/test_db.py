"""`dsh db`: what each command prints and how it ends."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from dsh.store import writes
from tests.cli.conftest import DSH as _DSH
from tests.cli.conftest import ROOT as _ROOT
from tests.cli.conftest import Run
from tests.cli.test_files import held
from tests.history import History, text
from tests.session.kit import damage
from tests.store.test_rebuild import kept, varied

pytestmark = pytest.mark.slow  # each test starts the program, some many times

Result = subprocess.CompletedProcess[str]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A closed database with forks, replacements and open turns."""
    w = varied(tmp_path / "dsh.db")
    w.db.close()
    return w.path


def outcome(done: Result) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


# ------------------------------------------------------------------------------------------------------ path, stats


def test_the_path_is_told_also_before_there_is_a_database(dsh: Run, tmp_path: Path) -> None:
    assert outcome(dsh("db", "path")) == (0, f"{tmp_path / 'dsh.db'}\n", "")
    assert outcome(dsh("db", "--db", "/x/y.db", "path")) == (0, "/x/y.db\n", "")
    assert not (tmp_path / "dsh.db").exists()
    for words in (["check"], ["stats"], ["backup", "b"], ["rebuild"], ["vacuum"]):
        done = dsh("db", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no history yet" in done.stderr
    assert dsh("db", "recover").returncode == 2
    assert not (tmp_path / "dsh.db").exists()


def test_stats_tell_what_takes_the_space(dsh: Run, filled: Path) -> None:
    lines = [json.loads(line) for line in dsh("db", "stats", "--json").stdout.splitlines()]
    database, *others = lines
    assert database["type"] == "database"
    assert (database["path"], database["journalMode"], database["sessions"]) == (str(filled), "wal", 7)
    with apsw.Connection(str(filled)) as db:
        assert list(db.execute("SELECT count(*) FROM _event")) == [(database["events"],)]
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE rootpage > 0")]
    db.close()
    space = [each for each in others if each["type"] == "space"]
    assert {each["name"] for each in space} == {*names, "sqlite_schema"}
    assert sum(each["bytes"] for each in space) == database["fileBytes"] - 4096 * database["freePages"]
    assert {each["kind"] for each in space if each["name"].startswith("_event_")} == {"index"}
    sessions = [each for each in others if each["type"] == "session"]
    assert sum(each["events"] for each in sessions) == database["events"]  # what forks share counts once
    assert [each["bytes"] for each in sessions] == sorted((each["bytes"] for each in sessions), reverse=True)
    assert "untouched" not in {each["id"] for each in sessions}  # a fork without events of its own
    limited = dsh("db", "stats", "--limit", "1").stdout.splitlines()
    assert [line for line in limited if line.startswith("session\t")] == [
        f"session\t{sessions[0]['id']}\t{sessions[0]['events']}\t{sessions[0]['bytes']}"
    ]
    assert f"events\t{database['events']}" in limited
    assert any(line.startswith("space\t_event\ttable\t") for line in limited)


def test_stats_on_a_terminal(terminal: Callable[..., tuple[int, str]], filled: Path) -> None:
    code, shown = terminal("db", "stats", NO_COLOR="1")
    assert code == 0
    assert "schemaVersion" in shown
    assert "SESSION" in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if not line.startswith("path"))


# ------------------------------------------------------------------------------------------------------------ check


@pytest.mark.rule("PE-76", "HD-14")
def test_a_sound_database_says_nothing(dsh: Run, filled: Path, terminal: Callable[..., tuple[int, str]]) -> None:
    for words in ([], ["--quick"], ["s"], ["--json"], ["chi", "--quick"]):
        assert outcome(dsh("db", "check", *words)) == (0, "", "")
    assert terminal("db", "check") == (0, "dsh: no violations\n")
    assert dsh("db", "check", "nobody").returncode == 2


@pytest.mark.rule("PE-76", "HD-14", "SE-47", "SE-17", "SQ-73")
def test_violations_are_lines(dsh: Run, filled: Path) -> None:
    damage(
        filled,
        "UPDATE _event SET type = 'turn/start' WHERE session = 1 AND seq = 2",
        "UPDATE _event SET data = json_set(data, '$.content', json('[]')) WHERE type = 'user/message' AND session = 7",
        "UPDATE _session SET generation = 9 WHERE name = 'early'",
        "UPDATE _surface SET event = 1 WHERE session = (SELECT id FROM _session WHERE name = 'other')",
        "DROP VIEW todo",
    )
    done = dsh("db", "check")
    assert (done.returncode, done.stderr) == (1, "")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert all(len(row) == 4 for row in rows)
    found = {tuple(row[:3]) for row in rows}
    assert {
        ("-", "-", "schema"),
        ("-", "-", "SQ-73"),
        ("s", "2", "SE-42"),
        ("child", "2", "SE-42"),
        ("early", "-", "SE-17"),
        ("other", "-", "SE-17"),
    } <= found
    as_lines = [json.loads(line) for line in dsh("db", "check", "--json").stdout.splitlines()]
    assert [
        ["-" if v is None else str(v) for v in (e["session"], e["seq"], e["rule"], e["message"])] for e in as_lines
    ] == rows
    only = dsh("db", "check", "early")
    assert {line.split("\t")[0] for line in only.stdout.splitlines()} == {"early"}


@pytest.mark.rule("PE-76")
def test_the_quick_check_sees_what_would_stop_a_session(dsh: Run, filled: Path) -> None:
    damage(
        filled, "DELETE FROM _event WHERE session = 1 AND seq = 4", "UPDATE _session SET turns = 5 WHERE name = 'other'"
    )
    done = dsh("db", "check", "--quick")
    assert done.returncode == 1
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} >= {"s", "other", "child"}


@pytest.mark.rule("PE-76")
def test_an_index_that_cannot_be_asked_is_no_violation(dsh: Run, filled: Path) -> None:
    other = apsw.Connection(str(filled))
    other.execute("BEGIN IMMEDIATE")
    done = dsh("db", "check", env={"DSH_STORE_BUSY_TIMEOUT_MS": "200"})
    other.close()
    assert (done.returncode, done.stdout) == (0, "")
    assert "the search index was not checked" in done.stderr
    assert str(os.getpid()) in done.stderr


# ----------------------------------------------------------------------------------------------------------- backup


@pytest.mark.rule("PE-78")
def test_a_backup_is_a_database(dsh: Run, filled: Path, tmp_path: Path) -> None:
    assert outcome(dsh("db", "backup", "copy.db", cwd=tmp_path)) == (0, "", "")
    copy = tmp_path / "copy.db"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert dsh("--db", str(copy), "db", "check").returncode == 0
    assert kept(copy) == kept(filled)
    done = dsh("db", "backup", str(copy))
    assert (done.returncode, done.stdout) == (2, "")
    assert "exists already" in done.stderr
    assert "--force" in done.stderr
    assert dsh("db", "backup", str(copy), "--force").returncode == 0
    for force in ([], ["--force"]):
        done = dsh("db", "backup", str(filled), *force)
        assert (done.returncode, f"{filled} is the database itself" in done.stderr) == (2, True)
    assert dsh("db", "backup", str(tmp_path)).returncode == 2
    assert dsh("db", "backup", "/proc/nowhere/x.db").returncode == 8
    assert kept(copy) == kept(filled)


@pytest.mark.rule("PE-78")
def test_a_backup_through_a_pipe(
    dsh: Run, filled: Path, tmp_path: Path, terminal: Callable[..., tuple[int, str]]
) -> None:
    with (tmp_path / "piped.db").open("wb") as target:
        assert dsh("db", "backup", "-", stdout=target).returncode == 0
    assert kept(tmp_path / "piped.db") == kept(filled)
    code, shown = terminal("db", "backup", "-")
    assert code == 2
    assert "not for a terminal" in shown


# ---------------------------------------------------------------------------------------------------------- recover


@pytest.mark.slow
@pytest.mark.rule("PE-77", "HD-14")
def test_recovering_beside_and_in_place(dsh: Run, filled: Path, tmp_path: Path) -> None:
    before = filled.read_bytes()
    done = dsh("db", "recover")
    assert (done.returncode, done.stdout) == (0, "")
    assert "7 sessions, 7 of them whole" in done.stderr
    new = tmp_path / "dsh.db.recovered"
    assert dsh("--db", str(new), "db", "check").returncode == 0
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    assert outcome(dsh("db", "recover"))[0] == 2  # it is there
    assert dsh("db", "recover", "--to", str(tmp_path / "to.db")).returncode == 0
    assert dsh("db", "recover", "--to", "x", "--replace").returncode == 2
    assert filled.read_bytes() == before

    damage(filled, "UPDATE _event SET time = -5 WHERE session = 1 AND seq = 12")
    harmed = filled.read_bytes()
    done = dsh("db", "recover", "--replace")
    assert done.returncode == 1
    lost = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert lost["s"].startswith("12\t")
    assert "other" not in lost
    old = next(tmp_path.glob("dsh.db.damaged-*Z"))
    assert old.read_bytes() == harmed
    assert str(old) in done.stderr
    assert outcome(dsh("db", "check")) == (0, "", "")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".dsh", "dsh.db-"))) == []
    assert dsh("show", "s").returncode == 0


@pytest.mark.rule("PE-76", "PE-77", "AL-1")
def test_a_waiting_message_that_was_damaged(dsh: Run, history: History, tmp_path: Path) -> None:
    history.say("s", "x")
    block = {"type": "text", "text": "hi"}
    for name in ("a", "b"):
        writes.put_message(history.db, "s", name, "followup", [block], {"kind": "user"})
    history.db.close()
    damage(history.path, "UPDATE _inbox SET content = '[{oops' WHERE message = 'a'")
    done = dsh("db", "check")
    assert (done.returncode, done.stdout.split("\t")[:3]) == (1, ["s", "-", "AL-1"])
    done = dsh("db", "recover")
    assert (done.returncode, done.stdout) == (1, "")
    assert "1 settings or waiting messages could not be kept" in done.stderr
    query = ("sql", "SELECT message_id FROM inbox")
    assert dsh("--db", str(tmp_path / "dsh.db.recovered"), *query).stdout == "b\n"


@pytest.mark.rule("PE-77", "PE-75", "HD-14")
def test_recovering_what_is_in_use(dsh: Run, filled: Path) -> None:
    with held(filled) as pid:
        done = dsh("db", "recover", "--replace")
    assert (done.returncode, done.stdout) == (8, "")
    assert f"is in use by process {pid}" in done.stderr
    assert [p.name for p in filled.parent.iterdir() if ".damaged" in p.name or ".dsh-" in p.name] == []


@pytest.mark.rule("PE-77")
def test_a_database_that_is_no_longer_one_is_recovered(dsh: Run, filled: Path) -> None:
    data = bytearray(filled.read_bytes())
    data[:4096] = b"\xff" * 4096
    filled.write_bytes(data)
    assert dsh("sessions").returncode == 8
    done = dsh("db", "check")
    assert (done.returncode, done.stdout) == (8, "")
    done = dsh("db", "recover", "--replace", "--json")
    assert done.returncode == 1  # nothing known is lost, but pages are
    assert done.stdout == ""
    assert "7 sessions, 7 of them whole" in done.stderr
    assert len(dsh("sessions", "--all").stdout.splitlines()) == 7


# -------------------------------------------------------------------------------------------------- rebuild, vacuum


@pytest.mark.rule("PE-79", "SQ-73")
def test_rebuilding(dsh: Run, filled: Path) -> None:
    before = kept(filled)
    damage(filled, "DELETE FROM _surface", "UPDATE _session SET generation = 5, turns = 0")
    assert dsh("db", "check").returncode == 1
    assert outcome(dsh("db", "rebuild")) == (0, "", "")
    assert kept(filled) == before
    damage(
        filled, 'UPDATE _event SET op = \'{"op":"replace","start":99,"end":99}\' WHERE op LIKE \'{%\' AND session = 1'
    )
    done = dsh("db", "rebuild")
    assert (done.returncode, done.stdout) == (8, "")
    assert "session s is left as it is" in done.stderr


@pytest.mark.rule("PE-79", "SQ-73")
@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM search_data WHERE id > 10",
        "UPDATE search_data SET block = x'ff00ff' WHERE id > 10",
        "DELETE FROM search_docsize",
    ],
)
def test_a_broken_index_is_made_anew(
    dsh: Run, filled: Path, harm: str, terminal: Callable[..., tuple[int, str]]
) -> None:
    before = kept(filled)
    damage(filled, harm)
    code, shown = terminal("db", "check", NO_COLOR="1")
    assert code == 1
    assert "SQ-73" in shown or "sqlite" in shown
    assert dsh("db", "rebuild").returncode == 0
    assert outcome(dsh("db", "check")) == (0, "", "")
    assert kept(filled) == before


@pytest.mark.rule("PE-79")
def test_rebuilding_while_a_session_is_written(dsh: Run, filled: Path) -> None:
    """Between the sessions and the pieces of the index its events are appended as ever."""
    from tests.session.kit import whole_turn, world

    w = world(filled)
    session = w.session("live")
    session.claim("holder")
    process = subprocess.Popen(
        [*_DSH, "db", "rebuild"], env={**os.environ, "PYTHONPATH": str(_ROOT)}, stderr=subprocess.PIPE
    )
    turns = 0
    while process.poll() is None or turns == 0:
        whole_turn(session, f"turn {turns}", calls=1)
        turns += 1
    assert process.communicate()[1] == b""
    assert process.returncode == 0
    writes.refresh_search(w.db)
    assert session.length == turns * 10
    w.db.close()
    assert outcome(dsh("db", "check")) == (0, "", "")


@pytest.mark.rule("PE-80")
def test_vacuum_says_how_much(dsh: Run, history: History) -> None:
    for name in ("a", "b"):
        history.session(name)
        for number in range(1, 40):
            history.turn(name, number, "words " * 500, text("answer " * 300))
    writes.delete_session(history.db, "a")
    history.db.close()
    done = dsh("db", "vacuum", "--json")
    given = json.loads(done.stdout)
    assert done.returncode == 0
    assert given["givenBack"] == given["before"] - given["after"] > 100_000
    assert history.path.stat().st_size == given["after"]
    assert outcome(dsh("db", "vacuum")) == (0, "0\n", "")
    assert dsh("db", "check").returncode == 0


def test_commands_need_no_loop_and_no_network(dsh: Run, filled: Path) -> None:
    """`dsh db` loads neither trio nor httpx, except to recover."""
    code = (
        "import sys; from dsh.cli.main import main; assert main(['db', sys.argv[1]]) == 0;"
        "assert not {'trio', 'httpx'} & set(sys.modules)"
    )
    for word in ("path", "check", "stats", "rebuild", "vacuum"):
        done = subprocess.run(
            [_DSH[0], "-c", code, word], env={**os.environ, "PYTHONPATH": str(_ROOT)}, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_stock_shell_reads_what_was_copied(dsh: Run, filled: Path, tmp_path: Path) -> None:
    assert dsh("db", "backup", str(tmp_path / "copy.db")).returncode == 0
    with sqlite3.connect(tmp_path / "copy.db") as db:
        assert db.execute("SELECT count(*) FROM session").fetchall() == [(7,)]
    db.close()
