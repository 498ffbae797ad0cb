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


def spoken(message: Message, **keywords: Any) -> Any:
    """What an assistant message is on the wire, without what is put around it."""
    [made] = [m for m in wire(message, **keywords) if m["role"] == "assistant"]
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
    assert wire(system, message) == [{"role": "system", "content": "ab"}, {"role": "user", "content": "ab"}]


@pytest.mark.rule("LS-53")
def test_tool_results() -> None:
    results = (result("1", text("a"), text("b"), isError=True), result("2"), result("3", text("")))
    asked = (user("hi"), assistant(call("1"), call("2"), call("3")))
    answers = [
        {"role": "tool", "tool_call_id": "1", "content": "ab"},
        {"role": "tool", "tool_call_id": "2", "content": "(no output)"},
        {"role": "tool", "tool_call_id": "3", "content": "(no output)"},
    ]
    assert wire(*asked, {"role": "user", "content": list(results)})[2:] == answers
    both: Message = {"role": "user", "content": [text("said"), *results]}
    assert wire(*asked, both)[2:] == [*answers, {"role": "user", "content": "said"}]
    assert wire({"role": "user", "content": []}) == [{"role": "user", "content": "(no text)"}]


@pytest.mark.rule("LS-54", "LS-4")
@pytest.mark.parametrize("dialect", [DEEPSEEK, CHAT, OPENAI])
def test_assistant_messages(dialect: Any) -> None:
    def arguments(raw: str) -> str:
        return str(spoken(assistant(call("c", raw)), dialect=dialect)["tool_calls"][0]["function"]["arguments"])

    made = spoken(assistant(text("a"), call("c", '{"b" : 1}')), dialect=dialect)
    made.pop("reasoning_content", None)
    called = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"b" : 1}'}}
    assert made == {"role": "assistant", "content": "a", "tool_calls": [called]}
    for bad in ('{"a": 1,\n "b":"\\ud83d"} trailing', '{"a":"\\ud83d"}', "[1]", '{"a":NaN}', "[" * 5000):
        assert json.loads(arguments(bad)) == {"invalid_json": bad}  # else the session would be refused for ever
    assert arguments('{"a":"\\ud83d\\udc3b"}') == '{"a":"\\ud83d\\udc3b"}'
    assert arguments("") == arguments(" ") == "{}"
    assert spoken(assistant(call()), dialect=dialect)["content"] == ""
    assert wire(user("a"), assistant(), assistant(thought("r")), assistant(text(" ")), dialect=dialect) == [
        {"role": "user", "content": "a"}
    ]


@pytest.mark.rule("LS-55")
def test_reasoning_goes_back_with_calls_only() -> None:  # case P5
    assert "reasoning_content" not in spoken(assistant(thought("r"), text("a")))
    assert spoken(assistant(thought("r1"), text("a"), thought("r2"), call()))["reasoning_content"] == "r1r2"
    assert spoken(assistant(thought(""), call()))["reasoning_content"] == " "
    assert "reasoning_content" not in spoken(assistant(thought(""), call()), dialect=CHAT)


@pytest.mark.rule("LS-55")
def test_reasoning_goes_back_only_to_who_made_it() -> None:  # case P5
    elsewhere = assistant(thought("r"), call(), provider="other", replayState={"reasoningField": "reasoning_content"})
    assert "reasoning_content" not in spoken(elsewhere, dialect=CHAT)
    assert spoken(elsewhere)["reasoning_content"] == " "  # nothing of it; but DeepSeek refuses a call without any
    untold = assistant(thought("r"), call())
    told = assistant(thought("r"), call(), replayState={"reasoningField": "reasoning_content"})
    other = assistant(thought("r"), call(), replayState={"reasoningField": "reasoning"})
    assert "reasoning_content" not in spoken(untold, dialect=CHAT)
    assert "reasoning_content" not in spoken(other, dialect=CHAT)
    assert spoken(told, dialect=CHAT)["reasoning_content"] == "r"


def results(*names: str) -> list[Message]:
    return [{"role": "user", "content": [result(name, text(f"out {name}"))]} for name in names]


@pytest.mark.rule("LS-55a")
def test_every_call_is_answered_straight_after_it_and_in_order() -> None:
    made = wire(user("a"), assistant(call("1"), call("2"), call("3")), *results("3"), user("b"), *results("1"))
    assert [(m["role"], m.get("tool_call_id"), m["content"][:10]) for m in made[2:]] == [
        ("tool", "1", "out 1"),
        ("tool", "2", "(no result"),
        ("tool", "3", "out 3"),
        ("user", None, "b"),
    ]
    assert "may have had effects" in made[3]["content"]


@pytest.mark.rule("LS-55b")
def test_a_result_without_its_call_is_told_as_text() -> None:
    made = wire(user("a"), *results("1"), assistant(call("2")), *results("2", "2"))
    gone = "Result of a tool call that is not part of the conversation any more:\nout "
    assert [m["content"] for m in made] == ["a", f"{gone}1", "", "out 2", f"{gone}2"]
    assert [m["role"] for m in made] == ["user", "user", "assistant", "tool", "user"]


@pytest.mark.rule("LS-55c")
def test_ids_that_another_model_made() -> None:
    odd = "functions.bash:0" + "x" * 60
    foreign = [assistant(call(odd), call(odd), provider="other"), *results(odd, odd)]
    made = wire(user("a"), *foreign, assistant(call("mine"), model="old"), *results("mine"), assistant(call(odd)))
    ids = [[c["id"] for c in m["tool_calls"]] for m in made if m["role"] == "assistant"]
    assert ids == [["call00001", "call00002"], ["call00003"], [odd]]
    assert [m["tool_call_id"] for m in made if m["role"] == "tool"] == ["call00001", "call00002", "call00003", odd]
    doubled = spoken(assistant(call("c"), call("c"), call("")))
    assert [c["id"] for c in doubled["tool_calls"]] == ["c", "call00002", "call00003"]


@pytest.mark.rule("LS-55d")
@pytest.mark.parametrize(
    ("name", "sent"),
    [("a_b-1", "a_b-1"), ("", "unnamed"), ("a.b c\u00e9", "a_b_c_"), ("x" * 65, "x" * 64), ("-", "-")],
)
def test_names_that_no_tool_may_have(name: str, sent: str) -> None:
    block = {"type": "tool-call", "id": "c", "name": name, "arguments": "{}"}
    assert spoken(assistant(block))["tool_calls"][0]["function"]["name"] == sent


@pytest.mark.rule("LS-55e")
def test_the_user_begins_and_the_assistant_never_has_the_last_word() -> None:
    begins = wire(assistant(text("a")), user("b"))
    assert [m["role"] for m in begins] == ["user", "assistant", "user"]
    assert [m["role"] for m in wire()] == ["user"]
    ends = wire(user("a"), assistant(text("b")))
    assert [m["content"] for m in ends] == ["a", "b", "Go on."]
    goes_on = wire(user("a"), assistant(text("b")), assistant(text("c")), user("d"))
    assert [m["content"] for m in goes_on] == ["a", "b", "Go on.", "c", "d"]


@pytest.mark.rule("LS-55a", "LS-56")
def test_a_result_that_comes_late_is_put_where_it_belongs() -> None:
    history: list[Any] = [freeze(m) for m in (user("a"), assistant(call("1")), user("b"), *results("1"), user("c"))]
    encoder = Encoder(CHAT)
    for end in range(1, len(history) + 1):
        made = request(*history[:end])
        assert encoder.encode(made) == encode(CHAT, made)


def test_what_goes_out_is_clean_utf8() -> None:  # case P7
    # built by hand, past the log that would have refused it
    from dsh.core.messages import Request

    made = Request({"provider": "p", "model": "m"}, ({"role": "user", "content": [text("a\ud83d\udc3b \ud83d")]},))
    sent = json.loads(encode(CHAT, made).decode("utf-8"))
    assert sent["messages"] == [{"role": "user", "content": "a🐻 \ufffd"}]
