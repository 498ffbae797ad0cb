"""P5: thinking text must go back. P6: tool calls in odd pieces. P7: one emoji, two deltas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.provider import FakeProvider, Reply, raw, text
from tests.shell.process import Dsh


def stream(*deltas: dict[str, Any] | str, finish: str) -> Reply:
    """A body of these deltas, the last one with the finish reason; a str is an event as it stands."""
    events = []
    for number, given in enumerate(deltas, 1):
        if isinstance(given, str):
            events.append(f"data: {given}\n\n")
            continue
        choice: dict[str, Any] = {"index": 0, "delta": given}
        if number == len(deltas):
            choice["finish_reason"] = finish
        events.append(f"data: {json.dumps({'choices': [choice]})}\n\n")
    return raw("".join(events), "data: [DONE]\n\n")


def call(**fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, **fields}]}


THINKING = stream(
    {"role": "assistant", "content": None, "reasoning_content": ""},
    {"reasoning_content": "look at "},
    {"reasoning_content": "the file"},
    call(id="c1", type="function", function={"name": "bash", "arguments": '{"command":"echo 1"}'}),
    {},
    finish="tool_calls",
)


def thoughts(request: Any) -> list[str | None]:
    return [m.get("reasoning_content") for m in request.messages if m.get("tool_calls")]


@pytest.mark.rule("LS-55")
def test_p5_thinking_goes_back_to_its_provider_also_from_the_database(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(THINKING, text("one"), text("two"))
    first = dsh("run", "x")
    again = dsh("run", "--continue", "again")
    assert (first.code, first.out, again.code, again.out) == (0, b"one\n", 0, b"two\n")
    assert thoughts(fake.requests[1]) == thoughts(fake.requests[2]) == ["look at the file"]


@pytest.mark.slow
@pytest.mark.rule("LS-29", "LS-55")
def test_p5_another_provider_gets_no_thinking_that_it_never_made(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(THINKING, text("one"))
    dsh("run", "x")
    with FakeProvider(text("elsewhere"), strict={"tool-results", "foreign-reasoning"}) as other:
        done = dsh("run", "-c", "again", "--base-url", other.base_url, "-m", "m")
        assert (done.code, done.out) == (0, b"elsewhere\n")
        assert thoughts(other.requests[0]) == [None]


def test_p6_a_call_in_odd_pieces_is_one_call(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(
        stream(
            call(id="call_123", type="function", function={"arguments": '{"comm'}),
            call(id="", function={"name": "bash", "arguments": 'and":"ls'}),
            call(function={"arguments": ' -la"}'}),
            finish="tool_calls",
        ),
        text("done"),
    )
    assert dsh("run", "x").out == b"done\n"
    [made] = dsh.data("tool/call")
    assert (made["callId"], made["name"], made["arguments"]) == ("call_123", "bash", '{"command":"ls -la"}')
    [result] = dsh.data("tool/result")
    assert result["isError"] is False
    sent = fake.requests[1].messages
    assert sent[-2]["tool_calls"] == [
        {"id": "call_123", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls -la"}'}}
    ]
    assert sent[-1]["tool_call_id"] == "call_123"


@pytest.mark.slow
@pytest.mark.parametrize(
    "deltas",
    [
        [call(id="c1", type="function", function={"arguments": "{}"})],
        [call(id="c1", type="function", function={"name": "", "arguments": "{}"})],
        [call(id="c1", type="function", function={"name": "nonesuch", "arguments": "{}"})],
        [call(id="c1", type="function", function={"name": "bash", "arguments": '{"command": "echo'})],
        [call(id="c1", type="function", function={"name": "bash", "arguments": "[1, 2]"})],
    ],
    ids=["no name", "an empty name", "an unknown name", "arguments cut short", "arguments of another kind"],
)
def test_p6_a_call_that_cannot_be_made_is_told_to_the_model(dsh: Dsh, fake: FakeProvider, deltas: Any) -> None:
    fake.script(stream(*deltas, finish="tool_calls"), text("I see"))
    done = dsh("run", "x")
    assert (done.code, done.out) == (0, b"I see\n")
    assert dsh.data("tool/result")[0]["isError"] is True
    assert fake.requests[1].messages[-1]["content"].startswith("Error: ")
    assert dsh("run", "-c", "still usable").code == 0


@pytest.mark.slow
def test_p6_calls_that_share_an_id_are_both_answered(dsh: Dsh, fake: FakeProvider) -> None:
    one = {"index": 0, "id": "x", "type": "function", "function": {"name": "bash", "arguments": '{"command":"echo 1"}'}}
    two = {"index": 1, "id": "x", "type": "function", "function": {"name": "bash", "arguments": '{"command":"echo 2"}'}}
    fake.script(stream({"tool_calls": [one, two]}, finish="tool_calls"), text("done"))
    assert dsh("run", "x").code == 0
    assert [m["content"].strip() for m in fake.requests[1].messages if m["role"] == "tool"] == ["1", "2"]


@pytest.mark.slow
def test_p6_calls_without_ids_are_told_apart(dsh: Dsh, fake: FakeProvider) -> None:
    one = {"index": 0, "type": "function", "function": {"name": "bash", "arguments": '{"command":"echo one"}'}}
    two = {"index": 1, "type": "function", "function": {"name": "bash", "arguments": '{"command":"echo two"}'}}
    fake.script(stream({"tool_calls": [one, two]}, finish="tool_calls"), text("done"))
    assert dsh("run", "x").code == 0
    assert [m["content"].strip() for m in fake.requests[1].messages if m["role"] == "tool"] == ["one", "two"]


BEAR = "bear 🐻!"


@pytest.mark.rule("SE-2")
def test_p7_an_emoji_in_two_deltas_is_one_character(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(
        stream(
            '{"choices":[{"index":0,"delta":{"content":"bear \\ud83d"}}]}',
            '{"choices":[{"index":0,"delta":{"content":"\\udc3b!"},"finish_reason":"stop"}]}',
            finish="",
        )
    )
    done = dsh("run", "x")
    assert (done.code, done.out) == (0, f"{BEAR}\n".encode())
    [(stored,)] = dsh.rows("SELECT CAST(data AS BLOB) FROM event WHERE type = 'assistant/message'")
    assert bytes.fromhex("f09f90bb") in stored
    assert dsh("run", "-c", "next").code == 0
    assert fake.requests[1].raw.decode().count(BEAR) == 1


@pytest.mark.slow
def test_p7_half_a_character_becomes_a_sign_for_one(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(
        stream('{"choices":[{"index":0,"delta":{"content":"bear \\ud83d"},"finish_reason":"stop"}]}', finish="")
    )
    done = dsh("run", "x")
    assert (done.code, done.out) == (0, "bear \ufffd\n".encode())
    assert dsh("run", "-c", "next").code == 0
    assert "bear \ufffd" in fake.requests[1].raw.decode()


@pytest.mark.slow
def test_p7_halves_inside_arguments(dsh: Dsh, fake: FakeProvider) -> None:
    first = '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"bash","arguments":"{\\"command\\":\\"echo \\ud83d"}}]}}]}'  # noqa: E501
    second = '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\udc3b\\"}"}}]},"finish_reason":"tool_calls"}]}'  # noqa: E501
    fake.script(stream(first, second, finish=""), text("done"))
    assert dsh("run", "x").code == 0
    assert fake.requests[1].messages[-1]["content"] == "🐻\n"


@pytest.mark.slow
def test_p7_long_output_is_never_cut_inside_a_character(dsh: Dsh, fake: FakeProvider, tmp_path: Path) -> None:
    """Odd limits against characters of 2, 3 and 4 bytes."""
    arguments = json.dumps({"command": "for i in $(seq 300); do printf 'é中🐻'; done"})
    fake.script(stream(call(id="c1", function={"name": "bash", "arguments": arguments}), finish="tool_calls"))
    done = dsh("run", "x", env={"DSH_BASH_MAX_OUTPUT_BYTES": "1001"})
    assert done.code == 0
    content = fake.requests[1].messages[-1]["content"]
    assert "truncated" in content
    assert "\ufffd" not in content
