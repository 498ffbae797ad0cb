"""A store that is imported again and again while it is written: what was stored stays, and the rest is added to it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from tests.importing.kit import seen, sound
from tests.importing.stores import changed, imported, rows, store

Cut = Callable[[Path], None]


def _without(file: str, *statements: str) -> Cut:
    return lambda place: changed(place / file, *statements)


def _lines(count: int) -> Cut:
    def cut(place: Path) -> None:
        history = place / ".aider.chat.history.md"
        history.write_text("".join(history.read_text().splitlines(keepends=True)[:count]))

    return cut


def _cuts(tool: str, place: Path) -> list[Cut]:
    """What undoes the end of a store: more and more of it is left, as its tool would have written it."""
    if tool == "aider":
        lines = (place / ".aider.chat.history.md").read_text().splitlines()
        # What a person said is written at once.
        return [_lines(at) for at in range(1, len(lines)) if not lines[at].startswith("#### #")]
    if tool == "llm":
        db = apsw.Connection(str(place / "logs.db"))
        turns = [turn for (turn,) in db.execute("SELECT id FROM turns ORDER BY datetime_utc")]
        db.close()
        return [
            _without("logs.db", f"DELETE FROM turns WHERE id >= '{turn}'", f"DELETE FROM threads WHERE id >= '{turn}'")
            for turn in turns
        ]
    file, table, order = {
        "opencode": ("opencode.db", "message", "time_created"),
        "goose": ("sessions.db", "messages", "id"),
        "crush": (".crush/crush.db", "messages", "rowid"),
    }[tool]
    db = apsw.Connection(str(place / file))
    last = [at for (at,) in db.execute(f"SELECT DISTINCT {order} FROM {table} ORDER BY {order}")]
    db.close()
    # A compaction of goose's is one transaction.
    return [_without(file, f"DELETE FROM {table} WHERE {order} > {at}") for at in last if (tool, at) != ("goose", 9)]


def _fresh(tool: str, place: Path) -> None:
    """Move a store to the present, in which an answer may not be complete."""
    now = int(time.time())
    if tool == "goose":
        changed(
            place / "sessions.db",
            f"UPDATE messages SET created_timestamp = created_timestamp - 1796032863 + {now}",
            "UPDATE sessions SET updated_at = datetime('now')",
        )


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["opencode", "goose", "crush", "llm", "aider"])
def test_no_import_in_between_changes_what_is_there_in_the_end(tool: str, tmp_path: Path) -> None:
    whole = store(tool, tmp_path / "whole")
    _fresh(tool, whole)
    if tool == "opencode":  # so that it is one file, which can be copied
        changed(whole / "opencode.db", "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA journal_mode = delete")
    place, db = tmp_path / "store", tmp_path / "dsh.db"
    for cut in [*_cuts(tool, whole), None]:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(whole, place)
        if cut is not None:
            cut(place)
        report = imported(tool, place, db)
        assert (report.moved, report.failed, report.skipped) == ([], [], 0), cut
    sound(db)
    at_once = tmp_path / "at-once.db"
    imported(tool, place, at_once)
    sessions = [session for (session,) in rows(at_once, "SELECT id FROM session ORDER BY id")]
    assert rows(db, "SELECT id FROM session ORDER BY id") == [(session,) for session in sessions]
    for session in sessions:
        assert seen(db, session) == seen(at_once, session)
        spent = "SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage WHERE session_id = ?"
        assert rows(db, spent, session) == rows(at_once, spent, session)
