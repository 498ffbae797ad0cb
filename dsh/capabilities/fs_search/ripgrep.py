"""Running ripgrep: argument words, exit codes, and its output as plain records.

`rg` is started directly, never through a shell, with no configuration file of its own (TC-20). Its output is
accepted whole or not at all: beyond the cap the search fails (TC-23).
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import trio

from dsh.core.errors import ToolError
from dsh.core.lossless import mend_surrogates
from dsh.tools.process import spawn

# Version control keeps its own files in these; a glob never shows them (TC-21).
VCS_FOLDERS = (".git", ".svn", ".hg", ".bzr", ".jj", ".sl")

_READ = 262_144
_ERRORS_KEPT = 8192
_BAD_PATTERN = re.compile(r"regex parse error|error parsing glob|error parsing regex|invalid glob|regex could not be")
# A file or folder below the searched one that cannot be opened: one line each, which ends like this.
_UNREADABLE = re.compile(r".*\(os error \d+\)")
_NOT_UTF8 = "(line is not valid UTF-8)"


class SearchError(ToolError):
    """SEARCH_INVALID_PATTERN, SEARCH_FAILED or SEARCH_RAW_OUTPUT_OVERFLOW."""

    code = "SEARCH_FAILED"


class Match(TypedDict):
    path: str
    lineNumber: int
    line: str


class Ripgrep(NamedTuple):
    """The program and the limit on its raw output in bytes."""

    program: str
    max_bytes: int

    async def files(self, pattern: str, path: str | None, cwd: str) -> list[str]:
        """Files whose path matches, oldest first, ignored and hidden ones included (TC-21)."""
        hidden = [f"--glob=!**/{name}/**" for name in VCS_FOLDERS]
        args = ["--files", "--null", f"--glob={pattern}", *hidden, "--no-ignore", "--hidden"]
        names = [os.fsdecode(name) for name in (await self._run(args, path, cwd)).split(b"\0") if name]
        shown = {relative(name, cwd): name for name in names}
        kept = [(_age(os.path.join(cwd, name)), short) for short, name in shown.items() if not _in_vcs(short)]
        return [mend_surrogates(short) for _, short in sorted(kept)]

    async def matches(self, pattern: str, path: str | None, include: str | None, cwd: str) -> list[Match]:
        """Lines that match, by path and line number; ignore files are honoured (TC-21)."""
        args = ["--json", f"--regexp={pattern}"]
        if include is not None:
            args.append(f"--glob={include}")
        found = [
            match
            for line in (await self._run(args, path, cwd)).splitlines()
            if (match := _match(line, cwd)) is not None
        ]
        return sorted(found, key=lambda m: m["path"])  # stable: the lines of one file stay in their order

    async def _run(self, args: Sequence[str], path: str | None, cwd: str) -> bytes:
        if path is not None and not os.path.lexists(os.path.join(cwd, path)):
            raise SearchError(f"path does not exist: {path}")
        argv = [self.program, "--no-config", "--color=never", *args, "--", path or "./"]
        try:
            child = await spawn(argv, cwd=cwd)
        except (OSError, ValueError) as error:
            raise SearchError(f"rg cannot be started: {error}") from error
        out, errors = bytearray(), bytearray()
        async with child:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_keep, child.stderr, errors)
                while chunk := await child.stdout.receive_some(_READ):
                    out += chunk
                    if len(out) > self.max_bytes:
                        break
                if len(out) > self.max_bytes:
                    nursery.cancel_scope.cancel()
            if len(out) > self.max_bytes:
                raise SearchError(
                    f"the search gave more than {self.max_bytes} bytes; narrow the pattern or the path",
                    code="SEARCH_RAW_OUTPUT_OVERFLOW",
                )
            _judge(await child.wait(), errors.decode("utf-8", "replace").strip())
        return bytes(out)


async def _keep(stream: trio.abc.ReceiveStream, errors: bytearray) -> None:
    while chunk := await stream.receive_some(_READ):
        errors += chunk[: max(0, _ERRORS_KEPT - len(errors))]


def _judge(code: int, errors: str) -> None:
    """0 found, 1 nothing; anything else is an error, except entries that could not be opened (TC-23)."""
    if code in (0, 1):
        return
    if code == 2 and _BAD_PATTERN.search(errors):
        raise SearchError(errors, code="SEARCH_INVALID_PATTERN")
    if code == 2 and errors and all(_UNREADABLE.fullmatch(line) for line in errors.splitlines()):
        return
    raise SearchError(f"rg ended with {code}: {errors or 'no message'}")


def _match(line: bytes, cwd: str) -> Match | None:
    try:
        record = json.loads(line)
        if record["type"] != "match":
            return None
        data = record["data"]
        text = data["lines"].get("text")
        found: Match = {
            "path": mend_surrogates(relative(os.fsdecode(_bytes(data["path"])), cwd)),
            "lineNumber": data["line_number"],
            "line": _NOT_UTF8 if text is None else text.removesuffix("\n").removesuffix("\r"),
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SearchError(f"rg gave a malformed record: {error!r}") from error
    return found


def _bytes(field: dict[str, Any]) -> bytes:
    """Text of ripgrep's JSON, which is either UTF-8 or base64 of arbitrary bytes."""
    if "text" in field:
        return str(field["text"]).encode()
    return base64.b64decode(field["bytes"])


def relative(path: str, cwd: str) -> str:
    """A path inside the working directory as seen from there, any other unchanged (TC-24)."""
    inside = cwd.rstrip(os.sep) + os.sep
    return os.path.normpath(path.removeprefix(inside))


def _age(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:  # gone since it was listed
        return 0


def _in_vcs(path: str) -> bool:
    return any(part in VCS_FOLDERS for part in path.split(os.sep)[:-1])
