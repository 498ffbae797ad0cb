"""Routing of model calls: which adapter serves a route, what a call looks like when it gets there, whose
failure it is.

Every call, of the agent loop or of a helper, goes through `LlmService.stream` and so through the waterfall
`llm/stream`. The innermost link is the adapter boundary: it finds the adapter, fills the effort in, strips
replay state that belongs to others, and turns whatever goes wrong from there on into an `LlmError` that it
marks as its own. Only such errors are provider failures that recovery may act on; an interceptor's are not
(LS-40, AL-41).
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import trio

from dsh.core.errors import DshError, InvariantError, code_of, render_chain
from dsh.core.lossless import freeze
from dsh.core.messages import CallConfig, Chunk, Message, Request, chunk_fault, same_config
from dsh.kernel.hooks import contained, is_our_own
from dsh.kernel.host import Host
from dsh.kernel.scope import Context
from dsh.llm.adapter import Adapter, ModelInfo, ProviderInfo, ResolvedModel
from dsh.llm.failure import LlmError
from dsh.llm.metadata import checked_model, checked_models, checked_provider, with_effort
from dsh.llm.protocol import ProtocolChecker


class PreparedCall:
    """A call whose adapter and effective configuration are fixed; good for one dispatch (LS-25)."""

    def __init__(self, config: CallConfig, adapter: Adapter) -> None:
        self.config: CallConfig = freeze(config)
        self._adapter = adapter
        self._used = False

    def take(self, request: Request) -> Adapter:
        """The adapter, once, for a request with just this configuration; else INVALID_PREPARED_CALL."""
        if self._used:
            raise LlmError("a prepared call is good for one dispatch", "INVALID_PREPARED_CALL")
        if not same_config(self.config, request.config):
            raise LlmError("the request differs from what was prepared", "INVALID_PREPARED_CALL")
        self._used = True
        return self._adapter


class _Call:
    """One pass through `stream`: the error its own boundary raised, and the boundary's streams, which are closed
    here in the end because a listener that fails in the middle of one leaves it open (LS-42)."""

    def __init__(self, request: Request, prepared: PreparedCall | None) -> None:
        self.request = request
        self.prepared = prepared
        self.failure: LlmError | None = None
        self.streams: list[AsyncGenerator[Chunk, None]] = []


class LlmService:
    """The program's routes, in registration order."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._routes: dict[str, Adapter] = {}
        self._plain: dict[int, tuple[Message, Message]] = {}  # of the last request: what it had to be stripped of

    # --- registry

    def register(self, ctx: Context, adapter: Adapter, routes: list[str]) -> None:
        """Serve these routes by `adapter` until `ctx` ends; all or nothing (LS-20)."""
        ctx.require_open()
        if not routes or not all(routes):
            raise LlmError("an adapter serves at least one route, and a route has a name", "INVALID_ADAPTER")
        for route in routes:
            if route in self._routes or routes.count(route) > 1:
                raise LlmError(f"provider {route!r} is already served", "DUPLICATE_ADAPTER")
            checked_provider(route, adapter.provider_info(route))
        self._routes.update(dict.fromkeys(routes, adapter))
        for route in routes:
            ctx.registered("adapter", route)

        def undo() -> None:
            for route in routes:
                if self._routes.get(route) is adapter:
                    del self._routes[route]

        ctx.effect(undo)

    def providers(self) -> list[ProviderInfo]:
        return [checked_provider(route, adapter.provider_info(route)) for route, adapter in self._routes.items()]

    def _adapter(self, provider: str) -> Adapter:
        try:
            return self._routes[provider]
        except KeyError:
            known = ", ".join(self._routes) or "none"
            raise LlmError(f"no provider is called {provider!r}", "NO_ADAPTER", hint=f"configured: {known}") from None

    async def list_models(self, provider: str) -> list[ModelInfo]:
        return checked_models(provider, await self._adapter(provider).list_models(provider))

    async def resolve_model(self, provider: str, model: str) -> ResolvedModel:
        return await _resolve(self._adapter(provider), provider, model)

    # --- calls

    async def prepare(self, config: CallConfig) -> PreparedCall:
        """Fix adapter and effective configuration now; NO_ADAPTER, UNSUPPORTED_REASONING_EFFORT (LS-24,
        LS-25)."""
        adapter = self._adapter(config["provider"])
        return PreparedCall(await _effective(adapter, config), adapter)

    async def stream(self, request: Request, prepared: PreparedCall | None = None) -> AsyncGenerator[Chunk, None]:
        """The chunks of one call, through every `llm/stream` listener (LS-27).

        Close it when leaving early (`contextlib.aclosing`); the connection is closed before that returns
        (LS-42).
        """
        call = _Call(request, prepared)
        checker = ProtocolChecker() if os.environ.get("DSH_DEBUG") == "1" else None

        def boundary(current: Request) -> AsyncGenerator[Chunk, None]:
            call.streams.append(self._boundary(call, current))
            return call.streams[-1]

        chunks: Any = None
        try:
            chunks = self._host.hooks.waterfall("llm/stream", None, boundary, request)
            if inspect.isawaitable(chunks):
                chunks = await chunks
            async for chunk in chunks:
                if checker is not None:
                    checker.feed(chunk)
                yield chunk
            if checker is not None:
                checker.close()
        except LlmError as error:
            if error is not call.failure:  # an interceptor's, or of another call that one made (LS-40)
                error.__dict__.pop(_MARK, None)
            raise
        finally:
            for stream in (chunks, *call.streams):
                await _close(stream)

    @staticmethod
    def is_boundary(error: BaseException) -> bool:
        """Whether this error object came from the adapter boundary of the call that raised it (LS-40)."""
        return isinstance(error, LlmError) and _MARK in error.__dict__

    async def _boundary(self, call: _Call, request: Request) -> AsyncGenerator[Chunk, None]:
        if call.request.loop_built and request is not call.request:
            raise InvariantError("a request of the agent loop was changed on its way (LS-28)")
        chunks: AsyncGenerator[Chunk, None] | None = None
        try:
            if call.prepared is not None:
                adapter = call.prepared.take(request)
            else:
                adapter = self._adapter(request.provider)
                config = await _effective(adapter, request.config)
                if config is not request.config:
                    request = request.changed(config=freeze(config))
            chunks = adapter.stream(self._for(adapter, request))
            async for chunk in chunks:
                if fault := chunk_fault(chunk):
                    raise InvariantError(f"the adapter of {request.provider!r} made a wrong chunk: {fault}")
                yield chunk
        except LlmError as error:
            self._mark(call, error)
            raise
        except Exception as error:  # LS-41: the boundary is where foreign errors end
            failure = _foreign(error)
            self._mark(call, failure)
            raise failure from error
        except BaseException as error:
            if is_our_own(error) or isinstance(error, KeyboardInterrupt):
                raise
            failure = _foreign(contained(f"the adapter of {request.provider!r}", error))
            self._mark(call, failure)
            raise failure from error
        finally:
            await _close(chunks)

    @staticmethod
    def _mark(call: _Call, error: LlmError) -> None:
        call.failure = error
        error.__dict__[_MARK] = True

    def _for(self, adapter: Adapter, request: Request) -> Request:
        """The request as `adapter` may see it: without replay state that is not its own (LS-29, CO-15)."""
        if not [m for m in request.messages if "provenance" in m and "replayState" in m["provenance"]]:
            return request
        before, self._plain = self._plain, {}
        return request.changed(messages=tuple(self._stripped(adapter, m, before) for m in request.messages))

    def _stripped(self, adapter: Adapter, message: Message, before: dict[int, tuple[Message, Message]]) -> Message:
        """The same object for the same message, request after request: an adapter knows by it what it has written."""
        provenance = message.get("provenance")
        if not provenance or "replayState" not in provenance:
            return message
        if self._routes.get(provenance["provider"]) is adapter:
            return message
        known = before.get(id(message))
        if known is None or known[0] is not message:
            plain = {"provider": provenance["provider"], "model": provenance["model"]}
            known = (message, freeze({**message, "provenance": plain}))
        self._plain[id(message)] = known
        return known[1]


_MARK = "_adapter_boundary"


async def _resolve(adapter: Adapter, provider: str, model: str) -> ResolvedModel:
    return checked_model(provider, model, await adapter.resolve_model(provider, model))


async def _effective(adapter: Adapter, config: CallConfig) -> CallConfig:
    return with_effort(config, await _resolve(adapter, config["provider"], config["model"]))


def _foreign(error: Exception) -> LlmError:
    """A foreign error of an adapter; only our own classes' code is trusted (LS-41)."""
    text = error.message if isinstance(error, DshError) else ""
    if not text:
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 (LS-43: a broken __str__ must not hide the failure)
            text = ""
    if isinstance(error, ExceptionGroup):
        text = render_chain(error)
    return LlmError(text or "LLM adapter failed", code_of(error) or "UNKNOWN")


async def _close(chunks: AsyncIterator[Chunk] | None) -> None:
    """Close what was being iterated, whatever ended it; the close masks nothing (LS-42)."""
    aclose = getattr(chunks, "aclose", None)
    if aclose is None:
        return
    with trio.CancelScope(shield=True), contextlib.suppress(Exception):
        await aclose()
