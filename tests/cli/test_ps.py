"""`dsh ps`: what each session does, told from its last events; and that looking on costs little and writes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsh.core.lossless import dumps
from dsh.store import locks, writes
from dsh.store.named import sql
from tests.cli.conftest import ROOT, Run
from tests.cli.test_files import UNPRIVILEGED
from tests.cli.test_main import modules_of
from tests.history import History, text

pytestmark = pytest.mark.slow  # each test starts programs, some many times

AT = {"turn": 1, "step": 1}
USER = {"kind": "user"}


def chunk(kind: str) -> tuple[str, Any, Any]:
    return "assistant/chunk", {**AT, "chunk": {"type": kind, "index": 0, "text": "…"}}, None


EVENTS: tuple[tuple[str, tuple[str, Any, Any]], ...] = (
    ("working", ("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": USER}}, None)),
    ("working", ("user/message", {"content": [text("a task")], "source": USER}, "append")),
    ("asking model", ("step/start", AT, None)),
    ("asking model", ("request/header", {"header": {"config": {"provider": "p", "model": "m"}}}, None)),
    ("thinking", chunk("reasoning-delta")),
    ("streaming", chunk("text-delta")),
    ("writing a tool call", chunk("tool-call-delta")),
    ("working", ("assistant/message", {**AT, "content": [], "provenance": {"provider": "p", "model": "m"}}, "append")),
    ("tool", ("tool/call", {**AT, "callId": "c", "name": "bash", "arguments": '{"command":"ls\\n-l"}'}, None)),
    ("tool", ("tool/result", {**AT, "callId": "c", "content": [], "isError": False}, "append")),
    ("working", ("step/end", AT, None)),
    ("waiting to retry", ("llm/retry", {"retry": 1}, None)),
    ("idle", ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}, None)),
)


def test_the_state_follows_from_the_last_event(dsh: Run, history: History) -> None:
    history.session("s", cwd="/somewhere")
    for number, (_, (kind, data, surface)) in enumerate(EVENTS):
        history.event("s", kind, data, surface)
        if number == 0:
            writes.put_message(history.db, "s", "m", "followup", [text("x")], USER)
    # Each state is asked for where it can be seen: in a copy of the log that ends there, under a lease of this process.
    for number, (state, _) in enumerate(EVENTS):
        history.session(f"s{number:02}", cwd="/somewhere")
        for _, (kind, data, surface) in EVENTS[: number + 1]:
            history.event(f"s{number:02}", kind, data, surface)
        writes.claim_lease(history.db, f"s{number:02}", f"h{number}")
        assert state
    done = dsh("ps", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [f["state"] for f in found] == [state for state, _ in EVENTS]
    tool = {"name": "bash", "arguments": '{"command":"ls\\n-l"}'}
    assert [f["tool"] for f in found] == [tool if state == "tool" else None for state, _ in EVENTS]
    last = found[6]
    assert (last["pid"], last["turn"], last["model"], last["title"]) == (os.getpid(), 1, "m", "a task")
    assert last["turnStartedAt"] < last["since"]
    lines = [line.split("\t") for line in dsh("ps").stdout.splitlines()]
    assert {len(line) for line in lines} == {9}
    assert lines[8][4] == "tool bash ls -l"
    queued = json.loads(dsh("ps", "--all", "--json").stdout.splitlines()[-1])
    assert (queued["id"], queued["state"], queued["queued"], queued["pid"]) == ("s", "queued", 1, None)


def test_a_process_that_is_gone_has_crashed(dsh: Run, history: History) -> None:
    history.say("s", "x")
    script = (
        "import sys; from pathlib import Path; from dsh.store.database import Database; from dsh.store import writes;"
        "writes.claim_lease(Database.open(Path(sys.argv[1])), 's', 'h')"
    )
    subprocess.run([sys.executable, "-c", script, str(history.path)], check=True, cwd=ROOT)
    assert dsh("ps").stdout.split("\t")[4] == "crashed"


def test_a_cancel_that_came_too_late_is_no_message(dsh: Run, history: History) -> None:
    """Its driver ended before it looked; the next one obeys it before anything else."""
    history.say("s", "x")
    writes.put_message(history.db, "s", "c", "cancel", [], USER)
    assert dsh("ps", "--all").stderr == "dsh: nothing is at work\n"
    assert dsh("cancel", "s").stderr == "dsh: nobody works on session s, and nothing waits for it\n"
    assert history.db.rows("SELECT * FROM inbox") == []


@pytest.mark.rule("PE-73")
def test_a_process_that_is_there_is_not_called_gone_for_an_old_heartbeat(dsh: Run, history: History) -> None:
    """As after a machine has slept, or while the process is stopped."""
    history.say("s", "x")
    history.event("s", "turn/start", {"turn": 2, "trigger": {"kind": "message", "source": USER}})
    history.db.rows(
        "INSERT INTO lease(session_id, holder, pid, boot_id, process_start, heartbeat) VALUES ('s', 'h', ?, ?, ?, ?)",
        (os.getpid(), locks.boot_id(), locks.process_start(os.getpid()), writes.now_ms() - 3_600_000),
    )
    assert dsh("ps").stdout.split("\t")[4] == "silent"
    waited = dsh("wait", "s", "--timeout", "0")
    assert (waited.returncode, waited.stderr) == (6, "dsh: still at work after 0 s: s\n")
    for words in (("send", "s", "x"), ("cancel", "s")):
        done = dsh(*words)
        silent = (
            f"dsh: process {os.getpid()} is silent: it hears of this when it goes on, if it was stopped or asleep\n"
        )
        assert (done.returncode, done.stderr) == (0, silent)
    assert history.db.rows("SELECT route FROM inbox ORDER BY position") == [("followup",), ("cancel",)]


def test_waiting_for_many_sessions_says_little(dsh: Run, history: History) -> None:
    ids = [f"s{number}" for number in range(7)]
    for id_ in ids:
        history.say(id_, "x")
        history.event(id_, "turn/start", {"turn": 2, "trigger": {"kind": "message", "source": USER}})
        writes.claim_lease(history.db, id_, id_)
    late = dsh("wait", *ids, "--timeout", "0")
    assert (late.returncode, late.stderr) == (6, "dsh: still at work after 0 s: s0, s1, s2, s3, s4 and 2 more\n")
    for id_ in ids:
        writes.release_lease(history.db, id_, id_)
    gone = dsh("wait", *ids)
    assert gone.returncode == 1
    assert [line.split(":")[1] for line in gone.stderr.splitlines()] == [f" session {id_}" for id_ in ids]


@pytest.mark.rule("PE-73")
def test_a_process_that_has_ended_is_gone_before_anybody_collects_it() -> None:
    """The first process of a container often collects nothing, and a run in the background has no other parent."""
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays as it is
        assert locks.process_start(process.pid) == ""


def test_nothing_to_list(dsh: Run, tmp_path: Path, history: History) -> None:
    history.say("s", "x")
    done = dsh("ps")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "dsh: nothing is at work\n")
    done = dsh("ps", "--db", str(tmp_path / "absent.db"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "no history yet" in done.stderr


def test_on_a_terminal_it_is_a_table(terminal: Callable[..., tuple[int, str]], history: History) -> None:
    history.session("s", cwd="/somewhere")
    history.turn("s", 1, "a \x1b[31mtask", text("x"), end={}, time=int(time.time() * 1000) - 90_000)
    writes.claim_lease(history.db, "s", "h")
    code, shown = terminal("ps", NO_COLOR="1")
    assert code == 0
    head, line = shown.splitlines()
    assert head.split() == ["ID", "PID", "SINCE", "TURN", "STATE", "QUEUED", "MODEL", "FOLDER", "TITLE"]
    assert re.match(rf"s +{os.getpid()} +\ds ago +1m ago +working +0 ", line)
    assert "\x1b" not in line


@pytest.mark.parametrize("name", ["sessions_at_work", "activity", "session_activity", "message_turn"])
def test_no_query_reads_a_log(history: History, name: str) -> None:
    """Every event that is read is found by an index on its session and its seq or type; chunks by seq alone."""
    query = sql(name)
    parameters = dict.fromkeys(re.findall(r":(\w+)", query), 1)
    plan = [row[3] for row in history.db.rows(f"EXPLAIN QUERY PLAN {query}", parameters)]
    assert plan
    assert not [step for step in plan if re.match(r"(SCAN|SEARCH) (e|x|n|c|z)\b(?!.*\((?:session|rowid)=\?)", step)]
    assert not [step for step in plan if step.startswith("MATERIALIZE event")]


# ------------------------------------------------------------------------------------------------ all of the commands


def test_the_living_line_is_not_drawn_over_the_answer(
    terminal: Callable[..., tuple[int, str]], history: History
) -> None:
    """Between the answer, which may end without a newline, and the end of the turn there may be a slow disk."""
    history.session("s")
    provenance = {"provider": "p", "model": "m"}
    history.event("s", "turn/start", {"turn": 1, "trigger": {"kind": "message", "source": USER}})
    history.event("s", "step/start", AT)
    history.event("s", *chunk("text-delta")[:2])
    history.event("s", "assistant/message", {**AT, "content": [text("…")], "provenance": provenance}, "append")
    history.event("s", "step/end", AT)
    writes.claim_lease(history.db, "s", "h")
    end = dumps({"turn": 1, "reason": {"kind": "completed"}})
    late = threading.Timer(
        0.7, writes.insert_event, (history.db, "s", 5, "turn/end", history.clock, end, None, None, "h")
    )
    late.start()
    code, shown = terminal("attach", "s", NO_COLOR="1")
    late.join()
    assert (code, shown.splitlines()[0]) == (0, "…")
    assert shown.splitlines()[1].startswith("1 step · ")


def test_none_of_them_loads_what_a_run_needs(history: History) -> None:
    history.say("s", "x")
    for words in (("ps",), ("attach", "s"), ("wait", "s"), ("send", "s", "x"), ("cancel", "s"), ("inject", "s", "x")):
        loaded = modules_of(*words)
        assert f"dsh.cli.{words[0]}" in loaded
        assert not {"trio", "httpx", "dsh.session.session", "dsh.llm.service", "dsh.cli.headless"} & loaded, words


def test_a_database_that_cannot_be_written(history: History) -> None:
    """Looking on needs no write; what would leave a message says that it cannot."""
    history.say("s", "x")
    history.db.close()
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        shutil.copy(history.path, folder / "dsh.db")
        (folder / "dsh.db").chmod(0o444)
        folder.chmod(0o555)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "DSH_DB": str(folder / "dsh.db"), "HOME": name}

        def run(*words: str) -> tuple[int, str, str]:
            command = [sys.executable, "-c", UNPRIVILEGED, str(history.path), *words]
            done = subprocess.run(
                command, capture_output=True, text=True, env=env, check=False, stdin=subprocess.DEVNULL
            )
            return done.returncode, done.stdout, done.stderr.splitlines()[-1] if done.stderr else ""

        assert run("attach", "s") == (0, "…\n", "")
        assert run("wait", "s") == (0, "", "")
        assert run("ps", "--all") == (0, "", "dsh: nothing is at work")
        for words in (("send", "s", "x"), ("cancel", "s")):
            assert run(*words) == (8, "", f"dsh: {folder / 'dsh.db'} cannot be written")


def test_a_session_without_a_question(dsh: Run, history: History) -> None:
    history.session("s")
    trigger = {"kind": "injection", "source": {"kind": "plugin", "plugin": "p"}}
    history.event("s", "turn/start", {"turn": 1, "trigger": trigger})
    history.event("s", "turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    done = dsh("attach", "s")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "dsh: session s has not been asked anything yet\n"
    assert dsh("wait", "s").returncode == 0
