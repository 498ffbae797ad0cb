"""Putting the program together: configuration, database, host, services, built-in capabilities, agents."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, redirect_stdout
from typing import NamedTuple

import trio

from dsh.agent.agents import Agents, install_prompt
from dsh.capabilities import BUILTIN
from dsh.cli.output import note
from dsh.kernel import found
from dsh.kernel.config import Config
from dsh.kernel.host import Host
from dsh.llm.service import LlmService
from dsh.session.sessions import Sessions
from dsh.store.database import Database
from dsh.tools.registry import Tools


class Program(NamedTuple):
    host: Host
    llm: LlmService
    tools: Tools
    sessions: Sessions
    agents: Agents


@asynccontextmanager
async def program(
    db: Database,
    config: Config,
    folder: str | None = None,
    *,
    notice: Callable[[str], None] = note,
    interrupted: Callable[[], bool] | None = None,
    strict: bool = True,
) -> AsyncIterator[Program]:
    """A running program without an agent yet. On leaving, agents are drained before what they use is taken down.

    `folder` is where the session works, whose project may bring plugins along; `notice` takes a line for each plugin
    that is not used, or that failed where a failure is contained; `interrupted` tells whether a caller that hears
    signals itself was told to end; `strict` refuses to start when a module that the settings name does not exist.
    """
    host = Host(config, notice)
    llm, tools, sessions = LlmService(host), Tools(host), Sessions(host, db)
    host.root.provide(LlmService, llm)
    host.root.provide(Tools, tools)
    host.root.provide(Sessions, sessions)
    install_prompt(host, tools)
    if os.environ.get("DSH_CHECK") == "1":
        from dsh.agent import checker

        checker.install(host.root)
    with ExitStack() as prints:  # what plugins print is no part of the answer, which goes to its file descriptor
        async with trio.open_nursery() as nursery:
            agents = Agents(host, sessions, nursery)
            host.root.provide(Agents, agents)
            try:
                host.start(BUILTIN)
                others = found.find(db, config, folder, host.plugins)
                if others:
                    from dsh.kernel import plugins

                    prints.enter_context(redirect_stdout(sys.stderr))
                    for line in await plugins.start(host, others, interrupted, strict=strict):
                        notice(line)
                yield Program(host, llm, tools, sessions, agents)
            finally:
                with trio.CancelScope(shield=True):
                    await agents.close()
                    await host.close()
