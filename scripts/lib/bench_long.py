"""Benchmarks of what must not get worse: what a provider has cached, many processes on one file, long histories."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.lib.bench_concurrency import Broken, Result, measure
from scripts.lib.bench_kit import ROOT, Failed, environment, ratio, rounds, run, spread, table
from scripts.lib.bench_server import Server

DSH = str(ROOT / "scripts" / "dsh")


# --- prefix


def differing(before: bytes, after: bytes) -> int:
    """Bytes of a request's body that differ from the one before it, besides the tail that its history has grown by:
    what of the earlier history is not there again, and the fields after the history if they are not the same."""
    (history, options), (longer, now) = (body.rsplit(b'],"stream":', 1) for body in (before, after))
    same = next((n for n, (a, b) in enumerate(zip(history, longer, strict=False)) if a != b), len(history))
    return len(history) - min(same, len(longer)) + (0 if options == now else len(now))


def prefix(options: argparse.Namespace, folder: Path) -> None:
    """what of a request's bytes differs from the request before it, besides the appended tail."""
    server = Server()
    env = environment(folder, DSH_DB=str(folder / "dsh.db"), DSH_LLM_DISCOVER="false")
    at = ["--base-url", server.base_url]
    rows = [["", "requests", "bytes sent", "differ besides the tail", "share"]]
    for title, runs in (
        ("one run of 20 tool steps", [(20, ["-m", "a", "start"])]),
        ("five more runs in new processes, 5 steps each", [(5, ["-c", "go on"])] * 5),
        ("a run with another model", [(2, ["-c", "-m", "b", "go on"])]),
        ("and one more with it", [(2, ["-c", "go on"])]),
    ):
        first = max(0, len(server.bodies) - 1)
        for steps, words in runs:
            server.steps = steps
            run([DSH, "run", "-q", *words, *at], env, folder)
        bodies = server.bodies[first:]
        differ = [differing(a, b) for a, b in pairwise(bodies)]
        sent = sum(map(len, bodies[1:] if first else bodies))
        rows.append(
            [title, str(len(bodies) - bool(first)), f"{sent:,}", f"{sum(differ):,}", f"{sum(differ) / sent:.4%}"]
        )
    table(rows)
    print("  the model's name stands before the history, so another model leaves nothing the same")


# --- concurrency


def concurrency(options: argparse.Namespace, folder: Path) -> None:
    """8 writers and 4 readers on one file, beside one writer alone, in one run."""
    places = {"on this disk": folder}
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK):
        places["in memory, where a sync costs nothing"] = memory
    for title, place in places.items():
        with tempfile.TemporaryDirectory(prefix="dsh-bench-", dir=place) as own:
            try:
                _concurrency(title, Path(own) / "dsh.db", options.seconds)
            except Broken as error:
                raise Failed(str(error)) from error


def _concurrency(title: str, path: Path, seconds: float) -> None:
    few = max(1.0, seconds / 4)
    alone = [measure(path, few, 1, 0, "a")]
    watched = measure(path, few, 1, 4, "b")
    many = measure(path, seconds, 8, 4, "c")
    alone.append(measure(path, few, 1, 0, "d"))
    rows = [["", "events/s", "longest append ms", "least writer's share", "reads/s", "longest read ms"]]
    for name, result in (
        (f"one writer, {few:g} s before", alone[0]),
        (f"one writer, {few:g} s after", alone[1]),
        (f"one writer and 4 readers, {few:g} s", watched),
        (f"8 writers and 4 readers, {seconds:g} s", many),
    ):
        rows.append([name, *_figures(result)])
    print(f"  {title}:")
    table(rows)
    share = many.rate / statistics.mean(a.rate for a in alone)
    print(f"  8 writers / one alone: {share:.2f}, target >= 0.7: {'reached' if share >= 0.7 else 'MISSED'}")
    print("  no error, no lost event, integrity and search index checked after each round")


def _figures(result: Result) -> list[str]:
    reads = [f"{result.reads:.0f}", f"{result.slowest_read:.0f}"] if result.reads else ["-", "-"]
    return [f"{result.rate:,.0f}", f"{result.slowest:.0f}", f"{result.least:.2f}", *reads]


# --- growth


def growth(options: argparse.Namespace, folder: Path) -> None:
    """what a step, a resume and the listing commands cost at 1,000 to 1,000,000 events."""
    sizes = [n for n in (1_000, 10_000, 100_000, 1_000_000) if n <= options.events]
    made = _part(folder, "build", str(folder), *map(str, sizes))
    print(f"  files of {', '.join(f'{n:,}' for n in sizes)} events, made in {made['seconds']:.0f} s")
    for kind, title in (("one", "one session"), ("many", "sessions of 100 events")):
        files = [folder / f"{kind}-{n}.db" for n in sizes]
        print(f"  {title}; files of {', '.join(f'{f.stat().st_size / 2**20:.1f}' for f in files)} MiB")
        rows = [["", *(f"{n:,}" for n in sizes), "last / first"]]
        for part, found in _part(folder, "inside", str(options.rounds), *map(str, files)).items():
            values = [found[f.stem] for f in files]
            flat = 1.3 if part == "a step" else None
            rows.append([f"{part}, us", *map(spread, values), ratio(values[-1], values[0], flat)])
        rows += _commands(files, kind, options.rounds, folder)
        table(rows)


def _commands(files: list[Path], kind: str, count: int, folder: Path) -> list[list[str]]:
    """Whole processes: lists, the end of a session, and a run up to its first request."""
    name = "one" if kind == "one" else "many000003"
    rows = []
    for words in (["sessions"], ["ps"], ["show", name, "--tail", "1"]):
        asked = {f.stem: _asker([DSH, *words, "--db", str(f)], folder) for f in files}
        found = rounds(asked, count)
        walls = [[r.wall for r in found[f.stem]] for f in files]
        rows.append([f"dsh {' '.join(words)}, ms", *map(spread, walls), ratio(walls[-1], walls[0], 1.3)])
    server = Server()

    def first_request(path: Path) -> Any:
        words = [DSH, "run", "-q", "--resume", name, "-m", "bench", "go on", "--base-url", server.base_url]
        env = environment(folder, DSH_LLM_DISCOVER="false", DSH_DB=str(path))

        def once() -> float:
            server.reset()
            began = run([*words, "--provider", "bench"], env, folder).at
            return (server.arrivals[0] - began) * 1000

        return once

    times = rounds({f.stem: first_request(f) for f in files}, count)
    values = [times[f.stem] for f in files]
    rows.append(["dsh run --resume to its first request, ms", *map(spread, values), ratio(values[-1], values[0])])
    return rows


def _asker(argv: list[str], folder: Path) -> Any:
    return lambda: run(argv, environment(folder), folder)


def _part(folder: Path, *words: str) -> dict[str, Any]:
    argv = [sys.executable, "-I", "-S", "-X", "utf8", str(ROOT / "scripts" / "lib" / "bench_growth.py"), *words]
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment(folder))
    if done.returncode:
        raise Failed(f"after {time.monotonic() - began:.0f} s: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
