"""Sessions as trees: forks and the sessions of subagents below the session they came from.

A parent is a name in a header. It may be of a session that was deleted, that is not to be shown, or, where somebody
wrote such headers, of one's own descendant; the tree is what remains when such links are left out or bridged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dsh import query
from dsh.store.database import Database, Row

DRAWN = 8  # levels of a tree that are drawn as lines


class Member(NamedTuple):
    """A session in its tree. `last` is for drawing: of each level from the first below the root to its own, whether the
    session there is the last of its siblings; empty below level DRAWN."""

    id: str
    level: int
    last: tuple[bool, ...]


def trees(db: Database, *, cwd: str | None, hidden: bool, limit: int) -> tuple[list[Member], bool]:
    """The `limit` trees that saw activity last, pinned ones first, each from its root down, children by age; and
    whether there are more."""
    rows = query.rows(db, "session_links", cwd=cwd, hidden=int(hidden))
    children, order = _linked(rows)
    grown = [list(_grown(root, children)) for root in _roots(children, order)]
    facts = {row[0]: (row[3], row[4] is not None) for row in rows}
    grown.sort(key=lambda tree: _rank(tree, facts), reverse=True)
    return [member for tree in grown[:limit] for member in tree], len(grown) > limit


def _linked(rows: Sequence[Row]) -> tuple[dict[str | None, list[str]], list[str]]:
    """Children by the nearest ancestor that is shown (None for roots), and all that are shown, oldest first."""
    parents = {row[0]: row[1] for row in rows}
    shown = {row[0] for row in rows if row[5]}
    children: dict[str | None, list[str]] = {}
    for row in rows:
        if row[0] not in shown:
            continue
        above, passed = row[1], {row[0]}
        while above is not None and above not in shown and above not in passed:
            passed.add(above)
            above = parents.get(above)
        children.setdefault(above if above in shown and above != row[0] else None, []).append(row[0])
    return children, [row[0] for row in rows if row[5]]


def _roots(children: Mapping[str | None, list[str]], order: Iterable[str]) -> list[str]:
    """Where trees begin: sessions without a parent, and of each circle of parents the oldest."""
    roots = list(children.get(None, ()))
    reached: set[str] = set()
    for start in [*roots, *order]:
        if start in reached:
            continue
        if start not in roots:
            roots.append(start)
        waiting = [start]
        while waiting:
            at = waiting.pop()
            if at not in reached:
                reached.add(at)
                waiting += children.get(at, ())
    return roots


def _grown(root: str, children: Mapping[str | None, list[str]]) -> Iterable[Member]:
    waiting = [Member(root, 0, ())]
    passed: set[str] = set()
    while waiting:
        member = waiting.pop()
        if member.id in passed:
            continue
        passed.add(member.id)
        yield member
        below = [id_ for id_ in children.get(member.id, ()) if id_ not in passed]
        drawn = member.level < DRAWN
        waiting += [
            Member(id_, member.level + 1, (*member.last, id_ == below[-1]) if drawn else ()) for id_ in reversed(below)
        ]


def _rank(tree: Sequence[Member], facts: Mapping[str, tuple[int, bool]]) -> tuple[bool, int, str]:
    return any(facts[m.id][1] for m in tree), max(facts[m.id][0] for m in tree), tree[0].id
