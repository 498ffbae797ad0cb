"""What an adapter is: the way to one or more provider routes (docs/spec/llm-streaming.md, Types and LS-20 to
LS-24)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NotRequired, Protocol, TypedDict

from dsh.core.messages import Chunk, Request


class ProviderInfo(TypedDict):
    """A route; `name` is for people."""

    id: str
    name: str


class ModelInfo(TypedDict):
    """A model of the advisory catalogue (LS-21)."""

    provider: str
    id: str
    name: str
    description: NotRequired[str]


class Effort(TypedDict):
    id: str
    name: str
    description: NotRequired[str]


class ContextInfo(TypedDict):
    """`contextWindow` in tokens, request and answer together."""

    contextWindow: int


class ReasoningInfo(TypedDict):
    efforts: list[Effort]
    defaultEffort: NotRequired[str]


class ResolvedModel(ModelInfo):
    """What is known of exactly this model; `context` and `reasoning` are absent when nothing is."""

    context: NotRequired[ContextInfo]
    reasoning: NotRequired[ReasoningInfo]


class Adapter(Protocol):
    """One way of reaching models. All of it runs under trio; a cancel scope of the caller ends any of it."""

    def provider_info(self, provider: str) -> ProviderInfo: ...

    async def list_models(self, provider: str) -> list[ModelInfo]: ...

    async def resolve_model(self, provider: str, model: str) -> ResolvedModel: ...

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Make exactly one provider request (LS-6). Raises LlmError, or ends with a finish chunk (LS-5)."""
        ...


class BaseAdapter:
    """The defaults of the contract; a subclass adds `stream`."""

    def provider_info(self, provider: str) -> ProviderInfo:
        return {"id": provider, "name": provider}

    async def list_models(self, provider: str) -> list[ModelInfo]:
        return []

    async def resolve_model(self, provider: str, model: str) -> ResolvedModel:
        return {"provider": provider, "id": model, "name": model}
