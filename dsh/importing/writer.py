"""Rows of converted transcripts into the database: which session takes them, and from which event on.

Nothing that is stored is ever changed. A session that has all rows before the first new one takes the rest. Where that
is not so, as somebody has gone on with the session here, or the source was rewritten, a new session is made: it forks
off the old one at the last end of a turn that both have, and takes the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsh import query
from dsh.core.errors import SessionError
from dsh.importing.build import APPEND, Row
from dsh.importing.convert import CONTINUED, GROWN, NEW
from dsh.session.transfer import stored_rows
from dsh.store import writes
from dsh.store.database import Database

_MAX_ROWS = 10_000  # stored in one transaction


class Target:
    """The session that takes the rows of one transcript, as it turns out while they come."""

    def __init__(self, db: Database, tool: str, about: dict[str, Any]) -> None:
        self.db = db
        self.tool = tool
        self.id: str = about["session"]
        self.new = self.grown = False
        self.messages = 0  # stored
        self._about = about
        self._next: int = about["first"]
        self._made = about["how"] == GROWN
        self._base: str | None = None  # the session that the rows are compared with, while they are
        self._known: Iterator[Row] | None = None  # its rows
        self._shared = -1  # the last end of a turn that both have
        self._behind: list[Row] = []  # rows behind it
        self._imported: int | None = None  # rows of the base that are known to be the same; None: they are compared
        self._compare()

    def _compare(self) -> None:
        about = self._about
        if about["how"] == GROWN:
            return
        own = query.row(self.db, "session_state", session=self.id)
        base = own
        if about["how"] == NEW and own is None and about["original"]:
            base = query.row(self.db, "session_state", session=about["original"])
        if base is None:
            return
        self._base = str(base[0])
        if about["how"] == CONTINUED:
            self._imported = about["imported"]
        else:
            self._known = ((row[1], row[2], row[3], row[4], row[5]) for row in stored_rows(self.db, base[0], base[9]))

    def take(self, rows: list[Row]) -> None:
        """Store rows, or first find out where they go. SessionError if the database refuses one."""
        for start in range(0, len(rows), _MAX_ROWS):
            part = rows[start : start + _MAX_ROWS]
            with self.db.transaction():
                if self._base is not None:
                    part = self._after_comparing(part)
                if part:
                    self._store(part)

    def finish(self) -> None:
        """All rows were taken. A copy that ends where its original goes on is a fork, with rows of its own only behind
        the last end of a turn."""
        if self._base is not None and self._base != self.id:
            rest = self._behind
            with self.db.transaction():
                self._fork()
                if rest:
                    self._store(rest)

    def _after_comparing(self, rows: list[Row]) -> list[Row]:
        """The rows that are to be stored, once it is known where; until then none."""
        for place, row in enumerate(rows):
            if self._imported is not None:
                same = self._next < self._imported
            else:
                assert self._known is not None
                stored = next(self._known, None)
                if stored is None and self._base == self.id:  # it has the rows so far and no more
                    self._base, self._known, self._behind = None, None, []
                    self._made = True
                    return rows[place:]
                same = stored is not None and (stored[0], stored[2], stored[4]) == (row[0], row[2], row[4])
            if not same:
                rest = self._behind + rows[place:]
                self._fork()
                return rest
            self._behind.append(row)
            if row[0] == "turn/end":
                self._shared, self._behind = self._next, []
            self._next += 1
        return []

    def _fork(self) -> None:
        """Begin a new session behind what both have."""
        base = self._base
        assert base is not None
        self._next = self._shared + 1
        if base == self.id:
            self.id = self._free_id()
        if self._shared >= 0:
            about = self._about
            writes.insert_fork(
                self.db, self.id, base, self._shared, about["created_at"], about["cwd"], source=self.tool
            )
            self._made = self.new = True
        self._base, self._known, self._behind = None, None, []

    def _free_id(self) -> str:
        number = 2
        while query.row(self.db, "session_state", session=f"{self.id}-{number}") is not None:
            number += 1
        return f"{self.id}-{number}"

    def _store(self, rows: list[Row]) -> None:
        if not self._made:
            about = self._about
            header: dict[str, Any] = {
                "version": 0,
                "id": self.id,
                "createdAt": about["created_at"],
                "cwd": about["cwd"],
            }
            if about["parent"] and about["parent"] != self.id:
                header["parentSession"] = about["parent"]
                header["delegationDepth"] = 1
            writes.insert_session(self.db, header, source=self.tool)
            self._made = self.new = True
        elif not self.new:
            self.grown = True
        writes.insert_events(self.db, self.id, self._next, rows)
        self.messages += messages_in(rows)
        self._next += len(rows)


def messages_in(rows: list[Row]) -> int:
    """How many of the rows a person would call messages."""
    return sum([1 for row in rows if row[4] == APPEND])


def refused(error: SessionError) -> str:
    """Why a session could not be stored, in a few words."""
    if error.code == "SESSION_LEASED":
        return "the session is at work here; the next import takes it up"
    if error.code in ("SESSION_ALREADY_EXISTS", "SEQ_MISMATCH"):
        return "another import is at it; the next one takes up what is left"
    return f"the session was refused ({error.code})"
