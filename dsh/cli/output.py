"""What goes to a terminal and what goes to a pipe.

A pipe gets text as it is stored and lines that stay the same from version to version. A terminal gets colours (unless
NO_COLOR is set), columns cut to its width, and no control character of anybody else's: stored text comes from models,
tools and web pages, and a terminal obeys escape sequences.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TextIO

from dsh.core.lossless import dumps

BOLD, DIM, MATCH, HEADING = "1", "2", "1;31", "1;36"

# C0 without tab and newline, DEL, C1; zero-width and bidirectional controls that make text look like other text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# Everything that some program takes for the end of a line, and runs of blanks.
_BLANKS = re.compile("[\\s\x1c-\x1f\x85\u2028\u2029]+")


def prepare_streams() -> None:
    """UTF-8 whatever the locale says. What cannot be encoded (bytes of a wrong argument) is escaped, never an error."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether somebody watches a stream; without one the answer's, wherever what plugins print may go meanwhile."""
    stream = sys.__stdout__ if stream is None else stream
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def errors_on_terminal() -> bool:
    """Whether standard error is there (a caller may have closed it) and somebody watches it."""
    return sys.stderr is not None and is_terminal(sys.stderr)


@cache
def coloured() -> bool:
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style(text: str, code: str) -> str:
    """Text in a colour or weight, where colours are wanted."""
    return f"\x1b[{code}m{text}\x1b[0m" if text and coloured() else text


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def printable(text: str) -> str:
    """Text that does nothing to a terminal but appear: control characters become visible signs. CRLF is a newline."""
    return _UNSAFE.sub(_visible, text.replace("\r\n", "\n"))


def shown(text: str) -> str:
    """Stored text for standard output: verbatim in a pipe, harmless on a terminal."""
    return printable(text) if is_terminal() else text


def json_text(text: str) -> str:
    """A line of JSON for standard output: verbatim in a pipe, on a terminal with what could drive it escaped."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text) if is_terminal() else text


def one_line(text: str | None) -> str:
    """A title, a path, a snippet: one field of one line, wherever it goes."""
    return printable(_BLANKS.sub(" ", text).strip()) if text else ""


def title(text: str | None) -> str:
    """A session's title, as long as a line can bear."""
    return fit(one_line(text), 80)


def write(text: str) -> None:
    sys.stdout.write(text)


def line(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def told(id_: str, stands: str) -> None:
    """Print the id of something that has happened. If it cannot be printed, the failure says that it `stands` all the
    same: who does not know does it again."""
    try:
        line(id_)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        from dsh.core.errors import DshError

        raise DshError(f"{stands}, but standard output cannot be written: {error.strerror}", code="OUTPUT") from error


def json_line(value: Any) -> None:
    """One JSON value on a line of its own."""
    line(json_text(dumps(value)))


def done(text: str) -> None:
    """A line about something that was done, of several that are to be: a reader that has gone away (`| head`) does not
    stop the rest."""
    try:
        line(text)
    except BrokenPipeError:
        drop()


def drop() -> None:
    """Point standard output at nothing, so that the interpreter does not fail on it once more while it shuts down."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
    except OSError:
        sys.stdout = None


def note(text: str) -> None:
    """A line about the answer, on standard error. That nobody can read it changes nothing about what was done."""
    if sys.stderr is not None:
        sys.stdout.flush()
        with suppress(OSError):
            sys.stderr.write(f"dsh: {one_line(text)}\n")
            sys.stderr.flush()


def remark(text: str) -> None:
    """A note that only a person at a terminal needs."""
    if errors_on_terminal():
        note(text)


# ---------------------------------------------------------------------------------------------------------- columns


def width_of(text: str) -> int:
    """Columns a terminal uses for a line."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


@cache
def _width(character: str) -> int:
    """0 for marks and joiners, 2 for what stands in two columns; the soft hyphen is shown as a hyphen."""
    import unicodedata

    if unicodedata.category(character) in ("Mn", "Me", "Cf") and character != "\u00ad":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """A line cut to so many columns."""
    if width_of(text) <= columns:
        return text
    kept, used = [], 0
    for character in text:
        used += width_of(character)
        if used > columns - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def terminal_columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Iterable[int] = (),
    grow: int = -1,
    dim: Container[int] = (),
) -> None:
    """Rows in columns on a terminal, the last or `grow` column cut so that lines fit; tab-separated in a pipe, without
    the header. Cells are single lines already. `dim` are the rows whose last cell says less than those of others."""
    if not is_terminal():
        for row in rows:
            line("\t".join(row))
        return
    aligned_right = set(right)
    grow %= len(header)
    widths = [max(width_of(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    fixed = sum(widths) - widths[grow] + 2 * (len(widths) - 1)
    widths[grow] = min(widths[grow], max(12, terminal_columns() - fixed))
    for number, row in enumerate([header, *rows]):
        cells = []
        for index, cell in enumerate(row):
            cell = fit(cell, widths[index])
            blank = " " * (widths[index] - width_of(cell))
            cells.append(blank + cell if index in aligned_right else cell + blank)
        if number - 1 in dim:
            cells[-1] = style(cells[-1].rstrip(), DIM)
        text = "  ".join(cells).rstrip()
        line(style(text, BOLD) if number == 0 else text)


# ------------------------------------------------------------------------------------------------------------- time


def utc(ms: int) -> str:
    """2026-01-31T14:05:09Z: the same in every time zone, sorts as text."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def local(ms: int) -> str:
    """2026-01-31 14:05, where the reader is."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(ms / 1000))


def age(ms: int) -> str:
    """How long ago, in its largest unit."""
    seconds = max(0, int(time.time() - ms / 1000))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit} ago"
    return f"{seconds}s ago"


def home_shortened(path: str | None) -> str:
    """A path with ~ for the home folder, for people."""
    home = os.path.expanduser("~")
    if path and home != "/" and (path == home or path.startswith(home + "/")):
        return "~" + path[len(home) :]
    return path or ""
