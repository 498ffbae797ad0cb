"""Texts of a stored log with something in them replaced: keys that an export leaves out, words that are redacted.

What is replaced is looked for in the texts of a payload, never in its JSON, so the payload stays what it was but for
those texts. Streamed fragments are small pieces of one text, and what is looked for may begin in one and end in
another: the fragments of a block are searched as one text, and each keeps its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dsh.core import secrets
from dsh.core.lossless import dumps, loads
from dsh.core.secrets import Span

Row = Sequence[Any]  # seq, type, time, data (JSON text), and whatever else

_FRAGMENTS = {"text-delta": "text", "reasoning-delta": "text", "tool-call-delta": "argumentsDelta"}
_REFERENCES = frozenset({"type", "kind", "id", "callId", "toolCallId"})
# A stream is over where one of these stands; nothing goes on behind it that began before.
_ENDS = frozenset({"assistant/message", "step/start", "step/end", "turn/start", "turn/end"})


class Masker:
    """Replaces what `find` finds in texts by a mark, and counts it: `counts` has a figure for each kind.

    `idle` says of the JSON text of a payload that nothing can be found in it, so that it is not taken apart. With
    `texts_only` the names of fields stay, and what events refer to each other by; `left` counts what was found there.
    """

    def __init__(
        self,
        find: Callable[[str], list[Span]] = secrets.find,
        idle: Callable[[str], bool] | None = None,
        *,
        texts_only: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.left = 0
        self._find = find
        self._idle = _without_secrets if idle is None and find is secrets.find else idle
        self._texts_only = texts_only

    def holds(self, data: str) -> bool:
        """Whether anything would be masked in the JSON text of a payload; it is not counted."""
        counts, left = self.counts.copy(), self.left
        try:
            return self.data(data) is not data
        finally:
            self.counts, self.left = counts, left

    def summary(self) -> str:
        """How much was replaced, for people: `3 places (github 2, openai 1)`."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()) if kind)
        total = self.counts.total()
        return f"{total} place{'' if total == 1 else 's'}{f' ({kinds})' if kinds else ''}"

    def text(self, text: str) -> str:
        spans = self._find(text)
        if not spans:
            return text
        self.counts.update(kind for _, _, kind in spans)
        return secrets.masked(text, spans)

    def value(self, value: Any) -> Any:
        """A JSON value with its texts masked, keys too; the very value if there was nothing."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            items = list(map(self.value, value))  # a comprehension would double the frames of a deep value
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        if isinstance(value, dict):
            fields: dict[str, Any] = {}
            for key, part in value.items():
                if self._texts_only:
                    fields[key] = self._kept(part) if key in _REFERENCES else self.value(part)
                    self._kept(key)
                    continue
                name = self.text(key)
                while name in fields or (name != key and name in value):
                    name += "*"
                fields[name] = self.value(part)
            same = all(a == b and fields[a] is value[b] for a, b in zip(fields, value, strict=True))
            return value if same else fields
        return value

    def _kept(self, value: Any) -> Any:
        if not isinstance(value, str):
            return self.value(value)
        self.left += len(self._find(value))
        return value

    def data(self, data: str) -> str:
        """The JSON text of a payload, masked; byte for byte what it was if there was nothing."""
        if self._idle is not None and self._idle(data):
            return data
        value = loads(data)
        masked = self.value(value)
        return data if masked is value else dumps(masked)

    def rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows of a log, in order, masked; those of one answer are held until it is complete."""
        held: list[Row] = []
        for row in rows:
            if row[1] == "assistant/chunk":
                held.append(row)
            elif not held:
                yield self._row(row)
            elif row[1] in _ENDS:
                yield from self._stream(held)
                held = []
                yield self._row(row)
            else:
                held.append(row)
        yield from self._stream(held)

    def _row(self, row: Row) -> Row:
        data = self.data(row[3])
        return row if data is row[3] else (*row[:3], data, *row[4:])

    def _stream(self, rows: list[Row]) -> Iterator[Row]:
        """The rows of one answer: its fragments, block by block, then everything else for itself."""
        blocks: dict[tuple[Any, ...], list[tuple[int, Any]]] = {}
        finished: list[list[tuple[int, Any]]] = []
        for place, row in enumerate(rows):
            if row[1] != "assistant/chunk":
                continue
            value: Any = loads(row[3])
            chunk: Any = value.get("chunk") if isinstance(value, dict) else None
            kind = chunk.get("type") if isinstance(chunk, dict) else None
            if kind in _FRAGMENTS and isinstance(chunk.get(_FRAGMENTS[kind]), str):
                block = value.get("turn"), value.get("step"), chunk.get("index"), kind
                blocks.setdefault(block, []).append((place, value))
            elif kind in ("block-start", "finish"):  # the next attempt's blocks have the same numbers
                finished += blocks.values()
                blocks = {}
        for fragments in [*finished, *blocks.values()]:
            for place, data in self._fragments(fragments):
                rows[place] = (*rows[place][:3], data, *rows[place][4:])
        yield from map(self._row, rows)

    def _fragments(self, fragments: list[tuple[int, Any]]) -> Iterator[tuple[int, str]]:
        """Those of a block that change, with their new payload. The mark stands where the found text began."""
        texts = [value["chunk"][_FRAGMENTS[value["chunk"]["type"]]] for _, value in fragments]
        spans = self._find("".join(texts))
        if not spans:
            return
        self.counts.update(kind for _, _, kind in spans)
        start = 0
        for (place, value), text in zip(fragments, texts, strict=True):
            end = start + len(text)
            parts: list[str] = []
            at = start
            for low, high, kind in spans:
                if low < end and high > start:
                    parts += text[at - start : max(low, at) - start], secrets.mark(kind) if low >= start else ""
                    at = min(high, end)
            if parts:
                parts.append(text[at - start :])
                field = _FRAGMENTS[value["chunk"]["type"]]
                yield place, dumps({**value, "chunk": {**value["chunk"], field: "".join(parts)}})
            start = end


def _without_secrets(data: str) -> bool:
    """No key has a character in it that our JSON escapes; others may escape what need not be."""
    return "\\/" not in data and "\\u00" not in data and not secrets.find(data)
