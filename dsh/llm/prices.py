"""What tokens cost: a built-in table, which the user's own prices come before.

    [prices."openai/gpt-5*"]        # in the personal file; USD per million tokens
    input = 1.25
    output = 10
    cache_read = 0.125              # both default to `input`
    cache_write = 1.25

or `dsh config set prices.openai/gpt-5-mini.input 0.25`. The name is PROVIDER/MODEL as `dsh models` has them; a `*`
stands for any text, the exact name comes first, then the longest pattern. An entry replaces the built-in one whole; one
without `input` or `output` gives no price. What runs on this machine is free by rule, not by table. A price that nobody
knows is None and never 0.

The log keeps tokens, not money: a cost is figured at the price of the moment at which somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from dsh.kernel.config import Config

MILLION = 1_000_000

# The local model, recorded answers, and servers that are found on this machine's usual ports. A provider that the user
# configured under such a name may be anything.
FREE: Final = frozenset({"local", "mock", "ollama", "lmstudio", "llama-server"})


class Price(NamedTuple):
    """USD per million tokens; input means what the provider had not cached."""

    input: float
    output: float
    cache_read: float
    cache_write: float

    def cost(self, input: int, output: int, cache_read: int = 0, cache_write: int = 0) -> float:
        """USD for so many tokens; reasoning is part of the output."""
        total = input * self.input + output * self.output
        return (total + cache_read * self.cache_read + cache_write * self.cache_write) / MILLION


def _flat(input: float, cache_read: float, output: float) -> Price:
    """Providers that cache by themselves charge nothing extra for writing."""
    return Price(input, output, cache_read, input)


# DeepSeek: the provider's own price page, as of October 2026. It charges half outside of its peak hours; the table has
# the peak price, so that a budget holds and a report errs to the high side. deepseek-chat and deepseek-reasoner were
# names for what is Flash now, until it retired them (release notes of April and July 2026).
_FLASH = _flat(0.30, 0.006, 1.20)
_DEEPSEEK: Final = {
    "deepseek-flash": _FLASH,
    "deepseek-v4-flash": _FLASH,
    "deepseek-chat": _FLASH,
    "deepseek-reasoner": _FLASH,
    "deepseek-v4-pro": _flat(1.32, 0.044, 3.96),
}

# OpenAI, standard processing: price tables of public programs and reports that quote the provider's page, as of March
# to November 2026, where at least two agree. Models whose price depends on the length of the prompt are left out, and
# so is OpenRouter, which asks several providers at several prices.
_OPENAI: Final = {
    "gpt-5": _flat(1.25, 0.125, 10.0),
    "gpt-5-mini": _flat(0.25, 0.025, 2.0),
    "gpt-5-nano": _flat(0.05, 0.005, 0.40),
    "gpt-5.1": _flat(1.25, 0.125, 10.0),
    "gpt-5.2": _flat(1.75, 0.175, 14.0),
    "gpt-5.4-mini": _flat(0.75, 0.075, 4.50),
    "gpt-5.4-nano": _flat(0.20, 0.02, 1.25),
    "gpt-4.1": _flat(2.0, 0.50, 8.0),
    "gpt-4.1-mini": _flat(0.40, 0.10, 1.60),
    "gpt-4.1-nano": _flat(0.10, 0.025, 0.40),
    "gpt-4o": _flat(2.50, 1.25, 10.0),
    "gpt-4o-mini": _flat(0.15, 0.075, 0.60),
}

TABLE: Final = {
    **{f"deepseek/{model}": price for model, price in _DEEPSEEK.items()},
    **{f"openai/{model}": price for model, price in _OPENAI.items()},
}


class Prices:
    """The prices in force under a configuration."""

    def __init__(self, config: Config) -> None:
        self._given: dict[str, dict[str, float]] = config.prices
        self._configured = config.providers
        self._known: dict[tuple[str, str], Price | None] = {}

    def of(self, provider: str | None, model: str | None) -> Price | None:
        """The price of a model, None if nobody knows it."""
        asked = (provider or "", model or "")
        if asked not in self._known:
            self._known[asked] = self._find(*asked)
        return self._known[asked]

    def _find(self, provider: str, model: str) -> Price | None:
        name = f"{provider}/{model}"
        if given := self._given_for(name):
            if "input" not in given or "output" not in given:
                return None
            per_input = given["input"]
            cache_read, cache_write = given.get("cache_read", per_input), given.get("cache_write", per_input)
            return Price(per_input, given["output"], cache_read, cache_write)
        if provider in FREE and provider not in self._configured:
            return Price(0.0, 0.0, 0.0, 0.0)
        return TABLE.get(name) or TABLE.get(_undated(name))

    def _given_for(self, name: str) -> dict[str, float] | None:
        if name in self._given or not self._given:
            return self._given.get(name)
        fitting = [pattern for pattern in self._given if "*" in pattern and _fits(pattern, name)]
        return self._given[max(fitting, key=len)] if fitting else None

    def cost(self, rows: Iterable[tuple[Any, ...]]) -> float | None:
        """USD for rows of (provider, model, input, output, cache_read, cache_write); None if a price is not known."""
        total = 0.0
        for provider, model, *figures in rows:
            counts = [figure or 0 for figure in figures]
            price = self.of(provider, model)
            if price is not None:
                total += price.cost(*counts)
            elif any(counts):
                return None
        return total


def how_to_set(provider: str, model: str) -> str:
    """The way on for a model without a price."""
    key = f"prices.{provider}/{model}"
    commands = f"dsh config set '{key}.input' 0.25; dsh config set '{key}.output' 2"
    return f"set it in USD per million tokens, for example: {commands}"


def dollars(amount: float) -> str:
    """$12.34; of less than a dollar three digits that count."""
    if amount == 0 or amount >= 1:
        return f"${amount:,.2f}"
    if amount < 1e-6:
        return "<$0.000001"
    digits = 4
    while amount < 10 ** (2 - digits):
        digits += 1
    whole, dot, rest = f"{amount:.{digits}f}".partition(".")
    return f"${whole}{dot}{rest[:2]}{rest[2:].rstrip('0')}"


def _fits(pattern: str, name: str) -> bool:
    import re

    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def _undated(name: str) -> str:
    """A model's name without the date of its snapshot, as in gpt-5-mini-2025-08-07."""
    head, dash, date = name[:-11], name[-11:-10], name[-10:]
    is_date = dash == "-" and len(date) == 10 and date[4] == date[7] == "-" and date.replace("-", "").isdigit()
    return head if is_date else name
