"""Measuring whole processes side by side: rounds, resources of one process, ratios, and how quiet the machine was.

Competitors take turns, one run each a round, in an order that rotates, so that a busy moment of the machine hits all
of them alike. Ratios are made within a round and their median is given; minima are given beside, since noise only
ever adds. The measuring process stays small: a child's peak memory counts what it shared with its parent before exec.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent.parent


class Run(NamedTuple):
    """One process: milliseconds, and MiB of memory at the peak; `at` is when it was started (monotonic seconds)."""

    at: float
    wall: float
    cpu: float
    peak: float


class Failed(Exception):
    """A program under test ended with an exit code that is not 0; the text is what it said."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """A small, equal environment for every program: no keys, no settings of the user."""
    base = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb"}
    return {**base, **more}


def run(argv: Sequence[str], env: Mapping[str, str], cwd: Path, answers: Sequence[int] = (0,)) -> Run:
    """Run to the end and take the resources of the process with all its children. Raises Failed if the exit code is
    none of `answers`."""
    with tempfile.TemporaryFile() as said:
        at = time.monotonic()
        child = subprocess.Popen(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        _, status, used = os.wait4(child.pid, 0)
        wall = time.monotonic() - at
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in answers:
            said.seek(0)
            raise Failed(f"{argv[0]}: exit code {child.returncode}: {said.read()[-800:].decode('utf-8', 'replace')}")
    peak = used.ru_maxrss / (1024 if sys.platform == "linux" else 1024 * 1024)
    return Run(at, wall * 1000, (used.ru_utime + used.ru_stime) * 1000, peak)


def rounds(competitors: Mapping[str, Callable[[], T]], count: int) -> dict[str, list[T]]:
    """`count` results of each competitor, after one run of each that is not counted."""
    names = list(competitors)
    results: dict[str, list[T]] = {name: [] for name in names}
    for number in range(count + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            result = competitors[name]()
            if number:
                results[name].append(result)
    return results


def spread(values: Sequence[float], unit: str = "") -> str:
    """`median (min to max)`."""
    low, middle, high = min(values), statistics.median(values), max(values)
    digits = 0 if middle >= 100 else 1 if middle >= 1 else 3
    return f"{middle:.{digits}f}{unit} ({low:.{digits}f} to {high:.{digits}f})"


def ratio(ours: Sequence[float], theirs: Sequence[float], target: float | None = None, *, more: bool = False) -> str:
    """Ours to theirs: the median of the ratios of each round, and the ratio of the best. `more` means more is good."""
    middle = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    best = max(ours) / max(theirs) if more else min(ours) / min(theirs)
    text = f"{middle:.2f} (best to best {best:.2f})"
    if target is None:
        return text
    reached = middle >= target if more else middle <= target
    return f"{text}, target {'>=' if more else '<='} {target:g}: {'reached' if reached else 'MISSED'}"


def limit(values: Sequence[float], target: float, unit: str) -> str:
    """A median against an absolute target."""
    middle = statistics.median(values)
    return f"target <= {target:g} {unit}: {'reached' if middle <= target else 'MISSED'}"


def table(rows: Sequence[Sequence[str]]) -> None:
    """Columns, the first row being the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class Quiet:
    """How much of the machine others used while we measured (Linux: /proc/stat), and how even a fixed job ran."""

    def __init__(self) -> None:
        self._began = self._busy(), self._own(), time.monotonic()

    @staticmethod
    def _busy() -> float | None:
        """Seconds that all processors together spent on something."""
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, fields)
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _own() -> float:
        used = os.times()
        return used.user + used.system + used.children_user + used.children_system

    def report(self) -> str:
        busy, own, at = self._began
        now = self._busy()
        jobs = sorted(_fixed_job() for _ in range(60))
        text = f"a fixed job of {jobs[0]:.1f} ms took {jobs[30] / jobs[0]:.2f} times that in the median"
        if busy is None or now is None:
            return text
        others = (now - busy - (self._own() - own)) / ((time.monotonic() - at) * (os.cpu_count() or 1))
        return f"others used {max(0.0, others):.0%} of the processors; {text}"


def _fixed_job() -> float:
    began = time.perf_counter()
    sum(range(200_000))
    return (time.perf_counter() - began) * 1000
