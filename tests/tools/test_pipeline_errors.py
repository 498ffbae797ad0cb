"""Errors of a call: what text and code they get, and what never starts a body (TL-42, TL-57, TL-70, TL-72)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from dsh.core.errors import ToolError
from dsh.tools.definition import Execution
from dsh.tools.errors import message_of
from dsh.tools.pipeline import Call, execute
from tests.tools.kit import Bench, code, text


@pytest.mark.rule("TL-57")
async def test_any_raised_thing_has_a_text_and_only_our_codes_are_logged() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Foreign(Exception):
        code = "ENOENT"

    assert message_of(Mute()) == "<unrenderable error>"
    bench = Bench()
    errors: list[Exception] = [Mute(), Foreign("f"), ToolError("plain"), ToolError("coded", code="C"), ValueError()]

    async def body(args: Any, execution: Execution) -> Any:
        async with trio.open_nursery():
            raise errors.pop(0)

    bench.add("t", body)
    codes = [code(await bench.call("t")) for _ in range(5)]
    assert codes == [None, None, None, "C", None]


@pytest.mark.rule("TL-57")
async def test_an_error_text_with_half_a_character_is_mended() -> None:
    bench = Bench()

    async def body(args: Any, execution: Execution) -> Any:
        raise ToolError("bad \udcff name")

    bench.add("t", body)
    assert text(await bench.call("t")) == "Error: bad \ufffd name"


@pytest.mark.rule("TL-70", "TL-72")
async def test_the_body_runs_only_with_fitting_arguments() -> None:
    bench = Bench()
    bench.add("t", parameters={"n": {"type": "integer", "required": True}, "s": {"type": "string"}})
    result = await bench.call("t", s=1)
    assert code(result) == "INVALID_ARGS"
    assert text(result) == 'Error: invalid arguments: missing required property "n"; "s" must be a string'
    raw = await execute(bench.tools, Execution("c", "t", "{oops"))
    assert text(raw) == 'Error: invalid arguments: "arguments" must be an object'


async def test_a_refused_call_does_not_run_but_a_denial_stays() -> None:
    bench = Bench()
    ran: list[int] = []

    async def body(args: Any, execution: Execution) -> Any:
        ran.append(1)

    async def refused() -> str:
        call = Call(bench.tools, Execution("c", "t", {}))
        await call.prepare()
        call.refuse("no disk")
        await call.dispatch()
        return text(await call.finalize())

    bench.add("t", body)
    assert await refused() == "Error: no disk"
    bench.tools.guard(bench.host.root, lambda _: "denied")
    assert await refused() == "Error: denied"
    assert ran == []


@pytest.mark.rule("TL-42")
async def test_trios_own_cancellation_passes_through_the_pipeline() -> None:
    bench = Bench()

    async def body(args: Any, execution: Execution) -> Any:
        await trio.sleep_forever()

    bench.add("t", body)
    with trio.move_on_after(0.02) as scope:
        await bench.call("t")
    assert scope.cancelled_caught
