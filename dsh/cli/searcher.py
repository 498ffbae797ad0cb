"""The searches of the picker: in a thread of their own, on a connection of their own, so that nobody waits for one.

The newest question of each kind is answered, one that was overtaken is given up. Whoever asks is rung when there is an
answer. Everything in an answer is harmless to a terminal.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsh import query
from dsh.cli import output
from dsh.cli.common import open_existing
from dsh.cli.drawing import Block, Preview
from dsh.cli.picker import Item, Wanted
from dsh.core.errors import DshError, StoreError
from dsh.core.lossless import MAX_INT, dumps
from dsh.query.search import Filters, Hit, refresh, search
from dsh.store.database import Database

LISTED = 200  # sessions that an empty query lists
HITS = 100
_SNIPPET = 200
_OVERTAKEN_S = 0.15  # a search that takes longer is given up when another is wanted
_LONGEST_S = 5.0  # no search takes longer
_AROUND = 8  # events before and after a hit that a preview shows
_LAST = 30  # events of a session that are previewed
_BEFORE, _AFTER = 800, 3000  # characters around a match in an event of a preview
_TYPING = re.compile(r"(?:^|\s)[^\W_]{2,}$")  # a word that is being typed


class Found(NamedTuple):
    """The answer to a search; `items` is None if it failed or was cut short, and `notice` says why."""

    wanted: Wanted
    items: list[Item] | None
    more: bool = False
    notice: str = ""


class _GivenUp(Exception):
    """A search was overtaken by another, took too long, or nobody waits any more."""


class Searcher:
    """Answers questions. `search` and `preview` ask, `answers` gives what there is, `close` ends the thread."""

    def __init__(
        self, path: Path, filters: Filters, here: str | None, ring: Callable[[], None], how: Mapping[str, Any]
    ) -> None:
        """`here` is the folder of the scope of that name, `how` are more arguments for `search`."""
        self._path, self._filters, self._here, self._ring, self._how = path, filters, here, ring, how
        self._lock = threading.Condition()
        self._wanted: Wanted | None = None
        self._item: Item | None = None
        self._closed = False
        self._answers: list[Found | Preview | BaseException] = []
        self._since = 0.0
        self._thread = threading.Thread(target=self._run, name="searcher", daemon=True)
        self._thread.start()

    def search(self, wanted: Wanted) -> None:
        with self._lock:
            self._wanted = wanted
            self._lock.notify()

    def preview(self, item: Item) -> None:
        with self._lock:
            self._item = item
            self._lock.notify()

    def answers(self) -> list[Found | Preview]:
        """What was found since the last time, oldest first. Raises what ended the thread, if anything has."""
        with self._lock:
            answers, self._answers = self._answers, []
        found: list[Found | Preview] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        return found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join(0.5)

    # ------------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            db = open_existing(self._path, read_only=False)
            try:
                db.hear_signals(self._ask)
                while (question := self._next()) is not None:
                    self._since = time.monotonic()
                    self._tell(self._answered(db, question))
            finally:
                db.close()
        except BaseException as error:  # noqa: BLE001 - it is raised again where it can be told
            self._tell(error)

    def _next(self) -> Wanted | Item | None:
        with self._lock:
            while not self._closed and self._wanted is None and self._item is None:
                self._lock.wait()
            if self._closed:
                return None
            question: Wanted | Item | None = self._wanted
            if question is not None:
                self._wanted = None
            else:
                question, self._item = self._item, None
            return question

    def _answered(self, db: Database, question: Wanted | Item) -> Found | Preview | None:
        try:
            return self._found(db, question) if isinstance(question, Wanted) else _preview(db, question)
        except _GivenUp:
            with self._lock:
                if self._wanted is not None:
                    self._item = self._item or (question if isinstance(question, Item) else None)
                    return None
            if isinstance(question, Item):
                return Preview(question, question.title, "", ())
            return Found(question, None, notice=f"not found within {_LONGEST_S:g} s: say more")

    def _tell(self, answer: Found | Preview | BaseException | None) -> None:
        if answer is not None:
            with self._lock:
                self._answers.append(answer)
            self._ring()

    def _ask(self) -> bool:
        """Called by SQLite every now and then."""
        taken = time.monotonic() - self._since
        if self._closed or taken > _LONGEST_S or (self._wanted is not None and taken > _OVERTAKEN_S):
            raise _GivenUp
        return False

    def _found(self, db: Database, wanted: Wanted) -> Found:
        filters = self._narrowed(wanted)
        if not wanted.text.strip():
            items = _listed(db, filters)
            return Found(wanted, items, len(items) == LISTED)
        one = filters.session is not None
        text = wanted.text if self._how.get("literal") or self._how.get("regex") else typed(wanted.text)
        missed = self._indexed(db)
        try:
            result = search(db, text, filters, limit=HITS, snippet_chars=_SNIPPET, all_hits=one, **self._how)
        except StoreError:
            raise
        except DshError as error:  # half typed
            return Found(wanted, None, notice=output.one_line(error.message))
        items = [_item(hit, one) for hit in result.hits]
        notice = missed or "" if items else "; ".join(result.notes)
        return Found(wanted, items, len(items) == HITS, output.one_line(notice))

    def _indexed(self, db: Database) -> str | None:
        """Index what is new; not while somebody waits who has typed on, so it is not given up."""
        db.hear_signals()
        try:
            return refresh(db)
        finally:
            self._since = time.monotonic()
            db.hear_signals(self._ask)

    def _narrowed(self, wanted: Wanted) -> Filters:
        filters = self._filters
        if wanted.scope == "here":
            filters = filters._replace(cwd=self._here, exact_cwd=False)
        elif wanted.session is not None:
            filters = filters._replace(session=wanted.session)
        return filters


def _item(hit: Hit, one: bool) -> Item:
    """A hit as a line. Among those of one session its title tells nothing."""
    title = f"{hit.type} {hit.seq}" if one else hit.title
    return Item(
        hit.session_id, hit.seq, hit.time, output.title(title), output.one_line(hit.cwd),
        output.printable(hit.snippet), tuple(hit.matches),
    )  # fmt: skip


def typed(text: str) -> str:
    """A query while it is typed: its last word may go on."""
    open_ended = _TYPING.search(text) is not None and text.split()[-1] != "OR" and text.count('"') % 2 == 0
    return f"{text}*" if open_ended else text


def _listed(db: Database, filters: Filters) -> list[Item]:
    """The newest sessions."""
    rows = query.rows(
        db, "sessions_newest", session=filters.session, cwd=filters.cwd, exact=int(filters.exact_cwd),
        since=filters.since, until=filters.until, limit=LISTED,
    )  # fmt: skip
    return [Item(id_, None, at, output.title(title), output.one_line(cwd)) for id_, title, cwd, at in rows]


def _preview(db: Database, item: Item) -> Preview:
    """What stands around a hit, or the last events of a session."""
    from dsh.cli.show import around, read
    from dsh.cli.transcript import compact
    from dsh.session.render.entries import Entry, call_line

    marks = matcher(item)
    with db.snapshot():
        row = query.row(db, "session_list", cwd=None, depth=MAX_INT, hidden=1, ids=dumps([item.session_id]), limit=1)
        if row is None:  # deleted meanwhile
            return Preview(item, item.title, "", ())
        seq, before, after = (MAX_INT, _LAST, 0) if item.seq is None else (item.seq, _AROUND, _AROUND)
        low, high, place = around(db, item.session_id, seq, before, after)

        def block(entry: Entry) -> Block:
            hit = entry.seq == place and item.seq is not None
            text = output.printable(entry.text).replace("\t", "    ").strip("\n")
            if hit:
                text = _window(text, marks)
            elif entry.kind == "call":
                text = call_line(text)
            else:
                text = compact(text) if entry.kind in ("result", "thinking") else text[:_AFTER]
            name = f"{entry.label} {'failed' if entry.failed else 'result'}" if entry.kind == "result" else entry.label
            spans = tuple(found.span() for found in marks.finditer(text)) if marks else ()
            return Block(output.one_line(name), text, spans, hit, entry.kind in ("result", "thinking"))

        blocks = tuple(block(entry) for entry in read(db, item.session_id, low, high) if entry.kind != "turn")
    facts = (item.session_id, output.home_shortened(row[2]), row[10] or "", output.local(row[6]))
    return Preview(item, output.title(row[1]) or "(no title)", output.one_line(" · ".join(filter(None, facts))), blocks)


def _window(text: str, marks: re.Pattern[str] | None) -> str:
    first = marks.search(text) if marks else None
    at = max(0, first.start() - _BEFORE) if first else 0
    return f"{'…' if at else ''}{text[at : at + _BEFORE + _AFTER]}{'…' if at + _BEFORE + _AFTER < len(text) else ''}"


def matcher(item: Any) -> re.Pattern[str] | None:
    """Finds in a text what was marked in a hit's snippet (of an Item or a Hit), by whatever it was found."""
    words = {item.snippet[start:end] for start, end in item.matches}
    told = sorted((r"\s+".join(map(re.escape, word.split())) for word in words if word.strip()), key=len, reverse=True)
    return re.compile("|".join(told), re.IGNORECASE) if told else None
