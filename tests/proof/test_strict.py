"""The strict validator refuses what it says it refuses: without that the other proofs here would prove nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.strict import refusals

USER = {"role": "user", "content": "hi"}


def call(id_: str = "c1", name: str = "bash", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def result(id_: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": "out"}


def body(*messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages), "stream": True, **more}).encode()


def test_a_good_body_passes() -> None:
    thinks = asks(call("a"), call("b"), reasoning_content="hm")
    history = ({"role": "system", "content": "s"}, USER, thinks, result("a"), result("b"), USER)
    assert refusals(body(*history), insists=True, thoughts={"hm"}) == []
    assert refusals(body(*history), insists=True, thoughts={"hm"}, ids={"a", "b"}) == []
    assert refusals(body(USER, asks(call("abcdefghi")), result("abcdefghi")), ids=()) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff",
        b"{",
        b"[]",
        body(),
        body(USER, model=""),
        body(USER, temperature=None),
        body(USER, sessionId="s"),
        body({"role": "user", "content": ""}),
        body({"role": "user", "content": " \n"}),
        body({"role": "user", "content": None}),
        body({"role": "user", "content": "a\ud83d"}),  # written as an escape
        body({"role": "function", "content": "a"}),
        body(USER, {"role": "system", "content": "late"}),
        body({"role": "assistant", "content": "first"}, USER),
        body(USER, {"role": "assistant", "content": "last"}),
        body(USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER),
        body(USER, {"role": "assistant", "content": ""}, USER),
        body(USER, {"role": "assistant", "content": "a", "tool_calls": []}, USER),
        body(USER, asks(call())),
        body(USER, asks(call()), USER, result()),
        body(USER, asks(call("a"), call("b")), result("b"), result("a")),
        body(USER, asks(call("a"), call("b")), result("a")),
        body(USER, asks(call("a"), call("a")), result("a"), result("a")),
        body(USER, asks(call()), result(), result()),
        body(USER, result()),
        body(USER, asks(call("")), result("")),
        body(USER, asks(call(name="a.b")), result()),
        body(USER, asks(call(name="")), result()),
        body(USER, asks(call(name="x" * 65)), result()),
        *(body(USER, asks(call(arguments=a)), result()) for a in ("", "{", "[]", '{"a":NaN}', '{"a":"\\ud83d"}')),
        body(USER, asks(call(), reasoning_content="not ours"), result()),
        body(USER, tools=[]),
    ],
)
def test_bad_bodies(bad: bytes) -> None:
    assert refusals(bad) != []


def test_what_only_some_servers_refuse() -> None:
    silent = body(USER, asks(call()), result())
    assert refusals(silent) == []
    assert refusals(silent, insists=True) != []
    assert refusals(body(USER, asks(call(), reasoning_content=""), result()), insists=True) != []
    foreign = (asks(call("call_1")), result("call_1"))
    assert refusals(body(USER, *foreign), ids=()) != []
    twice = (asks(call("abcdefghi")), result("abcdefghi"))
    assert refusals(body(USER, *twice, USER, *twice), ids=()) != []
