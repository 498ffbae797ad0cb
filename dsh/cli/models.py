"""`dsh models`: list models; install or remove the local one."""

from __future__ import annotations

from typing import Any

import click

from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, load_config, reading
from dsh.cli.group import db_option
from dsh.core.errors import ConfigError
from dsh.kernel.config import Config


@click.group("models", invoke_without_command=True, short_help="List models; install the local one.")
@click.option("--provider", metavar="NAME", help="Ask only this provider.")
@click.option("--base-url", metavar="URL", help="Ask the OpenAI-compatible server at this URL too.")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per model.")
@db_option
@click.pass_context
def command(ctx: click.Context, provider: str | None, base_url: str | None, as_lines: bool) -> int:
    """List the models of every provider that can be used here.

    In a pipe a model is one line: PROVIDER/MODEL, its context window in tokens, default if the provider takes it
    unasked, reasoning efforts; separated by tabs. A provider that does not answer is told of on standard error, and the
    exit code is 1 if no model could be listed.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    import trio

    from dsh.llm import providers

    async def ask() -> list[providers.Offer]:
        return await providers.offered(_config(ctx), provider=provider, base_url=base_url)

    offers = trio.run(ask)
    if not offers:
        raise ConfigError("no model is configured", code="NO_MODEL", hint=providers.WAYS_ON)
    rows: list[list[str]] = []
    found = 0
    for offer in offers:
        if "error" in offer:
            output.note(f"{offer['provider']}: {offer['error']}")
            if as_lines:
                output.json_line({"provider": offer["provider"], "error": offer["error"]})
        for model in offer["models"]:
            found += 1
            if as_lines:
                output.json_line({"provider": offer["provider"], **model})
            else:
                rows.append(_row(offer["provider"], model))
    if rows:
        output.table(["MODEL", "CONTEXT", "DEFAULT", "EFFORTS"], rows, right=[1], grow=3)
    return 0 if found else 1


def _config(ctx: click.Context) -> Config:
    try:
        with reading(db_flag(ctx)) as db:
            return load_config(db)
    except NoHistory:
        return load_config(None)


def _row(provider: str, model: Any) -> list[str]:
    efforts = [f"{e}*" if e == model.get("defaultEffort") else e for e in model.get("efforts", ())]
    return [
        output.one_line(f"{provider}/{model['id']}"),
        str(model.get("contextWindow", "")),
        "default" if model["default"] else "",
        ",".join(map(output.one_line, efforts)),
    ]


@command.command("install")
@click.argument("name", type=click.Choice(["local"]))
def install(name: str) -> int:
    """Fetch a small model (about 130 MB) that runs on this machine, or check the one that is there."""
    from dsh.cli.install_local import install_with_progress

    output.line(install_with_progress())
    return 0


@command.command("remove")
@click.argument("name", type=click.Choice(["local"]))
def remove(name: str) -> int:
    """Remove the local model. Not an error if there is none."""
    from dsh.llm.local.install import uninstall

    uninstall()
    return 0
