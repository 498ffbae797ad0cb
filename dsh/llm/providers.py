"""Which model a run uses, the adapters behind it, and what else is on offer (`dsh models`).

The choice goes from what was said most recently to what merely exists: a flag, the session's own last header,
the configuration, a key in the environment, a server on this machine, the local model. Nothing is asked over
the network unless the answer is needed: a run with a key and a model starts without a single request.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, NotRequired, TypedDict

import trio

from dsh.core.errors import ConfigError
from dsh.core.messages import CallConfig
from dsh.kernel.config import Config
from dsh.kernel.scope import Context
from dsh.llm import discovery
from dsh.llm.adapters.chat import ChatAdapter, Endpoint, Listed
from dsh.llm.adapters.chat_request import DIALECTS
from dsh.llm.catalogue import DEEPSEEK
from dsh.llm.failure import LlmError
from dsh.llm.routes import BUILT_IN, LOCAL, PLUGIN, Route, configured, given_base_url
from dsh.llm.service import LlmService

WAYS_ON = (
    "set DEEPSEEK_API_KEY, OPENAI_API_KEY or OPENROUTER_API_KEY; or name a server with --base-url URL; "
    "or run a small model here: dsh models install local"
)


class Selection(NamedTuple):
    """What a run will call. `notice` is a line for stderr when the choice may surprise; `routes` are all
    usable routes, for `install_routes`."""

    provider: str
    model: str
    effort: str | None = None
    notice: str | None = None
    routes: Mapping[str, Route] = MappingProxyType({})


def _local_route() -> Route | None:
    """The route of the local model if it is installed."""
    from dsh.llm import local

    if not local.is_installed():
        return None
    return Route(LOCAL, "local model", "", kind=LOCAL, model=local.MODEL_ID, models=(local.MODEL_ID,))


class _Chooser:
    """The routes known to one choice, those that plugins serve included; those of this machine join when they are
    looked for."""

    def __init__(self, config: Config, known: dict[str, Route], service: LlmService | None = None) -> None:
        self.config = config
        self.known = known
        for info in service.providers() if service is not None else ():
            self.known[info["id"]] = Route(info["id"], info["name"], "", kind=PLUGIN)
        self.looked = False

    def usable(self) -> dict[str, Route]:
        return {name: r for name, r in self.known.items() if r.missing is None}

    async def look_around(self) -> None:
        """Add the servers and the local model of this machine; once."""
        if self.looked:
            return
        self.looked = True
        if self.config["llm.discover"]:
            for name, route in (await discovery.discover()).items():
                self.known.setdefault(name, route)
        local = _local_route()
        if local is not None:
            self.known.setdefault(LOCAL, local)

    async def find(self, name: str) -> Route | None:
        """The usable route of this name; asks this machine only for names that could be there."""
        if name not in self.known and (name == LOCAL or name in discovery.SERVERS):
            await self.look_around()
        route = self.known.get(name)
        return route if route is not None and route.missing is None else None

    async def require(self, name: str, what: str) -> Route:
        route = await self.find(name)
        if route is not None:
            return route
        known = self.known.get(name)
        if known is not None:
            hint = f"set {known.missing}, or choose another with -m NAME/MODEL"
            raise ConfigError(f"{what} {name!r} {_needs_key(known.missing)}", code="NO_MODEL", hint=hint)
        if name == LOCAL:
            hint = "dsh models install local"
        else:
            import difflib

            near = difflib.get_close_matches(name, {**self.usable(), **BUILT_IN}, 3, 0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else _configured_hint(self.usable())
        raise ConfigError(f"{what} {name!r} is not configured", code="NO_MODEL", hint=hint)


def _needs_key(variable: str | None) -> str:
    return f"needs a key: {variable} is not set"


def _configured_hint(usable: Mapping[str, Route]) -> str:
    return f"configured: {', '.join(usable)}" if usable else WAYS_ON


async def choose(
    config: Config,
    *,
    provider: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    header: CallConfig | None = None,
    environ: Mapping[str, str] | None = None,
    service: LlmService | None = None,
) -> Selection:
    """The provider and model of a run; ConfigError NO_MODEL with ways on when there is none.

    `provider`, `model`, `base_url` are the flags; `header` is the configuration last logged by a session that
    goes on. A session stays with its provider: if that is not configured any more this is an error, since its
    history must not move to somebody else without being told to. `service` knows the routes that plugins serve.
    """
    url = given_base_url(base_url, environ)
    chooser = _Chooser(config, configured(config, base_url=url, provider=provider, environ=environ), service)
    wanted = model
    set_model: str = config["model"]
    if provider:
        route = await chooser.require(provider, "provider")
        if wanted and not route.model_ids_with_slash:
            wanted = wanted.removeprefix(f"{provider}/")
        level = "flag"
    elif not base_url and (named := await _prefix(chooser, model)) is not None:
        route, wanted = named
        level = "flag"
    elif url:
        route = next(iter(chooser.known.values()))
        wanted = wanted and wanted.removeprefix(f"{route.name}/")
        level = "url"
    elif header is not None:
        route = await chooser.require(header["provider"], "this session's provider")
        level = "header"
    elif config["provider"]:
        route = await chooser.require(config["provider"], "provider")
        level = "config"
    elif (named := await _prefix(chooser, set_model)) is not None:
        route, set_model = named
        level = "config"
    else:
        route = await _first(chooser, model)
        level = "first"
    if wanted and "/" in wanted and not route.model_ids_with_slash:
        raise _no_such(chooser, wanted, route)

    chosen = wanted
    if not chosen and header is not None and header["provider"] == route.name:
        chosen = header["model"]
    if not chosen and set_model and _belongs(config, route, level):
        chosen = set_model.removeprefix(f"{route.name}/") if not route.model_ids_with_slash else set_model
    if not chosen:
        chosen = route.model or await _ask(route, config, service)
    notice = None
    if level == "first" and route.kind == LOCAL:
        notice = f"using the local model {chosen} (no key or server found)"
    return Selection(route.name, chosen, _effort(config, route, chosen, header), notice, chooser.usable())


async def named(
    config: Config,
    name: str,
    *,
    provider: str | None = None,
    base_url: str | None = None,
    environ: Mapping[str, str] | None = None,
    service: LlmService | None = None,
) -> Route:
    """The route that a run may use beside its own; ConfigError NO_MODEL with ways on. `provider` and `base_url` are the
    flags."""
    known = configured(config, base_url=given_base_url(base_url, environ), provider=provider, environ=environ)
    return await _Chooser(config, known, service).require(name, "provider")


async def _prefix(chooser: _Chooser, model: str | None) -> tuple[Route, str] | None:
    """`NAME/MODEL` as the route NAME and the rest, when NAME is a usable route."""
    name, slash, rest = (model or "").partition("/")
    route = await chooser.find(name) if slash and name and rest else None
    return None if route is None else (route, rest)


async def _first(chooser: _Chooser, model: str | None) -> Route:
    """What is configured, else what this machine has."""
    for route in chooser.usable().values():
        return route
    await chooser.look_around()
    for route in chooser.usable().values():
        return route
    name = (model or "").partition("/")[0]
    if name in BUILT_IN:
        why = f"provider {name!r} {_needs_key(BUILT_IN[name].key_variable)}"
        raise ConfigError(why, code="NO_MODEL", hint=WAYS_ON)
    raise ConfigError("no model is configured", code="NO_MODEL", hint=WAYS_ON)


def _no_such(chooser: _Chooser, model: str, route: Route) -> ConfigError:
    """`NAME/MODEL` where NAME is no route and the chosen provider has no such ids."""
    import difflib

    name = model.partition("/")[0]
    known = [f"{r.name}/{m}" for r in chooser.usable().values() for m in _known_ids(r)]
    near = difflib.get_close_matches(model, known, 3, 0.4) or known[:3]
    why = f"provider {name!r} is not configured"
    if name in BUILT_IN:
        why = f"provider {name!r} {_needs_key(BUILT_IN[name].key_variable)}"
    hint = f"did you mean {' or '.join(near)}?" if near else f"no model of {route.name} has a slash in its name"
    return ConfigError(f"no model {model!r}: {why}", code="NO_MODEL", hint=hint)


def _known_ids(route: Route) -> list[str]:
    if route.models is not None:
        return list(route.models)
    ids = [m.id for m in DEEPSEEK] if route.kind == "deepseek" else []
    return [route.model, *(i for i in ids if i != route.model)] if route.model else ids


def _belongs(config: Config, route: Route, level: str) -> bool:
    """Whether the configured model is meant for this route: one that was set for another provider is not."""
    if route.kind == LOCAL or route.name in discovery.SERVERS:
        return config["model"] in (route.models or ())
    if config.origin("model") in ("flag", "environment"):
        return True
    if config["provider"]:
        return bool(config["provider"] == route.name)
    return level in ("config", "first")


async def _ask(route: Route, config: Config, service: LlmService | None) -> str:
    """The first model that the server lists; one given by its URL alone is tried even if it lists none."""
    if service is not None and route.kind == PLUGIN:
        models = await service.list_models(route.name)
        if not models:
            hint = f"name one with -m {route.name}/MODEL"
            raise ConfigError(f"provider {route.name!r} lists no model", code="NO_MODEL", hint=hint)
        return models[0]["id"]
    adapter = ChatAdapter(endpoint(route, config))
    listed: list[Listed] = []
    reason = "it lists no models"
    try:
        listed = await adapter.fetch_models()
    except LlmError as error:
        reason = error.message
    finally:
        await adapter.aclose()
    if listed:
        return listed[0].id
    if route.explicit_url:
        return "default"
    hint = f"name one with -m {route.name}/MODEL"
    raise ConfigError(f"provider {route.name!r} has no model set: {reason}", code="NO_MODEL", hint=hint)


def _effort(config: Config, route: Route, model: str, header: CallConfig | None) -> str | None:
    """The effort to ask for: a flag, what the session used with this very model, then the configuration."""
    effort: str | None = config["reasoning_effort"] or None
    same = header is not None and (header["provider"], header["model"]) == (route.name, model)
    if header is not None and same and config.origin("reasoning_effort") != "flag":
        effort = header.get("reasoningEffort", effort)
    if effort and route.thinking == "disabled" and effort != "off":
        why = f"providers.{route.name}.thinking is disabled"
        raise ConfigError(f"reasoning_effort {effort!r} cannot be used: {why}")
    return effort


def endpoint(route: Route, config: Config) -> Endpoint:
    return Endpoint(
        route.name,
        route.base_url,
        route.title,
        route.key,
        DIALECTS[route.kind],
        route.models,
        route.headers,
        route.context_window,
        route.thinking,
        config["llm.idle_timeout_ms"],
    )


def install_routes(ctx: Context, config: Config, routes: Mapping[str, Route]) -> None:
    """Register an adapter for each usable route. No request is made and no certificate read before the first
    call; connections and the local model's server are closed with `ctx`."""
    service = ctx.get(LlmService)
    for route in routes.values():
        if route.missing is not None or route.kind == PLUGIN:
            continue
        if route.kind == LOCAL:
            from dsh.llm.adapters.local import LocalAdapter

            local = LocalAdapter(config["llm.idle_timeout_ms"])
            ctx.effect(local.aclose)
            service.register(ctx, local, [route.name])
        else:
            adapter = ChatAdapter(endpoint(route, config))
            ctx.effect(adapter.aclose)
            service.register(ctx, adapter, [route.name])


def install_mock(ctx: Context, path: str) -> Selection:
    """Register the replay adapter for `--mock FILE` (its format: dsh.llm.adapters.replay) and select it."""
    from dsh.llm.adapters.replay import MODEL, ROUTE, ReplayAdapter

    ctx.get(LlmService).register(ctx, ReplayAdapter(path), [ROUTE])
    return Selection(ROUTE, MODEL)


class OfferedModel(TypedDict):
    """One line of `dsh models`. `contextWindow` in tokens; `default` marks what the route takes unasked."""

    id: str
    name: str
    default: bool
    contextWindow: NotRequired[int]
    efforts: NotRequired[list[str]]
    defaultEffort: NotRequired[str]


class Offer(TypedDict):
    """One route; `error` tells why its server could not be asked or used."""

    provider: str
    name: str
    baseURL: NotRequired[str]
    models: list[OfferedModel]
    error: NotRequired[str]


async def offered(
    config: Config,
    *,
    provider: str | None = None,
    base_url: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Offer]:
    """Every route with its models, asked in parallel; built-in ones without a key are left out."""
    url = given_base_url(base_url, environ)
    chooser = _Chooser(config, configured(config, base_url=url, provider=provider, environ=environ))
    await chooser.look_around()
    routes = [
        r
        for r in chooser.known.values()
        if provider in (None, r.name) and (r.missing is None or r.name in config.providers or provider)
    ]
    if provider and not routes:
        await chooser.require(provider, "provider")
    offers: dict[str, Offer] = {}

    async def ask(route: Route) -> None:
        offers[route.name] = await _offer(route, config)

    async with trio.open_nursery() as nursery:
        for route in routes:
            nursery.start_soon(ask, route)
    return [offers[r.name] for r in routes]


async def _offer(route: Route, config: Config) -> Offer:
    offer: Offer = {"provider": route.name, "name": route.title, "models": []}
    if route.kind == LOCAL:
        from dsh.llm import local

        window = local.CONTEXT_WINDOW
        offer["models"] = [{"id": local.MODEL_ID, "name": local.MODEL_ID, "default": True, "contextWindow": window}]
        return offer
    adapter = ChatAdapter(endpoint(route, config))
    offer["baseURL"] = adapter.endpoint.shown_url
    models = {m: Listed(m, m, None) for m in adapter.known_models() or []}
    if route.missing is not None:
        offer["error"] = f"{route.missing} is not set"
    elif route.models is None:
        try:
            for entry in await adapter.fetch_models():
                models.setdefault(entry.id, entry)
        except LlmError as error:
            offer["error"] = error.message
        finally:
            await adapter.aclose()
    default = route.model or next(iter(models), None)
    offer["models"] = [await _offered_model(adapter, m, m.id == default) for m in models.values()]
    return offer


async def _offered_model(adapter: ChatAdapter, entry: Listed, default: bool) -> OfferedModel:
    resolved = await adapter.resolve_model(adapter.endpoint.route, entry.id)
    name = resolved["name"] if resolved["name"] != entry.id else entry.name
    shown: OfferedModel = {"id": entry.id, "name": name, "default": default}
    if "context" in resolved:
        shown["contextWindow"] = resolved["context"]["contextWindow"]
    # other dialects accept the usual efforts for any model; whether one heeds them nobody can tell
    if "reasoning" in resolved and adapter.endpoint.dialect.thinking:
        shown["efforts"] = [e["id"] for e in resolved["reasoning"]["efforts"]]
        if "defaultEffort" in resolved["reasoning"]:
            shown["defaultEffort"] = resolved["reasoning"]["defaultEffort"]
    return shown
