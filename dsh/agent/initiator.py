"""On whose behalf the current task runs: the exact agent handle, carried by the task (CO-52).

For attribution only (logs, request headers, metrics): it proves neither that the agent is alive nor that anything is
permitted, and it leaves neither the process nor the memory. A task inherits it from the one that started it, so an
agent that is made in the middle of another's turn is set up on behalf of that one; its own driver then runs on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from dsh.core.errors import InvariantError

if TYPE_CHECKING:
    from dsh.agent.agent import Agent

_current: ContextVar[Agent | None] = ContextVar("initiator", default=None)


def initiator() -> Agent:
    """The agent that the current task works for; INVARIANT where there is none."""
    agent = _current.get()
    if agent is None:
        raise InvariantError("this task runs on behalf of no agent")
    return agent


@contextmanager
def on_behalf_of(agent: Agent | None) -> Iterator[None]:
    """What is called and started in this block runs for `agent`; with None for nobody, as shared workers do."""
    token = _current.set(agent)
    try:
        yield
    finally:
        _current.reset(token)
