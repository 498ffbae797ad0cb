"""docs/json.md names the keys that --json prints."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from dsh.cli.main import main
from tests.cli.conftest import ROOT
from tests.history import History, text
from tests.importing.stores import SAMPLES
from tests.session.kit import damage

NOW = int(time.time() * 1000)
PAGE = (ROOT / "docs" / "json.md").read_text("utf-8")


def documented(heading: str) -> tuple[set[str], set[str]]:
    """The keys that are always there, and those that may be."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    always: set[str] = set()
    optional: set[str] = set()
    for keys, about in re.findall(r"^\| (`.*?`) \| (.*) \|$", section, re.MULTILINE):
        (optional if about.startswith("Optional:") else always).update(re.findall(r"`(.*?)`", keys))
    return always, optional


@pytest.fixture
def past(history: History) -> History:
    history.say("s", "hi", time=NOW - 100 * 86_400_000)
    history.turn("s", 2, "more", text("a long answer " * 20))
    at = {"turn": 3, "step": 1}
    history.event("s", "turn/start", {"turn": 3, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    history.event("s", "session/title", {"title": "T", "messageSeqs": [1], "source": {"kind": "user"}})
    history.event("s", "step/start", at)
    for _ in range(3):
        history.event("s", "assistant/chunk", {**at, "chunk": {"type": "text-delta", "index": 0, "text": "x"}})
    history.event("s", "step/end", at)
    history.event("s", "turn/end", {"turn": 3, "reason": {"kind": "completed"}})
    history.say("plain", "hi", time=NOW - 100 * 86_400_000)
    return history


COMMANDS: list[tuple[str, list[str]]] = [
    ("dsh sessions", ["sessions", "--json"]),
    ("dsh title", ["title", "s", "--json"]),
    ("dsh title", ["title", "plain", "--json"]),
    ("dsh show ID:SEQ --trace", ["show", "s:1", "--trace", "--json"]),
    ("dsh import TOOL", ["import", "claude", "{samples}", "--json"]),
    ("dsh prune", ["prune", "--older-than", "1d", "--dry-run", "--json"]),
    ("dsh prune", ["prune", "--larger-than", "1", "--json"]),
    ("dsh sync", ["sync", "push", "{tmp}/share", "--json"]),
    ("dsh db check", ["--db", "{tmp}/broken.db", "db", "check", "--json"]),
    ("dsh db recover", ["--db", "{tmp}/broken.db", "db", "recover", "--json"]),
    ("dsh db pack", ["db", "pack", "--all", "--json"]),
    ("dsh db vacuum", ["db", "vacuum", "--json"]),
    ("dsh db stats", ["db", "stats", "--json"]),
]


@pytest.mark.parametrize(("heading", "words"), COMMANDS, ids=[" ".join(words[:3]) for _, words in COMMANDS])
def test_the_page_names_the_keys_that_are_printed(
    past: History, tmp_path: Path, capsys: pytest.CaptureFixture[str], heading: str, words: list[str]
) -> None:
    past.db.backup(tmp_path / "broken.db")
    damage(tmp_path / "broken.db", "DELETE FROM _event WHERE session = 1 AND seq = 12")
    main([word.format(tmp=tmp_path, samples=SAMPLES) for word in words])
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines != []
    for line in lines:
        kind = "total" if line.get("total") is True else line.get("type") if heading == "dsh db stats" else None
        always, optional = documented(heading if kind is None else f"{heading}, {kind}")
        assert always <= line.keys() <= always | optional
