"""The retry policy and the capability that applies it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dsh.capabilities import retry as capability
from dsh.core.errors import ConfigError
from dsh.core.events import event_type
from dsh.core.messages import LlmFailure
from dsh.kernel.config import SETTINGS, Config
from dsh.kernel.host import Host
from dsh.kernel.signal import Signal
from dsh.llm.failure import LlmError
from dsh.llm.retry import Retry, RetryPolicy, decide
from dsh.llm.service import LlmService
from tests.llm.helpers import Scripted, collect, host, request

POLICY = RetryPolicy(2, 500, 10_000, 0.1, frozenset({"SERVER", "RATE_LIMIT"}))


def failure(code: str = "SERVER", **rest: Any) -> LlmFailure:
    made: Any = {"message": "m", "code": code, **rest}
    failed: LlmFailure = made
    return failed


def middle() -> float:
    return 0.5


@pytest.mark.rule("LS-84")
def test_which_failures_are_retried_and_how_often() -> None:
    assert decide(POLICY, failure(), [], middle) == Retry(1, 500)
    assert decide(POLICY, failure("RATE_LIMIT"), [failure()], middle) == Retry(2, 1000)
    assert decide(POLICY, failure(), [failure()] * 2, middle) is None
    assert decide(POLICY, failure("AUTH"), [], middle) is None
    # failures that another policy retried do not count here
    assert decide(POLICY, failure(), [failure("CONTEXT_WINDOW_EXCEEDED")] * 5, middle) == Retry(1, 500)


@pytest.mark.rule("LS-85")
def test_delays() -> None:
    many = RetryPolicy(2000, 500, 10_000, 0.1, frozenset({"SERVER"}))
    waits = [decide(many, failure(), [failure()] * n, middle) for n in (0, 1, 2, 3, 4, 5, 1999)]
    assert [w and w.delay_ms for w in waits] == [500, 1000, 2000, 4000, 8000, 10_000, 10_000]
    assert decide(POLICY, failure(), [], lambda: 0.0) == Retry(1, 450)
    assert decide(POLICY, failure(), [], lambda: 1.0) == Retry(1, 550)
    assert decide(many, failure(), [failure()] * 9, lambda: 1.0) == Retry(10, 10_000)
    assert decide(POLICY, failure(providerRetryAfterMs=7000), [], lambda: 1.0) == Retry(1, 7000)
    assert decide(POLICY, failure(providerRetryAfterMs=10_000), [], middle) == Retry(1, 10_000)
    assert decide(POLICY, failure(providerRetryAfterMs=10_001), [], middle) is None


@pytest.mark.rule("LS-85", "LS-86")
@given(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1), st.floats(0, 1), st.floats(0, 1), st.integers(0, 3000))
def test_a_delay_is_never_above_its_cap(a: int, b: int, jitter: float, rand: float, earlier: int) -> None:
    policy = RetryPolicy(5000, min(a, b), max(a, b), jitter, frozenset({"SERVER"}))
    retry = decide(policy, failure(), [failure()] * earlier, lambda: rand)
    assert retry is not None
    assert 0 <= retry.delay_ms <= max(a, b)
    assert retry.number == earlier + 1


def test_the_defaults_are_those_of_the_spec() -> None:
    policy = RetryPolicy.of(Config({}, {}))
    assert policy == RetryPolicy(
        2,
        500,
        10_000,
        0.1,
        frozenset({"EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT", "STREAM_CLOSED"}),
    )
    assert SETTINGS["retry.retryable_codes"].default
    with pytest.raises(ConfigError):
        RetryPolicy.of(Config({}, {}).with_flags(retry__initial_delay_ms=5, retry__max_delay_ms=4))


class FakeAgent:
    """Only what the capability asks of an agent: a session that takes events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.session = self

    def append(self, type: str, data: Any) -> None:
        self.events.append((type, data))


async def ask(agent: FakeAgent, signal: Signal, told: LlmFailure, prior: Any = (), **settings: Any) -> Any:
    host = Host(Config({}, {}).with_flags(**settings))
    capability.setup(host.root, rand=lambda: 0.5)

    async def default(*_: Any) -> dict[str, str]:
        return {"action": "fail", "by": "default"}

    return await host.hooks.waterfall(
        "agent/request-error", agent, default, agent, 3, 2, ValueError(), told, prior, signal
    )


@pytest.mark.rule("LS-83", "LS-86")
async def test_a_retry_is_logged_before_the_wait() -> None:
    agent, began = FakeAgent(), trio.current_time()
    answer = await ask(agent, Signal(), failure(providerRetryAfterMs=60), [failure()])
    assert answer == {"action": "retry"}
    assert trio.current_time() - began >= 0.06
    assert agent.events == [
        (
            "llm/retry",
            {
                "turn": 3,
                "step": 2,
                "retry": 2,
                "maxRetries": 2,
                "delayMs": 60,
                "failure": failure(providerRetryAfterMs=60),
            },
        )
    ]
    assert "llm/retry" in event_type


@pytest.mark.rule("LS-84")
async def test_what_the_policy_declines_goes_to_the_next() -> None:
    agent = FakeAgent()
    for told, prior in ((failure("AUTH"), ()), (failure(), [failure()] * 2), (failure(providerRetryAfterMs=1e6), ())):
        assert (await ask(agent, Signal(), told, prior))["by"] == "default"
    assert agent.events == []


@pytest.mark.rule("LS-86")
async def test_a_cancel_during_the_wait_fails_and_before_it_logs_nothing() -> None:
    agent, signal = FakeAgent(), Signal()
    async with trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def waits() -> None:
            answers.append(await ask(agent, signal, failure(providerRetryAfterMs=9000)))

        nursery.start_soon(waits)
        await trio.sleep(0.05)
        signal.cancel()
    assert answers == [{"action": "fail"}]
    assert len(agent.events) == 1
    assert (await ask(agent, signal, failure()))["action"] == "fail"
    assert len(agent.events) == 1


@pytest.mark.rule("LS-87")
async def test_a_direct_call_is_tried_once() -> None:
    made, adapter = host(), Scripted(error=LlmError("m", "SERVER"))
    capability.setup(made.root)
    made.get(LlmService).register(made.root, adapter, ["p"])
    asked = request(purpose="session-title", session_id="s")
    assert (await collect(made.get(LlmService).stream(asked))).code == "SERVER"
    assert len(adapter.requests) == 1
