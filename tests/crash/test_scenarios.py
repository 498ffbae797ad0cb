"""SIGKILL at random points of a stream, a tool batch, a compaction and a fork, again and again on the same file.

Each process verifies what the killed one had been told (tests/crash/driver.py) and is killed in its turn: after some
events more, or while it opens, repairs and verifies. So every kill is followed by a verification, also the last.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dsh.query.check import check
from dsh.store.database import Database
from tests.crash.driver import SCENARIOS
from tests.crash.zygote import Job, Zygote

LANES = 2
KILLS_A_FILE = 20
EVENTS = 60  # at most so many after the verification
PATIENCE_S = 60


class Lane:
    """A file, what is known to be stored in it, and the processes that come and go."""

    def __init__(self, zygote: Zygote, folder: Path, scenario: str, chance: random.Random) -> None:
        self.zygote = zygote
        self.folder = folder
        self.scenario = scenario
        self.chance = chance
        self.stored: dict[str, int] = {}
        self.session: str | None = None
        self.number = 0
        self.verified = 0

    def round(self, *, last: bool = False) -> None:
        """One process, killed at some point; the last one is killed as soon as it has verified."""
        self.number += 1
        pipe = self.folder / f"pipe{self.number}"
        os.mkfifo(pipe)
        said = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        job = self.zygote.call(
            "tests.crash.driver",
            {
                "pipe": str(pipe),
                "db": str(self.folder / "dsh.db"),
                "scenario": self.scenario,
                "stored": self.stored,
                "session": self.session,
            },
            self.folder,
        )
        try:
            self._kill(job, said, last=last)
            self._take(_rest(said))
        finally:
            job.kill()
            os.close(said)
            pipe.unlink()

    def _kill(self, job: Job, said: int, *, last: bool) -> None:
        if not last and self.chance.random() < 0.2:
            time.sleep(self.chance.random() * 0.04)  # while it opens, repairs, verifies
            job.kill()
            return
        wanted = self.chance.randrange(EVENTS)
        text = ""
        end = time.monotonic() + PATIENCE_S
        while "verified\n" not in text or (not last and text.partition("verified\n")[2].count("event") < wanted):
            if job.ended or time.monotonic() > end:
                raise AssertionError(f"{self.scenario} {self.number} in {self.folder}: {job.errors()}")
            if select.select([said], [], [], 0.05)[0]:
                text += os.read(said, 65536).decode()
        time.sleep(self.chance.random() * 0.001)
        job.kill()
        self._take(text, whole=False)

    def _take(self, text: str, *, whole: bool = True) -> None:
        text = self.__dict__.pop("_left", "") + text
        *lines, left = text.split("\n")
        if not whole:
            self.__dict__["_left"] = left
        for line in lines:
            kind, *words = line.split()
            if kind == "event":
                self.stored[words[0]] = max(int(words[1]), self.stored.get(words[0], -1))
            elif kind == "session":
                self.session = words[0]
            else:
                self.verified += 1


def _rest(said: int) -> str:
    """What a dead process still had said."""
    pieces = []
    while piece := os.read(said, 65536):
        pieces.append(piece)
    return b"".join(pieces).decode()


def kill(folder: Path, kills: int, seed: int) -> Counter[str]:
    """`kills` kills, shared out over the scenarios, in `LANES` lanes; how many verifications each scenario saw."""
    seen: Counter[str] = Counter()
    rounds = [(s, n) for n in range(0, kills // len(SCENARIOS), KILLS_A_FILE) for s in SCENARIOS]

    def lane(number: int) -> None:
        zygote = Zygote()
        try:
            for scenario, first in rounds[number::LANES]:
                place = folder / f"{scenario}-{first}"
                place.mkdir()
                one = Lane(zygote, place, scenario, random.Random(f"{seed} {scenario} {first}"))
                for _ in range(min(KILLS_A_FILE, kills // len(SCENARIOS) - first)):
                    one.round()
                one.round(last=True)
                db = Database.open(place / "dsh.db")
                assert db.integrity() == []
                assert check(db) == []
                db.close()
                seen[scenario] += one.verified
        finally:
            zygote.close()

    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(lane, range(LANES)))
    return seen


RULES: Any = pytest.mark.rule("PE-15", "PE-30", "PE-33", "PE-37", "PE-71", "SE-40", "SE-42", "AL-58", "LS-55a")


@RULES
def test_killed_some_times(tmp_path: Path) -> None:
    seen = kill(tmp_path, 8, random.randrange(10**6))
    assert set(seen) == set(SCENARIOS)


@pytest.mark.slow
@RULES
def test_killed_a_thousand_times(tmp_path: Path) -> None:
    began = time.monotonic()
    seen = kill(tmp_path, 1000, random.randrange(10**6))
    print(f"1000 kills in {time.monotonic() - began:.0f} s; verified {dict(seen)}")
    assert sum(seen.values()) > 700
