"""What is known of models without asking anybody: windows in tokens and reasoning efforts of DeepSeek's
models.

Advisory only (LS-21): a model that is not here is passed on. Other providers list their own at `/models`.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Known(NamedTuple):
    """A model; `default_effort` is sent when the caller asks for none, None leaves the provider's own."""

    id: str
    name: str
    context_window: int
    default_effort: str | None = None


DEEPSEEK: Final = (
    Known("deepseek-chat", "DeepSeek Chat", 128_000),
    Known("deepseek-reasoner", "DeepSeek Reasoner", 128_000),
    Known("deepseek-v4-flash", "DeepSeek V4 Flash", 128_000, "high"),
    Known("deepseek-v4-pro", "DeepSeek V4 Pro", 128_000, "high"),
)

BY_ID: Final = {model.id: model for model in DEEPSEEK}

# The model of a new session when nothing names one. gpt-5-mini: small, general, takes tools over this
# protocol.
DEFAULT_MODEL: Final = {
    "deepseek": "deepseek-chat",
    "openai": "gpt-5-mini",
    "openrouter": "deepseek/deepseek-chat",
}
