"""`dsh title`: a session's title, where it comes from, and another one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import db_flag, history, load_config
from dsh.cli.group import db_option
from dsh.core.errors import ConfigError, UsageError, only
from dsh.query.naming import find_session
from dsh.session import titles
from dsh.session.titles import Title
from dsh.store.database import Database

if TYPE_CHECKING:
    from dsh.kernel.config import Config


@click.command("title", short_help="Show, make or give the title of a session.")
@click.argument("session", metavar="ID")
@click.option("--refresh", is_flag=True, help="Have a model make a new title of all that was asked.")
@click.option("-m", "--model", metavar="P/M", help="With --refresh: this model; same is the session's own.")
@click.option("--set", "given", metavar="TEXT", help="Give it this title.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@db_option
@click.pass_context
def command(
    ctx: click.Context, session: str, refresh: bool, model: str | None, given: str | None, as_json: bool
) -> int:
    """Show the title of a session, where it comes from and how old it is.

    A title is the beginning of the first prompt, until a model (setting titles.model, dsh run --title-model) or you
    give it another one. A title that you have given stays; only --refresh replaces it. With --refresh the setting
    titles.model says what is asked. A session that works just now keeps the title it has.

    In a pipe it is one line: the title, where it comes from (prompt, fallback, user, or what made it), and when it was
    given; separated by tabs. The exit code is 1 if the session has no title.
    """
    if refresh and given is not None:
        raise UsageError("--refresh and --set exclude each other")
    if model is not None:
        _check_model(model, refresh)
    with history(db_flag(ctx), read_only=not refresh and given is None) as db:
        id_ = find_session(db, session)
        if given is not None:
            found: Title | None = give(db, id_, given)
        else:
            found = _made_anew(db, id_, model) if refresh else titles.newest(db, id_)
        prompt = query.row(db, "session_title", session=id_) if found is None else None
    if as_json:
        output.json_line(_object(id_, found))
        return int(found is None)
    if found is None and (prompt is None or prompt[0] is None):
        output.note(f"session {id_} has no title yet")
        return 1
    words, source = (found.title, _said(found.source)) if found is not None else (prompt[0] if prompt else "", "prompt")
    if output.is_terminal():
        about = source if found is None else f"{source} · {output.age(found.updated_at)}"
        output.line(f"{output.style(output.one_line(words), output.BOLD)}\n{output.style(about, output.DIM)}")
    else:
        output.line("\t".join([output.one_line(words), source, "" if found is None else output.utc(found.updated_at)]))
    return 0


def give(db: Database, session: str, title: str) -> Title:
    """Log a person's title of a session that nobody drives; UsageError, SESSION_LEASED."""
    from dsh.core import lean

    words = titles.given(title)
    lean.load_trio()
    import trio

    return trio.run(_give, db, session, words, strict_exception_groups=True)


async def _give(db: Database, session: str, title: str) -> Title:
    from dsh.capabilities.titles.service import Limits, Titles
    from dsh.kernel.host import Host
    from dsh.session.sessions import Sessions

    config = load_config(db)
    sessions = Sessions(Host(config), db)
    live = sessions.publish(sessions.prepare_stored(session))
    try:
        return await Titles(sessions.host, sessions, Limits.of(config)).give(live, title)
    finally:
        sessions.dispose(live)


def _check_model(model: str, refresh: bool) -> None:
    from dsh.kernel.config import title_model

    if not refresh:
        raise UsageError("--model goes with --refresh")
    if fault := title_model(model):
        raise UsageError(f"--model {fault}")


def _made_anew(db: Database, session: str, model: str | None) -> Title | None:
    from dsh.core import lean

    lean.load_trio()
    import trio

    config = load_config(db).with_flags(titles__model=model)
    try:
        return trio.run(partial(_refreshed, db, session, config), strict_exception_groups=True)
    except BaseExceptionGroup as group:
        raise only(group) from None


async def _refreshed(db: Database, session: str, config: Config) -> Title | None:
    from dsh.capabilities.titles.service import Titles
    from dsh.cli.boot import program

    state = query.row(db, "session_state", session=session)
    async with program(db, config, state[3] if state is not None else None, strict=False) as running:
        service = running.host.find(Titles)
        if service is None:
            raise ConfigError("titles are switched off", hint="plugins.disabled names the plugin titles")
        live = running.sessions.publish(running.sessions.prepare_stored(session))
        try:
            await _serve(running, config, live.header_in_force())
            if not service.has_provider:
                output.note("no model makes titles: dsh title --refresh -m same, or the setting titles.model")
            return await service.refresh(live)
        finally:
            running.sessions.dispose(live)


async def _serve(running: Any, config: Config, header: Any) -> None:
    """Register the route that the title's model is reached by; a plugin may serve it already."""
    from dsh.llm import providers

    wanted = config["titles.model"]
    name = wanted.partition("/")[0] if "/" in wanted else header["config"]["provider"] if header is not None else ""
    if wanted != "off" and name and all(info["id"] != name for info in running.llm.providers()):
        route = await providers.named(config, name, service=running.llm)
        providers.install_routes(running.host.root, config, {name: route})


def _said(source: dict[str, Any]) -> str:
    """Where a title comes from, in a word."""
    kind, model = source.get("kind"), source.get("model")
    if kind != "provider":
        return output.one_line(str(kind))
    if isinstance(model, dict):
        return output.one_line(f"{model.get('provider')}/{model.get('model')}")
    return output.one_line(str(source.get("provider")))


def _object(session: str, title: Title | None) -> dict[str, Any]:
    if title is None:
        return {"sessionId": session, "title": None}
    return {
        "sessionId": session,
        "title": title.title,
        "source": title.source,
        "messageSeqs": list(title.message_seqs),
        "eventSeq": title.event_seq,
        "updatedAt": title.updated_at,
    }
