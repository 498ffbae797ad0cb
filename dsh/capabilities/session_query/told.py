"""Results as the one text that a model reads. Nothing is cut here: spilling does that (SQT-12). What one session said
goes into the log of another and to its provider, so keys of known shapes are masked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from dsh.core.events import Event, SessionHeader
from dsh.core.secrets import mask
from dsh.query.service.values import EventHit, EventTrace, EventWindow, LineageNode, LineageTrace, SessionHit
from dsh.session.masking import Masker
from dsh.store.functions import document_text

NO_SESSIONS, NO_EVENTS = "No matching sessions.", "No matching events."
UNSEEN = "(a session that is not visible)"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Labels = Mapping[str, str]  # what stands beside a session's id


def time_of(ms: int) -> str:
    """UTC in ISO form with milliseconds; a year that has no such form stays a number."""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{ms} ms after 1970"


def sessions(hits: Sequence[SessionHit], labels: Labels, *, capped: bool) -> str:
    if not hits:
        return NO_SESSIONS
    parts = [
        f"{_name(hit.header, labels)}\ncreated {time_of(hit.header['createdAt'])}, "
        f"{'live' if hit.live else 'stored'}\nbest match: {_hit(hit.best_match)}"
        for hit in hits
    ]
    return _listed("session", parts, capped)


def events(header: SessionHeader, hits: Sequence[EventHit], labels: Labels, *, capped: bool) -> str:
    if not hits:
        return NO_EVENTS
    return f"{_name(header, labels)}\n{_listed('event', list(map(_hit, hits)), capped)}"


def family(found: LineageTrace, visible: Collection[str], labels: Labels) -> str:
    """A session's ancestors and descendants, each with its distance. Where one is not visible the list of ancestors
    ends, and a descendant is only said to be there: neither its id nor what is below it is told (SQT-10)."""
    header = found.target.header
    lines = [f"{_name(header, labels)}\ncreated {time_of(header['createdAt'])}", "ancestors:"]
    for distance, record in enumerate(found.ancestors, 1):
        if record.id not in visible:
            lines.append(UNSEEN)
            break
        lines.append(f"{distance} up: {_name(record.header, labels)}")
    else:
        if not found.complete:
            lines.append(UNSEEN)
        elif not found.ancestors:
            lines.append("none")
    lines.append("descendants:")
    waiting: list[tuple[int, LineageNode]] = [(1, node) for node in reversed(found.descendants)]
    if not waiting:
        lines.append("none")
    while waiting:
        level, node = waiting.pop()
        if node.session.id not in visible:
            lines.append(f"{level} down: {UNSEEN}")
            continue
        lines.append(f"{level} down: {_name(node.session.header, labels)}")
        waiting += [(level + 1, below) for below in reversed(node.descendants)]
    return "\n".join(lines)


def seen_in(found: LineageTrace, visible: Collection[str]) -> list[str]:
    """The ids that `family` tells."""
    ids = [found.target.id]
    for record in found.ancestors:
        if record.id not in visible:
            break
        ids.append(record.id)
    waiting = list(found.descendants)
    while waiting:
        node = waiting.pop()
        if node.session.id in visible:
            ids.append(node.session.id)
            waiting += node.descendants
    return ids


def trace(found: EventTrace) -> str:
    def seqs(values: Sequence[int]) -> str:
        return ", ".join(map(str, values)) or "none"

    target = found.target
    return "\n".join(
        [
            f"session {target.session_id}",
            f"event {target.seq}, {target.type}, {target.surface}, {time_of(target.time)}",
            f"replaced by: {'none' if found.replaced_by is None else found.replaced_by}",
            f"then replaced, one after the other, by: {seqs(found.replacement_chain[1:])}",
            f"replaces: {seqs(found.replaced_event_seqs)}",
            f"made from: {seqs(found.source_event_seqs)}",
            f"named as a source by: {seqs(found.derived_event_seqs)}",
        ]
    )


def window(found: EventWindow) -> str:
    parts = [f"session {found.session['id']}, events {found.start_seq} to {found.end_seq}"]
    for event in found.events:
        head = f"event {event['seq']}, {event['type']}, {time_of(event['time'])}"
        whole = event["seq"] == found.target["seq"]
        said = _json(event) if whole else mask(document_text(event["type"], event["data"]))
        parts.append(f"{head}\n{said}" if said else head)
    return "\n\n".join(parts)


def _json(event: Event) -> str:
    return json.dumps(Masker().value(dict(event)), ensure_ascii=False, indent=2)


def _hit(hit: EventHit) -> str:
    return f"event {hit.seq}, {hit.type}, {hit.surface}, {time_of(hit.time)}\n{hit.snippet}"


def _name(header: SessionHeader, labels: Labels) -> str:
    return f"session {header['id']} {labels.get(header['id'], '')}".rstrip()


def _listed(what: str, parts: Sequence[str], capped: bool) -> str:
    head = f"{len(parts)} {what}{'' if len(parts) == 1 else 's'}:"
    tail = [f"(There are more; only the first {len(parts)} are shown. Narrow the search.)"] if capped else []
    return "\n\n".join([head, *parts, *tail])
