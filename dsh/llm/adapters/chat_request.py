"""The request side of chat completions: our request as the JSON body a server wants (LS-50 to LS-57).

Dialects differ in a handful of named points, and `Dialect` is the list of them; the rest is common. The body
is built in one fixed key order and history is only ever appended to, so two requests of a session share their
bytes up to the first new message: providers cache by exact prefix (LS-56).
"""

from __future__ import annotations

import operator
from itertools import takewhile
from typing import Any, NamedTuple

from dsh.core.lossless import FrozenDict, dumps, mend_surrogates
from dsh.core.messages import Message, Request
from dsh.llm.adapters.chat_history import Conversation, Reader
from dsh.llm.failure import LlmError


class Dialect(NamedTuple):
    """What is special about a kind of server.

    `thinking`: it takes DeepSeek's `thinking` switch. `efforts`: the reasoning efforts that may be asked for.
    `max_tokens_field`: its name for the output limit. `always_replay_reasoning`: reasoning goes back with
    tool calls whatever the replay state says, since the API refuses the history otherwise (P5); other servers
    get it back only where they gave it under that very name.
    """

    name: str
    thinking: bool
    efforts: tuple[tuple[str, str], ...]
    max_tokens_field: str = "max_tokens"
    always_replay_reasoning: bool = False


_OPENAI_EFFORTS = (
    ("none", "None"),
    ("minimal", "Minimal"),
    ("low", "Low"),
    ("medium", "Medium"),
    ("high", "High"),
    ("xhigh", "Extra high"),
)

DIALECTS: dict[str, Dialect] = {
    d.name: d
    for d in (
        Dialect(
            "deepseek",
            thinking=True,
            efforts=(("off", "Off"), ("high", "High"), ("max", "Max")),
            always_replay_reasoning=True,
        ),
        # OpenAI's reasoning models refuse the older name
        Dialect("openai", thinking=False, efforts=_OPENAI_EFFORTS, max_tokens_field="max_completion_tokens"),
        Dialect("chat", thinking=False, efforts=_OPENAI_EFFORTS),
    )
}


def thinking_options(dialect: Dialect, request: Request, configured: str | None) -> dict[str, Any]:
    """`thinking` and `reasoning_effort` (LS-50, LS-51); `configured` is the deployment's `thinking`."""
    effort = request.config.get("reasoningEffort")
    titling = request.purpose == "session-title"
    if not dialect.thinking:
        return {"reasoning_effort": effort} if effort is not None and not titling else {}
    if titling:
        return {"thinking": {"type": "disabled"}}
    if effort is None:
        return {"thinking": {"type": configured}} if configured else {}
    known = {e for e, _ in dialect.efforts}
    if effort not in known or (configured == "disabled" and effort != "off"):
        raise LlmError(f"reasoning effort {effort!r} is not supported here", "UNSUPPORTED_REASONING_EFFORT")
    if effort == "off":
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled"}, "reasoning_effort": effort}


def options(dialect: Dialect, request: Request, configured_thinking: str | None) -> dict[str, Any]:
    """What follows the messages in a body."""
    config = request.config
    made: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    made.update(thinking_options(dialect, request, configured_thinking))
    if request.tools:
        made["tools"] = [
            {"type": "function", "function": {k: t.get(k) for k in ("name", "description", "parameters")}}
            for t in request.tools
        ]
    for ours, theirs in (
        ("temperature", "temperature"),
        ("maxTokens", dialect.max_tokens_field),
        ("stop", "stop"),
    ):
        if ours in config:
            made[theirs] = config[ours]  # type: ignore[literal-required]
    return made


class Encoder:
    """Makes the bodies of one endpoint's requests, each at the cost of what is new in it.

    A conversation grows at its end, so the bytes of the messages that the last request consisted of are taken from it:
    as long as they are the very same objects, frozen, for the same model. The bytes are valid UTF-8, whatever a
    hand-built message holds (P7).
    """

    def __init__(self, dialect: Dialect, configured_thinking: str | None = None) -> None:
        self._dialect = dialect
        self._thinking = configured_thinking
        self._conversation = self._fresh("", "")
        self._known: tuple[Message, ...] = ()
        self._text = bytearray()  # what the known messages became

    def encode(self, request: Request) -> bytes:
        """The body; an option that is not set is absent (CO-22)."""
        if not self._goes_on(request):
            self._conversation = self._fresh(request.provider, request.model)
            self._known, self._text = (), bytearray()
        new = request.messages[len(self._known) :]
        conversation = self._conversation.copy()
        added = b",".join(map(_bytes, conversation.add(new)))
        end = b",".join(map(_bytes, conversation.end()))
        system = _bytes({"role": "system", "content": request.system}) if request.system else b""
        history = b",".join([part for part in (system, self._text, added, end) if part])
        if all(isinstance(message, FrozenDict) for message in new):
            self._conversation, self._known = conversation, request.messages
            self._text += b"," + added if self._text and added else added
        rest = _bytes(options(self._dialect, request, self._thinking)).removeprefix(b"{")
        return b"".join([b'{"model":', _bytes(request.model), b',"messages":[', history, b"],", rest])

    def _goes_on(self, request: Request) -> bool:
        """Whether a request begins with the known messages, for the same reader. A result that comes late may answer
        a call that is written already, so then all is written again."""
        messages, known = request.messages, self._known
        reader = self._conversation.reader
        if (request.provider, request.model) != (reader.provider, reader.model) or len(messages) < len(known):
            return False
        if not all(map(operator.is_, known, messages)):
            return False
        following = takewhile(lambda m: m["role"] != "assistant", messages[len(known) :])
        return not known or all(b["type"] != "tool-result" for m in following for b in m["content"])

    def _fresh(self, provider: str, model: str) -> Conversation:
        return Conversation(Reader(provider, model, self._dialect.always_replay_reasoning))


def _bytes(value: Any) -> bytes:
    return mend_surrogates(dumps(value)).encode()
