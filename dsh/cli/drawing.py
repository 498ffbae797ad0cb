"""The interactive search as lines of a screen: from a Picker, a preview and a size to text with colours.

One line for the query, the list, a preview beside or below it where there is room, one line that names the keys. No
line is ever wider than the screen; what does not fit is left out, at any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsh.cli.keys import Line
from dsh.cli.output import BOLD, DIM, HEADING, MATCH, age, fit, home_shortened, width_of
from dsh.cli.picker import Item, Picker, Scope

Piece = tuple[str, str]  # text, and the SGR code that it is shown with ("" for none)

_SELECTED = "7"
_SCOPES: dict[Scope, str] = {"all": "everywhere", "here": "this folder", "session": "this session"}
_WIDE, _HIGH = 96, 24  # columns for a preview beside the list, lines for one below it
_TWO_LINES = 8  # lines of a list in which hits have a second one for their snippet
_HEAD = 3  # lines that a preview has above its text


class Block(NamedTuple):
    """An event in the preview; `spans` are the matches in its text, `hit` tells that it is the one that was found."""

    heading: str
    text: str
    spans: tuple[tuple[int, int], ...] = ()
    hit: bool = False
    faint: bool = False


class Preview(NamedTuple):
    """What stands around an item: harmless text, without tabs. Without a hit it is the end that matters."""

    item: Item
    title: str
    about: str
    blocks: tuple[Block, ...]


class Frame(NamedTuple):
    """Lines of a screen, each in full, and where the cursor stands (line, column), both from 0."""

    lines: list[str]
    cursor: tuple[int, int]


class _Layout(NamedTuple):
    list_lines: int
    list_columns: int
    hints: bool
    beside: int = 0  # columns of a preview to the right of the list
    below: int = 0  # lines of one below it


def _layout(columns: int, lines: int) -> _Layout:
    hints = lines >= 6
    body = max(0, lines - 1 - hints)
    if columns >= _WIDE and body > _HEAD + 2:
        own = columns * 9 // 20
        return _Layout(body, own, hints, beside=columns - own - 2)
    if lines >= _HIGH and columns >= 30:
        below = body // 2 - 1
        return _Layout(body - below - 1, columns, hints, below=below)
    return _Layout(body, columns, hints)


class Drawing:
    """Makes frames. Keeps the wrapped lines of the last preview."""

    def __init__(self, *, paint: bool) -> None:
        self._paint = paint
        self._wrapped: tuple[Preview, int] | None = None
        self._lines: list[list[Piece]] = []
        self._first = 0

    def frame(self, picker: Picker, preview: Preview | None, columns: int, lines: int) -> Frame:
        """The screen as it is now; tells the picker how much of it is seen."""
        layout = _layout(columns, lines)
        height = 2 if layout.list_lines >= _TWO_LINES and any(item.snippet for item in picker.items) else 1
        page = max(1, layout.list_lines // height)
        room = layout.below or layout.list_lines if layout.below or layout.beside else 0
        seen = self._seen(picker, preview, layout.beside or columns, room, page)
        listed = _list(picker, layout.list_columns, page, height, layout.list_lines)
        top, cursor = _top(picker, columns)
        rows = [self._coded(top)]
        if layout.beside:
            for left, right in zip(listed, seen, strict=True):
                bar = self._coded([("│ ", DIM)])
                rows.append(f"{self._coded(left)}\x1b[{layout.list_columns + 1}G{bar}{self._coded(right)}")
        else:
            rows += map(self._coded, listed)
            if layout.below:
                rows.append(self._coded([("─" * columns, DIM)]))
                rows += map(self._coded, seen)
        if layout.hints:
            rows.append(self._coded(_cut(_hints(picker), columns)))
        return Frame(rows[:lines], (0, min(cursor, max(0, columns - 1))))

    def _seen(self, picker: Picker, preview: Preview | None, columns: int, room: int, page: int) -> list[list[Piece]]:
        """The lines of the preview that are seen; none where there is no room for one. That of another item is seen
        until there is one of this."""
        if preview is None or picker.current is None or room <= _HEAD:
            picker.fit(page)
            return [[] for _ in range(room)]
        if self._wrapped != (preview, columns):
            self._lines, self._first = _text(preview, columns)
            self._wrapped = preview, columns
        lines = room - _HEAD
        last = max(0, len(self._lines) - lines)
        begin = min(last, max(0, self._first - lines // 3))
        picker.fit(page, begin, last - begin)
        begin += picker.scroll
        shown = [_cut([(preview.title, BOLD)], columns), _cut([(preview.about, DIM)], columns), []]
        shown += self._lines[begin : begin + lines]
        return shown + [[] for _ in range(room - len(shown))]

    def _coded(self, pieces: Iterable[Piece]) -> str:
        return "".join(f"\x1b[{code}m{text}\x1b[0m" if code and self._paint else text for text, code in pieces if text)


def _top(picker: Picker, columns: int) -> tuple[list[Piece], int]:
    """The line that is typed in, and the cursor's column."""
    label, line = "> ", picker.query
    if picker.ask is not None:
        label, line = f"{picker.ask[0]}: ", picker.ask[2]
    count = f"{len(picker.items)}{'+' if picker.more else ''}"
    scope = picker.wanted.scope
    where = "as narrowed" if scope == "all" and picker.narrowed else _SCOPES[scope]
    status = f"{'!' if picker.failed else '…' if picker.behind else count}  {where}"
    room = columns - width_of(label) - width_of(status) - 2
    if room < 10:
        status, room = "", columns - width_of(label)
    shown, cursor = _window(line, max(1, room))
    gap = " " * (columns - width_of(label) - width_of(shown) - width_of(status))
    pieces = [(label, HEADING), (shown, "")]
    if status:
        pieces += [(gap, ""), (status, DIM)]
    return _cut(pieces, columns), width_of(label) + cursor


def _window(line: Line, columns: int) -> tuple[str, int]:
    """As much of a line as fits, its cursor and the column for one more character included; the cursor's column."""
    start = 0
    while start < line.cursor and width_of(line.text[start : line.cursor]) >= columns:
        start += 1
    end = line.cursor
    while end < len(line.text) and width_of(line.text[start : end + 1]) < columns:
        end += 1
    return line.text[start:end], width_of(line.text[start : line.cursor])


def _list(picker: Picker, columns: int, page: int, height: int, lines: int) -> list[list[Piece]]:
    found: list[list[Piece]] = []
    for index in range(picker.top, min(len(picker.items), picker.top + page)):
        item, selected = picker.items[index], index == picker.selected
        found.append(_entry(item, columns, selected))
        if height == 2:
            found.append(_cut([("    ", ""), *marked(item.snippet, item.matches, DIM)], columns))
    if not picker.items and not picker.behind and not picker.notice:
        found.append(_cut([("  nothing found" if picker.query.text.strip() else "  no sessions", DIM)], columns))
    return (found + [[] for _ in range(lines)])[:lines]


def _entry(item: Item, columns: int, selected: bool) -> list[Piece]:
    """Title, folder and age; the folder loses its beginning first."""
    when = age(item.time).removesuffix(" ago").rjust(4)
    where = home_shortened(item.cwd)
    widest = columns // 3 if columns >= 50 else 0
    if width_of(where) > widest:
        tail = where
        while tail and width_of(tail) >= widest:
            tail = tail[1:]
        where = f"…{tail}" if widest > 1 else ""
    about = "  ".join(filter(None, (where, when))) if columns >= 24 else ""
    room = max(1, columns - 2 - (width_of(about) + 1 if about else 0) - 1)
    title = fit(item.title or "(no title)", room)
    gap = " " * (columns - 2 - width_of(title) - width_of(about) - 1) if about else ""
    marker = "> " if selected else "  "
    style = _SELECTED if selected else ""
    return _cut([(marker, style), (title, style or BOLD), (gap, style), (about, style or DIM)], columns)


def _hints(picker: Picker) -> list[Piece]:
    if picker.notice:
        return [(picker.notice, MATCH)]
    if picker.ask is not None:
        return _keys([("Enter", "run"), ("Esc", "back")])
    enter = "print the id" if picker.enter == "id" else picker.enter
    keys = [("Enter", enter), ("^R", "resume"), ("^T", "fork"), ("^O", "show"), ("^Y", "id")]
    return _keys([*(k for k in keys if k[0] == "Enter" or k[1] != picker.enter), ("Tab", "where"), ("Esc", "leave")])


def _keys(named: Sequence[tuple[str, str]]) -> list[Piece]:
    return [piece for key, text in named for piece in ((key, BOLD), (f" {text}   ", DIM))]


def _text(preview: Preview, columns: int) -> tuple[list[list[Piece]], int]:
    """The lines of a preview, and which of them matters most."""
    lines: list[list[Piece]] = []
    first: int | None = None
    for block in preview.blocks:
        unseen = block.hit
        if block.hit:
            first = len(lines)
        lines.append(_cut([(block.heading, MATCH if block.hit else HEADING)], columns))
        style = DIM if block.faint else ""
        for start, end in wrapped(block.text, max(1, columns - 2)):
            spans = [(max(s, start) - start, min(e, end) - start) for s, e in block.spans if s < end and e > start]
            if spans and unseen:
                first, unseen = len(lines), False
            lines.append([("  ", ""), *marked(block.text[start:end], spans, style)])
        lines.append([])
    return lines, len(lines) if first is None else first


def marked(text: str, spans: Iterable[tuple[int, int]], style: str = "") -> list[Piece]:
    """A text with its matches in their colour."""
    pieces: list[Piece] = []
    at = 0
    for start, end in spans:
        pieces += [(text[at:start], style), (text[start:end], MATCH)]
        at = end
    return [*pieces, (text[at:], style)]


def wrapped(text: str, columns: int) -> list[tuple[int, int]]:
    """Where the lines of a text begin and end when none may be wider: after a blank, else anywhere."""
    found: list[tuple[int, int]] = []
    start = 0
    for line in text.split("\n"):
        end = start + len(line)
        at = start
        while width_of(text[at:end]) > columns:
            cut, used = at, 0
            while used + width_of(text[cut]) <= columns:
                used += width_of(text[cut])
                cut += 1
            cut = max(cut, at + 1)
            blank = text.rfind(" ", at, cut) + 1
            cut = blank if blank > at else cut
            found.append((at, cut))
            at = cut
        found.append((at, end))
        start = end + 1
    return found


def _cut(pieces: Iterable[Piece], columns: int) -> list[Piece]:
    """Pieces as far as they fit."""
    found: list[Piece] = []
    room = columns
    for text, style in pieces:
        kept = fit(text, room) if room > 0 else ""
        found.append((kept, style))
        room -= width_of(kept)
        if kept != text:
            break
    return found
