"""What the interactive search shows and how keys change it: no terminal, no database.

    picker = Picker("needle")
    picker.wanted                 # what to search for now; answers come back through `take`
    picker.press(Key("down"))     # None, an exit code, or the Choice that was made

An answer may come late. Until it does the old items stay, and a choice waits for the items of what was typed: nobody
means a line that only stands there because the search is slower than the fingers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from dsh.cli.keys import Key, Line

Scope = Literal["all", "here", "session"]
Verb = Literal["resume", "fork", "show", "id"]

VERBS: dict[str, Verb] = {"ctrl-r": "resume", "ctrl-t": "fork", "ctrl-o": "show", "ctrl-y": "id"}
LEFT, INTERRUPTED = 1, 130  # exit codes of leaving without a choice


class Item(NamedTuple):
    """A line of the list, harmless to a terminal already: a session, or with `seq` an event in it. `time` in epoch ms;
    `matches` are (start, end) in `snippet`."""

    session_id: str
    seq: int | None
    time: int
    title: str
    cwd: str
    snippet: str = ""
    matches: tuple[tuple[int, int], ...] = ()


class Wanted(NamedTuple):
    """A search: what was typed, and where to look (`session` for the scope of one)."""

    text: str
    scope: Scope
    session: str | None


class Choice(NamedTuple):
    """What to do with an item. `prompt` is what was typed for resume and fork, if the picker asks for it."""

    verb: Verb
    item: Item
    prompt: str = ""


class Picker:
    """The state. `scopes` begin with "all"; `enter` is what Enter does; with `asks` resume and fork ask for a prompt
    before they are chosen; `narrowed` tells that there are filters besides what is typed."""

    def __init__(
        self,
        text: str = "",
        *,
        scopes: Sequence[Scope] = ("all", "here", "session"),
        enter: Verb = "resume",
        asks: bool = True,
        narrowed: bool = False,
    ) -> None:
        self.query = Line(text)
        self.enter: Verb = enter
        self.narrowed = narrowed
        self.items: list[Item] = []
        self.more = False  # whether there are hits beyond those that are listed
        self.notice = ""
        self.selected = 0
        self.top = 0  # first item on the screen
        self.page = 1  # items that fit on it
        self.scroll = 0  # lines that the preview was moved by from where it begins
        self.ask: tuple[Verb, Item, Line] | None = None  # a prompt is being typed for this
        self._asks = asks
        self._scopes = scopes
        self._scope: Scope = scopes[0]
        self._session: str | None = None
        self._taken: Wanted | None = None
        self._failed: Wanted | None = None
        self._pending: Verb | None = None

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.query.text, self._scope, self._session if self._scope == "session" else None)

    @property
    def behind(self) -> bool:
        """Whether the items are not those of what was typed, or not yet."""
        return self._taken != self.wanted

    @property
    def failed(self) -> bool:
        """Whether there will be none: what was typed cannot be searched for."""
        return self._failed == self.wanted

    @property
    def current(self) -> Item | None:
        return self.items[self.selected] if self.items else None

    def take(self, asked: Wanted, items: list[Item], *, more: bool = False, notice: str = "") -> Choice | None:
        """The items that a search found; the choice that was waiting for them."""
        if self._taken != asked:
            self.selected = self.top = self.scroll = 0
        self.items, self.more, self.notice, self._taken = items, more, notice, asked
        self.selected = min(self.selected, max(0, len(items) - 1))
        if self.behind or self._pending is None:
            return None
        verb, self._pending = self._pending, None
        return self._choose(verb)

    def fail(self, asked: Wanted, notice: str) -> None:
        """A search came to nothing. The items stay, but they are not what was asked for and are not chosen."""
        self._failed, self.notice, self._pending = asked, notice, None

    def fit(self, page: int, up: int = 0, down: int = 0) -> None:
        """So many items fit on the screen, and the preview can be moved by so many lines."""
        self.page = max(1, page)
        lowest = max(0, self.selected - self.page + 1)
        self.top = max(lowest, min(self.top, self.selected, max(0, len(self.items) - self.page)))
        self.scroll = max(-up, min(self.scroll, down))

    def press(self, key: Key) -> Choice | int | None:
        """Serve a key: a choice, the exit code of leaving without one, or None to go on."""
        self._pending = None
        if key.name == "ctrl-c":
            return INTERRUPTED
        if self.ask is not None:
            return self._press_asking(*self.ask, key)
        if key.name in ("escape", "ctrl-g") or (key.name == "ctrl-d" and not self.query.text):
            return LEFT
        if key.name == "enter" or key.name in VERBS:
            verb = self.enter if key.name == "enter" else VERBS[key.name]
            if self.behind:
                self._pending = None if self.failed else verb
                return None
            return self._choose(verb)
        if not self._moved(key):
            self.query.edit(key)
        return None

    def _choose(self, verb: Verb) -> Choice | None:
        item = self.current
        if item is None:
            return None
        if self._asks and verb in ("resume", "fork"):
            self.ask = verb, item, Line()
            return None
        return Choice(verb, item)

    def _press_asking(self, verb: Verb, item: Item, line: Line, key: Key) -> Choice | None:
        if key.name == "enter" and line.text.strip():
            self.ask = None
            return Choice(verb, item, line.text)
        if key.name in ("enter", "escape", "ctrl-g"):
            self.ask = None
        else:
            line.edit(key)
        return None

    def _moved(self, key: Key) -> bool:
        last = max(0, len(self.items) - 1)
        steps = {
            "up": -1, "ctrl-p": -1, "down": 1, "ctrl-n": 1, "page-up": -self.page, "page-down": self.page,
            "ctrl-home": -last, "ctrl-end": last,
        }  # fmt: skip
        lines = {"shift-up": -1, "alt-up": -1, "ctrl-up": -1, "shift-down": 1, "alt-down": 1, "ctrl-down": 1}
        if key.name in steps:
            before, self.selected = self.selected, min(last, max(0, self.selected + steps[key.name]))
            if self.selected != before:
                self.scroll = 0
        elif key.name in lines:
            self.scroll += lines[key.name]
        elif key.name in ("tab", "shift-tab"):
            self._turn(1 if key.name == "tab" else -1)
        else:
            return False
        return True

    def _turn(self, step: int) -> None:
        """To the next scope. That of one session is left out as long as no item tells which."""
        if self._scope != "session":
            self._session = self.current.session_id if self.current else None
        scopes = [s for s in self._scopes if s != "session" or self._session is not None]
        self._scope = scopes[(scopes.index(self._scope) + step) % len(scopes)]
