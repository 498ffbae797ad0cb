"""The todo list."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.kit import Bench, code, text


@pytest.fixture
def bench() -> Bench:
    return Bench(plugins=["dsh.capabilities.todo"])


def _todo(content: str, status: str = "pending", **more: Any) -> dict[str, Any]:
    return {"content": content, "status": status, **more}


@pytest.mark.rule("SE-60", "SE-61", "SE-62")
async def test_the_whole_list_is_one_event_with_trimmed_contents(bench: Bench) -> None:
    todos = [_todo(" a "), _todo("b", "in_progress"), _todo("c", "completed"), _todo("d")]
    result = await bench.call("todo_write", todos=todos)
    stored = [_todo("a"), _todo("b", "in_progress"), _todo("c", "completed"), _todo("d")]
    assert bench.agent.events == [("todo/write", {"todos": stored})]
    assert result.value == {"todos": stored, "counts": {"pending": 2, "inProgress": 1, "completed": 1}}
    assert text(result) == "Updated todo list: 2 pending, 1 in progress, 1 completed."
    assert not (await bench.call("todo_write", todos=[])).is_error


@pytest.mark.rule("SE-61")
@pytest.mark.parametrize(
    "todos",
    [
        [_todo("  ")],
        [_todo("a"), _todo("a ")],
        [_todo("a", "done")],
        [_todo("a", extra=1)],
        [_todo("a", "in_progress"), _todo("b", "in_progress")],
        [{"content": "a"}],
    ],
)
async def test_a_list_that_breaks_a_rule_leaves_the_log_alone(bench: Bench, todos: Any) -> None:
    assert (await bench.call("todo_write", todos=todos)).is_error
    assert bench.agent.events == []


@pytest.mark.rule("SE-62", "TC-4")
async def test_without_a_session_there_is_no_list(bench: Bench) -> None:
    assert code(await bench.call("todo_write", agent=None, todos=[])) is None
