"""Every core block tag through every part of the program that handles blocks (CO-7, CO-11 to CO-13).

A new core tag has no word in WORDS and so fails here until each path has one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dsh.cli import group
from dsh.cli.transcript import entries, markdown, plain
from dsh.core import kinds
from dsh.core.lossless import dumps, freeze, thaw
from dsh.core.messages import Message, model_text, text_of
from dsh.llm.adapters.chat import ChatAdapter, Endpoint
from dsh.llm.adapters.chat_request import DIALECTS
from dsh.llm.adapters.local import LocalAdapter
from dsh.llm.adapters.replay import ReplayAdapter
from dsh.llm.assembler import BlockAssembler
from dsh.query.search import Filters, search
from dsh.session.meter import estimate_message
from dsh.session.session import Session
from dsh.store import writes
from tests.llm.helpers import collect, request
from tests.provider import FakeProvider, text
from tests.session.kit import World, start_step, start_turn, world

CORE_TAGS = tuple(kinds.content_block)
# What a block of each core tag says; each path has to pass it on.
WORDS = {"text": "alpha", "reasoning": "bravo", "tool-call": "charlie", "tool-result": "delta"}
THOUGHT = {"provider": "p", "model": "m", "replayState": {"reasoningField": "reasoning_content"}}


def block(tag: str) -> Any:
    word = WORDS[tag]
    made: dict[str, Any] = {
        "text": {"text": word},
        "reasoning": {"text": word},
        "tool-call": {"id": "c1", "name": "bash", "arguments": dumps({"command": word})},
        "tool-result": {"toolCallId": "c1", "content": [{"type": "text", "text": word}]},
    }
    return {"type": tag, **made[tag]}


def conversation() -> tuple[Message, ...]:
    spoken: Any = {"role": "assistant", "content": [block("reasoning"), block("tool-call")], "provenance": THOUGHT}
    messages: list[Any] = [{"role": "user", "content": [block("text")]}, spoken]
    return freeze([*messages, {"role": "user", "content": [block("tool-result")]}])


def logged(session: Session) -> None:
    start_turn(session)
    session.append("user/message", {"content": [block("text")], "source": {"kind": "user"}}, surface="append")
    at = start_step(session)
    spoken = {**at, "content": [block("reasoning"), block("tool-call")], "provenance": THOUGHT}
    session.append("request/header", {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "initial"})
    session.append("assistant/message", spoken, surface="append")
    session.append("tool/call", {**at, "callId": "c1", "name": "bash", "arguments": "{}"})
    answer = {**at, "callId": "c1", "content": block("tool-result")["content"], "isError": False}
    session.append("tool/result", answer, surface="append")
    session.append("step/end", at)
    session.append("turn/end", {"turn": at["turn"], "reason": {"kind": "completed"}})


@pytest.fixture
def w() -> Iterator[World]:
    made = world(Path(os.environ["DSH_DB"]))
    yield made
    made.db.close()


def sent(adapter_of: Callable[[str], Any]) -> str:
    """The body that an adapter sends for the conversation."""

    async def ask(url: str) -> None:
        adapter = adapter_of(url)
        assert (await collect(adapter.stream(request(*conversation())))).error is None
        await adapter.aclose()

    with FakeProvider(text("ok")) as fake:
        trio.run(ask, fake.base_url, strict_exception_groups=True)
        return dumps(fake.requests[0].body["messages"])


def chat(dialect: str) -> Callable[[World, Path], str]:
    return lambda w, folder: sent(lambda url: ChatAdapter(Endpoint("p", url, "P", dialect=DIALECTS[dialect])))


def local(w: World, folder: Path) -> str:
    """The local model's adapter, its server being another one that listens already."""

    def made(url: str) -> LocalAdapter:
        adapter = LocalAdapter(10_000)
        chat = ChatAdapter(Endpoint("p", url, "P"))
        ready, ended = trio.Event(), trio.Event()
        scope = SimpleNamespace(cancel=ended.set)
        server: Any = SimpleNamespace(ready=ready, ended=ended, scope=scope, failure=None, chat=chat)
        server.ready.set()
        adapter._held = server
        return adapter

    return sent(made)


def replayed(w: World, folder: Path) -> str:
    """What a recorded answer becomes, and the next request of the same conversation is taken."""
    made = [block("reasoning"), block("text"), block("tool-call")]
    chunks: list[Any] = []
    for index, each in enumerate(made):
        chunks.append({"type": "block-start", "index": index, "blockType": each["type"]})
        chunks.append({"type": "block-end", "index": index, "block": each})
    chunks.append({"type": "finish", "reason": {"kind": "tool-calls"}})
    file = folder / "answers.jsonl"
    file.write_text(dumps({"chunks": chunks}) + "\n" + dumps({"text": WORDS["tool-result"]}) + "\n")
    adapter = ReplayAdapter(file)

    async def ask(*messages: Message) -> list[Any]:
        assembler = BlockAssembler()
        async for chunk in adapter.stream(request(*messages)):
            assembler.feed(chunk)
        return assembler.blocks()

    first = trio.run(ask, conversation()[0], strict_exception_groups=True)
    assert first == made
    return dumps([first, trio.run(ask, *conversation(), strict_exception_groups=True)])


def transcript(form: Callable[[Any], str]) -> Callable[[World, Path], str]:
    def shown(w: World, folder: Path) -> str:
        session = w.session()
        logged(session)
        calls: dict[str, str] = {}
        found = [e for v in session.events() for e in entries(v["seq"], v["type"], v["time"], v["data"], calls)]
        return "".join(map(form, found))

    return shown


def show(w: World, folder: Path) -> str:
    logged(w.session())
    w.db.close()
    assert group.invoke(["show", "s", "--full"]) == 0
    return ""


def searched(w: World, folder: Path) -> str:
    logged(w.session())
    writes.refresh_search(w.db)
    texts = [row[0] for row in w.db.rows("SELECT text FROM search_document")]
    hits = [h for word in WORDS.values() for h in search(w.db, word, Filters(), limit=9, snippet_chars=80).hits]
    assert len(hits) == len(WORDS)
    return "\n".join(texts)


def stored(w: World, folder: Path) -> str:
    session = w.session()
    logged(session)
    derived = w.reopen().sessions.prepare_stored("s").derive_messages()
    expected = thaw(list(conversation()))
    expected[2]["content"][0]["isError"] = False  # CO-13
    assert thaw(list(derived)) == expected
    return dumps(derived)


PATHS: dict[str, Callable[[World, Path], str]] = {
    **{f"chat:{name}": chat(name) for name in DIALECTS},
    "local": local,
    "replay": replayed,
    "transcript": transcript(lambda e: plain(e, full=True, heading=str, faint=str)),
    "markdown": transcript(markdown),
    "show": show,
    "search": searched,
    "storage": stored,
}


@pytest.mark.rule("CO-7")
@pytest.mark.parametrize("path", PATHS)
def test_every_core_tag_is_handled(path: str, w: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = PATHS[path](w, tmp_path) + capsys.readouterr().out
    assert [tag for tag in CORE_TAGS if tag not in WORDS or WORDS[tag] not in said] == []


@pytest.mark.rule("CO-7")
@pytest.mark.parametrize("tag", CORE_TAGS)
def test_every_core_tag_is_priced_by_what_it_says(tag: str) -> None:
    def grown(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(WORDS[tag], WORDS[tag] + "x" * 400)
        if isinstance(value, dict):
            return {k: grown(v) for k, v in value.items()}
        return [grown(v) for v in value] if isinstance(value, list) else value

    plain_: Any = {"role": "user", "content": [block(tag)]}
    more: Any = {"role": "user", "content": [grown(block(tag))]}
    assert estimate_message(more) - estimate_message(plain_) == 100
    as_unknown: Any = {"role": "user", "content": [{**block(tag), "type": "x/unknown"}]}
    assert estimate_message(as_unknown) > estimate_message(plain_)  # a known tag does not pay for its structure


@pytest.mark.rule("CO-11")
def test_only_a_result_has_content_of_its_own(w: World) -> None:
    """Other blocks are not looked into: what hangs in them is carried along and says nothing."""
    hidden = [{"type": "text", "text": "hidden"}]
    odd: list[Any] = [
        {"type": "text", "text": "plain", "content": hidden},
        {"type": "x/other", "content": hidden},
        {"type": "tool-result", "toolCallId": "c9", "content": [{"type": "text", "text": "inside"}]},
    ]
    assert text_of(odd) == model_text(odd) == "plain"
    assert model_text(odd[2]["content"]) == "inside"
    session = w.session()
    start_turn(session)
    session.append("user/message", {"content": odd, "source": {"kind": "user"}}, surface="append")
    ((document,),) = w.db.rows("SELECT text FROM search_document")
    assert document.split("\n") == ["plain", "inside"]
    assert thaw(session.derive_messages()[0]["content"]) == odd  # CO-3: and yet it is all there


@pytest.mark.rule("CO-12")
def test_neighbours_of_one_type_stay_apart(w: World) -> None:
    twins = [{"type": t, "text": part} for t in ("reasoning", "text") for part in ("one", "two")]
    assembler = BlockAssembler()
    for index, each in enumerate(twins):
        chunk: Any = {"type": "block-start", "index": index, "blockType": each["type"]}
        assembler.feed(chunk)
        delta: Any = {"type": f"{each['type']}-delta", "index": index, "text": each["text"]}
        assembler.feed(delta)
    assert assembler.blocks() == twins
    session = w.session()
    start_turn(session)
    at = start_step(session)
    spoken = {**at, "content": twins, "provenance": {"provider": "p", "model": "m"}}
    session.append("assistant/message", spoken, surface="append")
    assert thaw(session.derive_messages()[0]["content"]) == twins


@pytest.mark.rule("CO-13")
def test_a_result_that_says_nothing_of_an_error_is_none(w: World) -> None:
    bare, failed = block("tool-result"), {**block("tool-result"), "isError": True}
    session = w.session()
    logged(session)
    derived = session.derive_messages()[-1]["content"][0]
    assert derived["isError"] is False
    data = {"callId": "c1", "content": bare["content"]}
    ((shown,), (broken,)) = (
        list(entries(0, "tool/result", 0, d, {})) for d in (data, {**data, "isError": failed["isError"]})
    )
    assert (shown.failed, broken.failed) == (False, True)
    assert thaw(derived) == {**bare, "isError": False}
