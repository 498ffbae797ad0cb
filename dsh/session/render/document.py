"""A session as one JSON document: {session, title, usage, messages}.

For programs that want a conversation and not a log: the messages are those that the model sees (SE-20), each with its
seq. What was compacted away, streamed or logged beside them is in the JSON Lines only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsh import query
from dsh.core.lossless import dumps
from dsh.session.jsonl import one_line
from dsh.session.masking import Masker
from dsh.session.render.facts import Facts
from dsh.store.database import Database


def document(db: Database, facts: Facts, masker: Masker | None = None) -> Iterator[str]:
    """The pieces of the document, a message on each line; one message in memory at a time."""
    named: dict[str, Any] = {"session": facts.header, "title": facts.title, "usage": facts.usage}
    yield dumps(named)[:-1] + ',"messages":['
    mask = masker.data if masker else str
    _, rows = db.stream(query.sql("messages_since"), {"session": facts.header["id"], "seq": 0})
    between = "\n"
    for seq, role, content, provenance in rows:
        more = "" if provenance is None else f',"provenance":{one_line(mask(provenance))}'
        yield f'{between}{{"seq":{seq},"role":{dumps(role)},"content":{one_line(mask(content))}{more}}}'
        between = ",\n"
    yield "\n]}\n"
