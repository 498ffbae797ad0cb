"""Plugins of others: one that fails is named, undone, and the rest goes on."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsh.core import kinds
from dsh.core.errors import ConfigError, InvariantError
from dsh.core.events import event_type
from dsh.core.messages import text_block
from dsh.kernel import plugins
from dsh.kernel.config import Config, check, known
from dsh.kernel.host import Host, Plugin
from dsh.kernel.scope import Context
from tests.agent.kit import say, world

UNIONS = (
    kinds.content_block, kinds.message_source, kinds.finish_reason, kinds.turn_trigger, kinds.turn_end_reason,
    event_type,
)  # fmt: skip


class Bench:
    """A host, and plugins as modules that exist only here or as files."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        values = {key.replace("__", "."): value for key, value in settings.items()}
        self.host = Host(Config({k: (check(known(k), v, "test"), "flag") for k, v in values.items()}, {}))
        self._folder = folder
        self._monkeypatch = monkeypatch

    def module(self, name: str, setup: Any, /, **more: Any) -> Plugin:
        module = ModuleType(name)
        vars(module).update({"setup": setup, **more})
        self._monkeypatch.setitem(sys.modules, name, module)
        return Plugin(name, "installed", name)

    def file(self, name: str, text: str) -> Plugin:
        path = self._folder / f"{name}.py"
        path.write_text(text)
        self._monkeypatch.delitem(sys.modules, name, raising=False)
        return Plugin(name, "user", name, str(path))

    async def start(self, *given: Plugin, **more: Any) -> list[str]:
        return await plugins.start(self.host, given, **more)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    before = {kind.name: list(kind) for kind in UNIONS}
    yield Bench(tmp_path, monkeypatch, plugins__start_timeout_ms=300)
    assert {kind.name: list(kind) for kind in UNIONS} == before


def fails(error: BaseException) -> Any:
    def setup(ctx: Context) -> None:
        ctx.declare(event_type, "left/behind")
        ctx.provide(Path, Path())
        ctx.on("agent/status", print)
        raise error

    return setup


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no luck"), "ValueError: no luck"),
        (InvariantError("bad name"), "bad name"),
        (SystemExit(3), "it called sys.exit(3)"),
        (GeneratorExit("odd"), "GeneratorExit: odd"),
        (ConfigError("my key is missing"), "my key is missing"),
    ],
)
async def test_a_plugin_that_fails_is_named_and_undone(bench: Bench, error: BaseException, reason: str) -> None:
    bad, good = bench.module("bad", fails(error)), bench.module("good", lambda ctx: ctx.provide(int, 5))
    lines = await bench.start(bad, good)
    assert lines == [f"the installed plugin bad is not used: {reason}"]
    assert (bad.state, good.state) == ("failed", "loaded")
    assert "left/behind" not in event_type
    assert bench.host.find(Path) is None
    assert bench.host.get(int) == 5
    assert (bad.registered, good.registered) == ([], [("service", "int")])
    bench.host.hooks.notify("agent/status", None, None)


async def test_what_a_module_must_be(bench: Bench) -> None:
    async def asynchronous(ctx: Context) -> None: ...

    lines = await bench.start(
        bench.module("newer", print, DSH_INTERFACE=2),
        bench.module("without", None),
        bench.module("asynchronous", asynchronous),
        bench.module("hidden", lambda ctx: asynchronous(ctx)),
        bench.module("right", lambda ctx: None, DSH_INTERFACE=plugins.INTERFACE, name="x", description="y"),
        bench.file("mistyped", "def setup(ctx:\n"),
        bench.file("raises", "import nothing_of_this_name\n"),
        bench.file("json", ""),
    )
    said = [line.partition(" is not used: ")[2] for line in lines]
    assert said[:4] == [
        "it is made for plugin interface 2, this program has 1",
        "it has no setup(ctx)",
        "its setup is asynchronous, and it has to be a plain function",
        "its setup is asynchronous, and it has to be a plain function",
    ]
    assert said[4].startswith("SyntaxError: ")
    assert said[5] == "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    assert said[6] == "a module is already called 'json'"
    assert "raises" not in sys.modules


async def test_registering_twice_is_a_failure(bench: Bench) -> None:
    def twice(ctx: Context) -> None:
        ctx.provide(int, 1)
        ctx.provide(int, 2)

    assert await bench.start(bench.module("twice", twice)) == [
        "the installed plugin twice is not used: a int is already provided"
    ]
    assert bench.host.find(int) is None


async def test_a_module_that_the_settings_name_must_exist(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        await bench.start(Plugin("nowhere", "setting", "nowhere"))
    with pytest.raises(ConfigError, match="nowhere"):
        await bench.start(Plugin("nowhere.deep", "setting", "nowhere.deep"))
    (line,) = await bench.start(Plugin("gone", "installed", "gone"))
    assert line == "the installed plugin gone is not used: ModuleNotFoundError: No module named 'gone'"


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import threading; threading.Event().wait()",
        "while True:\n    try:\n        while True: pass\n    except Exception: pass",
        "import subprocess; subprocess.run(['sleep', '60'])",
    ],
)
async def test_a_plugin_that_hangs_is_interrupted(bench: Bench, body: str) -> None:
    began = time.monotonic()
    indented = body.replace("\n", "\n    ")
    plugin = bench.file("hangs", f"def setup(ctx):\n    {indented}\n")
    at_import = bench.file("hangs_too", body + "\n\ndef setup(ctx): pass\n")
    lines = await bench.start(plugin, at_import, bench.module("good", lambda ctx: None))
    assert [line.partition(" is not used: ")[2] for line in lines] == [
        "it did not start within 0.3 s (plugins.start_timeout_ms)"
    ] * 2
    assert bench.host.plugins[-1].state == "loaded"
    assert time.monotonic() - began < 20


async def test_signal_handlers_are_afterwards_what_they_were(bench: Bench) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
    interrupt = signal.getsignal(signal.SIGINT)

    def setup(ctx: Context) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    try:
        terminate = signal.getsignal(signal.SIGTERM)
        await bench.start(bench.module("signals", setup))
        assert signal.getsignal(signal.SIGINT) == interrupt
        assert signal.getsignal(signal.SIGTERM) == terminate
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        signal.raise_signal(signal.SIGALRM)
        assert heard == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


async def test_a_run_that_was_told_to_end_does_not_wait_for_a_plugin(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = Bench(tmp_path, monkeypatch, plugins__start_timeout_ms=60_000)
    told: list[bool] = []

    def setup(ctx: Context) -> None:
        told.append(True)
        time.sleep(60)

    never = slow.module("never", lambda ctx: told.append(False))
    assert await slow.start(slow.module("slow", setup), never, interrupted=lambda: bool(told)) == []
    assert told == [True]
    assert never.state == "found"


async def test_an_interrupt_of_the_person_is_not_a_plugins_failure(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        await bench.start(bench.module("keys", fails(KeyboardInterrupt())))
    await bench.host.close()  # undone with the host
    assert await bench.start(bench.module("keys", fails(KeyboardInterrupt())), interrupted=lambda: False) != []


def test_outside_the_main_thread_a_start_has_no_limit() -> None:
    done: list[int] = []
    thread = threading.Thread(target=lambda: plugins._limited(lambda: done.append(1), 1, None))
    thread.start()
    thread.join()
    assert done == [1]


async def test_what_a_plugin_prints_while_it_starts_is_no_answer(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    await bench.start(bench.module("loud", lambda ctx: print("hello")))
    assert capsys.readouterr() == ("", "hello\n")


async def test_a_package_in_a_folder_may_import_its_own_parts(bench: Bench, tmp_path: Path) -> None:
    package = tmp_path / "parted"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from .part import VALUE\nimport parted.part\ndef setup(ctx): ctx.provide(int, VALUE)\n"
    )
    (package / "part.py").write_text("VALUE = 7\n")
    try:
        assert await bench.start(Plugin("parted", "user", "parted", str(package / "__init__.py"))) == []
        assert bench.host.get(int) == 7
    finally:
        for name in ("parted", "parted.part"):
            sys.modules.pop(name, None)


async def test_plugins_of_a_project_that_is_not_trusted_are_named_once(bench: Bench) -> None:
    untrusted = [Plugin(name, "project", name) for name in ("a", "b")]
    for plugin in untrusted:
        plugin.state, plugin.reason = "untrusted", "dsh plugins trust /x"
    assert await bench.start(*untrusted) == [
        "plugins of this project are not used, its folder is not trusted: a, b (dsh plugins trust /x)"
    ]


# ------------------------------------------------------------------------------------------------------ open kinds


@pytest.mark.rule("CO-1", "CO-5")
@pytest.mark.parametrize("kind", UNIONS, ids=lambda kind: kind.name)
async def test_each_open_kind_is_extended_in_one_declaration(bench: Bench, kind: kinds.OpenKind) -> None:
    def setup(ctx: Context) -> None:
        ctx.declare(kind, "weather/new")

    plugin = bench.module("weather", setup)
    assert await bench.start(plugin) == []
    assert "weather/new" in kind
    assert plugin.registered == [(kind.name, "weather/new")]
    (line,) = await bench.start(bench.module("again", setup))
    assert f"{kind.name} 'weather/new' is declared twice" in line
    assert "weather/new" in kind  # the first one's
    await bench.host.close()
    assert "weather/new" not in kind


async def test_a_facet_is_one_that_something_asks_for(bench: Bench) -> None:
    ctx = bench.host.root.scope()
    ctx.declare(event_type, "weather/note", out_of_band=True)
    assert event_type.facet("weather/note", "out_of_band") is True
    assert event_type.facet("turn/start", "out_of_band") is None
    assert event_type.facet("never/heard", "out_of_band") is None
    with pytest.raises(InvariantError, match="known: text"):
        ctx.declare(kinds.content_block, "weather/map", colour=1)
    await ctx.dispose()
    assert "weather/map" not in kinds.content_block


async def test_an_old_undo_does_not_take_a_later_declaration_back() -> None:
    undo = kinds.turn_trigger.declare("weather/storm")
    undo()
    again = kinds.turn_trigger.declare("weather/storm")
    undo()
    assert "weather/storm" in kinds.turn_trigger
    again()


async def test_a_built_in_plugin_is_switched_off_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, plugins__disabled=["quiet"])
    called: list[int] = []
    bench.module("some.quiet", lambda ctx: called.append(1))
    bench.module("some.loud", lambda ctx: called.append(2))
    bench.host.start(["some.quiet", "some.loud"])
    assert called == [2]
    assert [(p.name, p.state) for p in bench.host.plugins] == [("quiet", "off"), ("loud", "loaded")]


@pytest.mark.rule("CO-1", "CO-2")
async def test_values_of_new_kinds_go_through_the_loop() -> None:
    """All six, declared by one plugin and used; whether they were declared changes nothing for the reader."""
    chunks = say("fine", kind="weather/done")
    async with world(chunks, say("again")) as w:
        plugin = w.host.root.scope()
        for kind in UNIONS:
            facets = {"out_of_band": True} if kind is event_type else {}
            plugin.declare(kind, f"weather/{kind.name.split()[-1]}", **facets)
        agent = await w.agent()
        place: Any = {"type": "weather/block", "place": "Oslo"}
        agent.followup([place, text_block("hm")], source={"kind": "weather/source"})
        await agent.when_idle()
        assert w.last(agent, "turn/end")["data"]["reason"] == {"kind": "completed"}  # an unknown finish is a success
        assert w.last(agent, "user/message")["data"]["source"] == {"kind": "weather/source"}
        assert w.requests[0].messages[0]["content"][0] == place
        session = agent.session
        await w.sessions.append_out_of_band(session, "weather/type", {"text": "rain"}, {"kind": "weather/trigger"})
        assert w.last(agent, "turn/start")["data"]["trigger"] == {"kind": "weather/trigger"}
        session.append("turn/start", {"turn": session.turns + 1, "trigger": {"kind": "weather/trigger", "at": 5}})
        session.append("turn/end", {"turn": session.turns, "reason": {"kind": "weather/reason", "storm": True}})
        await plugin.dispose()
        await w.turn(agent, "go on")
        assert w.requests[1].messages[0]["content"][0] == place
        reasons = [e["data"]["reason"] for e in w.log(agent, "turn/end")]
        assert reasons[2] == {"kind": "weather/reason", "storm": True}
