"""The route `local` with the real model: started by the first call, ended with the program."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from dsh.core.messages import Message
from dsh.llm.providers import choose, install_routes
from dsh.llm.service import LlmService
from tests.llm.helpers import Answer, collect, host, request, user
from tests.local_model import cached_installation

pytestmark = [pytest.mark.slow, pytest.mark.live]


@pytest.fixture(scope="session")
def installation() -> Iterator[Path]:
    with cached_installation() as folder:
        yield folder


def servers() -> set[int]:
    """The model servers among this process's children."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and b"serve.py" in command:
            found.add(int(status.parent.name))
    return found


@pytest.mark.rule("LS-90", "LS-95")
async def test_the_local_route(installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSH_MODELS", str(installation))
    made = host(llm__discover=False)
    chosen = await choose(made.config, environ={})
    install_routes(made.root, made.config, chosen.routes)
    service = made.get(LlmService)
    before = servers()

    async def ask(*history: Message, **config: Any) -> Answer:
        sampling = {"temperature": 0, "maxTokens": 6, **config}
        asked = request(*history, provider=chosen.provider, model=chosen.model, config=sampling)
        return await collect(service.stream(asked))

    resolved = await service.resolve_model(chosen.provider, chosen.model)
    assert resolved["context"]["contextWindow"] == 8192
    assert servers() == before
    answer = await ask()
    assert answer.text
    assert answer.assembler.finish == {"kind": "max-tokens"}
    assert answer.assembler.usage is not None
    (child,) = servers() - before

    # a call with broken arguments in the history does not end the session
    call: Any = {"type": "tool-call", "id": "c", "name": "bash", "arguments": '{"command": "ls'}
    said: Message = {"role": "assistant", "content": [call]}
    told: Any = {"type": "tool-result", "toolCallId": "c", "content": [{"type": "text", "text": "not JSON"}]}
    assert (await ask(user(), said, {"role": "user", "content": [told]})).code is None

    assert (await ask(user("word " * 9000))).code == "CONTEXT_WINDOW_EXCEEDED"

    with trio.move_on_after(0.3) as scope:
        await ask(user("Tell a long story."), maxTokens=500)
    assert scope.cancelled_caught

    os.kill(child, signal.SIGKILL)
    assert (await ask()).code == "TRANSPORT"
    assert (await ask()).text
    (second,) = servers() - before
    assert second != child
    await made.close()
    assert servers() == before
