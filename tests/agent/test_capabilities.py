"""Any one of the built-in plugins can be taken out, and the rest goes on (idea 5 of docs/architecture.md)."""

from __future__ import annotations

import pytest

from dsh.capabilities import BUILTIN
from tests.agent.kit import ask, say, world


@pytest.mark.parametrize("without", [None, *BUILTIN])
async def test_a_turn_completes_without(without: str | None) -> None:
    async with world(
        ask(("probe", {}), text="let me see"), say("seen"), plugins=[b for b in BUILTIN if b != without]
    ) as w:
        w.tool("probe")
        agent = await w.agent(meta={"cwd": "/"})
        assert await w.turn(agent) == {"kind": "completed"}
        assert w.texts(agent, "assistant/message") == ["let me see", "seen"]
        assert w.texts(agent, "tool/result") == ["probe done"]
        assert "probe" in {t["name"] for t in w.requests[0].tools}
        assert w.host.reports == []
