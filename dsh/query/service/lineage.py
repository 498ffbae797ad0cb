"""Ancestors and descendants of a session, from one listing (SQ-23 to SQ-25). Chains may be long: nothing recurses."""

from __future__ import annotations

from collections.abc import Iterable

from dsh.query.service.corpus import not_found
from dsh.query.service.values import LineageNode, LineageTrace, SessionRecord, refuse


def lineage(records: Iterable[SessionRecord], session_id: str) -> LineageTrace:
    """The family of a session. SESSION_QUERY_SESSION_NOT_FOUND; SESSION_QUERY_INVALID_LINEAGE for a chain of parents
    that comes back to where it was."""
    known = {record.id: record for record in records}
    target = known.get(session_id)
    if target is None:
        not_found(session_id)
    ancestors: list[SessionRecord] = []
    passed = {session_id}
    above = target.header.get("parentSession")
    while above is not None and above in known:
        if above in passed:
            refuse("INVALID_LINEAGE", f"the parents of session {session_id} lead back to {above}")
        passed.add(above)
        ancestors.append(known[above])
        above = known[above].header.get("parentSession")
    return LineageTrace(
        target,
        tuple(ancestors),
        _descendants(known, session_id),
        above is None,
        (ancestors or [target])[-1] if above is None else None,
        above,
    )


def _descendants(known: dict[str, SessionRecord], root: str) -> tuple[LineageNode, ...]:
    children: dict[str, list[SessionRecord]] = {}
    for record in sorted(known.values(), key=lambda r: (r.header["createdAt"], r.id)):
        parent = record.header.get("parentSession")
        if parent is not None:
            children.setdefault(parent, []).append(record)
    below, waiting = [root], list(children.get(root, ()))
    while waiting:  # parents stand before their children, so from the end of the list on children are made first
        record = waiting.pop()
        below.append(record.id)
        waiting += children.get(record.id, ())
    made: dict[str, tuple[LineageNode, ...]] = {}
    for id_ in reversed(below):
        made[id_] = tuple(LineageNode(child, made.pop(child.id)) for child in children.get(id_, ()))
    return made[root]
