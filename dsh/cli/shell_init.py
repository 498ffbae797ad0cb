"""`dsh shell-init`: a key of the shell that opens the search."""

from __future__ import annotations

import re

import click

from dsh.cli import output
from dsh.cli.completion import SHELLS, SNIPPETS
from dsh.core.errors import UsageError

KEY = "ctrl-x ctrl-r"  # free or seldom used in the three; Ctrl-R alone stays the shell's own

_SPELT = re.compile(r"(ctrl|alt)-([a-z]|(?<=alt-)[0-9])")


@click.command("shell-init", short_help="Print what binds a key of a shell to the search.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--bind", "key", metavar="KEY", default=KEY, help=f"The key, as ctrl-r, alt-s or two. [{KEY}]")
def command(shell: str, key: str) -> int:
    """Print what binds a key of a shell to the search.

    \b
    bash   eval "$(dsh shell-init bash)"      in ~/.bashrc
    zsh    eval "$(dsh shell-init zsh)"       in ~/.zshrc
    fish   dsh shell-init fish | source       in ~/.config/fish/config.fish

    The key opens dsh search -i with what stands in the command line as the query. What is chosen takes its place as a
    command, not yet executed. In a line that begins with dsh the id of the session is put in.
    """
    text = (SNIPPETS / f"keys.{shell}").read_text("utf-8")
    output.write(text.replace("@KEY@", spelt(key, shell)))
    return 0


def spelt(key: str, shell: str) -> str:
    """A key as a shell writes it. UsageError."""
    parts = re.split(r"[\s,]+", key.strip().lower())
    found = [_SPELT.fullmatch(part) for part in parts]
    if not 1 <= len(parts) <= 2 or not all(found):
        raise UsageError(f"{key!r} is not a key", hint="for example ctrl-r, alt-s or 'ctrl-x ctrl-r'")
    control, escape = {"bash": ("\\C-", "\\e"), "zsh": ("^", "^["), "fish": ("\\c", "\\e")}[shell]
    return "".join((control if each[1] == "ctrl" else escape) + each[2] for each in found if each)
