"""Whose code runs: nothing of a project that was not trusted, nothing that others may write. The real program."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.shell.process import Dsh

pytestmark = pytest.mark.slow


class Place:
    """A project whose every module leaves a mark when it is imported."""

    def __init__(self, tmp_path: Path) -> None:
        self.dsh = Dsh(tmp_path)
        self.marks = tmp_path / "marks"
        self.marks.mkdir()
        self._answers = tmp_path / "answers.jsonl"
        self._answers.write_text('{"text": "hello"}\n')

    def body(self, mark: str) -> str:
        return f"import pathlib\npathlib.Path({str(self.marks / mark)!r}).touch()\ndef setup(ctx): pass\n"

    def plugin(self, root: Path, name: str = "mine") -> Path:
        folder = root / ".dsh" / "plugins"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.py"
        path.write_text(self.body(name))
        return path

    def run(self, folder: Path | None = None, **env: str | None) -> str:
        """What a run in a folder says on standard error."""
        done = self.dsh("run", "hi", "--mock", str(self._answers), cwd=folder, env=env)
        assert (done.code, done.text) == (0, "hello\n"), done.errors
        return done.errors

    def ran(self) -> list[str]:
        """What was imported since the last question."""
        marks = sorted(self.marks.iterdir())
        for mark in marks:
            mark.unlink()
        return [mark.name for mark in marks]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_nothing_of_the_current_folder_is_imported(place: Place) -> None:
    """Also where `python -m dsh` would take modules of the folder first."""
    cwd = place.dsh.cwd
    for name in ("click", "trio", "apsw", "httpx", "tomllib", "shlex", "zoneinfo", "installed_one"):
        (cwd / f"{name}.py").write_text(place.body(name))
    info = cwd / "installed_one-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: installed_one\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dsh.plugins]\none = installed_one\n")
    place.plugin(cwd)
    assert "its folder is not trusted: mine" in place.run()
    assert place.dsh("plugins").code == 0
    assert place.ran() == []
    begun = place.dsh("run", "hi", "--detach", "--mock", str(place._answers))
    assert begun.code == 0, begun.errors
    assert place.dsh("wait", "last").code == 0
    assert place.ran() == []


def test_trust_is_for_the_real_folder(place: Place, tmp_path: Path) -> None:
    real, trusted = tmp_path / "real", tmp_path / "trusted"
    for root in (real, trusted):
        place.plugin(root)
        (root / ".git").mkdir()
    (real / "src").mkdir()
    (trusted / "link").symlink_to(real / "src")  # below a trusted folder by its name only
    assert place.dsh("plugins", "trust", str(trusted)).code == 0
    for folder in (trusted / "link", real):
        assert f"dsh plugins trust {real}" in place.run(folder)
        done = place.dsh("run", "hi", "--cwd", str(folder), "--mock", str(place._answers))
        assert f"dsh plugins trust {real}" in done.errors
    assert place.ran() == []
    assert place.dsh("plugins", "trust", str(trusted / "link")).code == 0
    assert place.run(real) == ""
    assert place.ran() == ["mine"]


def test_a_worktree_and_a_copy_are_projects_of_their_own(place: Place, tmp_path: Path) -> None:
    main, tree = tmp_path / "main", tmp_path / "main" / "tree"
    place.plugin(main)
    place.plugin(tree)
    (main / ".git").mkdir()
    (tree / ".git").write_text("gitdir: ../.git/worktrees/tree\n")
    assert place.dsh("plugins", "trust", str(main)).code == 0
    assert "not trusted" in place.run(tree)
    shutil.copytree(main, tmp_path / "copy")
    assert "not trusted" in place.run(tmp_path / "copy")
    assert place.ran() == []


def test_a_home_that_is_a_project(place: Place) -> None:
    home = place.dsh.home
    (home / ".git").mkdir()
    place.plugin(home)
    deep = home / "src"
    deep.mkdir()
    assert place.run(deep) == ""  # the user's own folder
    assert place.ran() == ["mine"]
    assert "not trusted" in place.run(deep, DSH_HOME=str(home / "other"))
    assert place.ran() == []


def test_a_trusted_project_brings_only_what_is_in_it(place: Place, tmp_path: Path) -> None:
    cwd, outside = place.dsh.cwd, place.plugin(tmp_path / "elsewhere", "outside").parent
    assert place.dsh("plugins", "trust").code == 0
    folder = cwd / ".dsh" / "plugins"
    folder.parent.mkdir()
    folder.symlink_to(outside)
    assert f"it lies outside of its project: {outside}/outside.py" in place.run()
    folder.unlink()
    place.plugin(cwd)
    (folder / "linked.py").symlink_to(outside / "outside.py")
    (folder / "inner.py").symlink_to(folder / "mine.py")
    assert place.run().count("it lies outside of its project") == 1
    assert place.ran() == ["mine"]


@pytest.mark.parametrize("origin", ["user", "project"])
def test_what_everybody_may_write_is_not_taken(place: Place, origin: str) -> None:
    root = place.dsh.home if origin == "user" else place.dsh.cwd
    path = place.plugin(root)
    package = path.parent / "wide"
    package.mkdir()
    (package / "__init__.py").write_text(place.body("wide"))
    assert place.dsh("plugins", "trust").code == 0
    for loose, others in (
        (path, ["wide"]),
        (package, ["mine"]),
        (package / "__init__.py", ["mine"]),
        (path.parent, []),
    ):
        mode = loose.stat().st_mode
        loose.chmod(mode | 0o002)
        assert f"everybody may write {loose} (chmod o-w)" in place.run()
        assert place.ran() == others
        loose.chmod(mode)
    assert place.run() == ""
    assert place.ran() == ["mine", "wide"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody else")
def test_root_runs_what_others_own(place: Place) -> None:
    os.chown(place.plugin(place.dsh.home), 1234, 1234)
    assert place.run() == ""


def test_what_a_strange_name_shows(place: Place, tmp_path: Path) -> None:
    odd: Any = tmp_path / "a b\n\x1b[31m$(x)"
    place.plugin(odd)
    said = place.run(odd)
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert "dsh plugins trust '" in said
