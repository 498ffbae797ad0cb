"""`dsh plugins`: list plugins and what each registers; trust a project's.

Listing starts them in a host without an agent, since only a plugin itself knows what it registers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import current_folder, db_flag, load_config, open_database
from dsh.cli.group import db_option
from dsh.core.errors import UsageError, only
from dsh.kernel import found
from dsh.store import writes

if TYPE_CHECKING:
    from dsh.kernel.host import Plugin


@click.group("plugins", invoke_without_command=True, short_help="List plugins; trust a project's.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per plugin.")
@db_option
@click.pass_context
def command(ctx: click.Context, as_lines: bool) -> int:
    """List plugins: those of the program, of installed packages, of the settings, of your and the project's folder.

    In a pipe a plugin is one line: NAME, state (loaded, off, failed, untrusted), where it comes from, what it
    registers or why it is not used; separated by tabs. The exit code is 1 if one failed.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    plugins = _start(ctx)
    if as_lines:
        for plugin in plugins:
            output.json_line(_object(plugin))
    else:
        rows = [[p.name, p.state, _where(p), output.one_line(p.reason or _registered(p))] for p in plugins]
        output.table(["NAME", "STATE", "FROM", "REGISTERS"], rows)
    return int(any(p.state == "failed" for p in plugins))


def _start(ctx: click.Context) -> Sequence[Plugin]:
    from dsh.core import lean

    lean.load_trio()
    import trio

    from dsh.cli.boot import program

    ended = False

    def heard(number: int, frame: Any) -> None:
        nonlocal ended
        ended = True

    db = open_database(db_flag(ctx))
    before = signal.signal(signal.SIGINT, heard)  # tells a person's Ctrl-C from a plugin that raises the same
    try:
        config = load_config(db)

        async def ask() -> Sequence[Plugin]:
            async with program(
                db, config, current_folder(), notice=lambda line: None, interrupted=lambda: ended, strict=False
            ) as running:
                return list(running.host.plugins)

        plugins = trio.run(ask, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        raise only(group) from None
    finally:
        signal.signal(signal.SIGINT, before)
        db.close()
    if ended:
        raise KeyboardInterrupt
    return plugins


def _where(plugin: Plugin) -> str:
    return output.one_line(" ".join(filter(None, (plugin.origin, output.home_shortened(plugin.where), plugin.version))))


def _by_kind(plugin: Plugin) -> dict[str, list[str]]:
    """What it registers, by what it is; each name once."""
    kinds: dict[str, list[str]] = {}
    for what, name in plugin.registered:
        names = kinds.setdefault(what, [])
        if name not in names:
            names.append(name)
    return kinds


def _registered(plugin: Plugin) -> str:
    return "; ".join(f"{what} {', '.join(names)}" for what, names in _by_kind(plugin).items())


def _object(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "origin": plugin.origin,
        "where": plugin.where or None,
        "version": plugin.version or None,
        "module": plugin.module,
        "state": plugin.state,
        "reason": plugin.reason or None,
        "registers": _by_kind(plugin),
    }


@command.command("trust")
@click.argument("folder", metavar="[DIR]", required=False)
@db_option
@click.pass_context
def trust(ctx: click.Context, folder: str | None) -> int:
    """Let a project's plugins run.

    These are the modules in its folder .dsh/plugins, those of now and later ones. DIR is a folder of the project, else
    the current one. What plugins do is not confined: read them first.
    """
    root = _root(folder)
    if not os.path.isdir(root):
        raise UsageError(f"{root} is not a folder")
    db = open_database(db_flag(ctx))
    try:
        writes.trust_folder(db, root)
    finally:
        db.close()
    output.note(f"plugins of {root} will run")
    return 0


@command.command("distrust")
@click.argument("folder", metavar="[DIR]", required=False)
@db_option
@click.pass_context
def distrust(ctx: click.Context, folder: str | None) -> int:
    """Let a project's plugins run no more. Not an error if they never did."""
    root = _root(folder)
    db = open_database(db_flag(ctx))
    try:
        writes.distrust_folder(db, root)
    finally:
        db.close()
    return 0


@command.command("path")
@db_option
@click.pass_context
def path(ctx: click.Context) -> int:
    """Print the plugin folders, and whether each is trusted."""
    root = _root(None)
    db = open_database(db_flag(ctx))
    try:
        trusted = [str(folder) for folder, _ in query.rows(db, "trusted_folders")]
    finally:
        db.close()
    rows = [["user", found.user_folder(), "trusted"]]
    for folder in dict.fromkeys([root, *trusted]):
        state = "trusted" if folder in trusted else "untrusted"
        rows.append(["project", output.one_line(found.project_folder(folder)), state])
    output.table(["WHAT", "PATH", "STATE"], rows)
    return 0


def _root(folder: str | None) -> str:
    """The real path of the project that a folder belongs to."""
    given = os.path.expanduser(folder) if folder else current_folder()
    return found.project_root(os.path.realpath(given))
