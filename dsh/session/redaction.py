"""Text taken out of stored events for good: keys of known shapes, or what a person names.

An event belongs to the session that wrote it, and every fork of that session shows it. So what is redacted in one is
gone from all of them, and a fork that is named brings along the events it inherited. A session at work is left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from dsh import query
from dsh.core.errors import SessionError, UsageError
from dsh.core.lossless import MAX_INT, loads
from dsh.core.secrets import MARK, Span
from dsh.session.masking import Masker
from dsh.store import rewriting, writes
from dsh.store.database import Database

_WINDOW = 1000  # events read at a time
_AROUND = 40  # characters of a snippet on each side of the mark


class Part(NamedTuple):
    """Events of one writer, both ends included."""

    session: str
    low: int
    high: int


class Change(NamedTuple):
    """An event as it is to be; `data` is JSON text."""

    session: str
    seq: int
    type: str
    time: int
    data: str

    @property
    def snippet(self) -> str:
        """The first mark with what stands around it; empty for a fragment whose text went into the one before."""
        for text in _texts(loads(self.data)):
            if found := MARK.search(text):
                start, end = max(0, found.start() - _AROUND), found.end() + _AROUND
                return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
        return ""


class Done(NamedTuple):
    """What became of a writer's events: how many were changed, or why none was."""

    session: str
    events: int
    refusal: str | None


def masker(pattern: str | None, *, regex: bool = False) -> Masker:
    """What finds the pattern, or without one all secrets. UsageError for one that is empty or no regular expression."""
    if pattern is None:
        return Masker(texts_only=True)
    if not pattern:
        raise UsageError("the pattern is empty")
    if regex:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{pattern!r} is no regular expression: {error}") from error
        return Masker(lambda text: _spans(compiled, text), texts_only=True)
    # Arguments of tools are JSON inside a text, and may hold the pattern as JSON writes it.
    forms = dict.fromkeys((pattern, json.dumps(pattern, ensure_ascii=False)[1:-1], json.dumps(pattern)[1:-1]))
    literal = re.compile("|".join(map(re.escape, forms)))
    written = [json.dumps(form, ensure_ascii=False)[1:-1] for form in forms]

    def idle(data: str) -> bool:
        return "\\u" not in data and "\\/" not in data and not any(form in data for form in written)

    return Masker(lambda text: _spans(literal, text), idle, texts_only=True)


def _spans(pattern: re.Pattern[str], text: str) -> list[Span]:
    """Where the pattern stands: not inside a mark, which is no text of anybody's; what meets a mark takes all of it."""
    marks = [found.span() for found in MARK.finditer(text)]
    spans: list[Span] = []
    first = 0  # of the marks that are not behind us
    for found in pattern.finditer(text):
        low, high = found.span()
        while first < len(marks) and marks[first][1] <= low:
            first += 1
        met = first
        while met < len(marks) and marks[met][0] < high:
            met += 1
        over = marks[first:met]
        if low == high or (over and over[0][0] <= low and high <= over[0][1]):
            continue
        if over:
            low, high = min(low, over[0][0]), max(high, over[-1][1])
        if spans and low < spans[-1][1]:
            low = spans.pop()[0]
        spans.append((low, high, ""))
    return spans


def parts(db: Database, sessions: Iterable[str] | None) -> list[Part]:
    """What is searched: the logs of these sessions, or of all. Each writer's events are there once."""
    every = sessions is None
    last: dict[str, tuple[int, int]] = {}
    for id_ in [str(row[0]) for row in query.rows(db, "session_names", session=None)] if sessions is None else sessions:
        low = 0
        for owner, high in sorted(query.rows(db, "search_lineage", session=id_), key=lambda row: int(row[1])):
            if not every or owner == id_:
                known = last.get(owner, (low, high))
                last[owner] = min(low, known[0]), max(high, known[1])
            low = high + 1
    return [Part(owner, low, min(high, MAX_INT)) for owner, (low, high) in last.items()]


def changes(db: Database, part: Part, masker: Masker, since: int | None = None) -> Iterator[Change]:
    """The events of a part that change, in order, as they are to be. `since` in epoch ms leaves older ones alone."""
    before: dict[int, str] = {}
    for seq, type_, time, data, *_ in masker.rows(_noting(_rows(db, part, since), before)):
        if data is not before.pop(seq):
            yield Change(part.session, seq, type_, time, data)


def _noting(rows: Iterable[Any], before: dict[int, str]) -> Iterator[Any]:
    """The rows, each one's payload noted until it comes back."""
    for row in rows:
        before[row[0]] = row[3]
        yield row


def _rows(db: Database, part: Part, since: int | None) -> Iterator[Any]:
    low = part.low
    while low <= part.high and (rows := query.rows(db, "events_page", session=part.session, low=low, limit=_WINDOW)):
        yield from (row for row in rows if row[0] <= part.high and (since is None or row[2] >= since))
        low = rows[-1][0] + 1


def redact(db: Database, found: Iterable[Part], masker: Masker, since: int | None = None) -> Iterator[Done]:
    """Take what the masker finds out of these events, a writer's in one transaction; what became of each that has any.

    Afterwards `rewriting.purge` makes the file forget it too.
    """
    for part in found:
        before = masker.counts.copy()
        try:
            with db.transaction():  # what is to stay is read where nobody can change it before it is written
                changed = list(changes(db, part, masker, since))
                if changed:
                    writes.free_session(db, part.session)
                    rewriting.redact_events(db, part.session, [(each.seq, each.data) for each in changed])
        except SessionError as error:
            masker.counts = before
            yield Done(part.session, 0, error.message)
        else:
            if changed:
                yield Done(part.session, len(changed), None)


def waiting(db: Database, masker: Masker) -> list[str]:
    """Sessions with a message in the inbox that holds what was looked for: it becomes an event yet."""
    rows = query.rows(db, "inbox_all")
    return list({str(row[0]): None for row in rows if any(masker.holds(text) for text in row[2:] if text is not None)})


def _texts(value: Any) -> Iterator[str]:
    """The texts in a JSON value, outside in."""
    pending = [value]
    while pending:
        value = pending.pop(0)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
