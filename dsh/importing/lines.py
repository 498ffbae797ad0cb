"""The lines of a JSONL file, however long or torn they are; one is held at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, TypeVar

from dsh.importing.clean import parsed
from dsh.importing.model import MAX_LINE, Skipped

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"


def lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """The number of each line that is not blank, with its bytes; None for one that is too long to be held."""
    number = 0
    readline = file.readline
    while line := readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            while (rest := readline(1024 * 1024)) and not rest.endswith(b"\n"):
                pass
            yield number, None
            continue
        if number == 1 and line.startswith(_BOM):
            line = line[3:]
        if line[:1] in b"\n\r\t " and not line.strip():
            continue
        yield number, line


def records(
    file: IO[bytes], decode: Callable[[bytes], T], recode: Callable[[Any], T]
) -> Iterator[tuple[int, T | Skipped]]:
    """Each line's record as `decode` reads it. What that refuses is read with patience and given to `recode`, which
    raises ValueError with what is wrong if it is still none. A last line that was cut off is left for the next time.
    """
    for number, line in lines(file):
        if line is None:
            yield number, Skipped(f"line {number}", f"is longer than {MAX_LINE // 2**20} MiB")
            continue
        try:
            yield number, decode(line)
            continue
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            pass
        try:
            yield number, recode(parsed(line))
        except (ValueError, TypeError, RecursionError) as error:
            if line.endswith(b"\n") or str(error) == "has no fields":
                yield number, Skipped(f"line {number}", str(error) or "cannot be read")
