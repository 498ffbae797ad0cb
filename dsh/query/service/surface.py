"""The surface fold: from a log's envelopes to which events the model sees, and which replaced which (SE-10 to SE-17).

The database keeps a surface of its own, by triggers; this reads the log itself, in one pass, and refuses one that could
not have been written (SQ-8). Nodes are a linked list, so a replacement costs what it removes, however long the log is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from dsh.core.events import SURFACE_TYPES
from dsh.core.lossless import loads
from dsh.query.service.values import SurfaceClass, refuse

_HEAD = -1


class Surface:
    """Made event by event with `add`. `replaced_by` maps a removed node to the event that removed it, `removed` an
    event to what it removed, in surface order, `sources` an event to its recorded list."""

    def __init__(self, session: str) -> None:
        self._session = session
        self.length = 0
        self.replaced_by: dict[int, int] = {}
        self.removed: dict[int, tuple[int, ...]] = {}
        self.sources: dict[int, tuple[int, ...]] = {}
        self._next: dict[int, int | None] = {_HEAD: None}
        self._before: dict[int, int] = {}
        self._last = _HEAD

    def add(self, seq: Any, type_: Any, sources: str | None, op: str | None, span: int = 1) -> None:
        """Take the next event, which stands for `span` seqs; `sources`, `op` are JSON.
        SESSION_QUERY_INVALID_SURFACE."""
        if type(seq) is not int or seq != self.length:
            self._refuse(f"event {seq} stands where event {self.length} belongs")
        if (type_ in SURFACE_TYPES) is not (op is not None) or (op is None and sources is not None):
            self._refuse(f"event {seq}, {type_}, has a mark of the surface that does not belong to its type")
        self.length += span
        if op is None:
            return
        named = self._sources(seq, type_, sources)
        where = self._json(seq, op)
        if where == "append":
            self._place(seq, self._last, None)
            return
        removed = self._range(seq, where)
        if not set(removed) <= set(named):
            self._refuse(f"event {seq} does not name every event that it replaces")
        before, after = self._before[removed[0]], self._next[removed[-1]]
        for gone in removed:
            del self._next[gone], self._before[gone]
            self.replaced_by[gone] = seq
        self.removed[seq] = removed
        self._place(seq, before, after)

    def nodes(self) -> Iterator[int]:
        """What the model sees, in history order."""
        at = self._next[_HEAD]
        while at is not None:
            yield at
            at = self._next[at]

    def class_of(self, seq: int) -> SurfaceClass:
        if seq in self._next:
            return "current"
        return "shadowed" if seq in self.replaced_by else "log-only"

    def chain(self, seq: int) -> tuple[int, ...]:
        """Who replaced it, who replaced that one, and so on."""
        found: list[int] = []
        at = self.replaced_by.get(seq)
        while at is not None:
            found.append(at)
            at = self.replaced_by.get(at)
        return tuple(found)

    def _place(self, seq: int, before: int, after: int | None) -> None:
        self._next[before], self._before[seq], self._next[seq] = seq, before, after
        if after is None:
            self._last = seq
        else:
            self._before[after] = seq

    def _range(self, seq: int, op: Any) -> tuple[int, ...]:
        shaped = isinstance(op, dict) and op.keys() == {"op", "start", "end"} and op["op"] == "replace"
        start, end = (op["start"], op["end"]) if shaped else (None, None)
        removed: list[int] = []
        at = start if type(start) is int and type(end) is int and start >= 0 and start in self._next else None
        while at is not None:
            removed.append(at)
            at = self._next[at] if at != end else None
        if not removed or removed[-1] != end:
            self._refuse(f"event {seq} replaces what is not on the surface")
        return tuple(removed)

    def _sources(self, seq: int, type_: str, text: str | None) -> tuple[int, ...]:
        if text is None:
            return ()
        named = self._json(seq, text)
        if (
            not isinstance(named, list)
            or not all(type(n) is int and 0 <= n < seq for n in named)
            or len(set(named)) != len(named)
            or (not named and type_ != "assistant/message")
        ):
            self._refuse(f"event {seq} has sources that are not different earlier events")
        self.sources[seq] = tuple(named)
        return self.sources[seq]

    def _json(self, seq: int, text: str) -> Any:
        try:
            return loads(text)
        except (ValueError, TypeError):
            self._refuse(f"event {seq} has a mark of the surface that is not JSON")

    def _refuse(self, what: str) -> NoReturn:
        refuse("INVALID_SURFACE", f"the log of session {self._session} is not valid: {what}")
