"""Who asks, what that one may see, and what it is told of failures (SQT-2, SQT-3, SQT-11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn, TypeVar

import trio

from dsh.core.errors import DshError, ToolError, code_of
from dsh.core.events import SessionHeader
from dsh.query.service.values import SessionRecord

T = TypeVar("T")

_MESSAGES = {
    "SESSION_QUERY_ABORTED": "the session search was aborted",
    "SESSION_QUERY_EVENT_NOT_FOUND": "that session has no such event",
    "SESSION_QUERY_INDEX_FAILED": "the index of sessions cannot be searched",
    "SESSION_QUERY_INVALID_CURSOR": "the pages of the session search did not follow each other",
    "SESSION_QUERY_INVALID_FILTER": "a filter of the session search is not valid",
    "SESSION_QUERY_INVALID_LIMIT": "the size of a page of the session search is not valid",
    "SESSION_QUERY_INVALID_LINEAGE": "the parents of that session form a circle",
    "SESSION_QUERY_INVALID_QUERY": "the query must be text, not blank, without NUL",
    "SESSION_QUERY_INVALID_SURFACE": "the log of that session is not valid",
    "SESSION_QUERY_INVALID_WINDOW": "before and after must be whole numbers within the largest window",
    "SESSION_QUERY_PERSISTENCE_FAILED": "the stored sessions cannot be read",
    "SESSION_QUERY_SESSION_NOT_FOUND": "there is no such session",
    "SESSION_QUERY_STALE_CURSOR": "the sessions changed during the search; search again",
    "SESSION_QUERY_TOOL_FAILED": "the session query failed",
    "SESSION_QUERY_TOOL_MISSING_AGENT": "session queries need an agent that asks",
    "SESSION_QUERY_TOOL_NO_CURRENT_STEP": "your session has no step yet, so there is nothing before it to search",
    "SESSION_QUERY_TOOL_UNAUTHORIZED": "that session does not exist or is not of this working directory",
}
FAILED, UNAUTHORIZED = "SESSION_QUERY_TOOL_FAILED", "SESSION_QUERY_TOOL_UNAUTHORIZED"


class SessionQueryToolError(ToolError):
    """A failure as the model is told of it: a code and the message that always goes with it."""

    def __init__(self, code: str) -> None:
        super().__init__(_MESSAGES[code], code=code)


def deny() -> NoReturn:
    raise SessionQueryToolError(UNAUTHORIZED)


class Caller:
    """The session of the agent that asks. Others are visible to it if they work in the very same directory."""

    def __init__(self, header: SessionHeader) -> None:
        self.id = header["id"]
        self.cwd = header.get("cwd")

    def sees(self, header: SessionHeader) -> bool:
        return header["id"] == self.id or (self.cwd is not None and header.get("cwd") == self.cwd)

    def require(self, header: SessionHeader, wanted: str) -> None:
        """The header that came with data must be that of the session asked for, and still visible (SQT-3)."""
        if header["id"] != wanted or not self.sees(header):
            deny()

    def visible(self, records: Iterable[SessionRecord]) -> set[str]:
        return {record.id for record in records if self.sees(record.header)} | {self.id}


def told_code(error: BaseException) -> str:
    """The code that the model gets for a failure: its own if it is one of those that mean something to it."""
    code = code_of(error)
    return code if code in _MESSAGES else FAILED


async def answered(work: Awaitable[T], report: Callable[[str, BaseException], Any]) -> T:
    """The result of some work. Of a failure the model gets code and message, the log the cause; a cancellation comes
    before any failure."""
    try:
        return await work
    except Exception as error:  # what it was is reported, the model gets a fixed text
        await trio.lowlevel.checkpoint_if_cancelled()
        if isinstance(error, SessionQueryToolError):
            raise
        report("session query", error)
        raise SessionQueryToolError(told_code(error)) from None


def failure_code(reason: Exception | None) -> str | None:
    """The code beside a session whose title could not be read; an authorization failure is not told."""
    if not isinstance(reason, DshError):
        return None if reason is None else FAILED
    code = told_code(reason)
    return None if code == UNAUTHORIZED else code
