"""The clauses of a request: checked when it is made, counted, and asked of a session or an event (SQ-30 to SQ-35)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from dsh.core.lossless import dumps
from dsh.query.service.scan import Pattern
from dsh.query.service.values import SURFACE_CLASSES, SessionRecord, refuse

MAX_PREDICATES = {"sessions": 14, "events": 13}
MAX_VALUES = 32_766
AVAILABILITY = ("live", "persisted")


class Clause(NamedTuple):
    """One checked clause: a list of `values` as given, and those without repeats; a range with `low` and `high`, both
    included, None is open; or for the scan a `pattern`."""

    kind: str
    values: tuple[Any, ...] | None = None
    allowed: frozenset[Any] = frozenset()
    low: float | None = None
    high: float | None = None
    pattern: Pattern | None = None

    def admits(self, value: Any) -> bool:
        """Whether a value fits; a range is asked with a number."""
        if self.values is not None:
            return value in self.allowed
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    @property
    def predicates(self) -> int:
        """How many conditions it is made of (SQ-62)."""
        if self.values is None:
            return 1 if self.pattern else (self.low is not None) + (self.high is not None)
        return 0 if self.kind == "availability" and len(self.allowed) == len(AVAILABILITY) else 1

    def canonical(self) -> list[Any]:
        """The same for every spelling of the clause; repeated values stay (SQ-58)."""
        if self.values is not None:
            return [self.kind, sorted(self.values, key=lambda v: (v is not None, v or ""))]
        bounds: tuple[Any, ...] = (self.low, self.high)
        return [self.kind, *(hex(bound) if isinstance(bound, int) else bound for bound in bounds)]


Filters = tuple[Clause, ...]


def session_filters(given: Any) -> Filters:
    """The checked clauses of a request about sessions. SESSION_QUERY_INVALID_FILTER (SQ-32)."""
    return tuple(_clause(each, _SESSION) for each in _listed(given))


def event_filters(given: Any, *, scan: bool = False) -> Filters:
    """The same about events; only a `scan` takes a `text` clause (SQ-53)."""
    clauses = tuple(_clause(each, _EVENT) for each in _listed(given))
    if not scan and any(clause.pattern for clause in clauses):
        refuse("INVALID_FILTER", "a full-text search takes no text clause; its text is the query")
    return clauses


def check_size(scope: str, *filters: Filters) -> None:
    """Refuse a search whose filters are more than one statement can ask (SQ-62)."""
    clauses = [clause for each in filters for clause in each]
    if sum(clause.predicates for clause in clauses) > MAX_PREDICATES[scope]:
        refuse("INVALID_FILTER", f"a search of {scope} takes at most {MAX_PREDICATES[scope]} conditions")
    if sum(len(c.values or ()) + (c.low is not None) + (c.high is not None) for c in clauses) > MAX_VALUES:
        refuse("INVALID_FILTER", f"the filters of a search take at most {MAX_VALUES} values")


def canonical(filters: Filters) -> list[Any]:
    """The clauses in an order that depends on nothing but what they say."""
    return sorted((clause.canonical() for clause in filters), key=dumps)


def admits_session(filters: Filters, record: SessionRecord) -> bool:
    return all(_SESSION_VALUE[clause.kind](clause, record) for clause in filters)


def admits_event(filters: Filters, seq: int, type_: str, time: int) -> bool:
    """Whether the clauses about place, time and type let an event through; those about surface and text are others'."""
    facts = {"seq": seq, "type": type_, "time": time}
    return all(clause.admits(facts[clause.kind]) for clause in filters if clause.kind in facts)


def values_of(filters: Filters, kind: str) -> frozenset[Any] | None:
    """What the lists of this kind leave, None if there is no such clause."""
    lists = [clause.allowed for clause in filters if clause.kind == kind]
    return frozenset.intersection(*lists) if lists else None


# --------------------------------------------------------------------------------------------------------- checking


def _listed(given: Any) -> Iterable[Any]:
    if not isinstance(given, (list, tuple)):
        refuse("INVALID_FILTER", "filters must be a list")
    return list(given)


def _clause(given: Any, kinds: Mapping[str, Callable[[str, Mapping[str, Any]], Clause]]) -> Clause:
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        refuse("INVALID_FILTER", f"a filter has one of the kinds {', '.join(kinds)}")
    return kinds[kind](kind, given)


def _texts(kind: str, given: Mapping[str, Any], *, absent: bool = False, known: tuple[Any, ...] = ()) -> Clause:
    values = given.get("values")
    if not isinstance(values, (list, tuple)):
        refuse("INVALID_FILTER", f"the filter {kind} needs a list of values")
    for value in values:
        if not (isinstance(value, str) or (absent and value is None)):
            refuse("INVALID_FILTER", f"the values of the filter {kind} must be texts{' or null' if absent else ''}")
        if known and value not in known:
            refuse("INVALID_FILTER", f"the values of the filter {kind} are {', '.join(known)}")
    return Clause(kind, tuple(values), frozenset(values))


def _or_absent(kind: str, given: Mapping[str, Any]) -> Clause:
    return _texts(kind, given, absent=True)


def _availability(kind: str, given: Mapping[str, Any]) -> Clause:
    return _texts(kind, given, known=AVAILABILITY)


def _surface(kind: str, given: Mapping[str, Any]) -> Clause:
    return _texts(kind, given, known=SURFACE_CLASSES)


def _range(kind: str, given: Mapping[str, Any]) -> Clause:
    bounds: list[float | None] = []
    for name in ("from", "to"):
        bound = given.get(name)
        if name in given and not (type(bound) is int or (type(bound) is float and math.isfinite(bound))):
            refuse("INVALID_FILTER", f"{name} of the filter {kind} must be a finite number")
        bounds.append(int(bound) if isinstance(bound, float) and bound.is_integer() else bound)
    low, high = bounds
    if low is not None and high is not None and low > high:
        refuse("INVALID_FILTER", f"from of the filter {kind} is greater than to")
    return Clause(kind, low=low, high=high)


def _text(kind: str, given: Mapping[str, Any]) -> Clause:
    text = given.get("text")
    if not isinstance(text, str):
        refuse("INVALID_FILTER", "the filter text needs a text")
    pattern = Pattern.of(text)
    if pattern is None:
        refuse("INVALID_FILTER", "the text of a filter must not be blank")
    return Clause(kind, pattern=pattern)


_SESSION = {
    "id": _texts,
    "cwd": _or_absent,
    "created-at": _range,
    "parent": _or_absent,
    "availability": _availability,
}
_EVENT = {"seq": _range, "time": _range, "type": _texts, "surface": _surface, "text": _text}

_SESSION_VALUE: dict[str, Callable[[Clause, SessionRecord], bool]] = {
    "id": lambda clause, record: clause.admits(record.id),
    "cwd": lambda clause, record: clause.admits(record.header.get("cwd")),
    "created-at": lambda clause, record: clause.admits(record.header["createdAt"]),
    "parent": lambda clause, record: clause.admits(record.header.get("parentSession")),
    "availability": lambda clause, record: (
        (record.live and clause.admits("live")) or (record.persisted and clause.admits("persisted"))
    ),
}
