"""The five tools: arguments in, one text out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from dsh import query
from dsh.capabilities.session_query import told
from dsh.capabilities.session_query.access import (
    Caller,
    SessionQueryToolError,
    answered,
    deny,
    failure_code,
)
from dsh.capabilities.session_query.arguments import Clause, Nothing, chosen, seqs, texts, times
from dsh.core.lossless import JSON
from dsh.core.secrets import mask
from dsh.query.service import phrase
from dsh.query.service.service import SessionQuery
from dsh.query.service.values import EventPage, SessionPage, refuse
from dsh.session.sessions import Sessions
from dsh.tools.definition import Execution, ToolDefinition, define

P = TypeVar("P", SessionPage, EventPage)
Body = Callable[[Any, Caller], Awaitable[str]]

_TEXT = {"type": "string"}
_SEQ = {"type": "integer"}
_TIME = {"type": "string", "description": "Time such as 2026-01-31T09:30:00Z or 2026-01-31T09:30+02:00"}
_TEXTS = {"type": "array", "items": _TEXT}
_SURFACES = {"type": "array", "items": {**_TEXT, "enum": ["current", "shadowed", "log-only"]}}
_AVAILABILITY = {"type": "array", "items": {**_TEXT, "enum": ["live", "persisted"]}}
_QUERY = {**_TEXT, "required": True, "description": "Literal phrase; whole words, case and accents do not count"}
_TARGET = {**_TEXT, "description": "Session; yours if left out"}
_PLACE = {"session_id": _TARGET, "seq": {**_SEQ, "required": True}}


class SessionTools:
    """The tools of one program. `report(where, error)` is told the causes of failures, `most` bounds the hits."""

    def __init__(
        self, service: SessionQuery, sessions: Sessions, report: Callable[[str, BaseException], Any], most: int
    ) -> None:
        self._service = service
        self._sessions = sessions
        self._report = report
        self._most = most

    def definitions(self, timeout_ms: float) -> list[ToolDefinition]:
        """Searches come one at a time and have a time limit; the other three may overlap (SQT-9)."""
        return [
            self._tool(
                "session_search",
                "Find other sessions of this working directory in which a literal phrase stands, best first.",
                {
                    "query": _QUERY,
                    "session_ids": _TEXTS,
                    "created_at_from": _TIME,
                    "created_at_to": _TIME,
                    "parent_session_ids": _TEXTS,
                    "include_root_sessions": {
                        "type": "boolean",
                        "description": "Also sessions without a parent; alone, only those",
                    },
                    "availability": _AVAILABILITY,
                    "event_seq_from": _SEQ,
                    "event_seq_to": _SEQ,
                    "event_time_from": _TIME,
                    "event_time_to": _TIME,
                    "event_types": _TEXTS,
                    "event_surfaces": _SURFACES,
                },
                self._session_search,
                timeout_ms=timeout_ms,
            ),
            self._tool(
                "session_event_search",
                "Find events of one session, yours if none is named, in which a literal phrase stands, best first.",
                {
                    "query": _QUERY,
                    "session_id": _TARGET,
                    "seq_from": _SEQ,
                    "seq_to": _SEQ,
                    "time_from": _TIME,
                    "time_to": _TIME,
                    "event_types": _TEXTS,
                    "surfaces": _SURFACES,
                },
                self._event_search,
                timeout_ms=timeout_ms,
            ),
            self._tool(
                "session_trace",
                "Show which sessions a session came from and which came from it.",
                {"session_id": _TARGET},
                self._trace,
            ),
            self._tool(
                "session_event_trace",
                "Show what an event of a session replaced or was made from, and what came of it.",
                _PLACE,
                self._event_trace,
            ),
            self._tool(
                "session_event_read",
                "Read one event of a session in full, with what its neighbours say.",
                {**_PLACE, "before": _SEQ, "after": _SEQ},
                self._event_read,
            ),
        ]

    def _tool(
        self, name: str, description: str, parameters: dict[str, Any], body: Body, *, timeout_ms: float | None = None
    ) -> ToolDefinition:
        async def execute(args: Any, execution: Execution) -> JSON:
            return await answered(body(args, self._caller(execution)), self._report)

        return define(
            name=name,
            description=description,
            parameters=parameters,
            output=_TEXT,
            render=lambda _, value: str(value),
            execute=execute,
            timeout_ms=timeout_ms,
            parallel=timeout_ms is None,
            present_call=lambda args: {
                "card": "generic",
                "title": f"{name} {_subject(args)}".rstrip(),
                "kind": "search",
            },
        )

    def _caller(self, execution: Execution) -> Caller:
        live = self._sessions.live(execution.agent.session.id) if execution.agent is not None else None
        if live is None:
            raise SessionQueryToolError("SESSION_QUERY_TOOL_MISSING_AGENT")
        return Caller(live.header)

    # ------------------------------------------------------------------------------------------------- searching

    async def _session_search(self, args: Any, caller: Caller) -> str:
        if caller.cwd is None:
            deny()
        about, nothing = _clauses(
            lambda: chosen(args, "session_ids", "id"),
            lambda: times(args, "created_at_", "created-at"),
            lambda: chosen(args, "availability", "availability"),
        )
        inside, empty = _clauses(
            lambda: seqs(args, "event_seq_"),
            lambda: times(args, "event_time_", "time"),
            lambda: chosen(args, "event_types", "type"),
            lambda: chosen(args, "event_surfaces", "surface"),
        )
        wanted = texts(args, "parent_session_ids")
        about.append({"kind": "cwd", "values": [caller.cwd]})
        phrase.request(args["query"], sessions=about, events=inside)
        if wanted is not None or args.get("include_root_sessions"):
            seen = caller.visible(await self._service.list_sessions()) if wanted else set()
            parents: list[str | None] = [id_ for id_ in dict.fromkeys(wanted or ()) if id_ in seen]
            if args.get("include_root_sessions"):
                parents.append(None)
            about.append({"kind": "parent", "values": parents})
            nothing = nothing or not parents
        if nothing or empty:
            return told.NO_SESSIONS

        def page(cursor: str | None) -> Awaitable[SessionPage]:
            return self._service.search_sessions(
                args["query"], session_filters=about, event_filters=inside, limit=phrase.MAX_LIMIT, cursor=cursor
            )

        hits, capped = await self._collected(
            page, lambda hit: hit.header["id"] != caller.id and caller.sees(hit.header)
        )
        labels = await self._labels([hit.header["id"] for hit in hits], caller)
        return told.sessions(hits, labels, capped=capped)

    async def _event_search(self, args: Any, caller: Caller) -> str:
        target: str = args.get("session_id", caller.id)
        below = None
        if target == caller.id:
            below = self._current_step(target)
        else:
            await self._require(target, caller)
        inside, empty = _clauses(
            lambda: seqs(args, "seq_", below=below),
            lambda: times(args, "time_", "time"),
            lambda: chosen(args, "event_types", "type"),
            lambda: chosen(args, "surfaces", "surface"),
        )
        phrase.request(args["query"], events=inside, session=target)
        if empty:
            return told.NO_EVENTS
        header = None

        async def page(cursor: str | None) -> EventPage:
            nonlocal header
            found = await self._service.search_events(
                target, args["query"], filters=inside, limit=phrase.MAX_LIMIT, cursor=cursor
            )
            caller.require(found.session, target)
            header = found.session
            return found

        hits, capped = await self._collected(page, lambda hit: True)
        assert header is not None
        return told.events(header, hits, await self._labels([target], caller), capped=capped)

    async def _collected(
        self, page_at: Callable[[str | None], Awaitable[P]], accept: Callable[[Any], bool]
    ) -> tuple[list[Any], bool]:
        """Accepted hits of all pages up to the most that are shown, and whether there is another (SQT-6)."""
        found: list[Any] = []
        passed: set[str] = set()
        cursor: str | None = None
        while True:
            page = await page_at(cursor)
            for hit in filter(accept, page.items):
                if len(found) == self._most:
                    return found, True
                found.append(hit)
            cursor = page.next_cursor
            if cursor is None:
                return found, False
            if cursor in passed:
                refuse("INVALID_CURSOR", "a page of the search leads back to one before it")
            passed.add(cursor)

    def _current_step(self, session_id: str) -> int:
        """Where the step began in which the caller asks: what follows is not its past (SQT-5)."""
        live = self._sessions.live(session_id)
        found = query.row(live.db, "meter_step", session=session_id) if live is not None and live.stored else None
        if found is None:
            raise SessionQueryToolError("SESSION_QUERY_TOOL_NO_CURRENT_STEP")
        return int(found[0])

    # ------------------------------------------------------------------------------------------------ exact reads

    async def _trace(self, args: Any, caller: Caller) -> str:
        target: str = args.get("session_id", caller.id)
        visible = caller.visible(await self._service.list_sessions())
        if target not in visible:
            deny()
        found = await self._service.trace_session(target)
        caller.require(found.target.header, target)
        return told.family(found, visible, await self._labels(told.seen_in(found, visible), caller))

    async def _event_trace(self, args: Any, caller: Caller) -> str:
        target: str = args.get("session_id", caller.id)
        await self._require(target, caller)
        found = await self._service.trace_event(target, int(args["seq"]))
        caller.require(found.session, target)
        return told.trace(found)

    async def _event_read(self, args: Any, caller: Caller) -> str:
        target: str = args.get("session_id", caller.id)
        before, after = int(args.get("before", 0)), int(args.get("after", 0))
        await self._require(target, caller)
        found = await self._service.read_event(target, int(args["seq"]), before, after)
        caller.require(found.session, target)
        return told.window(found)

    async def _require(self, session_id: str, caller: Caller) -> None:
        """Refuse a session that is not there or not visible, both alike."""
        if session_id != caller.id:
            found = await self._service.filter_sessions([{"kind": "id", "values": [session_id]}])
            if session_id not in caller.visible(found):
                deny()

    async def _labels(self, session_ids: Iterable[str], caller: Caller) -> dict[str, str]:
        """What stands beside each id: its title, or that it has none."""
        labels: dict[str, str] = {}
        for result in await self._service.read_titles(session_ids):
            code = failure_code(result.reason)
            known = result.value if result.value is not None and caller.sees(result.value.session) else None
            if known is not None and known.title:
                labels[result.session_id] = f'"{mask(known.title)}"'
            else:
                labels[result.session_id] = "untitled" + (f" ({code})" if code else "")
        return labels


def _clauses(*makers: Callable[[], list[Clause]]) -> tuple[list[Clause], bool]:
    """The clauses of all arguments, each checked, and whether one of them leaves nothing."""
    made: list[Clause] = []
    nothing = False
    for make in makers:
        try:
            made += make()
        except Nothing:
            nothing = True
    return made, nothing


def _subject(args: Any) -> str:
    if "query" in args:
        return str(args["query"])
    return ":".join(str(args[name]) for name in ("session_id", "seq") if name in args)
