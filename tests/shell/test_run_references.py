"""`dsh run --ref` and mentions in a prompt; what a run says of keys that it has put into the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsh.session.references import mention, uri
from tests.core.test_secrets import chance
from tests.provider import FakeProvider, text, tool_call
from tests.shell.process import Dsh


@pytest.fixture
def fake() -> FakeProvider:  # type: ignore[misc]
    with FakeProvider() as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Dsh:
    return Dsh(tmp_path, fake, DSH_RETRY_MAX_RETRIES="0")


def quoted(fake: FakeProvider) -> tuple[list[dict[str, Any]], str]:
    """What the newest prompt quotes, and the words that follow."""
    content = fake.requests[-1].messages[-1]["content"]
    array, rest = content.split("<referenced-sessions>\n")[1].split("\n</referenced-sessions>")
    return json.loads(array), rest


@pytest.mark.slow
@pytest.mark.rule("SR-2", "SR-7", "SR-8")
def test_sessions_are_quoted_before_the_prompt(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("blue"), text("round"), text("both"), text("again"))
    dsh("run", "--session", "colour", "which colour?")
    dsh("run", "--session", "shape", "which shape?")
    written = f"compare with {mention('shape', 'the shape')}"
    done = dsh("run", "--session", "third", "--ref", "col=the colour", written)
    assert (done.code, done.out, done.errors) == (0, b"both\n", "")
    found, rest = quoted(fake)
    assert [(each["sessionId"], each["label"]) for each in found] == [("colour", "the colour"), ("shape", "the shape")]
    assert found[0]["conversation"] == [
        {"role": "user", "text": "which colour?"},
        {"role": "assistant", "text": "blue"},
    ]
    assert rest.endswith("\ncompare with @the shape")
    [prompt] = [event for event in dsh.log("third") if event["type"] == "user/message"]
    assert prompt["data"]["envelope"]["displayContent"] == [{"type": "text", "text": "compare with @the shape"}]
    assert "compare with @the shape" in dsh("show", "third").text
    assert "which colour?" not in dsh("show", "third").text
    # what the sources become later changes nothing of it
    fake.script(text("x"))
    dsh("session", "delete", "-y", "colour")
    assert dsh("run", "-r", "third", "and now?").code == 0
    assert "which colour?" in fake.requests[-1].messages[-3]["content"]


@pytest.mark.slow
@pytest.mark.rule("SR-4")
def test_a_reference_that_cannot_be_used_sends_nothing(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("one"))
    dsh("run", "--session", "s", "hi")
    before = dsh.log("s")
    for options, exit_code, said in (
        (("--ref", "nowhere", "x"), 2, "no session 'nowhere'"),
        (("-r", "s", "--ref", "s", "x"), 2, "cannot refer to itself"),
        ((f"see {uri('nowhere')}",), 8, "session nowhere cannot be referred to"),
        (("see dsh-session:zzz",), 2, "is not the address of a session"),
    ):
        done = dsh("run", *options)
        assert (done.code, done.out) == (exit_code, b"")
        assert said in done.errors
        assert len(done.errors.splitlines()) <= 2
    assert len(fake.requests) == 1
    assert dsh.log("s") == before
    assert dsh.rows("SELECT id FROM session") == [("s",)]


@pytest.mark.slow
def test_what_is_piped_in_mentions_nothing(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("ok"))
    done = dsh("run", "explain", input=f"{mention('nowhere')} dsh-session:zzz".encode())
    assert (done.code, done.out) == (0, b"ok\n")


@pytest.mark.slow
def test_a_key_in_prompt_or_result_is_told_once(dsh: Dsh, fake: FakeProvider) -> None:
    keys = ["ghp_" + chance(36), "npm_" + chance(36, seed=2)]
    (dsh.cwd / ".env").write_text(f"A={keys[0]}\nB={keys[1]}\n")
    fake.script(tool_call("read", {"file_path": str(dsh.cwd / ".env")}), text("done"), text("done"), text("done"))
    done = dsh("run", f"use {keys[0]} as in .env")
    assert (done.code, done.out) == (0, b"done\n")
    [line] = done.errors.splitlines()
    assert line.startswith("dsh: a prompt or a tool result held a secret (github, npm): ")
    assert not any(key in done.errors for key in keys)
    assert dsh("run", "-q", f"use {keys[0]}").err == b""
    assert dsh("run", "nothing here").err == b""


@pytest.mark.slow
@pytest.mark.rule("SR-2", "SR-4")
def test_a_message_for_a_session_may_mention_others_too(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(text("blue"), text("ok"), text("seen"), text("done"))
    dsh("run", "--session", "colour", "which colour?")
    dsh("run", "--session", "s", "hi")
    assert dsh("send", "s", f"see {mention('colour', 'C')}").code == 0
    for words, code in ((f"see {uri('s')}", 2), (f"see {uri('nowhere')}", 8)):
        done = dsh("send", "s", words)
        assert (done.code, done.out) == (code, b"")
    assert dsh("inject", "s", f"see {mention('nowhere')}").code == 0  # context is taken as it is
    assert len(dsh.rows("SELECT message_id FROM inbox")) == 2
    assert dsh("run", "-r", "s", "go").code == 0
    asked = [request.messages[-1]["content"] for request in fake.requests]
    [quote] = [content for content in asked if "<referenced-sessions>" in content]
    assert '"text":"blue"' in quote
    assert quote.endswith("see @C")
