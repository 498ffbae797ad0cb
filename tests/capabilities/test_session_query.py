"""The model's tools over other sessions: what they take, whom they show what, what they say (SQT-1 to SQT-12)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.agent.agent import Agent
from dsh.agent.prompt import AssembleContext
from dsh.capabilities.session_query.access import FAILED, SessionQueryToolError, answered
from dsh.capabilities.session_query.arguments import Nothing, times
from dsh.capabilities.session_query.told import time_of
from dsh.capabilities.session_query.tools import SessionTools
from dsh.core.errors import DshError, code_of
from dsh.query.service.service import SessionQuery
from dsh.query.service.values import QueryError, SessionPage
from dsh.session.session import Session
from dsh.tools.definition import Execution, ToolResult
from dsh.tools.pipeline import execute
from tests.agent.kit import World, ask, say, world
from tests.session.kit import damage, end_turn, prompt, start_step, start_turn, whole_turn
from tests.tools.kit import code, text

PLUGIN = ["dsh.capabilities.session_query"]
TOOLS = ["session_event_read", "session_event_search", "session_event_trace", "session_search", "session_trace"]


@asynccontextmanager
async def running(*replies: Any, **settings: Any) -> AsyncIterator[World]:
    async with world(*replies, plugins=PLUGIN, checked=False, session_tools__enabled=True, **settings) as w:
        yield w


def stored(w: World, id: str, words: str = "whales", **meta: Any) -> Session:
    meta = {name: value for name, value in {"cwd": "/x", **meta}.items() if value is not None}
    session = w.sessions.create(id, meta=meta)
    whole_turn(session, words)
    w.sessions.dispose(session)
    return session


async def call(w: World, agent: Agent | None, name: str, **args: Any) -> ToolResult:
    return await execute(w.tools, Execution(call_id="c", name=name, arguments=args, agent=agent))


async def said(w: World, agent: Agent, name: str, **args: Any) -> str:
    result = await call(w, agent, name, **args)
    assert not result.is_error, text(result)
    assert [block["type"] for block in result.content] == ["text"]
    return text(result)


async def refused(w: World, agent: Agent | None, name: str, **args: Any) -> str | None:
    return code(await call(w, agent, name, **args))


def shown(answer: str) -> list[str]:
    """The sessions of an answer, in its order."""
    return [line.split()[1] for line in answer.splitlines() if line.startswith("session ")]


# ----------------------------------------------------------------------------------------------- registration and form


async def test_the_tools_are_opt_in() -> None:
    async with world(plugins=PLUGIN) as w:
        assert w.tools.visible(None) == {}
        assert w.host.find(SessionQuery) is None


@pytest.mark.rule("SQT-1")
async def test_names_parameters_and_prompt_section() -> None:
    async with running() as w:
        schemas = {schema["name"]: schema["parameters"] for schema in w.tools.schemas(None)}
        assert sorted(schemas) == TOOLS
        fields = {name: set(schema["properties"]) for name, schema in schemas.items()}
        assert fields == {
            "session_search": {
                "query", "session_ids", "created_at_from", "created_at_to", "parent_session_ids",
                "include_root_sessions", "availability", "event_seq_from", "event_seq_to", "event_time_from",
                "event_time_to", "event_types", "event_surfaces",
            },
            "session_event_search": {
                "query", "session_id", "seq_from", "seq_to", "time_from", "time_to", "event_types", "surfaces",
            },
            "session_trace": {"session_id"},
            "session_event_trace": {"session_id", "seq"},
            "session_event_read": {"session_id", "seq", "before", "after"},
        }  # fmt: skip
        required = {name: schema.get("required", []) for name, schema in schemas.items()}
        assert required == {
            "session_search": ["query"], "session_event_search": ["query"], "session_trace": [],
            "session_event_trace": ["seq"], "session_event_read": ["seq"],
        }  # fmt: skip
        sections = [name for name, _ in w.prompt.assemble(AssembleContext(None)).sections]
        assert sections[-1] == "tool:session-query"


@pytest.mark.rule("SQT-9", "TC-7")
async def test_which_may_overlap_and_which_have_a_time_limit() -> None:
    async with running(session_tools__timeout_ms=1234) as w:
        arguments: dict[str, Any] = {"query": "a", "seq": 0}
        modes = {name: w.tools.mode(None, name, arguments) for name in TOOLS}
        assert modes == {name: "exclusive" if "search" in name else "parallel" for name in TOOLS}
        limits = {name: definition.timeout_ms for name, definition in w.tools.visible(None).items()}
        assert limits == {name: 1234 if "search" in name else None for name in TOOLS}
    async with running() as w:
        assert w.tools.visible(None)["session_search"].timeout_ms == 30_000


# -------------------------------------------------------------------------------------------------------------- access


@pytest.mark.rule("SQT-2")
async def test_without_an_agent_there_is_no_answer() -> None:
    async with running() as w:
        stored(w, "s")
        for name in TOOLS:
            result = await call(w, None, name, query="a", session_id="s", seq=0)
            assert code(result) == "SESSION_QUERY_TOOL_MISSING_AGENT"


@pytest.mark.rule("SQT-2", "SQT-3")
async def test_only_the_same_directory_is_visible() -> None:
    async with running() as w:
        for id_, folder in (("same", "/x"), ("below", "/x/y"), ("slash", "/x/"), ("none", None)):
            stored(w, id_, cwd=folder)
        stored(w, "unseen")
        w.db.rows("UPDATE session SET hidden = 1 WHERE id = 'unseen'")
        agent = await w.agent(meta={"cwd": "/x"})
        assert shown(await said(w, agent, "session_search", query="whales")) == ["same"]
        assert shown(await said(w, agent, "session_event_search", session_id="same", query="whales")) == ["same"]
        for name, more in (
            ("session_event_search", {"query": "whales"}), ("session_trace", {}), ("session_event_trace", {"seq": 1}),
            ("session_event_read", {"seq": 1}),
        ):  # fmt: skip
            assert (await said(w, agent, name, session_id="same", **more)).startswith("session same")
            for hidden in ("below", "slash", "none", "unseen", "missing"):
                assert await refused(w, agent, name, session_id=hidden, **more) == "SESSION_QUERY_TOOL_UNAUTHORIZED"


@pytest.mark.rule("SQT-2")
async def test_without_a_directory_an_agent_sees_only_itself() -> None:
    async with running(say("about whales")) as w:
        stored(w, "other", cwd=None)
        agent = await w.agent(id="me")
        await w.turn(agent, "hi")
        assert await refused(w, agent, "session_search", query="whales") == "SESSION_QUERY_TOOL_UNAUTHORIZED"
        assert await refused(w, agent, "session_trace", session_id="other") == "SESSION_QUERY_TOOL_UNAUTHORIZED"
        assert (await said(w, agent, "session_trace")).startswith("session me")
        assert (await said(w, agent, "session_event_read", seq=1)).startswith("session me")


@pytest.mark.rule("SQT-3")
async def test_the_header_that_comes_with_the_data_counts() -> None:
    """A session that is replaced between the check and the read is not shown."""
    async with running() as w:
        stored(w, "s")
        agent = await w.agent(meta={"cwd": "/x"})
        service = w.host.get(SessionQuery)
        allowed = service.filter_sessions

        async def late(filters: Any) -> Any:
            found = await allowed(filters)
            w.db.rows("DELETE FROM session WHERE id = 's'")
            stored(w, "s", cwd="/secret")
            return found

        for name, more in (
            ("session_event_search", {"query": "whales"}), ("session_event_trace", {"seq": 1}),
            ("session_event_read", {"seq": 1}),
        ):  # fmt: skip
            service.filter_sessions = late  # type: ignore[method-assign]
            assert await refused(w, agent, name, session_id="s", **more) == "SESSION_QUERY_TOOL_UNAUTHORIZED"
            w.db.rows("DELETE FROM session WHERE id = 's'")
            stored(w, "s")


# ----------------------------------------------------------------------------------------------------------- searching


@pytest.mark.rule("SQT-4")
async def test_the_caller_is_not_found_and_parents_are_the_visible_ones() -> None:
    async with running(say("whales")) as w:
        agent = await w.agent(id="me", meta={"cwd": "/x"})
        await w.turn(agent, "whales")
        stored(w, "root")
        stored(w, "secret", cwd="/secret")
        for id_, parent in (("child", "root"), ("mine", "me"), ("foundling", "secret")):
            stored(w, id_, parentSession=parent)

        async def found(**args: Any) -> list[str]:
            return sorted(shown(await said(w, agent, "session_search", query="whales", **args)))

        assert await found() == ["child", "foundling", "mine", "root"]
        assert await found(parent_session_ids=["root", "root", "secret"]) == ["child"]
        assert await found(parent_session_ids=["me"]) == ["mine"]
        assert await found(include_root_sessions=True) == ["root"]
        assert await found(include_root_sessions=False) == ["child", "foundling", "mine", "root"]
        assert await found(parent_session_ids=["root"], include_root_sessions=True) == ["child", "root"]
        assert await found(parent_session_ids=["secret"], include_root_sessions=True) == ["root"]

        await w.host.get(SessionQuery)._searcher.aclose()  # from here on it lists and reads, and cannot search
        assert await refused(w, agent, "session_search", query="whales") == "SESSION_QUERY_INDEX_FAILED"
        for ids in (["secret"], ["missing", "secret"]):
            answer = await said(w, agent, "session_search", query="whales", parent_session_ids=ids)
            assert answer == "No matching sessions."
        wrongs: list[dict[str, Any]] = [
            {"session_ids": []}, {"created_at_from": "yesterday"}, {"event_seq_from": -1}, {"event_types": []},
            {"event_time_from": "2026-01-02T00:00Z", "event_time_to": "2026-01-01T00:00Z"},
        ]  # fmt: skip
        for wrong in wrongs:
            args = {"query": "whales", "parent_session_ids": ["secret"], **wrong}
            assert await refused(w, agent, "session_search", **args) == "SESSION_QUERY_INVALID_FILTER"
        args = {"query": "\0", "parent_session_ids": ["secret"]}
        assert await refused(w, agent, "session_search", **args) == "SESSION_QUERY_INVALID_QUERY"


@pytest.mark.rule("SQT-1", "SQT-4")
async def test_filters_of_a_session_search() -> None:
    async with running() as w:
        agent = await w.agent(meta={"cwd": "/x"})
        stored(w, "old", createdAt=1_000_000_000_000)
        stored(w, "new", createdAt=1_700_000_000_000)

        async def found(**args: Any) -> list[str]:
            return sorted(shown(await said(w, agent, "session_search", query="whales", **args)))

        assert await found(session_ids=["old", "gone"]) == ["old"]
        assert await found(created_at_from="2010-01-01T00:00Z") == ["new"]
        assert await found(created_at_to="2010-01-01T00:00Z") == ["old"]
        assert await found(availability=["live"]) == []
        assert await found(event_types=["tool/call"]) == []
        assert await found(event_surfaces=["shadowed"]) == []
        assert await found(event_seq_from=2, event_surfaces=["current"], event_types=["assistant/message"]) == [
            "new",
            "old",
        ]
        assert await found(event_time_to="2001-01-01T00:00Z") == []


@pytest.mark.rule("SQT-5")
async def test_the_present_step_is_not_the_past() -> None:
    first = ask(("session_event_search", {"query": "needle"}, "c1"))
    second = ask(("session_event_search", {"query": "needle", "seq_from": 3}, "c2"))
    third = ask(("session_event_search", {"query": "straw", "seq_from": 900}, "c3"))
    async with running(first, second, third) as w:
        agent = await w.agent(meta={"cwd": "/x"})
        await w.turn(agent, "a needle in the hay")
        results = w.texts(agent, "tool/result")
        assert "event 1, user/message" in results[0]
        assert "tool/call" not in results[0]  # which says needle, too
        step = [event["seq"] for event in w.log(agent, "step/start")]
        assert all(
            int(line.split(",")[0][6:]) < step[1] for line in results[1].splitlines() if line.startswith("event ")
        )
        assert "tool/call" in results[1]
        assert results[2] == "No matching events."
        other = stored(w, "other", "needle")
        assert shown(await said(w, agent, "session_event_search", query="needle", session_id=other.id)) == ["other"]
        fresh = await w.agent(meta={"cwd": "/x"})
        assert await refused(w, fresh, "session_event_search", query="x") == "SESSION_QUERY_TOOL_NO_CURRENT_STEP"


@pytest.mark.rule("SQT-6")
async def test_pages_are_followed_up_to_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsh.query.service.phrase.MAX_LIMIT", 2)
    async with running(say("whales"), session_tools__max_search_results=5) as w:
        agent = await w.agent(id="me", meta={"cwd": "/x"})
        await w.turn(agent, "whales whales whales")  # the best hit, which is not shown and does not count
        for number in range(5):
            stored(w, f"s{number}")
        answer = await said(w, agent, "session_search", query="whales")
        assert len(shown(answer)) == 5
        assert "There are more" not in answer
        stored(w, "s5")
        answer = await said(w, agent, "session_search", query="whales")
        assert len(shown(answer)) == 5
        assert answer.splitlines()[-1].startswith("(There are more; only the first 5")


@pytest.mark.rule("SQT-6")
async def test_pages_that_do_not_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsh.query.service.phrase.MAX_LIMIT", 1)
    async with running() as w:
        agent = await w.agent(meta={"cwd": "/x"})
        for number in range(4):
            stored(w, f"s{number}")
        service = w.host.get(SessionQuery)
        real = service.search_sessions
        asked: list[Any] = []

        async def grown(*args: Any, **more: Any) -> Any:
            asked.append(more["cursor"])
            found = await real(*args, **more)
            stored(w, f"t{len(asked)}")
            return found

        service.search_sessions = grown  # type: ignore[method-assign]
        assert await refused(w, agent, "session_search", query="whales") == "SESSION_QUERY_STALE_CURSOR"
        assert len(asked) == 2  # and not tried again


@pytest.mark.rule("SQT-6")
async def test_a_cursor_that_comes_again() -> None:
    async with running() as w:
        stored(w, "s")
        tools = SessionTools(w.host.get(SessionQuery), w.sessions, w.host.report, 100)
        first = await w.host.get(SessionQuery).search_sessions("whales")

        async def page(cursor: str | None) -> SessionPage:
            return first._replace(next_cursor="again")

        with pytest.raises(QueryError) as caught:
            await tools._collected(page, lambda hit: True)
        assert caught.value.code == "SESSION_QUERY_INVALID_CURSOR"


@pytest.mark.rule("SQT-7")
async def test_lists_and_seqs() -> None:
    async with running(say("x")) as w:
        agent = await w.agent(meta={"cwd": "/x"})
        await w.turn(agent)
        for name, wrong in (
            ("session_search", {"session_ids": []}), ("session_search", {"parent_session_ids": []}),
            ("session_search", {"availability": []}), ("session_search", {"event_types": []}),
            ("session_search", {"event_surfaces": []}), ("session_search", {"event_seq_from": -1}),
            ("session_search", {"event_seq_from": 2, "event_seq_to": 1}),
            ("session_event_search", {"event_types": []}), ("session_event_search", {"surfaces": []}),
            ("session_event_search", {"seq_to": -1}), ("session_event_search", {"seq_from": 5, "seq_to": 4}),
        ):  # fmt: skip
            assert await refused(w, agent, name, query="x", **wrong) == "SESSION_QUERY_INVALID_FILTER", wrong
        assert await refused(w, agent, "session_search", query="x", event_seq_from=1.5) == "INVALID_ARGS"
        assert await said(w, agent, "session_search", query="x", event_seq_from=0, event_seq_to=2**53 - 1)


# --------------------------------------------------------------------------------------------------------------- times


def bounds(**args: str) -> Any:
    """The bounds of the clause, None if there is no such range, "nothing" if it is empty, or the code of a refusal."""
    try:
        made = times(args, "", "time")
    except Nothing:
        return "nothing"
    except DshError as error:
        return error.code
    return (made[0].get("from"), made[0].get("to")) if made else None


@pytest.mark.rule("SQT-8")
def test_digits_below_a_millisecond() -> None:
    at = "2026-01-31T09:30:00"
    ms = 1769851800000
    assert bounds(**{"from": f"{at}Z"}) == (ms, None)
    assert bounds(**{"from": f"{at}.000000Z", "to": f"{at}.0000Z"}) == (ms, ms)
    assert bounds(**{"from": f"{at}.0001Z"}) == (ms + 1, None)
    assert bounds(to=f"{at}.0009Z") == (None, ms)
    assert bounds(**{"from": f"{at}.0001Z", "to": f"{at}.0011Z"}) == (ms + 1, ms + 1)
    assert bounds(**{"from": f"{at}.0001Z", "to": f"{at}.0009Z"}) == "nothing"
    assert bounds(**{"from": f"{at}.00011Z", "to": f"{at}.0001Z"}) == "SESSION_QUERY_INVALID_FILTER"
    assert bounds() is None


@pytest.mark.rule("SQT-8")
@pytest.mark.parametrize(
    "wrong",
    [
        "", "2026-01-31", "2026-01-31T09:30", "2026-02-30T09:30Z", "2026-13-01T09:30Z", "2026-01-31T24:00Z",
        "2026-01-31T09:60Z", "2026-01-31T09:30:60Z", "2026-01-31T09:30.5Z", "2026-01-31T09:30:00.Z",
        "2026-01-31 09:30Z", "2026-01-31T09:30z", "2026-01-31T09:30+0200", "2026-01-31T09:30+24:00",
        "2026-01-31T09:30+02:60", "0000-01-01T00:00Z", "26-01-31T09:30Z", "2026-01-31T09:30Z ", "٢٠٢٦-01-31T09:30Z",
        "2025-02-29T00:00Z", "2026-01-31T09:30:00,5Z",
    ],
)  # fmt: skip
def test_what_is_no_time(wrong: str) -> None:
    assert bounds(**{"from": wrong}) == bounds(to=wrong) == "SESSION_QUERY_INVALID_FILTER"


moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001


@pytest.mark.rule("SQT-8")
@settings(deadline=None)
@given(moments, st.integers(-1439, 1439), st.text("0123456789", max_size=6))
def test_every_time_is_read(at: datetime, ahead: int, more: str) -> None:
    local = (at + timedelta(minutes=ahead)).replace(tzinfo=None).isoformat(timespec="microseconds")
    sign, away = "-" if ahead < 0 else "+", abs(ahead)
    typed = f"{local}{more}{sign}{away // 60:02}:{away % 60:02}"
    micros = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    ms, rest = divmod(micros, 1000)
    finer = rest != 0 or more.strip("0") != ""
    assert bounds(**{"from": typed}) == (ms + finer, None)
    assert bounds(to=typed) == (None, ms)


def test_times_are_told_with_milliseconds() -> None:
    assert time_of(0) == "1970-01-01T00:00:00.000Z"
    assert time_of(1769851800007) == "2026-01-31T09:30:00.007Z"
    assert time_of(2**53 - 1) == f"{2**53 - 1} ms after 1970"


# ---------------------------------------------------------------------------------------------------- traces and reads


@pytest.mark.rule("SQT-10")
async def test_no_hidden_id_is_told() -> None:
    async with running() as w:
        stored(w, "above-secret")
        stored(w, "secret", cwd="/secret", parentSession="above-secret")
        stored(w, "up", parentSession="secret")
        stored(w, "s", parentSession="up")
        stored(w, "kid", parentSession="s")
        stored(w, "hidden-kid", cwd="/secret", parentSession="s")
        stored(w, "below-hidden", parentSession="hidden-kid")
        stored(w, "grandkid", parentSession="kid")
        stored(w, "orphan", parentSession="never-was")
        agent = await w.agent(meta={"cwd": "/x"})
        answer = await said(w, agent, "session_trace", session_id="s")
        for id_ in ("secret", "above-secret", "hidden-kid", "below-hidden"):
            assert id_ not in answer
        assert [line for line in answer.splitlines() if " up:" in line] == ["1 up: session up untitled"]
        assert answer.count("(a session that is not visible)") == 2
        assert [line for line in answer.splitlines() if "grandkid" in line] == ["2 down: session grandkid untitled"]
        orphan = await said(w, agent, "session_trace", session_id="orphan")
        assert "never-was" not in orphan
        assert orphan.count("(a session that is not visible)") == 1
        root = await said(w, agent, "session_trace", session_id="above-secret")
        assert "ancestors:\nnone" in root


@pytest.mark.rule("SQT-10")
async def test_titles_beside_ids() -> None:
    async with running() as w:
        for id_ in ("named", "torn"):
            session = w.sessions.create(id_, meta={"cwd": "/x"})
            whole_turn(session, "whales")
            start_turn(session)
            session.append("session/title", {"title": "Big fish", "messageSeqs": [], "source": {"kind": "user"}})
            end_turn(session)
            w.sessions.dispose(session)
        stored(w, "plain")
        agent = await w.agent(meta={"cwd": "/x"})
        damage(w.db.path, "UPDATE _event SET data = '{\"title\":1}' WHERE type = 'session/title' AND session = "
               "(SELECT id FROM _session WHERE name = 'torn')")  # fmt: skip
        answer = await said(w, agent, "session_search", query="whales")
        assert 'session named "Big fish"' in answer
        assert "session plain untitled\n" in answer
        assert f"session torn untitled ({FAILED})" in answer


@pytest.mark.rule("SQT-12")
async def test_an_event_is_printed_whole_and_its_neighbours_as_they_read() -> None:
    async with running() as w:
        session = w.sessions.create("s", meta={"cwd": "/x"})
        start_turn(session)
        long = "Wörter\n" * 5000
        session.append("user/message", prompt(long), surface="append")
        start_step(session)
        agent = await w.agent(meta={"cwd": "/x"})
        answer = await said(w, agent, "session_event_read", session_id="s", seq=1)
        head, _, body = answer.split("\n\n", 1)[1].partition("\n")
        event = session.events(1, 1)[0]
        assert head == f"event 1, user/message, {time_of(event['time'])}"
        assert json.loads(body) == event
        assert body == json.dumps(event, indent=2, ensure_ascii=False)
        answer = await said(w, agent, "session_event_read", session_id="s", seq=2, before=2, after=50)
        parts = answer.split("\n\n")
        assert parts[0] == "session s, events 0 to 2"
        assert parts[1] == f"event 0, turn/start, {time_of(session.events(0, 0)[0]['time'])}"
        assert answer.count("Wörter") == 5000
        assert f"event 1, user/message, {time_of(event['time'])}\nWörter\nWörter" in answer
        assert json.loads(parts[-1].partition("\n")[2])["seq"] == 2


async def test_keys_are_not_passed_on() -> None:
    key = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    async with running() as w:
        session = w.sessions.create("s", meta={"cwd": "/x"})
        whole_turn(session, f"line\n{key}\nend")
        start_turn(session)
        session.append("session/title", {"title": f"about {key}", "messageSeqs": [], "source": {"kind": "user"}})
        end_turn(session)
        agent = await w.agent(meta={"cwd": "/x"})
        for answer in (
            await said(w, agent, "session_event_read", session_id="s", seq=1, after=9),
            await said(w, agent, "session_event_read", session_id="s", seq=2, before=2),
            await said(w, agent, "session_search", query="end"),
            await said(w, agent, "session_event_search", session_id="s", query="end"),
            await said(w, agent, "session_trace", session_id="s"),
        ):
            assert key not in answer
            assert "[redacted:" in answer


async def test_where_an_event_came_from() -> None:
    async with running() as w:
        session = w.sessions.create("s", meta={"cwd": "/x"})
        start_turn(session)
        for words in ("a", "b"):
            session.append("user/message", prompt(words), surface="append")
        session.append("user/message", prompt("c"), surface={"op": "replace", "start": 1, "end": 2}, sources=[2, 1])
        session.append("user/message", prompt("d"), surface={"op": "replace", "start": 3, "end": 3}, sources=[3])
        agent = await w.agent(meta={"cwd": "/x"})
        lines = (await said(w, agent, "session_event_trace", session_id="s", seq=3)).splitlines()
        assert lines[1].startswith("event 3, user/message, shadowed, ")
        assert lines[2:] == [
            "replaced by: 4",
            "then replaced, one after the other, by: none",
            "replaces: 1, 2",
            "made from: 2, 1",
            "named as a source by: 4",
        ]


# ------------------------------------------------------------------------------------------------------------ failures


@pytest.mark.rule("SQT-11")
async def test_failures_are_a_code_and_a_fixed_text() -> None:
    async with running() as w:
        stored(w, "s", "secret words")
        agent = await w.agent(meta={"cwd": "/x"})
        for args, wanted in (
            ({"seq": 900}, "SESSION_QUERY_EVENT_NOT_FOUND"),
            ({"seq": 1, "before": 51}, "SESSION_QUERY_INVALID_WINDOW"),
        ):
            result = await call(w, agent, "session_event_read", session_id="s", **args)
            assert code(result) == wanted
            assert "900" not in text(result)
        live = w.sessions.create("live", meta={"cwd": "/x"})
        whole_turn(live)
        one = "session = (SELECT id FROM _session WHERE name = 's')"
        for harm, name, wanted, cause in (
            (f"UPDATE _event SET op = NULL WHERE seq = 1 AND {one}", "session_event_trace",
             "SESSION_QUERY_INVALID_SURFACE", "SESSION_QUERY_INVALID_SURFACE"),
            (f"UPDATE _event SET data = '{{' WHERE seq = 1 AND {one}", "session_event_read", FAILED, "LOG_CORRUPT"),
            ("UPDATE _session SET created_at = 7 WHERE name = 'live'", "session_trace", FAILED,
             "SESSION_QUERY_SOURCE_CONFLICT"),
        ):  # fmt: skip
            damage(w.db.path, harm)
            result = await call(w, agent, name, session_id="s", seq=1)
            assert code(result) == wanted
            assert text(result) == f"Error: {SessionQueryToolError(wanted).message}"
            where, error = w.host.reports[-1]
            assert (where, code_of(error)) == ("session query", cause)


@pytest.mark.rule("SQT-11")
async def test_a_cancellation_comes_before_a_failure() -> None:
    reported: list[Any] = []

    async def failing() -> None:
        raise ValueError

    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled):
            await answered(failing(), lambda *given: reported.append(given))
    assert reported == []
    with pytest.raises(SessionQueryToolError) as caught:
        await answered(failing(), lambda *given: reported.append(given))
    assert caught.value.code == FAILED  # of an error that nobody knows
    assert len(reported) == 1
