"""The retry policy: whether a failed call is worth another try, and after how long (LS-84, LS-85). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dsh.core.errors import ConfigError
from dsh.core.messages import LlmFailure
from dsh.kernel.config import Config

MAX_DELAY_MS = 2_147_483_647


class RetryPolicy(NamedTuple):
    """Delays in milliseconds; `jitter_ratio` in 0..1."""

    max_transient_retries: int
    initial_delay_ms: float
    max_delay_ms: float
    jitter_ratio: float
    retryable_codes: frozenset[str]

    @classmethod
    def of(cls, config: Config) -> RetryPolicy:
        """From the settings `retry.*`; ConfigError when they contradict each other."""
        initial, longest = config["retry.initial_delay_ms"], config["retry.max_delay_ms"]
        if initial > longest:
            raise ConfigError("retry.initial_delay_ms must not be above retry.max_delay_ms")
        return cls(
            config["retry.max_transient_retries"],
            initial,
            longest,
            config["retry.jitter_ratio"],
            frozenset(config["retry.retryable_codes"]),
        )


class Retry(NamedTuple):
    """The decision to try again: the how-manieth retry of the sequence, and the wait before it."""

    number: int
    delay_ms: int


def decide(
    policy: RetryPolicy, failure: LlmFailure, prior: Sequence[LlmFailure], rand: Callable[[], float]
) -> Retry | None:
    """A retry, or None to let the next policy decide.

    `prior` are the failures of this unbroken sequence that already led to a retry; `rand` gives numbers in
    [0, 1]. A provider's own wait replaces ours, unless it is longer than we are ready to wait.
    """
    earlier = sum(1 for f in prior if f["code"] in policy.retryable_codes)
    if failure["code"] not in policy.retryable_codes or earlier >= policy.max_transient_retries:
        return None
    number = earlier + 1
    asked = failure.get("providerRetryAfterMs")
    if asked is not None:
        return None if asked > policy.max_delay_ms else Retry(number, min(round(asked), MAX_DELAY_MS))
    # the exponent is capped where the delay has long reached its cap, so that no setting overflows a float
    delay = min(policy.initial_delay_ms * 2.0 ** min(number - 1, 64), policy.max_delay_ms)
    delay *= 1 - policy.jitter_ratio + 2 * policy.jitter_ratio * rand()
    return Retry(number, min(round(min(delay, policy.max_delay_ms)), MAX_DELAY_MS))
