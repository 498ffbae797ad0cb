"""The replay adapter: its file formats and its cursors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsh.core.errors import ConfigError
from dsh.llm.adapters.replay import ReplayAdapter
from tests.llm.helpers import Answer, collect, request, text_chunks
from tests.provider import text


def script(folder: Path, *answers: Any) -> ReplayAdapter:
    file = folder / "mock.jsonl"
    file.write_text("\n".join(json.dumps(a) for a in answers) + "\n\n", "utf-8")
    return ReplayAdapter(file)


async def ask(adapter: ReplayAdapter, session: str | None = "s", **keywords: Any) -> Answer:
    return await collect(adapter.stream(request(session_id=session, **keywords)))


async def test_every_kind_of_line(tmp_path: Path) -> None:
    (tmp_path / "one.sse").write_bytes(text("recorded").body)
    adapter = script(
        tmp_path,
        {"text": "hé", "reasoning": "hm"},
        {
            "calls": [{"name": "bash", "arguments": {"a": 1}, "id": "c"}, {"name": "b", "arguments": "{raw"}],
            "text": "t",
        },
        {"chunks": text_chunks("chunks")},
        {"sse": "one.sse"},
        {"error": {"message": "slow", "code": "RATE_LIMIT", "status": 429}},
        {"text": "slowly", "delayMs": 1},
    )
    first = await ask(adapter)
    assert (first.text, first.reasoning) == ("hé", "hm")
    second = await ask(adapter)
    assert second.assembler.finish == {"kind": "tool-calls"}
    assert second.calls == [
        {"type": "tool-call", "id": "c", "name": "bash", "arguments": '{"a":1}'},
        {"type": "tool-call", "id": "call-2", "name": "b", "arguments": "{raw"},
    ]
    assert [(await ask(adapter)).text for _ in range(2)] == ["chunks", "recorded"]
    assert (await ask(adapter)).code == "RATE_LIMIT"
    assert (await ask(adapter)).text == "slowly"
    over = await ask(adapter)
    assert over.code == "INVALID_REQUEST"
    assert "no answer left for call 7" in str(over.error)


@pytest.mark.rule("CO-29")
async def test_each_session_has_its_own_cursor(tmp_path: Path) -> None:
    adapter = script(tmp_path, {"text": "1"}, {"text": "title", "purpose": "session-title"}, {"text": "2"})
    said = [(await ask(adapter, session)).text for session in ("a", "b", "a", "b")]
    assert said == ["1", "1", "2", "2"]
    assert (await ask(adapter, "a", purpose="session-title")).text == "title"
    assert (await ask(adapter, None)).text == "1"


async def test_recorded_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.sse").write_bytes(text(name).body)
    folder = ReplayAdapter(tmp_path)
    assert [(await ask(folder)).text for _ in range(2)] == ["a", "b"]
    assert (await ask(folder)).code == "INVALID_REQUEST"
    single = ReplayAdapter(tmp_path / "a.sse")
    assert [(await ask(single)).text for _ in range(2)] == ["a", "a"]
    (tmp_path / "cut.sse").write_bytes(text("half").body[:200])
    assert (await ask(ReplayAdapter(tmp_path / "cut.sse"))).code == "STREAM_CLOSED"


async def test_bad_files_are_named_at_once(tmp_path: Path) -> None:
    for content in ("{", "[]", '{"nothing": 1}', '{"sse": "missing.sse"}'):
        (tmp_path / "bad.jsonl").write_text(content, "utf-8")
        with pytest.raises(ConfigError, match=r"bad\.jsonl"):
            ReplayAdapter(tmp_path / "bad.jsonl")
    with pytest.raises(ConfigError):
        ReplayAdapter(tmp_path / "missing.sse")
