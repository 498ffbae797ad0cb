"""Sessions as documents: Markdown, one page of HTML, one JSON document. Memory does not grow with a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsh.session.masking import Masker
from dsh.store.database import Database

SUFFIX: Final[dict[str, str]] = {"markdown": "md", "html": "html", "json": "json"}


def rendered(db: Database, session: str, form: str, masker: Masker | None = None) -> Iterator[str]:
    """The pieces of a stored session's document, `form` one of SUFFIX. Read all of it inside one `db.snapshot()`.

    SESSION_NOT_FOUND.
    """
    from dsh.session.render.facts import entries_of, facts_of

    facts = facts_of(db, session, masker)
    if form == "json":
        from dsh.session.render.document import document as as_json

        return as_json(db, facts, masker)
    entries = entries_of(db, session, masker)
    if form == "html":
        from dsh.session.render.html import document as as_html

        return as_html(facts, entries)
    from dsh.session.render.markdown import document as as_markdown

    return as_markdown(facts, entries)
