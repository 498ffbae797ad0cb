"""A session in the user's pager, opened where something was found.

The pager is $DSH_PAGER, $PAGER or less. Only less is told where to begin; any other gets the text from the place on,
and so does a terminal without a pager, and a pipe.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from dsh.cli import output
from dsh.cli.show import head, pieces, place
from dsh.core.lossless import MAX_INT
from dsh.store.database import Database

_CONTEXT = 3  # lines above the place

Pieces = Iterator[tuple[int, str]]


def program() -> list[str]:
    """The words of the pager; none if there is none, or it was named as nothing."""
    named = os.environ.get("DSH_PAGER", os.environ.get("PAGER", "less"))
    try:
        words = shlex.split(named)
    except ValueError:
        words = []
    return words if words and shutil.which(words[0]) else []


def show(
    db: Database, session_id: str, seq: int | None, marks: re.Pattern[str] | None, terminal: int | None = None
) -> None:
    """Show a session at event `seq`, with what `marks` finds there in colour. The pager writes to `terminal`, a
    descriptor; without one the session is shown on standard output."""
    at = None if seq is None else place(db, session_id, seq)
    pager = program() if terminal is not None or output.is_terminal() else []
    style = output.style if not pager else _plain if os.environ.get("NO_COLOR") else _painted
    safe = output.printable if pager else output.shown

    def mark(text: str) -> str:
        return marks.sub(lambda found: style(found[0], output.MATCH), text) if marks is not None else text

    less = bool(pager) and os.path.basename(pager[0]) == "less"
    if at and not less:
        output.note(f"from event {at} on; the whole session: dsh show {session_id}")
    read = pieces(db, session_id, 0 if less else at or 0, MAX_INT, at=at, mark=mark, style=style, safe=safe)
    text: Iterator[str] = (piece for _, piece in read)
    if less:
        line, text = _until(read, head(db, session_id, style), at, marks)
        pager += ["-R", f"+{line}"]
    if pager:
        _feed(pager, text, terminal)
    else:
        for piece in text:
            output.write(piece)


def _until(read: Pieces, title: str, at: int | None, marks: re.Pattern[str] | None) -> tuple[int, Iterator[str]]:
    """The line, from 1, to show first, and the whole text. What comes before the place is read for that."""
    before, there, rest = [title], "", ""
    for seq, piece in read:
        if at is None or seq > at:
            rest = piece
            break
        if seq == at:
            there += piece
        else:
            before.append(piece)
    line = 1 + sum(piece.count("\n") for piece in before)
    found = marks.search(there) if marks is not None else None
    line += there.count("\n", 0, found.start()) if found else 0
    return max(1, line - _CONTEXT), chain(before, [there, rest], (piece for _, piece in read))


def _feed(pager: list[str], text: Iterator[str], terminal: int | None) -> None:
    """Run the pager until it is left. Ctrl-C is the pager's."""
    interrupt = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        process = subprocess.Popen(
            pager, stdin=subprocess.PIPE, stdout=terminal, env={"LESSCHARSET": "utf-8", **os.environ}
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it was left before the end
            for piece in text:
                process.stdin.write(piece.encode("utf-8", "backslashreplace"))
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()
    finally:
        signal.signal(signal.SIGINT, interrupt)


def _painted(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if text else text


def _plain(text: str, code: str) -> str:
    return text
