"""The strictest chat-completions server there could be: what it would refuse in a request's body.

Each rule is one that some server really has, as users of agents have reported it:

    UTF-8 JSON without surrogate halves, escaped ones included         every parser that is not Python's
    each `tool_calls` id has its `tool` message straight after, in     OpenAI, DeepSeek
      order; there are no other `tool` messages
    no empty and no blank content; `""` only beside tool calls         Anthropic's, Moonshot's, DeepSeek
    arguments of calls are the text of a JSON object                   vLLM, llama.cpp, Anthropic's
    names are 1 to 64 of A-Z a-z 0-9 _ -                               OpenAI, Bedrock
    ids that another model made are nine letters and digits, and       Mistral, OpenAI, Anthropic's
      none is there twice
    thinking beside every call, and never an empty text for it         DeepSeek (`insists`)
    no thinking that was not made here                                 whoever refuses unknown fields
    after the system's the first message is the user's, the last is    deepseek-reasoner, Mistral
      the user's or a tool's, and two of the assistant's never follow
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from itertools import pairwise
from typing import Any, NoReturn

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
FOREIGN_ID = re.compile(r"[A-Za-z0-9]{9}")
KEYS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "reasoning_content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}
BODY = {
    "model", "messages", "stream", "stream_options", "thinking", "reasoning_effort", "tools", "temperature",
    "max_tokens", "max_completion_tokens", "stop",
}  # fmt: skip


def refusals(
    raw: bytes, *, insists: bool = False, thoughts: Collection[str] = (), ids: Collection[str] | None = None
) -> list[str]:
    """What is wrong with a body, in words.

    `insists`: the server wants thinking beside calls. `thoughts` are the thinking texts that it made itself, `ids` the
    ids of calls that it made itself (None: any).
    """
    try:
        body = strict_json(raw.decode())
    except ValueError as error:
        return [f"the body is not clean JSON: {error}"]
    if not isinstance(body, dict):
        return ["the body is no object"]
    found = [f"unknown field {key}" for key in set(body) - BODY]
    found += [f"{key} is null" for key, value in body.items() if value is None]
    if not isinstance(body.get("model"), str) or not body["model"]:
        found.append("no model")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return [*found, "no messages"]
    found += _tools(body)
    found += _order(messages)
    for at, message in enumerate(messages):
        found += [f"messages[{at}] {what}" for what in _message(message, insists, thoughts)]
    return [*found, *_calls(messages, ids)]


def strict_json(text: str) -> Any:
    """What a strict reader gets from a text; ValueError where it gets nothing."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # a surrogate half has no UTF-8
    return value


def _tools(body: dict[str, Any]) -> list[str]:
    if "tools" not in body:
        return []
    tools = body["tools"]
    if not isinstance(tools, list) or not tools:
        return ["tools is empty"]
    names = [t["function"]["name"] for t in tools]
    found = [f"tool name {name!r}" for name in names if not NAME.fullmatch(name)]
    return found + (["a tool is there twice"] if len(set(names)) != len(names) else [])


def _order(messages: list[dict[str, Any]]) -> list[str]:
    roles = [m.get("role") for m in messages]
    found = [f"messages[{at}] has role {role!r}" for at, role in enumerate(roles) if role not in KEYS]
    spoken = roles[1:] if roles[0] == "system" else roles
    if "system" in spoken:
        found.append("a second system message")
    if not spoken or spoken[0] != "user":
        found.append("the first message is not the user's")
    if spoken and spoken[-1] == "assistant":
        found.append("the last message is the assistant's")
    if any(a == b == "assistant" for a, b in pairwise(spoken)):
        found.append("two assistant messages in a row")
    return found


def _message(message: dict[str, Any], insists: bool, thoughts: Collection[str]) -> list[str]:
    found = [f"has the field {key}" for key in set(message) - KEYS.get(str(message.get("role")), set(message))]
    content = message.get("content")
    calls = message.get("tool_calls")
    if not isinstance(content, str):
        found.append("has no text as content")
    elif not content.strip() and not (calls and content == ""):
        found.append("has empty content")
    if calls == [] or (calls is not None and not isinstance(calls, list)):
        found.append("has no list of calls")
    thought = message.get("reasoning_content")
    if insists and calls and not thought:
        found.append("The `reasoning_content` in the thinking mode must be passed back to the API.")
    if thought is not None and thought not in thoughts and not (insists and calls and thought == " "):
        found.append(f"has thinking that was not made here: {thought!r}")
    return found


def _calls(messages: list[dict[str, Any]], own: Collection[str] | None) -> list[str]:
    found: list[str] = []
    waiting: list[str] = []
    foreign: set[str] = set()
    for at, message in enumerate(messages):
        if message.get("role") == "tool":
            if not waiting or message.get("tool_call_id") != waiting.pop(0):
                found.append(f"messages[{at}] answers no call, or not in order")
                waiting = []
            continue
        if waiting:
            found.append(f"messages[{at}] stands where results of {waiting} should")
        waiting = []
        for call in message.get("tool_calls") or []:
            id_, function = call.get("id"), call.get("function", {})
            if set(call) != {"id", "type", "function"} or call["type"] != "function" or not isinstance(id_, str):
                found.append(f"messages[{at}] has a call that is none")
                continue
            if not id_ or id_ in waiting:
                found.append(f"messages[{at}] has an empty or repeated id {id_!r}")
            if own is not None and id_ not in own:
                if not FOREIGN_ID.fullmatch(id_) or id_ in foreign:
                    found.append(f"messages[{at}] has an id that not every server takes, or twice: {id_!r}")
                foreign.add(id_)
            waiting.append(id_)
            if not isinstance(function.get("name"), str) or not NAME.fullmatch(function["name"]):
                found.append(f"messages[{at}] calls {function.get('name')!r}")
            try:
                fine = isinstance(strict_json(function["arguments"]), dict)
            except (ValueError, KeyError, TypeError, RecursionError):
                fine = False
            if not fine:
                found.append(f"messages[{at}] has arguments that are no JSON object: {function.get('arguments')!r}")
    return found + ([f"results of {waiting} are missing at the end"] if waiting else [])
