"""What a search of people is narrowed to: by options, and by `name:value` inside the query.

Session, folder, source, type and tool are words of the index (dsh.store.functions), so a filter by them is one more
term of the match. Time and model are looked at event by event, and narrow beforehand to the sessions in which there
can be any. A result does not say which tool it is of, so it is looked at, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dsh.core.errors import DshError, UsageError
from dsh.query.moment import point_in_time
from dsh.query.naming import find_session
from dsh.store.database import Database
from dsh.store.functions import DOCUMENT_TYPES, below_tag, folder_tag, source_tag, tool_tag, type_tag

TYPES: Mapping[str, tuple[str, ...]] = {
    "user": ("user/message",),
    "assistant": ("assistant/message",),
    "steering": ("steering/message",),
    "tool": ("tool/call", "tool/result"),
    "call": ("tool/call",),
    "result": ("tool/result",),
    "todo": ("todo/write",),
    "blocked": ("prompt/blocked",),
    "error": ("turn/end",),
    **{name: (name,) for name in DOCUMENT_TYPES},
}
ROLES: Mapping[str, tuple[str, ...]] = {
    "user": ("user/message", "steering/message"),
    "assistant": ("assistant/message",),
    "tool": ("tool/call", "tool/result"),
}
_NONE = ("none",)  # the type of no event: filters that exclude each other


class Filters(NamedTuple):
    """What to search in: a session and, for a fork, what it inherited; sessions of this folder (absolute path) and
    those below it, with `exact_cwd` of it alone; event types; a span of time in epoch ms, both ends included; sessions
    that used one of these models (names or parts of them); calls and results of these tools; sessions that these tools
    wrote (`dsh` for our own)."""

    session: str | None = None
    cwd: str | None = None
    types: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    exact_cwd: bool = False
    models: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def admits(self, at: int) -> bool:
        return (self.since is None or at >= self.since) and (self.until is None or at <= self.until)

    @property
    def timed(self) -> bool:
        return self.since is not None or self.until is not None

    def tags(self) -> list[list[str]]:
        """Clauses of index words for all but the session, time and models; one word of each clause must be there."""
        clauses: list[list[str]] = []
        folder = (self.cwd or "").rstrip("/")
        if folder or (self.cwd and self.exact_cwd):
            exact = folder_tag(self.cwd or "")
            clauses.append([exact] if self.exact_cwd else [exact, below_tag(folder)])
        if self.sources:
            clauses.append([source_tag(source) for source in self.sources])
        if self.types:
            clauses.append([type_tag(type_) for type_ in self.types])
        if self.tools:
            clauses.append([*map(tool_tag, self.tools), type_tag("tool/result")])
        return clauses


def event_types(names: Iterable[str]) -> tuple[str, ...]:
    """Event types from short or full names; UsageError for an unknown one."""
    found: dict[str, None] = {}
    for name in names:
        if name not in TYPES:
            raise UsageError(f"no type of event is called {name!r}", hint=f"known: {', '.join(TYPES)}")
        found.update(dict.fromkeys(TYPES[name]))
    return tuple(found)


def both(types: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Event types that two filters leave, each of which is none if it is empty."""
    if not types or not others:
        return types or others
    return tuple(type_ for type_ in types if type_ in others) or _NONE


class Typed:
    """Takes up the filters of a query; `filters` are those given besides, narrowed further."""

    def __init__(self, db: Database, filters: Filters) -> None:
        self._db = db
        self._given = filters
        self._types: dict[str, tuple[str, ...]] = {}
        self._more: dict[str, tuple[str, ...]] = {}
        self._one: dict[str, str | int] = {}
        self.titles = False  # in:title was there

    def take(self, name: str, value: str) -> bool:
        """Take up `name:value`; False if there is no such filter or the value makes no sense."""
        try:
            return self._take(name, value)
        except DshError:
            return False

    def _take(self, name: str, value: str) -> bool:
        if name == "in":
            self.titles = self.titles or value == "title"
            return value == "title"
        if name in ("role", "type"):
            found = ROLES.get(value) if name == "role" else TYPES.get(value)
            self._types[name] = (*self._types.get(name, ()), *(found or ()))
            return found is not None
        if name in ("tool", "model", "source"):
            self._more[name] = (*self._more.get(name, ()), value)
            return True
        if name == "session":
            self._one[name] = find_session(self._db, value)
        elif name == "cwd":
            self._one[name] = os.path.abspath(os.path.expanduser(value))
        elif name in ("since", "until"):
            self._one[name] = point_in_time(value, int(time.time() * 1000), end=name == "until")
        else:
            return False
        return True

    @property
    def filters(self) -> Filters:
        """All filters together. A folder or session in the query takes the place of one given besides."""
        given, one = self._given, self._one
        types = both(both(given.types, self._types.get("role", ())), self._types.get("type", ()))
        since = [at for at in (given.since, one.get("since")) if isinstance(at, int)]
        until = [at for at in (given.until, one.get("until")) if isinstance(at, int)]
        return given._replace(
            session=str(one["session"]) if "session" in one else given.session,
            cwd=str(one["cwd"]) if "cwd" in one else given.cwd,
            types=types,
            since=max(since, default=None),
            until=min(until, default=None),
            models=given.models + self._more.get("model", ()),
            tools=given.tools + self._more.get("tool", ()),
            sources=given.sources + self._more.get("source", ()),
        )
