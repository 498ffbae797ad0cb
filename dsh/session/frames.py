"""Compressed exports: Zstandard frames one after the other (PE-63).

The first frame holds exactly the header line, each further one a batch of whole lines, all with checksums. So a file
that was cut short loses its last batch at most, and a change of any byte before that is noticed. Where a frame ends is
read off its block headers, without unpacking it: only then is it known whether a frame is damaged or merely cut off.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO, NoReturn

from dsh.core.errors import SessionError
from dsh.session.jsonl import plain_lines

FIRST_BYTE = b"\x28"  # of the magic number; no line of JSON begins so
_MAGIC = b"\x28\xb5\x2f\xfd"
_BATCH = 128 * 1024  # bytes before compression: one block of Zstandard
_TRIES = 1000
_MAX_BLOCK = 128 * 1024  # bytes
_RUN, _RESERVED = 1, 3  # block types; of a run one byte is stored


def compressed(header: str, lines: Iterable[str], *, batch_bytes: int = _BATCH) -> Iterator[bytes]:
    """The frames of a session."""
    import zstandard

    compressor = zstandard.ZstdCompressor(write_checksum=True)
    yield compressor.compress(header.encode())
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line.encode())
        size += len(batch[-1])
        if size >= batch_bytes:
            yield compressor.compress(b"".join(batch))
            batch, size = [], 0
    if batch:
        yield compressor.compress(b"".join(batch))


def unpacked_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines in the frames of a stream; of a last frame that was cut off, those that can still be read.

    LOG_CORRUPT for a complete frame that is damaged, or that does not hold whole lines.
    """
    number = 0
    while (read := _frame(stream, number + 1)) is not None:
        number += 1
        frame, complete = read
        count, line = 0, b""
        for line in _content(frame, number, complete=complete):
            count += 1
            yield line
        if complete and not line.endswith(b"\n"):
            _corrupt(number, "ends inside a line")
        if number == 1 and count != 1:
            _corrupt(number, "does not hold exactly the header")
        if not complete:
            yield b""  # a torn record, if only of what cannot be told
            return


def _content(frame: bytes, number: int, *, complete: bool) -> Iterator[bytes]:
    import zstandard

    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(frame), read_across_frames=False)
    try:
        yield from plain_lines(io.BufferedReader(reader, _BATCH))
    except zstandard.ZstdError as error:
        if complete:
            _corrupt(number, str(error))


class _CutOff(Exception):
    pass


def _frame(stream: BinaryIO, number: int) -> tuple[bytes, bool] | None:
    """The next frame, and whether it is all there; None at the end."""
    found = _cut_out(stream, number)
    if found is not None and not found[1] and _holds_another(found[0]):
        _corrupt(number, "does not end where it should")
    return found


def _cut_out(stream: BinaryIO, number: int) -> tuple[bytes, bool] | None:
    frame = bytearray()

    def take(count: int) -> bytes:
        piece = stream.read(count)
        frame.extend(piece)
        if len(piece) < count:
            raise _CutOff
        return piece

    try:
        if take(4) != _MAGIC:
            _corrupt(number, "has a wrong magic number")
        descriptor = take(1)[0]
        if descriptor & 0x08:
            _corrupt(number, "has a reserved bit set")
        if descriptor & 0x03 or not descriptor & 0x04:
            _corrupt(number, "has a dictionary or no checksum")
        single = bool(descriptor & 0x20)
        take((not single) + (int(single), 2, 4, 8)[descriptor >> 6])  # window, content size
        last = False
        while not last:
            block = int.from_bytes(take(3), "little")
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            if kind == _RESERVED or size > _MAX_BLOCK:
                _corrupt(number, "has a block of a reserved type or size")
            take(1 if kind == _RUN else size)
        take(4)  # checksum
    except _CutOff:
        return (bytes(frame), False) if frame else None
    return bytes(frame), True


def _holds_another(frame: bytes) -> bool:
    """Whether a frame that seems to be cut off goes on over whole ones: then it is its length that is damaged."""
    for found in islice(re.finditer(re.escape(_MAGIC), frame), 1, _TRIES):
        try:
            other = _cut_out(io.BytesIO(frame[found.start() :]), 0)
        except SessionError:
            continue
        if other is not None and other[1]:
            return True
    return False


def _corrupt(number: int, what: str) -> NoReturn:
    other = "what another program has packed: zstd -dc FILE | dsh import -" if number == 1 else None
    raise SessionError(f"compressed frame {number} {what}", code="LOG_CORRUPT", hint=other)
