"""What a run spends, as a person and a script see it: the result line, the budget, the price that nobody knows."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path
from typing import Any

import pytest

from tests.provider import FakeProvider, status, text, tool_call
from tests.shell.process import Dsh, on_terminal

pytestmark = pytest.mark.slow  # each test starts the program, some many times

USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "prompt_tokens_details": {"cached_tokens": 400},
    "completion_tokens_details": {"reasoning_tokens": 30},
}


def priced(dsh: Dsh, price: float = 10) -> None:
    folder = dsh.home / ".dsh"
    folder.mkdir(exist_ok=True)
    table = f'[prices."*/fake-model"]\ninput = {price}\noutput = {10 * price}\ncache_read = {price / 10}\n'
    (folder / "config.toml").write_text(table)


@pytest.mark.rule("HD-7")
def test_the_result_tells_what_it_cost(tmp_path: Path) -> None:
    with FakeProvider(text("yes", usage=USAGE), text("yes", usage=USAGE)) as fake:
        dsh = Dsh(tmp_path, fake)
        unknown = dsh("run", "--json", "hi").result
        assert unknown["usage"]["reasoningTokens"] == 30
        assert "cost" not in unknown
        priced(dsh)
        done = dsh("run", "--json", "hi").result
        assert done["cost"] == pytest.approx((600 * 10 + 400 * 1 + 100 * 100) / 1e6)
        total = json.loads(dsh("usage", "--json").text.splitlines()[-1])
        assert (total["requests"], total["cost"]) == (2, pytest.approx(2 * done["cost"]))


def test_more_cached_than_sent_costs_what_was_cached(tmp_path: Path) -> None:
    odd = {"prompt_tokens": 10, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 25}}
    with FakeProvider(text("yes", usage=odd)) as fake:
        dsh = Dsh(tmp_path, fake)
        priced(dsh)
        done = dsh("run", "--json", "--max-cost", "1", "hi").result
        assert done["usage"] == {"inputTokens": 0, "outputTokens": 0, "cacheReadTokens": 25}
        assert done["cost"] == pytest.approx(0.000025)


def test_a_free_model_costs_nothing_and_a_terminal_shows_what_one_costs(tmp_path: Path) -> None:
    mock = tmp_path / "mock.jsonl"
    chunks: list[Any] = [
        {"type": "block-start", "index": 0, "blockType": "text"},
        {"type": "text-delta", "index": 0, "text": "yes"},
        {"type": "block-end", "index": 0, "block": {"type": "text", "text": "yes"}},
        {"type": "usage", "usage": {"inputTokens": 5, "outputTokens": 5}},
        {"type": "finish", "reason": {"kind": "stop"}},
    ]
    mock.write_text(json.dumps({"chunks": chunks}) + "\n")
    with FakeProvider(text("yes", usage=USAGE)) as fake:
        dsh = Dsh(tmp_path, fake)
        assert dsh("run", "--json", "--mock", str(mock), "--max-cost", "0.01", "hi").result["cost"] == 0
        priced(dsh)
        main, side = pty.openpty()
        process = dsh.start("run", "hi", stdin=side, stdout=side, stderr=side, env={"TERM": "xterm", "NO_COLOR": "1"})
        os.close(side)
        code, shown = on_terminal(process, main)
        os.close(main)
        assert code == 0
        assert b"100 out \xc2\xb7 $0.0164 \xc2\xb7 session" in shown


@pytest.mark.rule("HD-14", "HD-16")
def test_a_budget_of_tokens_ends_the_run_with_6(tmp_path: Path) -> None:
    with FakeProvider(tool_call("bash", {"command": "echo out"}, usage=USAGE), text("never")) as fake:
        dsh = Dsh(tmp_path, fake)
        done = dsh("run", "hi", "--max-tokens-total", "1100")
        assert done.code == 6
        assert done.out == b""
        line = "dsh: turn 1: stopped by the budget: 1,100 tokens spent of 1,100 (BUDGET_LIMIT)\n"
        assert done.errors == line
        assert len(fake.requests) == 1
        kinds = [e["type"] for e in dsh.log() if e["type"] != "assistant/chunk"]
        assert kinds[-4:] == ["tool/result", "step/end", "turn/limit", "turn/end"]
        assert dsh("doctor", "--full").code == 0


@pytest.mark.rule("HD-14", "HD-16")
def test_a_budget_of_money_tells_spent_and_allowed_in_json(tmp_path: Path) -> None:
    with FakeProvider(tool_call("bash", {"command": "echo out"}, usage=USAGE), text("never")) as fake:
        dsh = Dsh(tmp_path, fake)
        priced(dsh, 0.1)
        dsh.env["DSH_LIMITS_MAX_COST"] = "0.0001"  # as the setting limits.max_cost
        ended = dsh("run", "hi", "--json")
        assert ended.code == 6
        result = ended.result
        assert (result["status"], result["error"]["code"]) == ("limit", "BUDGET_LIMIT")
        assert result["error"]["message"].startswith("stopped by the budget: $0.000164 spent of $0.0001")
        assert result["cost"] == pytest.approx(0.000164)
        event = dsh.data("turn/limit")[0]
        assert (event["kind"], event["limit"], event["spent"]) == ("cost", 0.0001, pytest.approx(0.000164))
        going_on = dsh("run", "-c", "more", "--max-cost", "1")  # a new run has its own budget, the flag comes first
        assert (going_on.code, going_on.text) == (0, "never\n")


def test_a_request_that_failed_counts_if_it_reported(tmp_path: Path) -> None:
    with FakeProvider(status(500), text("yes", usage=USAGE)) as fake:
        dsh = Dsh(tmp_path, fake, DSH_RETRY_INITIAL_DELAY_MS="1")
        done = dsh("run", "--json", "--max-tokens-total", "50000", "hi").result
        assert (done["status"], done["usage"]["inputTokens"]) == ("completed", 600)


@pytest.mark.rule("HD-14", "HD-16")
def test_a_cost_that_cannot_be_checked_is_refused_at_once(tmp_path: Path) -> None:
    with FakeProvider(text("never")) as fake:
        dsh = Dsh(tmp_path, fake)
        done = dsh("run", "hi", "--max-cost", "1")
        assert done.code == 3
        message, hint = done.errors.splitlines()
        assert "nobody knows the price of" in message
        assert message.endswith("/fake-model (PRICE_UNKNOWN)")
        assert "dsh config set 'prices." in hint
        assert fake.requests == []
        assert dsh.rows("SELECT count(*) FROM session") == [(0,)]
        words = hint.partition(": ")[2].partition(": ")[2]
        fixed = dsh.shell(words.replace("dsh config", f"{dsh.words()} config"))
        assert fixed.code == 0, fixed.errors
        assert dsh("run", "hi", "--max-cost", "1").text == "never\n"


@pytest.mark.parametrize(
    "option", [("--max-cost", "0"), ("--max-cost", "nan"), ("--max-cost", "x"), ("--max-tokens-total", "0")]
)
def test_a_budget_that_is_none_is_wrong_usage(tmp_path: Path, option: tuple[str, str]) -> None:
    assert Dsh(tmp_path)("run", "hi", *option).code == 2
