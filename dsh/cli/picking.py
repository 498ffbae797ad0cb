"""`dsh search -i`: choose a session or an event on the terminal, and what to do with it.

The answer alone goes to standard output. Where that is a terminal Enter goes on with the session; in `$(...)` it prints
its id. With `--print` whatever is chosen is printed as a command line, for the key bindings of dsh shell-init.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NoReturn

from dsh.cli import output, pager
from dsh.cli.common import current_folder
from dsh.cli.drawing import Drawing, Preview
from dsh.cli.keys import Keys
from dsh.cli.picker import LEFT, Choice, Item, Picker, Scope, Verb, Wanted
from dsh.cli.screen import Screen, opened
from dsh.cli.searcher import Found, Searcher, matcher
from dsh.core.errors import UsageError
from dsh.query.search import Filters
from dsh.store.database import Database

_ESCAPE_S = 0.05  # after an ESC, for the rest of a key


def pick(db: Database, text: str, filters: Filters, *, db_flag: str | None, printed: bool, **how: Any) -> int:
    """Let the user choose, and do it; the exit code. 1 if nothing was chosen, 130 after Ctrl-C; USAGE without a
    terminal. `text` is the query to begin with, `filters` and `how` (more arguments of `search`) hold for all searches,
    `printed` tells to print the command line instead of running it."""
    captured = not output.is_terminal()
    enter: Verb = "id" if captured and not printed else "resume"
    picker = Picker(
        output.one_line(text), scopes=_scopes(filters), enter=enter, asks=not printed, narrowed=filters != Filters()
    )
    with opened() as screen, closing(Searcher(db.path, filters, _here(), screen.ring, how)) as searcher:
        choice = _Loop(db, screen, searcher, picker, captured=captured, printed=printed).run()
    if isinstance(choice, int):
        return choice
    if choice.verb == "id":
        output.line(output.shown(choice.item.session_id))
        return 0
    words = [*(["--db", db_flag] if db_flag else []), *_words(choice)]
    if printed:
        output.line(shlex.join(["dsh", *words]) + (' ""' if choice.verb != "show" else ""))
        return 0
    db.close()
    return _become([*words, "--", choice.prompt])


def _scopes(filters: Filters) -> Sequence[Scope]:
    """Where can be looked: what was said on the command line is not widened."""
    if filters.session is not None:
        return ("all",)
    return ("all", "session") if filters.cwd is not None or _here() is None else ("all", "here", "session")


def _here() -> str | None:
    try:
        return current_folder()
    except UsageError:  # it does not exist any more
        return None


def _words(choice: Choice) -> list[str]:
    id_, seq = choice.item.session_id, choice.item.seq
    if choice.verb == "show":
        return ["show", id_ if seq is None else f"{id_}:{seq}"]
    return ["run", "--fork" if choice.verb == "fork" else "-r", id_]


def _become(words: list[str]) -> NoReturn:
    """Be another command of this program from here on."""
    from dsh._start import command

    whole = [*command(), *words]
    os.execvp(whole[0], whole)


class _Loop:
    """Keys, answers and frames, until something was chosen."""

    def __init__(
        self, db: Database, screen: Screen, searcher: Searcher, picker: Picker, *, captured: bool, printed: bool
    ) -> None:
        self._db, self._screen, self._searcher, self._picker = db, screen, searcher, picker
        self._captured, self._printed = captured, printed
        self._drawing = Drawing(paint=not os.environ.get("NO_COLOR"))
        self._keys = Keys()
        self._asked: Wanted | None = None
        self._looked: Item | None = None
        self._preview: Preview | None = None

    def run(self) -> Choice | int:
        size = (0, 0)
        since = 0.0
        while True:
            self._ask()
            if size != (size := self._screen.size()):
                self._screen.forget()
            self._screen.draw(self._drawing.frame(self._picker, self._preview, *size))
            data = self._screen.wait(_ESCAPE_S if self._keys.waiting else None)
            if data is None:
                return LEFT
            pressed = self._keys.feed(data)
            if data:
                since = time.monotonic()
            elif self._keys.waiting and time.monotonic() - since >= _ESCAPE_S:
                pressed = self._keys.flush()
            for key in pressed:
                if key.name == "ctrl-z" and not self._captured:  # there the shell that waits could not be told
                    self._screen.suspend()
                elif key.name == "ctrl-l":
                    self._screen.forget()
                elif (chosen := self._done(self._picker.press(key))) is not None:
                    return chosen
            for answer in self._searcher.answers():
                if isinstance(answer, Preview):
                    self._preview = answer
                elif (chosen := self._done(self._taken(answer))) is not None:
                    return chosen

    def _ask(self) -> None:
        """What is not known yet."""
        if self._picker.wanted != self._asked:
            self._asked = self._picker.wanted
            self._searcher.search(self._asked)
        current = self._picker.current
        if current is not None and current != self._looked:
            self._looked = current
            self._searcher.preview(current)

    def _taken(self, found: Found) -> Choice | None:
        if found.items is None:
            self._picker.fail(found.wanted, found.notice)
            return None
        return self._picker.take(found.wanted, found.items, more=found.more, notice=found.notice)

    def _done(self, outcome: Choice | int | None) -> Choice | int | None:
        """The outcome, if it ends the picking: what is shown is shown at once, and then the choosing goes on."""
        if not isinstance(outcome, Choice) or outcome.verb != "show" or self._printed:
            return outcome
        if not pager.program():
            self._picker.notice = "there is no pager: $PAGER is not a program, or less is not installed"
            return None
        item = outcome.item
        with self._screen.lent():
            pager.show(self._db, item.session_id, item.seq, matcher(item), self._screen.fd)
        return None
