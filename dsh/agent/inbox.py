"""What waits for an agent: rows of the view `inbox`, and two FIFOs, the driver's view of them (AL-3).

Any process may leave a row. `collect` takes up those that are new, in their order, and the agent puts each where it
belongs: into the FIFO of messages that become turns, into that of steering for the running turn, or into the log. A
row goes in the transaction of the event that it becomes, so a driver that is killed has lost nothing and delivered
nothing twice. What the agent itself accepts takes the same way. Only before a session's first event there is nothing
to hang a row on; what is accepted then is in memory until that event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from dsh import query
from dsh.agent.decisions import Item, accept
from dsh.core.errors import DshError
from dsh.core.ids import AgentMessageId
from dsh.core.lossless import loads
from dsh.session.session import Session
from dsh.store import writes
from dsh.store.database import Row

Notify = Callable[..., None]
Report = Callable[[str, BaseException], None]


class Entry(NamedTuple):
    """One row taken up; `route` is followup, queue, steer, inject or cancel."""

    route: str
    item: Item


class Inbox:
    """Both FIFOs. Every item enqueued is later dequeued or discarded, exactly once, and told so (AL-4)."""

    def __init__(self, session: Session, notify: Notify, report: Report) -> None:
        self._session = session
        self._queued: deque[Item] = deque()
        self._steering: deque[Item] = deque()
        self._notify = notify
        self._report = report
        self._seen = 0  # rows up to this position were taken up
        self._own: dict[str, Entry | None] = {}  # rows of ours that were not read yet; None: already in a FIFO
        self._in_memory = False  # something was accepted before the session's first event

    # ----------------------------------------------------------------------------------------------------- the rows

    def collect(self) -> Iterator[Entry]:
        """The rows that came since the last time, in order. One indexed query, some 5 us where there are none."""
        return self._taken_up(self._new_rows()) if self._session.stored else iter(())

    def put_down(self, entry: Entry) -> Iterator[Entry]:
        """Store an input of this agent, and take up what came up to it, itself included."""
        with self._session.db.transaction():
            self._put_row(entry.route, entry.item)
            self._own[entry.item.id] = entry
            rows = self._new_rows()
        return self._taken_up(rows)

    def keep(self, claimed: Item) -> Item:
        """After a turn has begun: give a row to what was accepted when there could be none. A crash then loses none of
        it. Returns `claimed` as it is now."""
        if not self._in_memory:
            return claimed
        self._in_memory = False
        loose = [i for i in (claimed, *self._queued, *self._steering) if i.own and not i.stored]
        try:
            with self._session.db.transaction():
                for item in loose:
                    self._put_row("followup" if item.wakeup else "queue", item)
                    self._own[item.id] = None
        except DshError as error:  # it is still in memory
            self._report("inbox", error)
            return claimed
        for fifo in (self._queued, self._steering):
            for at, item in enumerate(fifo):
                fifo[at] = replace(item, stored=item.stored or item.own)
        return replace(claimed, stored=claimed.stored or claimed.own)

    def hand_back(self, *, leaving: bool) -> bool:
        """Give up the lease, unless something has come: both in one transaction, so nothing can come in between. Who is
        `leaving` does not look."""
        session = self._session
        if not session.stored or session.holder is None:
            return True
        with session.db.transaction():
            if not leaving and self._new_rows():
                return False
            writes.release_lease(session.db, session.id, session.holder)
        return True

    def take_out(self, *items: Item) -> None:
        """Remove rows that become nothing. Failing that they are the next driver's, and that is reported."""
        ids = [i.id for i in items if i.stored]
        if ids:
            try:
                writes.drop_messages(self._session.db, self._session.id, self._session.holder, ids)
            except DshError as error:
                self._report("inbox", error)

    def _put_row(self, route: str, item: Item) -> None:
        session = self._session
        position = writes.put_message(
            session.db, session.id, item.id, route, item.content, item.source, item.contexts, item.meta
        )
        session.db.on_rollback(self, lambda: lambda: self._seen_only(position - 1))

    def _seen_only(self, position: int) -> None:
        """A transaction around an input was taken back: its row's position may be another's next time."""
        self._seen = min(self._seen, position)

    def _new_rows(self) -> list[Row]:
        return query.rows(self._session.db, "inbox_since", session=self._session.id, after=self._seen)

    def _taken_up(self, rows: list[Row]) -> Iterator[Entry]:
        for row in rows:
            position, message_id = row[:2]
            if position <= self._seen:  # an observer of an earlier row has looked, too
                continue
            self._seen = position
            entry = self._own.pop(message_id) if message_id in self._own else self._entry_of(row)
            if entry is not None:
                yield entry

    def _entry_of(self, row: Row) -> Entry | None:
        _, message_id, route, content, source, contexts, meta, _ = row
        item = Item(AgentMessageId(message_id), [], {"kind": ""}, [], route != "queue", False, stored=True)
        try:
            parts = accept(loads(content), loads(source), loads(contexts), None if meta is None else loads(meta))
        except (DshError, ValueError) as error:  # put there by no program of ours
            self._report(f"inbox message {message_id}", error)
            self.take_out(item)
            return None
        return Entry(route, replace(item, content=parts[0], source=parts[1], contexts=parts[2], meta=parts[3]))

    # ---------------------------------------------------------------------------------------------------- the FIFOs

    def put(self, item: Item) -> None:
        self._in_memory |= item.own and not item.stored
        (self._steering if item.steering else self._queued).append(item)
        self._notify("agent/inbox/enqueue", item.message())

    @property
    def waking(self) -> bool:
        """Whether a queued item may start the model; others keep their place and wait for one (AL-6)."""
        return any(i.wakeup for i in self._queued)

    @property
    def empty(self) -> bool:
        return not self._queued and not self._steering

    @property
    def has_steering(self) -> bool:
        return bool(self._steering)

    def claim(self) -> Item:
        """The oldest queued item, waking or not."""
        item = self._queued.popleft()
        self._notify("agent/inbox/dequeue", item.message())
        return item

    def next_steering(self) -> Item | None:
        if not self._steering:
            return None
        item = self._steering.popleft()
        self._notify("agent/inbox/dequeue", item.message())
        return item

    def requeue_steering(self) -> None:
        """Steering that came too late for its turn becomes ordinary work, without a new announcement (AL-8)."""
        while self._steering:
            self._queued.append(replace(self._steering.popleft(), steering=False))

    def discard(self, *, steering_only: bool = False, rows_of_others: bool = True) -> None:
        """Drop what waits, with its rows; one notification for all of it, queued items first (AL-4). Without
        `rows_of_others` what other processes have sent stays for the next driver (AL-70)."""
        dropped = [] if steering_only else [*self._queued]
        dropped += self._steering
        if not steering_only:
            self._queued.clear()
        self._steering.clear()
        self.take_out(*(i for i in dropped if i.own or rows_of_others))
        if dropped:
            self._notify("agent/inbox/discard", [i.message() for i in dropped])
