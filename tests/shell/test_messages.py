"""Messages from another shell: `dsh send`, `dsh steer`, `dsh inject`, `dsh cancel` (AL-1 to AL-9, AL-65)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.provider import FakeProvider, hang, text, tool_call
from tests.shell.background import background, detach, until
from tests.shell.process import Dsh, finish

pytestmark = pytest.mark.slow


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with FakeProvider(strict=True) as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Iterator[Dsh]:
    with background(tmp_path, fake) as made:
        yield made


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The tool of `at_work` runs until this file is there."""
    return tmp_path / "go"


def at_work(dsh: Dsh, fake: FakeProvider, go: Path) -> str:
    """A session in the middle of a tool call."""
    fake.script(tool_call("bash", {"command": until(go)}))
    session = detach(dsh, "begin")
    dsh.wait_for(lambda: dsh.data("tool/call"))
    return session


def prompts(dsh: Dsh) -> list[str]:
    return [d["content"][0]["text"] for d in dsh.data("user/message")]


# ---------------------------------------------------------------------------------------------------- nobody is at work


@pytest.mark.rule("AL-6")
def test_a_message_for_a_session_that_nobody_drives_waits_for_the_next_run(dsh: Dsh, fake: FakeProvider) -> None:
    assert dsh("run", "first").code == 0
    session = dsh.session()
    for words in (("send", "second"), ("steer", "third"), ("inject", "fourth"), ("send", "fifth", "--queue")):
        done = dsh(words[0], session, *words[1:])
        assert done.code == 0
        assert done.errors == (
            f"dsh: nobody works on session {session}: the message waits for the next dsh run --resume {session}\n"
        )
        assert dsh.rows("SELECT 1 FROM inbox WHERE message_id = ?", done.text.strip()) == [(1,)]
    assert prompts(dsh) == ["first"]
    assert dsh("wait", session).code == 0  # nobody will do anything
    line = dsh("ps", "--all").text.rstrip("\n").split("\t")
    assert (line[0], line[4], line[5]) == (session, "queued", "4")
    assert dsh("ps").text == ""

    fake.script(text("to second"), text("to third"), text("to fifth"), text("to sixth"))
    done = dsh("run", "--resume", session, "sixth")
    assert (done.code, done.text) == (0, "to sixth\n")
    assert sorted(prompts(dsh)) == sorted(["first", "second", "third", "fourth", "fifth", "sixth"])
    asked = [request.last_text for request in fake.requests]
    assert asked[-1] == "sixth"
    assert [a for a in asked if a in ("second", "third", "fifth", "sixth")] == ["second", "third", "fifth", "sixth"]
    assert dsh.rows("SELECT * FROM inbox") == []


def test_cancelling_what_nobody_drives_drops_what_waits(dsh: Dsh, fake: FakeProvider) -> None:
    assert dsh("run", "first").code == 0
    session = dsh.session()
    done = dsh("cancel", session)
    assert (done.code, done.out) == (0, b"")
    assert done.errors == f"dsh: nobody works on session {session}, and nothing waits for it\n"
    for number in range(2):
        assert dsh("send", session, f"{number}").code == 0
    done = dsh("cancel", "--keep-inbox", session)
    assert (done.code, done.errors) == (0, f"dsh: nobody works on session {session}: 2 waiting messages kept\n")
    done = dsh("cancel", session)
    assert (done.code, done.errors) == (0, f"dsh: nobody works on session {session}: 2 waiting messages dropped\n")
    assert dsh("run", "--resume", session, "second").code == 0
    assert prompts(dsh) == ["first", "second"]


def test_a_session_keeps_its_options_whoever_writes_to_it(dsh: Dsh, fake: FakeProvider) -> None:
    assert dsh("run", "first", "--system", "Speak like a pirate.", "--no-tools").code == 0
    assert dsh("send", dsh.session(), "second").code == 0
    assert dsh("run", "--resume", dsh.session(), "third").code == 0
    assert dsh("run", "--resume", dsh.session(), "fourth").code == 0
    for request in fake.requests:
        assert "Speak like a pirate." in str(request.messages[0])
        assert "tools" not in request.body


# ------------------------------------------------------------------------------------------------------ somebody drives


@pytest.mark.rule("AL-5", "AL-8")
def test_steering_without_a_turn_at_work_is_a_turn_of_its_own(dsh: Dsh, fake: FakeProvider, go: Path) -> None:
    session = at_work(dsh, fake, go)
    fake.script(text("one"), text("two"))
    waiting = dsh.start("steer", session, "--wait", "now")
    dsh.wait_for(lambda: dsh.rows("SELECT 1 FROM inbox"))
    go.touch()
    done = finish(waiting)
    assert (done.code, done.text, done.errors) == (0, "one\n", "")  # of the turn that it joined
    assert [d["content"][0]["text"] for d in dsh.data("steering/message")] == ["now"]
    assert dsh("wait", session).code == 0
    assert dsh("steer", session, "later").code == 0
    assert dsh("run", "--resume", session, "go on").code == 0
    assert prompts(dsh) == ["begin", "later", "go on"]


def test_waiting_for_the_reply_of_a_message(dsh: Dsh, fake: FakeProvider, go: Path) -> None:
    session = at_work(dsh, fake, go)
    fake.script(text("of the run"), text("of another"), text("of mine", pieces=3))
    assert dsh("send", session, "another").code == 0
    waiting = dsh.start("send", session, "--wait", "mine")
    dsh.wait_for(lambda: len(dsh.rows("SELECT 1 FROM inbox")) == 2)
    go.touch()
    done = finish(waiting)
    assert (done.code, done.text, done.errors) == (0, "of mine\n", "")
    alone = dsh("send", session, "--wait", "more")
    assert (alone.code, len(alone.text.split())) == (1, 1)
    assert alone.errors.startswith(f"dsh: nobody works on session {session}")
    assert dsh("send", session, "--wait", "--queue", "more").code == 2


@pytest.mark.rule("AL-65")
def test_a_cancel_takes_what_is_queued_along(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang())
    session = detach(dsh, "begin")
    fake.wait_for(1)
    waiting = dsh.start("send", session, "--wait", "never")
    dsh.wait_for(lambda: dsh.rows("SELECT 1 FROM inbox"))
    done = dsh("cancel", session)
    assert (done.code, done.out, done.err) == (0, b"", b"")
    done = finish(waiting)
    assert (done.code, done.out) == (1, b"")
    assert "became nothing: it was cancelled" in done.errors
    assert dsh("wait", session).code == 1
    assert prompts(dsh) == ["begin"]
    assert dsh.rows("SELECT * FROM inbox") == []


@pytest.mark.rule("AL-66")
def test_a_cancel_may_keep_what_is_queued(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(hang(), text("still done"))
    session = detach(dsh, "begin")
    fake.wait_for(1)
    assert dsh("send", session, "then this").code == 0
    assert dsh("cancel", session, "--keep-inbox").code == 0
    assert dsh("wait", session).code == 0
    assert dsh("attach", session).text == "still done\n"
    assert [d["reason"]["kind"] for d in dsh.data("turn/end")] == ["aborted", "completed"]


@pytest.mark.rule("AL-60", "AL-62")
def test_an_injection_joins_without_a_request_of_its_own(dsh: Dsh, fake: FakeProvider, go: Path) -> None:
    session = at_work(dsh, fake, go)
    assert dsh("inject", session, "by the way").code == 0
    go.touch()
    assert dsh("wait", session).code == 0
    assert prompts(dsh) == ["begin", "by the way"]
    assert len(fake.requests) == 2
    assert fake.requests[1].last_text == "by the way"
    kinds = [e["type"] for e in dsh.log() if e["type"] in ("tool/call", "tool/result", "user/message", "step/end")]
    assert kinds == ["user/message", "tool/call", "tool/result", "user/message", "step/end", "step/end"]


def test_a_foreground_run_answers_its_own_question(dsh: Dsh, fake: FakeProvider, go: Path) -> None:
    """Its process works on what others have sent, too, but its answer and its exit code are those of its own turn."""
    fake.script(tool_call("bash", {"command": until(go)}), text("mine"), text("theirs"))
    running = dsh.start("run", "begin")
    dsh.wait_for(lambda: dsh.data("tool/call"))
    assert dsh("send", dsh.session(), "another").code == 0
    go.touch()
    done = finish(running)
    assert (done.code, done.text) == (0, "mine\n")
    assert dsh("attach", dsh.session()).text == "theirs\n"


# ---------------------------------------------------------------------------------------------------------------- texts


def test_where_the_text_comes_from(dsh: Dsh, fake: FakeProvider) -> None:
    assert dsh("run", "first").code == 0
    session = dsh.session()
    assert dsh("send", session, "-", input="línea\n".encode()).code == 0
    assert dsh("send", session, input=b"no dash needed").code == 0
    assert dsh("send", session, "sum up", input=b"\xff\n").code == 0
    assert dsh("send", session, b"caf\xe9").code == 0
    sent = dsh.rows("SELECT json_extract(content, '$[0].text') || coalesce(content ->> '$[1].text', '') FROM inbox")
    assert sorted(row[0] for row in sent) == sorted(
        ["línea\n", "no dash needed", "sum up\n\n<stdin>\n\ufffd\n</stdin>", "caf\ufffd"]
    )
    assert {row[0] for row in dsh.rows("SELECT source FROM inbox")} == {'{"kind":"user"}'}
    for words, error in (((), "there is no message"), ((" ",), "the message is empty")):
        done = dsh("send", session, *words)
        assert (done.code, done.out) == (2, b"")
        assert done.errors.startswith(f"dsh: {error}\n")
