"""Standard input as part of a prompt, without ever waiting for one that nobody writes to.

A terminal, `/dev/null` and a closed descriptor are no input. A file is read. A pipe is read to its end if something
is in it already, or if its writing end is held by a process beside us, as in `cat log | dsh run "…"`. A pipe that only
our own ancestors hold open is what a program leaves behind that started us without closing standard input: it gets a
short grace and is then left alone.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from pathlib import Path

from dsh.core.errors import UsageError
from dsh.core.lossless import mend_surrogates
from dsh.core.messages import Block, text_block

LIMIT_BYTES = 10 * 1024 * 1024
GRACE_S = 0.25  # with a prompt given as an argument
GRACE_ALONE_S = 10.0  # when standard input is the only place a prompt can come from


def read_prompt(
    prompt: str | None, *, what: str = "prompt", hint: str = 'dsh run "QUESTION", or pipe one in'
) -> list[Block]:
    """The content of the message: the prompt, then what is piped in as a labelled block."""
    if prompt == "-" or prompt is None:
        text = read(required=True)
        if text is None or not text.strip():
            raise UsageError(f"there is no {what}", hint=hint)
        return [text_block(mend_surrogates(text))]
    if not prompt.strip():
        raise UsageError(f"the {what} is empty")
    blocks = [text_block(mend_surrogates(prompt))]
    extra = read(required=False)
    if extra is not None:
        blocks.append(text_block(f"\n\n<stdin>\n{extra}{'' if extra.endswith(chr(10)) else chr(10)}</stdin>"))
    return blocks


def read(*, required: bool) -> str | None:
    """What is piped in, as text (invalid UTF-8 becomes U+FFFD), or None if nothing is.

    `required` waits longer, for a command that has no other prompt. More than 10 MiB is a UsageError.
    """
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    if stat.S_ISCHR(mode):
        return None
    if not stat.S_ISREG(mode) and not _will_come(GRACE_ALONE_S if required else GRACE_S):
        return None
    parts: list[bytes] = []
    size = 0
    try:
        while part := os.read(0, 65536):
            parts.append(part)
            size += len(part)
            if size > LIMIT_BYTES:
                raise UsageError(f"standard input is longer than {LIMIT_BYTES // 1024 // 1024} MiB")
    except OSError as error:  # a folder, a terminal that has gone
        raise UsageError(f"standard input cannot be read: {error.strerror}") from error
    return b"".join(parts).decode("utf-8", "replace") or None


def _will_come(grace_s: float) -> bool:
    if select.select([0], [], [], 0)[0] or _written_by_a_neighbour():
        return True
    # What starting up has taken is waiting, too: who writes at once has done so by now.
    left = max(0.0, grace_s - time.process_time())
    return bool(select.select([0], [], [], left)[0])


def _written_by_a_neighbour() -> bool:
    """Whether a process that is neither we nor an ancestor holds the other end (Linux; elsewhere the grace decides)."""
    if sys.platform != "linux":
        return False
    try:
        pipe = os.readlink("/proc/self/fd/0")
        return any(_writes(pid, pipe) for pid in _others())
    except OSError:
        return False


def _others() -> list[str]:
    ancestors = {str(os.getpid())}
    pid = str(os.getppid())
    while pid not in ("0", "") and pid not in ancestors:
        ancestors.add(pid)
        try:
            pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            break
    return [p for p in os.listdir("/proc") if p.isdigit() and p not in ancestors]


def _writes(pid: str, pipe: str) -> bool:
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{fd}") == pipe:
                flags = Path(f"/proc/{pid}/fdinfo/{fd}").read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                    return True
    except (OSError, IndexError, ValueError):
        pass
    return False
