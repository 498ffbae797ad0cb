"""Titles of sessions: a fallback from the first prompt at once, and one that a model makes where that is asked for.

`Titles` (service.py) is the service; provider.py says what a provider of titles is, model.py is the one that asks a
model. The setting `titles.model` switches it on; without it a session has one more event and nothing else is loaded.
"""

from __future__ import annotations

from dsh.agent.agents import Agents
from dsh.capabilities.titles.service import Limits, Titles
from dsh.kernel.scope import Context
from dsh.session.sessions import Sessions


def setup(ctx: Context) -> None:
    config = ctx.host.config
    titles = Titles(ctx.host, ctx.get(Sessions), Limits.of(config), ctx.get(Agents).nursery)
    ctx.effect(titles.close)
    ctx.provide(Titles, titles)
    ctx.on("session/event", titles.heard)
    ctx.on("session/disposed", titles.forget)
    ctx.on("agent/status", lambda agent, status: titles.forget(agent.session) if status == "disposed" else None)
    ctx.on("agent/pre-step", titles.before_step, first=True)
    if config["titles.model"] != "off":
        from dsh.capabilities.titles import model  # most runs have none

        titles.register(ctx, model.of(ctx))
