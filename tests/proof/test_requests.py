"""Whatever a log holds, the next request is one that the strictest server takes (tests/strict.py).

Logs are made by random interleavings of prompts, answers, calls and results, injections, crashes (the process is gone
between two appends, the next one repairs), forks, replacements of any range, also between a call and its result, and
switches of provider. After each event every dialect's body is built twice, by an encoder that has seen the session grow
and by a fresh one, and both must be the same bytes.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsh.core.lossless import freeze
from dsh.core.messages import Message, Request, text_of
from dsh.llm.adapters.chat_history import NO_CALL
from dsh.llm.adapters.chat_request import DIALECTS, Dialect, Encoder
from dsh.session.session import Session
from tests.agent import test_random
from tests.agent.kit import World, ask, blocks, say, world
from tests.session.kit import replace, surface
from tests.session.kit import world as stored_world
from tests.strict import refusals

ROUTES = (  # provider, model, dialect
    ("deepseek", "chat", "deepseek"),
    ("deepseek", "v4", "deepseek"),
    ("openai", "gpt", "openai"),
    ("box", "qwen", "chat"),
    ("other", "kimi", "chat"),
)
TOOLS = ({"name": "bash", "description": "d", "parameters": {"type": "object", "properties": {}}},)

TEXT = st.sampled_from(["", " \n", "hello", "é", "😀", "\ufffd", "\x00\x1f", "\u2028", "x" * 300, '"\\ud83d'])
CONTENT = st.lists(
    st.one_of(
        TEXT.map(lambda t: {"type": "text", "text": t}),
        st.just({"type": "hologram", "x": [1]}),
        st.just({"type": "text", "text": "said"}),
    ),
    max_size=3,
)
IDS = st.sampled_from(["c1", "c1", "c2", "", "functions.bash:0", "call-0", "é", "x" * 90, "abcdefghi", "call00001"])
NAMES = st.sampled_from(["bash", "bash", "", "a.b", "browser open", "é", "x" * 200, "<|channel|>"])
ARGUMENTS = st.sampled_from(
    [
        '{"a":1}',
        "",
        " ",
        "{",
        "[]",
        "null",
        '{"a":NaN}',
        '{"a":"\\ud83d"}',
        '{"a":"\\ud83d\\udc3b"}',
        '{"a":"é"} x',
        "[" * 3000,
    ]
)
CALLS = st.lists(st.tuples(IDS, NAMES, ARGUMENTS), max_size=3)
PICK = st.integers(0, 10_000)


def thought_of(message: Any) -> str:
    return "".join(b["text"] for b in message["content"] if b["type"] == "reasoning")


def expected_thoughts(messages: tuple[Message, ...], provider: str, dialect: Dialect) -> list[str | None]:
    """What stands beside each message with calls: what this provider thought, where it wants it back."""
    found: list[str | None] = []
    for message in messages:
        if message["role"] == "assistant" and any(b["type"] == "tool-call" for b in message["content"]):
            made: Any = message["provenance"]
            told = made.get("replayState") == {"reasoningField": "reasoning_content"}
            own = made["provider"] == provider and (told or dialect.name == "deepseek")
            found.append((thought_of(message) if own else "") or (" " if dialect.name == "deepseek" else None))
    return found


def check(raw: bytes, messages: tuple[Message, ...], route: tuple[str, str, str]) -> None:
    """A body against the validator and against whose thinking it may carry."""
    provider, model, name = route
    said: list[Any] = [m for m in messages if m["role"] == "assistant"]
    own = [m for m in said if m["provenance"]["provider"] == provider]
    ids = [b["id"] for m in own if m["provenance"]["model"] == model for b in m["content"] if b["type"] == "tool-call"]
    insists = name == "deepseek"
    assert refusals(raw, insists=insists, thoughts={thought_of(m) for m in own} - {""}, ids=set(ids)) == []
    wire = json.loads(raw)["messages"]
    sent = [m.get("reasoning_content") for m in wire if "tool_calls" in m]
    assert sent == expected_thoughts(messages, provider, DIALECTS[name])
    contents = [m["content"].removeprefix(NO_CALL) for m in wire]
    outputs = [text_of(b["content"]) for m in messages for b in m["content"] if b["type"] == "tool-result"]
    assert all(output in contents for output in outputs if output.strip())  # mending loses nothing


def request(messages: tuple[Message, ...], route: tuple[str, str, str]) -> Request:
    return Request(freeze({"provider": route[0], "model": route[1]}), messages, "sys", freeze(list(TOOLS)))


class Requests(RuleBasedStateMachine):
    """Up to four sessions in one file; each event is an append of its own, so each moment between two is a crash's."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.w = stored_world(self.folder / "dsh.db")
        self.sessions: list[Session] = [self.w.session("s0")]
        self.encoders: dict[tuple[str, str], Encoder] = {}
        self.route = ROUTES[0]
        self.touched = 0
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "w"):
            self.w.db.close()
            shutil.rmtree(self.folder)

    def session(self, which: int) -> Session:
        """The session that an event goes to, a turn of it open."""
        self.touched = which % len(self.sessions)
        session = self.sessions[self.touched]
        if session.open_turn is None:
            trigger = {"kind": "message", "source": {"kind": "user"}}
            session.append("turn/start", {"turn": session.turns + 1, "trigger": trigger})
        return session

    def step(self, which: int) -> tuple[Session, dict[str, Any]]:
        session = self.session(which)
        if session.open_step is None:
            session.append("step/start", {"turn": session.open_turn, "step": session.steps + 1})
        return session, {"turn": session.open_turn, "step": session.open_step}

    @rule(which=PICK, content=CONTENT, kind=st.sampled_from(["user/message", "steering/message"]))
    def hear(self, which: int, content: Any, kind: str) -> None:
        session = self.session(which)
        more = {"turn": session.open_turn} if kind == "steering/message" else {}
        session.append(
            kind, {"content": content, "source": {"kind": "plugin", "plugin": "p"}, **more}, surface="append"
        )

    @rule(
        which=PICK,
        content=CONTENT,
        calls=CALLS,
        thinks=st.booleans(),
        field=st.sampled_from([None, "reasoning", "reasoning_content"]),
        answered=st.lists(st.booleans(), min_size=3, max_size=3),
        between=st.sampled_from([None, None, None, "injected", "answered twice"]),
    )
    def answer(
        self, which: int, content: Any, calls: Any, thinks: bool, field: Any, answered: Any, between: Any
    ) -> None:
        """An assistant message, what it calls, and some of the results, perhaps with something in between."""
        session, at = self.step(which)
        self.number += 1
        provider, model, _ = self.route
        made: list[Any] = [{"type": "reasoning", "text": f"{provider} thought {self.number}"}] if thinks else []
        made += content
        made += [{"type": "tool-call", "id": i, "name": n, "arguments": a} for i, n, a in calls]
        provenance = {
            "provider": provider,
            "model": model,
            **({"replayState": {"reasoningField": field}} if field else {}),
        }
        data = {**at, "content": made, "provenance": provenance}
        session.append("assistant/message", data, surface="append")
        for (id_, name, arguments), wanted in zip(calls, answered, strict=False):
            session.append("tool/call", {**at, "callId": id_, "name": name, "arguments": arguments})
            if between == "injected":
                session.append("user/message", {"content": [], "source": {"kind": "plugin"}}, surface="append")
            for _ in range(wanted + (between == "answered twice")):
                told = [*content, {"type": "text", "text": f"output {session.length}"}] if content else []
                output = {**at, "callId": id_, "content": told, "isError": False}
                session.append("tool/result", output, surface="append")

    @rule(which=PICK, turn=st.booleans())
    def close(self, which: int, turn: bool) -> None:
        session = self.session(which)
        if session.open_step is not None:
            session.append("step/end", {"turn": session.open_turn, "step": session.open_step})
        if turn:
            session.append("turn/end", {"turn": session.open_turn, "reason": {"kind": "aborted"}})

    @rule(which=PICK, one=PICK, two=PICK, kind=st.sampled_from(["user/message", "user/message", "assistant/message"]))
    def compact(self, which: int, one: int, two: int, kind: str) -> None:
        session = self.session(which)
        nodes = surface(self.w.db, session.id) if session.length else []
        if not nodes:
            return
        first, last = sorted((one % len(nodes), two % len(nodes)))
        where = replace(nodes[first], nodes[last])
        data: dict[str, Any] = {"content": [{"type": "text", "text": "sum"}], "source": {"kind": "plugin"}}
        if kind == "assistant/message":
            session, at = self.step(which)
            data = {**at, "content": data["content"], "provenance": {"provider": "box", "model": "qwen"}}
        session.append(kind, data, surface=where, sources=nodes[first : last + 1])

    @rule(which=PICK)
    def crash(self, which: int) -> None:
        """Another process finds what is stored and closes what is open."""
        index = which % len(self.sessions)
        session = self.sessions[index]
        if not session.length:
            return
        self.w.sessions.dispose(session)
        again = self.w.reopen()
        repaired = again.sessions.prepare_stored(session.id)
        assert repaired.open_turn is None
        repaired.release()
        again.db.close()
        self.sessions[index] = self.w.sessions.publish(self.w.sessions.prepare_stored(session.id))
        self.touched = index

    @rule(which=PICK, end=PICK)
    @precondition(lambda self: len(self.sessions) < 4)
    def fork(self, which: int, end: int) -> None:
        session = self.sessions[which % len(self.sessions)]
        ends = [e["seq"] for e in session.events() if e["type"] == "turn/end"] if session.length else []
        if ends:
            self.sessions.append(self.w.sessions.fork(session, ends[end % len(ends)], f"s{len(self.sessions)}"))
            self.touched = len(self.sessions) - 1

    @rule(route=st.sampled_from(ROUTES))
    def switch(self, route: Any) -> None:
        self.route = route

    @invariant()
    def every_server_takes_the_next_request(self) -> None:
        if not hasattr(self, "w"):
            return
        session = self.sessions[self.touched]
        messages = session.derive_messages()
        for route in ROUTES:
            encoder = self.encoders.setdefault(route[:2], Encoder(DIALECTS[route[2]]))
            raw = encoder.encode(request(messages, route))
            assert raw == Encoder(DIALECTS[route[2]]).encode(request(messages, route))
            check(raw, messages, route)


def run(examples: int, steps: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    chosen = settings(deadline=None, max_examples=examples, stateful_step_count=steps, database=None)
    run_state_machine_as_test(Requests, settings=chosen)


@pytest.mark.rule("LS-52", "LS-53", "LS-54", "LS-55", "LS-55a", "LS-55b", "LS-55c", "LS-55d", "LS-55e", "LS-4", "LS-56")
def test_a_short_while() -> None:
    run(10, 20)


@pytest.mark.slow
@pytest.mark.rule("LS-52", "LS-53", "LS-54", "LS-55", "LS-55a", "LS-55b", "LS-55c", "LS-55d", "LS-55e", "LS-4", "LS-56")
def test_a_long_while() -> None:
    run(120, 60)


async def cuts_history(w: World, chance: random.Random) -> None:
    """Before some steps a random range of what the model sees is replaced by a summary."""

    @w.observe("agent/pre-step")
    async def cut(agent: Any, *_: Any) -> None:
        nodes = surface(w.db, agent.id)
        if nodes and chance.random() < 0.3:
            first, last = sorted(chance.randrange(len(nodes)) for _ in range(2))
            data = {"content": blocks("sum"), "source": {"kind": "plugin", "plugin": "compact"}}
            agent.session.append(
                "user/message", data, surface=replace(nodes[first], nodes[last]), sources=nodes[first : last + 1]
            )


@pytest.mark.rule("LS-55a", "LS-55b", "LS-55e", "SE-33", "CO-20")
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 40))])
async def test_whatever_the_loop_asks_is_accepted(seed: int) -> None:
    """The real loop under cancels, failures, steering and compaction at random; every request that it made."""
    chance = random.Random(seed)
    async with world(*test_random.replies(chance)) as w:
        test_random.furnish(w, chance)
        await cuts_history(w, chance)
        agent = await w.agent(id="s")
        await test_random.disturb(agent, chance)
        with trio.move_on_after(0.05):
            await agent.when_idle()
        await w.agents.dispose(agent)
        w.script.replies.clear()
        w.script.replies.append(ask(("quick", {}), text="again"))
        again = await w.agents.resume("s", {"provider": "p", "model": "m2"})
        again.followup(blocks("and now?"))
        await again.when_idle()
        w.script.replies.append(say("fine"))
        assert w.requests
        encoders = {name: Encoder(dialect) for name, dialect in DIALECTS.items()}
        for made in w.requests:
            for name, encoder in encoders.items():
                raw = encoder.encode(made)
                assert raw == Encoder(DIALECTS[name]).encode(made)
                check(raw, made.messages, (made.provider, made.model, name))
