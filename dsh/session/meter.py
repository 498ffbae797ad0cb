"""The token meter: what the next request of a session would use, and what each node of its surface is worth.

A pure function of the log (TM-26). Two figures are put together: the usage that the provider reported for the last
answer, the *anchor*, and a fixed price per character for what has changed on the surface since. A session's state is
made at its first measurement from what is on the surface now and from the last answer's chunks, however long the log
is, and then follows the log by its headers, steps and surface events; chunks are read for the anchor alone.

Nothing here asks a provider or a tokenizer, so a figure is an estimate; compaction, budgets and `dsh tokens` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from dsh import query
from dsh.core.errors import DshError, SessionError
from dsh.core.lossless import dumps, freeze, loads
from dsh.core.messages import EpochHeader, Message, TokenUsage, canonical, same_header
from dsh.llm.assembler import BlockAssembler
from dsh.store.database import Database

if TYPE_CHECKING:
    from dsh.kernel.host import Host

DENSITY = 4
BLOCK = ROLE = TOOLS = 4
_COUNTED = ("inputTokens", "cacheReadTokens", "cacheWriteTokens", "outputTokens")
_APPEND = '"append"'


class MeterError(SessionError):
    """The log cannot be folded; the message names the seq (TM-17)."""

    code = "METER_BAD_LOG"


class Baseline(NamedTuple):
    """Where a measurement starts from; `usage` is the provider's report of kind "usage"."""

    kind: Literal["none", "estimated", "usage"]
    tokens: int
    usage: TokenUsage | None = None


class Measurement(NamedTuple):
    """A `TokenMeasurement`: detached and immutable. `nodes` are (seq, tokens), head to tail of the surface."""

    log_revision: int
    baseline: Baseline
    surface_delta_tokens: int
    total_tokens: int
    surface_tokens: int
    nodes: tuple[tuple[int, int], ...]


# ----------------------------------------------------------------------------------------------------------- prices


def _quarter(text: str) -> int:
    """Tokens of a text by its UTF-16 length, rounded up."""
    units = len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
    return -(-units // DENSITY)


def _block(block: Any) -> int:
    """TM-1 to TM-4; a block of a known type that lacks its fields is priced as an unknown one."""
    match block:
        case {"type": "text" | "reasoning", "text": str(text)}:
            return _quarter(text) + BLOCK
        case {"type": "tool-call", "name": str(name), "arguments": str(arguments)}:
            return _quarter(name) + _quarter(arguments) + BLOCK
        case {"type": "tool-result", "content": list(content)}:
            return sum(map(_block, content)) + BLOCK
    return BLOCK + _quarter(dumps(block))


def estimate_message(message: Message) -> int:
    """Tokens of one message (TM-5)."""
    return sum(map(_block, message["content"])) + ROLE


def estimate_header(header: EpochHeader | None) -> int:
    """Tokens of prefix, system prompt and tools (TM-6)."""
    if header is None:
        return 0
    tokens = sum(map(estimate_message, header.get("messagePrefix", ())))
    if system := header.get("system"):
        tokens += _quarter(system) + ROLE
    if tools := header.get("tools"):
        tokens += _quarter(dumps(tools)) + TOOLS
    return tokens


def _node(type: str, data: Any) -> int:
    """Tokens of a surface node: of the message derived from it, 0 if there is none (TM-7)."""
    content = data["content"]
    if type == "tool/result":
        return sum(map(_block, content)) + BLOCK + ROLE
    if type == "assistant/message" and not content:
        return 0
    return sum(map(_block, content)) + ROLE


# ------------------------------------------------------------------------------------------------------------- fold


class Entry(NamedTuple):
    """An event as the fold takes it; `sources` and `op` as in the log, None if absent."""

    seq: int
    type: str
    data: Any
    sources: Sequence[int] | None = None
    op: Any = None


# Chunk events by seq, as (seq, type, data), in the order asked for; a seq that is not there is left out.
Chunks = Callable[[Sequence[int]], Iterable[tuple[int, str, Any]]]


class _Anchor:
    """The last answer: what stood before it, and what it added by the provider's account."""

    def __init__(self, entry: Entry, header: EpochHeader | None, before: int) -> None:
        self.entry = entry
        self.header = header
        self.before = before  # surface price when its step opened
        self._answer: int | None = None
        self._header_price: int | None = None

    def resolve(self, chunks: Chunks) -> tuple[Baseline, int]:
        """Its baseline, and the surface price that goes with it (TM-13)."""
        usage = _report(self.entry.data.get("usage"))
        if self._answer is None:
            by_provider = usage is not None and self.header is not None
            self._answer = self._provider_output(chunks) if by_provider else _node("assistant/message", self.entry.data)
        surface = self.before + self._answer
        if self._header_price is None:  # once an answer, and a budget asks twice a step: tools are tens of kilobytes
            self._header_price = estimate_header(self.header)
        estimate = self._header_price + surface
        if usage is not None and self.header is not None:
            used = sum(_figures(usage))
            if used >= estimate:
                return Baseline("usage", used, usage), surface
        return Baseline("estimated", estimate), surface

    def _provider_output(self, chunks: Chunks) -> int:
        """TM-14: what the provider sent, whatever became of it in the message."""
        seq, type_, data, sources, _ = self.entry
        if sources is None:
            return _node(type_, data)
        earlier = all(s < seq for s in sources)
        if not earlier or len(set(sources)) < len(sources):
            raise MeterError(f"event {seq} names a source that is repeated or not earlier")
        at = (data["turn"], data["step"])
        assembler = BlockAssembler()
        found = list(chunks(sources)) if sources else []
        if any(kind != "assistant/chunk" or (body["turn"], body["step"]) != at for _, kind, body in found):
            raise MeterError(f"event {seq} names a source that is no chunk of its step")
        if len(found) < len(sources):
            raise MeterError(f"event {seq} names a source that is not there")
        try:
            for _, _, body in found:
                assembler.feed(body["chunk"])
            message = assembler.message()
        except (DshError, KeyError, TypeError) as error:
            raise MeterError(f"the chunks of event {seq} give no message: {error}") from error
        return estimate_message(message) if message["content"] else 0


class Fold:
    """What the meter knows of one log (TM-10 to TM-17)."""

    def __init__(self) -> None:
        self.revision = 0
        self.header: EpochHeader | None = None
        self.nodes: list[int] = []
        self.prices: dict[int, int] = {}
        self.surface = 0
        self.step: tuple[Any, Any] | None = None  # turn and step that are open
        self.before = 0  # surface price when that step opened
        self.anchor: _Anchor | None = None

    def take(self, entry: Entry) -> None:
        """One event, in order of seq. METER_BAD_LOG leaves everything as it was (TM-17)."""
        seq, type_, data, _, op = entry
        at = (data.get("turn"), data.get("step"))
        if type_ == "step/start" and self.step is not None:
            raise MeterError(f"event {seq} opens a step inside another")
        if type_ in ("step/end", "assistant/message") and at != self.step:
            raise MeterError(f"event {seq} is not of the open step")
        place = self._place(seq, op)
        if type_ == "request/header":
            self.header = canonical(freeze(data["header"]))
        elif type_ == "step/start":
            self.step, self.before = at, self.surface
        elif type_ == "step/end":
            self.step = None
        elif type_ == "assistant/message":
            self.anchor = _Anchor(entry, self.header, self.before)
        if place is not None:
            self._put(seq, _node(type_, data), place)
        self.revision = seq + 1

    def _place(self, seq: int, op: Any) -> slice | None:
        """Where a node goes; None for an event that is none."""
        if op is None:
            return None
        if op == "append":
            return slice(len(self.nodes), len(self.nodes))
        try:
            first, last = self.nodes.index(op["start"]), self.nodes.index(op["end"])
        except ValueError:
            first, last = 0, -1
        if first > last:
            raise MeterError(f"event {seq} replaces what is not on the surface")
        return slice(first, last + 1)

    def _put(self, seq: int, price: int, place: slice) -> None:
        for removed in self.nodes[place]:
            self.surface -= self.prices.pop(removed)
        self.nodes[place] = [seq]
        self.prices[seq] = price
        self.surface += price

    def pressure(self, chunks: Chunks, header: EpochHeader | None = None) -> tuple[Baseline, int]:
        """Baseline and surface delta under a header, that of the log if none is given (TM-20 to TM-24)."""
        effective = self.header if header is None else canonical(freeze(header))
        if self.anchor is not None:
            baseline, surface = self.anchor.resolve(chunks)
            if _equal(self.anchor.header, effective):
                return baseline, self.surface - surface
        if effective is None and self.surface == 0:
            return Baseline("none", 0), 0
        return Baseline("estimated", estimate_header(effective) + self.surface), 0


def _report(usage: Any) -> TokenUsage | None:
    """A provider's report; None if there is none, or what a log from elsewhere has there is none."""
    known = isinstance(usage, Mapping) and all(type(figure) is int for figure in _figures(usage))
    return cast("TokenUsage", usage) if known else None


def _figures(usage: Mapping[str, Any]) -> list[Any]:
    return [usage.get(figure) or 0 for figure in _COUNTED]


def _equal(a: EpochHeader | None, b: EpochHeader | None) -> bool:
    return a is b or (a is not None and b is not None and same_header(a, b))


# ---------------------------------------------------------------------------------------------------------- service


class Meter:
    """Measures the sessions of one database; keeps the state of each one it was asked about (TM-26)."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._folds: dict[str, tuple[str, Fold]] = {}

    @classmethod
    def of(cls, host: Host, db: Database) -> Meter:
        """The program's one meter, made when it is first asked for: most runs need none."""
        meter = host.find(cls)
        if meter is None:
            meter = cls(db)
            host.root.provide(cls, meter)
            host.root.on("session/disposed", lambda session: meter.forget(session.id))
        return meter

    def forget(self, session: str) -> None:
        self._folds.pop(session, None)

    def measure(self, session: str, header: EpochHeader | None = None) -> Measurement:
        """Everything about a session's log as it is now (TM-20). SESSION_NOT_FOUND, METER_BAD_LOG."""
        fold, baseline, delta = self._pressure(session, header)
        nodes = tuple((seq, fold.prices[seq]) for seq in fold.nodes)
        total = max(0, baseline.tokens + delta)
        return Measurement(fold.revision, baseline, delta, total, fold.surface, nodes)

    def total(self, session: str, header: EpochHeader | None = None) -> int:
        """`measure(...).total_tokens` alone, which costs no more however many nodes there are."""
        _, baseline, delta = self._pressure(session, header)
        return max(0, baseline.tokens + delta)

    def _pressure(self, session: str, header: EpochHeader | None) -> tuple[Fold, Baseline, int]:
        try:
            with self._db.snapshot():
                fold = self._read(session)
                return fold, *fold.pressure(self._chunks(session), header)
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # a payload of no known shape
            raise MeterError(f"the log of session {session} cannot be measured: {error}") from error

    def _read(self, session: str) -> Fold:
        """The session's state at the end of its log."""
        state = query.row(self._db, "session_state", session=session)
        if state is None:
            raise SessionError(f"there is no session {session}", code="SESSION_NOT_FOUND")
        incarnation, length = state[7], state[9]
        known, fold = self._folds.get(session, (None, None))
        if fold is None or known != incarnation or fold.revision > length:  # another log, or one that was rolled back
            fold = self._first(session, open_step=None if state[14] is None else (state[13], state[14]))
            self._folds[session] = (incarnation, fold)
        elif fold.revision < length:
            for seq, type_, data, sources, op in query.rows(
                self._db, "meter_events", session=session, low=fold.revision
            ):
                places = "append" if op == _APPEND else None if op is None else _parse(seq, op)
                named = None if sources is None else _parse(seq, sources)
                fold.take(Entry(seq, type_, _parse(seq, data), named, places))
        fold.revision = length
        return fold

    def _first(self, session: str, open_step: tuple[Any, Any] | None) -> Fold:
        """The state made from what is there now; the rules of the database stand for the checks of the fold."""
        fold = Fold()
        for seq, type_, data in query.rows(self._db, "meter_surface", session=session):
            fold.nodes.append(seq)
            fold.prices[seq] = _node(type_, _parse(seq, data))
        fold.surface = sum(fold.prices.values())
        found = query.row(self._db, "header_in_force", session=session)
        fold.header = canonical(freeze(_parse(found[0], found[1]))) if found else None
        anchor = query.row(self._db, "meter_anchor", session=session)
        if anchor is not None:
            seq, data, sources, start, text = anchor
            header = None if text is None else canonical(freeze(_parse(seq, text)))
            if _equal(header, fold.header):
                header = fold.header  # one object, so that comparing them again costs nothing
            named = None if sources is None else _parse(seq, sources)
            entry = Entry(seq, "assistant/message", _parse(seq, data), named)
            fold.anchor = _Anchor(entry, header, self._surface_at(session, start, fold))
        if open_step is not None:
            fold.step = open_step
            begun = query.row(self._db, "meter_step", session=session)
            fold.before = self._surface_at(session, begun[0], fold) if begun else 0
        return fold

    def _surface_at(self, session: str, at: int, fold: Fold) -> int:
        """The surface price just before an event; nodes that are gone by now are read again."""
        seqs = [row[0] for row in query.rows(self._db, "meter_surface_at", session=session, at=at)]
        gone = [seq for seq in seqs if seq not in fold.prices]
        price = sum(fold.prices[seq] for seq in seqs if seq in fold.prices)
        if gone:
            price += sum(_node(type_, data) for _, type_, data in self._chunks(session)(gone))
        return price

    def _chunks(self, session: str) -> Chunks:
        def read(seqs: Sequence[int]) -> Iterable[tuple[int, str, Any]]:
            rows = query.rows(self._db, "meter_picked", session=session, seqs=dumps(list(seqs)))
            return [(seq, type_, _parse(seq, data)) for seq, type_, data in rows]

        return read


def _parse(seq: int, text: str) -> Any:
    try:
        return loads(text)
    except ValueError:
        raise MeterError(f"event {seq} cannot be read") from None
