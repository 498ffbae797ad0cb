"""Titles of sessions as they follow from the log alone (docs/spec session-title): what a person's prompt is, what text
becomes as a title, and which title is in force. Making titles while a session lives is dsh.capabilities.titles.

A prompt may have megabytes and its fallback a few words, so only as much of a text is read as that needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from dsh import query
from dsh.core.errors import UsageError
from dsh.core.lossless import MAX_INT, loads, mend_surrogates
from dsh.core.messages import plain_text
from dsh.core.secrets import mask

if TYPE_CHECKING:
    from dsh.core.events import Event
    from dsh.store.database import Database

MAX_GIVEN = 200  # characters of a title that a person gives
TRIGGER = {"kind": "session-title"}

# What a terminal would obey: OSC sequences to their end, CSI sequences, other two-character escapes.
_SEQUENCES = r"(?:\x1b\]|\x9d).*?(?:\x07|\x1b\\|\Z)|(?:\x1b\[|\x9b)[^@-~]*[@-~]?|\x1b[@-_]"
# What nobody sees: controls, zero-width characters, marks of direction.
_UNSEEN = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]"

_WINDOW = 1024  # characters read of a long text at first
_AHEAD_WORDS, _AHEAD_BYTES = 64, 4096  # read beyond the fallback, so that a secret in it is seen whole


class Title(NamedTuple):
    """The title in force; `source` is a JSON object, `event_seq` and `updated_at` (epoch ms) are those of its event."""

    title: str
    message_seqs: tuple[int, ...]
    source: dict[str, Any]
    event_seq: int
    updated_at: int

    @property
    def by_person(self) -> bool:
        """Whether it is pinned: a person gave it, and only a person's refresh replaces it."""
        return self.source.get("kind") == "user"


class Eligible(NamedTuple):
    """A prompt that titles are made from (ST-1 to ST-4); the text is as it was written."""

    seq: int
    text: str


# ------------------------------------------------------------------------------------------------------ the log


def newest(db: Database, session: str) -> Title | None:
    """The title that the log of a stored session holds, live or not; the latest event wins (ST-73)."""
    found = query.row(db, "newest_title", session=session)
    if found is None:
        return None
    title, source, seq, at, seqs = found
    given, made_from = _json(source), _json(seqs)
    return Title(
        title,
        tuple(s for s in made_from if type(s) is int) if isinstance(made_from, list) else (),
        given if isinstance(given, dict) else {},
        seq,
        at,
    )


def eligible(db: Database, session: str, last: int = MAX_INT) -> Iterator[Eligible]:
    """What people have asked up to the event `last`, in order; also what the model does not see any more (ST-4)."""
    after, limit = -1, 1  # most callers want the first one
    while rows := query.rows(db, "human_prompts", session=session, after=after, last=last, limit=limit):
        for seq, content in rows:
            text = _text(_json(content))
            if _read(text, 1, 0):
                yield Eligible(seq, text)
        after, limit = rows[-1][0], 100


def eligible_in(event: Event) -> Eligible | None:
    """What a person asks by this event, if it is that (ST-1 to ST-3)."""
    data = event["data"]
    source, envelope = data.get("source"), data.get("envelope")
    if event["type"] != "user/message" or not isinstance(source, dict) or source.get("kind") != "user":
        return None
    shown = envelope.get("displayContent") if isinstance(envelope, dict) else None
    text = _text(data["content"] if shown is None else shown)
    return Eligible(event["seq"], text) if _read(text, 1, 0) else None


def _text(content: Any) -> str:
    """The text blocks of a content list, joined by newlines (ST-3); a log from elsewhere may have anything there."""
    if not isinstance(content, list):
        return ""
    blocks = (block for block in content if isinstance(block, dict))
    return "\n".join(plain_text(block) for block in blocks if block.get("type") == "text")  # type: ignore[arg-type]


def _json(text: str | None) -> Any:
    return None if text is None else loads(text)


# --------------------------------------------------------------------------------------------------------- text


def normalised(text: str) -> str:
    """Text as a title holds it: one line, nothing that a terminal obeys or nobody sees (ST-10)."""
    if not text.replace("\n", " ").replace("\t", " ").replace("\r", " ").isprintable():
        text = re.sub(_UNSEEN, "", re.sub(_SEQUENCES, "", text, flags=re.DOTALL))
    return " ".join(text.split())


def cut(title: str, max_bytes: int) -> str:
    """The longest beginning of a normalised text that has at most so many bytes in UTF-8; empty if none has (ST-11)."""
    return title.encode()[:max_bytes].decode(errors="ignore").rstrip(" ")


def fallback(text: str, max_words: int, max_bytes: int) -> str:
    """The beginning of a prompt as a title (ST-12); empty if nothing fits (ST-14). Secrets are masked before it is cut:
    half a key has no shape that anybody would recognise later."""
    begins = mask(_read(text, max_words + _AHEAD_WORDS, max_bytes + _AHEAD_BYTES))
    return cut(" ".join(begins.split(" ")[:max_words]), max_bytes)


def _read(text: str, words: int, size: int) -> str:
    """`normalised`, of at least so much of a text that more of it would not change the first `words` words or `size`
    bytes: whatever follows, the normalised text of a beginning is a beginning of the normalised text."""
    window = _WINDOW
    while window < len(text):
        begins = normalised(text[:window])
        if begins.count(" ") >= words or len(begins.encode()) > size:
            return begins
        window *= 16
    return normalised(text)


def given(text: str) -> str:
    """A person's title, normalised; UsageError if nothing is left of it or it is too long to be one."""
    title = normalised(mend_surrogates(text))
    if not title:
        raise UsageError("the title is empty")
    if len(title) > MAX_GIVEN:
        raise UsageError(f"the title has {len(title)} characters; {MAX_GIVEN} are the most")
    return title
