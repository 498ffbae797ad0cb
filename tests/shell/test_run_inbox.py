"""A run among messages of other shells: its answer, exit code and tokens are those of its own prompt (HD-3)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.foreign import Sender
from tests.provider import FakeProvider, Recorded, Reply, hang, status, text
from tests.shell.process import Dsh, finish

pytestmark = pytest.mark.slow  # each test starts the program, some many times

WAITED = "dsh: a message that waited in this session is worked on first\n"
MEANWHILE = "dsh: answered; a message that came meanwhile is worked on\n"


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with FakeProvider() as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Dsh:
    made = Dsh(tmp_path, fake, DSH_RETRY_MAX_RETRIES="0")
    fake.script(text("first answer"))
    assert made("run", "first").code == 0
    fake.requests.clear()
    return made


@pytest.fixture
def send(dsh: Dsh) -> Iterator[Sender]:
    with Sender(str(dsh.db)) as sender:
        yield sender


def counted(content: str, tokens: int) -> Reply:
    return text(content, usage={"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1})


@pytest.mark.rule("HD-3", "HD-7", "AL-87")
def test_what_waited_is_worked_on_first_and_is_not_the_answer(dsh: Dsh, fake: FakeProvider, send: Sender) -> None:
    assert send(dsh.session(), "followup", "left behind") is None
    fake.script(counted("not the answer", 1000), counted("the answer", 7))
    done = dsh("run", "-c", "mine")
    assert (done.code, done.text, done.errors) == (0, "the answer\n", WAITED)
    assert [r.last_text for r in fake.requests] == ["left behind", "mine"]
    send(dsh.session(), "followup", "left again")
    fake.script(status(401), counted("the second", 7))
    done = dsh("run", "-c", "--json", "mine too")
    assert done.code == 0
    assert (done.result["turn"], done.result["answer"], done.result["steps"]) == (5, "the second", 1)
    assert done.result["usage"]["inputTokens"] == 7
    starts = [line["data"]["turn"] for line in done.lines if line["type"] == "turn/start"]
    assert starts == [4, 5]  # --json prints everything that the run stores


@pytest.mark.rule("HD-3", "AL-88")
@pytest.mark.parametrize("form", ["text", "json"])
def test_what_comes_meanwhile_is_worked_on_before_the_run_ends(
    dsh: Dsh, fake: FakeProvider, send: Sender, form: str
) -> None:
    found: list[Any] = []

    def disturbed(request: Recorded) -> Reply:
        found.append(send(dsh.session(), "followup", "one more"))
        return text("the answer", pieces=2)

    fake.script(disturbed, status(401))
    done = dsh("run", "-c", *(["--json"] if form == "json" else []), "mine")
    assert found != [None]  # it was driven, and so was the message
    assert [r.last_text for r in fake.requests] == ["mine", "one more"]
    assert done.code == 0  # what became of the other is told to whoever sent it
    if form == "text":
        assert (done.text, done.errors) == ("the answer\n", MEANWHILE)
    else:
        assert (done.result["turn"], done.result["answer"]) == (2, "the answer")
        assert [line["data"]["turn"] for line in done.lines if line["type"] == "turn/end"] == [2, 3]
    assert dsh.rows("SELECT * FROM inbox") == []
    assert dsh.rows("SELECT * FROM lease") == []


@pytest.mark.rule("HD-3", "AL-86")
def test_a_prompt_that_is_cancelled_while_it_waits_is_aborted(dsh: Dsh, fake: FakeProvider, send: Sender) -> None:
    send(dsh.session(), "followup", "left behind")
    fake.script(hang(text("half", pieces=2)))
    process = dsh.start("run", "-c", "--json", "mine")
    dsh.wait_for(lambda: dsh.rows("SELECT 1 FROM event WHERE type = 'assistant/chunk' AND data ->> 'turn' = 2"))
    assert send(dsh.session(), "cancel") is not None
    done = finish(process)
    assert (done.result["turn"], done.result["reason"]) == (None, {"kind": "aborted"})
    assert done.result["error"]["code"] == "ABORTED"
    assert done.code == 1
    assert len(fake.requests) == 1
    assert dsh.rows("SELECT * FROM inbox") == []


@pytest.mark.rule("HD-10")
@pytest.mark.parametrize("how", ["signal", pytest.param("limit", marks=pytest.mark.slow)])
def test_an_end_before_its_time_while_others_are_served(dsh: Dsh, fake: FakeProvider, send: Sender, how: str) -> None:
    def disturbed(request: Recorded) -> Reply:
        send(dsh.session(), "followup", "one more")
        return text("the answer")

    fake.script(disturbed, hang(text("half", pieces=2)))
    process = dsh.start("run", "-c", "mine", *(["--timeout", "5"] if how == "limit" else []))
    dsh.wait_for(lambda: dsh.rows("SELECT 1 FROM event WHERE type = 'assistant/chunk' AND data ->> 'turn' = 3"))
    if how == "signal":
        os.kill(process.pid, signal.SIGINT)
    done = finish(process)
    assert done.text == "the answer\n"
    assert done.code == (130 if how == "signal" else 0)
    assert [d["reason"]["kind"] for d in dsh.data("turn/end")] == ["completed", "completed", "aborted"]
    assert dsh.rows("SELECT * FROM lease") == []


@pytest.mark.rule("HD-10", "AL-88")
def test_an_interrupted_run_leaves_what_others_have_sent(dsh: Dsh, fake: FakeProvider, send: Sender) -> None:
    fake.script(hang(text("half", pieces=2)), text("for the other"), text("mine again"))
    process = dsh.start("run", "-c", "mine")
    dsh.wait_for(lambda: dsh.rows("SELECT 1 FROM event WHERE type = 'assistant/chunk' AND data ->> 'turn' = 2"))
    assert send(dsh.session(), "followup", "of another") is not None
    os.kill(process.pid, signal.SIGINT)
    interrupted = finish(process)
    assert interrupted.code == 130
    assert interrupted.errors.startswith(
        "dsh: messages of other shells that wait for the next run of this session: 1\n"
    )
    assert [d["reason"]["kind"] for d in dsh.data("turn/end")] == ["completed", "aborted"]
    done = dsh("run", "-c", "again")
    assert (done.text, done.errors) == ("mine again\n", WAITED)
    assert [r.last_text for r in fake.requests] == ["mine", "of another", "again"]


@pytest.mark.rule("HD-11")
def test_a_reader_that_left_does_not_end_what_is_done_for_others(dsh: Dsh, fake: FakeProvider, send: Sender) -> None:
    def disturbed(request: Recorded) -> Reply:
        send(dsh.session(), "followup", "one more")
        return text("the answer")

    fake.script(disturbed, text("x"))
    done = dsh.shell(f"{dsh.words('run', '-c', 'mine')} | true")
    assert done.errors == MEANWHILE
    assert [d["reason"]["kind"] for d in dsh.data("turn/end")][1:] == ["completed", "completed"]
