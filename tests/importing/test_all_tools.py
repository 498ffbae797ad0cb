"""What every imported session is for: it is found, shown, counted and gone on with, by the real program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.importing.kit import JSONL, copied
from tests.importing.stores import state, store
from tests.provider import FakeProvider, Recorded, Reply, status, text
from tests.shell.process import Dsh
from tests.strict import refusals


class Case(NamedTuple):
    """A session of a sample store: what finds it, what shows in it, what the model still sees, the tokens it tells."""

    session: str
    words: str
    shown: str
    sent: str
    tokens: int | None  # input, cached or not, and output; None: the tests of the tool's reader count them


CASES = {
    "opencode": Case(
        "ses_dcdeadf39ffeMvCROJDpqUJyZ1", "naïve readme", "bash", "naïve", 120 + 20 + 50 + 150 + 12 + 2 * 107
    ),
    "goose": Case(
        "20261130_1", "哪些文件", "developer__shell", "# Summary", 1200 + 20 + 1300 + 9 + 1400 + 12 + 300 + 5
    ),
    "crush": Case("0b6a5f0e-0001-4000-8000-000000000001", "哪些文件", "README.txt", "# Summary", 0),
    "llm": Case("01m8s2qcxht6zr8nh5nder99gb", "tool:list_dir readme", "list_dir", "README.txt", 120 + 20 + 200 + 12),
    "aider": Case(
        "20261201-145907",
        "greeting heading",
        "greeting",
        "EDIT the greeting",
        726 + 36 + 826 + 65 + 849 + 65 + 871 + 65,
    ),
    "claude": Case("6aaf1794", "echo hello", "echo hello", "run echo hello for me", None),
    "codex": Case("01a23225-fb20", "echo hello", "echo hello", "run echo hello for me", None),
    "gemini": Case("731eb06b", "echo hello", "echo hello", "run echo hello for me", None),
    "pi": Case("01a23225-ff34", "echo hello", "echo hello", "run echo hello for me", None),
}


def _store(tool: str, folder: Path) -> Path:
    """A store of somebody whose folders are there."""
    home = folder / "somebody"
    for project in ("project", "parser"):
        (home / project).mkdir(parents=True)
    if tool not in JSONL:
        return store(tool, folder / "store", str(home))
    place = copied(tool, folder / "store")
    for path in place.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"/home/user", str(home).encode()))
    return place


def _strictly(request: Recorded) -> Reply:
    """An answer of a server that refuses whatever any server does."""
    wrong = refusals(request.raw, ids=())
    return status(400, {"error": {"message": "; ".join(wrong)}}) if wrong else text("Gone on with.")


@pytest.mark.slow
@pytest.mark.parametrize("tool", CASES)
def test_an_imported_session_is_found_shown_counted_and_gone_on_with(tool: str, tmp_path: Path) -> None:
    case = CASES[tool]
    place = _store(tool, tmp_path)
    before = state(place)
    with FakeProvider(_strictly, then="repeat") as fake:
        dsh = Dsh(tmp_path, fake)
        done = dsh("import", tool, str(place))
        assert done.code == 0, done.errors
        assert state(place) == before
        listed = [json.loads(line)["id"] for line in dsh("sessions", "--json", "-n", "50").text.splitlines()]
        (session,) = [each for each in listed if each.startswith(f"{tool}-{case.session}")]
        found = dsh("search", "-l", "--source", tool, *case.words.split())
        assert session in found.text.splitlines(), found
        assert case.shown in dsh("show", session).text
        spent = json.loads(dsh("usage", "--json", "--session", session).text.splitlines()[-1])
        counted = (spent["inputTokens"], spent["cacheReadTokens"], spent["cacheWriteTokens"], spent["outputTokens"])
        assert sum(counted) == case.tokens or (case.tokens is None and sum(counted) > 0), spent
        ran = dsh("run", "--session", session, "and now go on")
        assert (ran.code, ran.text) == (0, "Gone on with.\n"), ran.errors
        assert case.sent in json.dumps(fake.requests[-1].body, ensure_ascii=False)
        again = dsh("import", tool, str(place))
        assert (again.code, dsh("db", "check").code) == (0, 0), again.errors
        assert len(dsh("sessions", "--json", "-n", "50").text.splitlines()) == len(listed)
