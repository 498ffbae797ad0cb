"""What waits for an agent: one FIFO of messages that become turns, one of steering for the running turn (AL-3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from dsh.agent.decisions import Item

Notify = Callable[..., None]


class Inbox:
    """Both FIFOs. Every item enqueued is later dequeued or discarded, exactly once, and told so (AL-4)."""

    def __init__(self, notify: Notify) -> None:
        self._queued: deque[Item] = deque()
        self._steering: deque[Item] = deque()
        self._notify = notify

    def put(self, item: Item) -> None:
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

    def discard(self, *, steering_only: bool = False) -> None:
        """Drop what waits; one notification for all of it, queued items first (AL-4)."""
        dropped = [] if steering_only else [*self._queued]
        dropped += self._steering
        if not steering_only:
            self._queued.clear()
        self._steering.clear()
        if dropped:
            self._notify("agent/inbox/discard", [i.message() for i in dropped])
