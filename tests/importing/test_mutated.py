"""Real stores with random damage: an import of them ends, its logs are sound, and the next one adds nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsh.query import check
from dsh.store.database import Database
from tests.importing.kit import JSONL, copied
from tests.importing.stores import imported, store, tree

JUNK: list[Any] = [
    None, True, 0, -1, 7, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 1e300, 0.5, "", " ", "x", "\0", "\ud83d", "{", "[1",
    "null", "2026-13-01", "../../etc", "a" * 5000, [], [[]], [None], {}, {"type": "text"}, {"a": {"a": {"a": []}}},
]  # fmt: skip
RAW = [
    *[each for each in JUNK if not isinstance(each, str | bool | list | dict)],
    "",
    "x",
    "[",
    "{}",
    b"\xff\xfe",
    b"\0",
]

# A kind of damage, and numbers that choose where it is done.
Damage = tuple[str, int, int, int]
DAMAGE = st.lists(
    st.tuples(st.sampled_from(["value", "json", "cut", "drop", "bytes"]), *[st.integers(0, 10**6)] * 3),
    min_size=1,
    max_size=6,
)


def _spoilt(value: Any, where: int, what: int, *, drop: bool) -> Any:
    """A JSON value in which one place, of all there are, is another or gone."""
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        inner = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for key, below in list(inner):
            places.append((each, key))
            waiting.append(below)
    if not places:
        return JUNK[what % len(JUNK)]
    holder, key = places[where % len(places)]
    if drop:
        del holder[key]
    else:
        holder[key] = JUNK[what % len(JUNK)]
    return value


def _spoil_text(text: str, kind: str, where: int, what: int) -> str | bytes:
    if kind == "cut":
        return text[: where % (len(text) + 1)]
    try:
        return json.dumps(_spoilt(json.loads(text), where, what, drop=kind == "drop"))
    except ValueError:
        return text[: where % (len(text) + 1)] + text[what % (len(text) + 1) :]


def _spoil_database(path: Path, damage: list[Damage]) -> None:
    db = apsw.Connection(str(path))
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
    bindings: tuple[Any, ...]
    for kind, where, what, which in damage:
        table = tables[where % len(tables)]
        columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")').fetchall()]
        rowids = [rowid for (rowid,) in db.execute(f'SELECT rowid FROM "{table}"').fetchall()]
        column = columns[what % len(columns)]
        rowid = rowids[which % len(rowids)] if rowids else 0
        if kind == "drop" and which % 5 == 0:
            statement, bindings = f'DELETE FROM "{table}" WHERE rowid = ?', (rowid,)
        else:
            old = db.execute(f'SELECT "{column}" FROM "{table}" WHERE rowid = ?', (rowid,)).get
            spoilt: Any = RAW[which % len(RAW)]
            statement = f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?'
            if kind != "value" and isinstance(old, str):
                spoilt = _spoil_text(old, kind, which, where)
                spoilt = spoilt.encode("utf-8", "surrogatepass") if isinstance(spoilt, str) else spoilt
                statement = f'UPDATE "{table}" SET "{column}" = CAST(? AS TEXT) WHERE rowid = ?'
            bindings = (spoilt, rowid)
        try:
            db.execute(statement, bindings)
        except (apsw.ConstraintError, apsw.MismatchError):  # what the store itself would never take
            db.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (rowid,))
    db.close()


def _spoil_bytes(path: Path, damage: list[Damage]) -> None:
    data = bytearray(path.read_bytes())
    for _, where, what, which in damage:
        at = where * 997 % (len(data) or 1)
        data[at : at + which % 700] = bytes([what % 256]) * (which % 700)
    path.write_bytes(data)


def _spoil_file(path: Path, damage: list[Damage]) -> None:
    lines = path.read_bytes().split(b"\n")
    for kind, where, what, which in damage:
        at = where % len(lines)
        if kind == "value":
            raw = RAW[what % len(RAW)]
            lines.insert(at, raw if isinstance(raw, bytes) else str(raw).encode())
        elif kind == "drop" and which % 2:
            del lines[at]
            lines = lines or [b""]
        elif kind == "cut":
            lines[at] = lines[at][: which % (len(lines[at]) + 1)]
        else:
            spoilt = _spoil_text(lines[at].decode("utf-8", "replace"), kind, which, what)
            lines[at] = spoilt.encode("utf-8", "surrogatepass") if isinstance(spoilt, str) else spoilt
    path.write_bytes(b"\n".join(lines))


def _made(tool: str, folder: Path) -> Path:
    if tool in JSONL:
        return copied(tool, folder)
    return tree(folder, "opencode/files-1.1.json") if tool == "opencode files" else store(tool, folder)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["opencode", "opencode files", "goose", "crush", "llm", "aider", *JSONL])
@settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(damage=DAMAGE)
@example(damage=[("cut", 96, 0, 364)])  # a copy of a session, cut off before it goes on by itself
def test_a_damaged_store_is_imported_as_far_as_it_goes(tool: str, damage: list[Damage]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="dsh-mutated-"))
    try:
        place = _made(tool, folder / "store")
        files = [path for path in sorted(place.rglob("*")) if path.is_file()]
        chosen = files[damage[0][3] % len(files)]
        if (chosen.suffix == ".db" and damage[0][0] == "bytes") or chosen.suffix in (".db-wal", ".db-shm"):
            _spoil_bytes(chosen, damage)
        elif chosen.suffix == ".db":
            _spoil_database(chosen, damage)
        else:
            _spoil_file(chosen, damage)
        name, db = tool.split()[0], folder / "dsh.db"
        first = imported(name, place, db)
        opened = Database.open(db, read_only=True)
        try:
            assert check.check(opened) == []
        finally:
            opened.close()
        second = imported(name, place, db)
        assert (second.new, second.grown, second.messages) == (0, 0, 0)
        assert set(second.failed) <= set(first.failed)
    finally:
        shutil.rmtree(folder)
