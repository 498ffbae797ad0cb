"""Checking a stored database (PE-76): the file, its references and rules, every log, the search index.

The rules of schema.sql let nothing else in, so a violation means that a file was damaged or written round them. Each
session is read again from its first event, page by page, and folded anew in plain Python: turns, steps, calls and the
surface (SE-1 to SE-53). What the fold arrives at is compared with what the triggers have kept. Memory holds one page of
events and the seqs of one surface, however long the log is. Nothing is written but the tail of the search index.

What no check can know is that a letter of a text became another one, or a time another time, where both are valid.
A document's text is in the index, too, which tells; a chunk's, a name's or a number's is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

from dsh import query
from dsh.core.errors import DshError
from dsh.core.events import SURFACE_TYPES, span
from dsh.core.lossless import MAX_INT, freeze, loads, same
from dsh.store import writes
from dsh.store.database import Database

_PAGE = 500
UNWRITABLE = frozenset({"DB_BUSY", "DB_READONLY", "DB_FULL", "DB_IO"})  # what the index cannot be asked with
_IN_STEP = frozenset({"assistant/chunk", "assistant/message", "tool/call", "step/end"})
_BOUNDARIES = frozenset({"turn/start", "turn/end", "step/start", "step/end"})
_LEGACY = frozenset({"request/header-delta", "mode/set"})


class Violation(NamedTuple):
    """What is wrong where: `session` is None if it is about the file as a whole, `seq` if it is about the session;
    `rule` is a number of docs/spec, or `sqlite`, `reference`, `schema` for what SQLite itself has to keep."""

    session: str | None
    seq: int | None
    rule: str
    message: str


def check(db: Database, session_id: str | None = None, *, limit: int = 1000) -> list[Violation]:
    """Every violation of one session's stored log, or of all; at most `limit`. Reads only."""
    return list(islice(logs(db, session_id), limit))


def structure(db: Database, *, quick: bool = False) -> Iterator[Violation]:
    """What SQLite finds wrong with the file, with references between rows, and what is not as schema.sql has it."""
    try:
        yield from (Violation(None, None, "sqlite", text) for text in db.integrity(quick=quick))
        for table, row, parent, _ in query.rows(db, "foreign_key_check"):
            yield Violation(None, None, "reference", f"row {row} of {table} refers to a row that {parent} has not")
        yield from (Violation(None, None, "schema", text) for text in db.schema_drift())
    except DshError as error:
        yield Violation(None, None, "sqlite", error.message)


def logs(db: Database, session_id: str | None = None, *, quick: bool = False) -> Iterator[Violation]:
    """Every log against its rules; `quick` looks only whether it can be driven on (PE-32)."""
    names: dict[str, None] = {}
    # Where the index of names is damaged, the table has them, and the other way round.
    for source in ("session_names", "session_rows"):
        if session_id is None or source == "session_names":
            try:
                _, found = db.stream(query.sql(source), {"session": session_id} if source == "session_names" else {})
                for (name,) in found:
                    names[name] = None
            except DshError as error:
                yield Violation(session_id, None, "PE-32", f"not every session can be found: {error.message}")
    for name in names:
        fold = _Fold(db, name)
        try:
            with db.snapshot():
                yield from fold.driven_on() if quick else fold.run()
        except DshError as error:
            yield Violation(name, fold.next or None, "PE-32", f"cannot be read: {error.message}")


def waiting(db: Database) -> Iterator[Violation]:
    """Whether the messages that wait in inboxes can be delivered (AL-1)."""
    try:
        for session, message, *parts in query.rows(db, "inbox_all"):
            try:
                for part in parts:
                    freeze(loads(part) if part is not None else None)
            except (DshError, ValueError, TypeError, RecursionError) as error:
                yield Violation(session, None, "AL-1", f"the message {message} in its inbox is not JSON: {error}")
    except DshError as error:
        yield Violation(None, None, "AL-1", f"the inboxes cannot be read: {error.message}")


def index(db: Database) -> Iterator[Violation]:
    """Whether the search index says what the log says (SQ-73). SQLite is asked by a write, so this waits for other
    writers, and they for it; StoreError of UNWRITABLE if it cannot be asked."""
    try:
        state = query.row(db, "store_state")
        if state is None or not 0 <= state[3] <= state[4]:
            yield Violation(None, None, "SQ-70", "the search index is said to be ahead of the log")
            return
        with db.transaction():
            writes.refresh_search(db)
            complaint = writes.check_search(db)
        if complaint is not None:
            yield Violation(None, None, "SQ-73", "the search index does not say what the log says")
    except DshError as error:
        if error.code in UNWRITABLE:
            raise
        yield Violation(None, None, "SQ-73", f"the search index cannot be read: {error.message}")


class _Fold:
    """One pass over one session's log."""

    def __init__(self, db: Database, name: str) -> None:
        self.db = db
        self.name = name
        self.next = 0
        self.turns = self.steps = self.generation = 0
        self.open_turn: int | None = None
        self.open_step: int | None = None
        self.calls: set[Any] = set()
        self.surface: list[int] = []
        self.places: dict[int, int] = {}  # of every node that ever was on it, as seqs
        self.replaced: dict[int, int] = {}  # by which event
        self.types: dict[int, str] = {}  # of the nodes now on the surface
        self.boundary_time: int | None = None  # of the last event that opened or closed a turn or step

    def driven_on(self) -> Iterator[Violation]:
        """What loading the session looks at (PE-32)."""
        found = query.row(self.db, "log_check", session=self.name)
        if found is None:
            return
        length, events, last_turn_event, turns, open_turn, legacy, unreadable = found
        if legacy is not None:
            yield Violation(self.name, legacy, "SE-9", "is of a removed kind")
        if unreadable is not None:
            yield Violation(self.name, unreadable, "PE-55", "is not JSON")
        kept = f"turn/{'end' if open_turn is None else 'start'} {turns}" if turns else None
        if events == 0:
            yield Violation(self.name, None, "PE-1", "has no events")
        elif events != length or last_turn_event != kept:
            yield Violation(self.name, None, "PE-32", f"{events} events of {length}, the last turn's {last_turn_event}")

    def run(self) -> Iterator[Violation]:
        state = query.row(self.db, "session_state", session=self.name)
        if state is None:  # deleted since the names were read
            return
        row = (*state[1:7], *state[9:])
        yield from self._header(row)
        for event in self._events():
            yield from (Violation(self.name, event[0], rule, text) for rule, text in self._event(*event))
        yield from (Violation(self.name, None, rule, text) for rule, text in self._kept(row))

    def _header(self, row: tuple[Any, ...]) -> Iterator[Violation]:
        version, created_at, cwd, parent, seed_length, depth = row[:6]
        if version != 0:
            yield Violation(self.name, None, "PE-31", f"has format version {version}")
        bad = [] if _count(created_at) and created_at <= MAX_INT else ["createdAt"]
        bad += [] if cwd is None or (_text(cwd) and (cwd[0] == "/" or cwd[1:2] == ":")) else ["cwd"]
        bad += [] if parent is None or _text(parent) else ["parentSession"]
        bad += [] if (seed_length is None or _count(seed_length)) and _count(depth) else ["seedLength, delegationDepth"]
        if bad:
            yield Violation(self.name, None, "SE-53", f"header: {', '.join(bad)} not valid")

    def _events(self) -> Iterator[tuple[Any, ...]]:
        low = 0
        while True:
            page = query.rows(self.db, "events_page", session=self.name, low=low, limit=_PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            low = page[-1][0] + 1

    def _event(
        self, seq: int, type_: str, time: int, text: str, source_text: str | None, op_text: str | None
    ) -> Iterator[tuple[str, str]]:
        texts = (type_, text, source_text or "", op_text or "")
        if type(seq) is not int or type(time) is not int or not all(isinstance(each, str) for each in texts):
            yield "PE-50", "is not of the shape of an event"
            return
        if seq != self.next:
            yield "PE-32", f"follows event {self.next - 1}: {seq - self.next} are missing"
        self.next = seq + 1
        if type_ in _BOUNDARIES:
            self.boundary_time = time
        if not 0 <= time <= MAX_INT:
            yield "SE-1", f"has the time {time}"
        try:
            data = freeze(loads(text))
        except (ValueError, RecursionError) as error:
            yield "PE-55", f"is not JSON: {error}"
            return
        except DshError as error:
            yield "SE-2", error.message
            data = loads(text)
        fields = data if isinstance(data, dict) else {}
        self.next = seq + span(type_, data)
        if type_ in _LEGACY or (type_ == "request/header" and fields.get("reason") == "fallback"):
            yield "SE-9", f"is of the removed kind {type_}"
        try:
            op = None if op_text is None else loads(op_text)
            sources = None if source_text is None else loads(source_text)
        except ValueError:
            yield "SE-12", "has a place on the surface that is not JSON"
            op = sources = None
        yield from self._payload(type_, fields)
        yield from self._enclosure(type_, op, fields)
        if (type_ in SURFACE_TYPES) != (op is not None) or (op is None and sources is not None):
            yield "SE-5", f"is {type_} with surfaceOp {op_text} and sourceEventSeqs {source_text}"
        if sources is not None and not _sources_fit(sources, seq, type_):
            yield "SE-13", "has sourceEventSeqs that are not distinct earlier seqs"
        if op is not None:
            yield from self._place(seq, type_, fields, op, sources if isinstance(sources, list) else [])

    def _payload(self, type_: str, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if type_ == "request/header":
            header = data.get("header")
            config = header.get("config") if isinstance(header, dict) else None
            config = config if isinstance(config, dict) else {}
            if not (_text(config.get("provider")) and _text(config.get("model"))) or (
                "reasoningEffort" in config and not _text(config["reasoningEffort"])
            ):
                yield "SE-51", "is a header that names no route"
        elif type_ == "assistant/message":
            made_by = data.get("provenance")
            if not (isinstance(made_by, dict) and _text(made_by.get("provider")) and _text(made_by.get("model"))):
                yield "SE-51", "is a message without provenance"
        elif type_ == "turn/end":
            reason = data.get("reason")
            if isinstance(reason, dict) and reason.get("kind") == "aborted" and len(reason) > 1:
                yield "SE-51", "is an aborted turn's end with further fields"

    def _enclosure(self, type_: str, op: Any, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        turn, step = data.get("turn"), data.get("step")
        if type_ == "turn/start":
            if self.open_turn is not None:
                yield "SE-42", f"starts a turn inside turn {self.open_turn}"
            elif not same(turn, self.turns + 1):
                yield "SE-41", f"starts turn {turn} after turn {self.turns}"
            self.turns = self.open_turn = turn if _count(turn) else self.turns + 1
            self.steps, self.open_step = 0, None
            return
        if self.open_turn is None:
            yield "SE-46" if type_ not in _KNOWN else "SE-40", "is outside every turn"
        elif type_ == "turn/end":
            if self.open_step is not None:
                yield "SE-42", f"ends a turn inside step {self.open_step}"
            if not same(turn, self.open_turn):
                yield "SE-42", f"ends turn {turn} inside turn {self.open_turn}"
            self.open_turn = self.open_step = None
        elif type_ == "step/start":
            if self.open_step is not None or not same(turn, self.open_turn):
                yield "SE-42", f"starts step {step} of turn {turn} inside turn {self.open_turn}, step {self.open_step}"
            elif not same(step, self.steps + 1):
                yield "SE-41", f"starts step {step} after step {self.steps}"
            self.steps = self.open_step = step if _count(step) else self.steps + 1
            self.calls = set()
        elif type_ in _IN_STEP or (type_ == "tool/result" and op == "append"):
            if self.open_step is None or not (same(turn, self.open_turn) and same(step, self.open_step)):
                yield "SE-43", f"names turn {turn}, step {step} in turn {self.open_turn}, step {self.open_step}"
            yield from self._in_step(type_, data)

    def _in_step(self, type_: str, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        call = data.get("callId")
        if type_ == "step/end":
            self.open_step = None
        elif type_ == "tool/call" and isinstance(call, str):
            self.calls.add(call)
        elif type_ == "tool/result":
            error = data.get("error")
            unstarted = isinstance(error, dict) and error.get("code") == "TOOL_NOT_STARTED"
            if not unstarted and not (isinstance(call, str) and call in self.calls):
                yield "SE-44", f"answers the call {call!r}, which its step did not make"

    def _place(
        self, seq: int, type_: str, data: dict[str, Any], op: Any, sources: list[Any]
    ) -> Iterator[tuple[str, str]]:
        if op == "append":
            self.surface.append(seq)
            self.types[seq] = type_
            self.places[seq] = seq
            return
        self.generation += 1
        shaped = isinstance(op, dict) and op.keys() == {"op", "start", "end"} and op["op"] == "replace"
        start, end = (op["start"], op["end"]) if shaped else (None, None)
        if not (_count(start) and _count(end) and start in self.types and end in self.types):
            yield "SE-12", "replaces nodes that are not on the surface"
            return
        first, last = self.surface.index(start), self.surface.index(end)
        if first > last:
            yield "SE-12", f"replaces from {start} to {end}, which is before it"
            return
        removed = self.surface[first : last + 1]
        if not set(removed) <= {s for s in sources if _count(s)}:
            yield "SE-14", "does not name every node it replaces"
        if type_ == "tool/result" and not (len(removed) == 1 and self._same_but_content(removed[0], data)):
            yield "SE-15", "replaces more than the content of one result"
        self.surface[first : last + 1] = [seq]
        self.places[seq] = self.places[removed[0]]
        for gone in removed:
            del self.types[gone]
            self.replaced[gone] = seq
        self.types[seq] = type_

    def _same_but_content(self, seq: int, data: dict[str, Any]) -> bool:
        if self.types[seq] != "tool/result":
            return False
        row = query.row(self.db, "events_between", session=self.name, low=seq, high=seq)
        old = loads(row[3]) if row else {}
        return same(*({k: v for k, v in each.items() if k != "content"} for each in (old, data)))

    def _kept(self, row: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
        """What the triggers keep about a session must be what its events say (SE-17)."""
        if self.next == 0:
            yield "PE-1", "has no events"
            return
        folded = (self.generation, self.turns, self.open_turn, self.open_step, self.boundary_time)
        kept = (row[7], row[8], row[10], row[11], row[12])
        names = ("replace_generation", "turns", "open_turn", "open_step", "updated_at")
        for name, ours, theirs in zip(names, folded, kept, strict=True):
            if ours != theirs and not (name == "updated_at" and ours is None):  # of no turn yet: the creation's
                yield "SE-17", f"{name} is kept as {theirs}, its events make it {ours}"
        if self.open_turn is not None and row[9] != self.steps:
            yield "SE-17", f"steps is kept as {row[9]}, its events make it {self.steps}"
        stored = query.rows(self.db, "surface_seqs", session=self.name)
        if [seq for (seq,) in stored] != self.surface:
            yield "SE-17", f"the surface has {len(stored)} nodes, its events make {len(self.surface)} or another order"
            return
        ours_ever = [(seq, place, self.replaced.get(seq)) for seq, place in sorted(self.places.items())]
        if query.rows(self.db, "surface_nodes", session=self.name) != ours_ever:
            yield "SE-17", "the nodes that were replaced are not those that its events replaced"
        for (seq,) in query.rows(self.db, "surface_strays", session=self.name):
            yield "SE-17", f"the surface leads to another event than {seq}"


_KNOWN = SURFACE_TYPES | _IN_STEP | {"turn/end", "step/start", "request/header", "todo/write", "prompt/blocked"}


def _count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _sources_fit(sources: Any, seq: int, type_: str) -> bool:
    if not isinstance(sources, list) or not all(_count(s) and s < seq for s in sources):
        return False
    return len(set(sources)) == len(sources) and (bool(sources) or type_ == "assistant/message")
