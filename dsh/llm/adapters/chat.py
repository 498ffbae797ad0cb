"""One adapter for every server that speaks chat completions: DeepSeek, OpenAI and everything compatible.

The adapter owns one HTTP client per endpoint, made at the first request and closed with the program, so the
steps of a run share a TLS connection. One `stream` call is one request (LS-6): no retries, no redirects and
no timeouts of the client library; the idle watchdog alone bounds it. It runs while the consumer waits and not
while it works, from emitted chunk to emitted chunk, so keep-alive comments do not extend it (LS-76).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from dsh import __version__
from dsh.core.messages import Chunk, Request
from dsh.llm import http
from dsh.llm.adapter import ModelInfo, ProviderInfo, ResolvedModel
from dsh.llm.adapters.chat_request import DIALECTS, Dialect, Encoder
from dsh.llm.adapters.chat_stream import ChatStream
from dsh.llm.catalogue import BY_ID, DEEPSEEK, Known
from dsh.llm.failure import LlmError, http_failure, one_line

if TYPE_CHECKING:
    import httpx

USER_AGENT = f"dsh/{__version__} (DeepSeek Harness)"
_WINDOW_KEYS = ("context_length", "context_window", "max_model_len", "max_context_length")
_ERROR_BODY_LIMIT = 64 * 1024
LIST_SECONDS = 10.0
_DRAIN_SECONDS = 0.1  # a server that keeps the connection open after [DONE] costs no more than this
_CLOSE_SECONDS = 2.0  # a TLS goodbye that nobody answers costs no more than this


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route: where it is, what it speaks and what is configured for it.

    `models` is an explicit catalogue, None leaves it to the dialect or the server. `thinking` is `enabled` or
    `disabled` for a whole deployment (LS-51). `idle_timeout_ms` is LS-76's.
    """

    route: str
    base_url: str
    name: str = ""
    key: str = field(default="", repr=False)
    dialect: Dialect = DIALECTS["chat"]
    models: tuple[str, ...] | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    context_window: int | None = None
    thinking: str | None = None
    idle_timeout_ms: int = 300_000

    @property
    def title(self) -> str:
        return self.name or self.route

    @property
    def shown_url(self) -> str:
        return http.shown(self.base_url)

    def request_headers(self, purpose: str | None = None) -> dict[str, str]:
        """LS-58: ours win over configured ones of the same name in any case."""
        ours = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",  # a compressor between us and the model would hold deltas back
            "user-agent": USER_AGENT,
        }
        if self.key:
            ours["authorization"] = f"Bearer {self.key}"
        if purpose == "compaction" and self.dialect.thinking:
            ours["x-deepseek-harness-compact"] = "1"
        configured = {k.lower(): v for k, v in self.headers.items()}
        return {**configured, **ours}


class Listed(NamedTuple):
    """A model of a server's list; the window in tokens where the server tells it."""

    id: str
    name: str
    context_window: int | None

    @classmethod
    def read(cls, entry: Any) -> Listed | None:
        """Whatever else an entry holds differs from server to server; an entry without an id is none."""
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"]:
            return None
        told = [entry.get(k) for k in _WINDOW_KEYS]
        window = next((n for n in told if type(n) is int and n > 0), None)
        name = entry.get("name")
        return cls(entry["id"], name if isinstance(name, str) and name else entry["id"], window)


class _Exchange:
    """One request and its answer while it is being read."""

    def __init__(self, request: httpx.Request, answer: ChatStream) -> None:
        self.request = request
        self.answer = answer
        self.response: httpx.Response | None = None
        self.bytes: AsyncIterator[bytes] | None = None


class ChatAdapter:
    """The adapter of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._encoder = Encoder(endpoint.dialect, endpoint.thinking)
        self._client: httpx.AsyncClient | None = None
        self._windows: dict[str, int] = {}

    async def aclose(self) -> None:
        """Close the connections; the adapter may be used again afterwards."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = http.client(self.endpoint.base_url)
        return self._client

    # --- metadata

    def provider_info(self, provider: str) -> ProviderInfo:
        return {"id": provider, "name": self.endpoint.title}

    async def list_models(self, provider: str) -> list[ModelInfo]:
        """The configured list, else what the dialect knows, else what the server lists."""
        known = self.known_models()
        if known is not None:
            return [self._info(m, m) for m in known]
        return [self._info(m.id, m.name) for m in await self.fetch_models()]

    def known_models(self) -> list[str] | None:
        """Model ids that need no request; None when only the server can tell."""
        if self.endpoint.models is not None:
            return list(self.endpoint.models)
        return [m.id for m in DEEPSEEK] if self.endpoint.dialect.name == "deepseek" else None

    def _info(self, model: str, name: str) -> ModelInfo:
        known = self._known(model)
        return {"provider": self.endpoint.route, "id": model, "name": known.name if known else name}

    def _known(self, model: str) -> Known | None:
        return BY_ID.get(model) if self.endpoint.dialect.name == "deepseek" else None

    async def resolve_model(self, provider: str, model: str) -> ResolvedModel:
        """Without a request: the catalogue, the configured window and the dialect's efforts (LS-23)."""
        known = self._known(model)
        resolved: ResolvedModel = {"provider": provider, "id": model, "name": known.name if known else model}
        window = known.context_window if known else self.endpoint.context_window or self._windows.get(model)
        if window is not None:
            resolved["context"] = {"contextWindow": window}
        off_only = self.endpoint.thinking == "disabled"
        efforts = [(i, n) for i, n in self.endpoint.dialect.efforts if not off_only or i == "off"]
        if efforts:
            resolved["reasoning"] = {"efforts": [{"id": i, "name": n} for i, n in efforts]}
            if known and known.default_effort and not off_only:
                resolved["reasoning"]["defaultEffort"] = known.default_effort
        return resolved

    async def fetch_models(self, seconds: float = LIST_SECONDS) -> list[Listed]:
        """What `GET {base}/models` lists, in the server's order; LlmError when it does not tell in time."""
        place, client = self.endpoint, self._http()
        import httpx

        headers = {**place.request_headers(), "accept": "application/json"}
        with trio.move_on_after(seconds) as bound:
            try:
                response = await client.get(f"{place.base_url}/models", headers=headers)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._transport("request to", error) from telling(error)
        if bound.cancelled_caught:
            raise LlmError(f"{place.shown_url}/models did not answer in {seconds:g} s", "TIMEOUT")
        if response.status_code // 100 != 2:
            raise self._refused(response, response.content[:_ERROR_BODY_LIMIT])
        try:
            listed = response.json()
        except ValueError:
            listed = None
        entries = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(entries, list):
            raise LlmError(f"{place.shown_url}/models did not answer with a model list", "MALFORMED_RESPONSE")
        models = {m.id: m for m in map(Listed.read, entries) if m is not None}
        self._windows = {m.id: m.context_window for m in models.values() if m.context_window}
        return list(models.values())

    # --- streaming

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """One request; chunks as the server sends them. Failures are raised after the chunks before them."""
        place = self.endpoint
        client = self._http()
        content = self._encoder.encode(request)
        exchange = _Exchange(
            client.build_request(
                "POST",
                f"{place.base_url}/chat/completions",
                content=content,
                headers=place.request_headers(request.purpose),
            ),
            ChatStream(
                who=place.title,
                where=place.shown_url,
                keep_reasoning_field=not place.dialect.always_replay_reasoning,
            ),
        )
        try:
            while not exchange.answer.over:
                for chunk in await self._next(client, exchange):
                    yield chunk
            if exchange.answer.failure is not None:
                raise self._redacted(exchange.answer.failure)
            if http.keeps_connections(place.base_url):
                await _drain(exchange)
        finally:
            await _close(exchange)

    async def _next(self, client: httpx.AsyncClient, exchange: _Exchange) -> list[Chunk]:
        """The next chunks, at least one unless the answer is over. Here and only here the watchdog runs."""
        import httpx

        seconds = self.endpoint.idle_timeout_ms / 1000
        with trio.move_on_after(seconds) as watchdog:
            try:
                if exchange.response is None:
                    await self._open(client, exchange)
                return await _read(exchange)
            except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
                if watchdog.cancel_called:
                    raise self._timed_out(seconds) from error
                await trio.lowlevel.checkpoint_if_cancelled()  # LS-77: a cancellation of the caller goes first
                part = "request to" if exchange.response is None else "stream from"
                raise self._transport(part, error) from telling(error)
        raise self._timed_out(seconds)

    def _timed_out(self, seconds: float) -> LlmError:
        message = f"{self.endpoint.title} stream from {self.endpoint.shown_url} was silent for {seconds:g} s"
        return LlmError(message, "TIMEOUT")

    async def _open(self, client: httpx.AsyncClient, exchange: _Exchange) -> None:
        response = await client.send(exchange.request, stream=True)
        exchange.response = response
        exchange.bytes = response.aiter_bytes()
        if response.status_code // 100 != 2:
            read = b""
            async for data in exchange.bytes:
                read += data
                if len(read) >= _ERROR_BODY_LIMIT:
                    break
            raise self._refused(response, read[:_ERROR_BODY_LIMIT])
        exchange.answer.content_type = response.headers.get("content-type", "")

    # --- failures

    def _refused(self, response: httpx.Response, content: bytes) -> LlmError:
        text = content.decode("utf-8", "replace")
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            parsed = None
        headers = response.headers
        request_id = headers.get("x-request-id") or headers.get("x-deepseek-request-id")
        failure = http_failure(
            self.endpoint.title,
            response.status_code,
            parsed,
            text,
            retry_after=headers.get("retry-after"),
            request_id=request_id,
        )
        return self._redacted(failure)

    def _transport(self, part: str, error: Exception) -> LlmError:
        """LS-75; the text of the cause goes along."""
        said = one_line(str(telling(error)))
        message = f"{self.endpoint.title} {part} {self.endpoint.shown_url} failed"
        return self._redacted(LlmError(message + (f": {said}" if said else ""), "TRANSPORT"))

    def _redacted(self, error: LlmError) -> LlmError:
        """LS-75: providers and libraries quote what they were sent; the key is never shown."""
        key = self.endpoint.key
        if not key or key not in error.message:
            return error
        facts = error.failure
        clean = LlmError.of({**facts, "message": facts["message"].replace(key, "[key]")})
        clean.hint = error.hint
        return clean


def telling(error: BaseException) -> BaseException:
    """The first of a chain of causes that says something; the outer ones may only name their kind."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return cause or error


async def _read(exchange: _Exchange) -> list[Chunk]:
    assert exchange.bytes is not None
    chunks: list[Chunk] = []
    while not chunks and not exchange.answer.over:
        data = await anext(exchange.bytes, None)
        chunks = exchange.answer.close() if data is None else exchange.answer.feed(data)
    return chunks


async def _drain(exchange: _Exchange) -> None:
    """Read to the end of the body, which usually is there already: then the connection can be used again."""
    import httpx

    assert exchange.bytes is not None
    with trio.move_on_after(_DRAIN_SECONDS):
        try:
            while await anext(exchange.bytes, None) is not None:
                pass
        except (httpx.HTTPError, httpx.StreamError):
            return  # the answer is complete; what becomes of its connection does not matter


async def _close(exchange: _Exchange) -> None:
    """LS-42: the connection is closed before control returns, and no error of that masks another.

    The library reads through a chain of generators that only end together: by a read that is cancelled.
    """
    response = exchange.response
    if response is None or exchange.bytes is None:
        return
    with trio.CancelScope(shield=True) as ended, contextlib.suppress(Exception):
        ended.cancel()
        while await anext(exchange.bytes, None) is not None:
            pass
    bound = trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS)
    with bound, contextlib.suppress(Exception):  # LS-42
        await response.aclose()
