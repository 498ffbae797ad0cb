"""The benchmarks, each a function: what runs side by side, and which figures are printed against which target.

The targets are the project's own (docs/benchmarks.md). What needs dsh inside the measuring process (building a
database, appending) runs in a process of its own, `bench_inside.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.lib.bench_kit import ROOT, Failed, Run, environment, limit, ratio, rounds, run, spread, table
from scripts.lib.bench_peers import NAMES, Maker, programs
from scripts.lib.bench_server import Server

STEPS = 20
_IMPORTS = "python -c 'import trio, httpx'"

Asked = tuple[Run, list[float]]


def _ask(server: Server, make: Maker, folder: Path, steps: int = 0, *, fresh: bool = False) -> Callable[[], Asked]:
    """One run of a program, and the times at which its requests arrived; in one home, or in a `fresh` one each."""
    work = _new(folder, "work")
    program = make(_new(folder, "home"))

    def once() -> Asked:
        chosen = make(_new(folder, "home")) if fresh else program
        server.reset(steps)
        done = run(chosen.argv, chosen.env, work)
        if len(server.arrivals) < steps + 1:
            raise Failed(f"{chosen.argv[0]} made {len(server.arrivals)} of {steps + 1} requests")
        return done, server.arrivals

    return once


def _peers(options: argparse.Namespace, server: Server) -> dict[str, Maker]:
    return programs(server.base_url, {name: getattr(options, name) for name in NAMES}, options.binary)


def start(options: argparse.Namespace, folder: Path) -> None:
    """one prompt, 20 pieces of text: start to first request, and the whole process."""
    server = Server()
    peers = _peers(options, server)
    for fresh in (False, True):
        print("  each time in a fresh home:" if fresh else "  in a home that was used before:")
        asked: dict[str, Callable[[], Any]] = {
            name: _ask(server, make, folder, fresh=fresh) for name, make in peers.items()
        }
        if not fresh:
            asked[_IMPORTS] = partial(_bare_imports, folder)
        _report_start(rounds(asked, options.rounds))


def _bare_imports(folder: Path) -> Asked:
    return run([sys.executable, "-c", "import trio, httpx"], environment(folder), folder), []


def _report_start(results: dict[str, list[Asked]]) -> None:
    rows = [["", "first request ms", "wall ms", "cpu ms", "peak MiB"]]
    first = {name: [(at[0] - r.at) * 1000 for r, at in found if at] for name, found in results.items()}
    for name, found in results.items():
        figures = [spread([getattr(r, part) for r, _ in found]) for part in ("wall", "cpu", "peak")]
        rows.append([name, spread(first[name]) if first[name] else "-", *figures])
    table(rows)
    ours = results["dsh"]
    for name, found in results.items():
        if name.startswith("dsh"):
            continue
        targets = (0.6, 0.65, 0.6) if name == "codex" else (None, None, None)
        if first[name]:
            print(f"  dsh / {name}, first request: {ratio(first['dsh'], first[name], targets[0])}")
        for part, target in (("wall", targets[1]), ("cpu", targets[2])):
            both = ([getattr(r, part) for r, _ in side] for side in (ours, found))
            print(f"  dsh / {name}, {part}: {ratio(next(both), next(both), target)}")
    print(f"  dsh, peak memory: {limit([r.peak for r, _ in ours], 64, 'MiB')}")


def tools(options: argparse.Namespace, folder: Path) -> None:
    """a turn of 20 steps, each one shell call of `true`: time per step above the shell's own."""
    server = Server()
    work = _new(folder, "work")
    asked: dict[str, Callable[[], Any]] = {
        name: _ask(server, make, folder, STEPS)
        for name, make in _peers(options, server).items()
        if name != "llm"  # it has no tool that runs commands
    }
    shell = "bash -c true"
    asked[shell] = lambda: (None, [statistics.median(_bash(folder, work) for _ in range(STEPS)) / 1000])
    results: dict[str, list[Asked]] = rounds(asked, max(3, options.rounds // 2))
    alone = [times[0] * 1000 for _, times in results.pop(shell)]
    steps = {
        name: [statistics.median(b - a for a, b in pairwise(at)) * 1000 for _, at in found]
        for name, found in results.items()
    }
    rows = [["", "ms a step", "ms above the shell's own", "whole turn ms", "peak MiB"]]
    for name, found in results.items():
        above = [a - b for a, b in zip(steps[name], alone, strict=True)]
        whole = [spread([getattr(r, part) for r, _ in found]) for part in ("wall", "peak")]
        rows.append([name, spread(steps[name]), spread(above), *whole])
    rows.append([shell, spread(alone), "-", "-", "-"])
    table(rows)
    for name in results:
        if not name.startswith("dsh"):
            print(f"  dsh / {name}, time a step: {ratio(steps['dsh'], steps[name])}")
    print(f"  dsh, above the shell's own: {limit([a - b for a, b in zip(steps['dsh'], alone, strict=True)], 8, 'ms')}")


def _bash(folder: Path, work: Path) -> float:
    return run(["bash", "-c", "true"], environment(folder), work).wall


def version(options: argparse.Namespace, folder: Path) -> None:
    """`dsh --version`, beside an interpreter that does nothing."""
    env = environment(folder)
    commands = {"dsh --version": [str(ROOT / "scripts" / "dsh"), "--version"]}
    if options.binary:
        commands["one file --version"] = [str(Path(options.binary).resolve()), "--version"]
    commands["python -I -S -c pass"] = [sys.executable, "-I", "-S", "-c", "pass"]
    walls = {name: [r.wall for r in found] for name, found in _side_by_side(commands, env, folder, options).items()}
    table([["", "wall ms"], *([name, spread(values)] for name, values in walls.items())])
    print(f"  {limit(walls['dsh --version'], 25, 'ms')}")


def _side_by_side(
    commands: dict[str, list[str]], env: dict[str, str], cwd: Path, options: argparse.Namespace
) -> dict[str, list[Run]]:
    def runs(argv: list[str]) -> Callable[[], Run]:
        return lambda: run(argv, env, cwd)

    return rounds({name: runs(argv) for name, argv in commands.items()}, options.rounds)


def append(options: argparse.Namespace, folder: Path) -> None:
    """events appended one by one through the view, beside plain INSERTs into an equal table without rules."""
    made = _inside("append", folder, str(options.rounds))
    table(
        [
            ["", "events/s"],
            ["view `event` (chunks)", spread(made["view"])],
            ["plain table", spread(made["plain"])],
            ["Session.append, checked, frozen and announced", spread(made["session"])],
            ["whole steps through the view, and the index", spread(made["work"])],
            ["the same events into a plain table", spread(made["plain work"])],
        ]
    )
    print(f"  view / plain, chunks: {ratio(made['view'], made['plain'], 0.6, more=True)}")
    print(f"  view / plain, whole steps with the index: {ratio(made['work'], made['plain work'], 0.35, more=True)}")


def steps(options: argparse.Namespace, folder: Path) -> None:
    """what a step does to the log, in a session of 100 events and in one of 100,000."""
    made = _inside("steps", folder, str(options.rounds))
    short, compacted, whole = made["slices"]
    sizes, messages = made["sizes"], made["messages"]
    titles = ("", " compacted every 5,000", " never compacted")
    rows = [["us", *(f"{n:,} events{title}" for n, title in zip(sizes, titles, strict=True)), "compacted / short"]]
    rows += [
        [part, spread(short[part]), spread(compacted[part]), spread(whole[part]), ratio(compacted[part], short[part])]
        for part in short
    ]
    rows.append(["messages in the request", *(f"{count:,}" for count in messages), ""])
    table(rows)


def size(options: argparse.Namespace, folder: Path) -> None:
    """how much space a history takes: one-shot runs, sessions as dsh logs them, and as an import leaves them."""
    home = _new(folder, "home")
    answer = home / "answer.jsonl"
    answer.write_text('{"text":"A short answer, of no more than two lines, to a question that was as short."}\n')
    env = environment(home, DSH_DB=str(home / "dsh.db"))
    argv = [str(ROOT / "scripts" / "dsh"), "run", "--mock", str(answer), "what is this?"]
    sizes = []
    for count in (20, options.runs):
        for _ in range(count):
            run(argv, env, home)
        run([str(ROOT / "scripts" / "dsh"), "db", "vacuum"], env, home)
        sizes.append((home / "dsh.db").stat().st_size)
    each = (sizes[1] - sizes[0]) / options.runs
    print(f"  {options.runs} one-shot runs: {each:.0f} bytes each, {limit([each], 4096, ' bytes')}")
    rows = [["to the same as JSON Lines", "events", "raw MB", "hot", "packed", "thinned too", "index, hot"]]
    for kind in ("streamed", "messages"):
        made = _inside(kind, folder, "200", part="bench_size.py")
        raw = made["raw"]
        ratios = (f"{made[state] / raw:.2f}" for state in ("hot", "packed", "thinned", "index hot"))
        rows.append([kind, f"{made['events']:,}", f"{raw / 1e6:.1f}", *ratios])
    table(rows)


def _new(folder: Path, kind: str) -> Path:
    """An empty folder."""
    return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=folder))


def _inside(name: str, folder: Path, *arguments: str, part: str = "bench_inside.py") -> dict[str, Any]:
    """Run a part that needs dsh in its process; its last line is JSON."""
    argv = [sys.executable, "-I", "-S", "-X", "utf8", str(ROOT / "scripts" / "lib" / part)]
    done = subprocess.run(
        [*argv, name, str(folder), *arguments], capture_output=True, text=True, check=False, env=environment(folder)
    )
    if done.returncode:
        raise Failed(done.stderr[-2000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
