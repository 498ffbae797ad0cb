"""What passes in and out of the loop: inbox items, contexts, and the decisions of its interception points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from dsh.core.errors import DshError
from dsh.core.ids import AgentMessageId
from dsh.core.lossless import NotJson, freeze
from dsh.core.messages import Block, HookContext, Source, content_fault
from dsh.kernel.signal import Signal

PREFIX_DELIMITER = "\n\n## My request:\n"
USER: Source = {"kind": "user"}
ANONYMOUS_PLUGIN: Source = {"kind": "plugin", "plugin": ""}


class PromptDecision(TypedDict):
    """`allow` (optionally with new `content`, and with the contexts to add) or `block` with a `reason`."""

    kind: Literal["allow", "block"]
    content: NotRequired[list[Block]]
    additionalContexts: NotRequired[list[HookContext]]
    reason: NotRequired[str]


class ContinuationReason(TypedDict):
    content: list[Block]
    source: Source


class ContinuationDecision(TypedDict):
    action: Literal["stop", "continue"]
    reason: NotRequired[ContinuationReason]


class RequestErrorDecision(TypedDict):
    action: Literal["fail", "retry"]


class InputInvalid(DshError):
    code = "INPUT_INVALID"


class InputNotJson(DshError):
    code = "INPUT_NOT_JSON"


@dataclass(frozen=True, eq=False, slots=True)
class Item:
    """One accepted input, frozen. `steering` says which FIFO it is in (AL-3), `own` that this agent's `send` accepted
    it, `stored` that it has a row in the database."""

    id: AgentMessageId
    content: list[Block]
    source: Source
    contexts: list[HookContext]
    wakeup: bool
    steering: bool
    meta: Any = field(default=None, repr=False)
    own: bool = False
    stored: bool = False

    @property
    def row(self) -> str | None:
        """What the event that this becomes takes out of the inbox."""
        return self.id if self.stored else None

    def message(self) -> dict[str, Any]:
        """The `AgentMessage` of inbox notifications: everything but `meta`."""
        return freeze(  # type: ignore[no-any-return]
            {
                "id": self.id,
                "content": self.content,
                "source": self.source,
                "contexts": self.contexts,
                "steering": self.steering,
                "wakeup": self.wakeup,
            }
        )


def accept(content: Any, source: Any, contexts: Any, meta: Any) -> tuple[Any, Any, Any, Any]:
    """Check and freeze an input as a whole (AL-1); INPUT_NOT_JSON, else INPUT_INVALID for a wrong shape."""
    try:
        content, source, contexts, meta = freeze(content), freeze(source), freeze(contexts), freeze(meta)
    except NotJson as error:
        raise InputNotJson(error.message) from error
    if fault := content_fault(content):
        raise InputInvalid(fault)
    if not _is_source(source):
        raise InputInvalid("source must be an object with a kind")
    if not isinstance(contexts, list):
        raise InputInvalid("contexts must be a list")
    for context in contexts:
        if not isinstance(context, dict) or not _is_source(context.get("source")):
            raise InputInvalid("a context needs a source, an object with a kind")
        if fault := content_fault(context.get("content")):
            raise InputInvalid(f"a context's {fault}")
    return content, source, contexts, meta


def _is_source(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("kind"), str)


def prompt_data(content: Any, source: Source, contexts: list[HookContext], meta: Any) -> dict[str, Any]:
    """The payload of a prompt message, with prefix contexts baked in (AL-10)."""
    prefix = [c for c in contexts if c.get("placement") == "prompt-prefix"]
    data: dict[str, Any] = {"content": content, "source": source}
    if prefix:
        baked = [b for c in prefix for b in c["content"]]
        data["content"] = [*baked, {"type": "text", "text": PREFIX_DELIMITER}, *content]
        data["envelope"] = {
            "displayContent": content,
            "prefixContexts": [{k: c[k] for k in ("source", "meta") if k in c} for c in prefix],
        }
    if meta is not None:
        data["meta"] = meta
    return data


def context_data(context: HookContext) -> dict[str, Any]:
    """The payload of a separate context message (AL-11, AL-12)."""
    return prompt_data(context["content"], context["source"], [], context.get("meta"))


def interrupt_reason_of(signal: Signal) -> dict[str, str] | None:
    """Why a turn's signal fired; None for a live one or a reason of another kind (AL-72)."""
    return {"kind": signal.reason} if signal.reason in ("user", "parent", "disposed") else None
