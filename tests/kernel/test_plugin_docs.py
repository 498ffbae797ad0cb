"""docs/plugins.md says what the program does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dsh.agent.prompt import Prompt
from dsh.kernel.points import POINTS
from dsh.kernel.scope import Context
from dsh.llm.service import LlmService
from dsh.tools.registry import Tools
from tests.agent.kit import ask, boom, say, world
from tests.shell.process import ROOT

TEXT = (ROOT / "docs" / "plugins.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMPLETE = [e for e in EXAMPLES if "close_my_file" not in e]


def test_every_hook_point_is_described_with_its_kind() -> None:
    rows = dict(re.findall(r"^\| `([a-z/-]+/[a-z/-]+)` \| (\w+)", TEXT, re.MULTILINE))
    told = {point: rows[point] for point in POINTS if point in rows}
    assert told == {point: kind for point, kind in POINTS.items() if point in rows}
    assert [point for point in POINTS if f"`{point}`" not in TEXT] == []


def namespace(example: str) -> dict[str, Any]:
    """The example as a module, with the helpers it takes for granted."""
    made: dict[str, Any] = {
        name: lambda *args: None for name in ("notify_me", "count", "time_of", "note", "budget_is_spent")
    }
    made.update(clock=lambda: 0, tests_pass=lambda cwd: True)
    exec(compile(example, "docs/plugins.md", "exec"), made)
    return made


@pytest.mark.parametrize("example", COMPLETE)
async def test_the_examples_run(example: str) -> None:
    async with world(boom(), ask(("shout", {"text": "hi"})), say("done")) as w:
        w.tool("bash")
        plugin = w.host.root.scope()
        namespace(example)["setup"](plugin)
        agent = await w.agent()
        await w.turn(agent, "hello")
        await w.turn(agent, "hello again")
        assert w.host.reports == [r for r in w.host.reports if "boom" in str(r[1])]
        if "shout" in example:
            assert w.texts(agent, "tool/result") == ["HI"]
        if "Silence" in example:
            quiet = await w.agent(provider="silence", model="quiet")
            await w.turn(quiet)
            assert w.texts(quiet, "assistant/message") == ["..."]
        if "retry" in example:
            assert [e["reason"]["kind"] for e in (x["data"] for x in w.log(agent, "turn/end"))] == ["completed"] * 2
        await plugin.dispose()


def test_the_services_have_what_is_said_of_them() -> None:
    for service, *names in re.findall(r"^\| `(\w+)` \| `dsh\.[\w.]+` \| (.*) \|$", TEXT, re.MULTILINE):
        known: dict[str, Any] = {"Tools": Tools, "Prompt": Prompt, "LlmService": LlmService}
        if service in known:
            for name in re.findall(r"`(\w+)\(", names[0]):
                assert callable(getattr(known[service], name)), (service, name)
    for name in re.findall(r"    (?:\w+ = )?(?:ctx|await ctx)\.(\w+)", EXAMPLES[1]):
        assert hasattr(Context, name) or name == "host"
