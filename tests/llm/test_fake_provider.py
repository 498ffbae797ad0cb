"""The fake provider itself: its strict rules refuse what they should, and it runs as a program."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests import provider
from tests.provider import FakeProvider, cut, echo, hang, raw, text, tool_call

USER = {"role": "user", "content": "hi"}


def post(base_url: str, body: bytes) -> tuple[int, str]:
    asked = urllib.request.Request(f"{base_url}/chat/completions", data=body)
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ask(fake: FakeProvider, *messages: Any) -> int:
    return post(fake.base_url, json.dumps({"messages": messages}).encode())[0]


def said(*ids: str, **rest: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": i} for i in ids], **rest}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "x"}


def test_strict_rules() -> None:
    with FakeProvider(strict=True) as fake:
        assert ask(fake, USER, said("a", "b"), result("b"), result("a"), USER) == 200
        for bad in (
            [USER, said("a"), USER, result("a")],
            [USER, said("a", "b"), result("a")],
            [USER, said("a"), result("a"), result("a")],
            [USER, said("a", "a"), result("a"), result("a")],
            [USER, said(""), result("")],
            [USER, result("a")],
            [USER, said("a", content=None), result("a")],
            [{"role": "user", "content": "half \ud83d"}],
        ):
            assert ask(fake, *bad) == 400, bad
        assert post(fake.base_url, b'{"messages": ["\xff"]}')[0] == 400
        assert post(fake.base_url, b"{}")[0] == 400


def test_reasoning_is_asked_back() -> None:
    with FakeProvider(tool_call("bash", {}, "c1", reasoning="hm"), strict={"reasoning", "foreign-reasoning"}) as fake:
        assert ask(fake, USER) == 200
        assert ask(fake, USER, said("c1"), result("c1")) == 400
        assert ask(fake, USER, said("c1", reasoning_content="hm"), result("c1")) == 200
        assert ask(fake, USER, said("c2"), result("c2")) == 200
        assert ask(fake, USER, said("c2", reasoning_content="elsewhere"), result("c2")) == 400


def test_replies_in_order_and_then() -> None:
    with FakeProvider(text("a"), echo, then="repeat") as fake:
        answers = [post(fake.base_url, json.dumps({"messages": [USER]}).encode())[1] for _ in range(3)]
    assert '"a"' in answers[0]
    assert all('"hi"' in a for a in answers[1:])
    for reply in (cut(text("whole")), hang(text("whole"))):
        assert b"whole" in reply.body
        assert b'"stop"' not in reply.body
    assert raw("data: x\n\n", 0.5).body == b"data: x\n\n"


@pytest.mark.slow
def test_as_a_program(tmp_path: Path) -> None:
    script, log = tmp_path / "script.json", tmp_path / "log.jsonl"
    (tmp_path / "x.sse").write_bytes(text("recorded").body)
    script.write_text(
        json.dumps(
            [
                {"text": "one", "reasoning": "r"},
                {"tool_call": "bash", "arguments": {"a": 1}, "id": "c"},
                {"calls": [["x", {}], ["y", {}]]},
                {"status": 429, "body": {"error": {"message": "slow"}}},
                {"file": "x.sse"},
                {"cut": {"text": "half"}},
                {"echo": True},
            ]
        )
    )
    server = subprocess.Popen(
        [sys.executable, provider.__file__, script, "--log", log, "--models", "m1,m2"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        answers = [post(url, json.dumps({"messages": [USER]}).encode()) for _ in range(8)]
        with urllib.request.urlopen(f"{url}/models", timeout=5) as listed:
            assert [m["id"] for m in json.load(listed)["data"]] == ["m1", "m2"]
    finally:
        server.kill()
        server.stdout.close()
        server.wait()
    assert [s for s, _ in answers] == [200, 200, 200, 429, 200, 200, 200, 200]
    pieces = ['"one"', '"c"', '"call_2"', "slow", "recorded", "half", '"hi"', '"ok"']
    for (_, body), piece in zip(answers, pieces, strict=True):
        assert piece in body
    assert [json.loads(line)["body"] for line in log.read_text().splitlines()] == [{"messages": [USER]}] * 8
