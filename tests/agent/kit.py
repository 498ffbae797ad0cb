"""What tests of the loop share: the whole program in this process, on a real database, with a scripted provider.

    async with world(say("hello"), ask(("echo", {"x": 1}))) as w:
        agent = await w.agent()
        await w.turn(agent, "hi")
        w.flow(agent)            # the log as words, chunks left out

Every request is compared with the log (SE-34). On leaving, every log must be legal, and every message that was queued
must have left the inbox just once (AL-4).
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from dsh.agent import checker
from dsh.agent.agent import Agent
from dsh.agent.agents import Agents, install_prompt
from dsh.agent.prompt import Prompt
from dsh.core.events import Event
from dsh.core.lossless import dumps
from dsh.core.messages import Block, Chunk, Request, text_block, text_of
from dsh.kernel.config import Config
from dsh.kernel.host import Host
from dsh.kernel.points import POINTS
from dsh.llm.adapter import BaseAdapter
from dsh.llm.failure import LlmError
from dsh.llm.service import LlmService
from dsh.session.sessions import Sessions
from dsh.store.database import Database
from dsh.tools.definition import Execution, define
from dsh.tools.registry import Tools
from tests.agent.legal import problems

Reply = list[Chunk] | BaseException | Callable[[Request], AsyncGenerator[Chunk, None]]
Body = Callable[[Any, Execution], Awaitable[Any]]

PATIENCE_S = 20


def blocks(text: str) -> list[Block]:
    return [text_block(text)]


def say(text: str, *, kind: str = "stop", usage: dict[str, int] | None = None, replay: Any = None) -> list[Chunk]:
    """An answer of one text block."""
    return [*opened(text), *closed(text), *_end(kind, usage, replay)]


def opened(text: str) -> list[Chunk]:
    return [
        {"type": "block-start", "index": 0, "blockType": "text"},
        {"type": "text-delta", "index": 0, "text": text},
    ]


def closed(text: str) -> list[Chunk]:
    return [{"type": "block-end", "index": 0, "block": text_block(text)}]


def ask(*calls: tuple[Any, ...], text: str = "", kind: str = "tool-calls") -> list[Chunk]:
    """An answer with tool calls, each (name, arguments) or (name, arguments, id); ids default to c1, c2, ..."""
    chunks: list[Chunk] = [*opened(text), *closed(text)] if text else []
    first = 1 if text else 0
    for number, (name, arguments, *rest) in enumerate(calls, 1):
        written = arguments if isinstance(arguments, str) else dumps(arguments)
        block: Block = {
            "type": "tool-call",
            "id": rest[0] if rest else f"c{number}",
            "name": name,
            "arguments": written,
        }
        index = first + number - 1
        chunks.append({"type": "block-start", "index": index, "blockType": "tool-call"})
        chunks.append({"type": "block-end", "index": index, "block": block})
    return [*chunks, *_end(kind, None, None)]


def _end(kind: str, usage: dict[str, int] | None, replay: Any) -> list[Chunk]:
    finish: Any = {"type": "finish", "reason": {"kind": kind}}
    if replay is not None:
        finish["replayState"] = replay
    return [*([{"type": "usage", "usage": usage}] if usage else []), finish]


def failed(kind: str = "error", code: str = "SERVER", message: str = "boom") -> list[Chunk]:
    """A stream that ends with a failure in its finish chunk."""
    return [{"type": "finish", "reason": {"kind": kind, "failure": {"message": message, "code": code}}}]


def boom(code: str = "SERVER", message: str = "boom") -> LlmError:
    return LlmError(message, code)


class Gate:
    """A stream or a tool body that says when it has begun and goes on when told."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.open = trio.Event()

    async def stop(self) -> None:
        self.entered.set()
        await self.open.wait()

    def reply(self, before: list[Chunk], after: list[Chunk]) -> Reply:
        async def stream(request: Request) -> AsyncGenerator[Chunk, None]:
            for chunk in before:
                yield chunk
            await self.stop()
            for chunk in after:
                yield chunk

        return stream

    async def body(self, args: Any, execution: Execution) -> Any:
        await self.stop()
        return "passed"


class Script(BaseAdapter):
    """Plays replies in order, then says "ok"; keeps the requests."""

    def __init__(self, replies: Iterable[Reply]) -> None:
        self.replies = deque(replies)
        self.requests: list[Request] = []

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        reply = self.replies.popleft() if self.replies else say("ok")
        if isinstance(reply, BaseException):
            raise reply
        if callable(reply):
            async with aclosing(reply(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        for chunk in reply:
            yield chunk


class World:
    """The program's parts, and what was notified in it."""

    def __init__(self, host: Host, db: Database, agents: Agents, script: Script) -> None:
        self.host = host
        self.db = db
        self.agents = agents
        self.script = script
        self.tools = host.get(Tools)
        self.sessions = host.get(Sessions)
        self.prompt = host.get(Prompt)
        self.notices: list[tuple[str, tuple[Any, ...]]] = []
        for point, kind in POINTS.items():
            if kind == "notice" and point.startswith(("agent/", "session/")):
                host.root.on(point, self._recorder(point))

    def _recorder(self, point: str) -> Callable[..., None]:
        return lambda *args: self.notices.append((point, args))

    @property
    def requests(self) -> list[Request]:
        return self.script.requests

    async def agent(self, *, id: str | None = None, setup: Any = None, meta: Any = None, **options: Any) -> Agent:
        route = {"provider": "p", "model": "m", **options}
        return await self.agents.create(route, id=id, meta=meta, setup=setup)

    async def turn(self, agent: Agent, text: str = "hi", **more: Any) -> dict[str, Any]:
        """Send one follow-up, wait, and return the reason its turn ended with."""
        agent.followup(blocks(text), **more)
        await agent.when_idle()
        return self.last(agent, "turn/end")["data"]["reason"]

    def on(self, point: str, listener: Any) -> None:
        self.host.root.on(point, listener)

    def observe(self, point: str) -> Callable[[Any], Any]:
        """Register the decorated function at a hook point."""

        def register(listener: Any) -> Any:
            self.host.root.on(point, listener)
            return listener

        return register

    def tool(self, name: str, body: Body | None = None, **more: Any) -> None:
        async def done(args: Any, execution: Execution) -> Any:
            return f"{name} done"

        self.tools.register(
            self.host.root,
            define(
                name=name,
                description=f"the tool {name}",
                parameters={},
                output={"type": "json"},
                render=lambda _, value: str(value),
                execute=body or done,
                **more,
            ),
        )

    # ------------------------------------------------------------------------------------------------ what happened

    def log(self, agent: Agent, *types: str) -> list[Event]:
        return [e for e in agent.session.events() if not types or e["type"] in types]

    def last(self, agent: Agent, type: str) -> Event:
        return self.log(agent, type)[-1]

    def flow(self, agent: Agent) -> list[str]:
        return [e["type"] for e in self.log(agent) if e["type"] != "assistant/chunk"]

    def texts(self, agent: Agent, *types: str) -> list[str]:
        return [text_of(e["data"]["content"]) for e in self.log(agent, *types)]

    def noticed(self, *points: str) -> list[tuple[str, tuple[Any, ...]]]:
        return [n for n in self.notices if n[0] in points]

    def errors(self) -> list[tuple[int, int, BaseException]]:
        return [(args[1], args[2], args[3]) for _, args in self.noticed("agent/error")]

    def sent(self, index: int = -1) -> list[str]:
        """The texts of the messages of a request, results included."""
        return [
            "".join(text_of(b["content"]) if b["type"] == "tool-result" else b.get("text", "") for b in m["content"])
            for m in self.requests[index].messages
        ]

    def check(self) -> None:
        taken: Counter[str] = Counter()
        put: list[str] = []
        for point, args in self.notices:
            if point == "agent/inbox/enqueue":
                put.append(args[1]["id"])
            elif point == "agent/inbox/dequeue":
                taken[args[1]["id"]] += 1
            elif point == "agent/inbox/discard":
                assert args[1]
                taken.update(m["id"] for m in args[1])
        assert taken == Counter(put)  # AL-4
        for (id_,) in self.db.rows("SELECT id FROM session"):
            session = self.sessions.prepare_stored(id_)
            assert problems(session.events()) == []
            session.release()


@asynccontextmanager
async def world(
    *replies: Reply, plugins: Iterable[str] = (), checked: bool = True, **settings: Any
) -> AsyncIterator[World]:
    """A program on the test's database; `a__b` stands for the setting `a.b`."""
    with trio.fail_after(PATIENCE_S):
        db = Database.open(Path(os.environ["DSH_DB"]))
        host = Host(Config({}, {}).with_flags(**settings))
        llm, tools, sessions = LlmService(host), Tools(host), Sessions(host, db)
        host.root.provide(LlmService, llm)
        host.root.provide(Tools, tools)
        host.root.provide(Sessions, sessions)
        install_prompt(host, tools)
        script = Script(replies)
        llm.register(host.root, script, ["p"])
        checker.install(host.root)
        try:
            async with trio.open_nursery() as nursery:
                agents = Agents(host, sessions, nursery)
                host.root.provide(Agents, agents)
                host.start(plugins)
                made = World(host, db, agents, script)
                try:
                    yield made
                finally:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE_S):
                        await agents.close()
                        await host.close()
            if checked:
                made.check()
        finally:
            db.close()
