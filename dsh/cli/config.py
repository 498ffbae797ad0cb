"""`dsh config`: read and change settings."""

from __future__ import annotations

from typing import Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import NoHistory, db_flag, is_there, load_config, open_database, reading
from dsh.cli.group import db_option
from dsh.core.errors import ConfigError, UsageError
from dsh.kernel import config as configuration
from dsh.kernel.config import SETTINGS, Config, Setting
from dsh.store import writes

_HIDDEN = "(set)"


@click.group("config", short_help="Read and change settings.")
@db_option
def command() -> None:
    """Read and change settings.

    A value comes from the first of: a command's flag, a DSH_* variable, the file config.toml in the harness home
    (~/.dsh or $DSH_HOME), what dsh config set stored in the database, the default.
    """


@command.command("list")
@click.option("--json", "as_lines", is_flag=True, help="Print JSON Lines: one object per setting.")
@db_option
@click.pass_context
def list_(ctx: click.Context, as_lines: bool) -> int:
    """List every setting with its value and where that comes from. Secrets are not shown."""
    config = _config(ctx)
    entries = [(s.key, _safe(s, config[s.key]), config.origin(s.key), s.help) for s in SETTINGS.values()]
    entries += [(key, config[key], config.origin(key), "USD per million tokens") for key in config.price_keys]
    for name, table in config.providers.items():
        entries += [
            (f"providers.{name}.{key}", _provider_value(key, value), "file", "") for key, value in table.items()
        ]
    if as_lines:
        for key, value, origin, text in entries:
            output.json_line({"key": key, "value": value, "origin": origin, "help": text})
        return 0
    rows = [[key, output.one_line(_text(value)), origin, output.one_line(text)] for key, value, origin, text in entries]
    output.table(["KEY", "VALUE", "ORIGIN", "MEANING"], rows)
    return 0


@command.command("get")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print an object with key, value and origin.")
@db_option
@click.pass_context
def get(ctx: click.Context, key: str, as_json: bool) -> int:
    """Print the value of a setting."""
    setting = _known(key)
    config = _config(ctx)
    value = _safe(setting, config[key])
    if as_json:
        output.json_line({"key": key, "value": value, "origin": config.origin(key)})
    else:
        output.line(_text(value))
    return 0


@command.command("set")
@click.argument("key")
@click.argument("value")
@db_option
@click.pass_context
def set_(ctx: click.Context, key: str, value: str) -> int:
    """Store the value of a setting in the database. A list is written a,b,c."""
    setting = _known(key)
    if setting.secret:
        raise UsageError(f"{key} is a secret and is not stored", hint=f"set {setting.variable}")
    try:
        checked = configuration.parse_setting(key, value)
    except ConfigError as error:
        raise UsageError(error.message.removeprefix("value: ")) from error
    db = open_database(db_flag(ctx))
    try:
        writes.set_setting(db, key, checked)
    finally:
        db.close()
    stronger = configuration.load().origin(key)
    if stronger != "default":
        where = setting.variable if stronger == "environment" else str(configuration.config_path())
        output.note(f"stored, but {where} comes first")
    return 0


@command.command("unset")
@click.argument("key")
@db_option
@click.pass_context
def unset(ctx: click.Context, key: str) -> int:
    """Forget a stored value. Not an error if there is none."""
    stored = False
    if is_there(configuration.database_path(db_flag(ctx))):
        db = open_database(db_flag(ctx))
        try:
            stored = any(row[0] == key for row in query.rows(db, "settings"))
            writes.unset_setting(db, key)
        finally:
            db.close()
    if not stored:  # a key that only another version knows can be removed all the same
        _known(key)
    return 0


@command.command("path")
@db_option
@click.pass_context
def path(ctx: click.Context) -> int:
    """Print where the personal file and the database are."""
    output.table(
        ["WHAT", "PATH"],
        [["file", str(configuration.config_path())], ["database", str(configuration.database_path(db_flag(ctx)))]],
    )
    return 0


def _config(ctx: click.Context) -> Config:
    """What is in force; without a database nothing is stored, and none is made for asking."""
    try:
        with reading(db_flag(ctx)) as db:
            return load_config(db)
    except NoHistory:
        return load_config(None)


def _known(key: str) -> Setting:
    try:
        return configuration.known(key)
    except ConfigError as error:
        raise UsageError(error.message, hint=error.hint or "dsh config list shows all") from error


def _safe(setting: Setting, value: Any) -> Any:
    return _HIDDEN if setting.secret and value else value


def _provider_value(key: str, value: Any) -> Any:
    """A field of a named provider. Headers may carry keys, so only their names are shown (CF-7)."""
    if key == "api_key":
        return _HIDDEN if value else ""
    if key == "headers":
        return list(value)
    if key == "base_url" and "@" in str(value):
        from urllib.parse import urlsplit

        parts = urlsplit(value)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return value


def _text(value: Any) -> str:
    """A value as `dsh config set` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
