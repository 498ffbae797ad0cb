"""Prices: the table, what the user sets, what is free, and what nobody knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh.core.errors import ConfigError
from dsh.kernel import config as configuration
from dsh.kernel.config import Config
from dsh.llm.adapters.replay import ROUTE
from dsh.llm.catalogue import BY_ID, DEFAULT_MODEL
from dsh.llm.discovery import SERVERS
from dsh.llm.prices import FREE, TABLE, Price, Prices, dollars
from dsh.llm.routes import LOCAL


def prices(stored: dict[str, Any] | None = None) -> Prices:
    return Prices(configuration.load(stored))


@pytest.fixture
def personal(tmp_path: Path) -> Any:
    def write(text: str) -> None:
        folder = tmp_path / "home" / ".dsh"
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text(text)

    return write


def test_every_model_that_we_know_ourselves_has_a_price() -> None:
    found = prices()
    assert all(found.of("deepseek", model) for model in BY_ID)
    assert found.of("openai", DEFAULT_MODEL["openai"]) == Price(0.25, 2.0, 0.025, 0.25)
    for price in TABLE.values():
        assert 0 < price.cache_read <= price.input == price.cache_write <= price.output


def test_a_snapshot_costs_what_its_model_does() -> None:
    assert prices().of("openai", "gpt-5-mini-2025-08-07") == prices().of("openai", "gpt-5-mini")
    assert prices().of("openai", "gpt-5-mini-2025-08-0x") is None
    assert prices().of("openai", "gpt-5-minimal") is None


@pytest.mark.rule("HD-17")
def test_what_runs_here_is_free_and_what_is_configured_is_not() -> None:
    assert {LOCAL, ROUTE, *SERVERS} == FREE
    assert prices().of("ollama", "anything") == Price(0, 0, 0, 0)
    configured = Prices(Config({}, {"ollama": {"base_url": "https://llm.example/v1"}}))
    assert configured.of("ollama", "anything") is None
    assert prices().of("127.0.0.1:4000", "gpt-5-mini") is None  # a gateway, for all we know
    assert prices().of(None, None) is None


@pytest.mark.rule("HD-17")
def test_the_users_prices_come_first(personal: Any) -> None:
    personal(
        '[prices."openai/gpt-5*"]\ninput = 7\noutput = 8.5\n'
        '[prices."openai/gpt-5-m*"]\ninput = 1\noutput = 2\ncache_read = 0.5\ncache_write = 3\n'
        '[prices."openai/gpt-5-mini"]\ninput = 0\noutput = 0\n'
        '[prices."*/half"]\ninput = 1\n'
    )
    found = prices({"prices.openai/gpt-5*.input": 99.0, "prices.x/y.input": 3, "prices.x/y.output": 4})
    assert found.of("openai", "gpt-5") == Price(7, 8.5, 7, 7)  # the file before what is stored, whole
    assert found.of("openai", "gpt-5-max") == Price(1, 2, 0.5, 3)  # the longest pattern
    assert found.of("openai", "gpt-5-mini") == Price(0, 0, 0, 0)  # the exact name
    assert found.of("x", "y") == Price(3, 4, 3, 3)
    assert found.of("x", "half") is None
    assert found.of("openai", "gpt-4.1") == TABLE["openai/gpt-4.1"]
    assert configuration.load().origin("prices.openai/gpt-5*.input") == "file"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prices = 3", "prices must be tables"),
        ('prices."a/b" = 3', "prices must be tables"),
        ('[prices."a/b"]\nin = 3', "prices.a/b.in is not a price"),
        ('[prices."gpt-5"]\ninput = 3', "prices.gpt-5.input is not a price; a name is PROVIDER/MODEL"),
        ('[prices."a/b"]\ninput = -1', "prices.a/b.input must be a number from 0 on"),
        ('[prices."a/b"]\ninput = nan', "prices.a/b.input must be a number from 0 on"),
        ('[prices."a/b"]\ninput = "3"', "prices.a/b.input must be a number"),
        ('[limits]\nmax_cost = -0.5', "limits.max_cost must be a number from 0 on"),
    ],
)  # fmt: skip
def test_a_wrong_price_is_named(personal: Any, text: str, complaint: str) -> None:
    personal(text)
    with pytest.raises(ConfigError) as caught:
        configuration.load()
    assert complaint in caught.value.message


def test_a_key_that_is_nearly_a_price_is_explained() -> None:
    with pytest.raises(ConfigError) as caught:
        configuration.known("prices.gpt-5.input")
    assert "prices.PROVIDER/MODEL.FIELD" in (caught.value.hint or "")


@pytest.mark.rule("HD-17")
def test_a_cost_adds_up_and_one_unknown_price_makes_it_unknown() -> None:
    row = ("openai", "gpt-5-mini", 1_000_000, 100_000, None, 10_000)
    assert prices().cost([row]) == pytest.approx(0.25 + 0.2 + 0.0025)
    assert prices().cost([row, ("openai", "gpt-5", 0, 0, 1_000_000, None)]) == pytest.approx(0.4525 + 0.125)
    assert prices().cost([row, ("nobody", "x", 1, 0, None, None)]) is None
    assert prices().cost([row, ("nobody", "x", 0, 0, None, None)]) == pytest.approx(0.4525)
    assert prices().cost([]) == 0


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0, "$0.00"),
        (1234.5, "$1,234.50"),
        (0.5, "$0.50"),
        (0.01234, "$0.0123"),
        (0.001234, "$0.00123"),
        (0.000001234, "$0.00000123"),
        (1e-12, "<$0.000001"),
    ],
)
def test_dollars(amount: float, shown: str) -> None:
    assert dollars(amount) == shown
