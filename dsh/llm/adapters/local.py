"""The route of the local model: its server is a child process, started by the first call and ended with the
program.

Most runs of a session with this route list, show or search and never call the model, so nothing is started
before it is needed. The child's context manager must be entered and left by one task, and the caller's task
may be cancelled at any time; so a system task holds it, and `aclose` lets it go and waits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import trio

from dsh.core.messages import Chunk, Request
from dsh.llm.adapter import BaseAdapter, ModelInfo, ProviderInfo, ResolvedModel
from dsh.llm.adapters.chat import ChatAdapter, Endpoint
from dsh.llm.failure import LlmError

ROUTE = "local"


class LocalAdapter(BaseAdapter):
    """Serves the route `local` through the chat-completions server of `dsh.llm.local`."""

    def __init__(self, idle_timeout_ms: int) -> None:
        self._idle_timeout_ms = idle_timeout_ms
        self._starting = trio.Lock()
        self._held: _Held | None = None

    def provider_info(self, provider: str) -> ProviderInfo:
        return {"id": provider, "name": "local model"}

    async def list_models(self, provider: str) -> list[ModelInfo]:
        from dsh.llm.local import MODEL_ID

        return [{"provider": provider, "id": MODEL_ID, "name": MODEL_ID}]

    async def resolve_model(self, provider: str, model: str) -> ResolvedModel:
        from dsh.llm.local import CONTEXT_WINDOW

        return {
            "provider": provider,
            "id": model,
            "name": model,
            "context": {"contextWindow": CONTEXT_WINDOW},
        }

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        chat = await self._chat()
        try:
            async with aclosing(chat.stream(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except LlmError as error:
            if error.code == "TRANSPORT":  # the child may be gone; a retry starts another
                await self.aclose()
            raise

    async def _chat(self) -> ChatAdapter:
        async with self._starting:
            if self._held is None or self._held.ended.is_set():
                self._held = _Held()
                trio.lowlevel.spawn_system_task(self._held.run)
            held = self._held
            await held.ready.wait()
            if held.failure is not None:
                raise held.failure
            if held.chat is None:
                held.chat = ChatAdapter(
                    Endpoint(ROUTE, held.base_url, "local model", idle_timeout_ms=self._idle_timeout_ms)
                )
            return held.chat

    async def aclose(self) -> None:
        """End the child, if there is one; a later call starts another."""
        held, self._held = self._held, None
        if held is not None:
            with trio.CancelScope(shield=True):
                if held.chat is not None:
                    await held.chat.aclose()
                held.scope.cancel()
                await held.ended.wait()


class _Held:
    """The child's context manager, held open by a task of its own until `scope` is cancelled."""

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.base_url = ""
        self.chat: ChatAdapter | None = None
        self.failure: Exception | None = None

    async def run(self) -> None:
        from dsh.llm.local import child

        try:
            with self.scope:
                async with child.serve() as base_url:
                    self.base_url = base_url.rstrip("/")
                    self.ready.set()
                    await trio.sleep_forever()
        except Exception as error:  # noqa: BLE001 (handed to whoever waits; a system task must not fail)
            self.failure = error
        finally:
            self.ready.set()
            self.ended.set()
