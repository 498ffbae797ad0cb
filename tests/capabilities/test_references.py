"""The service that quotes sessions in messages, on real sessions, live and stored (SR-3, SR-4, SR-8)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsh.agent.agent import Agent
from dsh.capabilities.references.service import Limits, References
from dsh.core.errors import DshError
from dsh.kernel.signal import Signal
from dsh.session.references import Reference
from tests.agent.kit import World, blocks, say, world

PLUGINS = ("dsh.capabilities.titles", "dsh.capabilities.references")


async def code(work: Any) -> str:
    with pytest.raises(DshError) as caught:
        await work
    return caught.value.code


async def talked(w: World, id_: str, words: str, **meta: Any) -> None:
    """A session of one turn, which is closed again."""
    agent = await w.agent(id=id_, meta=meta or None)
    await w.turn(agent, words)
    await w.agents.dispose(agent)


def quoted(w: World, agent: Agent) -> list[dict[str, Any]]:
    """What the newest prompt quotes, as the model is sent it."""
    text = w.sent()[-1]
    array = text.split("<referenced-sessions>\n")[1].split("\n</referenced-sessions>")[0]
    found: list[dict[str, Any]] = json.loads(array)
    return found


@pytest.mark.rule("SR-3")
async def test_candidates_of_the_same_folder_come_first() -> None:
    async with world(plugins=PLUGINS) as w:
        for id_, cwd in (("old", "/w"), ("elsewhere", "/Other/Place"), ("none", None), ("new", "/w")):
            await talked(w, id_, f"words of {id_}", **({"cwd": cwd} if cwd else {}))
        agent = await w.agent(id="me", meta={"cwd": "/w"})
        await w.turn(agent)
        found = await w.host.get(References).list_candidates(agent)
        assert [(each.session_id, each.cwd) for each in found] == [
            ("new", "/w"),
            ("old", "/w"),
            ("none", None),
            ("elsewhere", "/Other/Place"),
        ]
        assert [each.label for each in found] == [f"words of {each.session_id}" for each in found]
        assert [each.session_id for each in await w.host.get(References).list_candidates(agent, limit=3)] == [
            "new",
            "old",
            "none",
        ]


@pytest.mark.rule("SR-3")
@pytest.mark.parametrize(
    ("query", "found"), [("OL", ["old"]), ("other/pl", ["elsewhere"]), ("OF NEW", ["new"]), ("zz", []), ("me", [])]
)
async def test_candidates_match_by_id_folder_and_title(query: str, found: list[str]) -> None:
    async with world(plugins=PLUGINS) as w:
        for id_, cwd in (("old", "/w"), ("elsewhere", "/Other/Place"), ("new", "/w")):
            await talked(w, id_, f"words of {id_}", cwd=cwd)
        agent = await w.agent(id="me", meta={"cwd": "/w"})
        await w.turn(agent)
        listed = await w.host.get(References).list_candidates(agent, query)
        assert [each.session_id for each in listed] == found


@pytest.mark.rule("SR-3")
@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
async def test_a_bad_limit_is_refused(limit: Any) -> None:
    async with world(plugins=PLUGINS) as w:
        agent = await w.agent()
        listing = w.host.get(References).list_candidates(agent, limit=limit)
        assert await code(listing) == "SESSION_REFERENCE_INVALID_REFERENCE"


@pytest.mark.rule("SR-4")
async def test_a_message_that_refers_to_nothing_is_as_it_was() -> None:
    async with world(plugins=PLUGINS) as w:
        agent = await w.agent()
        content = blocks("hi")
        prepared = await w.host.get(References).prepare(agent, content, [])
        assert tuple(prepared) == (content, [])
        assert prepared.content is not content


@pytest.mark.rule("SR-4")
async def test_what_is_wrong_with_references_is_told_before_anything_is_read() -> None:
    async with world(plugins=PLUGINS) as w:
        await talked(w, "a", "x")
        agent = await w.agent(id="me")
        references = w.host.get(References)

        async def refused(*given: Any, **more: Any) -> str:
            before = w.db.rows("SELECT count(*) FROM inbox")
            found = await code(references.prepare(agent, blocks("hi"), list(given), **more))
            assert w.db.rows("SELECT count(*) FROM inbox") == before
            assert agent.status == "idle"
            return found

        me, gone = Reference("me"), Reference("nowhere")
        assert await refused(gone, me) == "SESSION_REFERENCE_SELF_REFERENCE"
        assert await refused(gone, ("", None), me) == "SESSION_REFERENCE_INVALID_REFERENCE"
        many = [Reference(id_) for id_ in "abcd"]
        assert await refused(*many) == "SESSION_REFERENCE_TOO_MANY"
        assert await refused(Reference("a"), gone) == "SESSION_REFERENCE_READ_FAILED"
        ended = Signal()
        ended.cancel()
        assert await refused(Reference("a"), signal=ended) == "SESSION_REFERENCE_CANCELLED"
        prepared = await references.prepare(agent, blocks("hi"), [Reference("a"), Reference("a", "again")])
        [one] = prepared.contexts[0]["meta"]["references"]
        assert (one["label"], one["inputIndex"]) == ("a", 0)


@pytest.mark.rule("SR-8", "SR-7")
async def test_the_quote_stays_what_it_was_and_is_not_quoted_again() -> None:
    async with world(say("an answer"), say("noted"), say("more"), say("seen"), plugins=PLUGINS) as w:
        source = await w.agent(id="source", meta={"cwd": "/s"})
        await w.turn(source, "a question")
        target = await w.agent(id="target")
        references = w.host.get(References)
        content, contexts = await references.prepare(target, blocks("what was said?"), [Reference("source", "S")])
        await w.turn(source, "said later")  # live, and it goes on before the message is sent
        await w.turn(target, "what was said?", contexts=contexts)
        said = [{"role": "user", "text": "a question"}, {"role": "assistant", "text": "an answer"}]
        expected = {"sessionId": "source", "label": "S", "cwd": "/s", "conversation": said}
        [first] = quoted(w, target)
        captured = first.pop("capturedThroughSeq")
        assert first == expected
        assert captured < source.session.length - 1
        message = w.last(target, "user/message")["data"]
        assert message["envelope"]["displayContent"] == content
        assert message["envelope"]["prefixContexts"][0]["meta"]["references"][0]["sessionId"] == "source"
        third = await w.agent(id="third")
        _, contexts = await references.prepare(third, blocks("and there?"), [Reference("target")])
        await w.turn(third, "and there?", contexts=contexts)
        [again] = quoted(w, third)
        assert again["conversation"][0] == {"role": "user", "text": "what was said?"}


async def test_a_title_that_was_given_is_the_label() -> None:
    async with world(plugins=PLUGINS) as w:
        agent = await w.agent(id="named")
        await w.turn(agent, "words")
        trigger = {"kind": "session-title"}
        await w.sessions.append_out_of_band(agent.session, "session/title", {"title": "A given title"}, trigger)
        me = await w.agent(id="me")
        [found] = await w.host.get(References).list_candidates(me, "given")
        assert found.label == "A given title"


@pytest.mark.parametrize(
    "limits", [Limits(max_references=0), Limits(max_references=4), Limits(candidates=0), Limits(max_reference_bytes=0)]
)
async def test_limits_out_of_range_are_refused(limits: Limits) -> None:
    async with world(plugins=PLUGINS) as w:
        with pytest.raises(DshError) as caught:
            References(w.host, w.sessions, limits)
        assert caught.value.code == "SESSION_REFERENCE_INVALID_CONFIG"
