"""The union of several databases: whatever was written where, and whoever meets whom in which order, all have it."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsh.core.errors import DshError
from dsh.core.lossless import dumps, loads
from dsh.core.secrets import mark
from dsh.query.check import check
from dsh.session.jsonl import event_lines, header_line
from dsh.session.sync.copying import Copy
from dsh.session.sync.folder import Folder
from dsh.session.sync.here import Here
from dsh.session.sync.model import Offer, Outcome, Place, branch_id, digest_of, key_of, root_of, same_digest
from dsh.session.transfer import import_log, row_of, store_log
from dsh.store import rewriting, writes
from dsh.store.database import Database
from tests.session.kit import USER, code, damage, text
from tests.session.logs import HEADER, Row, logs, reader

pytestmark = pytest.mark.slow

COLUMNS = "seq, type, time, data, source_event_seqs, surface_op"
SHARED: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


class Machine:
    """A database, and a clock that is as wrong as the others'."""

    def __init__(self, path: Path) -> None:
        self.db = Database.open(path)
        self.clock = 1000

    def here(self, **options: Any) -> Here:
        return Here(self.db, **options)

    def add(self, session: str, type_: str, data: Any, op: str | None = None) -> None:
        [(length,)] = self.db.rows("SELECT length FROM session WHERE id = ?", (session,)) or [(0,)]
        self.clock += 1
        writes.insert_event(self.db, session, length, type_, self.clock, dumps(data), None, op)

    def turn(self, session: str, words: str, *, chunks: int = 0, closed: bool = True) -> None:
        if not self.db.rows("SELECT 1 FROM session WHERE id = ?", (session,)):
            writes.insert_session(self.db, {"id": session, "version": 0, "createdAt": self.clock, "cwd": "/w"})
        [(turns, open_turn)] = self.db.rows("SELECT turns, open_turn FROM session WHERE id = ?", (session,))
        if open_turn is None:
            turns += 1
            self.add(session, "turn/start", {"turn": turns, "trigger": {"kind": "message", "source": USER}})
            self.add(session, "user/message", {"content": [text(words)], "source": USER}, '"append"')
            at = {"turn": turns, "step": 1}
            self.add(session, "step/start", at)
            for n in range(chunks):
                chunk = {"type": "text-delta", "index": 0, "text": f"{words} {n}"}
                self.add(session, "assistant/chunk", {**at, "chunk": chunk})
        if closed:
            self.add(session, "step/end", {"turn": turns, "step": 1})
            self.add(session, "turn/end", {"turn": turns, "reason": {"kind": "completed"}})

    def fork(self, child: str, parent: str) -> None:
        [(length,)] = self.db.rows("SELECT length FROM session WHERE id = ?", (parent,))
        writes.insert_fork(self.db, child, parent, length - 1, self.clock, None)

    def log(self, session: str) -> list[Row]:
        return self.db.rows(f"SELECT {COLUMNS} FROM event WHERE session_id = ? ORDER BY seq", (session,))

    def logs(self) -> dict[str, list[Row]]:
        return {id_: self.log(id_) for (id_,) in self.db.rows("SELECT id FROM session")}

    def contents(self) -> list[str]:
        """What every log says, whatever it is called here; fragments may be thinned."""
        return sorted(repr(telling(log)) for log in self.logs().values())

    def sound(self) -> None:
        assert [v for (id_,) in self.db.rows("SELECT id FROM session") for v in check(self.db, id_)] == []


def telling(log: list[Row]) -> list[Row]:
    return [row for row in log if row[1] != "assistant/chunk"]


def copied(source: Place, target: Place, **options: Any) -> list[Outcome]:
    done = list(Copy(source, target, **options))
    target.close()
    return done


def kinds(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(outcome.kind, outcome.id) for outcome in outcomes]


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with nothing in it, to be copied: making one takes longer."""
    path = tmp_path_factory.mktemp("empty") / "dsh.db"
    Database.open(path).close()
    return path


@pytest.fixture
def machines(empty: Path, tmp_path: Path) -> Iterator[list[Machine]]:
    made = []
    for name in "abc":
        shutil.copy(empty, tmp_path / f"{name}.db")
        made.append(Machine(tmp_path / f"{name}.db"))
    yield made
    for machine in made:
        machine.db.close()


def folder(root: Path, machine: Machine) -> Folder:
    return Folder(root, machine.here().digest, f"{id(machine):x}", create=True)


# ---------------------------------------------------------------------------------------------------------- one log


@pytest.mark.rule("PE-88")
def test_new_grown_known(machines: list[Machine]) -> None:
    a, b, _ = machines
    a.turn("s", "one", chunks=4)
    assert kinds(copied(a.here(), b.here())) == [("new", "s")]
    assert kinds(copied(a.here(), b.here())) == kinds(copied(b.here(), a.here())) == []
    a.turn("s", "two")
    [grown] = copied(a.here(), b.here())
    assert (grown.kind, grown.id, grown.events) == ("grown", "s", 5)
    b.turn("s", "three", chunks=3)  # a session may go on anywhere, one after the other
    assert kinds(copied(b.here(), a.here())) == [("grown", "s")]
    assert a.log("s") == b.log("s")
    headers = [m.db.rows("SELECT created_at, cwd, incarnation, turns, length FROM session") for m in (a, b)]
    assert headers[0] == headers[1]
    b.sound()
    assert b.db.rows("SELECT count(*) FROM search WHERE search MATCH 'two'") == [(1,)]


@pytest.mark.rule("PE-90")
def test_nothing_is_read_of_what_is_there(machines: list[Machine], tmp_path: Path) -> None:
    a, b, _ = machines
    for n in range(5):
        a.turn(f"s{n}", "one")
    copied(a.here(), folder(tmp_path / "f", a))
    copied(folder(tmp_path / "f", b), b.here())
    for file in (tmp_path / "f").glob("*/*"):
        file.write_bytes(b"unreadable")
    assert copied(folder(tmp_path / "f", b), b.here()) == []
    assert copied(b.here(), folder(tmp_path / "f", b)) == []


@pytest.mark.rule("PE-89")
def test_both_went_on_with_one_session(machines: list[Machine]) -> None:
    a, b, c = machines
    a.turn("s", "one")
    copied(a.here(), b.here())
    a.turn("s", "mine")
    b.turn("s", "yours")
    b.turn("s", "and more")
    ours, theirs = a.log("s"), b.log("s")
    [told] = copied(b.here(), a.here())
    assert (told.kind, told.beside) == ("diverged", "s")
    assert root_of(told.id) == "s"
    assert a.log("s") == ours
    assert a.log(told.id) == theirs
    assert a.db.rows("SELECT parent_session, boundary FROM fork") == [("s", 4)]
    [back] = copied(a.here(), b.here())
    assert back.kind == "diverged"
    assert b.logs() == {"s": theirs, back.id: ours}
    # each branch has one place in each database, whatever it is called there
    assert copied(a.here(), b.here()) == copied(b.here(), a.here()) == []
    b.turn("s", "once more")
    assert kinds(copied(b.here(), a.here())) == [("grown", told.id)]
    a.turn(told.id, "there")
    assert kinds(copied(a.here(), b.here())) == [("grown", "s")]
    # who has neither takes the ids of whom it asks
    copied(a.here(), c.here())
    copied(b.here(), c.here())
    assert c.contents() == a.contents() == b.contents()
    assert set(c.logs()) == {"s", told.id}
    for machine in machines:
        machine.sound()


@pytest.mark.rule("PE-89")
def test_the_longest_keeps_the_id_where_there_is_none(machines: list[Machine], tmp_path: Path) -> None:
    a, b, c = machines
    a.turn("s", "mine")
    b.turn("s", "yours")
    b.turn("s", "longer")
    for machine in (a, b):
        copied(machine.here(), folder(tmp_path / "f", machine))
    assert sorted(p.name.split("-")[0] for p in (tmp_path / "f" / "s").iterdir()) == ["10", "5"]
    [first, second] = copied(folder(tmp_path / "f", c), c.here())
    assert (first.kind, first.id, second.kind, second.beside) == ("new", "s", "diverged", "s")
    assert c.log("s") == b.log("s")
    assert c.log(second.id) == a.log("s")
    assert copied(folder(tmp_path / "f", c), c.here()) == copied(c.here(), folder(tmp_path / "f", c)) == []


@pytest.mark.rule("PE-88")
def test_an_open_turn_is_copied_open(machines: list[Machine]) -> None:
    a, b, _ = machines
    a.turn("s", "one")
    a.turn("s", "two", chunks=5, closed=False)
    copied(a.here(), b.here())
    assert b.log("s") == a.log("s")
    a.turn("s", "two")
    assert kinds(copied(a.here(), b.here())) == [("grown", "s")]
    assert b.log("s") == a.log("s")
    b.sound()


@pytest.mark.rule("PE-88")
def test_a_copy_that_is_driven_is_left_alone(machines: list[Machine]) -> None:
    a, b, _ = machines
    a.turn("s", "one")
    copied(a.here(), b.here())
    a.turn("s", "two")
    before = b.log("s")
    writes.claim_lease(b.db, "s", "me")
    [told] = copied(a.here(), b.here())
    assert (told.kind, told.id) == ("failed", "s")
    assert "is driven by process" in str(told.reason)
    assert b.log("s") == before
    writes.release_lease(b.db, "s", "me")
    assert kinds(copied(a.here(), b.here())) == [("grown", "s")]
    assert b.db.rows("SELECT count(*) FROM lease") == [(0,)]


@pytest.mark.rule("PE-88", "PE-89")
def test_forks_share_again_and_follow_their_branch(machines: list[Machine], tmp_path: Path) -> None:
    a, b, c = machines
    a.turn("s", "one")
    a.fork("child", "s")
    a.turn("child", "two")
    a.fork("grandchild", "child")
    a.turn("grandchild", "three")
    copied(a.here(), folder(tmp_path / "f", a))
    copied(folder(tmp_path / "f", b), b.here())
    shared = "SELECT session_id, owner_id FROM lineage ORDER BY 1, 2"
    assert b.db.rows(shared) == a.db.rows(shared)
    assert b.contents() == a.contents()
    # a fork of a branch that is called otherwise there
    c.turn("s", "another")
    c.turn("s", "still another")
    copied(a.here(), c.here())
    assert c.contents() == sorted([*a.contents(), repr(c.log("s"))])
    [(parent,)] = c.db.rows("SELECT parent_session FROM fork WHERE id = 'child'")
    assert root_of(parent) == "s"
    assert parent != "s"
    c.sound()


@pytest.mark.rule("PE-92", "PE-87")
def test_what_was_deleted_stays_so_until_asked(machines: list[Machine], tmp_path: Path) -> None:
    a, b, _ = machines
    a.turn("s", "one")
    a.turn("t", "two")
    copied(a.here(), b.here())
    writes.delete_session(b.db, "s")
    for place in (a.here(), folder(tmp_path / "f", a)):
        if isinstance(place, Folder):
            copied(a.here(), place)
        assert kinds(copied(place, b.here())) == [("deleted", "s")]
    a.turn("s", "three")  # also when it went on
    assert kinds(copied(a.here(), b.here())) == [("deleted", "s")]
    assert a.log("s")
    assert copied(b.here(), a.here()) == []
    assert kinds(copied(a.here(), b.here(deleted=True))) == [("new", "s")]
    assert kinds(copied(a.here(), b.here())) == []


@pytest.mark.rule("PE-92")
def test_a_deleted_branch_stays_deleted(machines: list[Machine]) -> None:
    a, b, _ = machines
    a.turn("s", "one")
    b.turn("s", "two")
    [told] = copied(a.here(), b.here())
    writes.delete_session(b.db, told.id)
    assert kinds(copied(a.here(), b.here())) == [("deleted", told.id)]


@pytest.mark.rule("PE-92")
def test_marks_are_of_one_machine(machines: list[Machine]) -> None:
    a, b, _ = machines
    a.turn("s", "one")
    writes.pin_session(a.db, "s", 5)
    writes.hide_session(a.db, "s", 5)
    copied(a.here(), b.here())
    assert b.db.rows("SELECT pinned, hidden FROM session") == [(None, None)]


def test_the_source_goes_along(machines: list[Machine]) -> None:
    a, b, _ = machines
    writes.insert_session(a.db, {"id": "claude-1", "version": 0, "createdAt": 1}, source="claude")
    a.turn("claude-1", "one")
    copied(a.here(), b.here())
    assert b.db.rows("SELECT source, created_at FROM session") == [("claude", 1)]


@pytest.mark.rule("PE-90", "PE-84", "PE-85")
@pytest.mark.parametrize("kind", ["", "github"])
def test_thinned_and_redacted_copies_are_still_the_same_log(machines: list[Machine], tmp_path: Path, kind: str) -> None:
    a, b, c = machines
    a.turn("s", "the secret word", chunks=6)
    a.turn("s", "two", chunks=6)
    for machine in (b, c):
        copied(a.here(), machine.here())
    for machine in (b, c):
        [(seq, data)] = machine.db.rows(
            "SELECT seq, data FROM event WHERE data LIKE '%secret%' AND type = 'user/message'"
        )
        rewriting.redact_event(machine.db, "s", seq, data.replace("secret", mark(kind)))
    rewriting.thin_session(b.db, "s")
    assert copied(a.here(), b.here()) == copied(b.here(), a.here()) == copied(b.here(), c.here()) == []
    a.turn("s", "three", chunks=4)
    assert kinds(copied(a.here(), b.here())) == kinds(copied(a.here(), c.here())) == [("grown", "s")]
    b.turn("s", "four")
    assert kinds(copied(b.here(), a.here())) == [("grown", "s")]
    assert "secret" in dumps(a.log("s"))
    assert mark(kind) in dumps(b.log("s"))
    assert mark(kind) in dumps(c.log("s"))
    copied(b.here(), folder(tmp_path / "f", b))
    assert copied(folder(tmp_path / "f", a), a.here()) == []
    for machine in machines:
        machine.sound()


@pytest.mark.rule("PE-85", "PE-89")
@pytest.mark.parametrize("thinned", [False, True])
def test_what_was_redacted_here_does_not_come_back_with_another_branch_or_fork(
    machines: list[Machine], thinned: bool
) -> None:
    a, b, c = machines
    a.turn("s", "one", chunks=4)
    a.turn("s", "the secret word", chunks=4)
    copied(a.here(), b.here())
    copied(a.here(), c.here())
    for machine in (b, c):
        [(seq, data)] = machine.db.rows("SELECT seq, data FROM event WHERE type = 'user/message' AND seq > 5")
        chunks = machine.db.rows("SELECT seq, data FROM event WHERE type = 'assistant/chunk' AND seq > 5")
        if thinned:
            rewriting.thin_session(machine.db, "s")
            chunks = []
        for at, text_ in [(seq, data), *chunks]:
            rewriting.redact_event(machine.db, "s", at, text_.replace("secret", mark("")))
        assert "secret" not in dumps(machine.logs())
    a.fork("child", "s")
    a.turn("child", "goes on")
    a.turn("s", "mine")
    b.turn("s", "yours")
    assert sorted(kind for kind, _ in kinds(copied(a.here(), b.here()))) == ["diverged", "new"]
    assert sorted(kind for kind, _ in kinds(copied(a.here(), c.here()))) == ["grown", "new"]
    for machine in (b, c):
        assert "secret" not in dumps(machine.logs())
        machine.sound()
        assert copied(a.here(), machine.here()) == []
    assert len(b.db.rows("SELECT * FROM fork")) == 2


def test_a_thinned_run_that_had_begun_to_arrive(machines: list[Machine]) -> None:
    a, b, _ = machines
    a.turn("s", "one", chunks=3, closed=False)
    copied(a.here(), b.here())
    for n in range(4):
        a.add(
            "s", "assistant/chunk", {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": f"{n}"}}
        )
    a.turn("s", "one")
    rewriting.thin_session(a.db, "s")
    assert kinds(copied(a.here(), b.here())) == [("grown", "s")]
    assert [m.db.rows("SELECT length FROM session") for m in (a, b)] == [[(12,)], [(12,)]]
    assert [row for row in b.log("s") if row[1] != "assistant/chunk"] == [
        row for row in a.log("s") if row[1] != "assistant/chunk"
    ]
    b.sound()


def test_the_same_import_on_two_machines_is_one_session(machines: list[Machine]) -> None:
    a, b, _ = machines
    rows = [(0, "turn/start", 1, '{"turn":1,"trigger":{"kind":"message"}}', None, None)]
    rows.append((1, "turn/end", 2, '{"turn":1,"reason":{"kind":"completed"}}', None, None))
    for machine in (a, b):
        import_log(machine.db, reader((header_line(HEADER) + "".join(event_lines(rows))).encode()))
    assert copied(a.here(), b.here()) == copied(b.here(), a.here()) == []


# ------------------------------------------------------------------------------------------------------- convergence


STEPS = st.one_of(
    st.tuples(st.just("turn"), st.integers(0, 2), st.integers(0, 2), st.sampled_from(["x", "y", "z"])),
    st.tuples(st.just("open"), st.integers(0, 2), st.integers(0, 2), st.just("w")),
    st.tuples(st.just("fork"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("thin"), st.integers(0, 2), st.integers(0, 2), st.just("")),
    st.tuples(st.just("sync"), st.integers(0, 2), st.integers(0, 2), st.sampled_from(["direct", "folder"])),
)


def run(machines: list[Machine], shared: Path, steps: list[Any]) -> list[list[Row]]:
    """Do what is asked; every log as it was each time that something was written."""
    written: list[list[Row]] = []
    for what, who, which, how in steps:
        machine = machines[who]
        names = sorted(machine.logs())
        if what == "turn" and how == "x":  # a session of its own, or one whose id somebody else has chosen too
            machine.turn(f"s{which}", f"{how} of {who}", chunks=which)
            written.append(machine.log(f"s{which}"))
        elif what in ("turn", "open") and names:
            name = names[which % len(names)]
            machine.turn(name, f"{how} of {who}", chunks=which, closed=what == "turn")
            written.append(machine.log(name))
        elif what == "fork" and names:
            name = names[which % len(names)]
            child = f"{name[:9]}-{who}{how}"
            settled = machine.db.rows("SELECT open_turn FROM session WHERE id = ?", (name,)) == [(None,)]
            if settled and child not in names:
                machine.fork(child, name)
                machine.turn(child, f"fork of {who}")
                written.append(machine.log(child))
        elif what == "thin" and names:
            with suppress(DshError):  # a turn of it is open
                rewriting.thin_session(machine.db, names[which % len(names)])
        elif what == "sync":
            other: Place = machines[which].here() if how == "direct" else folder(shared, machine)
            copied(machine.here(), other)
            copied(machines[which].here() if how == "direct" else folder(shared, machine), machine.here())
    return written


@pytest.mark.rule("PE-89")
@settings(max_examples=12, **SHARED)
@given(steps=st.lists(STEPS, max_size=12), order=st.permutations([(0, 1), (1, 2), (2, 0)]))
def test_all_machines_come_to_have_everything(
    empty: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[Any], order: list[tuple[int, int]]
) -> None:
    converge(empty, tmp_path_factory.mktemp("ring"), steps, order)


@pytest.mark.slow
@settings(max_examples=150, **SHARED)
@given(steps=st.lists(STEPS, max_size=40), order=st.permutations([(0, 1), (1, 2), (2, 0)]))
def test_all_machines_come_to_have_everything_after_long_histories(
    empty: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[Any], order: list[tuple[int, int]]
) -> None:
    converge(empty, tmp_path_factory.mktemp("ring"), steps, order)


def converge(empty: Path, root: Path, steps: list[Any], order: list[tuple[int, int]]) -> None:
    machines = []
    try:
        for name in "abc":
            shutil.copy(empty, root / f"{name}.db")
            machines.append(Machine(root / f"{name}.db"))
        written = run(machines, root / "shared", steps)
        for _ in range(2):  # twice round the ring, each the way it goes
            for one, other in order:
                copied(machines[one].here(), machines[other].here())
        assert machines[0].contents() == machines[1].contents() == machines[2].contents()
        for machine in machines:
            machine.sound()
            stored = [telling(log) for log in machine.logs().values()]
            assert len(stored) == len({repr(log) for log in stored}), "no log twice"
            for log in map(telling, written):
                assert any(each[: len(log)] == log for each in stored), "nothing is lost"
        for one, other in order:
            assert copied(machines[one].here(), machines[other].here()) == []
    finally:
        for machine in machines:
            machine.db.close()
        shutil.rmtree(root)


@settings(max_examples=10, **SHARED)
@given(rows=logs(), cut=st.floats(0, 1))
def test_any_log_grows_from_any_beginning(empty: Path, tmp_path_factory: Any, rows: list[Row], cut: float) -> None:
    root = tmp_path_factory.mktemp("grow")
    shutil.copy(empty, root / "a.db")
    shutil.copy(empty, root / "b.db")
    a, b = Machine(root / "a.db"), Machine(root / "b.db")
    try:
        for machine, part in ((a, rows), (b, rows[: max(1, int(len(rows) * cut))])):
            log = reader((header_line(HEADER) + "".join(event_lines(part))).encode())
            with machine.db.transaction():
                store_log(machine.db, log, close=False)
        done = copied(a.here(), b.here())
        assert kinds(done) == ([("grown", "s")] if len(b.log("s")) and done else [])
        assert b.log("s") == a.log("s") == rows
        b.sound()
    finally:
        a.db.close()
        b.db.close()
        shutil.rmtree(root)


# ------------------------------------------------------------------------------------------------------ what is wrong


@contextmanager
def given_file(data: bytes) -> Iterator[Any]:
    yield io.BufferedRandom(io.BytesIO(data))  # type: ignore[arg-type]


@pytest.mark.rule("PE-88", "PE-90")
def test_what_breaks_a_rule_or_is_not_what_was_offered_changes_nothing(machines: list[Machine]) -> None:
    a, b, _ = machines
    a.turn("s", "one", chunks=4)
    copied(a.here(), b.here())
    a.turn("s", "two")
    [offer] = a.here().offers()
    with a.here().fetch(offer) as file:
        whole = file.read()
    before = b.logs()
    rows = a.log("s")
    lines = [header_line(HEADER), *event_lines(rows)]

    def put(data: bytes, of: Offer = offer) -> str:
        return code(b.here().put, of, lambda: given_file(data), dry_run=False)

    assert put(whole[:-5]) == "SYNC_INCOMPLETE"
    assert put(whole[: len(whole) // 2]) == "SYNC_INCOMPLETE"
    assert put(b"") == "LOG_CORRUPT"
    assert put(b"garbage") == "LOG_CORRUPT"
    assert put(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:]) == "LOG_CORRUPT"
    assert put(whole, offer._replace(digest="0" * 16 + "-" + "0" * 16)) == "SYNC_INCOMPLETE"
    assert put(whole, offer._replace(length=offer.length + 1)) == "SYNC_INCOMPLETE"
    assert put(whole, offer._replace(key="t", id=None)) == "SYNC_INCOMPLETE"
    assert put("".join(lines).replace('"turn":2', '"turn":3').encode()) == "SEED_INVALID"
    assert put("".join(lines).replace('"id":"s"', '"id":"last"').encode(), offer._replace(key="last", id=None)) == (
        "HEADER_INVALID"
    )
    assert b.logs() == before
    assert b.db.rows("SELECT count(*) FROM lease") == [(0,)]
    b.sound()


@pytest.mark.rule("PE-88")
def test_a_damaged_log_is_named_and_the_others_go(machines: list[Machine], tmp_path: Path) -> None:
    a, b, _ = machines
    a.turn("s", "one")
    a.turn("t", "two")
    damage(a.db.path, "UPDATE _event SET data = '{torn' WHERE type = 'user/message' AND data LIKE '%one%'")
    done = {outcome.id: outcome for outcome in copied(a.here(), b.here())}
    assert (done["s"].kind, done["t"].kind) == ("failed", "new")
    assert "cannot be read" in str(done["s"].reason)
    assert set(b.logs()) == {"t"}
    assert sorted(kinds(copied(a.here(), folder(tmp_path / "f", a)))) == [("failed", "s"), ("new", "t")]
    assert [path.parent.name for path in (tmp_path / "f").glob("*/*")] == ["t"]


@given(st.text(min_size=1), st.text(min_size=1))
@example(".x", "~002Ex")
@settings(deadline=None)
def test_names_of_families(one: str, other: str) -> None:
    """Fit for a file, and two roots never share one."""
    for id_ in (one, other):
        key = key_of(id_)
        assert 0 < len(key.encode()) <= 200
        assert "/" not in key
        assert not key.startswith(".")
        assert key_of(branch_id(id_, [1], 0)) == key
    assert (key_of(one) == key_of(other)) == (root_of(one) == root_of(other))


@pytest.mark.rule("PE-90")
def test_digests() -> None:
    row = (5, "turn/end", 17, '{"turn":1}')
    one = digest_of("s", 6, [row])
    assert same_digest(one, digest_of("s", 6, [(*row[:3], '{ "turn" : 1 }')]))
    assert not same_digest(one, digest_of("s", 6, [(*row[:3], '{"turn":2}')]))
    assert not same_digest(one, digest_of("s", 6, [(5, "turn/end", 18, '{"turn":1}')]))
    assert not same_digest(one, digest_of("s", 7, [row]))
    assert not same_digest(one, digest_of("t", 6, [row]))
    for kind in ("", "github"):
        assert same_digest(one, digest_of("s", 6, [(*row[:3], f'{{"turn":"{mark(kind)}"}}')]))
    assert not same_digest(one, digest_of("s", 6, [(*row[:3], '{"turn":"[redacted"}')]))
    assert loads(dumps(row_of({"seq": 1, "type": "x", "time": 1, "data": 1}))) == [1, "x", 1, "1", None, None]
