"""Titles of sessions: the text of one, and the event that a person's own becomes (docs/spec session-title)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsh.core.errors import UsageError
from dsh.core.lossless import mend_surrogates

if TYPE_CHECKING:
    from dsh.core.events import Event
    from dsh.session.session import Session
    from dsh.session.sessions import Sessions

MAX_GIVEN = 200  # characters of a title that a person gives
TRIGGER = {"kind": "session-title"}

# What a terminal would obey: OSC sequences to their end, CSI sequences, other two-character escapes.
_SEQUENCES = r"(?:\x1b\]|\x9d).*?(?:\x07|\x1b\\|\Z)|(?:\x1b\[|\x9b)[^@-~]*[@-~]?|\x1b[@-_]"
# What nobody sees: controls, zero-width characters, marks of direction.
_UNSEEN = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]"


def normalised(text: str) -> str:
    """Text as a title holds it: one line, nothing that a terminal obeys or nobody sees (ST-10)."""
    text = re.sub(_SEQUENCES, "", text, flags=re.DOTALL)
    return " ".join(re.sub(_UNSEEN, "", text).split())


def given(text: str) -> str:
    """A person's title, normalised; UsageError if nothing is left of it or it is too long to be one."""
    title = normalised(mend_surrogates(text))
    if not title:
        raise UsageError("the title is empty")
    if len(title) > MAX_GIVEN:
        raise UsageError(f"the title has {len(title)} characters; {MAX_GIVEN} are the most")
    return title


async def rename(sessions: Sessions, session: Session, title: str) -> Event:
    """Log a person's title, which holds until a newer one (ST-50)."""
    data: dict[str, Any] = {"title": title, "messageSeqs": [], "source": {"kind": "user"}}
    return await sessions.append_out_of_band(session, "session/title", data, TRIGGER)
