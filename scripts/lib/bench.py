"""The entry of `scripts/bench`: which benchmarks to run, and on what machine."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from scripts.lib import bench_import, bench_kit, bench_llm, bench_long, bench_peers, bench_processes, bench_search

BENCHES = {
    "start": bench_processes.start,
    "tools": bench_processes.tools,
    "version": bench_processes.version,
    "search": bench_search.search,
    "logs": bench_llm.logs,
    "append": bench_processes.append,
    "steps": bench_processes.steps,
    "size": bench_processes.size,
    "prefix": bench_long.prefix,
    "concurrency": bench_long.concurrency,
    "growth": bench_long.growth,
    "import": bench_import.imports,
}


def main() -> int:
    """Run what was asked for; exit code 1 when a program under test failed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="How fast dsh is, beside other programs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {' '.join(BENCHES)}; none means all")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds of each comparison (15)")
    parser.add_argument("--documents", type=int, default=1_000_000, metavar="N", help="documents to search in (1e6)")
    parser.add_argument(
        "--runs", type=int, default=1000, metavar="N", help="one-shot runs whose space is measured (1000)"
    )
    parser.add_argument("--seconds", type=float, default=60, metavar="N", help="of 8 writers at once (60)")
    parser.add_argument("--events", type=int, default=1_000_000, metavar="N", help="in the longest history (1000000)")
    parser.add_argument("--binary", metavar="PATH", help="measure the one-file build, too")
    for name in bench_peers.NAMES:
        parser.add_argument(f"--{name}", metavar="PATH", help=f"where {name} is, if not on PATH")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    print(f"{platform.platform()}, {os.cpu_count()} processors, Python {platform.python_version()} in .venv")
    print(f"{options.rounds} interleaved rounds after a warm-up; figures are median (min to max)")
    failed = False
    for name, bench in BENCHES.items():
        if options.names and name not in options.names:
            continue
        print(f"\n{name}: {(bench.__doc__ or '').splitlines()[0]}")
        quiet = bench_kit.Quiet()
        with tempfile.TemporaryDirectory(prefix="dsh-bench-") as folder:
            try:
                bench(options, Path(folder))
            except bench_kit.Failed as error:
                print(f"  FAILED: {error}")
                failed = True
        print(f"  noise: {quiet.report()}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
