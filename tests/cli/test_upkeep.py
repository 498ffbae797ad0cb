"""dsh prune and dsh db pack, through the real program."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dsh.store import writes
from tests.cli.conftest import DSH, ROOT, Run
from tests.history import History, text

pytestmark = pytest.mark.slow  # each test starts the program, some many times

DAY = 86_400_000
NOW = int(time.time() * 1000)
LONG = "Once upon a time there was a very long sentence about nothing. " * 30


def streamed(h: History, id: str, age_days: int) -> str:
    """A session whose answer was streamed, `age_days` old."""
    h.clock = NOW - age_days * DAY
    h.session(id)
    h.event(id, "turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    h.event(id, "user/message", {"content": [text(f"ask {id}")], "source": {"kind": "user"}}, "append")
    at = {"turn": 1, "step": 1}
    h.event(id, "step/start", at)
    for n in range(0, 200, 10):
        h.event(id, "assistant/chunk", {**at, "chunk": {"type": "text-delta", "index": 0, "text": LONG[n : n + 10]}})
    provenance = {"provider": "p", "model": "m"}
    h.event(id, "assistant/message", {**at, "content": [text(f"{id} {LONG}")], "provenance": provenance}, "append")
    h.event(id, "step/end", at)
    h.event(id, "turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    return id


@pytest.fixture
def aged(history: History) -> History:
    for each, days in (("ancient", 400), ("old", 100), ("young", 1)):
        streamed(history, each, days)
    history.fork("child", "old")
    history.clock = NOW
    history.turn("child", 2, "and then", text("nothing"))
    writes.refresh_search(history.db)
    return history


def sessions(h: History) -> list[str]:
    return [each for (each,) in h.db.rows("SELECT id FROM session ORDER BY id")]


@pytest.mark.rule("PE-84")
def test_prune_thins_old_sessions_and_keeps_what_was_said(aged: History, dsh: Run) -> None:
    shown = {each: dsh("show", each).stdout for each in ("ancient", "old", "young", "child")}
    asked = dsh("prune", "--older-than", "90d", "--dry-run")
    assert [line.split("\t")[0] for line in asked.stdout.splitlines()] == ["ancient", "old"]
    before = aged.db.rows("SELECT * FROM event")
    done = dsh("prune", "--older-than", "90d")
    assert (done.returncode, [line.split("\t")[:2] for line in done.stdout.splitlines()]) == (
        0, [["ancient", "19"], ["old", "19"]],
    )  # fmt: skip
    assert sessions(aged) == ["ancient", "child", "old", "young"]
    assert len(aged.db.rows("SELECT * FROM event")) == len(before) - 3 * 19  # the fork sees its parent's once more
    assert {each: dsh("show", each).stdout for each in shown} == shown
    assert dsh("search", "upon a time", "--all-hits", "--json").stdout.count('"assistant/message"') >= 3
    again = dsh("prune", "--older-than", "90d", "--json")
    assert (again.returncode, again.stdout) == (0, "")
    assert dsh("db", "check").returncode == 0


def test_an_event_that_was_left_out_is_told(aged: History, dsh: Run) -> None:
    dsh("prune", "--older-than", "90d")
    for words in (["old:10"], ["old:10", "--json"], ["old:10", "--trace"], ["child:22"]):
        done = dsh("show", *words)
        id_, seq = words[0].split(":")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"event {seq} of session {id_} was left out by dsh prune" in done.stderr
    assert LONG[:40] in dsh("show", "old:10", "-C", "1").stdout
    for words in (["old:3"], ["old:23"], ["child:23"], ["old:23", "--trace"]):
        assert dsh("show", *words).returncode == 0


@pytest.mark.rule("PE-84")
def test_a_thinned_session_survives_export_and_import(aged: History, dsh: Run, tmp_path: Path) -> None:
    dsh("prune", "--older-than", "90d")
    for each in ("ancient", "old", "child"):
        out = tmp_path / f"{each}.jsonl"
        assert dsh("export", each, "-o", str(out)).returncode == 0
        env = {"DSH_DB": str(tmp_path / f"{each}.db")}
        assert dsh("import", str(out), env=env).returncode == 0
        assert dsh("db", "check", env=env).returncode == 0
        assert dsh("show", each, env=env).stdout == dsh("show", each).stdout
        one, other = (
            json.loads(dsh("show", each, "--tail", "1", "--json", env=e).stdout.splitlines()[-1]) for e in ({}, env)
        )
        assert one == other


def test_nothing_is_deleted_without_being_asked(aged: History, dsh: Run) -> None:
    assert dsh("prune").returncode == 2
    assert dsh("prune", "--delete").returncode == 2
    refused = dsh("prune", "--older-than", "90d", "--delete")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--yes" in refused.stderr
    assert sessions(aged) == ["ancient", "child", "old", "young"]


def test_deleting_leaves_what_forks_show_and_what_is_pinned(aged: History, dsh: Run) -> None:
    streamed(aged, "dear", 500)
    writes.pin_session(aged.db, "dear", NOW)
    done = dsh("prune", "--older-than", "90d", "--delete", "--yes", "--vacuum")
    assert done.returncode == 0, done.stderr
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["ancient"]
    assert "session old stays as it is: its events are shown by child" in done.stderr
    assert sessions(aged) == ["child", "dear", "old", "young"]
    assert aged.db.rows("SELECT id FROM deleted_session") == [("ancient",)]
    aged.db.rows("DELETE FROM session WHERE id = 'child'")
    done = dsh("prune", "--older-than", "90d", "--delete", "--yes", "--also-pinned")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["dear", "old"]
    assert sessions(aged) == ["young"]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1)])
def test_a_person_is_asked(aged: History, answer: bytes, code: int) -> None:
    for number in range(25):
        aged.say(f"many-{number}", f"number {number}", time=NOW - 200 * DAY)
    main, side = pty.openpty()
    words = ["prune", "--older-than", "90d", "--delete"]
    process = subprocess.Popen([*DSH, *words], stdin=side, stdout=side, stderr=side, cwd=ROOT)
    os.close(side)
    os.write(main, answer)
    shown = b""
    with suppress(OSError):  # how Linux tells that the other side is closed
        while piece := os.read(main, 65536):
            shown += piece
    os.close(main)
    assert process.wait(timeout=60) == code
    asked = shown[: shown.index(b"for good?")].decode()
    assert "dsh: ancient ask ancient" in asked
    assert asked.count("number") == 19
    assert "and 7 more; --dry-run tells them all" in asked
    assert asked.endswith("dsh: delete 27 sessions ")
    assert (sessions(aged) == ["child", "old", "young"]) == (code == 0)
    assert (b"nothing was deleted" in shown) == (code == 1)


def test_sizes_choose_too(aged: History, dsh: Run) -> None:
    aged.clock = NOW
    aged.say("tiny", "hi")
    found = dsh("prune", "--larger-than", "1k", "--dry-run", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in found] == ["ancient", "old", "young"]
    assert all(json.loads(line)["bytes"] > 1000 for line in found)
    assert dsh("prune", "--larger-than", "much").returncode == 2
    assert dsh("prune", "--older-than", "long").returncode == 2


@pytest.mark.rule("PE-73")
@pytest.mark.parametrize("words", [["prune", "--older-than", "90d"], ["db", "pack", "old"], ["db", "pack", "--all"]])
def test_a_driver_that_is_gone_protects_nothing(aged: History, dsh: Run, words: list[str]) -> None:
    aged.db.rows(
        "INSERT INTO lease(session_id, holder, pid, boot_id, process_start, heartbeat)"
        " VALUES ('old', 'x', 1, 'an earlier boot', 's', ?)",
        (NOW,),
    )
    done = dsh(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "old" in [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert aged.db.rows("SELECT session_id FROM lease") == []


def test_a_dry_run_tells_what_would_become_of_what(aged: History, dsh: Run) -> None:
    aged.say("whole", "was not streamed", time=NOW - 200 * DAY)
    for more in ([], ["--delete", "--yes"]):
        for form in ([], ["--json"]):
            words = ["prune", "--older-than", "90d", *more, *form]
            asked = dsh(*words, "--dry-run")
            assert asked.returncode == 0
            copy = f"{aged.path}.copy"
            aged.db.backup(Path(copy), force=True)
            done = dsh(*words, "--db", copy)
            assert sorted(asked.stdout.splitlines()) == sorted(done.stdout.splitlines()) != []
            assert asked.stderr == done.stderr
            assert ("old stays as it is" in done.stderr) == bool(more)
    assert json.loads(asked.stdout.splitlines()[0]).keys() == {"id", "events", "bytes", "updatedAt", "title"}


def test_space_is_given_back_also_after_an_earlier_prune(history: History, dsh: Run) -> None:
    with history.db.transaction():
        for number in range(60):
            streamed(history, f"{number}", 100)
    assert dsh("prune", "--older-than", "90d").returncode == 0
    assert history.db.pragma("freelist_count") > 0
    done = dsh("prune", "--older-than", "90d", "--vacuum")
    assert (done.returncode, done.stdout) == (0, "")
    assert history.db.pragma("freelist_count") == 0


def test_without_a_database_there_is_nothing_to_look_after(dsh: Run, tmp_path: Path) -> None:
    for words in (["prune", "--older-than", "1d"], ["db", "pack", "--all"], ["redact", "x", "--yes"]):
        done = dsh(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no history yet" in done.stderr
    assert dsh("db", "pack", "some").returncode == 2
    assert not (tmp_path / "dsh.db").exists()


@pytest.mark.rule("PE-86")
def test_a_session_at_work_is_left_alone(aged: History, dsh: Run) -> None:
    writes.claim_lease(aged.db, "old", "driver")
    for more in (["--dry-run"], []):
        done = dsh("prune", "--older-than", "90d", *more)
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["ancient"]
    done = dsh("db", "pack", "old", "young")
    assert (done.returncode, [line.split("\t")[0] for line in done.stdout.splitlines()]) == (8, ["young"])
    assert "session old stays as it is" in done.stderr


@pytest.mark.rule("PE-83")
def test_packing_by_age_and_back(aged: History, dsh: Run) -> None:
    shown = {each: dsh("show", each).stdout for each in ("ancient", "old", "young", "child")}
    found = dsh("search", "very long sentence", "--json").stdout
    done = dsh("db", "pack", "--older-than", "30d", "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"id": "ancient", "events": 1}, {"id": "old", "events": 1},
    ]  # fmt: skip
    assert aged.db.rows("SELECT DISTINCT session_id FROM packed_event ORDER BY 1") == [("ancient",), ("old",)]
    assert {each: dsh("show", each).stdout for each in shown} == shown
    assert dsh("search", "very long sentence", "--json").stdout == found
    assert dsh("db", "check").returncode == 0
    assert dsh("db", "pack", "--all", "--unpack").stdout.splitlines() == ["ancient\t1", "old\t1"]
    assert {each: dsh("show", each).stdout for each in shown} == shown
    for wrong in ([], ["old", "--all"], ["--older-than", "3d", "--all"], ["nobody"]):
        assert dsh("db", "pack", *wrong).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_has_seen_enough_stops_nothing(history: History, tmp_path: Path, form: list[str]) -> None:
    with history.db.transaction():
        for number in range(150):
            history.say(f"{number:03}-{'x' * 90}", "hi", time=NOW - 100 * DAY)

    def unheard(*words: str) -> None:
        process = subprocess.Popen([*DSH, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        with process.stderr:
            process.stderr.read()
            assert process.wait(timeout=60) == 0

    out = tmp_path / "out"
    unheard("export", "--all", "--to", str(out))
    assert len(list(out.rglob("session.jsonl"))) == 150
    unheard("sync", "push", str(tmp_path / "share"), *form)
    assert len(list((tmp_path / "share").iterdir())) == 150
    unheard("prune", "--older-than", "90d", "--delete", "--yes", *form)
    assert sessions(history) == []
    unheard("import", str(out))
    assert len(sessions(history)) == 150
