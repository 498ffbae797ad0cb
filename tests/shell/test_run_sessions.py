"""Which session a run works in: `--session`, `--fork`, and that the ways exclude each other."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

from tests.provider import FakeProvider, hang, status, text
from tests.shell.process import Dsh, finish

pytestmark = pytest.mark.slow  # each test starts the program, some many times


@pytest.fixture
def fake() -> FakeProvider:  # type: ignore[misc]
    with FakeProvider() as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Dsh:
    return Dsh(tmp_path, fake, DSH_RETRY_MAX_RETRIES="0")


def asked(fake: FakeProvider, number: int = -1) -> list[tuple[str, str]]:
    """Roles and texts of a request's messages, the system text left out."""
    return [(m["role"], m["content"]) for m in fake.requests[number].messages if m["role"] != "system"]


def sessions(dsh: Dsh) -> list[str]:
    return [row[0] for row in dsh.rows("SELECT id FROM session ORDER BY created_at, id")]


@pytest.mark.rule("AL-80")
def test_a_named_session_is_begun_or_gone_on_with(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("one"), text("two"), text("three"))
    assert dsh("run", "--session", "proj", "first").out == b"one\n"
    assert sessions(dsh) == ["proj"]
    assert dsh("run", "--session", "proj", "second").out == b"two\n"
    assert asked(fake) == [("user", "first"), ("assistant", "one"), ("user", "second")]
    assert dsh("run", "--session", "pro", "third").out == b"three\n"  # exactly this id, no beginning of one
    assert sessions(dsh) == ["proj", "pro"]
    assert asked(fake) == [("user", "third")]
    for name in ("", "a\tb"):
        done = dsh("run", "--session", name, "x")
        assert (done.code, done.out) == (2, b"")
        assert done.errors.startswith("dsh: --session ")
    assert len(fake.requests) == 3


@pytest.mark.rule("SE-55")
def test_a_run_in_a_fork_leaves_the_session_as_it_is(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("one"), text("two"), text("three"), text("four"))
    dsh("run", "--session", "proj", "first", "--system", "be brief")
    dsh("run", "--session", "proj", "second")
    before = dsh.log("proj")
    ends = [e["seq"] for e in before if e["type"] == "turn/end"]
    done = dsh("run", "--fork", "pro", "third")
    assert (done.code, done.out) == (0, b"three\n")
    assert [words for _, words in asked(fake)] == ["first", "one", "second", "two", "third"]
    assert fake.requests[-1].messages[0]["role"] == "system"  # what the session was told holds in its fork
    assert "be brief" in fake.requests[-1].messages[0]["content"]
    assert dsh("run", "--fork", f"proj:{ends[0]}", "other").out == b"four\n"
    assert [words for _, words in asked(fake)] == ["first", "one", "other"]
    assert dsh.log("proj") == before
    rows = dsh.rows("SELECT parent_session, seed_length, turns FROM session WHERE id <> 'proj' ORDER BY created_at")
    assert rows == [("proj", ends[1] + 1, 3), ("proj", ends[0] + 1, 2)]


@pytest.mark.slow
@pytest.mark.rule("SE-55", "HD-14")
def test_a_fork_that_comes_to_nothing_is_not_kept(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("one"), status(401))
    dsh("run", "--session", "proj", "first")
    end = dsh.log("proj")[-1]["seq"]
    done = dsh("run", "--fork", "proj:1", "x")
    assert (done.code, done.out) == (2, b"")
    assert done.errors.splitlines() == [
        "dsh: event 1 of session proj is not the end of a turn (OPEN_TURN)",
        f"dsh: the first end of a turn is {end}",
    ]
    assert dsh("run", "--fork", "nobody", "x").code == 2
    assert dsh("run", "--fork", "proj", "x", "--tools", "none-such").code == 2
    assert dsh("run", "--fork", "proj", "x", "--mock", "none-such").code == 3
    assert sessions(dsh) == ["proj"]
    assert dsh("run", "--fork", "proj", "x").code == 4  # a turn that failed is kept: it was asked
    assert len(sessions(dsh)) == 2


@pytest.mark.rule("SE-55", "PE-72")
def test_a_session_at_work_is_forked_as_of_its_last_whole_turn(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("one"), hang(), text("meanwhile"))
    dsh("run", "--session", "proj", "first")
    working = dsh.start("run", "--session", "proj", "second")
    dsh.wait_for(lambda: len(fake.requests) == 2)
    assert dsh("run", "--session", "proj", "x").code == 8
    assert dsh("run", "--fork", "proj", "aside").out == b"meanwhile\n"
    assert [words for _, words in asked(fake)] == ["first", "one", "aside"]
    assert dsh("fork", "proj").code == 0
    assert working.poll() is None
    working.send_signal(signal.SIGINT)
    assert finish(working).code == 130
    assert [row[0] for row in dsh.rows("SELECT outcome FROM turn WHERE session_id = 'proj'")] == [
        "completed",
        "aborted",
    ]


@pytest.mark.rule("HD-14")
def test_one_way_at_a_time(dsh: Dsh, fake: FakeProvider) -> None:
    ways = {"--continue": [], "--resume": ["s"], "--fork": ["s"], "--session": ["s"]}
    for one, two in itertools.combinations(ways, 2):
        done = dsh("run", one, *ways[one], two, *ways[two], "x")
        assert (done.code, done.out) == (2, b"")
        assert done.errors == f"dsh: {one} and {two} exclude each other (USAGE)\n"
    assert not dsh.db.exists()
