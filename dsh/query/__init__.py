"""Named SELECTs, one `.sql` file each, whose header comment says what it answers, its parameters and its columns.

Python calls them by name and never spells SQL: `rows(db, "messages_since", session="…", seq=17)`. The modules beside
them are reads that take more than one: search, and the check of a stored log.
"""

from __future__ import annotations

from dsh.store.named import row, rows, sql

__all__ = ["row", "rows", "sql"]
