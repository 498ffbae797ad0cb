"""Replacing text in a file's bytes so that nothing else changes.

The model sees and writes lines that end in LF. Matching therefore happens on a text whose CRLF are turned
into LF, but the result is spliced into the original: what lies outside the match keeps its bytes, and so does
every line inside the match that the edit leaves alone, whatever it ends in. Only lines that are new take the
file's own style (FS-27). The byte order mark and a missing final line end stay as they are.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import NamedTuple

from dsh.capabilities.fs.diff import Opcode, lines_of, opcodes
from dsh.capabilities.fs.errors import FsError

BOM = "\ufeff"
_STYLE_SAMPLE = 4096
_LF_ALONE = re.compile(r"(?<!\r)\n")


class EditRequest(NamedTuple):
    old: str
    new: str
    replace_all: bool = False


class Edited(NamedTuple):
    """The new bytes, and both whole texts with LF."""

    data: bytes
    before: str
    after: str


def lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def decode(data: bytes, path: str) -> str:
    """The text without its byte order mark; a NUL byte anywhere or invalid UTF-8 is FS_NOT_TEXT (FS-24)."""
    if b"\0" in data:
        raise FsError(f"binary file: {path}", "FS_NOT_TEXT")
    try:
        return data.decode().removeprefix(BOM)
    except UnicodeDecodeError as error:
        raise FsError(f"not valid UTF-8: {path}", "FS_NOT_TEXT") from error


def apply_edit(data: bytes, edit: EditRequest, path: str) -> Edited:
    """Replace the match, or all (FS-27, FS-28); FS_NOT_TEXT, FS_EDIT_NOT_FOUND or FS_AMBIGUOUS_EDIT."""
    text = decode(data, path)
    before, old, new = lf(text), lf(edit.old), lf(edit.new)
    found = before.count(old) if old else 0
    if not found:
        raise FsError(f"old_string was not found in {path}", "FS_EDIT_NOT_FOUND")
    if found > 1 and not edit.replace_all:
        raise FsError(
            f"old_string matches {found} times in {path}; give more context or set replace_all",
            "FS_AMBIGUOUS_EDIT",
        )
    breaks = [match.start() - k for k, match in enumerate(re.finditer("\r\n", text))]

    def original(offset: int) -> int:
        return offset + bisect_left(breaks, offset)

    end = "\r\n" if _is_crlf(text) else "\n"
    old_lines, new_lines = lines_of(old), lines_of(new)
    steps = opcodes(old_lines, new_lines)
    pieces: list[str] = []
    done = 0
    at = before.find(old)
    while at >= 0:
        start, stop = original(at), original(at + len(old))
        pieces.append(text[done:start])
        pieces.append(_respliced(lines_of(text[start:stop]), new_lines, steps, end))
        done = stop
        at = before.find(old, at + len(old))
    pieces.append(text[done:])
    mark = BOM.encode() if data.startswith(BOM.encode()) else b""
    return Edited(mark + "".join(pieces).encode(), before, before.replace(old, new))


def _is_crlf(text: str) -> bool:
    sample = text[:_STYLE_SAMPLE]
    crlf = sample.count("\r\n")
    return crlf > sample.count("\n") - crlf


def _respliced(was: list[str], new: list[str], steps: list[Opcode], end: str) -> str:
    """The new lines with line ends: unchanged lines as they were, a changed line like the one it replaces."""
    out: list[str] = []
    for kind, i1, i2, j1, j2 in steps:
        if kind == "equal":
            out += was[i1:i2]
            continue
        for k, line in enumerate(new[j1:j2]):
            peer = was[i1 + k] if i1 + k < i2 else ""
            own_end = end if not peer.endswith("\n") else "\r\n" if peer.endswith("\r\n") else "\n"
            out.append(_LF_ALONE.sub(own_end, line))
    return "".join(out)
