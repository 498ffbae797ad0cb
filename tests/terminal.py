"""A real terminal to run programs in: tmux without a window, so that what is read back is what a person would see.

with Terminal(["bash", "--norc"], env, cwd) as terminal:
    terminal.type("dsh search -i")
    terminal.keys("Enter")
    terminal.wait_for("everywhere")
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHELLS = ("bash", "zsh", "fish")


def with_dsh(folder: Path) -> dict[str, str]:
    """An environment in which the command `dsh` is the program under test."""
    programs = folder / "bin"
    programs.mkdir()
    script = programs / "dsh"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -W error -P -m dsh "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PS1": "$ "}


def shell(name: str, folder: Path, rc: str, *, columns: int = 100, lines: int = 24) -> Terminal:
    """A terminal with a shell that has read `rc` as its own file of settings, and prompts with `$ `."""
    _needed(name)
    settings = folder / name
    settings.mkdir()
    env = {**with_dsh(folder), "ZDOTDIR": str(settings), "XDG_CONFIG_HOME": str(settings), "SHELL": name}
    if name == "fish":
        (settings / "fish").mkdir()
        begin = "set fish_greeting\nfunction fish_prompt\n  echo -n '$ '\nend\n"
        (settings / "fish" / "config.fish").write_text(begin + rc)
        command = ["fish"]
    elif name == "zsh":
        (settings / ".zshrc").write_text(f"PROMPT='$ '\n{rc}")
        command = ["zsh", "-d", "-i"]
    else:
        (settings / "bashrc").write_text(f"PS1='$ '\n{rc}")
        command = ["bash", "--noprofile", "--rcfile", str(settings / "bashrc"), "-i"]
    terminal = Terminal(command, env, folder, columns=columns, lines=lines)
    try:
        terminal.wait_for(lambda shown: shown[0].startswith("$"))
    except BaseException:
        terminal.close()
        raise
    return terminal


def _needed(program: str) -> None:
    if shutil.which(program) is None:
        if os.environ.get("CI"):
            pytest.fail(f"there is no {program}")
        pytest.skip(f"there is no {program}")


class Terminal:
    """A terminal of a given size; skips the test where there is no tmux."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, *, columns: int = 100, lines: int = 24
    ) -> None:
        _needed("tmux")
        self._folder = tempfile.mkdtemp(prefix="dsh-terminal-")  # the path of a socket has to be short
        self._env = {**env, "LANG": "C.UTF-8"}
        self._tmux("-u", "-f", "/dev/null", "new-session", "-d", "-s", "t", "-x", str(columns), "-y", str(lines),
                   "-c", str(cwd), *command)  # fmt: skip

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._tmux("kill-server", check=False)
        shutil.rmtree(self._folder)

    def _tmux(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", f"{self._folder}/socket", *arguments],
            env=self._env,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def keys(self, *names: str) -> None:
        """Press keys, as tmux calls them: Enter, C-x, Down, …"""
        self._tmux("send-keys", "-t", "t", *names)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", "t", "-l", "--", text)

    def run(self, line: str) -> None:
        """Type a line of a shell and run it."""
        self.type(line)
        self.keys("Enter")

    def next_line(self) -> None:
        """Drop what stands in the line of a shell, and wait until the shell reads again: keys that are pressed while a
        command runs are the terminal's."""
        self.keys("C-e", "C-u")
        self.run("clear; echo cleared")
        self.wait_for(
            lambda shown: shown[0] == "cleared" and shown[1].strip() == "$" and not "".join(shown[2:]).strip()
        )

    def paste(self, text: str) -> None:
        """As from the clipboard: in brackets, if the program has asked for them."""
        self._tmux("set-buffer", "--", text)
        self._tmux("paste-buffer", "-p", "-t", "t")

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-t", "t", "-x", str(columns), "-y", str(lines))

    def screen(self, *, codes: bool = False) -> list[str]:
        """The lines on the screen, with `codes` as they are coloured."""
        return self._tmux("capture-pane", "-t", "t", "-p", *(["-e"] if codes else [])).split("\n")[:-1]

    @property
    def pid(self) -> int:
        """The process that was started in it."""
        return int(self._tmux("list-panes", "-t", "t", "-F", "#{pane_pid}"))

    @property
    def cursor(self) -> tuple[int, int]:
        """Line and column, from 0."""
        line, column = self._tmux("display-message", "-p", "-t", "t", "#{cursor_y} #{cursor_x}").split()
        return int(line), int(column)

    def wait_for(self, wanted: str | Callable[[list[str]], bool], timeout: float = 30) -> list[str]:
        """The screen once a text is on it, or a condition holds."""
        end = time.monotonic() + timeout
        while True:
            shown = self.screen()
            if wanted in "\n".join(shown) if isinstance(wanted, str) else wanted(shown):
                return shown
            if time.monotonic() > end:
                raise AssertionError(f"{wanted!r} never came; the screen is:\n" + "\n".join(shown))
            time.sleep(0.03)
