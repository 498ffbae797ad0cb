"""What a reader makes of another tool's history: transcripts of neutral records, which `build` turns into a log.

A reader is a module of this package with three functions:

    places(home: Home) -> Iterable[str]            where the tool keeps its history on this machine, if it is there
    sources(place: str) -> Iterable[Source]        the files to read below a place, or the place itself; stat only
    transcripts(source: Source) -> Iterable[Transcript]

It never writes, never follows what a file names, and is total: whatever the bytes are, the answer is records, and
`Skipped` for each record that was meant to be read and could not be. OSError, MemoryError and a ReadError alone may
leave it; they pass over the whole file.

It is pure: the same bytes give the same records, and of a file that has grown the same records and more. So the
records read before are passed over by their number, and what has to change later, a title or the end of a turn that
nobody closed, is no record of a reader but a matter of `build`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from dsh.core.errors import DshError
from dsh.core.messages import Block, TokenUsage

MAX_LINE = 64 * 1024 * 1024  # bytes of one record; a longer one is skipped without being held


class ReadError(DshError):
    """A file that is not what its place promises: the whole of it is passed over."""

    code = "IMPORT_UNREADABLE"


class Home(NamedTuple):
    """Where a person's files are: the home folder and the environment, from which a tool derives its own places."""

    path: str
    env: Mapping[str, str]

    def under(self, variable: str, *default: str) -> str:
        """The folder that a variable names, else one below the home folder."""
        return self.env.get(variable) or os.path.join(self.path, *default)

    def config(self, *parts: str) -> str:
        return os.path.join(self.under("XDG_CONFIG_HOME", ".config"), *parts)

    def data(self, *parts: str) -> str:
        return os.path.join(self.under("XDG_DATA_HOME", ".local", "share"), *parts)


class Source(NamedTuple):
    """A file to read. `stamp` changes when it does; `modified` is epoch seconds, `size` bytes."""

    path: str
    stamp: str
    modified: float = 0.0
    size: int = 0


def source_of(path: str, *beside: str) -> Source | None:
    """A source from what stat says of a file and of those `beside` it (a database's -wal); None if it is not there,
    or is no regular file."""
    import stat

    stamps: list[str] = []
    modified, size = 0.0, 0
    for name in (path, *beside):
        try:
            found = os.stat(name)
        except (OSError, ValueError):
            if name == path:
                return None
            continue
        if not stat.S_ISREG(found.st_mode):
            if name == path:
                return None
            continue
        stamps.append(f"{found.st_size}:{found.st_mtime_ns}:{found.st_ino}")
        modified = max(modified, found.st_mtime)
        size += found.st_size
    return Source(path, "+".join(stamps), modified, size)


# ------------------------------------------------------------------------------------------------------- records
#
# Times are epoch milliseconds; None where the source tells none, and then the record before it says. Blocks are those
# of the log: {"type": "text", "text"}, {"type": "reasoning", "text"}, {"type": "tool-call", "id", "name", "arguments"}.


class User(NamedTuple):
    """What was said to the model. `human`: typed by a person, which begins a turn and may give the session its title;
    else it is context that the tool itself put there.

    `steers`: a person said it while the turn was at work. `after`: the person went back, and only the first so many
    records of the transcript (Skipped not counted) are what the model saw before this one; those between are kept in
    the log and leave the surface.
    """

    blocks: list[Block]
    at: int | None = None
    human: bool = True
    steers: bool = False
    after: int | None = None


class Assistant(NamedTuple):
    """One answer of the model: all of its blocks, in one record.

    `ends` is the reason (its `kind`) for which the turn ended with this answer; MORE if it goes on; None if the source
    does not tell, and then an answer without calls ends it. `partial` on a file's last record: more of this same answer
    may be written yet. `began` is when the request was made, if known.
    """

    blocks: list[Block]
    at: int | None = None
    provider: str = ""
    model: str = ""
    usage: TokenUsage | None = None
    ends: str | None = None
    partial: bool = False
    began: int | None = None


MORE = ""


class Result(NamedTuple):
    """What a tool answered to the call of this id."""

    call_id: str
    blocks: list[Block]
    at: int | None = None
    is_error: bool = False


class Summary(NamedTuple):
    """A compaction: from here on the model sees this text in the place of all that came before, or with `of` in the
    place of the first so many records of the transcript."""

    text: str
    at: int | None = None
    of: int | None = None


class End(NamedTuple):
    """The end of the open turn, where the source tells it by itself: completed, aborted, error, max-tokens."""

    kind: str
    at: int | None = None
    message: str = ""  # of an error


class Skipped(NamedTuple):
    """A record that could not be read: its place in the file ("line 7") and why."""

    where: str
    reason: str


Record = User | Assistant | Result | Summary | End
Item = Record | Skipped


@dataclass(slots=True)
class Transcript:
    """One conversation of a source.

    `id` is the tool's own id for it, or the name of its file; the session is called TOOL-ID. `stamp`, where a source
    holds many transcripts, changes whenever this one does, so that its items are not asked for when nothing changed.
    `title` may be set while the items are read; it is looked at when they are exhausted, the others when the first of
    them have been. `parent` is the tool's id of the session that delegated this one. `root` is the tool's id of the
    first message: of two transcripts with one root the second began as a copy of the first, and becomes a fork. Where
    messages have no ids it may be the id of the transcript that this one is a copy of.
    `touched` is when it was last written, in epoch ms, where its source holds others that may be at work.
    """

    id: str
    items: Iterator[Item]
    cwd: str | None = None
    created_at: int | None = None
    parent: str | None = None
    root: str | None = None
    title: str | None = None
    stamp: str | None = None
    touched: int | None = None


# ------------------------------------------------------------------------------------------------ helps for readers


def text(value: str) -> Block:
    return {"type": "text", "text": value}


def reasoning(value: str) -> Block:
    return {"type": "reasoning", "text": value}


def call(id: str, name: str, arguments: Any) -> Block:
    """A tool call. `arguments` is the raw text as the model wrote it, or the object that was read from it."""
    from dsh.importing.clean import json_text

    return {
        "type": "tool-call",
        "id": id,
        "name": name,
        "arguments": arguments if isinstance(arguments, str) else json_text(arguments),
    }


def left_out(kind: str, mime: str = "", size: int = 0) -> Block:
    """The mark that stands where an image or another attachment was: only text is taken over."""
    about = ", ".join(filter(None, (mime, f"{size:,} bytes" if size else "")))
    return text(f"[{kind} left out{': ' + about if about else ''}]")


def usage(
    input: Any, output: Any, cache_read: Any = None, cache_write: Any = None, reasoning: Any = None
) -> TokenUsage | None:
    """Tokens of an answer: the three input figures are disjoint, reasoning is inside output. None where the source has
    none; a figure that is no count is left out."""
    counted: dict[str, int] = {
        name: value
        for name, value in (
            ("inputTokens", input),
            ("outputTokens", output),
            ("cacheReadTokens", cache_read),
            ("cacheWriteTokens", cache_write),
            ("reasoningTokens", reasoning),
        )
        if type(value) is int and 0 <= value < 2**53
    }
    if not counted:
        return None
    return cast(TokenUsage, {"inputTokens": 0, "outputTokens": 0, **counted})


def epoch_ms(value: Any) -> int | None:
    """Epoch milliseconds of an ISO 8601 time, or of a number in s, ms, us or ns; None if it is no time at all."""
    if isinstance(value, str):
        from datetime import UTC, datetime

        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        try:
            at = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        except (OverflowError, ValueError, OSError):
            return None
        return at if 0 <= at < 2**53 else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e20:
        return None
    for factor, limit in ((1000, 1e11), (1, 1e14), (1e-3, 1e17)):
        if value < limit:
            return int(value * factor)
    return int(value * 1e-6)
