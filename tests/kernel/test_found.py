"""Finding plugins: packages, settings, folders, trust, names, the cache."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsh.core.lossless import loads
from dsh.kernel import found
from dsh.kernel.config import Config, check, known
from dsh.kernel.host import Plugin
from dsh.store import writes
from dsh.store.database import Database

LONG_AGO = 1_700_000_000


@pytest.fixture
def db() -> Iterator[Database]:
    made = Database.open(Path(os.environ["DSH_DB"]))
    yield made
    made.close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that alone is on the path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


def config(**settings: Any) -> Config:
    values = {key.replace("__", "."): value for key, value in settings.items()}
    return Config({key: (check(known(key), value, "test"), "flag") for key, value in values.items()}, {})


def package(site: Path, name: str, version: str = "1.0", points: str = "", *, kind: str = "dist-info") -> Path:
    info = site / f"{name}-{version}.{kind}"
    info.mkdir(parents=True)
    facts = info / ("METADATA" if kind == "dist-info" else "PKG-INFO")
    facts.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: x\n\nLong: text\n")
    if points:
        (info / "entry_points.txt").write_text(points)
    return info


def settle(*folders: Path) -> None:
    for folder in folders:
        os.utime(folder, (LONG_AGO, LONG_AGO))


ONE = "[console_scripts]\nx = y:z\n\n[dsh.plugins]\n# ours\nweather = weather_plugin\ntide=tides.plugin [extra]\n"


def test_packages_are_read_as_importlib_metadata_reads_them(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    package(site, "Some.Weather", "2.1", ONE)
    package(site, "nothing")
    package(site, "shadow", "3")
    package(site, "old_style", "4", "[dsh.plugins]\nold = old.plugin\n", kind="egg-info")
    package(site, "other", "5", "[dsh.pluginsx]\nno = no\n[gui]\ndsh.plugins = no\n")
    package(second, "Shadow", "2", "[dsh.plugins]\nhidden = hidden\n")
    package(second, "late", "1", "[dsh.plugins]\nlate = late_plugin\n")
    (second / "broken-1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(site), str(second), str(tmp_path / "missing")])
    importlib.invalidate_caches()
    ours = {(o.name, o.module, o.package, o.version) for o in found.read_offers(list(sys.path))}
    theirs = set()
    for point in importlib.metadata.entry_points(group="dsh.plugins"):
        assert point.dist is not None
        theirs.add((point.name, point.module, point.dist.name, point.dist.version))
    assert ours == theirs
    assert {name for name, *_ in ours} == {"weather", "tide", "old", "late"}


def test_the_cache_is_believed_until_a_folder_changes(
    db: Database, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(site, "one", points="[dsh.plugins]\none = one\n")
    settle(site)
    assert [o.name for o in found.installed(db)] == ["one"]
    reads: list[int] = []
    real = found.read_offers

    def counted(path: list[str]) -> list[found.Offer]:
        reads.append(1)
        return real(path)

    monkeypatch.setattr(found, "read_offers", counted)
    assert [o.name for o in found.installed(db)] == ["one"]
    assert reads == []
    package(site, "two", points="[dsh.plugins]\ntwo = two\n")
    assert [o.name for o in found.installed(db)] == ["one", "two"]
    assert reads == [1]


def test_a_folder_that_may_still_change_is_not_kept(db: Database, site: Path) -> None:
    now = time.time()
    os.utime(site, (now, now))
    assert found.installed(db) == []
    assert db.rows("SELECT key FROM cache") == []
    settle(site)
    found.installed(db)
    ((key,),) = db.rows("SELECT key FROM cache")
    assert sys.prefix in key  # of another interpreter something else is kept


@pytest.mark.parametrize("row", [[], {}, "x", 5, None, {"stamp": 1, "files": [], "offers": [[1]]}])
def test_a_damaged_cache_is_no_cache(db: Database, site: Path, row: Any) -> None:
    package(site, "a", points=ONE)
    settle(site)
    wanted = found.installed(db)
    assert wanted
    ((key, kept),) = db.rows("SELECT key, value FROM cache")
    writes.set_cache(db, key, row)
    assert found.installed(db) == wanted
    writes.set_cache(db, key, {**loads(kept), "offers": [["a", 1, "b", "c", "d"], ["a"]]})
    assert found.installed(db) == wanted


def test_the_current_folder_brings_nothing_along(db: Database, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(site, "one", points="[dsh.plugins]\none = one\n")
    monkeypatch.chdir(site)
    monkeypatch.setattr(sys, "path", ["", str(site)])
    assert found.installed(db) == []


def test_order_names_and_switches(db: Database, site: Path, tmp_path: Path) -> None:
    package(site, "pack", "7", "[dsh.plugins]\nbravo = bravo_module\nalpha = alpha_module\n")
    home, project = tmp_path / "home" / ".dsh" / "plugins", tmp_path / "project"
    folder = project / ".dsh" / "plugins"
    for each in (home, folder):
        each.mkdir(parents=True)
    (home / "alpha.py").touch()
    (home / "user.py").touch()
    (home / "off.py").touch()
    (home / "_hidden.py").touch()
    (home / "notes.txt").touch()
    (home / "data").mkdir()
    (folder / "wide").mkdir()
    (folder / "wide" / "__init__.py").touch()
    (folder / "todo.py").touch()
    (project / ".git").touch()
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    writes.trust_folder(db, str(project))
    settings = config(plugins=["named", "bravo_module"], plugins__disabled=["off"])
    got = found.find(db, settings, str(deep), [Plugin("todo", "built-in", "dsh.capabilities.todo")])
    assert [(p.name, p.origin, p.state) for p in got] == [
        ("bravo", "installed", "found"),
        ("alpha", "installed", "found"),
        ("named", "setting", "found"),
        ("bravo_module", "setting", "failed"),
        ("alpha", "user", "failed"),
        ("off", "user", "off"),
        ("user", "user", "found"),
        ("todo", "project", "failed"),
        ("wide", "project", "found"),
    ]
    assert got[0].where == "pack"
    assert got[0].version == "7"
    reasons = [p.reason for p in got if p.state == "failed"]
    assert reasons == [
        "its name is taken by the installed plugin bravo (pack 7)",
        "its name is taken by the installed plugin alpha (pack 7)",
        "its name is taken by the built-in plugin todo",
    ]
    assert found.find(db, config(plugins__enabled=False, plugins=["named"]), str(deep)) == []


def test_a_project_is_trusted_once_by_its_real_path(db: Database, site: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    folder = project / ".dsh" / "plugins"
    folder.mkdir(parents=True)
    (folder / "mine.py").touch()
    link = tmp_path / "link"
    link.symlink_to(project)

    def state() -> str:
        ((plugin,)) = found.find(db, config(), str(link))
        return plugin.state

    assert state() == "untrusted"
    writes.trust_folder(db, str(link))
    assert state() == "untrusted"
    writes.trust_folder(db, os.path.realpath(link))
    assert state() == "found"
    writes.distrust_folder(db, os.path.realpath(link))
    assert state() == "untrusted"


def test_what_belongs_to_somebody_else_is_not_taken(
    db: Database, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "home" / ".dsh" / "plugins"
    folder.mkdir(parents=True)
    (folder / "mine.py").touch()
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    ((plugin,)) = found.find(db, config(), None)
    if owner == 0:
        assert plugin.state == "found"  # root's is everybody's
    else:
        assert (plugin.state, plugin.reason) == ("failed", f"{folder / 'mine.py'} belongs to another user")
    real = os.stat

    def given_away(path: Any, **more: Any) -> os.stat_result:
        facts = real(path, **more)
        return os.stat_result((*facts[:4], 1234, *facts[5:])) if str(path) == str(folder) else facts

    monkeypatch.setattr(os, "stat", given_away)
    ((plugin,)) = found.find(db, config(), None)
    assert plugin.state == "failed"
    assert plugin.reason.endswith(" belongs to another user")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    ((plugin,)) = found.find(db, config(), None)
    assert plugin.state == "found"


def test_broken_packages_break_nothing(db: Database, site: Path) -> None:
    """What cannot be read offers nothing; what is odd is passed on and fails by name when it is started."""
    package(site, "good", points="[dsh.plugins]\ngood = good_module\n")
    (site / "folder-1.dist-info" / "entry_points.txt").mkdir(parents=True)
    (site / "file-1.dist-info").write_text("[dsh.plugins]\nx = y\n")
    (site / "loop-1.dist-info").symlink_to(site / "loop-1.dist-info")
    bare = site / "bare-1.dist-info"
    bare.mkdir()
    (bare / "entry_points.txt").write_bytes(
        b"\xff\x00[dsh.plugins]\n[dsh.plugins]\n = nameless\nempty =\nhalf = bare_half\nnot a line\n"
    )
    assert [tuple(o)[:4] for o in found.installed(db)] == [
        ("half", "bare_half", "?", "?"),
        ("good", "good_module", "good", "1.0"),
    ]


def test_an_upgraded_package_is_seen_at_once(db: Database, site: Path) -> None:
    info = package(site, "one", points="[dsh.plugins]\none = one\n")
    settle(site, info)
    assert [o.module for o in found.installed(db)] == ["one"]
    (info / "entry_points.txt").write_text("[dsh.plugins]\none = two\nmore = more\n")  # in place, as some tools do
    assert [o.module for o in found.installed(db)] == ["two", "more"]
    settle(site, info)
    info.rename(site / "one-2.0.dist-info")
    (site / "one-2.0.dist-info" / "METADATA").write_text("Name: one\nVersion: 2.0\n")
    assert {o.version for o in found.installed(db)} == {"2.0"}


def test_the_users_folder_is_not_a_projects(
    db: Database, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "home" / ".dsh" / "plugins"
    folder.mkdir(parents=True)
    (folder / "mine.py").touch()
    assert [(p.origin, p.state) for p in found.find(db, config(), str(tmp_path / "home"))] == [("user", "found")]
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "elsewhere"))
    assert [(p.origin, p.state) for p in found.find(db, config(), str(tmp_path / "home"))] == [("project", "untrusted")]
