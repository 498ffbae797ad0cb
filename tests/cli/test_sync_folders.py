"""Folders that `dsh sync` meets: none of its own, with strange names in it, that take nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dsh.query.check import check
from dsh.store.database import Database
from tests.cli.conftest import DSH, ROOT, Run
from tests.cli.test_db_trouble import needs_bwrap
from tests.history import History


def test_a_folder_that_is_none_of_ours(history: History, dsh: Run, tmp_path: Path) -> None:
    history.say("s", "hi")
    assert dsh("export", "--all", "--to", str(tmp_path / "out")).returncode == 0
    done = dsh("sync", "pull", str(tmp_path / "out"))
    assert done.stderr.splitlines()[0] == f"dsh: {tmp_path / 'out'} holds no session that dsh sync could take"
    dsh("sync", "push", str(tmp_path / "share"))
    assert "holds no session" not in dsh("sync", "pull", str(tmp_path / "share")).stderr
    done = dsh("import", str(tmp_path / "share"))
    assert (done.returncode, "dsh sync pull DIR" in done.stderr) == (2, True)


def test_a_session_with_a_name_like_a_hidden_file(history: History, dsh: Run, tmp_path: Path) -> None:
    history.say("../.x", "hi")
    history.say(".x", "hi")
    assert dsh("sync", "push", str(tmp_path / "share")).returncode == 0
    assert dsh("--db", str(tmp_path / "other.db"), "sync", "pull", str(tmp_path / "share")).returncode == 0
    other = Database.open(tmp_path / "other.db", create=False)
    assert other.rows("SELECT id FROM session ORDER BY id") == [("../.x",), (".x",)]
    assert [violation for id_ in ("../.x", ".x") for violation in check(other, id_)] == []
    other.close()


@needs_bwrap
@pytest.mark.parametrize(
    ("options", "says"),
    [(["--size", "4096", "--tmpfs"], "No space left on device"), (["--ro-bind", "{}"], "Read-only file system")],
)
def test_a_stick_that_takes_nothing_ends_it_at_once(
    history: History, tmp_path: Path, options: list[str], says: str
) -> None:
    share = tmp_path / "share"
    share.mkdir()
    for id_ in ("one", "two"):
        history.say(id_, "hi", os.urandom(50_000).hex())
    box = ["bwrap", "--dev-bind", "/", "/", *(each.format(share) for each in options), str(share), "--", *DSH]
    done = subprocess.run([*box, "sync", "push", str(share)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stderr == f"dsh: {share} cannot be written: {says}\n"
