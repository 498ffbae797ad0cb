"""The opt-in tools with which a model reads other sessions, and its own past (SQT-1 to SQT-12).

What one may see is decided here, by the working directory; what is true is read by dsh.query.service. The setting
`session_tools.enabled` turns them on.

    arguments.py    what a model wrote, as filters: lists, seqs, times
    access.py       who asks, what that one may see, how failures reach it
    told.py         results as text
"""

from __future__ import annotations

from dsh.agent.prompt import Prompt
from dsh.kernel.scope import Context
from dsh.tools.registry import Tools

_SECTION = (
    "Use session_search to find earlier sessions of this directory by a literal phrase, session_event_search to find "
    "events in one session (yours by default), session_trace and session_event_trace to follow where sessions and "
    "events came from, and session_event_read to read an event in full."
)


def setup(ctx: Context) -> None:
    config = ctx.host.config
    if not config["session_tools.enabled"]:
        return
    from dsh.capabilities.session_query.tools import SessionTools
    from dsh.query.service.service import shared
    from dsh.session.sessions import Sessions

    sessions = ctx.get(Sessions)
    service = shared(ctx.host, sessions, sessions.db.path)
    made = SessionTools(service, sessions, ctx.host.report, config["session_tools.max_search_results"])
    registry = ctx.get(Tools)
    for definition in made.definitions(config["session_tools.timeout_ms"]):
        registry.register(ctx, definition)
    prompt = ctx.host.find(Prompt)
    if prompt is not None:
        prompt.section(ctx, name="tool:session-query", order=113, text=_SECTION)
