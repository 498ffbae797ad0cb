"""Other processes that share an agent's database: `python -m tests.agent.foreign ROLE DATABASE`.

with Sender() as send:
    send("s", "followup", "hello")        # a row, and a ring at its driver
    send("s", "steer", "left", ring=False)

with Drivers() as drivers:
    pid = drivers.start("s")              # resumes the session and retires when there is nothing left to do
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dsh import query
from dsh.core.ids import new_message_id
from dsh.core.messages import text_block
from dsh.store import wake, writes
from dsh.store.database import Database

if TYPE_CHECKING:
    from dsh.agent.agent import Agent
    from tests.agent.kit import World

ROOT = Path(__file__).resolve().parent.parent.parent


ROUTE = {"provider": "p", "model": "m"}
INBOX = ("agent/inbox/enqueue", "agent/inbox/dequeue", "agent/inbox/discard")


class _Other:
    role = ""

    def __init__(self, db: str | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.agent.foreign", self.role, db or os.environ["DSH_DB"]],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, *words: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


class Sender(_Other):
    role = "send"

    def __call__(self, session: str, route: str, text: str = "", *, ring: bool = True, **more: Any) -> str | None:
        """Send; the token of the lease that was found after that, or None if nobody drives the session."""
        holder: str | None = self.ask(session, route, text, ring, more)
        return holder


class Drivers(_Other):
    role = "drive"

    def start(self, session: str) -> int:
        pid: int = self.ask(session)
        return pid

    def run(self, session: str) -> None:
        wait_for_end(self.start(session))


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def wait_for_end(pid: int) -> None:
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.002)


def put(db: Database, session: str, route: str, text: str, **more: Any) -> int:
    """A row as a command would leave it."""
    source = more.pop("source", {"kind": "user"})
    content = [] if route == "cancel" else [text_block(text)]
    return writes.put_message(db, session, new_message_id(), route, content, source, **more)


def waiting(w: World) -> list[tuple[str, str]]:
    """Route and text of the rows, in order."""
    return w.db.rows("SELECT route, coalesce(content ->> '$[0].text', '') FROM inbox ORDER BY position")


def told(w: World) -> list[str]:
    return [
        f"{point.rpartition('/')[2]} {m['content'][0]['text']}"
        for point, args in w.noticed(*INBOX)
        for m in (args[1] if isinstance(args[1], list) else [args[1]])
    ]


async def stored(w: World, **more: Any) -> Agent:
    """An agent whose session is in the database, so that others can send to it."""
    agent = await w.agent(id="s", **more)
    await w.turn(agent, "first")
    w.notices.clear()
    return agent


async def until(condition: Any) -> None:
    import trio

    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.002)


async def resumed(w: World) -> Agent:
    return await w.agents.resume("s", ROUTE)


def _send(db: Database, session: str, route: str, text: str, ring: bool, more: dict[str, Any]) -> str | None:
    put(db, session, route, text, **more)
    lease = query.row(db, "lease", session=session)
    if lease is not None and ring:
        wake.ring(lease[0])
    return lease[0] if lease is not None else None


def _drive(path: Path, session: str) -> None:
    import trio

    from tests.agent.kit import world

    async def main() -> None:
        async with world(checked=False) as w:
            agent = await w.agents.resume(session, ROUTE)
            while not agent.retire():
                await agent.when_idle()

    os.environ["DSH_DB"] = str(path)
    trio.run(main)


def serve(role: str, path: Path) -> None:
    if role == "send":
        db = Database.open(path)
        for line in sys.stdin:
            print(json.dumps(_send(db, *json.loads(line))), flush=True)
        db.close()
        return
    import trio  # noqa: F401 - once, for all that are forked from here

    import tests.agent.kit  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                _drive(path, *json.loads(line))
            finally:
                sys.stderr.flush()
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
