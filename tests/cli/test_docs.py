"""docs/cli.md and docs/schema.md are made from the program, and a stale one is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dsh.cli.group import COMMANDS
from dsh.kernel.config import SETTINGS
from scripts.lib import docs


def test_the_files_hold_everything() -> None:
    text = docs.cli()
    assert text == docs.cli()
    assert all(f"## dsh {name}\n" in text for name in COMMANDS)
    assert "dsh config set [OPTIONS] KEY VALUE" in text
    assert "| 129, 130, 143 |" in text
    schema = docs.schema()
    assert all(f"| `{key}` |" in schema for key in SETTINGS)
    assert "### session\n" in schema
    assert "| `SEQ_MISMATCH` |" in schema
    assert "`_event`" not in schema


def test_check_names_stale_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(docs.ROOT / "docs", tmp_path / "docs")
    (tmp_path / "dsh").mkdir()
    shutil.copy(docs.ROOT / "dsh" / "schema.sql", tmp_path / "dsh")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    assert capsys.readouterr().out == ""
    (tmp_path / "docs" / "cli.md").write_text("old")
    (tmp_path / "docs" / "schema.md").unlink()
    assert docs.main(["--check"]) == 1
    assert capsys.readouterr().out == "docs/cli.md\ndocs/schema.md\n"
    assert (tmp_path / "docs" / "cli.md").read_text() == "old"
    assert docs.main(["--chek"]) == 2
