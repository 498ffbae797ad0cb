"""The request side of chat completions: our request as the JSON body a server wants (LS-50 to LS-57).

Dialects differ in a handful of named points, and `Dialect` is the list of them; the rest is common. The body
is built in one fixed key order and history is only ever appended to, so two requests of a session share their
bytes up to the first new message: providers cache by exact prefix (LS-56).
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from dsh.core.lossless import FrozenDict, dumps, loads, mend_surrogates
from dsh.core.messages import Block, Message, Request, text_of
from dsh.llm.failure import LlmError

NO_OUTPUT = "(no output)"


class Dialect(NamedTuple):
    """What is special about a kind of server.

    `thinking`: it takes DeepSeek's `thinking` switch. `efforts`: the reasoning efforts that may be asked for.
    `max_tokens_field`: its name for the output limit. `always_replay_reasoning`: reasoning goes back with
    tool calls whatever the replay state says, since the API refuses the history otherwise (P5); other servers
    get it back only where they gave it under that very name. `parses_arguments`: it parses the arguments of
    calls in the history and refuses the whole request if one is not JSON, as llama.cpp does: one bad call would end
    the session.
    """

    name: str
    thinking: bool
    efforts: tuple[tuple[str, str], ...]
    max_tokens_field: str = "max_tokens"
    always_replay_reasoning: bool = False
    parses_arguments: bool = False


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
        Dialect("chat", thinking=False, efforts=_OPENAI_EFFORTS, parses_arguments=True),
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

    A conversation grows at its end, so the bytes of the messages that the last request began with are taken from it:
    as long as they are the very same objects, frozen, for the same provider. The bytes are valid UTF-8, whatever a
    hand-built message holds (P7).
    """

    def __init__(self, dialect: Dialect, configured_thinking: str | None = None) -> None:
        self._dialect = dialect
        self._thinking = configured_thinking
        self._provider = ""
        self._known: tuple[Message, ...] = ()
        self._text = bytearray()  # what the known messages became

    def encode(self, request: Request) -> bytes:
        """The body; an option that is not set is absent (CO-22)."""
        provider, messages = request.provider, request.messages
        grown = provider == self._provider and len(messages) >= len(self._known)
        if not (grown and all(map(operator.is_, self._known, messages))):
            self._provider, self._known, self._text = provider, (), bytearray()
        first = known = len(self._known)
        new: list[bytes] = []
        for message in messages[first:]:
            new.append(b",".join(map(_bytes, _wire(self._dialect, provider, message))))
            if known == first + len(new) - 1 and isinstance(message, FrozenDict):
                known += 1
        system = [_bytes({"role": "system", "content": request.system})] if request.system else []
        history = b",".join([*system, *([self._text] if first else []), *new])
        for piece in new[: known - first]:
            self._text += b"," + piece if self._text else piece
        self._known = messages[:known]
        rest = _bytes(options(self._dialect, request, self._thinking)).removeprefix(b"{")
        return b"".join([b'{"model":', _bytes(request.model), b',"messages":[', history, b"],", rest])


def _bytes(value: Any) -> bytes:
    return mend_surrogates(dumps(value)).encode()


def _wire(dialect: Dialect, provider: str, message: Message) -> list[dict[str, Any]]:
    """What one message is on the wire; at least one message."""
    if message["role"] == "assistant":
        return [_assistant(dialect, provider, message)]
    if message["role"] == "user":
        return _user(message)
    return [{"role": "system", "content": text_of(message["content"])}]


def _user(message: Message) -> list[dict[str, Any]]:
    """LS-52, LS-53."""
    text = text_of(message["content"])
    results = [b for b in message["content"] if b["type"] == "tool-result"]
    wire: list[dict[str, Any]] = []
    if text or not results:
        wire.append({"role": "user", "content": text})
    for result in results:
        said = text_of(result.get("content", []))
        wire.append({"role": "tool", "tool_call_id": result["toolCallId"], "content": said or NO_OUTPUT})
    return wire


def _assistant(dialect: Dialect, provider: str, message: Message) -> dict[str, Any]:
    """LS-54, LS-55."""
    wire: dict[str, Any] = {"role": "assistant", "content": text_of(message["content"])}
    calls = [b for b in message["content"] if b["type"] == "tool-call"]
    if not calls:
        return wire
    if _wants_reasoning(dialect, provider, message):
        thought = "".join(b.get("text", "") for b in message["content"] if b["type"] == "reasoning")
        if thought:
            wire["reasoning_content"] = thought
    wire["tool_calls"] = [_call(dialect, b) for b in calls]
    return wire


def _wants_reasoning(dialect: Dialect, provider: str, message: Message) -> bool:
    """Only to the route that made it (P5); history without provenance goes to a dialect that insists."""
    provenance = message.get("provenance")
    if provenance is None:
        return dialect.always_replay_reasoning
    if provenance["provider"] != provider:
        return False
    state = provenance.get("replayState")
    told = isinstance(state, dict) and state.get("reasoningField") == "reasoning_content"
    return told or dialect.always_replay_reasoning


def _call(dialect: Dialect, block: Block) -> dict[str, Any]:
    """Arguments go back exactly as they came (LS-4), but for what a server may refuse: none at all, and, where it
    parses them, text that is not a JSON object, which goes back inside one. A call without a name gets one."""
    arguments = block["arguments"]
    if not arguments.strip():
        arguments = "{}"
    elif dialect.parses_arguments and not _is_object(arguments):
        arguments = dumps({"invalid_json": arguments})
    function = {"name": block["name"] or "unnamed", "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function}


def _is_object(text: str) -> bool:
    try:
        return isinstance(loads(text), dict)
    except ValueError:
        return False
