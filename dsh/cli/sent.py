"""What a step sent to its model, made again from the log: `dsh show ID --request TURN.STEP`."""

from __future__ import annotations

from dsh.core.errors import SessionError, UsageError
from dsh.kernel.config import Config
from dsh.llm.adapters.chat_request import DIALECTS, Encoder
from dsh.llm.routes import configured
from dsh.session import rebuild
from dsh.store.database import Database


def body(db: Database, session: str, typed: str, config: Config) -> str:
    """The JSON body, byte for byte. The log names the route; its dialect is configured, and `chat` for a route that is
    not known here, as those of a base URL are. UsageError if there was no such step, LOG_CORRUPT
    if nothing can be made of what the log has."""
    turn, dot, step = typed.partition(".")
    if not (turn.isdecimal() and dot and step.isdecimal()):
        raise UsageError(f"--request takes TURN.STEP, as in 1.2, not {typed!r}")
    try:
        request = rebuild.request(db, session, int(turn), int(step))
        route = configured(config).get(request.provider)
        dialect = DIALECTS.get(route.kind if route else "chat", DIALECTS["chat"])
        return Encoder(dialect, route.thinking if route else None).encode(request).decode()
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a log from elsewhere, of no known shape
        what = f"step {typed} of session {session} has a header or messages that make no request: {error}"
        raise SessionError(what, code="LOG_CORRUPT") from error
