"""`dsh search` beside `llm logs -q`: the same messages in both, asked the same words.

Run as a program by the interpreter that llm is installed for, `bench_llm.py DOCUMENTS.jsonl LOGS.db` fills a database
as llm keeps it: two messages are a turn, with its row in the table that llm searches.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

_QUERIES = {
    "rare": "rescheduled cancellation",
    "middling": "argparse",
    "common": "return",
    "two words": "connection timeout",
}

_MESSAGES = 100_000


def fill(documents: Path, target: Path) -> None:
    """Write the messages, in pairs, as turns of llm."""
    import sqlite_utils  # type: ignore[import-not-found]
    from llm.migrations import migrate  # type: ignore[import-not-found]

    db = sqlite_utils.Database(target)
    migrate(db)
    with db.conn, documents.open(encoding="utf-8") as lines:
        pairs = zip(*[(json.loads(line)["text"] for line in lines)] * 2, strict=False)
        for number, (prompt, answer) in enumerate(pairs):
            turn, asked, said = f"{number:026d}", f"p{number}", f"r{number}"
            for name, parent, role, text in ((asked, None, "user", prompt), (said, asked, "assistant", answer)):
                db.conn.execute("INSERT INTO messages(hash, parent_hash, role) VALUES (?, ?, ?)", (name, parent, role))
                payload = json.dumps({"type": "text", "text": text})
                db.conn.execute(
                    "INSERT INTO parts(message_hash, position, type, text, payload) VALUES (?, 0, 'text', ?, ?)",
                    (name, text, payload),
                )
            db.conn.execute(
                "INSERT INTO turns(id, parent_message_hash, tip_message_hash, model, datetime_utc)"
                " VALUES (?, ?, ?, 'gpt-4o-mini', '2026-01-01T00:00:00')",
                (turn, asked, said),
            )
            row = (turn, prompt, answer)
            db.conn.execute("INSERT INTO turn_search(turn_id, prompt, response) VALUES (?, ?, ?)", row)


def logs(options: argparse.Namespace, folder: Path) -> None:
    """`dsh search` beside `llm logs -q`, over the same messages."""
    from scripts.lib.bench_kit import ROOT, Failed, environment, ratio, rounds, run, spread, table

    llm = options.llm or shutil.which("llm")
    if not llm:
        print("  llm is not on PATH, and no --llm PATH was given")
        return
    argv = [sys.executable, "-I", "-S", "-X", "utf8", str(ROOT / "scripts" / "lib" / "bench_corpus.py")]
    subprocess.run([*argv, str(folder), str(_MESSAGES)], check=True, stdout=subprocess.DEVNULL)
    home = folder / "llm"
    home.mkdir()
    done = subprocess.run(
        [str(Path(llm).resolve().parent / "python"), __file__, str(folder / "documents.jsonl"), str(home / "logs.db")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Failed(done.stderr[-800:])
    sizes = [path.stat().st_size / 1e6 for path in (folder / "dsh.db", home / "logs.db")]
    print(f"  {_MESSAGES:,} messages; databases of {sizes[0]:.0f} and {sizes[1]:.0f} MB")
    env = environment(folder, DSH_DB=str(folder / "dsh.db"), LLM_USER_PATH=str(home))
    rows = [["query", "dsh ms", "llm ms", "dsh / llm"]]
    for kind, words in _QUERIES.items():
        sides: dict[str, Callable[[], Any]] = {
            "dsh": partial(run, [str(ROOT / "scripts" / "dsh"), "search", *words.split()], env, folder),
            "llm": partial(run, [llm, "logs", "-q", words, "-n", "20"], env, folder),
        }
        found = rounds(sides, options.rounds)
        ours, theirs = ([each.wall for each in found[name]] for name in ("dsh", "llm"))
        rows.append([kind, spread(ours), spread(theirs), ratio(ours, theirs)])
    table(rows)


if __name__ == "__main__":
    fill(Path(sys.argv[1]), Path(sys.argv[2]))
