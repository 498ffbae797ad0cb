"""`dsh usage` and `dsh tokens`, in processes of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsh.store import writes
from tests.cli.conftest import Run
from tests.history import History, text

pytestmark = pytest.mark.slow  # each test starts the program, some many times

DAY = 86_400_000
NOON = 1_767_268_800_000  # 2026-01-01T12:00:00Z


def used(input: int, output: int, **more: int) -> dict[str, int]:
    return {"inputTokens": input, "outputTokens": output, **more}


def turn(
    history: History, session: str, *, at: int, model: str = "openai/gpt-5-mini", usage: Any = None, number: int = 1
) -> None:
    """A turn of one step that asked `model` and reported `usage`."""
    history.clock = at
    provider, _, name = model.partition("/")
    user = {"kind": "user"}
    history.event(session, "turn/start", {"turn": number, "trigger": {"kind": "message", "source": user}})
    history.event(session, "user/message", {"content": [text("abcd")], "source": user}, "append")
    step = {"turn": number, "step": 1}
    history.event(session, "step/start", step)
    route = {"provider": provider, "model": name}
    history.event(session, "request/header", {"header": {"config": route}, "reason": "resume"})
    if usage is not None:
        history.event(session, "assistant/chunk", {**step, "chunk": {"type": "usage", "usage": usage}})
    history.event(session, "assistant/message", {**step, "content": [text("yes")], "provenance": route}, "append")
    history.event(session, "step/end", step)
    history.event(session, "turn/end", {"turn": number, "reason": {"kind": "completed"}})


@pytest.fixture
def filled(history: History) -> History:
    """Two sessions, two days, three models: one priced, one free, one unknown."""
    history.session("aa", cwd="/work-a")
    turn(history, "aa", at=NOON, usage=used(1_000_000, 100_000, cacheReadTokens=2_000_000, reasoningTokens=50_000))
    turn(history, "aa", at=NOON + DAY, model="local/small", usage=used(500, 50), number=2)
    history.session("bb", cwd="/work-b")
    turn(history, "bb", at=NOON + DAY, model="odd/model", usage=used(10, 1, cacheWriteTokens=7))
    turn(history, "bb", at=NOON + DAY, model="odd/model", number=2)  # reported nothing
    return history


def lines(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.splitlines()]


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.rule("HD-18")
def test_by_day(filled: History, dsh: Run) -> None:
    done = dsh("usage", env={"TZ": "UTC"})
    assert lines(done.stdout) == [
        ["2026-01-01", "1", "1000000", "2000000", "0", "100000", "50000", "0.5"],
        ["2026-01-02", "2", "510", "0", "7", "51", "0", "unknown"],
        ["total", "3", "1000510", "2000000", "7", "100051", "50000", "unknown"],
    ]
    assert done.returncode == 0
    assert "the price of odd/model is not known" in done.stderr
    assert "dsh config set 'prices.odd/model.input'" in done.stderr


def test_days_are_those_of_the_reader(filled: History, dsh: Run) -> None:
    east = dsh("usage", env={"TZ": "XXX-13"})
    assert [line[0] for line in lines(east.stdout)] == ["2026-01-02", "2026-01-03", "total"]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("model", ["openai/gpt-5-mini", "local/small", "odd/model"]),
        ("session", ["aa", "bb"]),
        ("cwd", ["/work-a", "/work-b"]),
    ],
)
@pytest.mark.rule("HD-18")
def test_in_other_groups_the_dearest_come_first(filled: History, dsh: Run, by: str, names: list[str]) -> None:
    done = dsh("usage", "--by", by, "--json")
    *groups, total = objects(done.stdout)
    assert [g[by] for g in groups] == names
    assert total["total"] is True
    for field in ("requests", "inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens"):
        assert sum(g[field] for g in groups) == total[field]
    assert (total["cost"], total["unpriced"]) == (None, ["odd/model"])
    assert total["pricedCost"] == pytest.approx(0.5)
    free = [g for g in groups if g.get("model") == "local/small"]
    assert all(g["cost"] == 0 and "unpriced" not in g for g in free)


def test_a_span_of_time_and_one_session(filled: History, dsh: Run) -> None:
    utc = {"TZ": "UTC"}
    assert lines(dsh("usage", "--since", "2026-01-02", env=utc).stdout)[-1][1] == "2"
    assert lines(dsh("usage", "--until", "2026-01-01", env=utc).stdout)[-1][1] == "1"
    assert lines(dsh("usage", "--session", "b", env=utc).stdout)[-1][1:3] == ["1", "10"]
    nothing = dsh("usage", "--since", "2026-02-01", env=utc)
    assert (nothing.stdout, nothing.stderr, nothing.returncode) == ("", "dsh: no requests that reported tokens\n", 0)
    assert objects(dsh("usage", "--since", "2026-02-01", "--json", env=utc).stdout)[0]["cost"] == 0
    wrong = dsh("usage", "--since", "2026-02-01", "--until", "2026-01-01")
    assert (wrong.returncode, wrong.stderr) == (2, "dsh: --since is later than --until\n")
    assert dsh("usage", "--session", "zz").returncode == 2
    assert dsh("usage", "--since", "someday").returncode == 2


@pytest.mark.rule("HD-17")
def test_the_users_price_counts_from_then_on(filled: History, dsh: Run) -> None:
    filled.db.close()
    for field, value in (("input", "1000"), ("output", "2000"), ("cache_write", "0")):
        assert dsh("config", "set", f"prices.odd/model.{field}", value).returncode == 0
    *_, total = objects(dsh("usage", "--json").stdout)
    assert total["cost"] == pytest.approx(0.5 + 0.01 + 0.002)
    assert "prices.odd/model.input\t1000.0\tstored" in dsh("config", "list").stdout
    assert dsh("config", "get", "prices.odd/model.output").stdout == "2000.0\n"
    assert dsh("config", "unset", "prices.odd/model.input").returncode == 0
    *_, total = objects(dsh("usage", "--json").stdout)
    assert total["cost"] is None
    wrong = dsh("config", "set", "prices.odd/model.input", "nan")
    assert (wrong.returncode, "must be a number from 0 on" in wrong.stderr) == (2, True)


@pytest.mark.rule("HD-18")
def test_hidden_sessions_count_and_forks_count_once(filled: History, dsh: Run) -> None:
    filled.fork("cc", "aa")
    turn(filled, "cc", at=NOON + 2 * DAY, usage=used(3, 0), number=3)
    writes.hide_session(filled.db, "aa", NOON)
    *_, total = objects(dsh("usage", "--json").stdout)
    assert (total["requests"], total["inputTokens"]) == (4, 1_000_513)
    own = objects(dsh("usage", "--session", "cc", "--json").stdout)[-1]
    assert (own["requests"], own["inputTokens"]) == (1, 3)


def test_without_a_history_nothing_was_used(dsh: Run) -> None:
    done = dsh("usage")
    assert (done.stdout, done.returncode) == ("", 0)
    assert "no history yet" in done.stderr
    assert dsh("usage", "--session", "x").returncode == 2


def test_on_a_terminal(filled: History, terminal: Any) -> None:
    code, shown = terminal("usage", "--by", "session", TZ="UTC", NO_COLOR="1")
    assert code == 0
    rows = shown.splitlines()
    assert rows[0].split() == ["SESSION", "REQUESTS", "INPUT", "READ", "WRITE", "OUTPUT", "THOUGHT", "COST", "TITLE"]
    assert "$0.50" in rows[1]
    assert rows[1].endswith("abcd")
    assert "unknown" in rows[2]
    assert "$0.50 + unknown" in rows[3]
    code, shown = terminal("usage", "--session", "bb", TZ="UTC", NO_COLOR="1")
    assert shown.splitlines()[0].split() == ["DAY", "REQUESTS", "INPUT", "WRITE", "OUTPUT", "COST"]


# ---------------------------------------------------------------------------------------------------------- tokens


def test_how_full_a_session_is(history: History, dsh: Run) -> None:
    history.session("aa")
    turn(history, "aa", at=NOON, model="deepseek/deepseek-v4-pro", usage=used(100, 20))
    done = dsh("tokens", "a")
    # its message names no chunks and no usage, so the baseline is an estimate: 9 for abcd, 9 for yes
    assert lines(done.stdout) == [
        ["total", "18"],
        ["baseline estimated", "18"],
        ["changed since", "0"],
        ["surface", "18"],
        ["context window", "128000"],
        ["share", "0.0%"],
    ]
    found = json.loads(dsh("tokens", "last", "--json").stdout)
    assert (found["sessionId"], found["totalTokens"], found["contextWindow"]) == ("aa", 18, 128_000)
    assert "nodes" not in found
    nodes = json.loads(dsh("tokens", "last", "--json", "--nodes").stdout)["nodes"]
    assert [(n["seq"], n["tokens"], n["text"]) for n in nodes] == [(1, 9, "abcd"), (5, 9, "yes")]
    assert lines(dsh("tokens", "aa", "--nodes").stdout)[0] == ["1", "9", "user/message", "abcd"]


def test_a_window_that_nobody_knows_is_not_shown(history: History, dsh: Run, tmp_path: Path) -> None:
    history.session("aa")
    turn(history, "aa", at=NOON, model="work/m")
    assert "window" not in dsh("tokens", "aa").stdout
    folder = tmp_path / "home" / ".dsh"
    folder.mkdir()
    (folder / "config.toml").write_text('[providers.work]\nbase_url = "https://llm.example"\ncontext_window = 36\n')
    assert lines(dsh("tokens", "aa").stdout)[-1] == ["share", "50.0%"]
    assert dsh("tokens", "zz").returncode == 2


@pytest.mark.parametrize("command", [("usage",), ("tokens", "last")])
def test_they_load_neither_trio_nor_httpx(history: History, command: tuple[str, ...]) -> None:
    import subprocess
    import sys

    history.say("aa", "hello")
    heavy = "sorted({'trio', 'httpx', 'dsh.agent'} & set(sys.modules))"
    code = f"import sys; from dsh.cli.main import main; main({list(command)!r}); print({heavy})"
    root = str(Path(__file__).parent.parent.parent)
    env = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_day_ends_where_the_next_begins_when_the_clocks_change(dsh: Run, history: History) -> None:
    history.session("long")  # 2026-10-25 has 25 hours in Berlin
    turn(history, "long", at=1_792_967_400_000, usage=used(1, 1))  # 23:30 local time, 22:30 UTC
    berlin = {"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"}
    shown = lines(dsh("usage", "--since", "2026-10-25", "--until", "2026-10-25", env=berlin).stdout)
    assert [(line[0], line[1]) for line in shown] == [("2026-10-25", "1"), ("total", "1")]
