"""A session as lines of JSON: what export writes and import reads (PE-60 to PE-62).

Line 1 is the header, then comes one event a line. Runs of streamed fragments, which are most of a log, may be packed
into one row; fragments are never joined, so the very events come back. Payloads are written as they are stored, byte
for byte.

Reading goes through the lines once and keeps nothing, however long the log is. The first line that cannot be read, or
whose seq is not the next, is a hole. What is behind it is dropped as a torn tail, unless a turn's end is among it: a
turn that was finished was written in full once, so the file is damaged (PE-32).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple, cast

from dsh.core.errors import DshError, SessionError
from dsh.core.events import SessionHeader, span
from dsh.core.lossless import MAX_INT, dumps, freeze, loads, mend_surrogates
from dsh.session.records import check_envelope, check_header

FIRST_BYTE = b"{"
MIN_RUN = 3
MAX_RUN = 1000  # members of one packed row: what a reader has to hold at once
MAX_LINE = 256 * 1024 * 1024  # bytes; nothing that is stored is longer

_HEADER_FIELDS = ("version", "id", "createdAt", "cwd", "parentSession", "seedLength", "delegationDepth")
_PACKED = {
    "text-chunks": ("text-delta", "text", "texts"),
    "reasoning-chunks": ("reasoning-delta", "text", "texts"),
    "tool-call-chunks": ("tool-call-delta", "argumentsDelta", "args"),
}
_ROW_KEYS = {"type", "seq0", "time0", "data"}

Row = Sequence[Any]  # seq, type, time, data, source_event_seqs, surface_op; the last three as JSON text

# ---------------------------------------------------------------------------------------------------------- writing

# A fragment in exactly the shape that the loop logs. Its parts are taken over as the JSON text they are.
_INT = "(0|[1-9][0-9]{0,14})"
_STRING = r'("[^"\\]*(?:\\.[^"\\]*)*")'
_FRAGMENT = (
    rf'\{{"turn":{_INT},"step":{_INT},"chunk":\{{(?:"type":"(text|reasoning)-delta","index":{_INT},"text":{_STRING}'
    rf'|"type":"tool-call-delta","index":{_INT},"id":{_STRING},"argumentsDelta":{_STRING}(?:,"name":{_STRING})?)\}}\}}'
)


def header_line(header: SessionHeader, *, source: str | None = None, incarnation: str | None = None) -> str:
    """Line 1 (PE-60). The tool that the session was imported from, and its incarnation, go with a copy of it."""
    fields: dict[str, Any] = {"type": "session", **{f: header[f] for f in _HEADER_FIELDS if f in header}}  # type: ignore[literal-required]
    fields["delegationDepth"] = header.get("delegationDepth", 0)
    kept = {"source": source, "incarnation": incarnation}
    return dumps(fields | {k: v for k, v in kept.items() if v is not None}) + "\n"


def event_text(row: Row) -> str:
    """An event as a JSON object on one line, its data byte for byte as logged."""
    seq, type_, time, data, sources, op = row
    text = f'{{"type":{dumps(type_)},"seq":{seq},"time":{time},"data":{one_line(data)}'
    if sources is not None:
        text += f',"sourceEventSeqs":{one_line(sources)}'
    if op is not None:
        text += f',"surfaceOp":{one_line(op)}'
    return text + "}"


def one_line(json: str) -> str:
    """JSON text without line ends; inside a JSON string there can be none, so they are only layout."""
    return json.replace("\r", " ").replace("\n", " ")


def event_lines(rows: Iterable[Row], *, packed: bool = True) -> Iterator[str]:
    """The lines of a log, in packed rows where that can be (PE-61), or one event each."""
    run: list[Row] = []
    members: list[_Fragment] = []
    for row in rows:
        fragment = _fragment(row) if packed else None
        if run and (fragment is None or len(run) == MAX_RUN or not _goes_on(run[-1], members[-1], row, fragment)):
            yield from _written(run, members)
            run, members = [], []
        if fragment is None:
            yield event_text(row) + "\n"
        else:
            run.append(row)
            members.append(fragment)
    yield from _written(run, members)


class _Fragment(NamedTuple):
    """What the members of a packed row share, and the fragment of one; all of it JSON text."""

    row: str
    turn: str
    step: str
    block: str
    id: str | None
    name: str | None
    text: str


def _fragment(row: Row) -> _Fragment | None:
    _, type_, time, data, sources, op = row
    if type_ != "assistant/chunk" or sources is not None or op is not None or not 0 <= time <= MAX_INT:
        return None
    found = re.fullmatch(_FRAGMENT, data)
    if found is None:
        return None
    turn, step, kind, index, text, call_index, id_, arguments, name = found.groups()
    if kind is not None:
        return _Fragment(f"{kind}-chunks", turn, step, index, None, None, text)
    return _Fragment("tool-call-chunks", turn, step, call_index, id_, name, arguments)


def _goes_on(last: Row, before: _Fragment, row: Row, fragment: _Fragment) -> bool:
    return bool(row[0] == last[0] + 1 and before[:-1] == fragment[:-1])


def _written(run: Sequence[Row], members: Sequence[_Fragment]) -> Iterator[str]:
    if len(run) < MIN_RUN:
        yield from (event_text(row) + "\n" for row in run)
        return
    kind, turn, step, block, id_, name, _ = members[0]
    call = "" if id_ is None else f'"id":{id_},' + ("" if name is None else f'"name":{name},')
    gaps = ",".join(str(b[2] - a[2]) for a, b in pairwise(run))
    texts = ",".join(member.text for member in members)
    yield (
        f'{{"type":"{kind}","seq0":{run[0][0]},"time0":{run[0][2]},"data":{{"turn":{turn},"step":{step},'
        f'"index":{block},{call}"dt":[{gaps}],"{_PACKED[kind][2]}":[{texts}]}}}}\n'
    )


# ---------------------------------------------------------------------------------------------------------- reading


class Place(NamedTuple):
    """An event and the number of the line it stands on."""

    line: int
    event: dict[str, Any]


class LogReader:
    """One pass over the lines of one exported session.

    After the first line is read `header` is set; a file without one, as `dsh show --json` prints it, has `session` (the
    id that its lines name, or None) instead. `events` yields what is kept. When it is exhausted, `dropped` is the
    number of lines of a torn tail. LOG_CORRUPT, VERSION_UNSUPPORTED, SEED_INVALID name the line.
    """

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = enumerate(lines, 1)
        self.header: SessionHeader | None = None
        self.session: str | None = None
        self.source: str | None = None  # the tool that it was imported from
        self.incarnation: str | None = None
        self.left_out: list[str] = []  # fields of the header that have no place in the database
        self.dropped = 0
        self._first: tuple[int, bytes] | None = None
        self._head()

    def _head(self) -> None:
        number, line = next(self._lines, (1, b""))
        record = _record(line)
        if record is None or not (record.get("type") == "session" or _count(record.get("seq"))):
            raise SessionError("line 1 is neither a session's header nor an event", code="LOG_CORRUPT")
        if "seq" in record:
            self._first = number, line
            named = record.get("sessionId")
            self.session = named if isinstance(named, str) else None
            return
        version = record.pop("version", None)
        if type(version) is int and version != 0:
            raise SessionError(f"the session has format version {version}", code="VERSION_UNSUPPORTED")
        self.source = _taken(record, "source")
        self.incarnation = _taken(record, "incarnation")
        self.left_out = sorted(set(record) - {"type", *_HEADER_FIELDS})
        header = SessionHeader(version=0)
        header.update({f: record[f] for f in _HEADER_FIELDS if f in record})  # type: ignore[typeddict-item]
        try:
            if version is None or not {"id", "createdAt"} <= header.keys():
                raise SessionError("session header: version, id or createdAt is missing")
            check_header(header, {})
        except SessionError as error:
            raise SessionError(f"line 1: {error.message}", code="LOG_CORRUPT") from error
        if not header.get("delegationDepth", 1):
            del header["delegationDepth"]
        self.header = header

    def events(self) -> Iterator[Place]:
        """The events before the first hole, in order, each frozen and with the envelope of an event (SE-50)."""
        seq, hole = 0, 0
        for number, line in self._all():
            record = _record(line)
            members = None if record is None else unpacked(record)
            if not hole and members is not None and _fits(members, seq):
                seq = members[-1]["seq"] + span(members[-1].get("type", ""), members[-1].get("data"))
                for member in members:
                    yield Place(number, self._own(member, number))
                continue
            hole = hole or number
            self.dropped += 1
            if members is not None and any(m.get("type") == "turn/end" for m in members):
                raise SessionError(
                    f"line {hole} is damaged: it is not event {seq}, and a turn ends after it", code="LOG_CORRUPT"
                )

    def _all(self) -> Iterator[tuple[int, bytes]]:
        if self._first is not None:
            yield self._first
        yield from self._lines

    def _own(self, event: dict[str, Any], line: int) -> dict[str, Any]:
        if self.header is None and self.session is not None and event.pop("sessionId", None) != self.session:
            raise SessionError(f"line {line}: the event is of another session than the first", code="SEED_INVALID")
        seq = event["seq"]
        try:
            frozen: Any = freeze(event)
            check_envelope(frozen, seq)
        except DshError as error:
            raise SessionError(f"event {seq} (line {line}): {error.message}", code="SEED_INVALID") from error
        return cast(dict[str, Any], frozen)


def _taken(record: dict[str, Any], field: str) -> str | None:
    """A text that is no field of the header; anything else stays among what is left out."""
    value = record.get(field)
    if not isinstance(value, str) or not value or mend_surrogates(value) != value:
        return None
    del record[field]
    return value


def _record(line: bytes) -> dict[str, Any] | None:
    """The object on a line, or None if it cannot be read; a line without its end is torn (PE-60)."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = loads(line.decode())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _fits(members: list[dict[str, Any]], seq: int) -> bool:
    return all(_count(m.get("seq")) and m["seq"] == at for at, m in enumerate(members, seq))


def unpacked(record: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The events of a record: itself, or the members of a packed row; None if the row is malformed (PE-62)."""
    kind = record.get("type")
    if not isinstance(kind, str) or kind not in _PACKED or "seq" in record:
        return [record]
    delta, field, plural = _PACKED[kind]
    data = record.get("data")
    if record.keys() != _ROW_KEYS or not isinstance(data, dict):
        return None
    call = kind == "tool-call-chunks"
    keys = {"turn", "step", "index", "dt", plural} | ({"id"} if call else set())
    if data.keys() - ({"name"} if call else set()) != keys or not all(
        _count(data[k]) for k in ("turn", "step", "index")
    ):
        return None
    gaps, texts = data["dt"], data[plural]
    id_, name = ({k: data[k]} if k in data else {} for k in ("id", "name"))
    names = [*id_.values(), *name.values()]
    if not (_all_of(gaps, _whole) and _all_of(texts, _string) and texts and _all_of(names, _string)):
        return None
    seq, time = record["seq0"], record["time0"]
    if len(gaps) != len(texts) - 1 or not (_count(seq) and _count(time) and _count(seq + len(texts) - 1)):
        return None
    times = [time]
    for gap in gaps:
        times.append(times[-1] + gap)
    if not all(map(_count, times)):
        return None
    at = {"turn": data["turn"], "step": data["step"]}
    return [  # fields in the order in which the loop logs them
        {
            "type": "assistant/chunk",
            "seq": seq + n,
            "time": times[n],
            "data": {**at, "chunk": {"type": delta, "index": data["index"], **id_, field: text, **name}},
        }
        for n, text in enumerate(texts)
    ]


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def _whole(value: Any) -> bool:
    return type(value) is int and -MAX_INT <= value <= MAX_INT


def _string(value: Any) -> bool:
    return isinstance(value, str)


def _all_of(values: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and all(map(fits, values))


def plain_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream, each with its end; the last may lack it. LOG_CORRUPT for one that has no end in sight."""
    number = 0
    while line := stream.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            raise SessionError(f"line {number} is longer than {MAX_LINE // 2**20} MiB", code="LOG_CORRUPT")
        yield line
