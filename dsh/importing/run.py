"""An import from beginning to end: what is there, what of it is new, reading beside writing, the index.

Files whose stat is the one in the ledger are not opened. The ledger has a row for each source and is written when all
of the source is stored; an import that is killed goes on where it was, since rows that are stored already are found
again by comparing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.lossless import loads
from dsh.importing import registry
from dsh.importing.convert import DONE, END, FAILED, NEW, ROWS, SESSION, SETTLED_S, Job, Message, session_id
from dsh.importing.model import Home, Source
from dsh.importing.worker import Worker, inline
from dsh.importing.writer import Target, messages_in, refused
from dsh.store import writes
from dsh.store.database import Database

_WORTH_A_WORKER = 2 * 1024 * 1024  # bytes to read
_OPEN = "~"  # before the stamp of a source whose end may become final by its resting alone


@dataclass(slots=True)
class Report:
    """What became of one tool's history. `failed` is (path, reason); `named` (path, where, reason), the first of the
    records that were skipped; `moved` a session that could not grow, and the one that took the rest."""

    tool: str
    places: list[str]
    sources: int = 0
    new: int = 0
    grown: int = 0
    unchanged: int = 0
    empty: int = 0
    messages: int = 0
    skipped: int = 0
    named: list[tuple[str, str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Found:
    report: Report
    sources: list[Source]
    named: bool  # the user named the places
    roots: dict[str, str] = field(default_factory=dict)  # sessions by the id of their first message
    deleted: set[str] = field(default_factory=set)  # sessions that were deleted here and do not come back unasked


class Import:
    """One import of several tools. `find` looks, `run` reads and writes; `progress` is called as often as may be with
    (tool, bytes done, bytes in all)."""

    def __init__(self, home: Home, progress: Callable[[str, int, int], None] = lambda *_: None) -> None:
        self._home = home
        self._progress = progress
        self._found: list[_Found] = []

    def find(self, tool: str, paths: Sequence[str] = ()) -> bool:
        """Look for a tool's history, in its standard places or where the user says; whether there is any."""
        reader = registry.reader(tool)
        places = list(paths) or list(dict.fromkeys(reader.places(self._home)))
        sources: dict[str, Source] = {}
        for place in places:
            for source in reader.sources(place):
                sources.setdefault(source.path, source)
        ordered = sorted(sources.values(), key=lambda each: (each.modified, each.path))
        self._found.append(_Found(Report(tool, places, len(ordered)), ordered, bool(paths)))
        return bool(ordered)

    @property
    def places(self) -> list[str]:
        """Where was looked."""
        return [place for found in self._found for place in found.report.places]

    def run(self, open_database: Callable[[], Database | None], *, dry: bool = False) -> list[Report]:
        """Import what was found. With `dry` nothing is written, and there may be no database."""
        size = sum(source.size for found in self._found for source in found.sources)
        worker = Worker() if size >= _WORTH_A_WORKER else None
        try:
            db = open_database()
            try:
                self._run(db, worker, dry)
            finally:
                if db is not None:
                    db.close()
        finally:
            if worker is not None:
                worker.close()
        return [found.report for found in self._found]

    def _run(self, db: Database | None, worker: Worker | None, dry: bool) -> None:
        jobs: list[tuple[_Found, Job]] = []
        for found in self._found:
            jobs += [(found, job) for job in _jobs(db, found)]
        if not jobs:
            return
        total, done = sum(job.source.size for _, job in jobs), 0
        messages = (worker.converted if worker else inline)([job for _, job in jobs])
        last = -1
        handling: _Handling | None = None
        for number, message in messages:
            found, job = jobs[number]
            if number != last:
                done += jobs[last][1].source.size if last >= 0 else 0
                last = number
                handling = _Handling(None if dry else db, job, found)
            self._progress(job.tool, done, total)
            assert handling is not None
            handling.hear(message)
        if db is not None and not dry:
            for _ in writes.index_search(db):
                self._progress("index", total, total)
            db.sync()


def _jobs(db: Database | None, found: _Found) -> Iterator[Job]:
    """The sources of a tool that are new, or not as they were."""
    tool, report = found.report.tool, found.report
    ledger = {} if db is None else {row[0]: row[1:] for row in query.rows(db, "import_sources", tool=tool)}
    lengths: dict[str, int] | None = None
    if db is not None and not found.named:
        found.deleted = {str(row[0]) for row in query.rows(db, "sync_deleted")}
    now = time.time()
    for source in found.sources:
        stamp, state = ledger.get(source.path, ("", "{}"))
        rests = source.modified < now - SETTLED_S
        known = _entries(state)
        for name, entry in known.items():
            found.roots.update({name: entry["id"], **({entry["root"]: entry["id"]} if "root" in entry else {})})
        same = stamp in (source.stamp, _OPEN + source.stamp) and not (stamp.startswith(_OPEN) and rests)
        if same and not found.named:
            report.unchanged += len(known)
            continue
        if known and lengths is None:
            assert db is not None
            lengths = dict(query.rows(db, "session_lengths", prefix=f"{tool}-"))
        gone = [name for name, entry in known.items() if lengths is not None and entry["id"] not in lengths]
        if same and not gone:
            report.unchanged += len(known)
            continue
        if found.named:  # who names a place wants what was there
            known = {name: entry for name, entry in known.items() if name not in gone}
            gone = []
        grown = [
            name
            for name, entry in known.items()
            if name not in gone and lengths is not None and lengths[entry["id"]] != entry["events"]
        ]
        yield Job(tool, source, known, grown, gone)


def _entries(state: str) -> dict[str, Any]:
    try:
        known = loads(state).get("sessions", {})
    except (ValueError, AttributeError):
        return {}
    return known if isinstance(known, dict) else {}


class _Handling:
    """The messages of one source on their way into the database."""

    def __init__(self, db: Database | None, job: Job, found: _Found) -> None:
        self._db = db
        self._job = job
        self._report = found.report
        self._roots = found.roots
        self._deleted = found.deleted
        self._target: Target | None = None
        self._about: dict[str, Any] = {}
        self._refused = False
        self._entries = dict(job.known)
        self._complete = True

    def hear(self, message: Message) -> None:
        kind = message[0]
        if kind == SESSION:
            self._begin(message[1])
        elif kind == ROWS:
            self._take(message[1])
        elif kind == END:
            self._end(message[1], message[2])
        elif kind == FAILED:
            self._failed(message[1])
        elif kind == DONE:
            self._done(message[1])

    def _begin(self, about: dict[str, Any]) -> None:
        about["original"] = self._roots.get(about["root"]) if about["root"] else None
        self._about = about
        self._refused = False
        self._target = None
        if self._db is None:
            if about["first"]:
                self._report.grown += 1
            else:
                self._report.new += 1
            return
        if about["how"] == NEW and about["session"] in self._deleted:
            self._refused = True
            self._report.unchanged += 1
            return
        self._guarded(lambda db: setattr(self, "_target", Target(db, self._job.tool, about)))

    def _take(self, rows: list[Any]) -> None:
        if self._refused:
            return
        target = self._target
        if target is not None:
            self._guarded(lambda _: target.take(rows))
        else:
            self._report.messages += messages_in(rows)

    def _end(self, id: str, entry: dict[str, Any]) -> None:
        target, self._target = self._target, None
        if target is not None and not self._refused:
            self._guarded(lambda _: target.finish())
        if self._refused:
            self._refused = False
            return
        known = self._entries.get(id)
        session = session_id(self._job.tool, id) if known is None else known["id"]
        if target is not None:
            self._count(target)
            session = target.id
        for root in (id, *([entry["root"]] if "root" in entry else [])):
            self._roots.setdefault(root, session)
        self._entries[id] = {"id": session, **entry}

    def _count(self, target: Target) -> None:
        report = self._report
        report.messages += target.messages
        if target.new:
            report.new += 1
        elif target.grown:
            report.grown += 1
        else:
            report.unchanged += 1
        if target.id != self._about["session"]:
            report.moved.append((self._about["session"], target.id))

    def _guarded(self, act: Callable[[Database], None]) -> None:
        """What the rules refuse of one session is no end of the others. A failing database is."""
        assert self._db is not None
        try:
            act(self._db)
        except SessionError as error:
            self._refused = True
            self._complete = False
            self._report.failed.append((self._job.source.path, refused(error)))

    def _failed(self, reason: str) -> None:
        """The source cannot be read; it is not tried again before it has changed."""
        self._report.failed.append((self._job.source.path, reason))
        self._note(self._job.source.stamp)

    def _note(self, stamp: str) -> None:
        if self._db is not None and self._complete:
            state = {"sessions": self._entries}
            writes.note_import(self._db, self._job.tool, self._job.source.path, stamp, state)

    def _done(self, facts: dict[str, Any]) -> None:
        report, source = self._report, self._job.source
        report.skipped += facts["skipped"]
        report.unchanged += facts["unchanged"]
        report.empty += facts["empty"]
        report.named += [(source.path, where, reason) for where, reason in facts["named"]]
        self._note((_OPEN if facts["open"] else "") + source.stamp)
