"""What a run is to be, from its options: which session goes on, in which folder, which model is asked, which tools and
what system text the agent gets. Options that contradict each other or name what is not there are wrong usage."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import trio

from dsh import query
from dsh.agent.agent import Agent
from dsh.agent.prompt import Prompt
from dsh.capabilities.titles.service import Titles
from dsh.cli.boot import Program
from dsh.cli.common import current_folder
from dsh.cli.output import json_text
from dsh.cli.progress import Progress
from dsh.cli.writer import Writer
from dsh.core.errors import ConfigError, SessionError, UsageError
from dsh.core.events import Event
from dsh.core.lossless import MAX_INT, dumps, loads
from dsh.core.messages import Block, CallConfig, HookContext
from dsh.kernel.config import Config, title_model
from dsh.kernel.scope import Context
from dsh.llm import providers
from dsh.llm.routes import Route
from dsh.query.naming import find_session, new_name
from dsh.session.session import Session
from dsh.store.database import Database


class Options(NamedTuple):
    """The options of `dsh run`, as given."""

    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    effort: str | None = None
    system: str | None = None
    cwd: str | None = None
    tools: str | None = None
    no_tools: bool = False
    max_steps: int | None = None
    max_cost: float | None = None
    max_tokens_total: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    timeout: float | None = None
    go_on: bool = False
    resume: str | None = None
    fork: str | None = None
    session: str | None = None
    as_json: bool = False
    mock: str | None = None
    ref: tuple[str, ...] = ()
    title_model: str | None = None
    quiet: bool = False
    db: str | None = None


def check(options: Options) -> None:
    """What the command line cannot say about its options."""
    ways = [
        f"--{name}"
        for name, given in (
            ("continue", options.go_on or None),
            ("resume", options.resume),
            ("fork", options.fork),
            ("session", options.session),
        )
        if given is not None
    ]
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} exclude each other")
    if options.session is not None:
        new_name("--session", options.session)
    if options.tools is not None and options.no_tools:
        raise UsageError("--tools and --no-tools exclude each other")
    if options.cwd is not None and not os.path.isdir(options.cwd):
        raise UsageError(f"--cwd {options.cwd} is not a folder")
    if options.title_model is not None and (fault := title_model(options.title_model)) is not None:
        raise UsageError(f"--title-model {fault}")
    for name in ("max_tokens", "max_tokens_total"):
        if (getattr(options, name) or 0) > MAX_INT:
            raise UsageError(f"--{name.replace('_', '-')} must be at most {MAX_INT}")
    for name in ("temperature", "timeout", "max_cost"):
        if not math.isfinite(getattr(options, name) or 0.0):
            raise UsageError(f"--{name.replace('_', '-')} must be a finite number")


def require_price(running: Program, route: dict[str, Any]) -> None:
    """A run whose cost is limited asks no model whose price nobody knows."""
    from dsh.capabilities.limits.budget import Budget

    running.host.get(Budget).require_price(route["provider"], route["model"])


def carried_on(options: Options, db: Database, resumed: str | None) -> Options:
    """A session that goes on keeps the system text and the tools it was last run with, unless this run says others."""
    found = query.row(db, "last_run_options", session=resumed) if resumed else None
    before: dict[str, Any] = loads(found[0]) if found and found[0] else {}
    if options.tools is not None or options.no_tools:
        before.pop("tools", None)
        before.pop("no_tools", None)
    given = {name: value for name, value in told(options).items() if value}
    if options.system is not None:
        given["system"] = options.system
    return options._replace(**{**before, **given})


def told(options: Options) -> dict[str, Any]:
    """What of the options is kept with the prompt, hidden from the model, for the next run of the session."""
    return {name: getattr(options, name) for name in ("system", "tools", "no_tools") if getattr(options, name)}


def _here(options: Options) -> str:
    if options.cwd and os.path.isabs(options.cwd):
        return os.path.normpath(options.cwd)
    return os.path.normpath(os.path.join(current_folder(), options.cwd or "."))


def working_folder(options: Options, db: Database, session: str | None) -> str:
    """Where the run works: a session that goes on where it has, a new one where it is started."""
    state = query.row(db, "session_state", session=session) if session is not None else None
    folder = (state[3] if state else None) or _here(options)
    if not os.path.isdir(folder):
        raise UsageError(f"the folder of session {session} is gone: {folder}")
    return folder


def resumed_id(db: Database, options: Options) -> str | None:
    if options.resume is not None:
        return find_session(db, options.resume)
    if options.session is not None:
        return options.session if query.row(db, "session_state", session=options.session) else None
    if not options.go_on:
        return None
    folder = _here(options)
    found = query.row(db, "latest_session", cwd=folder)
    if found is None:
        raise SessionError(
            f"no session in {folder} to go on with", code="SESSION_NOT_FOUND", hint="dsh sessions lists all of them"
        )
    return str(found[0])


async def route_of(
    options: Options, running: Program, config: Config, db: Database, resumed: str | None, progress: Progress
) -> dict[str, Any]:
    """Provider, model and sampling of this run's requests."""
    found = query.row(db, "header_in_force", session=resumed) if resumed else None
    logged: CallConfig | None = loads(found[1])["config"] if found else None
    if options.mock is not None:
        chosen = providers.install_mock(running.host.root, options.mock)
    else:
        chosen = await _choose(options, running, config, logged, progress)
        providers.install_routes(running.host.root, config, chosen.routes)
    if (more := await _route_of_titles(options, running, config, progress)) is not None:
        providers.install_routes(running.host.root, config, {more.name: more})
    if chosen.notice:
        progress.notice(chosen.notice)
    route = {
        "provider": chosen.provider,
        "model": options.model if options.mock and options.model else chosen.model,
        "reasoningEffort": chosen.effort,
        "temperature": options.temperature,
        "maxTokens": options.max_tokens,
    }
    return {key: value for key, value in route.items() if value is not None}


async def _route_of_titles(options: Options, running: Program, config: Config, progress: Progress) -> Route | None:
    """The route that titles need beside those of the run. One that is not configured is wrong in an option; in a
    setting it is told, and the run goes on without (ST-37)."""
    if options.title_model not in (None, "off") and running.host.find(Titles) is None:
        raise ConfigError("--title-model: titles are switched off", hint="plugins.disabled names the plugin titles")
    name, slash, _ = config["titles.model"].partition("/")
    if not slash or any(info["id"] == name for info in running.llm.providers()):
        return None
    try:
        if options.mock is not None:
            raise ConfigError(f"provider {name!r} is not asked in a run with recorded answers", code="NO_MODEL")
        return await providers.named(
            config, name, provider=options.provider, base_url=options.base_url, service=running.llm
        )
    except ConfigError as error:
        if options.title_model is not None:
            raise ConfigError(f"--title-model: {error.message}", code=error.code, hint=error.hint) from error
        progress.notice(f"no model is asked for a title: {error.message}")
        return None


async def _choose(
    options: Options, running: Program, config: Config, logged: CallConfig | None, progress: Progress
) -> providers.Selection:
    choose = partial(
        providers.choose,
        config,
        provider=options.provider,
        model=options.model,
        base_url=options.base_url,
        header=logged,
        service=running.llm,
    )
    try:
        return await choose()
    except ConfigError as error:
        if error.code != "NO_MODEL" or not os.environ.get("DSH_CHECKOUT") or options.model or options.provider:
            raise
    # A checkout sets the local model up by itself, so that the first command really runs.
    from dsh.cli.install_local import install_with_progress

    progress.notice("no key and no model server found; setting up the local model (once, about 130 MB)")
    await trio.to_thread.run_sync(install_with_progress, abandon_on_cancel=True)
    return await choose()


async def quoting(
    options: Options, running: Program, agent: Agent, content: list[Block]
) -> tuple[list[Block], list[HookContext]]:
    """The prompt, and what goes before it of the sessions that `--ref` names and the prompt mentions. What is piped in
    beside the prompt mentions nothing."""
    if not options.ref and "dsh-session:" not in content[0]["text"]:
        return content, []
    from dsh.capabilities.references.service import References
    from dsh.session.references import Reference, mentions

    named = []
    for given in options.ref:
        typed, _, label = given.partition("=")
        named.append(Reference(find_session(agent.session.db, typed), label or None))
    text, mentioned = mentions(content[0]["text"])
    prompt: list[Block] = [{"type": "text", "text": text}, *content[1:]]
    return await running.host.get(References).prepare(agent, prompt, [*named, *mentioned])


def setup_of(options: Options, running: Program, writer: Writer) -> Callable[[Context], None]:
    """What is registered for this run's agent alone: its system text, its tools, the log as JSON lines."""

    def setup(ctx: Context) -> None:
        if options.system is not None:
            prompt, text = running.host.get(Prompt), options.system
            prompt.variable(ctx, "system_option", lambda _: text)  # a value is not scanned for references, a section is
            prompt.section(ctx, "deployment:persona", 0, "{{system_option}}")
        if options.as_json:
            ctx.on("session/event", lambda session, event: writer.put(_json_line(session, event)))
        known = sorted(running.tools.visible(None))
        if options.no_tools and known:
            running.tools.restrict(ctx, deny=known)
        elif options.tools is not None:
            _select_tools(options.tools, known, running, ctx)

    return setup


def _select_tools(wanted: str, known: list[str], running: Program, ctx: Context) -> None:
    names = [n.strip() for n in wanted.split(",") if n.strip()]
    if names == ["all"]:
        return
    unknown = [n for n in names if n.removeprefix("-") not in known]
    if unknown or not names:
        missing = ", ".join(unknown) or "(nothing)"
        raise UsageError(f"--tools: no tool is called {missing}; known: {', '.join(known)}")
    deny = [n[1:] for n in names if n.startswith("-")]
    running.tools.restrict(ctx, allow=[n for n in names if not n.startswith("-")] or None, deny=deny or None)


def _json_line(session: Session, event: Event) -> str:
    return json_text(dumps({"sessionId": session.id, **event})) + "\n"
