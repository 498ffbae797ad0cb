"""What is known about a session, for the head of a document, and the log as entries to read."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from dsh import query
from dsh.core.errors import SessionError
from dsh.core.events import SessionHeader
from dsh.core.lossless import MAX_INT, loads
from dsh.session.masking import Masker
from dsh.session.records import header_of
from dsh.session.render.entries import Entry, entries
from dsh.store.database import Database

_TITLE_CHARS = 80
_USAGE = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")


class Facts(NamedTuple):
    """`known` are names and values to read, each one line. `usage` has one object for each model: provider, model,
    requests, and the tokens as in TokenUsage."""

    header: SessionHeader
    title: str | None
    known: list[tuple[str, str]]
    usage: list[dict[str, Any]]

    @property
    def heading(self) -> str:
        """The title as a line of no great length."""
        title = one_line(self.title or "") or "(no title)"
        return title if len(title) <= _TITLE_CHARS else title[: _TITLE_CHARS - 1] + "…"


def facts_of(db: Database, session: str, masker: Masker | None = None, *, usage: bool = True) -> Facts:
    """What is known about a stored session; without `usage` its steps are not counted. SESSION_NOT_FOUND."""
    state = query.row(db, "session_state", session=session)
    if state is None:
        raise SessionError(f"there is no session {session}", code="SESSION_NOT_FOUND")
    header = header_of(state)
    titled = query.row(db, "session_title", session=session)
    title = str(titled[0]) if titled and titled[0] else None
    in_force = query.row(db, "header_in_force", session=session)
    config = loads(in_force[1]).get("config", {}) if in_force else {}
    used = _usage(db, session) if usage else []
    known = [
        ("session", session),
        ("folder", header.get("cwd", "")),
        ("model", "/".join(str(config[k]) for k in ("provider", "model") if k in config)),
        ("created", utc(header["createdAt"])),
        ("parent", header.get("parentSession", "")),
        ("tokens", _tokens(used)),
    ]
    if title is not None and masker is not None:
        title = masker.text(title)
    return Facts(header, title, [(name, one_line(value)) for name, value in known if value], used)


def entries_of(db: Database, session: str, masker: Masker | None = None) -> Iterator[Entry]:
    """The entries of a session's log, one event in memory at a time."""
    calls: dict[str, str] = {}
    _, rows = db.stream(query.sql("transcript"), {"session": session, "low": 0, "high": MAX_INT})
    for seq, type_, at, data in rows:
        value = None
        with suppress(ValueError):  # a hole in the log says nothing (PE-55)
            value = loads(masker.data(data) if masker else data)
        yield from entries(seq, type_, at, value, calls)


def utc(ms: int) -> str:
    """2026-01-31T14:05:09Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def one_line(text: str) -> str:
    return re.sub("[\\s\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text).strip()


def _usage(db: Database, session: str) -> list[dict[str, Any]]:
    models: dict[tuple[Any, Any], list[int]] = {}
    for row in query.rows(db, "usage_report", session=session, since=None, until=None):
        figures = models.setdefault((row[3], row[4]), [0] * (1 + len(_USAGE)))
        for place, figure in enumerate(row[5:]):
            figures[place] += int(figure)
    return [
        {"provider": provider, "model": model, "requests": figures[0], **dict(zip(_USAGE, figures[1:], strict=True))}
        for (provider, model), figures in models.items()
    ]


def _tokens(usage: list[dict[str, Any]]) -> str:
    read = sum(u["inputTokens"] + u["cacheReadTokens"] + u["cacheWriteTokens"] for u in usage)
    return f"{read:,} read, {sum(u['outputTokens'] for u in usage):,} written" if usage else ""
