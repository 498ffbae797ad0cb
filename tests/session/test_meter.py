"""The token meter (docs/spec/token-meter.md): prices, the fold over a log, and what a measurement says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh.core.errors import ConfigError, exit_code
from dsh.kernel.config import parse_setting
from dsh.session.meter import (
    Baseline,
    Entry,
    Fold,
    Measurement,
    Meter,
    MeterError,
    estimate_header,
    estimate_message,
)
from dsh.session.session import Session
from tests.session.kit import (
    ROUTE,
    World,
    call,
    end_turn,
    prompt,
    replace,
    reply,
    result,
    start_step,
    start_turn,
    text,
    tool_call,
    whole_turn,
    world,
)
from tests.store.test_flat import cost


def message(*blocks: Any) -> Any:
    return {"role": "user", "content": list(blocks)}


def price(*blocks: Any) -> int:
    """Of the blocks alone."""
    return estimate_message(message(*blocks)) - 4


def chunk(session: Session, chunk: dict[str, Any]) -> int:
    at = {"turn": session.open_turn, "step": session.open_step}
    return session.append("assistant/chunk", {**at, "chunk": chunk})["seq"]


def header(session: Session, reason: str = "initial", **parts: Any) -> None:
    session.append("request/header", {"header": {"config": ROUTE, **parts}, "reason": reason})


def answer(session: Session, words: str, *, stored: str | None = None, sources: Any = "chunks", **more: Any) -> int:
    """An answer that came as chunks of `words`, and is logged as `stored` where that is another text."""
    seqs = [
        chunk(session, {"type": "text-delta", "index": 0, "text": words}),
        chunk(session, {"type": "finish", "reason": {"kind": "stop"}}),
    ]
    named = seqs if sources == "chunks" else sources
    at = {"turn": session.open_turn, "step": session.open_step}
    content = [text(words if stored is None else stored)]
    data = {**at, "content": content, "provenance": ROUTE, **more}
    return session.append("assistant/message", data, surface="append", sources=named)["seq"]


def say(session: Session, words: str) -> int:
    return session.append("user/message", prompt(words), surface="append")["seq"]


def usage(input: int, output: int, **more: int) -> Any:
    return {"inputTokens": input, "outputTokens": output, **more}


@pytest.fixture
def w(tmp_path: Path) -> World:
    return world(tmp_path / "m.db")


def measured(w: World, session: str = "s", header: Any = None) -> Measurement:
    """Measured anew; what the kept state gives must be the same (TM-26)."""
    fresh = Meter(w.db).measure(session, header)
    assert Meter.of(w.host, w.db).measure(session, header) == fresh
    assert sum(tokens for _, tokens in fresh.nodes) == fresh.surface_tokens
    return fresh


# ----------------------------------------------------------------------------------------------------------- prices


@pytest.mark.rule("TM-1", "TM-8")
@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("", 4),
        ("a", 5),
        ("abcd", 5),
        ("abcde", 6),
        ("\u00e9" * 4, 5),
        ("\U0001f600" * 2, 5),  # two units each
        ("\U0001f600" * 3, 6),
    ],
)
def test_text_and_thinking_cost_a_token_for_four_units(words: str, tokens: int) -> None:
    assert price(text(words)) == tokens
    assert price({"type": "reasoning", "text": words}) == tokens


@pytest.mark.rule("TM-2")
def test_a_call_is_rounded_up_twice_and_its_id_is_free() -> None:
    assert price(call("c" * 50, "abcde", "x")) == 2 + 1 + 4


@pytest.mark.rule("TM-3")
def test_a_result_costs_what_it_holds() -> None:
    inner = {"type": "tool-result", "toolCallId": "i" * 99, "content": [text("abcd")], "isError": True}
    assert price(inner) == 5 + 4
    assert price({"type": "tool-result", "toolCallId": "o", "content": [inner, text("")]}) == 9 + 4 + 4


@pytest.mark.rule("TM-4")
def test_an_unknown_block_costs_its_json() -> None:
    assert price({"type": "x", "z": "\u00e9", "a": [1]}) == 4 + -(-len('{"type":"x","z":"e","a":[1]}') // 4)
    assert price({"type": "text", "text": None}) == 4 + -(-len('{"type":"text","text":null}') // 4)


@pytest.mark.rule("TM-5", "TM-8")
def test_the_examples() -> None:
    assert estimate_message(message(text("abcd"))) == 9
    unknown = {"type": "future-block", "payload": "abcd"}
    blocks = [
        text("abcd"),
        {"type": "reasoning", "text": "ab"},
        call("c", "read", '{"x":1}'),
        {"type": "tool-result", "toolCallId": "c", "content": [text("xy")], "isError": False},
        unknown,
    ]
    assert [price(b) for b in blocks] == [5, 5, 7, 9, 14]
    assert estimate_message(message(*blocks)) == 44
    said: Any = {"role": "assistant", "content": blocks, "provenance": ROUTE}
    assert estimate_message(said) == 44


@pytest.mark.rule("TM-6")
def test_a_header_costs_its_prefix_system_and_tools() -> None:
    config: Any = {**ROUTE, "stop": ["a" * 100]}
    tools: Any = [{"name": "t", "description": "d", "parameters": {}}]
    length = len('[{"name":"t","description":"d","parameters":{}}]')
    assert estimate_header(None) == estimate_header({"config": config}) == 0
    assert estimate_header({"config": config, "system": "abcde"}) == 2 + 4
    assert estimate_header({"config": config, "tools": tools}) == -(-length // 4) + 4
    assert estimate_header({"config": config, "messagePrefix": [message(text("abcd"))]}) == 9


@pytest.mark.rule("TM-7")
def test_a_node_costs_its_message_and_an_empty_one_nothing(w: World) -> None:
    s = w.session()
    start_turn(s)
    say(s, "abcd")
    start_step(s)
    reply(s)
    s.append("step/end", {"turn": 1, "step": 1})
    start_step(s, 2)
    reply(s, call("c", "bash", "{}"))
    tool_call(s, "c")
    s.append("tool/result", result(s, "c", "xy"), surface="append")
    assert [tokens for _, tokens in measured(w).nodes] == [9, 0, 4 + 1 + 1 + 4, 9 + 4]


# ------------------------------------------------------------------------------------------------------------- fold


@pytest.mark.rule("TM-10", "TM-15", "TM-21")
def test_what_comes_after_the_step_opened_is_a_delta(w: World) -> None:
    s = w.session()
    start_turn(s)
    say(s, "abcd")
    at = start_step(s)
    header(s)
    say(s, "inside")  # 2 + 8
    answer(s, "abcd", usage=usage(1000, 10))
    first = measured(w)
    assert first.baseline == Baseline("usage", 1010, usage(1000, 10))
    assert first.surface_delta_tokens == 10
    assert first.total_tokens == 1020
    s.append("step/end", at)
    say(s, "abcd")
    assert measured(w).surface_delta_tokens == 19
    assert first.total_tokens == 1020  # TM-25: a result is what it was


@pytest.mark.rule("TM-11")
def test_headers_count_in_canonical_form(w: World) -> None:
    s = w.session()
    start_turn(s)
    say(s, "abcd")
    start_step(s)
    header(s, system="", tools=[])
    answer(s, "abcd", usage=usage(500, 5))
    assert measured(w).baseline.kind == "usage"
    assert measured(w, header={"config": ROUTE}).baseline.kind == "usage"


@pytest.mark.rule("TM-12", "TM-15", "TM-25")
def test_a_replacement_takes_its_nodes_prices_away(w: World) -> None:
    s = w.session()
    whole_turn(s, "x" * 400)
    before = measured(w)
    start_turn(s)
    seqs = [seq for seq, _ in before.nodes]
    new = s.append("user/message", prompt("abcd"), surface=replace(seqs[0], seqs[-1]), sources=seqs)["seq"]
    after = measured(w)
    assert after.nodes == ((new, 9),)
    assert after.surface_delta_tokens == before.surface_delta_tokens + 9 - before.surface_tokens
    assert after.total_tokens == max(0, after.baseline.tokens + after.surface_delta_tokens)


@pytest.mark.rule("TM-13")
@pytest.mark.parametrize(
    ("report", "kind", "tokens"),
    [
        (usage(30, 8), "usage", 38),
        (usage(10, 8, cacheReadTokens=15, cacheWriteTokens=5, reasoningTokens=7), "usage", 38),
        (usage(20, 8), "usage", 28),  # 28 is what header, prompt and answer are estimated to be
        (usage(19, 8), "estimated", 28),
        (usage(0, 0), "estimated", 28),
        (None, "estimated", 28),
    ],
)
def test_usage_counts_where_it_is_no_less_than_the_estimate(w: World, report: Any, kind: str, tokens: int) -> None:
    s = w.session()
    start_turn(s)
    say(s, "abcd")
    start_step(s)
    header(s, system="x" * 24)
    answer(s, "abcd", **({"usage": report} if report else {}))
    found = measured(w)
    assert (found.baseline.kind, found.baseline.tokens, found.surface_delta_tokens) == (kind, tokens, 0)
    assert found.baseline.usage == (report if kind == "usage" else None)


@pytest.mark.rule("TM-13", "TM-21")
def test_without_a_header_there_is_an_estimate(w: World) -> None:
    s = w.session()
    start_turn(s)
    say(s, "abcd")
    start_step(s)
    answer(s, "abcd", stored="abcdefgh", usage=usage(5000, 10))
    assert measured(w).baseline == Baseline("estimated", 9 + 10)


@pytest.mark.rule("TM-14")
def test_a_message_changed_after_the_call_is_a_delta(w: World) -> None:
    s = w.session()
    start_turn(s)
    cases: list[tuple[str, Any, int]] = [
        ("x" * 44, "chunks", 10), ("", "chunks", -1), ("x" * 44, None, 0), ("abcd", [], 9),
    ]  # fmt: skip
    for step, (stored, sources, delta) in enumerate(cases, 1):
        at = start_step(s, step)
        if step == 1:
            header(s)
        answer(s, "abcd", stored=stored, sources=sources, usage=usage(9000, 1))
        assert (measured(w).surface_delta_tokens, measured(w).baseline.tokens) == (delta, 9001), step
        s.append("step/end", at)


@pytest.mark.rule("TM-14")
def test_an_answer_that_is_assembled_to_nothing_is_worth_nothing(w: World) -> None:
    s = w.session()
    start_turn(s)
    start_step(s)
    header(s)
    seq = chunk(s, {"type": "finish", "reason": {"kind": "stop"}})
    at = {"turn": 1, "step": 1}
    data = {**at, "content": [text("abcd")], "provenance": ROUTE, "usage": usage(100, 0)}
    s.append("assistant/message", data, surface="append", sources=[seq])
    assert measured(w).surface_delta_tokens == 9


@pytest.mark.rule("TM-16")
def test_a_failed_request_leaves_the_anchor(w: World) -> None:
    s = w.session()
    whole_turn(s)
    before = measured(w)
    start_turn(s)
    at = start_step(s)
    chunk(s, {"type": "text-delta", "index": 0, "text": "half"})
    chunk(s, {"type": "usage", "usage": usage(9999, 9)})
    s.append("step/end", at)
    end_turn(s)
    assert measured(w)._replace(log_revision=before.log_revision) == before


AT = {"turn": 1, "step": 1}


def entry(seq: int, type: str, data: Any = None, sources: Any = None, op: Any = None) -> Entry:
    return Entry(seq, type, AT if data is None else data, sources, op)


def body(**more: Any) -> dict[str, Any]:
    return {**AT, "content": [text("abcd")], "provenance": ROUTE, **more}


@pytest.mark.rule("TM-17")
@pytest.mark.parametrize(
    "bad",
    [
        entry(9, "step/start"),
        entry(9, "step/end", {"turn": 1, "step": 2}),
        entry(9, "assistant/message", {**body(), "turn": 2}, None, "append"),
        entry(9, "user/message", body(), [1], replace(1, 77)),
        entry(9, "user/message", body(), [1], replace(3, 1)),
    ],
)
def test_a_malformed_event_is_refused_and_changes_nothing(bad: Entry) -> None:
    fold = Fold()
    for seq in (1, 2, 3):
        fold.take(entry(seq, "user/message", body(), None, "append"))
    fold.take(entry(4, "step/start"))
    before = {**vars(fold), "nodes": [*fold.nodes], "prices": {**fold.prices}}
    for _ in range(2):
        with pytest.raises(MeterError, match="event 9") as caught:
            fold.take(bad)
        assert vars(fold) == before
    assert caught.value.code == "METER_BAD_LOG"
    assert exit_code("METER_BAD_LOG") == 8


@pytest.mark.rule("TM-17")
@pytest.mark.parametrize(
    "sources", [[6, 6], [9], [10], [1], [7]], ids=["repeated", "itself", "later", "no chunk", "another step's"]
)
def test_a_source_that_is_no_chunk_of_the_step_is_refused(sources: list[int]) -> None:
    at = {"config": ROUTE}
    log = {
        1: (1, "user/message", body()),
        6: (6, "assistant/chunk", {**AT, "chunk": {"type": "text-delta", "index": 0, "text": "ab"}}),
        7: (7, "assistant/chunk", {"turn": 1, "step": 2, "chunk": {"type": "text-delta", "index": 0, "text": "ab"}}),
    }
    fold = Fold()
    fold.take(entry(4, "step/start"))
    fold.take(entry(5, "request/header", {"header": at}))
    fold.take(entry(9, "assistant/message", body(usage=usage(50, 1)), sources, "append"))
    for _ in range(2):
        with pytest.raises(MeterError, match="event 9"):
            fold.pressure(lambda seqs: [log[s] for s in seqs if s in log])
    fold.take(entry(11, "assistant/message", body(usage=usage(50, 1)), [6], "append"))
    assert fold.pressure(lambda seqs: [log[s] for s in seqs])[0].kind == "usage"


@pytest.mark.rule("TM-17")
def test_a_stored_log_with_a_foreign_source_cannot_be_measured_until_it_goes_on(w: World) -> None:
    s = w.session()
    start_turn(s)
    node = say(s, "abcd")
    start_step(s)
    header(s)
    answer(s, "abcd", sources=[node], usage=usage(500, 5))
    for meter in (Meter(w.db), Meter.of(w.host, w.db)):
        with pytest.raises(MeterError):
            meter.measure("s")
    answer(s, "abcd", usage=usage(600, 5))
    assert measured(w).baseline.tokens == 605


# -------------------------------------------------------------------------------------------------------- measuring


@pytest.mark.rule("TM-20", "TM-23", "TM-24")
def test_another_header_gives_an_estimate_and_touches_no_price(w: World) -> None:
    s = w.session()
    start_turn(s)
    say(s, "abcd")
    start_step(s)
    header(s, system="abcd", tools=[{"name": "a"}, {"name": "b"}])
    answer(s, "abcd", usage=usage(900, 10))
    logged = measured(w)
    assert logged.baseline.kind == "usage"
    same: Any = {"config": ROUTE, "system": "abcd", "tools": [{"name": "a"}, {"name": "b"}], "messagePrefix": []}
    assert measured(w, header=same) == logged
    changes: list[dict[str, Any]] = [
        {"config": {**ROUTE, "model": "other"}},
        {"config": {**ROUTE, "reasoningEffort": "high"}},
        {"config": {**ROUTE, "temperature": 1}},
        {"system": "abc"},
        {"tools": [{"name": "b"}, {"name": "a"}]},
        {"messagePrefix": [message(text("abcd"))]},
    ]
    for change in changes:
        other: Any = {**same, **change}
        found = measured(w, header=other)
        assert found.baseline == Baseline("estimated", estimate_header(other) + found.surface_tokens)
        assert (found.surface_delta_tokens, found.nodes) == (0, logged.nodes)
    assert measured(w) == logged
    header(s, "change", system="abcd")
    header(s, "change", system="abcd", tools=[{"name": "a"}, {"name": "b"}])
    assert measured(w).baseline == logged.baseline  # the same again
    s.append("step/end", {"turn": 1, "step": 1})
    start_step(s, 2)
    header(s, "change")
    answer(s, "abcd", usage=usage(901, 10))
    header(s, "change", system="abcd", tools=[{"name": "a"}, {"name": "b"}])
    assert measured(w).baseline.kind == "estimated"  # no older anchor comes back


@pytest.mark.rule("TM-22")
def test_nothing_is_nothing(w: World) -> None:
    s = w.session()
    start_turn(s)
    found = measured(w)
    assert (found.baseline, found.total_tokens, found.nodes) == (Baseline("none", 0), 0, ())
    assert found.log_revision == 1
    assert measured(w, header={"config": ROUTE}).baseline == Baseline("estimated", 0)
    say(s, "abcd")
    assert measured(w).baseline == Baseline("estimated", 9)


@pytest.mark.rule("TM-26")
def test_a_fork_measures_what_was_replaced_before_it(w: World) -> None:
    s = w.session()
    start_turn(s)
    node = say(s, "x" * 400)
    at = start_step(s)
    header(s)
    answer(s, "abcd", usage=usage(900, 10))
    s.append("step/end", at)
    s.append("user/message", prompt("abcd"), surface=replace(node, node), sources=[node])
    end_turn(s)
    child = w.sessions.fork(s)
    assert measured(w, child.id) == measured(w)
    assert measured(w).surface_delta_tokens == 9 - 108
    start_turn(child)
    say(child, "abcd")
    assert measured(w, child.id).surface_delta_tokens == 18 - 108


@pytest.mark.rule("TM-26")
def test_a_log_that_was_rolled_back_or_made_anew_is_measured_anew(w: World) -> None:
    s = w.session()
    whole_turn(s)
    meter = Meter.of(w.host, w.db)
    before = meter.measure("s")

    def give_up() -> None:
        with w.db.transaction():
            whole_turn(s, "more")
            meter.measure("s")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        give_up()
    assert meter.measure("s") == before
    w.sessions.dispose(s)
    assert not meter._folds


@pytest.mark.rule("TM-27")
def test_it_has_no_settings() -> None:
    with pytest.raises(ConfigError, match=r"token_meter\.density"):
        parse_setting("token_meter.density", "3")


def test_a_measurement_costs_what_is_new(w: World) -> None:
    """A first one reads the surface and one answer's chunks, a later one what came since, however long the log is."""
    s = w.session()
    meter = Meter(w.db)

    def grow(turns: int) -> None:
        with w.db.transaction():
            for _ in range(turns):
                whole_turn(s, "words", calls=1)
            start_turn(s)
            seqs = [row[0] for row in w.db.rows("SELECT seq FROM surface WHERE session_id = 's' ORDER BY position")]
            s.append("user/message", prompt("short"), surface=replace(seqs[0], seqs[-1]), sources=seqs)
            end_turn(s)
            whole_turn(s)

    def costs() -> tuple[int, int]:
        first = cost(w.db, lambda: Meter(w.db).total("s"))
        meter.total("s")
        whole_turn(s)
        return first, cost(w.db, lambda: meter.total("s"))

    grow(30)
    costs()
    short = costs()
    grow(600)
    costs()
    long = costs()
    assert long[1] < short[1] * 1.3
    assert long[0] < short[0] + 600 * 12 * 20  # a few steps for each dead node, none for an event
