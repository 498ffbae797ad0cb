"""A fixed history of real text: the modules of Python's library, this project's specification, short conversations.

Each module and each page is a session in which a person asks about it, a tool reads it piece by piece, and the model
says what is there, in the module's own words. Nothing depends on the machine but the version of Python.
"""

from __future__ import annotations

import ast
import sysconfig
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsh.store import writes
from tests.history import History, call, text

ROOT = Path(__file__).resolve().parent.parent.parent
_DAY = 86_400_000
_FOLDERS = (
    "",
    "collections",
    "concurrent/futures",
    "email",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "urllib",
    "xml/etree",
    "zipfile",
)
_PIECES = 60  # of one module

Said = list[tuple[str, str]]  # who (user, assistant, read) and what


def build(history: History) -> int:
    """Fill a database; the number of sessions."""
    sessions = dict(_all())
    with history.db.transaction():
        for number, (id_, said) in enumerate(sessions.items()):
            history.clock = 1_760_000_000_000 + number * _DAY
            history.session(id_, cwd=f"/home/me/{id_.partition('-')[0]}")
            _write(history, id_, said)
    writes.refresh_search(history.db)
    return len(sessions)


def _write(history: History, id_: str, said: Said) -> None:
    turn = 0
    asked = ""
    blocks: list[dict[str, Any]] = []
    results: dict[str, str] = {}
    for who, what in [*said, ("user", "")]:
        if who == "user":
            if asked:
                turn += 1
                history.turn(id_, turn, asked, *blocks, results=results)
            asked, blocks, results = what, [], {}
        elif who == "assistant":
            blocks.append(text(what))
        else:
            arguments, _, result = what.partition("\n")
            key = f"c{turn}-{len(blocks)}"
            blocks.append(call(key, "read", arguments))
            results[key] = result


def _all() -> Iterator[tuple[str, Said]]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for folder in _FOLDERS:
        for path in sorted((library / folder).glob("*.py")):
            # A module that has become a package keeps its name.
            name = path.relative_to(library).with_suffix("").as_posix().removesuffix("/__init__")
            said = _module(path, name)
            if said:
                yield f"py-{name}", said
    for path in sorted((ROOT / "docs" / "spec").glob("*.md")):
        yield f"spec-{path.stem}", _page(path)
    with (Path(__file__).parent / "conversations.toml").open("rb") as file:
        for id_, made in tomllib.load(file).items():
            yield id_, _conversation(made["said"])


def _module(path: Path, name: str) -> Said:
    if path.name.startswith("__main__") or name in ("this", "antigravity"):
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(path.read_text("utf-8", "replace"))
    about = ast.get_docstring(tree) or ""
    found = [
        (node, ast.get_docstring(node)) for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]
    documented = [(node.name, told) for node, told in found if told][:_PIECES]
    if len(about) + len(documented) < 20:
        return []
    shown = name.replace("/", ".")
    said: Said = [("user", f"What is in Lib/{name}.py?")]
    said += [("read", f"Lib/{name}.py {piece}\n{piece}: {told}") for piece, told in documented]
    said += [("user", "Sum it up."), ("assistant", f"{shown}: {about or ', '.join(piece for piece, _ in documented)}")]
    return said


def _page(path: Path) -> Said:
    title, *sections = path.read_text("utf-8").split("\n## ")
    said: Said = [("user", f"Which rules are there for {path.stem}?"), ("assistant", title)]
    for section in sections:
        said += [("user", f"And {section.partition(chr(10))[0]}?"), ("assistant", section)]
    return said


def _conversation(lines: list[str]) -> Said:
    said: Said = []
    asks = True
    for line in lines:
        if line.startswith("$ "):
            said.append(("read", line[2:]))
        elif line.startswith("> "):
            said[-1] = ("read", f"{said[-1][1]}\n{line[2:]}")
        else:
            said.append(("user" if asks else "assistant", line))
            asks = not asks
    return said
