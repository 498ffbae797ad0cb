"""`dsh title`, titles in lists, and `dsh run --title-model`: what is asked, what is printed, how long is waited."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from dsh.capabilities.titles.service import Titles
from dsh.cli import headless
from dsh.cli.outcome import Outcome
from dsh.cli.writer import Writer
from dsh.llm.service import LlmService
from dsh.store import writes
from tests.agent.kit import Gate, Script, say, world
from tests.capabilities.titles_kit import PLUGIN
from tests.cli.conftest import ROOT, Run
from tests.history import History, text
from tests.provider import FakeProvider, Item, Recorded, Reply, hang, status
from tests.provider import text as says
from tests.shell.background import background, detach
from tests.shell.process import Dsh, finish

pytestmark = pytest.mark.slow  # each test starts the program, some many times

Terminal = Callable[..., tuple[int, str]]


def refusal(dsh: Run, *arguments: str, code: int = 2) -> list[str]:
    """What is said on standard error by a command that does nothing."""
    done = dsh(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    return [line.removeprefix("dsh: ") for line in done.stderr.splitlines()]


def log(db: History, session: str) -> list[tuple[str, Any]]:
    rows = db.db.rows("SELECT type, data FROM event WHERE session_id = ? ORDER BY seq", (session,))
    return [(type_, json.loads(data)) for type_, data in rows]


# ------------------------------------------------------------------------------------------------------ dsh title


@pytest.mark.slow
def test_a_title_and_where_it_comes_from(dsh: Run, history: History) -> None:
    history.say("s", "first\twords \x1b[31mred\nmore", time=1_760_000_000_000)
    assert dsh("title", "s").stdout == "first words \u241b[31mred more\tprompt\t\n"
    assert dsh("title", "s", "--json").returncode == 1
    assert json.loads(dsh("title", "s", "--json").stdout) == {"sessionId": "s", "title": None}
    model = {"provider": "deepseek", "model": "deepseek-chat"}
    for source, said in (
        ({"kind": "fallback"}, "fallback"),
        ({"kind": "user"}, "user"),
        ({"kind": "provider", "provider": "mine"}, "mine"),
        ({"kind": "provider", "provider": "model", "model": model}, "deepseek/deepseek-chat"),
    ):
        turn = int(history.db.rows("SELECT turns FROM session")[0][0]) + 1
        history.event("s", "turn/start", {"turn": turn, "trigger": {"kind": "session-title"}})
        seq = history.event("s", "session/title", {"title": f"by {said}", "messageSeqs": [1], "source": source})
        at = history.clock
        history.event("s", "turn/end", {"turn": turn, "reason": {"kind": "completed"}})
        when = history.db.rows("SELECT strftime('%FT%TZ', ? / 1000, 'unixepoch')", (at,))[0][0]
        assert dsh("title", "s").stdout == f"by {said}\t{said}\t{when}\n"
        title = {"title": f"by {said}", "source": source, "messageSeqs": [1], "eventSeq": seq, "updatedAt": at}
        assert json.loads(dsh("title", "last", "--json").stdout) == {"sessionId": "s", **title}


@pytest.mark.slow
def test_a_title_on_a_terminal(history: History, terminal: Terminal) -> None:
    history.say("s", "first words", time=1_760_000_000_000)
    code, shown = terminal("title", "s")
    assert (code, shown) == (0, "\x1b[1mfirst words\x1b[0m\n\x1b[2mprompt\x1b[0m\n")
    assert terminal("title", "s", "--set", "mine")[0] == 0
    assert terminal("title", "s", NO_COLOR="1")[1].splitlines()[0] == "mine"
    assert terminal("title", "s", NO_COLOR="1")[1].splitlines()[1].startswith("user · ")


def test_a_session_without_any_words(dsh: Run, history: History) -> None:
    history.session("s")
    history.event("s", "turn/start", {"turn": 1, "trigger": {"kind": "injection", "source": {"kind": "user"}}})
    history.event("s", "turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    assert refusal(dsh, "title", "s", code=1) == ["session s has no title yet"]
    assert refusal(dsh, "title", "s", "--refresh", code=1)[-1] == "session s has no title yet"


@pytest.mark.rule("ST-50", "ST-74")
def test_a_person_gives_a_title(dsh: Run, history: History) -> None:
    history.say("s", "words")
    before = len(log(history, "s"))
    done = dsh("title", "s", "--set", " Birds \x1b[31m& bees\n")
    assert (done.returncode, done.stdout.split("\t")[:2], done.stderr) == (0, ["Birds & bees", "user"], "")
    data = {"title": "Birds & bees", "messageSeqs": [], "source": {"kind": "user"}}
    assert log(history, "s")[before:] == [
        ("turn/start", {"turn": 2, "trigger": {"kind": "session-title"}}),
        ("session/title", data),
        ("turn/end", {"turn": 2, "reason": {"kind": "completed"}}),
    ]
    assert dsh("session", "rename", "s", "Sea").returncode == 0  # the very same
    assert log(history, "s")[before + 3 :] == [
        ("turn/start", {"turn": 3, "trigger": {"kind": "session-title"}}),
        ("session/title", {**data, "title": "Sea"}),
        ("turn/end", {"turn": 3, "reason": {"kind": "completed"}}),
    ]
    assert dsh("sessions").stdout.endswith("\tSea\n")
    assert history.db.rows("SELECT * FROM lease") == []


@pytest.mark.slow
def test_wrong_usage(dsh: Run, history: History) -> None:
    history.say("s", "words")
    for arguments, said in (
        (("nobody",), "there is no session 'nobody'"),
        (("s", "--set", " \u200b"), "the title is empty"),
        (("s", "--set", "x" * 201), "the title has 201 characters; 200 are the most"),
        (("s", "--set", "x", "--refresh"), "--refresh and --set exclude each other"),
        (("s", "--model", "same"), "--model goes with --refresh"),
        (("s", "--refresh", "-m", "gpt"), "--model must be off, same (the model of the session) or PROVIDER/MODEL"),
    ):
        assert refusal(dsh, "title", *arguments)[0] == said
    said = refusal(dsh, "title", "s", "--refresh", "-m", "openai/x", code=3)[0]
    assert said.startswith("provider 'openai' needs a key")
    writes.claim_lease(history.db, "s", "them")
    for change in (["--set", "x"], ["--refresh"]):
        assert refusal(dsh, "title", "s", *change, code=8)[0].startswith("session s is driven by process")
    assert dsh("title", "s").returncode == 0  # to look is no work


@pytest.mark.rule("ST-41")
def test_a_refresh_without_a_model_makes_the_fallback(dsh: Run, history: History) -> None:
    history.say("s", "one two three four five six seven eight nine ten eleven twelve thirteen")
    done = dsh("title", "s", "--refresh")
    assert (done.returncode, done.stdout.split("\t")[:2]) == (
        0,
        ["one two three four five six seven eight nine ten eleven twelve", "fallback"],
    )
    assert done.stderr == "dsh: no model makes titles: dsh title --refresh -m same, or the setting titles.model\n"
    length = len(log(history, "s"))
    assert dsh("title", "s", "--refresh").stdout == done.stdout
    assert len(log(history, "s")) == length


def test_a_refresh_where_titles_are_switched_off(dsh: Run, history: History) -> None:
    history.say("s", "words")
    config = Path(os.environ["HOME"]) / ".dsh"
    config.mkdir()
    (config / "config.toml").write_text('[plugins]\ndisabled = ["titles"]\n')
    assert refusal(dsh, "title", "s", "--refresh", code=3)[0] == "titles are switched off"
    assert dsh("title", "s", "--set", "mine").returncode == 0


# -------------------------------------------------------------------------------------------------- dsh sessions


@pytest.mark.slow
def test_lists_show_titles_and_dim_what_is_none(dsh: Run, history: History, terminal: Terminal) -> None:
    history.say("b", "only a prompt")
    history.say("a", "words")
    assert dsh("title", "a", "--set", "A title").returncode == 0
    assert [line.split("\t")[-1] for line in dsh("sessions").stdout.splitlines()] == ["A title", "only a prompt"]
    assert [json.loads(row)["titled"] for row in dsh("sessions", "--json").stdout.splitlines()] == [True, False]
    for more in ([], ["--tree"]):
        rows = terminal("sessions", *more)[1].splitlines()[1:]
        assert [row.endswith(end) for row, end in zip(rows, ("A title", "\x1b[2monly a prompt\x1b[0m"), strict=True)]
        assert "\x1b" not in rows[0]
        assert "\x1b" not in terminal("sessions", *more, NO_COLOR="1")[1]


# ------------------------------------------------------------------------------------------------------- dsh run


class Model(FakeProvider):
    """Answers every question with "the answer" and every request for a title with `title`."""

    def __init__(self, title: Item) -> None:
        super().__init__()
        self.title = title
        self.script(*[self._reply] * 9)

    def _reply(self, request: Recorded) -> Reply:
        if not is_title(request):
            return says("the answer")
        return self.title if isinstance(self.title, Reply) else self.title(request)

    @property
    def titling(self) -> list[Recorded]:
        return [r for r in self.requests if is_title(r)]


def is_title(request: Recorded) -> bool:
    return request.body.get("max_tokens") == 64


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model(says('"A good title"'))
    with made:
        yield made


@pytest.fixture
def program(tmp_path: Path, model: Model) -> Dsh:
    return Dsh(tmp_path, model, DSH_RETRY_MAX_TRANSIENT_RETRIES="0")


def titles(program: Dsh) -> list[tuple[str, str]]:
    return [(d["source"]["kind"], d["title"]) for d in program.data("session/title")]


@pytest.mark.rule("ST-20", "ST-37")
def test_by_default_no_model_is_asked(program: Dsh, model: Model) -> None:
    done = program("run", "what is a title for?")
    assert (done.code, done.text, done.errors) == (0, "the answer\n", "")
    assert titles(program) == [("fallback", "what is a title for?")]
    kinds = [e["type"] for e in program.log()]
    assert kinds[:3] == ["turn/start", "user/message", "session/title"]
    program("run", "-c", "and now?")
    assert (len(model.requests), len(titles(program))) == (2, 1)


@pytest.mark.rule("ST-33", "ST-65", "ST-32")
@pytest.mark.parametrize("how", ["option", "setting"])
def test_a_model_titles_the_session(program: Dsh, model: Model, how: str) -> None:
    option = ("--title-model", "same") if how == "option" else ()
    env = {} if how == "option" else {"DSH_TITLES_MODEL": "same"}
    done = program("run", *option, "what is a title for?", env=env)
    assert (done.code, done.text, done.errors) == (0, "the answer\n", "")
    assert titles(program) == [("fallback", "what is a title for?"), ("provider", '"A good title"')]
    (call,) = model.titling
    assert (call.body["model"], "tools" in call.body) == ("fake-model", False)
    assert "what is a title for?" in call.last_text
    main = next(r for r in model.requests if not is_title(r))
    assert main.last_text == "what is a title for?"
    program("run", "-c", *option, "and now?", env=env)
    assert len(model.titling) == 1
    again = next(r for r in reversed(model.requests) if not is_title(r))
    assert [m["content"] for m in again.messages[1:]] == ["what is a title for?", "the answer", "and now?"]


@pytest.mark.slow
@pytest.mark.rule("ST-32", "ST-60", "ST-71")
def test_each_prompt_in_a_row_may_ask_anew(program: Dsh, model: Model) -> None:
    model.title = lambda request: says(f"title {len(model.titling)}")
    env = {"DSH_TITLES_MODEL": "same", "DSH_TITLES_AUTOMATIC": "all-user-messages"}
    program("run", "one", env=env)
    program("run", "-c", "two", env=env)
    assert [t for _, t in titles(program)] == ["one", "title 1", "title 2"]
    parent = program.session()
    program("run", "--fork", parent, "three", env=env)
    assert [t for _, t in titles(program)] == ["one", "title 1", "title 2", "title 3"]
    assert program("title", parent).text.startswith("title 2\t")
    assert all(word in model.titling[-1].last_text for word in ("one", "two", "three"))


@pytest.mark.slow
def test_another_provider_is_asked_for_titles(program: Dsh, model: Model) -> None:
    main = Model(says("never"))
    with main:
        other = f"[providers.small]\nbase_url = {json.dumps(model.base_url)}\n"
        (program.home / ".dsh").mkdir()
        (program.home / ".dsh" / "config.toml").write_text(other)
        url = ("--base-url", main.base_url, "-m", "big")
        assert program("run", *url, "--title-model", "small/tiny", "words").code == 0
        assert (len(main.requests), [r.body["model"] for r in model.titling]) == (1, ["tiny"])
        assert titles(program)[1] == ("provider", '"A good title"')
        assert program("run", *url, "--title-model", "off", "words", env={"DSH_TITLES_MODEL": "small/tiny"}).code == 0
        assert len(model.titling) == 1
        refreshed = program("title", "last", "--refresh", "-m", "small/other")
        assert (refreshed.code, refreshed.text.split("\t")[:2]) == (0, ['"A good title"', "small/other"])
        assert program("title", "last", "--refresh", env={"DSH_TITLES_MODEL": "small/set"}).code == 0
        assert [r.body["model"] for r in model.titling] == ["tiny", "other", "set"]


@pytest.mark.slow
@pytest.mark.rule("ST-36")
def test_a_refresh_tells_what_failed(program: Dsh, model: Model) -> None:
    (program.home / ".dsh").mkdir()
    (program.home / ".dsh" / "config.toml").write_text(
        f"[providers.small]\nbase_url = {json.dumps(model.base_url)}\nmodel = 'tiny'\n"
    )
    assert program("run", "--provider", "small", "--base-url", model.base_url, "-m", "tiny", "words").code == 0
    model.title = status(401)
    done = program("title", "last", "--refresh", "-m", "same")
    assert (done.code, done.text) == (4, "")
    assert done.errors.startswith("dsh: ")
    assert titles(program) == [("fallback", "words")]
    assert program.rows("SELECT count(*) FROM lease") == [(0,)]
    model.title = says("made anew")
    assert program("title", "last", "--set", "mine").code == 0
    assert program("title", "last", "--refresh", "-m", "same").text.split("\t")[:2] == ["made anew", "small/tiny"]


@pytest.mark.rule("ST-37")
@pytest.mark.parametrize("quiet", [True, False])
def test_a_failing_title_changes_nothing(program: Dsh, model: Model, quiet: bool) -> None:
    model.title = status(401, {"error": {"message": "no titles for you"}})
    done = program("run", "--title-model", "same", "words", *(["-q"] if quiet else []))
    assert (done.code, done.text) == (0, "the answer\n")
    assert done.errors == ("" if quiet else "dsh: the model gave no title: no titles for you\n")
    assert titles(program) == [("fallback", "words")]
    assert program("run", "words", env={"DSH_TITLES_MODEL": "same"}).errors == ""  # it was not asked for just now


@pytest.mark.rule("ST-37")
def test_a_failing_run_fails_as_ever(program: Dsh, model: Model) -> None:
    with FakeProvider(status(401), then="repeat") as broken:
        plain = program("run", "words", "--base-url", broken.base_url, "-m", "m")
        done = program("run", "--title-model", "same", "words", "--base-url", broken.base_url, "-m", "m")
    assert (done.code, done.out) == (plain.code, plain.out) == (4, b"")
    assert done.errors.splitlines()[-1] == plain.errors.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.rule("ST-37", "ST-38")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_hanging_title_is_waited_for_a_moment(program: Dsh, model: Model, form: str) -> None:
    model.title = hang()
    process = program.start("run", "--title-model", "same", "words", *(["--json"] if form == "json" else []))
    assert process.stdout is not None
    if form == "text":
        assert process.stdout.readline() == b"the answer\n"
    else:
        while b'"turn/end"' not in process.stdout.readline():
            pass
    assert process.poll() is None  # the answer is out while the title is waited for
    done = finish(process)
    assert done.code == 0
    assert done.errors == "dsh: the model gave no title: it was not there 2 s after the answer\n"
    assert model.titling[0].gone.wait(10)
    assert titles(program) == [("fallback", "words")]
    assert program.data("turn/end") == [{"turn": 1, "reason": {"kind": "completed"}}]
    if form == "json":
        assert (done.result["status"], done.result["answer"]) == ("completed", "the answer")
        assert done.result["durationMs"] < 2000  # what was waited for is no part of the turn


@pytest.mark.slow
def test_a_late_title_is_still_printed_as_an_event(program: Dsh, model: Model) -> None:
    model.title = says("late", pieces=2, delay=0.2)
    done = program("run", "--title-model", "same", "words", "--json")
    kinds = [line["type"] for line in done.lines]
    assert kinds[-4:] == ["turn/start", "session/title", "turn/end", "result"]
    assert kinds.count("turn/end") == 2
    assert [{"sessionId": program.session(), **e} for e in program.log()] == done.lines[:-1]
    assert (done.code, done.result["turn"], done.result["status"]) == (0, 1, "completed")


@pytest.mark.slow
@pytest.mark.rule("ST-38")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_waiting(program: Dsh, model: Model, number: signal.Signals, code: int) -> None:
    model.title = hang()
    process = program.start("run", "--title-model", "same", "words", env={"DSH_TITLES_TIMEOUT_MS": "600000"})
    assert process.stdout is not None
    assert process.stdout.readline() == b"the answer\n"
    process.send_signal(number)
    done = finish(process)
    assert done.code == code  # HD-10
    assert "2 s after" not in done.errors
    assert program.data("turn/end") == [{"turn": 1, "reason": {"kind": "completed"}}]
    assert program.rows("SELECT count(*) FROM lease") == [(0,)]


@pytest.mark.slow
@pytest.mark.rule("ST-37", "ST-38")
def test_a_time_limit_is_for_the_answer_alone(program: Dsh, model: Model) -> None:
    model.title = hang()
    done = program("run", "--title-model", "same", "--timeout", "1.2", "words")
    assert (done.code, done.text) == (0, "the answer\n")
    assert "TIME_LIMIT" not in done.errors
    with FakeProvider(hang(), then="repeat") as slow:
        done = program("run", "--title-model", "same", "--timeout", "0.5", "x", "--base-url", slow.base_url, "-m", "m")
    assert done.code == 6


@pytest.mark.slow
def test_a_run_in_the_background_titles_its_session(tmp_path: Path, model: Model) -> None:
    model.title = says("late", pieces=2, delay=0.2)
    with background(tmp_path, model) as program:
        session = detach(program, "--title-model", "same", "words")
        assert program("wait", session).code == 0
        assert program("attach", session).text == "the answer\n"
        program.wait_for(lambda: len(titles(program)) == 2)
        program.wait_for(lambda: program.rows("SELECT count(*) FROM lease") == [(0,)])
        assert program("title", session).text.startswith("late\t")
        assert program("attach", session).text == "the answer\n"  # the title's turn is none of a message


@pytest.mark.slow
@pytest.mark.rule("ST-38")
def test_a_message_that_comes_while_a_title_is_waited_for_is_answered(tmp_path: Path, model: Model) -> None:
    model.title = hang()
    with background(tmp_path, model) as program:
        session = detach(program, "--title-model", "same", "words")
        program.wait_for(lambda: program.data("turn/end"))
        assert program("send", session, "more").code == 0
        program.wait_for(lambda: program.rows("SELECT count(*) FROM lease") == [(0,)])
        assert [d["reason"]["kind"] for d in program.data("turn/end")] == ["completed", "completed"]
        assert [r.last_text for r in model.requests if not is_title(r)] == ["words", "more"]


@pytest.mark.slow
def test_what_cannot_be_asked_for_a_title(program: Dsh, model: Model, tmp_path: Path) -> None:
    done = program("run", "--title-model", "gpt", "words")
    assert (done.code, done.out) == (2, b"")
    assert done.errors == "dsh: --title-model must be off, same (the model of the session) or PROVIDER/MODEL (USAGE)\n"
    done = program("run", "--title-model", "openai/gpt", "words")
    assert (done.code, done.out) == (3, b"")
    assert done.errors.startswith("dsh: --title-model: provider 'openai' needs a key")
    assert model.requests == []
    assert program.rows("SELECT count(*) FROM session") == [(0,)]
    done = program("run", "words", env={"DSH_TITLES_MODEL": "openai/gpt"})
    assert (done.code, done.text) == (0, "the answer\n")
    assert done.errors.startswith("dsh: no model is asked for a title: provider 'openai' needs a key")
    done = program("run", "--title-model", "same", "words", env={"DSH_PLUGINS_DISABLED": "titles"})
    assert (done.code, done.errors.splitlines()[0]) == (
        3,
        "dsh: --title-model: titles are switched off (INVALID_CONFIG)",
    )
    (tmp_path / "mock.jsonl").write_text('{"text": "hi"}\n')
    done = program("run", "--mock", str(tmp_path / "mock.jsonl"), "--title-model", "openai/gpt", "words")
    assert (done.code, done.out) == (3, b"")
    done = program("run", "words", env={"DSH_TITLES_MAX_TITLE_BYTES": "10"})
    assert (done.code, done.errors) == (
        3,
        "dsh: titles.fallback_max_bytes must be at most titles.max_title_bytes (INVALID_CONFIG)\n",
    )


def test_recorded_answers_have_titles_too(program: Dsh, tmp_path: Path) -> None:
    lines = ['{"text": "hi"}', '{"text": "a recorded title", "purpose": "session-title"}']
    (tmp_path / "mock.jsonl").write_text("\n".join(lines))
    done = program("run", "--mock", str(tmp_path / "mock.jsonl"), "--title-model", "same", "words")
    assert (done.code, done.text, done.errors) == (0, "hi\n", "")
    assert titles(program) == [("fallback", "words"), ("provider", "a recorded title")]


@pytest.mark.rule("ST-37")
@pytest.mark.parametrize(("asked", "loaded"), [("off", False), ("same", True)])
def test_what_asks_a_model_is_loaded_where_it_is_wanted(tmp_path: Path, asked: str, loaded: bool) -> None:
    (tmp_path / "mock.jsonl").write_text('{"text": "hi"}\n')
    script = (
        "import sys; from dsh.cli.group import invoke; invoke(sys.argv[1:]);"
        " print('dsh.capabilities.titles.model' in sys.modules)"
    )
    arguments = ["run", "--mock", str(tmp_path / "mock.jsonl"), "--title-model", asked, "words"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["hi", str(loaded)]


@pytest.mark.parametrize("command", [["title", "s"], ["title", "s", "--json"]])
def test_looking_does_not_load_the_loop(history: History, command: list[str]) -> None:
    history.turn(history.session("s"), 1, "words", text("yes"))
    script = (
        "import sys; from dsh.cli.group import invoke; invoke(sys.argv[1:]);"
        " sys.exit([m for m in ('trio', 'httpx') if m in sys.modules] or 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, *command], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.rule("ST-38")
@pytest.mark.parametrize("ends", ["title", "time", "signal"])
def test_how_long_a_title_is_waited_for(ends: str) -> None:
    """With a clock that only the test moves."""
    clock = trio.testing.MockClock()
    gate = Gate()

    async def main() -> None:
        async with world(say("done"), plugins=PLUGIN, titles__model="t/tiny") as w:
            w.host.get(LlmService).register(w.host.root, Script([gate.reply([], say("a title"))]), ["t"])
            agent = await w.agent()
            await w.turn(agent, "words")
            await gate.entered.wait()
            end = headless._End(trio.CancelScope(), Outcome(0.0))
            service, writer = w.host.get(Titles), Writer(os.open(os.devnull, os.O_WRONLY))
            in_time: list[bool] = []

            async def wait() -> None:
                in_time.append(await end.grace(writer, service, agent))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                clock.jump(headless.TITLE_GRACE_S - 0.1)
                await trio.testing.wait_all_tasks_blocked()
                assert (in_time, end.answered) == ([], True)
                if ends == "title":
                    gate.open.set()
                elif ends == "signal":
                    end()
                else:
                    clock.jump(0.2)
            assert in_time == [ends == "title"]
            assert not end.answered
            os.close(writer.fd)

    trio.run(main, clock=clock, strict_exception_groups=True)
