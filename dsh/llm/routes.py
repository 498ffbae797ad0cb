"""Which provider routes this configuration and environment give, without asking anybody.

A route is a name, a base URL, a dialect and perhaps a key. Three are built in and exist when their key is in
the environment; tables `[providers.NAME]` of the personal file add others, or change a built-in one of that
name; a base URL given for this run is one more, named after its host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dsh.core.errors import ConfigError
from dsh.kernel.config import Config
from dsh.llm.catalogue import DEFAULT_MODEL

LOCAL = "local"
PLUGIN = "plugin"  # the kind of a route whose adapter a plugin has registered


@dataclass(frozen=True, slots=True)
class Route:
    """A way to models. `missing` names the variable that should hold its key and does not: such a route is
    known but not usable. `model` is its default model, None when only the server can tell;
    `model_ids_with_slash` tells that `a/b` may be one model id there."""

    name: str
    title: str
    base_url: str
    kind: str = "chat"
    key: str = field(default="", repr=False)
    missing: str | None = None
    model: str | None = None
    models: tuple[str, ...] | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    context_window: int | None = None
    thinking: str | None = None
    model_ids_with_slash: bool = True
    explicit_url: bool = False


class _BuiltIn(NamedTuple):
    title: str
    url: str
    key_variable: str
    url_variable: str | None
    kind: str
    slashes: bool


BUILT_IN: dict[str, _BuiltIn] = {
    "deepseek": _BuiltIn(
        "DeepSeek", "https://api.deepseek.com", "DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL", "deepseek", False
    ),
    "openai": _BuiltIn("OpenAI", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL", "openai", False),
    "openrouter": _BuiltIn("OpenRouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", None, "chat", True),
}


def clean_url(url: str, where: str) -> str:
    """The base URL without one trailing slash (LS-59), or ConfigError."""
    url = url.strip()
    parts = urlsplit(url)
    try:
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not url.isprintable() or " " in url:
        raise ConfigError(f"{where} is not a base URL: {url!r}", hint="for example http://127.0.0.1:8080/v1")
    return url.removesuffix("/")


def clean_key(key: str, where: str) -> str:
    """A key as it can stand in a header; one that cannot is refused here, where it can be named without being
    shown."""
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{where} holds characters that no key has")
    return key


def configured(
    config: Config,
    *,
    base_url: str | None = None,
    provider: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Route]:
    """Every known route in order of preference: the given base URL, DeepSeek, OpenAI, OpenRouter, then the
    named providers as the file has them. `provider` names the route of `base_url`."""
    env = os.environ if environ is None else environ
    routes = {name: _built_in(name, entry, env) for name, entry in BUILT_IN.items()}
    for name, table in config.providers.items():
        routes[name] = _named(name, table, routes.get(name), env)
    if base_url:
        given = _for_url(base_url, provider, routes, env)
        routes = {given.name: given, **{n: r for n, r in routes.items() if n != given.name}}
    return routes


def given_base_url(flag: str | None, environ: Mapping[str, str] | None = None) -> str | None:
    """`--base-url`, else `DSH_BASE_URL`."""
    return flag or (os.environ if environ is None else environ).get("DSH_BASE_URL", "").strip() or None


def _built_in(name: str, entry: _BuiltIn, env: Mapping[str, str]) -> Route:
    key = clean_key(env.get(entry.key_variable, ""), entry.key_variable)
    variable = entry.url_variable or ""
    elsewhere = env.get(variable, "").strip() if variable else ""
    route = Route(
        name,
        entry.title,
        clean_url(elsewhere, variable) if elsewhere else entry.url,
        entry.kind,
        key,
        missing=None if key else entry.key_variable,
        model=DEFAULT_MODEL.get(name),
        model_ids_with_slash=entry.slashes,
    )
    return _elsewhere(route) if elsewhere and name == "openai" else route


def _elsewhere(route: Route) -> Route:
    """OpenAI's name and key for another server, which has neither OpenAI's models nor its dialect."""
    return replace(route, kind="chat", model=None, model_ids_with_slash=True)


def _named(name: str, table: Mapping[str, Any], base: Route | None, env: Mapping[str, str]) -> Route:
    where = f"providers.{name}"
    kind = table.get("kind", base.kind if base else "chat")
    if kind not in ("deepseek", "openai", "chat"):
        raise ConfigError(f"{where}.kind must be deepseek, openai or chat, not {kind!r}")
    if table.get("thinking") not in (None, "enabled", "disabled"):
        raise ConfigError(f"{where}.thinking must be enabled or disabled")
    window = table.get("context_window")
    if window is not None and window <= 0:
        raise ConfigError(f"{where}.context_window must be a positive number of tokens")
    models = table.get("models")
    names = models or []
    if not all(isinstance(m, str) and m for m in names) or len(set(names)) < len(names):
        raise ConfigError(f"{where}.models must be a list of model ids without repeats")
    for header, value in table.get("headers", {}).items():
        if not isinstance(value, str) or not value.isprintable() or not value.isascii():
            raise ConfigError(f"{where}.headers.{header} must be a plain text")
    url = table.get("base_url") or (base.base_url if base else None)
    if url is None and kind == "deepseek":
        url = BUILT_IN["deepseek"].url
    if url is None:
        raise ConfigError(f"{where}.base_url is missing")
    key, missing = (base.key, base.missing) if base else ("", None)
    if table.get("api_key"):
        key, missing = clean_key(table["api_key"], f"{where}.api_key"), None
    elif variable := table.get("api_key_env"):
        key = clean_key(env.get(variable, ""), variable)
        missing = None if key else variable
    return Route(
        name,
        base.title if base else name,
        clean_url(url, f"{where}.base_url"),
        kind,
        key,
        missing=missing,
        model=table.get("model") or (base.model if base else next(iter(names), None)),
        models=None if models is None else tuple(models),
        headers=table.get("headers", {}),
        context_window=window,
        thinking=table.get("thinking"),
        model_ids_with_slash=base.model_ids_with_slash if base else True,
    )


def _for_url(url: str, provider: str | None, routes: Mapping[str, Route], env: Mapping[str, str]) -> Route:
    """The route of a base URL given for this run. With the name of a known provider it is that provider
    elsewhere."""
    url = clean_url(url, "the base URL")
    key = ""
    for variable in ("DSH_API_KEY", "OPENAI_API_KEY"):
        key = key or clean_key(env.get(variable, ""), variable)
    known = routes.get(provider) if provider else None
    if known is not None:
        key = clean_key(env.get("DSH_API_KEY", ""), "DSH_API_KEY") or known.key
        there = replace(known, base_url=url, key=key, missing=None, explicit_url=True)
        return _elsewhere(there) if known.name == "openai" else there
    name = provider or urlsplit(url).netloc.rpartition("@")[2]
    return Route(name, "model server", url, key=key, explicit_url=True)
