"""Tables whose iteration is live, and layers made of them (SC-27 to SC-34)."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from dsh.agent.prompt import Prompt
from dsh.core.errors import DshError, InvariantError
from dsh.kernel.scope import Context, Layers
from dsh.kernel.tables import AnonymousEntries, NamedEntries
from dsh.llm.service import LlmService
from dsh.tools.registry import Tools


@pytest.mark.rule("SC-31", "SC-32")
def test_equal_values_are_two_entries() -> None:
    table: AnonymousEntries[str] = AnonymousEntries()
    first, second = table.add("same"), table.add("same")
    assert list(table) == ["same", "same"]
    first()
    first()
    assert list(table) == ["same"]
    table.add("front", first=True)
    assert list(table) == ["front", "same"]
    second()
    assert list(table) == ["front"]


@pytest.mark.rule("SC-33")
def test_entries_that_come_are_seen_and_entries_that_go_are_not() -> None:
    table: AnonymousEntries[int] = AnonymousEntries()
    undo = {n: table.add(n) for n in range(4)}
    seen = []
    for value in table:
        seen.append(value)
        if value == 1:
            undo[2]()
            table.add(9)
    assert seen == [0, 1, 3, 9]


@pytest.mark.rule("SC-33")
def test_an_iteration_survives_that_its_own_place_and_those_around_it_go() -> None:
    table: AnonymousEntries[int] = AnonymousEntries()
    undo = {n: table.add(n) for n in range(5)}
    seen = []
    for value in table:
        seen.append(value)
        if value == 2:
            for gone in (2, 3, 1, 4):
                undo[gone]()
            table.add(7)
    assert seen == [0, 1, 2, 7]
    assert list(table) == [0, 7]


@pytest.mark.rule("SC-33")
def test_a_table_that_was_drained_ends_what_ran_over_it() -> None:
    table: AnonymousEntries[int] = AnonymousEntries()
    undo = [table.add(n) for n in range(2)]
    seen = []
    for value in table:
        seen.append(value)
        for gone in undo:
            gone()
        table.add(5)
    assert seen == [0]
    assert list(table) == [5]
    names: NamedEntries[int] = NamedEntries()
    drop = names.insert("a", 1)
    found = []
    for name, _ in names:
        found.append(name)
        drop()
        names.insert("b", 2)
    assert found == ["a"]


@pytest.mark.rule("SC-30", "SC-32", "SC-33")
def test_names_are_taken_once_and_undone_exactly() -> None:
    def taken(name: str) -> DshError:
        return DshError(f"{name}?", code="TAKEN")

    table: NamedEntries[int] = NamedEntries(taken)
    undo = table.insert("a", 1)
    with pytest.raises(DshError) as caught:
        table.insert("a", 2)
    assert caught.value.code == "TAKEN"
    undo()
    table.insert("b", 3)
    table.insert("a", 4)
    undo()
    assert list(table) == [("b", 3), ("a", 4)]
    assert table.get("a") == 4
    with pytest.raises(InvariantError) as refused:
        _twice(NamedEntries())
    assert refused.value.code == "DUPLICATE_NAME"


def _twice(table: NamedEntries[int]) -> None:
    table.insert("x", 1)
    table.insert("x", 1)


@pytest.mark.rule("SC-27")
def test_one_context_decides_who_sees_and_how_long() -> None:
    takers: list[Any] = [
        Layers.add, Tools.register, Tools.guard, Tools.restrict, Prompt.section, Prompt.variable, Prompt.tools,
        LlmService.register, Context.on, Context.provide, Context.declare,
    ]  # fmt: skip
    for taker in takers:
        parameters = list(inspect.signature(taker).parameters.values())
        itself = taker in vars(Context).values()
        contexts = [p for p in parameters if p.annotation == "Context" or (p.name == "self" and itself)]
        assert len(contexts) == 1, taker
        assert not {"scope", "key", "owner", "agent"} & {p.name for p in parameters}, taker
