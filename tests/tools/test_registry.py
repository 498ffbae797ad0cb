"""Registration, layers, restrictions, and what a model is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsh.core.errors import InvariantError
from dsh.tools.definition import Output
from dsh.tools.errors import JsonSchemaError
from tests.tools.kit import Bench, make_agent, simple_tool


def _names(bench: Bench, agent: Any = None) -> list[str]:
    return [schema["name"] for schema in bench.tools.schemas(agent)]


@pytest.mark.rule("TL-20")
@pytest.mark.parametrize(
    "broken",
    [
        {"output": None},
        {"output": Output({"type": "json"}, "no function")},  # type: ignore[arg-type]  # the mistake under test
        {"output": Output({}, str, "no function")},  # type: ignore[arg-type]  # the mistake under test
        {"output": Output({"pattern": "x"}, str)},
        {"timeout_ms": 0},
        {"timeout_ms": float("inf")},
        {"name": "run_code"},
        {"parameters": {"x": float("nan")}},
    ],
)
def test_a_broken_definition_is_refused(broken: dict[str, Any]) -> None:
    bench = Bench()
    with pytest.raises((InvariantError, JsonSchemaError)):
        bench.tools.register(bench.host.root, replace(simple_tool("t"), **broken))
    assert _names(bench) == []


@pytest.mark.rule("TL-20")
async def test_the_disposer_takes_back_exactly_its_own_registration() -> None:
    bench = Bench()
    undo = bench.tools.register(bench.host.root, simple_tool("t"))
    await undo()
    bench.add("t")
    await undo()
    assert _names(bench) == ["t"]


@pytest.mark.rule("TL-21")
async def test_layers_refuse_duplicates_and_an_agents_own_tool_shadows() -> None:
    bench = Bench()
    bench.add("t")
    with pytest.raises(InvariantError):
        bench.add("t")
    agent, other = make_agent(), make_agent()
    scope = bench.host.root.scope(agent)
    own = simple_tool("t")
    bench.tools.register(scope, own)
    with pytest.raises(InvariantError):
        bench.tools.register(scope, own)
    shared = bench.tools.visible(None)["t"]
    assert bench.tools.visible(other)["t"] is shared
    assert bench.tools.visible(agent)["t"] is not shared
    await scope.dispose()
    assert bench.tools.visible(agent)["t"] is shared


@pytest.mark.rule("TL-22", "TL-23")
async def test_restrictions_narrow_the_global_tools_of_one_agent() -> None:
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.add(name)
    agent = make_agent()
    scope = bench.host.root.scope(agent)
    bench.tools.register(scope, simple_tool("own"))
    lift = bench.tools.restrict(scope, deny=["a"])
    assert _names(bench, agent) == ["b", "c", "own"]
    bench.add("later")
    assert _names(bench, agent) == ["b", "c", "later", "own"]
    bench.tools.restrict(scope, allow=["a", "b"])
    assert _names(bench, agent) == ["b", "own"]
    assert bench.tools.mode(agent, "c", {}) == "exclusive"
    assert bench.tools.find(agent, "c") is None
    await lift()
    assert _names(bench, agent) == ["a", "b", "own"]
    assert _names(bench) == ["a", "b", "c", "later"]


@pytest.mark.rule("TL-22")
def test_a_restriction_must_be_scoped_named_and_known() -> None:
    bench = Bench()
    bench.add("b")
    bench.add("a")
    scope = bench.host.root.scope(make_agent())
    with pytest.raises(InvariantError, match="one agent"):
        bench.tools.restrict(bench.host.root, deny=["a"])
    with pytest.raises(InvariantError, match="to allow or to deny"):
        bench.tools.restrict(scope)
    with pytest.raises(InvariantError, match="known: a, b"):
        bench.tools.restrict(scope, deny=["x"])
    with pytest.raises(InvariantError, match="run_code"):
        bench.tools.restrict(scope, allow=["run_code"])


@pytest.mark.rule("TL-24", "TL-26")
def test_a_model_is_told_three_fields_in_code_point_order() -> None:
    bench = Bench()
    for name in ("b", "a", "B"):
        bench.add(name, timeout_ms=5)
    schemas = bench.tools.schemas(None)
    assert [s["name"] for s in schemas] == ["B", "a", "b"]
    assert all(set(s) == {"name", "description", "parameters"} for s in schemas)
    with pytest.raises(TypeError):
        schemas[0]["parameters"]["type"] = "string"


@pytest.mark.rule("TL-25")
async def test_changes_are_announced_once_and_guards_are_not() -> None:
    bench = Bench()
    changes: list[int] = []
    bench.host.root.on("tools/change", lambda: changes.append(1))
    undo = bench.tools.register(bench.host.root, simple_tool("t"))
    assert len(changes) == 1
    bench.tools.guard(bench.host.root, lambda _: None)
    assert len(changes) == 1
    scope = bench.host.root.scope(make_agent())
    lift = bench.tools.restrict(scope, deny=["t"])
    await lift()
    assert len(changes) == 3
    await undo()
    assert len(changes) == 4


@pytest.mark.rule("TL-60", "TL-71")
def test_only_a_classifier_that_says_exactly_true_allows_overlap() -> None:
    bench = Bench()
    bench.add("plain")
    bench.add("safe", parallel=True, parameters={"n": {"type": "integer", "required": True}})
    root = bench.host.root
    bench.tools.register(root, replace(simple_tool("truthy"), is_concurrency_safe=lambda _: 1))
    bench.tools.register(root, replace(simple_tool("raising"), is_concurrency_safe=lambda _: 1 / 0))
    assert bench.tools.mode(None, "safe", {"n": 1}) == "parallel"
    assert bench.tools.mode(None, "safe", {"n": "1"}) == "exclusive"
    for name in ("plain", "truthy", "raising", "unknown"):
        assert bench.tools.mode(None, name, {"n": 1}) == "exclusive"
