"""What tests of titles share: a provider that does as it is told, and what the log has of titles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from dsh.capabilities.titles.provider import TitleRequest
from dsh.capabilities.titles.service import WARNING, Titles
from dsh.core.errors import DshError
from dsh.core.messages import Source
from dsh.session.session import Session
from tests.agent.kit import World

PLUGIN = ["dsh.capabilities.titles"]
USER: Source = {"kind": "user"}
Generate = Callable[[TitleRequest], Awaitable[Any]]


class Provider:
    """Answers as told, by default with the texts that it was given; keeps the requests."""

    def __init__(self, automatic: Any = "first-message", generate: Generate | None = None, id: Any = "mine") -> None:
        self.id = id
        self.automatic = automatic
        self.requests: list[TitleRequest] = []
        self._generate = generate

    async def generate(self, request: TitleRequest) -> Any:
        self.requests.append(request)
        if self._generate is not None:
            return await self._generate(request)
        return made("+".join(m.text for m in request.messages), *(m.seq for m in request.messages))


def made(title: Any, *seqs: Any, **more: Any) -> Any:
    return {"title": title, "messageSeqs": list(seqs), **more}


def service(w: World) -> Titles:
    return w.host.get(Titles)


def events(w: World, session: Session) -> list[tuple[str, str, list[int]]]:
    """Title events: who made it, title, seqs."""
    found = [e["data"] for e in session.events() if e["type"] == "session/title"]
    return [(d["source"]["kind"], d["title"], list(d["messageSeqs"])) for d in found]


def titles_of(w: World, session: Session) -> list[str]:
    return [title for _, title, _ in events(w, session)]


def warnings(w: World) -> list[str]:
    return [str(getattr(error, "code", error)) for where, error in w.host.reports if where == WARNING]


async def settle(w: World, session: Session) -> None:
    """Until nothing moves any more."""
    await service(w).finished(session)
    await trio.testing.wait_all_tasks_blocked()


async def refused(awaitable: Any) -> str:
    with pytest.raises(DshError) as caught:
        await awaitable
    return caught.value.code


def code(action: Any, *args: Any) -> str:
    with pytest.raises(DshError) as caught:
        action(*args)
    return caught.value.code


@asynccontextmanager
async def written_by_others(w: World, session: Session) -> AsyncIterator[None]:
    """Meanwhile somebody else's event is on its way to the disk, so nothing can be written out of band (ST-52)."""
    flushing, go_on = trio.Event(), trio.Event()

    async def hold(flushed: Session) -> None:
        if not flushing.is_set():
            flushing.set()
            await go_on.wait()

    async with trio.open_nursery() as nursery:
        w.sessions.on_flush(w.host.root, hold)
        data = {"somebody": "else"}
        nursery.start_soon(
            w.sessions.append_out_of_band, session, "session/title-llm-request", data, {"kind": "something"}
        )
        await flushing.wait()
        try:
            yield
        finally:
            go_on.set()
