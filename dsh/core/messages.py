"""Blocks, messages, chunks and requests as they stand on the wire and in the log (docs/spec/core.md).

All of these are JSON objects; the `TypedDict`s document and type them. `Request` is the one behaviour object: a fully
assembled, frozen model call.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NotRequired, TypedDict, cast

from dsh.core.kinds import content_block
from dsh.core.lossless import FrozenDict, dumps, same


class Block(TypedDict):
    """A typed piece of content, told apart by `type`: text, reasoning, tool-call, tool-result, or a plugin's."""

    type: str
    text: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]
    toolCallId: NotRequired[str]
    content: NotRequired[list[Block]]
    isError: NotRequired[bool]


class Source(TypedDict):
    """Who produced a message; only `kind == "user"` is human authority."""

    kind: str
    plugin: NotRequired[str]


class HookContext(TypedDict):
    """Model-facing context from a listener or a tool, or attached to an inbox message; `source` is required (CO-16)."""

    content: list[Block]
    source: Source
    placement: NotRequired[Literal["separate", "prompt-prefix"]]
    meta: NotRequired[Any]


class Provenance(TypedDict):
    """Route that made an assistant message, and its adapter's private replay state (CO-15)."""

    provider: str
    model: str
    replayState: NotRequired[Any]


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: list[Block]
    provenance: NotRequired[Provenance]


class ToolSchema(TypedDict):
    """A tool as the model sees it; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: dict[str, Any]


class LlmFailure(TypedDict):
    """Facts of a provider failure (LS-7). `providerRetryAfterMs` is in milliseconds."""

    message: str
    code: str
    status: NotRequired[int]
    providerRetryAfterMs: NotRequired[float]
    requestId: NotRequired[str]


class TokenUsage(TypedDict):
    """Tokens of one call; the three input figures are disjoint, `reasoningTokens` is inside `outputTokens`."""

    inputTokens: int
    outputTokens: int
    cacheReadTokens: NotRequired[int]
    cacheWriteTokens: NotRequired[int]
    reasoningTokens: NotRequired[int]


class FinishReason(TypedDict):
    kind: str
    failure: NotRequired[LlmFailure]


class Chunk(TypedDict):
    """A streamed fragment (LS-1 to LS-3), told apart by `type`."""

    type: str
    index: NotRequired[int]
    blockType: NotRequired[str]
    text: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    argumentsDelta: NotRequired[str]
    block: NotRequired[Block]
    usage: NotRequired[TokenUsage]
    reason: NotRequired[FinishReason]
    replayState: NotRequired[Any]


class CallConfig(TypedDict):
    """Route, effort and sampling of a request (`LlmCallConfig`). Absent fields are absent, never null (CO-22)."""

    provider: str
    model: str
    reasoningEffort: NotRequired[str]
    temperature: NotRequired[float]
    maxTokens: NotRequired[int]
    stop: NotRequired[list[str]]


CONFIG_FIELDS = ("provider", "model", "reasoningEffort", "temperature", "maxTokens", "stop")


_OPTIONAL_PARTS = ("system", "tools", "messagePrefix")


class EpochHeader(TypedDict):
    """The logged request envelope; the last three are absent, never empty (SE-30)."""

    config: CallConfig
    system: NotRequired[str]
    tools: NotRequired[list[ToolSchema]]
    messagePrefix: NotRequired[list[Message]]


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """One fully assembled model call (`GenerateOptions`), deeply immutable: every JSON value in it is frozen.

    `session_id` serves listeners and the replay adapter only (CO-29). `loop_built` marks a conversation request of
    the agent loop in this process: it is no field of the wire, and a copy made by `dataclasses.replace` through
    `changed()` does not have it (LS-31).
    """

    config: CallConfig
    messages: tuple[Message, ...]
    system: str | None = None
    tools: tuple[ToolSchema, ...] = ()
    session_id: str | None = None
    purpose: Literal["compaction", "session-title"] | None = None
    loop_built: bool = field(default=False, repr=False)

    @property
    def provider(self) -> str:
        return self.config["provider"]

    @property
    def model(self) -> str:
        return self.config["model"]

    def changed(self, **fields: Any) -> Request:
        """A hand-changed copy, which is no longer the loop's own request."""
        return replace(self, **{**fields, "loop_built": False})


def same_config(a: CallConfig, b: CallConfig) -> bool:
    """Field-wise equality; an absent `stop` differs from an empty one (CO-23)."""
    return all((f in a) == (f in b) and same(a.get(f), b.get(f)) for f in CONFIG_FIELDS)


def canonical(header: EpochHeader) -> EpochHeader:
    """A frozen header without the parts that are empty, which mean the same as absent ones (SE-30)."""
    if all(header.get(part, True) for part in _OPTIONAL_PARTS):
        return header
    kept = FrozenDict({k: v for k, v in header.items() if v or k not in _OPTIONAL_PARTS})
    return cast(EpochHeader, kept)


def same_header(a: EpochHeader, b: EpochHeader) -> bool:
    """SE-32: tools and prefix compare as JSON text, since a changed key order changes the bytes sent."""
    return (
        same_config(a["config"], b["config"])
        and a.get("system", "") == b.get("system", "")
        and all(
            a.get(part) is b.get(part) or dumps(a.get(part, [])) == dumps(b.get(part, []))
            for part in ("tools", "messagePrefix")
        )
    )


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "reasoning": ("text",),
    "tool-call": ("id", "name", "arguments"),
    "tool-result": ("toolCallId",),
}


def content_fault(value: Any) -> str | None:
    """What is wrong with a content list, None if nothing. A block of the four own kinds has its fields as texts, or
    no request could be made from it any more; one of another kind has a type, the rest is its owner's matter."""
    if not isinstance(value, list):
        return f"content is {what_it_is(value)} and must be a list of blocks"
    for number, block in enumerate(value):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            return f"content[{number}] is {what_it_is(block)} and must be a block, an object with a type"
        for field_ in _FIELDS.get(block["type"], ()):
            if not isinstance(block.get(field_), str):
                return f"content[{number}] is a {block['type']} block whose {field_} is no text"
        if block["type"] == "tool-result" and (inner := content_fault(block.get("content"))):
            return inner
    return None


_CHUNK_FIELDS: dict[str, tuple[tuple[str, type[Any]], ...]] = {
    "text-delta": (("index", int), ("text", str)),
    "reasoning-delta": (("index", int), ("text", str)),
    "tool-call-delta": (("index", int), ("argumentsDelta", str)),
    "block-start": (("index", int), ("blockType", str)),
    "block-end": (("index", int), ("block", dict)),
    "usage": (("usage", dict),),
    "finish": (("reason", dict),),
}


def chunk_fault(chunk: Any) -> str | None:
    """What keeps a chunk of a stream from being logged and assembled, None if nothing."""
    kind = chunk.get("type") if isinstance(chunk, dict) else None
    if not isinstance(kind, str):
        return f"a chunk is {what_it_is(chunk)} and must be an object with a type"
    fields = _CHUNK_FIELDS.get(kind)
    if fields is None:
        return f"{kind!r:.80} is no type of a chunk"
    for name, made in fields:
        if not isinstance(chunk.get(name), made):
            return f"a {kind} chunk has {what_it_is(chunk.get(name))} as its {name}"
    if kind == "block-end":
        return content_fault([chunk["block"]])
    if kind == "finish" and not isinstance(chunk["reason"].get("kind"), str):
        return "the reason of a finish chunk has no kind"
    return None


def what_it_is(value: Any) -> str:
    """A wrong value in a message for people: short, and safe for whatever it is."""
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    for kind, name, empty in ((str, "a text", "an empty text"), (dict, "an object", "{}"), (list, "a list", "[]")):
        if isinstance(value, kind):
            return name if value else empty
    return f"a {type(value).__name__}"


def model_text(content: list[Block]) -> str:
    """What a model that reads only text gets of a content list: the visible text, and what the owners of declared block
    kinds make of theirs."""
    return "".join(_model_text(b) for b in content)


def _model_text(block: Block) -> str:
    kind = block["type"]
    if kind == "text":
        return plain_text(block)
    as_text = content_block.facet(kind, "text")
    return str(as_text(block)) if as_text is not None else ""


def text_of(content: list[Block]) -> str:
    """The visible text of a content list: its text blocks, joined without a separator (HD-4)."""
    return "".join(plain_text(b) for b in content if b["type"] == "text")


def plain_text(block: Block) -> str:
    """The text of a block. A log may hold one where it is no text, and that must not keep a session from going on."""
    text: Any = block.get("text", "")
    return text if isinstance(text, str) else ""
