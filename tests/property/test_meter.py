"""Random legal logs: what the meter keeps up to date, what it makes from scratch, what it makes after a reload, and a
fold written straight from the rules, event by event, agree after every step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dsh.core.lossless import dumps
from dsh.session.meter import Measurement, Meter, MeterError
from dsh.session.session import Session
from tests.session.kit import ROUTE, World, call, prompt, replace, text, world

WORDS = ("", "abcd", "a longer text, of some words", "\u00e9\U0001f600 mixed", "x" * 300)


# ---------------------------------------------------------------------------------- the rules, without any economy


def quarter(words: str) -> int:
    return -(-len(words.encode("utf-16-le")) // 2 // 4)


def block_price(block: Any) -> int:
    if block["type"] in ("text", "reasoning"):
        return quarter(block["text"]) + 4
    if block["type"] == "tool-call":
        return quarter(block["name"]) + quarter(block["arguments"]) + 4
    return 4 + quarter(dumps(block))


def message_price(content: list[Any]) -> int:
    return sum(block_price(b) for b in content) + 4


def node_price(event: Any) -> int:
    content = event["data"]["content"]
    if event["type"] == "assistant/message" and not content:
        return 0
    return message_price(content) + (4 if event["type"] == "tool/result" else 0)


def header_price(header: Any) -> int:
    system = header.get("system") if header else None
    tools = header.get("tools") if header else None
    return (quarter(system) + 4 if system else 0) + (quarter(dumps(tools)) + 4 if tools else 0)


def canonical(header: Any) -> str:
    return dumps({k: v for k, v in sorted(header.items()) if v}) if header else ""


def by_the_rules(events: list[Any], given: Any = None) -> tuple[Any, ...]:
    """The measurement as a tuple, or the seq at which it fails."""
    header: Any = None
    nodes: list[int] = []
    anchor: Any = None
    before = 0

    def surface() -> int:
        return sum(node_price(events[seq]) for seq in nodes)

    for event in events:
        data, op = event["data"], event.get("surfaceOp")
        if event["type"] == "request/header":
            header = data["header"]
        elif event["type"] == "step/start":
            before = surface()
        elif event["type"] == "assistant/message":
            anchor = (event, header, before)
        if op == "append":
            nodes.append(event["seq"])
        elif op is not None:
            first, last = nodes.index(op["start"]), nodes.index(op["end"])
            nodes[first : last + 1] = [event["seq"]]
    effective = header if given is None else given
    prices = tuple((seq, node_price(events[seq])) for seq in nodes)
    if anchor is None or canonical(anchor[1]) != canonical(effective):
        tokens = header_price(effective) + surface()
        none = effective is None and surface() == 0
        base = ("none" if none else "estimated", tokens)
        if anchor is None or sources_fit(events, anchor):
            return (len(events), base, 0, tokens, surface(), prices)
        return (anchor[0]["seq"],)
    message, under, start = anchor
    usage = message["data"].get("usage")
    answer = node_price(message)
    if usage and under:
        if not sources_fit(events, anchor):
            return (message["seq"],)
        if (sources := message.get("sourceEventSeqs")) is not None:
            said = [events[s]["data"]["chunk"] for s in sources]
            words = "".join(c["text"] for c in said if c["type"] == "text-delta")
            answer = message_price([text(words)]) if any(c["type"] == "text-delta" for c in said) else 0
    estimate = header_price(under) + start + answer
    used = sum(v for k, v in usage.items() if k != "reasoningTokens") if usage and under else 0
    base = ("usage", used) if usage and under and used >= estimate else ("estimated", estimate)
    delta = surface() - start - answer
    return (len(events), base, delta, max(0, base[1] + delta), surface(), prices)


def sources_fit(events: list[Any], anchor: Any) -> bool:
    message, under, _ = anchor
    if not (message["data"].get("usage") and under):
        return True
    at = (message["data"]["turn"], message["data"]["step"])
    named = [events[s] for s in message.get("sourceEventSeqs", [])]
    return all(e["type"] == "assistant/chunk" and (e["data"]["turn"], e["data"]["step"]) == at for e in named)


def as_tuple(measure: Any) -> tuple[Any, ...]:
    try:
        found: Measurement = measure()
    except MeterError as error:
        return (int(error.message.split()[1]),)
    return (found.log_revision, found.baseline[:2], *found[2:])


# -------------------------------------------------------------------------------------------------------- the logs


class Writer:
    """Appends something legal, whatever the log is like."""

    def __init__(self, rand: random.Random, session: Session) -> None:
        self.rand = rand
        self.session = session
        self.nodes: list[int] = []
        self.chunks: list[int] = []

    def at(self) -> dict[str, Any]:
        return {"turn": self.session.open_turn, "step": self.session.open_step}

    def one(self) -> None:
        s, rand = self.session, self.rand
        if s.open_turn is None:
            s.append("turn/start", {"turn": s.turns + 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
            s.steps = 0
            return
        actions = [self.say, self.replacement, *([self.header] if rand.random() < 0.4 else [])]
        if s.open_step is None:
            actions += [self.open_step, self.open_step, self.end_turn]
        else:
            actions += [self.chunk, self.chunk, self.chunk, self.answer, self.answer, self.call, self.end_step]
        rand.choice(actions)()

    def say(self) -> None:
        self.put("user/message", prompt(self.rand.choice(WORDS)))

    def put(self, type: str, data: Any, op: Any = "append", sources: Any = None) -> None:
        event = self.session.append(type, data, surface=op, sources=sources)
        if op == "append":
            self.nodes.append(event["seq"])

    def replacement(self) -> None:
        if len(self.nodes) < 2 or self.rand.random() < 0.5:
            return
        first = self.rand.randrange(len(self.nodes))
        last = min(len(self.nodes) - 1, first + self.rand.randrange(3))
        removed = self.nodes[first : last + 1]
        op = replace(removed[0], removed[-1])
        event = self.session.append("user/message", prompt("summary"), surface=op, sources=removed)
        self.nodes[first : last + 1] = [event["seq"]]

    def header(self) -> None:
        header: dict[str, Any] = {"config": {**ROUTE, "model": self.rand.choice("mn")}}
        parts: list[dict[str, Any]] = [{}, {"system": "You."}, {"system": "", "tools": []}, {"tools": [{"name": "t"}]}]
        header |= self.rand.choice(parts)
        self.session.append("request/header", {"header": header, "reason": "change"})

    def open_step(self) -> None:
        self.chunks = []
        self.session.append("step/start", {"turn": self.session.open_turn, "step": self.session.steps + 1})

    def end_step(self) -> None:
        self.session.append("step/end", self.at())

    def end_turn(self) -> None:
        data = {"turn": self.session.open_turn, "reason": {"kind": "completed"}}
        self.session.append("turn/end", data)

    def chunk(self) -> None:
        some = {"type": "text-delta", "index": 0, "text": self.rand.choice(WORDS)}
        other: dict[str, Any] = {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 1}}
        one = self.rand.choice([some, some, other])
        self.chunks.append(self.session.append("assistant/chunk", {**self.at(), "chunk": one})["seq"])

    def answer(self) -> None:
        rand = self.rand
        content = rand.choice([[], [text(rand.choice(WORDS))], [{"type": "odd", "n": [1, None]}]])
        data = {**self.at(), "content": content, "provenance": ROUTE}
        if rand.random() < 0.8:
            data["usage"] = {"inputTokens": rand.choice([0, 5, 5000, 5000]), "outputTokens": 3}
            if rand.random() < 0.5:
                data["usage"] |= {"cacheReadTokens": 7, "reasoningTokens": 2}
        choices = [self.chunks, self.chunks, self.chunks, None, []]
        if self.nodes and rand.random() < 0.1:
            choices = [[self.nodes[0]]]
        self.put("assistant/message", data, "append", rand.choice(choices))

    def call(self) -> None:
        name = f"c{self.session.length}"
        asked = {**self.at(), "content": [call(name)], "provenance": ROUTE}
        self.put("assistant/message", asked, "append", self.chunks)
        self.session.append("tool/call", {**self.at(), "callId": name, "name": "bash", "arguments": "{}"})
        data = {**self.at(), "callId": name, "content": [text(self.rand.choice(WORDS))], "isError": False}
        self.put("tool/result", data)


OTHER: Any = {"config": {**ROUTE, "model": "n"}, "system": "Other."}


def compare(w: World, kept: Meter, session: Session, given: Any = None) -> None:
    expected = by_the_rules(session.events(), given)
    assert as_tuple(lambda: kept.measure(session.id, given)) == expected
    assert as_tuple(lambda: Meter(w.db).measure(session.id, given)) == expected


@pytest.mark.slow
@pytest.mark.rule("TM-10", "TM-12", "TM-13", "TM-14", "TM-25", "TM-26")
@pytest.mark.parametrize("seed", range(12))
def test_however_it_is_measured_it_is_the_same(tmp_path: Path, seed: int) -> None:
    rand = random.Random(seed)
    w = world(tmp_path / "m.db")
    kept = Meter(w.db)
    writer = Writer(rand, w.session("s"))
    kinds = set()
    for number in range(220):
        writer.one()
        if rand.random() < 0.5:  # else several events are read at once
            compare(w, kept, writer.session, rand.choice([None, None, OTHER]))
            kinds.add(by_the_rules(writer.session.events())[1:2])
        if writer.session.open_turn is None and number % 50 == 49:
            child = Writer(rand, w.sessions.fork(writer.session))
            child.nodes = [*writer.nodes]
            compare(w, kept, child.session)
            writer = child
    for session in list(w.sessions):
        again = w.reopen()
        expected = by_the_rules(session.events())
        assert as_tuple(lambda s=session, a=again: Meter(a.db).measure(s.id)) == expected
        again.db.close()
    assert {k[0][0] for k in kinds if k} >= {"usage", "estimated"}
    w.db.close()
