"""SIGKILL at any moment of a run with tools: the file stays sound, the session goes on, and nobody notices (PE-30 on).

Each moment: a run is killed; the log that is left must be a beginning of a legal one; a second run continues it
against a server that refuses any call without a result; a third must send the very same bytes for what was repaired.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.agent.legal import problems
from tests.crash.zygote import Zygote
from tests.provider import FakeProvider, Recorded, Reply, calls, text, tool_call
from tests.shell.process import Done, Dsh
from tests.strict import refusals

pytestmark = pytest.mark.slow

MOMENTS = 200
AT_ONCE = 4

WAITED = b"dsh: a message that waited in this session is worked on first\n"

Run = Callable[..., Done]


def answer(request: Recorded) -> Reply:
    """Three steps for the prompt "start": two calls, a call with a remark, an answer; one step for any other."""
    if request.last_text != "start":
        return text(f"went on: {request.last_text}")
    steps = sum(m["role"] == "assistant" for m in request.messages)
    if steps == 0:
        both = (("bash", {"command": "echo a"}, "call_a"), ("bash", {"command": "echo b"}, "call_b"))
        return calls(*both, reasoning="let me see", pieces=3, delay=0.004)
    if steps == 1:
        return tool_call("todo_write", {"todos": []}, "call_c", text="a remark", pieces=2, delay=0.004)
    return text("the end of it", pieces=6, delay=0.004)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


def check(dsh: Dsh, fake: FakeProvider, run: Run) -> str:
    """Everything that must hold after a kill; the kind of ending that the killed turn has got."""
    try:
        made = dsh.db.exists() and dsh.rows("SELECT 1 FROM sqlite_schema WHERE name = 'session'")
    except sqlite3.OperationalError:  # a reader cannot take back a schema that is half made
        made = []
    if not made:
        assert run(dsh, "run", "go on").code == 0
        assert dsh.integrity() == []
        return "no schema"
    left = dsh.log() if dsh.rows("SELECT 1 FROM session") else []
    assert dsh.integrity() == []
    assert problems(left, closed=False) == []
    went_on = run(dsh, "run", "-c" if left else "-q", "go on")
    assert (went_on.code, went_on.out) == (0, b"went on: go on\n")
    assert went_on.err in (b"", WAITED)  # a prompt whose turn had begun and that was not in the log yet is run first
    log = dsh.log()
    assert log[: len(left)] == left  # nothing was taken back
    assert problems(log) == []
    more = run(dsh, "run", "-c", "and more")
    assert (more.code, more.out) == (0, b"went on: and more\n")
    first, second = fake.requests[-2:]
    shared = first.raw.index(b'"go on"')
    assert second.raw[:shared] == first.raw[:shared]
    assert [what for sent in fake.requests for what in refusals(sent.raw, thoughts={"let me see"})] == []
    assert dsh.integrity() == []
    if not left:
        return "no session"
    kind: str = next(e["data"]["reason"]["kind"] for e in log if e["type"] == "turn/end")
    was_open = not any(e["type"] == "turn/end" for e in left)
    assert kind == ("interrupted" if was_open else "completed")
    return f"{kind} after {left[-1]['type']}"


@pytest.mark.rule("PE-30", "PE-33", "PE-37", "PE-71", "SE-40", "SE-42")
@pytest.mark.parametrize("part", [0.05, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9])
def test_killed_at_some_moments(tmp_path: Path, zygote: Zygote, part: float) -> None:
    """The program as it is started by a person; the moments are parts of the log of a whole run."""
    with FakeProvider(*[answer] * 9, strict=True) as fake:
        dsh = Dsh(tmp_path, fake)
        process = dsh.start("run", "start")
        dsh.wait_for(lambda: len(dsh.log()) >= part * 56)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        check(dsh, fake, zygote.run)


@pytest.mark.rule("PE-30", "PE-33", "PE-37", "PE-71", "SE-40", "SE-42")
def test_killed_at_two_hundred_moments(tmp_path: Path) -> None:
    began = time.monotonic()
    zygotes = [Zygote() for _ in range(AT_ONCE)]
    seen: Counter[str] = Counter()

    def lane(number: int) -> None:
        chance = random.Random(number)
        for moment in range(number, MOMENTS, AT_ONCE):
            folder = tmp_path / str(moment)
            folder.mkdir()
            with FakeProvider(*[answer] * 9, strict=True) as fake:
                dsh = Dsh(folder, fake)
                job = zygotes[number].start(dsh, "run", "start")
                wait = chance.random() * whole
                time.sleep(wait)
                job.kill()
                try:
                    seen[check(dsh, fake, zygotes[number].run)] += 1
                except Exception as error:
                    raise AssertionError(f"moment {moment}, after {wait:.3f} s, in {folder}") from error

    def once(number: int) -> float:
        """How long an undisturbed run takes, the first one, which finds no caches warm, left out."""
        lasted = 0.0
        for warm in (False, True):
            folder = tmp_path / f"whole-{number}-{warm}"
            folder.mkdir()
            with FakeProvider(*[answer] * 3, strict=True) as fake:
                start = time.monotonic()
                done: Any = zygotes[number].run(Dsh(folder, fake), "run", "start")
                assert (done.code, done.out) == (0, b"the end of it\n")
                lasted = time.monotonic() - start
        return lasted

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            whole = min(pool.map(once, range(AT_ONCE)))
            list(pool.map(lane, range(AT_ONCE)))
    finally:
        for zygote in zygotes:
            zygote.close()
    print(f"{MOMENTS} moments in {time.monotonic() - began:.0f} s: {dict(seen)}")
    assert sum(n for kind, n in seen.items() if kind.startswith("interrupted")) > MOMENTS / 4
