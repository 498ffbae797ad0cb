"""Every request that was ever sent is made again from the log alone, and is the same byte for byte (SE-33).

The requests are those that a server received, from several processes, models and providers, before and after forks
and replacements. Nothing of the process that sent them is left when they are made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dsh.llm.adapters.chat import ChatAdapter, Endpoint
from dsh.llm.adapters.chat_request import DIALECTS, Encoder
from dsh.llm.service import LlmService
from dsh.session import rebuild
from dsh.store.database import Database
from scripts.lib.bench_long import differing
from tests.agent.kit import blocks, world
from tests.crash.zygote import Zygote
from tests.provider import FakeProvider, Recorded, Reply, calls, event, raw, status, text, tool_call
from tests.session.kit import replace, surface
from tests.shell.process import Dsh
from tests.strict import refusals

pytestmark = pytest.mark.slow  # each test starts programs, some many times


def steps_with_requests(db: Database) -> list[tuple[str, int, int]]:
    """(session, turn, step) of every step of every session that a request was made for, in the order of time; those
    that a fork inherits are its parent's."""
    sql = (
        "SELECT s.session_id, s.turn, s.step FROM step s JOIN session x ON x.id = s.session_id"
        " WHERE s.start_seq >= coalesce(x.seed_length, 0) ORDER BY s.started_at, s.session_id, s.start_seq"
    )
    return [(str(session), turn, step) for session, turn, step in db.rows(sql)]


def rebuilt(path: Path) -> list[bytes]:
    db = Database.open(path)
    try:
        made = [rebuild.request(db, *where) for where in steps_with_requests(db)]
    finally:
        db.close()
    return [Encoder(DIALECTS["deepseek" if m.provider == "deepseek" else "chat"]).encode(m) for m in made]


HALVES = raw(
    event('{"choices":[{"index":0,"delta":{"content":"bear \\ud83d"}}]}'),
    event('{"choices":[{"index":0,"delta":{"content":"\\udc3b \\ud83d"},"finish_reason":"stop"}]}'),
    event("[DONE]"),
)


def answers() -> Iterator[Reply]:
    """One for each step below: calls with thinking, a bad call, a failure, half characters, an empty answer, ..."""
    yield calls(("t", {"a": "é"}, "c1"), ("nonesuch.tool", '{"a', "c2"), reasoning="let me see", text="so")
    yield tool_call("t", {}, "c1", reasoning="again")
    yield HALVES
    yield status(500)
    yield text("after the failure")
    yield text("", reasoning="thinking alone")
    yield tool_call("t", {}, "c3")
    yield text("end")
    while True:
        yield text("ok")


@pytest.mark.rule("SE-33", "CO-20", "CO-28", "CO-33", "LS-56")
async def test_every_request_of_the_loop() -> None:
    script = answers()
    with FakeProvider(*[lambda _: next(script)] * 40, strict={"tool-results", "unicode", "null-content"}) as fake:

        async def session(id_: str, route: tuple[str, str], prompts: list[str], *, cut: bool = False) -> None:
            """A program on the file: it makes or resumes the session, takes the prompts, and is gone."""
            async with world(checked=False) as w:
                w.tool("t")
                for name, dialect in (("deepseek", "deepseek"), ("box", "chat")):
                    endpoint = Endpoint(name, fake.base_url, dialect=DIALECTS[dialect])
                    w.host.get(LlmService).register(w.host.root, ChatAdapter(endpoint), [name])

                @w.observe("agent/request-error")
                async def again(*args: Any) -> Any:
                    return {"action": "retry" if args[4]["code"] == "SERVER" else "fail"}

                @w.observe("agent/session-prefix")
                async def prefix(*args: Any) -> Any:
                    return [*await args[-1](), {"role": "user", "content": blocks("from a plugin")}]

                options = {"provider": route[0], "model": route[1], "temperature": 0.5, "maxTokens": 100, "stop": ["x"]}
                known = w.db.rows("SELECT 1 FROM session WHERE id = ?", (id_,))
                agent = await (w.agents.resume(id_, options) if known else w.agents.create(options, id=id_))
                agent.inject(blocks("some context"))
                for words in prompts:
                    if cut:  # between a call and its result
                        nodes = surface(w.db, id_)
                        ends = [e["seq"] for e in agent.session.events() if e["type"] == "tool/result"]
                        data = {"content": blocks("sum"), "source": {"kind": "plugin", "plugin": "p"}}
                        where = replace(nodes[0], ends[0])
                        sources = nodes[: nodes.index(ends[0]) + 1]
                        agent.session.append("turn/start", {"turn": agent.session.turns + 1, "trigger": {"kind": "x"}})
                        agent.session.append("user/message", data, surface=where, sources=sources)
                        end = {"turn": agent.session.turns, "reason": {"kind": "completed"}}
                        agent.session.append("turn/end", end)
                    agent.followup(blocks(words))
                    await agent.when_idle()

        async def fork(source: str, child: str) -> None:
            async with world(checked=False) as w:
                ends = w.db.rows("SELECT end_seq FROM turn WHERE session_id = ? ORDER BY end_seq", (source,))
                w.sessions.fork(source, ends[2][0], child)

        await session("a", ("deepseek", "m1"), ["one", "two"])
        await session("a", ("deepseek", "m1"), ["three"])
        await fork("a", "b")
        await session("b", ("deepseek", "m2"), ["in the fork"])
        await session("a", ("box", "m3"), ["four", "five"])
        await session("b", ("box", "m3"), ["six"], cut=True)
        await session("a", ("deepseek", "m1"), ["back again"], cut=True)
        await fork("b", "c")
        await session("c", ("deepseek", "m1"), ["in the fork of the fork"])

        sent = [r.raw for r in fake.requests]
        assert len(sent) >= 13
        assert rebuilt(Path(os.environ["DSH_DB"])) == sent
        for body in sent:
            asked_deepseek = json.loads(body)["model"] != "m3"
            assert refusals(body, insists=asked_deepseek, thoughts={"let me see", "again"}) == []


def answer(request: Recorded) -> Reply:
    """Two calls, then one, then text; by what the request holds, since processes come and go."""
    last = request.messages[-1]
    results = sum(1 for m in request.messages if m["role"] == "tool")
    if last["role"] == "user" and "work" in last["content"]:
        return calls(("bash", {"command": "echo é"}, "a"), ("bash", {"command": "false"}, "b"), reasoning="hm")
    if last["role"] == "tool" and results % 3 == 2:
        return tool_call("todo_write", {"todos": []}, "c")
    return text(f"answer {len(request.messages)}")


def bodies(fake: FakeProvider) -> list[bytes]:
    return [r.raw for r in fake.requests]


@pytest.mark.rule("SE-33", "LS-56")
def test_processes_that_go_on_send_the_same_bytes_again(tmp_path: Path) -> None:
    """Runs in processes of their own: each request begins with the bytes of the one before it, and `dsh show
    --request` prints what was sent."""
    zygote = Zygote()
    try:
        with FakeProvider(*[answer] * 40, strict=True) as fake:
            dsh = Dsh(tmp_path, fake)
            for words in (["work"], ["-c", "work"], ["-c", "more"], ["-c", "work"]):
                assert zygote.run(dsh, "run", *words).code == 0
            sent = bodies(fake)
            assert len(sent) == 10
            assert [differing(*pair) for pair in pairwise(sent)] == [0] * 9
            steps = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (4, 2), (4, 3)]
            for (turn, step), body in zip(steps, sent, strict=True):
                shown = zygote.run(dsh, "show", "-", "--request", f"{turn}.{step}")
                assert (shown.code, shown.out) == (0, body + b"\n")
            for wrong in (["1.9"], ["9.1"], ["1"], ["1.x"], ["1.1", "--json"]):
                refused = zygote.run(dsh, "show", "-", "--request", *wrong)
                assert (refused.code, refused.out) == (2, b"")
                assert len(refused.err.splitlines()) <= 2
    finally:
        zygote.close()
