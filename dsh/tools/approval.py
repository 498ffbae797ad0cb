"""The question an `ask` decision puts to a person: the service a capability provides, and what it is asked.

Without a provider nobody can be asked, and the call is denied (TL-34). Only `allowed-once` grants.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dsh.kernel.signal import Signal
from dsh.tools.definition import Agent

Outcome = Literal["allowed-once", "rejected", "cancelled", "unavailable"]


class ApprovalRequest(NamedTuple):
    """What is asked. `signal` withdraws the question: the answer is then `cancelled`, at once (AP-9)."""

    agent: Agent
    tool_name: str
    call_id: str
    reason: str | None
    signal: Signal


class Approval:
    """Base of the approval service; a provider overrides `request`. This one has no channel to a person."""

    async def request(self, request: ApprovalRequest) -> Outcome:
        return "unavailable"
