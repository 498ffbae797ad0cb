"""How a log is named, what is offered to another place, and what became of it there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, NamedTuple, Protocol

from dsh.core.errors import DshError, SessionError
from dsh.core.lossless import dumps, loads
from dsh.core.secrets import MARK

# The types of which a digest has the last event each: found by index, and whoever goes on with a log writes one anew.
TELLING = ("turn/start", "user/message", "step/start", "assistant/message", "tool/result", "session/title", "turn/end")
REDACTED = "redacted"

_BRANCH = re.compile(r"(.+)~[0-9a-f]{8}", re.DOTALL)
_LONGEST = 100  # characters of a family's name; file systems take 255 bytes


class NotWhole(DshError):
    """What was offered and what has come are not the same: a file that another program is still copying, for one."""

    code = "SYNC_INCOMPLETE"


class Broken(DshError):
    """The other side is gone, or does not speak as it should."""

    code = "SYNC_FAILED"


class Offer(NamedTuple):
    """A log that a place has. `id` and `parent` are None where they have to be read first (`Place.described`)."""

    key: str
    length: int
    digest: str
    id: str | None = None
    parent: str | None = None


KINDS = ("new", "grown", "diverged", "sent", "known", "deleted", "failed")


class Outcome(NamedTuple):
    """What became of an offer: `new`, `grown` (by `events`), `diverged` (stored as `id` beside `beside`), `known`,
    `deleted` (here, and so it stays), `sent` (the other place decides) or `failed`, with the reason."""

    kind: str
    id: str
    events: int = 0
    beside: str | None = None
    reason: str | None = None


Fetch = Callable[[], AbstractContextManager[BinaryIO]]


class Place(Protocol):
    """Somewhere sessions are kept."""

    def offers(self) -> Iterable[Offer]:
        """Every log that is there."""

    def wanted(self, offers: Iterable[Offer]) -> list[Offer]:
        """Those that are not there yet, as far as can be told without reading them."""

    def described(self, offer: Offer) -> Offer:
        """One of its own offers with id and parent."""

    def fetch(self, offer: Offer) -> AbstractContextManager[BinaryIO]:
        """The log of one of its own offers: a compressed export in a buffered file, at its beginning."""

    def put(self, offer: Offer, fetch: Fetch, *, dry_run: bool) -> Outcome:
        """Take a log in."""

    def close(self) -> None:
        """Make what was taken in last."""


def root_of(id: str) -> str:
    """The id that the sessions of a family have in common."""
    found = _BRANCH.fullmatch(id)
    return found[1] if found else id


def key_of(id: str) -> str:
    """The name of a session's family, fit for a file: readable where it is short."""
    from dsh.session.folders import session_segment

    root = root_of(id)
    name = re.sub(r"\A\.", "~002E", session_segment(root))  # hidden folders are other programs'
    return name if len(name) <= _LONGEST else f"{name[:60]}~~{_hash(root)}"


def branch_id(id: str, event: Sequence[Any], number: int) -> str:
    """The id of a log that parts from the others of its family with this event; `number` is for ids that are taken."""
    return f"{root_of(id)}~{_hash(dumps([*event, number]))[:8]}"


def digest_of(key: str, length: int, tail: Iterable[Sequence[Any]]) -> str:
    """SKELETON-DATA of a log: of seq, type and time of its last events, and of what they say. A text that was redacted
    leaves the second part open. `tail` is rows (seq, type, time, data, ...), the last of each TELLING type.
    """
    rows = sorted(tail, key=lambda row: -row[0])
    skeleton = _hash(dumps([key, length, [[row[0], row[1], row[2]] for row in rows]]))
    if any(MARK.search(row[3]) for row in rows):
        return f"{skeleton}-{REDACTED}"
    return f"{skeleton}-{_hash(dumps([_form(row[3]) for row in rows]))}"


def same_digest(one: str, other: str) -> bool:
    left, _, told = one.partition("-")
    right, _, said = other.partition("-")
    return left == right and (told == said or REDACTED in (told, said))


def _form(json: str) -> str:
    """The canonical form, or the text itself where it cannot be read: a damaged log is offered, and refused by name."""
    try:
        return str(canonical(json))
    except SessionError:
        return json


def canonical(json: str | None) -> str | None:
    """JSON text in the one form that an import stores. LOG_CORRUPT."""
    if json is None:
        return None
    try:
        return dumps(loads(json))
    except ValueError as error:
        raise SessionError("an event cannot be read", code="LOG_CORRUPT") from error


def same_event(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two rows of two copies of a log are one event, redacted in one of them perhaps."""
    if tuple(one[:3]) != tuple(other[:3]):
        return False
    redacted = one[3] != other[3] and (MARK.search(one[3]) or MARK.search(other[3]))
    if not redacted and one[3] != other[3] and canonical(one[3]) != canonical(other[3]):
        return False
    return all(one[at] == other[at] or canonical(one[at]) == canonical(other[at]) for at in (4, 5))


def _hash(text: str) -> str:
    from hashlib import sha256

    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
