"""`dsh sessions` and `dsh show`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dsh.cli.main import main
from dsh.session.render.markdown import closed, fenced
from dsh.store import locks, writes
from tests.cli.conftest import Run
from tests.history import History, call, text

pytestmark = pytest.mark.slow  # each test starts programs, some many times

Terminal = Callable[..., tuple[int, str]]

# sessions


def listed(dsh: Run, *arguments: str) -> dict[str, dict[str, object]]:
    done = dsh("sessions", "--json", *arguments)
    assert done.returncode == 0
    return {line["id"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_sessions_newest_first(dsh: Run, history: History) -> None:
    history.say("one", "first\tprompt\nmore", cwd="/a", time=1_760_000_000_000)
    history.say("two", "second", cwd="/b", time=1_760_000_100_000)
    done = dsh("sessions")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "two\t2025-10-09T08:55:08Z\tcompleted\t1\tdeepseek-chat\t/b\tsecond",
        "one\t2025-10-09T08:53:28Z\tcompleted\t1\tdeepseek-chat\t/a\tfirst prompt more",
    ]
    assert list(listed(dsh, "--cwd", "/a")) == ["one"]
    assert listed(dsh)["one"] == {
        "id": "one",
        "title": "first\tprompt\nmore",
        "cwd": "/a",
        "turns": 1,
        "events": 8,
        "model": "deepseek-chat",
        "status": "completed",
        "createdAt": 1_760_000_000_000,
        "updatedAt": 1_760_000_008_000,
        "parentSession": None,
        "seedLength": None,
        "delegationDepth": 0,
        "fork": False,
        "pinned": False,
        "hidden": False,
        "titled": False,
    }


def test_status_tells_live_from_dead(dsh: Run, history: History) -> None:
    for name in ("dead", "live", "idle"):
        history.session(name)
        history.turn(name, 1, "hi", text("x"), end={} if name != "idle" else {"kind": "error", "message": "m"})
    writes.claim_lease(history.db, "live", "us")
    writes.claim_lease(history.db, "idle", "us")
    found = {name: session["status"] for name, session in listed(dsh).items()}
    assert found == {"dead": "interrupted", "live": "running", "idle": "open"}
    writes.release_lease(history.db, "idle", "us")
    assert listed(dsh)["idle"]["status"] == "error"
    # a lease whose process is gone protects nothing
    gone = subprocess.Popen(["true"])
    gone.wait()
    history.db.rows(
        "INSERT INTO lease(session_id, holder, pid, boot_id, process_start, heartbeat) VALUES (?,?,?,?,?,?)",
        ("dead", "ghost", gone.pid, locks.boot_id(), "1", writes.now_ms()),
    )
    assert listed(dsh)["dead"]["status"] == "interrupted"


def test_more_than_the_limit_is_told_of(dsh: Run, history: History) -> None:
    for number in range(22):
        history.say(f"s{number:02d}", "hi")
    done = dsh("sessions")
    assert len(done.stdout.splitlines()) == 20
    assert "there are more" in done.stderr
    assert dsh("sessions", "-n", "22").stderr == ""


def test_children_are_listed_on_demand(dsh: Run, history: History) -> None:
    history.say("root", "hi")
    history.session("child", depth=1, parent="root")
    history.turn("child", 1, "task", text("done"))
    assert list(listed(dsh)) == ["root"]
    assert listed(dsh, "--all")["child"]["parentSession"] == "root"


def test_no_sessions(dsh: Run, history: History) -> None:
    done = dsh("sessions")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "dsh: no sessions\n")
    history.db.close()
    Path(os.environ["DSH_DB"]).unlink()
    done = dsh("sessions", "--json")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no history yet" in done.stderr


def test_titles_cannot_break_lines_or_terminals(dsh: Run, history: History, terminal: Terminal) -> None:
    history.say("s", "evil\r\n\x1b[2Jtitle\u2028\u202e wide 修改 " + "x" * 300)
    assert len(dsh("sessions").stdout.splitlines()) == 1
    code, shown = terminal("sessions")
    assert code == 0
    lines = shown.splitlines()
    assert len(lines) == 2
    assert all(len(re.sub("\x1b\\[[0-9;]*m", "", line)) <= 80 for line in lines)
    assert "\x1b[2J" not in shown


# show


@pytest.fixture
def talk(history: History) -> History:
    history.session("abc1", cwd="/a")
    thought = {"type": "reasoning", "text": "thinking hard"}
    history.turn(
        "abc1",
        1,
        "please list\n```\nunclosed",
        thought,
        text("Sure, ```inline``` then"),
        call("c1", "bash", '{"command":"ls  -la"}'),
        results={"c1": "".join(f"file {n}\n" for n in range(50)) + "```\nfence\n````\nlonger\n"},
    )
    history.turn("abc1", 2, "thanks", text("welcome"), end={"kind": "error", "message": "it broke", "code": "SERVER"})
    history.say("abd2", "other", time=history.clock + 10)
    return history


@pytest.mark.rule("SE-26")
def test_show_prefers_what_the_person_wrote(dsh: Run, history: History) -> None:
    history.session("s")
    history.event("s", "turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    envelope = {"displayContent": [text("my own words")], "prefixContexts": []}
    data = {
        "content": [text("<context>baked</context> my own words")],
        "source": {"kind": "user"},
        "envelope": envelope,
    }
    history.event("s", "user/message", data, "append")
    for arguments in (["show", "s"], ["show", "s", "--markdown"]):
        shown = dsh(*arguments).stdout
        assert "my own words" in shown
        assert "baked" not in shown
    assert "baked" in dsh("show", "s", "--messages").stdout


def test_show_as_text(dsh: Run, talk: History) -> None:
    done = dsh("show", "abc1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("please list ``` unclosed\nabc1 · /a · deepseek/deepseek-chat · ")
    for part in ("[1] you\n    please list", "[5] assistant\n", "[5] bash ls -la\n", "[7] bash result\n    file 0\n"):
        assert part in done.stdout
    assert "more lines)" in done.stdout
    assert "file 49" not in done.stdout
    assert "turn ended: error\n    SERVER: it broke" in done.stdout
    assert "file 49" in dsh("show", "abc1", "--full").stdout
    part = dsh("show", "abc1", "--from", "7", "--to", "7").stdout
    assert part.startswith("[7] bash result\n")


def test_show_one_event(dsh: Run, talk: History) -> None:
    assert "file 49" in dsh("show", "abc1:7").stdout
    assert dsh("show", "abc1:7", "--json").stdout.count("\n") == 1
    assert '"type":"step/start"' in dsh("show", "abc1:2").stdout
    done = dsh("show", "abc1:99")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dsh: session abc1 has no event 99; its last is 17\n"


@pytest.mark.rule("HD-14")
def test_show_finds_sessions_by_beginning_and_last(dsh: Run, talk: History) -> None:
    assert dsh("show", "abd").stdout.startswith("other\nabd2")
    assert dsh("show", "last").stdout.startswith("other\nabd2")
    assert dsh("show", "-").stdout.startswith("other\nabd2")
    done = dsh("show", "ab")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "dsh: several sessions begin with 'ab'\ndsh: they are abc1 (please list ``` unclosed), abd2 (other)\n"
    )
    assert dsh("show", "zz").returncode == 2
    assert dsh("show", "abc1", "--db", "/nosuch.db").returncode == 2
    beyond = "9" * 30
    assert dsh("show", "abc1", "--to", beyond).stdout == dsh("show", "abc1").stdout
    assert dsh("show", "abc1", "--from", beyond).returncode == 0
    assert dsh("sessions", "-n", beyond).stdout == dsh("sessions").stdout
    talk.say("with:7", "an id with a colon")
    assert dsh("show", "with:7").stdout.startswith("an id with a colon")


def test_show_json_is_the_log(dsh: Run, talk: History) -> None:
    replacement = {"op": "replace", "start": 1, "end": 1}
    talk.session("r")
    source = {"kind": "user"}
    talk.event("r", "turn/start", {"turn": 1, "trigger": {"kind": "message", "source": source}})
    talk.event("r", "user/message", {"content": [text("long")], "source": source}, "append")
    writes.insert_event(
        talk.db, "r", 2, "user/message", 5, '{\n "content": [],\n "x": 1.0}', "[1]", json.dumps(replacement)
    )
    lines = dsh("show", "r", "--json").stdout.splitlines()
    assert len(lines) == 3
    assert list(json.loads(lines[2])) == ["type", "seq", "time", "data", "sourceEventSeqs", "surfaceOp", "sessionId"]
    assert '"x": 1.0' in lines[2]
    assert json.loads(lines[2])["surfaceOp"] == replacement
    events = [json.loads(line) for line in dsh("show", "abc1", "--json").stdout.splitlines()]
    assert [e["seq"] for e in events] == list(range(18))
    assert any(e["type"] == "assistant/chunk" for e in events)


@pytest.mark.rule("SE-20")
def test_show_messages(dsh: Run, talk: History) -> None:
    lines = [json.loads(line) for line in dsh("show", "abc1", "--messages").stdout.splitlines()]
    assert [m["role"] for m in lines] == ["user", "assistant", "user", "user", "assistant"]
    assert list(lines[1]) == ["role", "content", "provenance"]
    assert lines[2]["content"][0]["type"] == "tool-result"


def test_show_markdown_keeps_its_structure(dsh: Run, talk: History) -> None:
    shown = dsh("show", "abc1", "--markdown").stdout
    opened, headings = None, []
    for line in shown.split("\n"):
        fence = re.match(r"^(`{3,}|~{3,})(.*)$", line)
        if fence and opened is None and "`" not in fence[2]:
            opened = fence[1]
        elif fence and opened and len(fence[1]) >= len(opened) and not fence[2].strip():
            opened = None
        elif opened is None and line.startswith("#"):
            headings.append(line)
    assert opened is None
    assert headings[1:] == ["## Turn 1", "### You", "### Assistant", "## Turn 2", "### You", "### Assistant"]
    assert "file 49" in shown


@pytest.mark.parametrize("body", ["plain", "```", "````\n```", "a ``` b `````` c", "~~~"])
def test_fences_survive(body: str) -> None:
    fence = fenced(body).split("\n")[0]
    assert len(fence) > max((len(run) for run in re.findall("`+", body)), default=2)
    assert fenced(body).endswith(f"\n{fence}")


@pytest.mark.parametrize(
    ("body", "added"),
    [("```\nopen", "```"), ("```\nshut\n```", None), ("~~~~\n```\n~~~", "~~~~"), ("``` a ``` b", None), ("x", None)],
)
def test_open_fences_are_closed(body: str, added: str | None) -> None:
    assert closed(body) == (body if added is None else f"{body}\n{added}")


def test_show_on_a_terminal_is_harmless(history: History, terminal: Terminal) -> None:
    history.say("s", "clear \x1b[2J the\rscreen\x07 \x9b31m")
    code, shown = terminal("show", "s")
    assert code == 0
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown
    assert "\x9b" not in shown
    assert "␛[2J the␍screen␇" in shown


def test_show_in_a_pipe_is_verbatim(dsh: Run, history: History) -> None:
    history.say("s", "clear \x1b[2J the \x07 screen")
    assert "    clear \x1b[2J the \x07 screen\n" in dsh("show", "s").stdout


@pytest.mark.rule("HD-14")
@pytest.mark.parametrize(
    "words",
    ["show s:1 -C {}", "show s --request {}.1", "search hi -C {}", "prune --larger-than 999999999999999G -n",
     "db stats -n {}"],
)  # fmt: skip
def test_a_number_that_no_database_has_is_wrong_usage(
    history: History, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    history.say("s", "hi")
    assert main([word.format(10**20) for word in words.split()]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"dsh: a number is larger than {2**63 - 1}"
