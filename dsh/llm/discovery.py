"""Model servers on this machine that nobody has configured: a look at their usual ports."""

from __future__ import annotations

from typing import Final

import trio

from dsh.llm.adapters.chat import ChatAdapter, Endpoint
from dsh.llm.failure import LlmError
from dsh.llm.routes import Route

SERVERS: Final = {
    "ollama": ("Ollama", 11434),
    "lmstudio": ("LM Studio", 1234),
    "llama-server": ("llama-server", 8080),
}
TIMEOUT_SECONDS: Final = 0.3


async def discover() -> dict[str, Route]:
    """The routes of the servers that answer `GET /v1/models` in time, with what they list."""
    found: dict[str, Route] = {}

    async def look(name: str, title: str, port: int) -> None:
        url = f"http://127.0.0.1:{port}/v1"
        adapter = ChatAdapter(Endpoint(name, url, title))
        try:
            models = tuple(m.id for m in await adapter.fetch_models(TIMEOUT_SECONDS))
            if models:
                found[name] = Route(name, title, url, model=models[0], models=models)
        except LlmError:
            return  # nobody there, or something else
        finally:
            await adapter.aclose()

    async with trio.open_nursery() as nursery:
        for name, (title, port) in SERVERS.items():
            nursery.start_soon(look, name, title, port)
    return {name: found[name] for name in SERVERS if name in found}
