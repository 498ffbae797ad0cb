"""The service: when a title is made, whose result still counts, and how it gets into the log (docs/spec session-title).

A session's title work is one row of `_Work`, of which only the newest counts: a later one, a person's title, the end of
the session or the removal of the provider cancels it, and what a cancelled one brings is dropped even if the call took
no notice. What is written goes through the session's queue, one after the other; a call is outside of it.

Nothing here is awaited by a turn. The fallback goes into the log before the first step of the turn that brought the
first prompt, which takes as long as an append; a task does it where no step follows. A provider's work runs in tasks
of its own beside the main request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from dsh.capabilities.titles.provider import (
    Route,
    TitleError,
    TitleProvider,
    TitleRequest,
    check_provider,
    checked,
)
from dsh.core.errors import ConfigError, SessionError, code_of
from dsh.core.events import Event
from dsh.core.messages import Request
from dsh.kernel.config import Config
from dsh.kernel.hooks import contained, is_our_own
from dsh.kernel.host import Host
from dsh.kernel.scope import Context
from dsh.kernel.signal import Signal
from dsh.session import titles
from dsh.session.session import Session
from dsh.session.sessions import Sessions
from dsh.session.titles import Title

if TYPE_CHECKING:
    from dsh.agent.agent import Agent

WARNING = "session title"  # where the host is told that a failure belongs
_TYPE, _LLM_REQUEST = "session/title", "session/title-llm-request"


class Limits(NamedTuple):
    """What a title may have: words and bytes of a fallback, bytes of a provider's."""

    fallback_words: int
    fallback_bytes: int
    title_bytes: int

    @classmethod
    def of(cls, config: Config) -> Limits:
        """From the settings `titles.*`; INVALID_CONFIG (ST-13)."""
        limits = cls(
            config["titles.fallback_max_words"], config["titles.fallback_max_bytes"], config["titles.max_title_bytes"]
        )
        if limits.fallback_bytes > limits.title_bytes:
            raise ConfigError("titles.fallback_max_bytes must be at most titles.max_title_bytes")
        return limits


class _Registration:
    def __init__(self, provider: TitleProvider, stop_listening: Callable[[], None]) -> None:
        self.provider = provider
        self.stop_listening = stop_listening
        self.running: set[_Work] = set()
        self.removed: trio.Event | None = None  # set once it is gone


class _Work:
    """One title to be made: scheduled, running, or over. `last` is the seq up to which messages count."""

    def __init__(self, session: Session, by: _Registration | None, last: int, signal: Signal) -> None:
        self.session = session
        self.by = by
        self.last = last
        self.signal = signal
        self.route: Route | None = None
        self.stepped = False  # a step was opened after the message
        self.main_is_off = trio.Event()  # the main call was dispatched, or will not be
        self.done = trio.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Its provider's removal waits for the end of this."""
        if self.by is not None:
            self.by.running.add(self)
        try:
            yield
        finally:
            if self.by is not None:
                self.by.running.discard(self)
            self.signal.detach()
            self.done.set()

    def require_wanted(self) -> None:
        if self.signal.reason is not None:
            code, why = _UNWANTED.get(self.signal.reason, ("ABORTED", "the title's making was cancelled"))
            raise TitleError(why, code=code)


_UNWANTED = {
    "superseded": ("TITLE_SUPERSEDED", "another title was asked for meanwhile"),
    "removed": ("TITLE_PROVIDER_REMOVED", "the title provider was removed meanwhile"),
    "closed": ("SESSION_NOT_LIVE", "the session was closed before it had a new title"),
}


class _State:
    """What is remembered of a live session."""

    def __init__(self) -> None:
        self.queue = trio.Lock()  # ST-51: first come, first written
        self.due = False  # a person's prompt has come, and there was no title
        self.work: _Work | None = None  # the newest
        self.scheduled = False  # it waits for the main model call

    def supersede(self, reason: str) -> None:
        """Whatever is scheduled or runs is not wanted any more (ST-34)."""
        self.scheduled = False
        if self.work is not None:
            self.work.signal.cancel(reason)
            self.work = None


class Titles:
    """A service. `nursery` takes the tasks; without one titles are made only by who waits for them."""

    def __init__(self, host: Host, sessions: Sessions, limits: Limits, nursery: trio.Nursery | None = None) -> None:
        self._host = host
        self._sessions = sessions
        self._limits = limits
        self._nursery = nursery
        self._registration: _Registration | None = None
        self._states: dict[Session, _State] = {}
        self._tasks: set[trio.Event] = set()
        self._closed = False
        self._handlers: dict[str, Callable[[Session, Event], None]] = {
            "user/message": self._prompt_came,
            "step/start": self._step_began,
            "step/end": self._step_ended,
            "request/header": self._header_came,
            _TYPE: self._title_came,
        }

    # ------------------------------------------------------------------------------------------------ operations

    def get(self, session: str) -> Title | None:
        """The title in the log of a session, live or not (ST-73)."""
        return titles.newest(self._sessions.db, session)

    async def give(self, session: Session, title: str) -> Title:
        """Log a person's title, normalised by `titles.given`: it stays until somebody asks for another."""
        self._require_live(session)
        return await self._write_title(session, {"title": title, "messageSeqs": [], "source": {"kind": "user"}})

    def refresh(self, session: Session, cancel: Signal | None = None) -> Coroutine[Any, Any, Title | None]:
        """Make a new title of all that people have asked, and return it, or the present one where there is no provider
        or nothing was asked (ST-40 to ST-44). What counts is the order of the calls, not of their awaiting.

        SESSION_NOT_LIVE, ABORTED; awaited, TITLE_SUPERSEDED if another one was asked for meanwhile, and what the
        provider raises.
        """
        self._require_live(session)
        if cancel is not None and cancel.cancelled:
            raise TitleError("the refresh was cancelled before it began", code="ABORTED")
        state = self._state(session)
        state.supersede("superseded")
        registration = self._registration if self._registration and self._registration.removed is None else None
        state.work = work = _Work(session, registration, session.length - 1, Signal(cancel))
        work.route = _route_of(session)
        return self._refreshed(work)

    @property
    def has_provider(self) -> bool:
        """Whether titles are made by anybody."""
        return self._registration is not None and self._registration.removed is None

    def register(self, ctx: Context, provider: TitleProvider) -> Callable[[], Awaitable[None]]:
        """Make titles by this provider until `ctx` ends, or the returned undo is awaited: it cancels what the provider
        does, waits for it, and only then another may come (ST-30, ST-31).

        TITLE_PROVIDER_INVALID, TITLE_PROVIDER_EXISTS.
        """
        ctx.require_open()
        check_provider(provider)
        if self._registration is not None or self._closed:
            raise TitleError("titles have a provider already", code="TITLE_PROVIDER_EXISTS")
        listening = self._host.hooks.add("llm/stream", self._dispatched, self._host.root)
        self._registration = registration = _Registration(provider, listening)
        undo = partial(self._remove, registration)
        ctx.effect(undo)
        ctx.registered("title provider", provider.id)
        return undo

    async def _remove(self, registration: _Registration) -> None:
        if registration.removed is not None:
            await registration.removed.wait()
            return
        registration.removed = trio.Event()
        registration.stop_listening()
        for state in self._states.values():
            if state.work is not None and state.work.by is registration:
                state.supersede("removed")
        with trio.CancelScope(shield=True):
            for work in list(registration.running):
                await work.done.wait()
        if self._registration is registration:
            self._registration = None
        registration.removed.set()

    def at_work(self, session: Session) -> bool:
        """Whether a title is being made."""
        work = self._states[session].work if session in self._states else None
        return work is not None and not self._states[session].scheduled and not work.done.is_set()

    async def finished(self, session: Session) -> None:
        """Return when no title is being made."""
        while self.at_work(session):
            work = self._states[session].work
            assert work is not None
            await work.done.wait()

    async def close(self) -> None:
        """Drop what is scheduled, cancel what runs, and wait for it; nothing is written any more (ST-54)."""
        self._closed = True
        for session in list(self._states):
            self.forget(session)
        if self._registration is not None:
            await self._remove(self._registration)
        while self._tasks:
            await next(iter(self._tasks)).wait()

    # ---------------------------------------------------------------------------------------------- what is heard

    def heard(self, session: Session, event: Event) -> None:
        """Observes every append, also of each chunk."""
        handler = self._handlers.get(event["type"])
        if handler is not None:
            handler(session, event)

    def forget(self, session: Session) -> None:
        """The session is closed."""
        state = self._states.pop(session, None)
        if state is not None:
            state.supersede("closed")

    def _prompt_came(self, session: Session, event: Event) -> None:
        message = titles.eligible_in(event)
        if message is None or self._closed:
            return
        state, title = self._state(session), self.get(session.id)
        if title is None:
            state.due = True
            self._spawn(self._fallback, session)
        registration = self._registration
        if registration is None or registration.removed is not None or (title is not None and title.by_person):
            return
        if registration.provider.automatic == "first-message":
            header = session.header
            if title is not None or header.get("parentSession") or header.get("delegationDepth"):
                return
            first = next(titles.eligible(session.db, session.id), None)
            if first != message:
                return
        state.supersede("superseded")
        state.work, state.scheduled = _Work(session, registration, message.seq, Signal()), True

    def _title_came(self, session: Session, event: Event) -> None:
        source = event["data"].get("source")
        if isinstance(source, dict) and source.get("kind") == "user" and session in self._states:
            self._states[session].supersede("superseded")

    def _step_began(self, session: Session, event: Event) -> None:
        state = self._states.get(session)
        if state is not None and state.scheduled and state.work is not None:
            state.work.stepped = True

    def _step_ended(self, session: Session, event: Event) -> None:
        state = self._states.get(session)
        if state is not None and state.work is not None:
            state.work.main_is_off.set()

    def _header_came(self, session: Session, event: Event) -> None:
        self._main_call(session, _route_of(session))

    def _dispatched(self, request: Request, next_: Callable[[], Any]) -> Any:
        """A listener of `llm/stream`: the loop's own call starts what waits for it where no header was due (ST-33)."""
        session = self._sessions.live(request.session_id or "") if request.loop_built else None
        state = self._states.get(session) if session is not None else None
        if session is not None and state is not None and state.work is not None:
            route: Route = {"provider": request.provider, "model": request.model}
            if state.scheduled and state.work.stepped and _route_of(session) == route:
                self._main_call(session, route)
            state.work.main_is_off.set()
        return next_()

    def _main_call(self, session: Session, route: Route | None) -> None:
        """The main request of a step is on its way: what was scheduled before starts beside it."""
        state = self._states.get(session)
        if state is None or not state.scheduled or state.work is None:
            return
        state.scheduled = False
        state.work.route = route
        if session.open_step is None:
            state.work.main_is_off.set()
        self._spawn(self._automatic, state.work)

    # --------------------------------------------------------------------------------------------------- fallback

    async def before_step(self, agent: Agent, turn: int, step: int, signal: Signal) -> None:
        """A listener of `agent/pre-step`: the fallback goes right behind the prompt. It never waits: into an open turn
        an event is written at once, and where the queue is taken the task that waits in it does it."""
        state = self._states.get(agent.session)
        if state is None or not state.due or state.queue.locked():
            return
        try:
            state.queue.acquire_nowait()
            try:
                await self._write_fallback(agent.session, state)
            finally:
                state.queue.release()
        except Exception as error:  # noqa: BLE001 - ST-21: a warning, and the turn goes on
            self._warn(error)

    async def _fallback(self, session: Session, work: _Work | None = None) -> None:
        state = self._state(session)
        async with state.queue:
            self._require_live(session)
            if work is not None:
                work.require_wanted()
            await self._write_fallback(session, state)

    async def _write_fallback(self, session: Session, state: _State) -> None:
        """In the queue: the first prompt's beginning, unless there is a title or nothing fits (ST-12, ST-14, ST-20)."""
        state.due = False
        if self.get(session.id) is not None:
            return
        first = next(titles.eligible(session.db, session.id), None)
        title = titles.fallback(first.text, self._limits.fallback_words, self._limits.fallback_bytes) if first else ""
        if first is not None and title:
            data = {"title": title, "messageSeqs": [first.seq], "source": {"kind": "fallback"}}
            await self._append(session, _TYPE, data)

    # ------------------------------------------------------------------------------------------ a provider's work

    async def _automatic(self, work: _Work) -> None:
        with work.running():
            try:
                await self._fallback(work.session, work)
            except Exception as error:  # noqa: BLE001 - ST-21: a warning; the provider's title is tried all the same
                self._warn(error)
            with work.signal.scope():
                await work.main_is_off.wait()  # a server that serves one at a time is not to serve the title first
            work.require_wanted()
            await self._made(work)

    async def _refreshed(self, work: _Work) -> Title | None:
        with work.running():
            await self._fallback(work.session, work)
            return await self._made(work) or self.get(work.session.id)

    async def _made(self, work: _Work) -> Title | None:
        """Call the provider, check what it brings, log it (ST-34, ST-35); None if nobody is to be asked anything."""
        session = work.session
        messages = tuple(titles.eligible(session.db, session.id, work.last)) if work.by is not None else ()
        if work.by is None or not messages:
            return None
        provider = work.by.provider
        log = partial(self._write, session, _LLM_REQUEST, work=work)
        request = TitleRequest(session, messages, work.route, work.signal, log)
        result = await self._generated(provider, request, work)
        data = checked(result, provider, messages, self._limits.title_bytes)
        return await self._write_title(session, data, work)

    @staticmethod
    async def _generated(provider: TitleProvider, request: TitleRequest, work: _Work) -> Any:
        result: Any = None
        work.require_wanted()
        try:
            with work.signal.scope():
                result = await provider.generate(request)
        except BaseException as error:
            if is_our_own(error) or isinstance(error, KeyboardInterrupt):
                raise
            work.require_wanted()  # what a cancelled call complains about does not matter
            raise contained(f"the title provider {provider.id!r}", error)  # noqa: B904 - an ordinary error is itself
        work.require_wanted()
        return result

    # ---------------------------------------------------------------------------------------------------- writing

    async def _write_title(self, session: Session, data: Mapping[str, Any], work: _Work | None = None) -> Title:
        event = await self._write(session, data=data, type=_TYPE, work=work)
        logged = event["data"]
        return Title(logged["title"], tuple(logged["messageSeqs"]), logged["source"], event["seq"], event["time"])

    async def _write(self, session: Session, type: str, data: Mapping[str, Any], work: _Work | None = None) -> Event:
        """Write one event when its time has come, unless it is not wanted by then (ST-50, ST-51)."""
        async with self._state(session).queue:
            self._require_live(session)
            if work is not None:
                work.require_wanted()
            return await self._append(session, type, data)

    async def _append(self, session: Session, type: str, data: Mapping[str, Any]) -> Event:
        """Once begun it is completed, whatever is cancelled meanwhile (SE-58)."""
        return await self._sessions.append_out_of_band(session, type, dict(data), titles.TRIGGER)

    # ------------------------------------------------------------------------------------------------------ tasks

    def _spawn(self, action: Callable[..., Awaitable[Any]], *args: Any) -> None:
        if self._nursery is not None and not self._closed:
            done = trio.Event()
            self._tasks.add(done)
            self._nursery.start_soon(self._task, done, action, *args)

    async def _task(self, done: trio.Event, action: Callable[..., Awaitable[Any]], *args: Any) -> None:
        try:
            await action(*args)
        except Exception as error:  # noqa: BLE001 - ST-36: a warning, and the title stays as it is
            self._warn(error)
        finally:
            self._tasks.discard(done)
            done.set()

    def _warn(self, error: Exception) -> None:
        """Whoever wants to know is told; what was merely given up is no failure."""
        if code_of(error) not in _QUIET:
            self._host.report(WARNING, error)

    def _state(self, session: Session) -> _State:
        if session not in self._states:
            self._states[session] = _State()
        return self._states[session]

    def _require_live(self, session: Session) -> None:
        if self._closed or self._sessions.live(session.id) is not session:
            raise SessionError(f"session {session.id} is not live", code="SESSION_NOT_LIVE")


def _route_of(session: Session) -> Route | None:
    """Of the session's newest main request."""
    header = session.header_in_force()
    return None if header is None else {"provider": header["config"]["provider"], "model": header["config"]["model"]}


_QUIET = frozenset({"TITLE_SUPERSEDED", "TITLE_PROVIDER_REMOVED", "SESSION_NOT_LIVE", "SESSION_LEASED"})
