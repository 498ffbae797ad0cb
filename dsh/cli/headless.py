"""One headless run, from the command's options to the exit code (docs/spec hooks-mcp-config, part 4).

The way of a prompt: standard input is read, the database opened, a model chosen, the program put together, one
follow-up sent. What the log announces is turned into the answer, progress and JSON lines; nothing here decides what
the agent does. A signal, a time limit or a reader that left cancels the turn; the turn is closed and flushed all the
same, and only then is there an exit code.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import trio

from dsh import query
from dsh.agent.agent import Agent
from dsh.capabilities.titles.service import WARNING, Titles
from dsh.cli.answer import Answer, write_all
from dsh.cli.boot import Program, program
from dsh.cli.choice import (
    Options,
    carried_on,
    check,
    quoting,
    require_price,
    resumed_id,
    route_of,
    setup_of,
    told,
    working_folder,
)
from dsh.cli.common import load_config, open_database
from dsh.cli.leaks import Leaks
from dsh.cli.outcome import Outcome
from dsh.cli.output import json_text
from dsh.cli.progress import Progress
from dsh.cli.watch import Watch
from dsh.cli.writer import Writer
from dsh.core.errors import DshError, only, render_chain
from dsh.core.events import Event
from dsh.core.lossless import dumps
from dsh.core.messages import Block, HookContext
from dsh.query.naming import find_place
from dsh.store.database import Database

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_WRITE_S = 1.0  # for a reader that is slow to take the rest, once the run was told to end
TITLE_GRACE_S = 2.0  # for a model's title that is not there when the answer is


def run(options: Options, content: Callable[[], list[Block]], begun: Callable[[str], None] | None = None) -> int:
    """Run once; the exit code is that of docs/cli.md. With `--json` the last line is the result, whatever happens.

    `content` reads the prompt; `begun` is told the session's id once a turn has begun and the prompt is stored.
    """
    progress = Progress(quiet=options.quiet)
    outcome = Outcome(time.monotonic())

    def terminated(number: int, frame: Any) -> NoReturn:
        outcome.signal = outcome.signal or signal.Signals(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, terminated)
    try:
        check(options)
        prompt = content()
        db = open_database(options.db)
        try:
            main = _main if options.fork is None else _forked
            trio.run(main, options, prompt, db, progress, outcome, begun, strict_exception_groups=True)
        finally:
            db.close()
    except BaseException as raised:  # noqa: BLE001 - the run ends here, whatever it was; foreign errors go on below
        error = only(raised)
        if isinstance(error, KeyboardInterrupt):
            outcome.signal = outcome.signal or signal.SIGINT
        else:
            outcome.fail(error)
            if not isinstance(error, DshError):
                if options.as_json:
                    _last_line(outcome)
                raise error from None
    finally:
        signal.signal(signal.SIGTERM, before)
        progress.close()
    if options.as_json:
        _last_line(outcome)
    for line in outcome.lines():
        progress.failure(line)
    return outcome.exit_code()


def _last_line(outcome: Outcome) -> None:
    if outcome.reader_left:
        return
    try:
        write_all(sys.stdout.fileno(), json_text(dumps(outcome.result())) + "\n")
    except OSError as error:
        outcome.broken(error)


async def _forked(options: Options, content: list[Block], db: Database, *rest: Any) -> None:
    """Run in a fork, which goes again if the run ends before its turn has begun."""
    from dsh.session import forks

    parent, boundary = find_place(db, options.fork or "")
    working_folder(options, db, parent)
    fork = forks.store(db, parent, boundary)
    with forks.taken_back_unused(db, fork):
        await _main(options._replace(resume=fork, fork=None), content, db, *rest)


async def _main(
    options: Options,
    content: list[Block],
    db: Database,
    progress: Progress,
    outcome: Outcome,
    begun: Callable[[str], None] | None,
) -> None:
    config = load_config(db).with_flags(
        loop__max_steps=options.max_steps,
        limits__max_cost=options.max_cost,
        limits__max_tokens_total=options.max_tokens_total,
        titles__model=options.title_model,
        reasoning_effort=options.effort,
    )
    resumed = resumed_id(db, options)
    options = carried_on(options, db, resumed)
    folder = working_folder(options, db, resumed)
    writer = Writer(sys.stdout.fileno())
    with trio.CancelScope() as scope:
        end = _End(scope, outcome)
        with _signals(outcome, db, end):
            async with program(
                db, config, folder, notice=progress.notice, interrupted=lambda: outcome.signal is not None
            ) as running:
                route = await route_of(options, running, config, db, resumed, progress)
                if config["limits.max_cost"]:
                    require_price(running, route)
                agent = await running.agents.open(
                    route,
                    session_id=options.session,
                    resume_session_id=resumed if options.session is None else None,
                    meta={"cwd": folder},
                    setup=setup_of(options, running, writer),
                )
                outcome.session, end.agent = agent.id, agent
                await _turn(options, content, running, agent, writer, progress, outcome, end, begun)


class _End:
    """Ends the run before its time, for a signal or the time limit: the turn is cancelled, closed and flushed, and what
    it said goes out. Before the turn there is nothing to close; after it a reader that does not read is waited for only
    LAST_WRITE_S. What other shells have sent waits for the next run."""

    def __init__(self, scope: trio.CancelScope, outcome: Outcome) -> None:
        self._scope = scope
        self._outcome = outcome
        self.agent: Agent | None = None
        self._writing: trio.CancelScope | None = None
        self._grace: trio.CancelScope | None = None
        self.answered = False  # what the run is for has been done and written

    def __call__(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
        agent, over = self.agent, self._outcome.reason is not None
        if agent is not None and (agent.signal is not None or over):
            agent.stop()
        elif not over:
            self._scope.cancel()
        if self._writing is not None:
            self._writing.deadline = trio.current_time() + LAST_WRITE_S

    async def grace(self, writer: Writer, titles: Titles, agent: Agent) -> bool:
        """Wait for the title that is being made, once the answer is out; whether it was made or failed in time."""
        with trio.move_on_after(TITLE_GRACE_S) as self._grace:
            await writer.drained()
            self.answered = True
            await titles.finished(agent.session)
        self._grace, self.answered = None, False
        return not titles.at_work(agent.session)

    def only_writing_is_left(self, scope: trio.CancelScope) -> None:
        self._writing = scope
        if self._outcome.signal is not None or self._outcome.limit is not None:
            scope.deadline = trio.current_time() + LAST_WRITE_S


@contextmanager
def _signals(outcome: Outcome, db: Database, end: Callable[[], None]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the run; a second one ends the program at once (HD-10).

    The handler itself is called between two steps of Python, so also while SQLite waits for a lock: that wait ends.
    What was ignored when the program started (nohup, a background job of a script) stays so.
    """
    token = trio.lowlevel.current_trio_token()

    def received(number: int, frame: Any) -> None:
        if outcome.signal is not None:
            os._exit(128 + outcome.signal)
        outcome.signal = signal.Signals(number)
        db.busy.give_up = True
        token.run_sync_soon(heard)

    def heard() -> None:
        db.busy.give_up = False
        end()

    heeded = [n for n in _ENDING if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, received) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _turn(
    options: Options,
    content: list[Block],
    running: Program,
    agent: Agent,
    writer: Writer,
    progress: Progress,
    outcome: Outcome,
    end: _End,
    begun: Callable[[str], None] | None,
) -> None:
    content, contexts = await quoting(options, running, agent, content)
    leaks = Leaks()
    agent.ctx.on("session/event", leaks.heard)
    answer = None if options.as_json else Answer(writer, live=os.isatty(writer.fd))
    task = _Task(agent, Watch(agent.options.get("model"), outcome, progress, answer), outcome, progress)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.run)
        if options.timeout is not None:
            nursery.start_soon(_limit_time, options.timeout, task, outcome, end)
        async with trio.open_nursery() as writing:
            writing.start_soon(_write, writer, agent, outcome)
            task.send(content, contexts, {"run": kept} if (kept := told(options)) else None)
            if begun is not None:  # now, or behind messages that waited; then it is stored beside them
                agent.ctx.on("session/event", lambda s, event: begun(s.id) if event["type"] == "user/message" else None)
            title = await _until_done(agent, running.host.find(Titles), task, writer, end)
            outcome.reports = running.host.reports
            task.close()
            writer.finish()
            end.only_writing_is_left(writing.cancel_scope)
        nursery.cancel_scope.cancel()
    outcome.read_usage(agent.session.db, running.host.config)
    progress.summary(outcome.summary())
    if leaks.kinds:
        progress.notice(leaks.notice())
    if options.title_model is not None and not agent.stopping:
        for why in title or [render_chain(error) for where, error in running.host.reports if where == WARNING]:
            progress.notice(f"the model gave no title: {why}")
    if agent.stopping and (now := query.row(agent.session.db, "session_activity", session=agent.id)) and now[3]:
        progress.notice(f"messages of other shells that wait for the next run of this session: {now[3]}")


async def _until_done(agent: Agent, titles: Titles | None, task: _Task, writer: Writer, end: _End) -> list[str]:
    """Until nothing is left to do, for whomever, and the session is given back (`Agent.retire`). The answer does not
    wait for a title, and a title is not waited for long; returns what is to be said if that was not enough."""
    late: list[str] = []
    try:
        while not agent.retire():
            await agent.when_idle()
            late = []
            if titles is not None and titles.at_work(agent.session) and not agent.stopping:
                task.answered()
                in_time = await end.grace(writer, titles, agent)
                late = [] if in_time else [f"it was not there {TITLE_GRACE_S:g} s after the answer"]
    except DshError as error:  # the answer goes out all the same
        agent.report_error(agent.session.turns, 0, error)
    return late


class _Task:
    """The run's own prompt among what its session does (HD-3): messages that waited and those that come meanwhile from
    other shells are turns of the same process, but not this run's answer. The message id tells."""

    def __init__(self, agent: Agent, watch: Watch, outcome: Outcome, progress: Progress) -> None:
        self._agent = agent
        self._watch = watch
        self._outcome = outcome
        self._progress = progress
        self._message: str | None = None
        self._claimed = False  # it left the inbox, and the turn that begins next is its own
        self._watched = False  # its turn is open
        self._closed = False

    def send(self, content: list[Block], contexts: list[HookContext], meta: Any) -> None:
        on = self._agent.ctx.on
        on("agent/inbox/dequeue", lambda _, message: self._dequeued(message["id"]))
        on("agent/inbox/discard", lambda _, messages: self._discarded([m["id"] for m in messages]))
        on("agent/error", lambda _, turn, step, error: self._outcome.late(turn, error))
        on("session/event", lambda _, event: self._event(event))
        self._message = self._agent.followup(content, contexts=contexts, meta=meta)

    def close(self) -> None:
        """Its turn is over and flushed."""
        if not self._closed:
            self._closed = True
            self._watch.close()

    def answered(self) -> None:
        """Nothing is left to do but to wait for a title."""
        self.close()
        self._outcome.stop_clock()
        self._progress.doing("waiting for a title")

    @property
    def others_run(self) -> bool:
        return self._outcome.reason is not None and self._agent.signal is not None

    def _dequeued(self, message: str) -> None:
        self._claimed = message == self._message

    def _discarded(self, messages: list[str]) -> None:
        if self._message in messages and self._outcome.reason is None:
            self._outcome.reason = {"kind": "aborted"}

    def _event(self, event: Event) -> None:
        if event["type"] == "turn/start" and event["data"]["trigger"]["kind"] == "message":
            self._watched, self._claimed = self._claimed, False
            if not self._watched:
                self._other_turn()
        if self._watched:
            self._watch.event(event)
            self._watched = event["type"] != "turn/end"

    def _other_turn(self) -> None:
        if self._outcome.reason is not None:  # a turn begins after the flush of the one before it
            self.close()
            self._progress.notice("answered; a message that came meanwhile is worked on")
        else:
            self._progress.notice("a message that waited in this session is worked on first")
        self._progress.doing("working on another message")


async def _write(writer: Writer, agent: Agent, outcome: Outcome) -> None:
    await writer.run()
    if writer.broken is not None:
        outcome.broken(writer.broken)
        if outcome.reason is None:
            agent.stop()


async def _limit_time(seconds: float, task: _Task, outcome: Outcome, end: _End) -> None:
    await trio.sleep(seconds)
    if not (task.others_run or end.answered):  # else the answer is there
        outcome.limit = ("TIME_LIMIT", f"stopped after {seconds:g} s")
    end()
