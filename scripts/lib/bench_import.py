"""Importing a tree of Claude Code transcripts: `bench_import.py make FOLDER FILES LINES` writes one, always the same.

A line is about a KiB, as real ones are: half of it is the envelope, and what a tool said stands there twice. A third of
the answers call a tool, results are program output and file contents, one in ten lines is not ASCII.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from scripts.lib import bench_kit

_FILES, _LINES = 500, 200
_BEGIN = 1_700_000_000_000
_NAMES = ("parse", "load", "store", "query", "index", "merge", "split", "render", "encode", "flush", "open", "scan")
_KINDS = ("Config", "Session", "Token", "Buffer", "Stream", "Cursor", "Parser", "Worker", "Result", "Header", "Cache")


@cache
def _pool() -> list[str]:
    """Words as unequally common as those of a language."""
    chance = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    made = {"".join(chance.choices(letters, range(26, 0, -1), k=chance.randint(2, 9))) for _ in range(9000)}
    words = sorted(made)
    chance.shuffle(words)
    words[400:400] = [f"{a}_{b.lower()}" for a in _NAMES for b in _KINDS] + [a + b for a in _NAMES for b in _KINDS]
    return chance.choices(words, [1 / (rank + 3) for rank in range(len(words))], k=1_000_000)


class _Words:
    """Text of one transcript."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def some(self, count: int) -> str:
        at = self.chance.randrange(1_000_000 - count)
        return " ".join(_pool()[at : at + count])

    def code(self, lines: int) -> str:
        chosen = self.chance.choice
        return "\n".join(
            f"    {chosen(_NAMES)}{chosen(_KINDS)}({', '.join(self.some(4).split())})  # {self.some(3)}"
            for _ in range(lines)
        )

    def id(self) -> str:
        digits = f"{self.chance.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def lines(number: int, count: int) -> Iterator[dict[str, Any]]:
    """The records of one transcript."""
    words = _Words(number)
    chance, session = words.chance, words.id()
    at, parent, call = _BEGIN + number * 7_200_000, None, None

    def record(kind: str, message: dict[str, Any], **more: Any) -> dict[str, Any]:
        nonlocal at, parent
        at += chance.randint(500, 20_000)
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at / 1000)) + f".{at % 1000:03d}Z"
        uuid = words.id()
        made = {
            "parentUuid": parent, "isSidechain": False, "userType": "external",
            "cwd": f"/home/user/projects/project-{number % 20}", "sessionId": session, "version": "2.1.100",
            "gitBranch": "main", "type": kind, "message": message, "uuid": uuid, "timestamp": when, **more,
        }  # fmt: skip
        parent = uuid
        return made

    for line in range(count):
        if call is not None:
            output = words.code(5) if chance.random() < 0.6 else words.some(50)
            answer = {"tool_use_id": call, "type": "tool_result", "content": output}
            yield record("user", {"role": "user", "content": [answer]}, toolUseResult={"stdout": output, "stderr": ""})
            call = None
            continue
        if line % 12 == 0:
            said = words.some(30) + (" 请修复解析器里的错误" if chance.random() < 0.1 else "")
            yield record("user", {"role": "user", "content": said})
            continue
        message: dict[str, Any] = {
            "id": f"msg_{words.id()[:24]}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": [{"type": "text", "text": words.some(70)}], "stop_reason": "end_turn", "stop_sequence": None,
            "usage": {"input_tokens": 5, "cache_creation_input_tokens": 400, "cache_read_input_tokens": 20_000,
                      "output_tokens": 120, "service_tier": "standard"},
        }  # fmt: skip
        if line % 12 < 10:
            call = f"toolu_{words.id()[:24]}"
            arguments = {"command": words.some(12), "description": words.some(5)}
            message["content"] = [{"type": "tool_use", "id": call, "name": "Bash", "input": arguments}]
            message["stop_reason"] = "tool_use"
        yield record("assistant", message, requestId=f"req_{words.id()[:24]}")


def make(folder: Path, files: int, count: int) -> int:
    """Write a tree of transcripts; its size in bytes."""
    size = 0
    for number in range(files):
        path = folder / f"-home-user-projects-project-{number % 20}" / f"{_Words(number).id()}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(
            json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in lines(number, count)
        )
        path.write_text(text, "utf-8")
        size += path.stat().st_size
    return size


def imports(options: argparse.Namespace, folder: Path) -> None:
    """Importing 100,000 messages of Claude Code, with the index; then the same tree again, unchanged"""
    size = make(folder / "projects", _FILES, _LINES)
    print(f"  {_FILES * _LINES:,} messages, {_FILES} files, {size / 1e6:.0f} MB")
    for number in range(max(1, options.rounds // 5)):
        base = folder / f"{number}.db"
        env = bench_kit.environment(folder, DSH_DB=str(base))
        argv = [str(bench_kit.ROOT / "scripts" / "dsh"), "import", "claude", str(folder / "projects")]
        first = bench_kit.run(argv, env, folder)
        again = bench_kit.run(argv, env, folder)
        part = base.stat().st_size / size
        print(
            f"  first {first.wall / 1000:.2f} s ({first.cpu / 1000:.2f} s of processors, {first.peak:.0f} MiB),"
            f" again {again.wall / 1000:.2f} s, database {part:.2f} x the transcripts"
        )
        base.unlink()


if __name__ == "__main__":
    print(make(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
