"""The terminal of the interactive search: taken over, drawn on, and given back as it was, whatever happens.

It is /dev/tty and not standard input or output, so that `$(dsh search -i)` has the answer alone. Keys come raw; a
resize, a stop and what other threads have to say arrive as bytes of one pipe, so the program only ever waits in one
place.
"""

from __future__ import annotations

import os
import select
import signal
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from dsh.cli.drawing import Frame
from dsh.core.errors import UsageError

# The alternate screen, no wrapping at the margin (so that a character that a terminal takes for wider than we do
# spoils no other line), pastes in brackets.
_ENTER = "\x1b[?1049h\x1b[?7l\x1b[?2004h\x1b[2J"
_LEAVE = "\x1b[0m\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[?1049l"
_SIZE = (80, 24)  # of a terminal that does not know its own


class Screen:
    """A terminal. Made by `opened`; `enter` and `leave` may be called in turn, for a program in between."""

    def __init__(self, fd: int, bell: int, notify: int) -> None:
        self._fd = fd
        self._bell = bell
        self._notify = notify
        self._modes: list[Any] | None = None  # the terminal's own, while it is ours
        self._shown: list[str] = []
        self._stopped = False

    def enter(self) -> None:
        """Take the terminal. Keys that were typed before stay."""
        if self._modes is not None:
            return
        modes = termios.tcgetattr(self._fd)
        raw = [*modes[:6], list(modes[6])]
        raw[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP | termios.BRKINT)
        raw[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
        raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
        self._modes = modes
        termios.tcsetattr(self._fd, termios.TCSADRAIN, raw)
        self._write(_ENTER)
        self._shown = []

    def leave(self) -> None:
        """Give the terminal back. Never raises: it may be gone."""
        modes, self._modes = self._modes, None
        if modes is not None:
            with suppress(OSError):
                self._write(_LEAVE)
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)

    def size(self) -> tuple[int, int]:
        """Columns and lines, at least one of each."""
        try:
            lines, columns = termios.tcgetwinsize(self._fd)
        except (OSError, termios.error):
            lines = columns = 0
        return columns or _SIZE[0], lines or _SIZE[1]

    def draw(self, frame: Frame) -> None:
        """Show a frame; only lines that have changed are written."""
        parts = ["\x1b[?25l"]
        for index, line in enumerate(frame.lines):
            if index >= len(self._shown) or self._shown[index] != line:
                parts.append(f"\x1b[{index + 1};1H\x1b[2K{line}")
        line_, column = frame.cursor
        parts.append(f"\x1b[{line_ + 1};{column + 1}H\x1b[?25h")
        self._write("".join(parts))
        self._shown = frame.lines

    def forget(self) -> None:
        """The size has changed, or somebody else has drawn: everything is written anew."""
        self._shown = []
        self._write("\x1b[0m\x1b[2J")

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The terminal as it was, for another program, which may be stopped together with us."""
        self.leave()
        previous = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            yield
        finally:
            signal.signal(signal.SIGTSTP, previous)
            self.enter()

    @property
    def fd(self) -> int:
        return self._fd

    def wait(self, seconds: float | None) -> bytes | None:
        """Keys that were pressed; b"" after a bell or the time; None when the terminal is gone."""
        ready = select.select([self._fd, self._bell], [], [], seconds)[0]
        if self._bell in ready:
            with suppress(BlockingIOError):
                os.read(self._bell, 4096)
        if self._stopped:
            self._stopped = False
            self._stop()
            return b""  # what was pressed before was meant for somebody else, if it is still there at all
        if self._fd not in ready:
            return b""
        try:
            return os.read(self._fd, 65536) or None
        except OSError:
            return None

    def ring(self) -> None:
        """Let `wait` return, from any thread."""
        with suppress(OSError):  # full: it rings already
            os.write(self._notify, b"!")

    def suspend(self) -> None:
        """Ctrl-Z: stop the whole job, as the terminal itself would have done it."""
        os.kill(0, signal.SIGTSTP)

    def on_stop(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTSTP: the terminal has to be given back first, and not from within a handler."""
        self._stopped = True

    def _stop(self) -> None:
        ours = self._modes is not None
        self.leave()
        previous = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, previous)  # here we go on
        if ours:
            self.enter()

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._fd, data) :]


@contextmanager
def opened() -> Iterator[Screen]:
    """The terminal of this process, to draw on. USAGE if there is none, or none that can be drawn on.

    SIGTERM and SIGHUP end the program with the terminal as it was.
    """
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise UsageError("this terminal cannot be drawn on (TERM is dumb)", hint="dsh search QUERY lists what it finds")
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        raise UsageError("there is no terminal to choose on", hint="dsh search QUERY lists what it finds") from None
    bell, notify = os.pipe()
    for end in (bell, notify):
        os.set_blocking(end, False)
    screen = Screen(fd, bell, notify)
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {
        signal.SIGTERM: _end, signal.SIGHUP: _end, signal.SIGTSTP: screen.on_stop, signal.SIGWINCH: _nothing,
    }  # fmt: skip
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    wakeup = signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    try:
        screen.enter()
        yield screen
    finally:
        screen.leave()
        signal.set_wakeup_fd(wakeup)
        for number, handler in previous.items():
            signal.signal(number, handler)
        for each in (fd, bell, notify):
            os.close(each)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _nothing(number: int, frame: FrameType | None) -> None:
    """SIGWINCH only has to be heard: it rings the bell, and the next frame asks for the size."""
