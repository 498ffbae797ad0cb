"""Reading sources and building logs from what they hold: most of the work of an import."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from dsh.importing import registry
from dsh.importing.build import Builder, Row
from dsh.importing.model import ReadError, Skipped, Source, Transcript

SETTLED_S = 3600  # a source that was not touched for so long is not being written
_BATCH_ROWS = 4000
_BATCH_CHARACTERS = 4_000_000
_NAMED = 20  # skipped records of a source that are told one by one

# What comes back for a job: for each transcript with news (SESSION, facts), (ROWS, rows)..., (END, its id, its entry of
# the ledger); last, for the source, (DONE, facts) or (FAILED, reason). All of it is plain tuples, dicts and texts.
SESSION, ROWS, END, DONE, FAILED = "session", "rows", "end", "done", "failed"
Message = tuple[Any, ...]

# How a session takes rows. NEW: it has none. GROWN: it has all rows before the first that comes. CONTINUED: it has rows
# of its own behind those that were imported. REWRITTEN: its rows are not, or not for sure, those of the source.
NEW, GROWN, CONTINUED, REWRITTEN = "new", "grown", "continued", "rewritten"


class Job(NamedTuple):
    """A source to read. `known` are the ledger's entries of its transcripts by their ids, `continued` those whose
    session has grown here, `gone` those whose session was deleted here and stays so."""

    tool: str
    source: Source
    known: dict[str, Any]
    continued: list[str]
    gone: list[str]


class _Again(Exception):
    """The transcript has to be read once more, and all of it sent."""

    def __init__(self, how: str) -> None:
        self.how = how


def converted(job: Job) -> Iterator[Message]:
    """Read one source, whatever it holds."""
    facts: dict[str, Any] = {"skipped": 0, "named": [], "unchanged": 0, "empty": 0, "open": False}
    again: dict[str, str] = {}
    try:
        for transcript in _transcripts(job):
            if transcript.id in job.gone:
                facts["unchanged"] += 1
                continue
            try:
                yield from _Reading(job, transcript, facts).messages()
            except _Again as cause:
                again[transcript.id] = cause.how
        for transcript in _transcripts(job) if again else ():
            if transcript.id in again:
                yield from _Reading(job, transcript, facts, how=again.pop(transcript.id)).messages()
    except ReadError as error:
        yield FAILED, error.message
    except OSError as error:
        yield FAILED, error.strerror or str(error)
    except MemoryError:
        yield FAILED, "there is not enough memory to read it"
    except Exception as error:  # noqa: BLE001 - a reader that trips over what it did not foresee loses this file, not the others
        yield FAILED, f"cannot be understood ({type(error).__name__})"
    else:
        yield DONE, facts


def _transcripts(job: Job) -> Iterator[Transcript]:
    """The transcripts of a source, each id once."""
    seen: set[str] = set()
    for transcript in registry.reader(job.tool).transcripts(job.source):
        if transcript.id and transcript.id not in seen:
            seen.add(transcript.id)
            yield transcript


class _Reading:
    """One transcript on its way to a log."""

    def __init__(self, job: Job, transcript: Transcript, facts: dict[str, Any], how: str | None = None) -> None:
        self._job = job
        self._transcript = transcript
        self._facts = facts
        self._known: dict[str, Any] | None = job.known.get(transcript.id)
        self._how = how or (NEW if self._known is None else GROWN)
        self._stored = self._known["events"] if self._known is not None and how is None else 0
        self._due: list[list[Any]] = [] if self._known is None else list(self._known["marks"])
        self._marks: list[list[Any]] = []
        touched = job.source.modified if transcript.touched is None else transcript.touched / 1000
        self._settled = touched < time.time() - SETTLED_S
        self._builder = Builder(job.tool, transcript.created_at or int(job.source.modified * 1000))
        self._digest = hashlib.blake2b(digest_size=16)
        self._taken = 0  # rows that the digest covers
        self._announced = False

    def messages(self) -> Iterator[Message]:
        transcript, builder, facts = self._transcript, self._builder, self._facts
        if self._untouched():
            facts["unchanged"] += 1
            return
        size, held, skipped = 0, False, 0
        for item in transcript.items:
            if isinstance(item, Skipped):
                skipped += 1
                if len(facts["named"]) < _NAMED and self._how != REWRITTEN:
                    facts["named"].append((item.where, item.reason))
                continue
            if not self._settled and builder.length >= self._stored and getattr(item, "partial", False):
                held = True
                break
            builder.feed(item)
            if self._due:
                self._repeat_marks()
            size += _weight(item)
            if self._taken < self._stored or len(builder.rows) >= _BATCH_ROWS or size >= _BATCH_CHARACTERS:
                size = 0
                yield from self._flushed()
        facts["skipped"] += skipped if self._how in (NEW, GROWN) else 0
        if not builder.prompts and not builder.answers and self._known is None:
            facts["empty"] += 1
            return
        self._finish(held)
        yield from self._flushed()
        if self._taken < self._stored:
            raise _Again(REWRITTEN)
        is_open = held or builder.open
        facts["open"] |= is_open
        if not self._announced:
            facts["unchanged"] += 1
        entry = {"events": builder.length, "digest": self._digest.hexdigest(), "marks": self._marks}
        if transcript.root is not None:
            entry["root"] = transcript.root
        yield END, transcript.id, {**entry, "stamp": transcript.stamp, "open": is_open}

    def _untouched(self) -> bool:
        known, stamp = self._known, self._transcript.stamp
        return known is not None and stamp is not None and known["stamp"] == stamp and not known["open"]

    def _finish(self, held: bool) -> None:
        """What is said of a transcript as a whole, now that all of it was read."""
        if self._settled and self._builder.open and not held:
            self._mark("end", "")
        title = self._transcript.title
        if title and title != next((mark[2] for mark in reversed(self._marks) if mark[1] == "title"), None):
            self._mark("title", title)

    def _mark(self, kind: str, value: str) -> None:
        at = self._builder.length
        if kind == "end":
            self._builder.interrupted()
        else:
            self._builder.titled(value)
        self._marks.append([at, kind, value])

    def _repeat_marks(self) -> None:
        """Log what came from outside of the records at the place where it was logged when they were first read."""
        while self._due and self._due[0][0] <= self._builder.length:
            _, kind, value = self._due.pop(0)
            self._mark(kind, value)

    def _flushed(self) -> Iterator[Message]:
        """The rows that were built since the last time and are to be stored."""
        rows = self._builder.take()
        if self._taken < self._stored:
            passed = self._stored - self._taken
            self._cover(rows[:passed])
            if self._taken == self._stored and self._known and self._digest.hexdigest() != self._known["digest"]:
                raise _Again(REWRITTEN)
            rows = rows[passed:]
        if not rows:
            return
        if self._how == GROWN and self._transcript.id in self._job.continued:
            raise _Again(CONTINUED)
        self._cover(rows)
        if not self._announced:
            self._announced = True
            yield SESSION, self._about(rows[0][1])
        yield ROWS, rows

    def _cover(self, rows: list[Row]) -> None:
        self._taken += len(rows)
        self._digest.update("\n".join([f"{row[0]} {row[4]} {row[2]}" for row in rows]).encode())
        self._digest.update(b"\n" if rows else b"")

    def _about(self, first: int) -> dict[str, Any]:
        transcript, known = self._transcript, self._known
        return {
            "transcript": transcript.id,
            "session": session_id(self._job.tool, transcript.id) if known is None else known["id"],
            "how": self._how,
            "first": self._stored,
            "imported": 0 if known is None else known["events"],
            "created_at": first if transcript.created_at is None else transcript.created_at,
            "cwd": transcript.cwd if transcript.cwd and os_path(transcript.cwd) else None,
            "parent": session_id(self._job.tool, transcript.parent) if transcript.parent else None,
            "root": transcript.root,
        }


def _weight(item: Any) -> int:
    """About how many characters a record brings."""
    blocks = getattr(item, "blocks", None)
    if not blocks:
        return 0
    return sum([len(block.get("text", "")) + len(block.get("arguments", "")) for block in blocks])


def session_id(tool: str, id: str) -> str:
    """The session's id of a tool's transcript, always the same. It is easy to type and safe as the name of a file."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in id)
    if plain == id and len(id) <= 100:
        return f"{tool}-{id}"
    told_apart = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"{tool}-{plain[:80]}-{told_apart}"


def os_path(path: str) -> bool:
    """Whether a header can hold it: an absolute path of this or another system, whole text."""
    return (path[:1] == "/" or (path[:1].isascii() and path[:1].isalpha() and path[1:2] == ":")) and "\0" not in path
