"""Installing the local model with something to look at: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import sys
import time

from dsh.cli import output

_STAGES = {
    "waiting": "waiting for another installation",
    "checking": "checking",
    "model": "fetching the model",
    "engine": "fetching the engine",
    "unpacking": "unpacking",
}
_BAR = 24
_REDRAW_S = 0.1


class ProgressBar:
    """Called with (stage, done, total) in bytes; writes to standard error only."""

    def __init__(self) -> None:
        self._bar = output.errors_on_terminal()
        self._stage = ""
        self._drawn = 0.0
        self._open = False

    def __call__(self, stage: str, done: int, total: int) -> None:
        new = stage != self._stage
        if new:
            self.close()
            self._stage = stage
        if not self._bar:
            if new:
                output.note(_STAGES.get(stage, stage) + (f" ({total // 1_000_000} MB)" if total >= 1_000_000 else ""))
            return
        now = time.monotonic()
        if new or done >= total or now - self._drawn >= _REDRAW_S:
            self._drawn = now
            self._draw(done, total)

    def _draw(self, done: int, total: int) -> None:
        text = _STAGES.get(self._stage, self._stage)
        if total > 0:
            filled = min(_BAR, _BAR * done // total)
            bar = "#" * filled + "." * (_BAR - filled)
            text = f"{text} [{bar}] {done / 1e6:.0f}/{total / 1e6:.0f} MB"
        sys.stderr.write(f"\r\x1b[Kdsh: {text}")
        sys.stderr.flush()
        self._open = True

    def close(self) -> None:
        """End the line of the bar, so that what follows has its own."""
        if self._open:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._open = False


def install_with_progress() -> str:
    """Install the local model, or check the one that is there; returns its folder. LocalModelError."""
    from dsh.llm.local.install import install

    bar = ProgressBar()
    try:
        return str(install(bar))
    finally:
        bar.close()
