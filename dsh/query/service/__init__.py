"""The session-query service (docs/spec/session-query.md): reads over all sessions, live ones and stored ones alike.

    service.py    the service itself: which source is read, in which thread, in whose turn, until when
    corpus.py     every session once, its header and where it is to be found
    reads.py      one session's log: snapshot, window, surface, titles, documents
    surface.py    the fold that says which events the model sees, and which replaced which
    lineage.py    ancestors and descendants
    filters.py    the clauses of a request, checked, counted, and asked of a session or an event
    scan.py       the literal scan of documents
    phrase.py     full-text pages in the one order that depends on nothing but the hits themselves
    cursors.py    where a page ended, and in which state of the history

Everything but service.py is synchronous and takes a database, so that a command can use it without an event loop.
"""

from __future__ import annotations
