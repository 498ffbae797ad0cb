"""A session's entries as plain text for people."""

from __future__ import annotations

from collections.abc import Callable

from dsh.session.render.entries import Entry as Entry
from dsh.session.render.entries import call_line
from dsh.session.render.entries import entries as entries
from dsh.session.render.markdown import markdown as markdown

_COMPACT_LINES = 6
_COMPACT_CHARS = 600


def compact(text: str) -> str:
    """The beginning of a long text, and how much was left out."""
    lines = text.rstrip("\n").split("\n")
    kept = "\n".join(lines[:_COMPACT_LINES])
    if len(kept) > _COMPACT_CHARS:
        return f"{kept[:_COMPACT_CHARS]}… ({len(text)} characters)"
    if len(lines) > _COMPACT_LINES:
        return f"{kept}\n… ({len(lines) - _COMPACT_LINES} more lines)"
    return kept


def plain(entry: Entry, *, full: bool, heading: Callable[[str], str], faint: Callable[[str], str]) -> str:
    """An entry as text that ends in a newline. `full` cuts nothing."""
    if entry.kind == "turn":
        return ""
    body = entry.text if full or entry.kind in ("prompt", "answer", "note") else compact(entry.text)
    if entry.kind == "call" and not full:
        return f"[{entry.seq}] {heading(entry.label)} {call_line(entry.text)}\n\n"
    name = entry.label
    if entry.kind == "result":
        name = f"{entry.label} {'failed' if entry.failed else 'result'}"
    body = body.strip("\n")
    shown = "\n".join(f"    {line}".rstrip() for line in body.split("\n")) if body else ""
    if entry.kind in ("result", "thinking"):
        shown = faint(shown)
    return f"[{entry.seq}] {heading(name)}\n{shown}\n\n" if shown else f"[{entry.seq}] {heading(name)}\n\n"
