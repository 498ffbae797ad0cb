"""Random sequences of appends, replacements, forks and transactions against a model of the log in plain Python."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsh.core.errors import DshError
from dsh.core.lossless import thaw
from dsh.query.check import check
from dsh.session.session import Session
from tests.session.kit import ROUTE, call, dump, prompt, replace, text, world

SURFACE = ("user/message", "assistant/message", "tool/result", "steering/message")


class Model:
    """What SE-10 to SE-46 say, folded over a list of events; `take` answers whether an event may be appended."""

    def __init__(self, events: list[dict[str, Any]] | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.nodes: list[int] = []
        self.generation = self.turns = self.steps = 0
        self.turn: int | None = None
        self.step: int | None = None
        self.calls: set[str] = set()
        for event in events or []:
            assert self.take(event)

    def legal(self, event: dict[str, Any]) -> bool:
        kind, data = event["type"], event["data"]
        op, sources = event.get("surfaceOp"), event.get("sourceEventSeqs")
        if (kind in SURFACE) != (op is not None) or (op is None and sources is not None):
            return False
        if sources is not None:
            fine = all(0 <= s < len(self.events) for s in sources) and len(set(sources)) == len(sources)
            if not fine or (not sources and kind != "assistant/message"):
                return False
        here = (data.get("turn"), data.get("step")) == (self.turn, self.step)
        if kind == "turn/start":
            placed = self.turn is None and data["turn"] == self.turns + 1
        elif kind == "turn/end":
            placed = self.turn is not None and self.step is None and data["turn"] == self.turn
        elif kind == "step/start":
            placed = self.turn is not None and self.step is None
            placed = placed and (data["turn"], data["step"]) == (self.turn, self.steps + 1)
        elif kind in ("step/end", "assistant/chunk", "assistant/message", "tool/call"):
            placed = self.step is not None and here
        elif kind == "tool/result" and op == "append":
            placed = self.step is not None and here and data["callId"] in self.calls
        else:
            placed = self.turn is not None
        return placed and (op in (None, "append") or self.range_of(event) is not None)

    def range_of(self, event: dict[str, Any]) -> tuple[int, int] | None:
        op, sources = event["surfaceOp"], event.get("sourceEventSeqs") or []
        if op["start"] not in self.nodes or op["end"] not in self.nodes:
            return None
        first, last = self.nodes.index(op["start"]), self.nodes.index(op["end"])
        removed = self.nodes[first : last + 1]
        if first > last or not set(removed) <= set(sources):
            return None
        if event["type"] == "tool/result":
            old = self.events[removed[0]]
            rest = [{k: v for k, v in d.items() if k != "content"} for d in (old["data"], event["data"])]
            if len(removed) > 1 or old["type"] != "tool/result" or rest[0] != rest[1]:
                return None
        return first, last

    def take(self, event: dict[str, Any]) -> bool:
        if not self.legal(event):
            return False
        seq, kind, data = len(self.events), event["type"], event["data"]
        if event.get("surfaceOp") == "append":
            self.nodes.append(seq)
        elif "surfaceOp" in event:
            found = self.range_of(event)
            assert found is not None
            self.nodes[found[0] : found[1] + 1] = [seq]
            self.generation += 1
        if kind == "turn/start":
            self.turns, self.turn, self.steps = self.turns + 1, self.turns + 1, 0
        elif kind == "turn/end":
            self.turn = None
        elif kind == "step/start":
            self.steps, self.step, self.calls = self.steps + 1, self.steps + 1, set()
        elif kind == "step/end":
            self.step = None
        elif kind == "tool/call":
            self.calls.add(data["callId"])
        self.events.append(event)
        return True

    def messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for seq in self.nodes:
            event = self.events[seq]
            data = event["data"]
            if event["type"] == "assistant/message":
                if data["content"]:
                    found.append({"role": "assistant", "content": data["content"], "provenance": data["provenance"]})
            elif event["type"] == "tool/result":
                block = {"type": "tool-result", "toolCallId": data["callId"], "content": data["content"]}
                found.append({"role": "user", "content": [{**block, "isError": data["isError"]}]})
            else:
                found.append({"role": "user", "content": data["content"]})
        return found

    @property
    def ends(self) -> list[int]:
        return [seq for seq, event in enumerate(self.events) if event["type"] == "turn/end"]


PICK = st.integers(0, 10_000)


class Log(RuleBasedStateMachine):
    """Up to five sessions, a model of each; most appends are legal, the others must change nothing at all."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.w = world(self.folder / "dsh.db")
        self.sessions: list[tuple[Session, Model]] = [(self.w.session("s0"), Model())]

    def teardown(self) -> None:
        if not hasattr(self, "w"):
            return
        assert check(self.w.db) == []
        for session, model in self.sessions:
            if model.events:  # as another process reads it
                again = self.w.reopen()
                copy = again.sessions.prepare_stored(session.id)
                assert list(copy.derive_messages())[: len(model.messages())] == model.messages()
                again.db.close()
        self.w.db.close()
        shutil.rmtree(self.folder)

    def pick(self, which: int) -> tuple[Session, Model]:
        return self.sessions[which % len(self.sessions)]

    def append(self, which: int, kind: str, data: Any, op: Any = None, sources: list[int] | None = None) -> None:
        session, model = self.pick(which)
        event: dict[str, Any] = {"type": kind, "data": data}
        event |= {"surfaceOp": op} if op is not None else {}
        event |= {"sourceEventSeqs": sources} if sources is not None else {}
        legal = model.legal(event)
        before = None if legal else dump(self.w.path)
        if not legal:
            with pytest.raises(DshError) as caught:
                session.append(kind, data, surface=op, sources=sources)
            assert caught.value.code in ("INVARIANT", "SURFACE_INVALID")
            assert dump(self.w.path) == before
            return
        stored = session.append(kind, data, surface=op, sources=sources)
        assert model.take(event)
        assert {k: v for k, v in stored.items() if k not in ("seq", "time")} == event
        assert stored["seq"] == len(model.events) - 1

    @rule(which=PICK, off=st.sampled_from([0, 0, 0, 0, 0, -1, 1]))
    def turn(self, which: int, off: int) -> None:
        _, model = self.pick(which)
        if model.turn is None:
            self.append(which, "turn/start", {"turn": model.turns + 1 + off, "trigger": {"kind": "x"}})
        else:
            self.append(which, "turn/end", {"turn": model.turn + off, "reason": {"kind": "completed"}})

    @rule(which=PICK, off=st.sampled_from([0, 0, 0, 0, 0, -1, 1]), end=st.booleans())
    def step(self, which: int, off: int, end: bool) -> None:
        _, model = self.pick(which)
        kind = "step/end" if end and model.step is not None else "step/start"
        number = model.step if kind == "step/end" and model.step is not None else model.steps + 1
        self.append(which, kind, {"turn": model.turn or 1, "step": number + off})

    @rule(which=PICK, kind=st.sampled_from(["user/message", "steering/message"]), words=st.text(max_size=3))
    def say(self, which: int, kind: str, words: str) -> None:
        self.append(which, kind, prompt(words), "append")

    @rule(which=PICK, blocks=st.integers(0, 2), sources=st.none() | st.lists(st.integers(0, 30), max_size=3))
    def answer(self, which: int, blocks: int, sources: list[int] | None) -> None:
        _, model = self.pick(which)
        content = [text("re"), call("c0")][:blocks]
        data = {"turn": model.turn, "step": model.step, "content": content, "provenance": ROUTE}
        self.append(which, "assistant/message", data, "append", sources)

    @rule(which=PICK, kind=st.sampled_from(["tool/call", "tool/result", "assistant/chunk"]), name=st.sampled_from("ab"))
    def work(self, which: int, kind: str, name: str) -> None:
        _, model = self.pick(which)
        data: dict[str, Any] = {"turn": model.turn, "step": model.step, "callId": name, "content": [text("out")]}
        self.append(which, kind, {**data, "isError": False}, "append" if kind == "tool/result" else None)

    @rule(
        which=PICK,
        one=PICK,
        two=PICK,
        ordered=st.booleans(),
        named=st.sampled_from(["all", "all", "all", "some", "more"]),
    )
    @precondition(lambda self: any(m.nodes for _, m in self.sessions))
    def compact(self, which: int, one: int, two: int, ordered: bool, named: str) -> None:
        _, model = self.pick(which)
        if not model.nodes:
            return
        first, last = one % len(model.nodes), two % len(model.nodes)
        if ordered:
            first, last = min(first, last), max(first, last)
        sources = model.nodes[min(first, last) : max(first, last) + 1]
        if named == "some":
            sources = sources[1:] or [0]
        if named == "more":
            sources = sorted({*sources, 0})
        op = replace(model.nodes[first], model.nodes[last])
        self.append(which, "user/message", prompt("sum"), op, sources)

    @rule(which=PICK, node=PICK, change=st.sampled_from([{}, {}, {"content": []}, {"isError": True}, {"callId": "zz"}]))
    def rewrite(self, which: int, node: int, change: dict[str, Any]) -> None:
        _, model = self.pick(which)
        results = [n for n in model.nodes if model.events[n]["type"] == "tool/result"] or model.nodes
        if not results:
            return
        seq = results[node % len(results)]
        data = {"callId": "a", "content": [], "isError": False, **model.events[seq]["data"], **change}
        self.append(which, "tool/result", data, replace(seq, seq), [seq])

    @rule(which=PICK, gone=st.integers(0, 30))
    def replace_what_is_gone(self, which: int, gone: int) -> None:
        self.append(which, "user/message", prompt("sum"), replace(gone, gone), [gone])

    @rule(which=PICK, note=st.sampled_from(["plugin/note", "todo/write"]))
    def note(self, which: int, note: str) -> None:
        self.append(which, note, {"n": 1})

    @rule(which=PICK, end=PICK)
    @precondition(lambda self: len(self.sessions) < 5)
    def fork(self, which: int, end: int) -> None:
        session, model = self.pick(which)
        if not model.ends:
            return
        boundary = model.ends[end % len(model.ends)]
        child = self.w.sessions.fork(session, boundary, f"s{len(self.sessions)}")
        copy = Model(model.events[: boundary + 1])
        assert child.generation == copy.generation
        self.sessions.append((child, copy))

    @rule(which=PICK, count=st.integers(1, 4))
    def roll_back(self, which: int, count: int) -> None:
        """Legal appends in a transaction that fails in the end."""
        session, model = self.pick(which)
        if model.turn is None:
            return
        before = dump(self.w.path)
        try:
            with self.w.db.transaction():
                for _ in range(count):
                    session.append("user/message", prompt("lost"), surface="append")
                session.derive_messages()
                session.append("turn/start", {"turn": 0})
        except DshError:
            pass
        assert dump(self.w.path) == before
        assert session.length == len(model.events)

    @rule(which=PICK)
    def derive(self, which: int) -> None:
        session, model = self.pick(which)
        assert list(session.derive_messages()) == model.messages()

    @invariant()
    def the_database_says_what_the_model_says(self) -> None:
        if not hasattr(self, "w"):
            return
        for session, model in self.sessions:
            state = (session.length, session.generation, session.turns, session.open_turn, session.open_step)
            assert state == (len(model.events), model.generation, model.turns, model.turn, model.step)
            nodes = self.w.db.rows("SELECT seq FROM surface WHERE session_id = ? ORDER BY position", (session.id,))
            assert [n for (n,) in nodes] == model.nodes
        session, model = self.sessions[-1]
        stored = [thaw(dict(e)) for e in session.events()] if model.events else []
        assert [{k: v for k, v in e.items() if k not in ("seq", "time")} for e in stored] == model.events


@pytest.mark.rule("SE-10", "SE-11", "SE-14", "SE-17", "SE-24", "SE-55", "PE-7")
def test_a_short_while() -> None:
    run(12, 30)


@pytest.mark.slow
@pytest.mark.rule(
    "SE-10", "SE-11", "SE-14", "SE-15", "SE-16", "SE-17", "SE-24", "SE-40", "SE-44", "SE-55", "PE-3", "PE-7"
)
def test_a_long_while() -> None:
    run(100, 80)


def run(examples: int, steps: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    chosen = settings(deadline=None, max_examples=examples, stateful_step_count=steps, database=None)
    run_state_machine_as_test(Log, settings=chosen)
