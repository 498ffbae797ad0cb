"""Finding plugins: installed packages, the setting `plugins`, the user's folder, the project's folder, in this order.

Looked at by every run, so it costs a few `stat` calls when nothing has changed: what the installed packages offer is
kept in the view `cache` and believed while the folders of `sys.path` are what they were, and the files that offer
something, which some tools write in place. On a miss the folders are read directly, an eighth of the time that
importlib.metadata takes to be imported and to do the same.

A package offers plugins in the entry-point group `dsh.plugins`: `NAME = "module"`. A plugin folder holds modules
(`NAME.py`) and packages (`NAME/__init__.py`). The project's folder, `.dsh/plugins` in the project's root, is code that
comes with a repository, so it is taken only after the person trusted that root, by its real path. What others may write
is not taken at all.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from dsh.core.errors import StoreError
from dsh.core.lossless import loads
from dsh.kernel.config import Config, home
from dsh.kernel.host import Plugin
from dsh.store import named, writes
from dsh.store.database import Database

GROUP = "dsh.plugins"
_SETTLED_S = 1.0  # a folder younger than this may change again within the same tick of its clock


class Offer(NamedTuple):
    """An entry point of an installed package."""

    name: str
    module: str
    package: str
    version: str
    file: str  # the entry_points.txt that says so


def find(db: Database, config: Config, folder: str | None, started: Iterable[Plugin] = ()) -> list[Plugin]:
    """Every plugin that this run may start, in order; `folder` is where the session works, `started` what runs already.

    Those of a project that is not trusted have the state `untrusted`, those switched off `off`, and one whose name or
    module an earlier one has is `failed`.
    """
    if not config["plugins.enabled"]:
        return []
    plugins = [Plugin(o.name, "installed", o.module, o.package, o.version) for o in installed(db)]
    plugins += [Plugin(module, "setting", module) for module in config["plugins"]]
    own = user_folder()
    plugins += _in_folder(own, "user")
    if folder is not None:
        plugins += _of_project(db, project_root(os.path.realpath(folder)), own)
    taken = {plugin.name: plugin for plugin in started}
    for plugin in plugins:
        if plugin.name in config["plugins.disabled"]:
            plugin.state = "off"
        elif plugin.state == "found" and (unsafe := _unsafe(plugin)):
            plugin.state, plugin.reason = "failed", unsafe
        elif plugin.state == "found":
            other = taken.get(plugin.name) or taken.get(plugin.module)
            if other is not None:
                plugin.state, plugin.reason = "failed", f"its name is taken by {describe(other)}"
            else:
                taken[plugin.name] = taken[plugin.module] = plugin
    return plugins


def _of_project(db: Database, root: str, own: str) -> list[Plugin]:
    """The plugins of a project, `root` being a real path. What a link in it leads to is not the project's."""
    folder = project_folder(root)
    plugins = _in_folder(folder, "project")
    if not plugins or os.path.realpath(folder) == os.path.realpath(own):
        return []
    trusted = is_trusted(db, root)
    for plugin in plugins:
        if not trusted:
            from shlex import quote

            plugin.state, plugin.reason = "untrusted", f"dsh plugins trust {quote(root)}"
        elif not (real := os.path.realpath(plugin.where)).startswith(root.rstrip("/") + "/"):
            plugin.state, plugin.reason = "failed", f"it lies outside of its project: {real}"
    return plugins


def _unsafe(plugin: Plugin) -> str | None:
    """Why a file of a plugin folder might be somebody else's work: others may write it, or its folder, or it is
    theirs. Root's are everybody's, and root may run what others own, as in a container."""
    if plugin.origin not in ("user", "project"):
        return None
    above = os.path.dirname(plugin.where)
    places = [plugin.where, above]
    if plugin.where.endswith("/__init__.py"):
        places.append(os.path.dirname(above))
    me = os.geteuid()
    for place in places:
        try:
            facts = os.stat(place)
        except OSError as error:  # it was there a moment ago
            return f"{place}: {error.strerror}"
        if facts.st_mode & stat.S_IWOTH:
            return f"everybody may write {place} (chmod o-w)"
        if me not in (0, facts.st_uid) and facts.st_uid != 0:
            return f"{place} belongs to another user"
    return None


def describe(plugin: Plugin) -> str:
    """Where a plugin comes from, in words."""
    where = " ".join(filter(None, (plugin.where, plugin.version)))
    return f"the {plugin.origin} plugin {plugin.name}" + (f" ({where})" if where else "")


# ---------------------------------------------------------------------------------------------------------- folders


def user_folder() -> str:
    return str(home() / "plugins")


def project_folder(root: str) -> str:
    return os.path.join(root, ".dsh", "plugins")


def project_root(folder: str) -> str:
    """The nearest folder upwards with an entry `.git`, else the folder itself (as SK-22)."""
    at = folder
    while not os.path.lexists(os.path.join(at, ".git")):
        above = os.path.dirname(at)
        if above == at:
            return folder
        at = above
    return at


def is_trusted(db: Database, root: str) -> bool:
    real = os.path.realpath(root)
    return any(folder == real for folder, _ in named.rows(db, "trusted_folders"))


def _in_folder(folder: str, origin: str) -> list[Plugin]:
    """The modules and packages of a plugin folder, by name; one that cannot be read has none."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = []
    for entry in names:
        name, dot, suffix = entry.partition(".")
        path = os.path.join(folder, entry)
        if not dot:
            path = os.path.join(path, "__init__.py")
        elif suffix != "py":
            continue
        if name.isidentifier() and not name.startswith("_") and os.path.isfile(path):
            found.append(Plugin(name, origin, name, path))
    return found


# ----------------------------------------------------------------------------------------------- installed packages


def installed(db: Database) -> list[Offer]:
    """What the installed packages offer, from the cache or read anew."""
    path = _import_path()
    stamp = _stamps(path)
    key = f"plugins {sys.prefix} {sys.hexversion:x}"
    row = named.row(db, "cached", key=key)
    kept = _kept(row[0], stamp) if row is not None else None
    if kept is not None:
        return kept
    offers = read_offers(path)
    newest: int = max((mtime for _, mtime, _ in stamp), default=0)
    if newest < time.time_ns() - _SETTLED_S * 1e9:
        with suppress(StoreError):  # it is only a cache: a database that cannot be written will say so itself
            files = _stamps(dict.fromkeys(offer.file for offer in offers))
            writes.set_cache(db, key, {"stamp": stamp, "files": files, "offers": [list(offer) for offer in offers]})
    return offers


def _kept(text: str, stamp: list[list[Any]]) -> list[Offer] | None:
    """The cached offers, if they are still right; a row of any other shape is none."""
    try:
        kept: Any = loads(text)
        if kept["stamp"] != stamp or not _unchanged(kept["files"]):
            return None
        offers = [Offer(*offer) for offer in kept["offers"]]
    except (ValueError, TypeError, KeyError):
        return None
    return offers if all(isinstance(part, str) for offer in offers for part in offer) else None


def _import_path() -> list[str]:
    """The folders where packages are installed. The current folder is none, also where `python -m` puts it first: a
    repository must not bring plugins along unasked."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    return [folder for folder in sys.path if folder not in ("", here)]


def _unchanged(files: Any) -> bool:
    return isinstance(files, list) and files == _stamps(file for file, *_ in files)


def _stamps(paths: Iterable[str]) -> list[list[Any]]:
    return [list(_stamp(path)) for path in paths]


def _stamp(folder: str) -> tuple[str, int, int]:
    try:
        found = os.stat(folder)
    except OSError:
        return folder, 0, 0
    return folder, found.st_mtime_ns, found.st_ino


def read_offers(path: list[str]) -> list[Offer]:
    """The entry points of the group, as importlib.metadata finds them: of packages found twice the first counts."""
    seen: set[str] = set()
    offers: list[Offer] = []
    for folder in path:
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in entries:
            stem, _, kind = entry.rpartition(".")
            if kind not in ("dist-info", "egg-info"):
                continue
            package, _, _ = stem.partition("-")
            normal = package.lower().replace("-", "_").replace(".", "_")
            if normal not in seen:
                seen.add(normal)
                offers += _offers_of(os.path.join(folder, entry))
    return offers


def _offers_of(info: str) -> list[Offer]:
    file = os.path.join(info, "entry_points.txt")
    text = _read(file)
    if GROUP not in text:
        return []
    facts = _read(os.path.join(info, "METADATA")) or _read(os.path.join(info, "PKG-INFO"))
    head = dict(line.split(": ", 1) for line in facts.partition("\n\n")[0].splitlines() if ": " in line)
    offers, section = [], ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif section == GROUP and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            module = value.partition("[")[0].strip()
            if name.strip() and module:
                offers.append(Offer(name.strip(), module, head.get("Name", "?"), head.get("Version", "?"), file))
    return offers


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
