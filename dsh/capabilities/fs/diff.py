"""Line differences of two texts: the steps from one to the other, and the hunks shown to people (FS-68).

The common start and end are cut off first, so the usual small change costs next to nothing. A middle part too
large for the library's matcher, whose time grows with the square of repeated lines, counts as replaced as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsh.tools.present import Diff

Opcode = tuple[str, int, int, int, int]

_CONTEXT = 3
_MATCHER_LIMIT = 4_000_000


def lines_of(text: str) -> list[str]:
    """The parts of a text up to and with each LF; unlike `splitlines` this knows no other line end."""
    parts = [part + "\n" for part in text.split("\n")]
    parts[-1] = parts[-1][:-1]
    return parts if parts[-1] else parts[:-1]


def opcodes(old: list[str], new: list[str]) -> list[Opcode]:
    """Steps `(kind, i1, i2, j1, j2)` from the old lines to the new ones, as difflib has them."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    old_end, new_end = len(old) - tail, len(new) - tail
    middle: list[Opcode] = []
    if (old_end - head) * (new_end - head) > _MATCHER_LIMIT:
        middle = [("replace", head, old_end, head, new_end)]
    elif old_end > head or new_end > head:
        from difflib import SequenceMatcher

        matcher = SequenceMatcher(None, old[head:old_end], new[head:new_end], autojunk=False)
        middle = [(k, i1 + head, i2 + head, j1 + head, j2 + head) for k, i1, i2, j1, j2 in matcher.get_opcodes()]
    start: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    end: list[Opcode] = [("equal", old_end, len(old), new_end, len(new))] if tail else []
    return [*start, *middle, *end]


def diffs(path: str, before: str, after: str) -> list[Diff]:
    """One entry per hunk, with three lines of context; without old lines `oldText` is None (FS-68)."""
    old, new = lines_of(before), lines_of(after)
    return [
        {
            "path": path,
            "oldText": "".join(old[hunk[0][1] : hunk[-1][2]]) if hunk[-1][2] > hunk[0][1] else None,
            "newText": "".join(new[hunk[0][3] : hunk[-1][4]]),
        }
        for hunk in _hunks(opcodes(old, new))
    ]


def _hunks(steps: list[Opcode]) -> Iterator[list[Opcode]]:
    """Runs of steps with their context; equal runs of more than twice the context separate two hunks."""
    hunk: list[Opcode] = []
    for kind, i1, i2, j1, j2 in steps:
        if kind != "equal":
            hunk.append((kind, i1, i2, j1, j2))
            continue
        reach = _CONTEXT if not hunk else 2 * _CONTEXT
        if i2 - i1 > reach and hunk:
            yield [*hunk, (kind, i1, i1 + _CONTEXT, j1, j1 + _CONTEXT)]
            hunk = []
        keep = _CONTEXT if not hunk else i2 - i1
        hunk.append((kind, max(i1, i2 - keep), i2, max(j1, j2 - keep), j2))
    if any(step[0] != "equal" for step in hunk):
        kind, i1, i2, j1, j2 = hunk[-1]
        if kind == "equal":
            hunk[-1] = (kind, i1, min(i2, i1 + _CONTEXT), j1, min(j2, j1 + _CONTEXT))
        yield hunk
