"""The request body, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsh.core.lossless import freeze
from dsh.core.messages import Message
from dsh.llm.adapters.chat_request import DIALECTS, Encoder
from dsh.llm.failure import LlmError
from tests.llm.helpers import request, user

DEEPSEEK, CHAT, OPENAI = (DIALECTS[n] for n in ("deepseek", "chat", "openai"))


def encode(dialect: Any, made: Any, thinking: str | None = None) -> bytes:
    return Encoder(dialect, thinking).encode(made)


def body(dialect: Any, made: Any, thinking: str | None = None) -> Any:
    return json.loads(encode(dialect, made, thinking))


def wire(*messages: Message, dialect: Any = DEEPSEEK, **keywords: Any) -> list[Any]:
    made: list[Any] = body(dialect, request(*messages, **keywords))["messages"]
    return made


def assistant(*content: Any, provider: str = "p", **provenance: Any) -> Message:
    made: Any = {"provider": provider, "model": "m", **provenance}
    return {"role": "assistant", "content": list(content), "provenance": made}


def call(call_id: str = "c", arguments: str = "{}") -> Any:
    return {"type": "tool-call", "id": call_id, "name": "bash", "arguments": arguments}


def text(said: str) -> Any:
    return {"type": "text", "text": said}


def thought(said: str) -> Any:
    return {"type": "reasoning", "text": said}


def result(call_id: str, *content: Any, **rest: Any) -> Any:
    return {"type": "tool-result", "toolCallId": call_id, "content": list(content), **rest}


def test_the_whole_body() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    made = encode(
        DEEPSEEK,
        request(
            user("hé"),
            system="sys",
            tools=({"name": "b", "description": "d", "parameters": schema},),
            config={"temperature": 0, "maxTokens": 5, "stop": ["x"], "reasoningEffort": "max"},
            session_id="s-1",
        ),
    )
    assert made.decode() == (
        '{"model":"m","messages":[{"role":"system","content":"sys"},{"role":"user","content":"hé"}],'
        '"stream":true,"stream_options":{"include_usage":true},'
        '"thinking":{"type":"enabled"},"reasoning_effort":"max",'
        '"tools":[{"type":"function","function":{"name":"b","description":"d",'
        '"parameters":{"type":"object","properties":{"z":{},"a":{}}}}}],'
        '"temperature":0,"max_tokens":5,"stop":["x"]}'
    )


@pytest.mark.rule("CO-22")
def test_absent_options_are_absent() -> None:
    assert list(body(DEEPSEEK, request())) == ["model", "messages", "stream", "stream_options"]


@pytest.mark.rule("LS-56")
def test_an_appended_history_keeps_its_bytes() -> None:
    history: list[Message] = [
        user("a"),
        assistant(thought("r"), call()),
        {"role": "user", "content": [result("c", text("o"))]},
    ]
    short = encode(DEEPSEEK, request(*history))
    longer = encode(DEEPSEEK, request(*history, user("b")))
    end = short.index(b'],"stream"')
    assert longer[:end] == short[:end]
    assert encode(DEEPSEEK, request(*history)) == short


@pytest.mark.rule("LS-56")
def test_one_encoder_writes_a_growing_history_as_a_fresh_one_does() -> None:
    history: list[Any] = [freeze(user("a")), freeze(assistant(thought("r"), call("c1")))]
    more: list[Any] = [freeze({"role": "user", "content": [result("c1", text("é"))]}), freeze(assistant(text("b")))]
    edited: Any = user("by hand")  # may change between two requests without being another object
    encoder = Encoder(DEEPSEEK)
    for messages in (
        history,
        [*history, *more],
        [*history, *more],
        more,
        [*more, edited],
        [*more, edited, *more],
        history,
    ):
        edited["content"] = [text(edited["content"][0]["text"] + "!")]
        for system in (None, "sys"):
            made = request(*messages, system=system)
            assert encoder.encode(made) == encode(DEEPSEEK, made)
    other = request(*history, config={"provider": "another"})
    assert encoder.encode(other) == encode(DEEPSEEK, other) != encode(DEEPSEEK, request(*history))


@pytest.mark.rule("LS-51")
@pytest.mark.parametrize(
    ("effort", "configured", "purpose", "wanted"),
    [
        (None, None, None, {}),
        (None, "enabled", None, {"thinking": {"type": "enabled"}}),
        (None, "disabled", None, {"thinking": {"type": "disabled"}}),
        ("off", None, None, {"thinking": {"type": "disabled"}}),
        ("off", "disabled", None, {"thinking": {"type": "disabled"}}),
        ("high", None, None, {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
        ("max", "enabled", "compaction", {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
        ("max", "enabled", "session-title", {"thinking": {"type": "disabled"}}),
    ],
)
def test_thinking(effort: str | None, configured: str | None, purpose: Any, wanted: dict[str, Any]) -> None:
    config = {"reasoningEffort": effort} if effort else {}
    made = body(DEEPSEEK, request(config=config, purpose=purpose), configured)
    assert {k: made[k] for k in ("thinking", "reasoning_effort") if k in made} == wanted


@pytest.mark.rule("LS-50", "LS-51")
@pytest.mark.parametrize(("effort", "configured"), [("low", None), ("high", "disabled"), ("", None)])
def test_efforts_that_do_not_exist(effort: str, configured: str | None) -> None:
    with pytest.raises(LlmError) as caught:
        body(DEEPSEEK, request(config={"reasoningEffort": effort}), configured)
    assert caught.value.code == "UNSUPPORTED_REASONING_EFFORT"


def test_other_dialects_have_no_thinking_switch() -> None:
    made = body(CHAT, request(config={"reasoningEffort": "low", "maxTokens": 3}), "enabled")
    assert (made["reasoning_effort"], made["max_tokens"]) == ("low", 3)
    assert "thinking" not in made
    assert body(OPENAI, request(config={"maxTokens": 3}))["max_completion_tokens"] == 3
    titling = body(CHAT, request(config={"reasoningEffort": "low"}, purpose="session-title"))
    assert "reasoning_effort" not in titling


@pytest.mark.rule("LS-52")
def test_texts_are_joined_and_other_blocks_skipped() -> None:
    message: Any = {"role": "user", "content": [text("a"), {"type": "hologram", "x": 1}, text("b")]}
    assert wire(message) == [{"role": "user", "content": "ab"}]
    system: Any = {"role": "system", "content": [text("a"), text("b")]}
    assert wire(system) == [{"role": "system", "content": "ab"}]


@pytest.mark.rule("LS-53")
def test_tool_results() -> None:
    results = (result("1", text("a"), text("b"), isError=True), result("2"), result("3", text("")))
    only: Message = {"role": "user", "content": list(results)}
    assert wire(only) == [
        {"role": "tool", "tool_call_id": "1", "content": "ab"},
        {"role": "tool", "tool_call_id": "2", "content": "(no output)"},
        {"role": "tool", "tool_call_id": "3", "content": "(no output)"},
    ]
    both: Message = {"role": "user", "content": [results[0], text("said")]}
    assert wire(both) == [
        {"role": "user", "content": "said"},
        {"role": "tool", "tool_call_id": "1", "content": "ab"},
    ]
    assert wire({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


@pytest.mark.rule("LS-54", "LS-4")
def test_assistant_messages() -> None:
    raw = '{"a": 1,\n "b":"\\ud83d"} trailing'
    assert wire(assistant(text("a"), call("c", raw))) == [
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": raw}}],
        }
    ]
    sent = wire(assistant(text("a"), call("c", raw)), dialect=CHAT)[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"invalid_json": raw}  # llama.cpp would refuse this session for ever
    valid = wire(assistant(call("c", '{"b" : 1}')), dialect=CHAT)[0]["tool_calls"][0]["function"]["arguments"]
    assert valid == '{"b" : 1}'
    assert wire(assistant()) == [{"role": "assistant", "content": ""}]
    assert wire(assistant(call("c", "")))[0]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.rule("LS-55")
def test_reasoning_goes_back_with_calls_only() -> None:  # case P5
    assert "reasoning_content" not in wire(assistant(thought("r"), text("a")))[0]
    assert wire(assistant(thought("r1"), text("a"), thought("r2"), call()))[0]["reasoning_content"] == "r1r2"
    assert "reasoning_content" not in wire(assistant(thought(""), call()))[0]


@pytest.mark.rule("LS-55")
def test_reasoning_goes_back_only_to_who_made_it() -> None:  # case P5
    elsewhere = assistant(thought("r"), call(), provider="other", replayState={"reasoningField": "reasoning_content"})
    for dialect in (DEEPSEEK, CHAT):
        assert "reasoning_content" not in wire(elsewhere, dialect=dialect)[0]
    untold = assistant(thought("r"), call())
    told = assistant(thought("r"), call(), replayState={"reasoningField": "reasoning_content"})
    other = assistant(thought("r"), call(), replayState={"reasoningField": "reasoning"})
    assert "reasoning_content" not in wire(untold, dialect=CHAT)[0]
    assert "reasoning_content" not in wire(other, dialect=CHAT)[0]
    assert wire(told, dialect=CHAT)[0]["reasoning_content"] == "r"


def test_what_goes_out_is_clean_utf8() -> None:  # case P7
    # built by hand, past the log that would have refused it
    from dsh.core.messages import Request

    made = Request({"provider": "p", "model": "m"}, ({"role": "user", "content": [text("a\ud83d\udc3b \ud83d")]},))
    sent = json.loads(encode(CHAT, made).decode("utf-8"))
    assert sent["messages"] == [{"role": "user", "content": "a🐻 \ufffd"}]
