"""An imported session is a session like any other: it is resumed, forked and searched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.importing.kit import at_home, copied, ends, rest, seen, sound, taken
from tests.importing.stores import rows
from tests.provider import FakeProvider, text
from tests.shell.process import Dsh

pytestmark = pytest.mark.slow

SESSIONS = {
    "claude": "claude-6aaf1794-44f7-4a6f-99b0-fb2b6fe59d4e",
    "codex": "codex-01a23225-fb20-75c0-9d95-409519dad3ff",
    "gemini": "gemini-731eb06b-04ca-4482-84f9-386feb5515d3",
    "pi": "pi-01a23225-ff34-7614-bfed-10c951aa67f2",
}


@pytest.mark.parametrize("tool", SESSIONS)
def test_an_imported_session_goes_on_with_another_model(tool: str, tmp_path: Path) -> None:
    place, session = at_home(copied(tool, tmp_path), tmp_path / "project"), SESSIONS[tool]
    rest(place)
    with FakeProvider() as fake:
        dsh = Dsh(tmp_path, fake)
        assert dsh("import", tool, str(place)).code == 0
        before = seen(dsh.db, session)
        fake.script(text("Once more."))
        done = dsh("run", "-r", session, "what did it print?")
        assert done.code == 0, done.errors
        sent = fake.requests[-1].messages
        assert sent[-1]["content"] == "what did it print?"
        assert "run echo hello for me" in json.dumps(sent)
        assert seen(dsh.db, session) == [*before, "user what did it print?", "assistant Once more."]
        sound(dsh.db)
        assert taken(tool, place, dsh.db).moved == []


def test_a_turn_that_was_cut_off_is_closed_when_the_session_goes_on(tmp_path: Path) -> None:
    place, session = at_home(copied("claude", tmp_path), tmp_path / "project"), SESSIONS["claude"]
    [path] = place.rglob(f"{session.removeprefix('claude-')}.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(lines) if b'"tool_use_id":"toolu_00803"' in line)
    path.write_bytes(b"".join(lines[:cut]))
    rest(path)
    with FakeProvider() as fake:
        dsh = Dsh(tmp_path, fake)
        assert dsh("import", "claude", str(place)).code == 0
        assert ends(dsh.db, session) == ["completed", "interrupted"]
        fake.script(text("Fine."))
        assert dsh("run", "-r", session, "go on").code == 0
        assert seen(dsh.db, session)[-2:] == ["user go on", "assistant Fine."]
        path.write_bytes(b"".join(lines))
        assert taken("claude", place, dsh.db).moved == [(session, f"{session}-2")]
        assert rows(dsh.db, "SELECT parent_session FROM fork WHERE id = ?", f"{session}-2") == [(session,)]
