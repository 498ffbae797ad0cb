"""The agents of this process: making them, resuming them, ending them (AL-75 to AL-80)."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import trio

from dsh import query
from dsh.agent.agent import Agent
from dsh.agent.decisions import InputInvalid
from dsh.agent.driver import drive
from dsh.agent.initiator import on_behalf_of
from dsh.agent.prompt import Prompt
from dsh.agent.step import Loop
from dsh.core.errors import DshError
from dsh.core.events import Event
from dsh.core.ids import new_session_id
from dsh.kernel.host import Host
from dsh.kernel.scope import Context
from dsh.llm.service import LlmService
from dsh.session.session import Session
from dsh.session.sessions import Sessions
from dsh.store import wake, writes
from dsh.tools.registry import Tools

Setup = Callable[[Context], Awaitable[None] | None]


class AgentExists(DshError):
    code = "AGENT_EXISTS"


class Agents:
    """A service. Every driver runs in `nursery`, which ends only after its agents were disposed."""

    def __init__(self, host: Host, sessions: Sessions, nursery: trio.Nursery) -> None:
        self.host = host
        self.sessions = sessions
        self._nursery = nursery
        self._live: dict[str, Agent] = {}

    def find(self, id: str) -> Agent | None:
        return self._live.get(id)

    @property
    def nursery(self) -> trio.Nursery:
        """For tasks of plugins that live longer than what starts them. Who starts one lets no failure out of it, and
        ends it with the context it belongs to."""
        return self._nursery

    async def create(
        self,
        options: dict[str, Any],
        *,
        id: str | None = None,
        meta: dict[str, Any] | None = None,
        seed: Sequence[Event] | None = None,
        setup: Setup | None = None,
    ) -> Agent:
        """A new agent on a new session, seeded or empty."""
        session = self.sessions.prepare_new(id, meta=meta, seed=seed)
        try:
            session.claim(secrets.token_hex(8))
            return await self._start(session, options, "startup", setup)
        except BaseException:
            if session.length and self._live.get(session.id) is None:
                writes.delete_session(self.sessions.db, session.id)  # the seed was stored at once (AL-76)
            raise

    async def resume(self, id: str, options: dict[str, Any], *, setup: Setup | None = None) -> Agent:
        """An agent on a stored session, its interrupted turn closed first (AL-79, PE-30)."""
        if id in self._live:
            raise AgentExists(f"agent {id} is already live")
        return await self._start(self.sessions.prepare_stored(id), options, "resume", setup)

    async def open(
        self,
        options: dict[str, Any],
        *,
        session_id: str | None = None,
        resume_session_id: str | None = None,
        meta: dict[str, Any] | None = None,
        setup: Setup | None = None,
    ) -> Agent:
        """The agent that a configuration asks for (AL-80): `session_id` is resumed if it is stored, else created;
        `resume_session_id` must be stored; with neither it is a new session. `meta` is for a new one.

        INPUT_INVALID for both or an empty id, before anything starts. Another failure is announced, and raised.
        """
        if session_id is not None and resume_session_id is not None:
            raise InputInvalid("session_id and resume_session_id exclude each other")
        if "" in (session_id, resume_session_id):
            raise InputInvalid("a session id is not empty")
        name = resume_session_id or session_id or new_session_id()
        stored = session_id is not None and query.row(self.sessions.db, "session_state", session=name) is not None
        try:
            if stored or resume_session_id is not None:
                return await self.resume(name, options, setup=setup)
            return await self.create(options, id=name, meta=meta, setup=setup)
        except Exception as error:
            self.host.report(f"session {name}", error)
            self.host.hooks.notify("agent-loop/config-start-failed", None, name, error)
            raise

    async def _start(
        self, session: Session, options: dict[str, Any], source: Literal["startup", "resume"], setup: Setup | None
    ) -> Agent:
        """AL-75, in its order; a failure undoes what was done (AL-76)."""
        ctx = self.host.root.scope()
        agent = Agent(session, dict(options), ctx, self._nursery)
        ctx.key = session.scope_key = agent
        try:
            loop = Loop(self.host.get(LlmService), self.host.get(Prompt), self.host.get(Tools))
            if setup is not None:
                pending = setup(ctx)
                if pending is not None:
                    await pending
            if session.id in self._live:
                raise AgentExists(f"agent {session.id} is already live")
            self._live[session.id] = agent
            self.sessions.publish(session)
        except BaseException:
            self._live.pop(session.id, None) if self._live.get(session.id) is agent else None
            session.release()
            await ctx.dispose()
            raise
        agent.notify("agent/created")
        agent.notify("agent/session-start", source)
        agent.look()  # what was left in the inbox comes before the first prompt
        with on_behalf_of(agent):
            self._nursery.start_soon(self._run, agent, loop)
        return agent

    async def dispose(self, agent: Agent) -> None:
        """Stop and drain the driver, announce, unwind the agent's scope (AL-78)."""
        await agent.dispose()
        try:
            if self._live.get(agent.id) is agent:
                del self._live[agent.id]
                agent.notify("agent/disposed")
                self.sessions.dispose(agent.session)
        finally:
            await agent.ctx.dispose()  # the same completion for every caller

    async def close(self) -> None:
        for agent in list(self._live.values()):
            await self.dispose(agent)

    async def _run(self, agent: Agent, loop: Loop) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._attend, agent)
            await drive(agent, loop)
            nursery.cancel_scope.cancel()

    async def _attend(self, agent: Agent) -> None:
        """While the agent lives: look into the inbox whenever somebody rings, renew the lease at each heartbeat, and
        look then, too. A lease that was taken over ends its agent (PE-74)."""
        holder = agent.session.holder or ""
        ear = wake.listen(holder)
        due = trio.current_time() + writes.LEASE_HEARTBEAT_S
        try:
            while agent.status != "disposed":
                with trio.move_on_at(due):
                    if ear is None:
                        await trio.sleep_forever()
                    await trio.lowlevel.wait_readable(ear)
                    wake.heard(ear)
                    agent.look()
                    continue
                due = trio.current_time() + writes.LEASE_HEARTBEAT_S
                if not self._beat(agent):
                    self._nursery.start_soon(self.dispose, agent)
                    return
                agent.look()
        finally:
            if ear is not None:
                wake.hang_up(ear, holder)

    @staticmethod
    def _beat(agent: Agent) -> bool:
        """Whether the agent may go on."""
        try:
            agent.session.beat()
        except DshError as error:
            agent.report_error(agent.session.turns, 0, error)
            return error.code != "SESSION_LEASED"
        return True


def install_prompt(host: Host, tools: Tools) -> Prompt:
    """The prompt service with the sections and variables that are always there (SP-24, SP-25)."""
    prompt = Prompt(host)
    ctx = host.root
    prompt.section(
        ctx,
        "harness:identity",
        -100,
        "You are dsh, an agent that works for its user in a command line shell. Working directory: {{cwd}}.",
    )
    prompt.section(ctx, "deployment:persona", 0, lambda _: str(host.config["persona"]))
    prompt.variable(ctx, "cwd", lambda c: (c.agent.session.cwd if c.agent else None) or ".")
    prompt.variable(ctx, "provider", lambda c: c.agent.options.get("provider") if c.agent else None)
    prompt.variable(ctx, "model", lambda c: c.agent.options.get("model") if c.agent else None)
    prompt.tools(ctx, "tools", lambda c: tools.schemas(c.agent))
    ctx.provide(Prompt, prompt)
    return prompt
