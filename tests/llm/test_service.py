"""Routing, preparation, interception and the boundary of LlmService."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
import trio

from dsh.core.errors import ConfigError, DshError, InvariantError
from dsh.core.lossless import freeze
from dsh.core.messages import Chunk, Request, same_config
from dsh.kernel.host import Host
from dsh.llm.adapter import ModelInfo, ProviderInfo, ResolvedModel
from dsh.llm.failure import LlmError
from dsh.llm.service import LlmService
from tests.llm.helpers import Scripted, collect, host, request, text_chunks, user

Next = Callable[..., AsyncIterator[Chunk]]


class Described(Scripted):
    """An adapter with chosen metadata."""

    def __init__(self, *, info: Any = None, models: Any = None, model: Any = None) -> None:
        super().__init__(*text_chunks("ok"))
        self.info, self.models, self.model = info, models, model

    def provider_info(self, provider: str) -> ProviderInfo:
        described: Any = self.info or {"id": provider, "name": provider}
        info: ProviderInfo = described
        return info

    async def list_models(self, provider: str) -> list[ModelInfo]:
        models: list[ModelInfo] = self.models or []
        return models

    async def resolve_model(self, provider: str, model: str) -> ResolvedModel:
        resolved: Any = {"provider": provider, "id": model, "name": model, **(self.model or {})}
        described: ResolvedModel = resolved
        return described


def setup(*adapters: tuple[str, Any], **settings: Any) -> tuple[Host, LlmService]:
    made = host(**settings)
    service = made.get(LlmService)
    for route, adapter in adapters:
        service.register(made.root, adapter, [route])
    return made, service


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(DshError) as caught:
        call()
    return caught.value.code


async def code_of_async(call: Any) -> str:
    with pytest.raises(DshError) as caught:
        await call
    return caught.value.code


# --- registry


@pytest.mark.rule("LS-20")
async def test_registration_is_all_or_nothing() -> None:
    made, service = setup(("b", Scripted()))
    for routes, code in (
        ([], "INVALID_ADAPTER"),
        (["x", ""], "INVALID_ADAPTER"),
        (["x", "b"], "DUPLICATE_ADAPTER"),
        (["x", "x"], "DUPLICATE_ADAPTER"),
    ):
        assert code_of(lambda r=routes: service.register(made.root, Scripted(), r)) == code  # type: ignore[misc]
    for info in ({"id": "other", "name": "n"}, {"id": "x", "name": ""}):
        wrong = Described(info=info)
        assert code_of(lambda w=wrong: service.register(made.root, w, ["x"])) == "INVALID_ADAPTER"  # type: ignore[misc]
    scope = made.root.scope()
    service.register(scope, Scripted(), ["z", "a"])
    assert [p["id"] for p in service.providers()] == ["b", "z", "a"]
    await scope.dispose()
    assert [p["id"] for p in service.providers()] == ["b"]


@pytest.mark.rule("LS-22")
async def test_model_lists_are_checked() -> None:
    good = {"provider": "p", "id": "m", "name": "M", "description": "d"}
    for bad in (
        {**good, "provider": "q"},
        {**good, "id": ""},
        {**good, "name": ""},
        {**good, "description": 1},
    ):
        _, service = setup(("p", Described(models=[bad])))
        assert await code_of_async(service.list_models("p")) == "INVALID_CATALOG"
    _, service = setup(("p", Described(models=[good, good])))
    assert await code_of_async(service.list_models("p")) == "INVALID_CATALOG"
    _, service = setup(("p", Described(models=[good])))
    assert await service.list_models("p") == [good]
    assert await code_of_async(service.list_models("nobody")) == "NO_ADAPTER"


@pytest.mark.rule("LS-23")
@pytest.mark.parametrize(
    ("model", "code"),
    [
        ({"provider": "q"}, "INVALID_MODEL_INFO"),
        ({"id": "q"}, "INVALID_MODEL_INFO"),
        ({"name": ""}, "INVALID_MODEL_INFO"),
        ({"context": {"contextWindow": 0}}, "INVALID_MODEL_CONTEXT"),
        ({"context": {"contextWindow": True}}, "INVALID_MODEL_CONTEXT"),
        ({"context": {}}, "INVALID_MODEL_CONTEXT"),
        ({"reasoning": {"efforts": []}}, "INVALID_MODEL_REASONING"),
        ({"reasoning": {"efforts": [{"id": "", "name": "x"}]}}, "INVALID_MODEL_REASONING"),
        ({"reasoning": {"efforts": [{"id": "x", "name": ""}]}}, "INVALID_MODEL_REASONING"),
        ({"reasoning": {"efforts": [{"id": "x", "name": "x"}] * 2}}, "INVALID_MODEL_REASONING"),
        ({"reasoning": {"efforts": [{"id": "x", "name": "x"}], "defaultEffort": "y"}}, "INVALID_MODEL_REASONING"),
    ],
)
async def test_model_metadata_is_checked(model: Any, code: str) -> None:
    _, service = setup(("p", Described(model=model)))
    assert await code_of_async(service.resolve_model("p", "m")) == code
    assert (await collect(service.stream(request()))).code == code


@pytest.mark.rule("LS-23")
async def test_metadata_is_a_detached_copy() -> None:
    model = {"context": {"contextWindow": 5}}
    _, service = setup(("p", Described(model=model)))
    got = await service.resolve_model("p", "m")
    got["context"]["contextWindow"] = 6
    assert model == {"context": {"contextWindow": 5}}


EFFORTS = {"reasoning": {"efforts": [{"id": "lo", "name": "Lo"}, {"id": "hi", "name": "Hi"}], "defaultEffort": "hi"}}


@pytest.mark.rule("LS-24", "CO-26")
async def test_efforts() -> None:
    adapter = Described(model=EFFORTS)
    _, service = setup(("p", adapter), ("q", Described()))
    assert (await service.prepare({"provider": "p", "model": "m"})).config.get("reasoningEffort") == "hi"
    chosen: Any = {"provider": "p", "model": "m", "reasoningEffort": "lo"}
    assert same_config((await service.prepare(chosen)).config, chosen)
    for provider, effort in (("p", "max"), ("q", "lo"), ("p", "")):
        config: Any = {"provider": provider, "model": "m", "reasoningEffort": effort}
        assert await code_of_async(service.prepare(config)) == "UNSUPPORTED_REASONING_EFFORT"
        answer = await collect(service.stream(request(config=config)))
        assert answer.code == "UNSUPPORTED_REASONING_EFFORT"
    assert adapter.requests == []
    await collect(service.stream(request()))
    assert adapter.requests[0].config == {"provider": "p", "model": "m", "reasoningEffort": "hi"}
    assert "reasoningEffort" not in (await service.prepare({"provider": "q", "model": "m"})).config


# --- prepared calls


@pytest.mark.rule("LS-25")
async def test_a_prepared_call_is_good_once_and_for_its_own_configuration() -> None:
    adapter = Described()
    _, service = setup(("p", adapter))
    prepared = await service.prepare({"provider": "p", "model": "m"})
    assert (await collect(service.stream(request(model="other"), prepared))).code == "INVALID_PREPARED_CALL"
    assert (await collect(service.stream(request(), prepared))).text == "ok"
    assert (await collect(service.stream(request(), prepared))).code == "INVALID_PREPARED_CALL"
    assert len(adapter.requests) == 1


@pytest.mark.rule("LS-25")
async def test_replacing_the_adapter_changes_no_call_under_way() -> None:
    made = host()
    service = made.get(LlmService)
    scope = made.root.scope()
    old, new = Described(), Described()
    service.register(scope, old, ["p"])
    prepared = await service.prepare({"provider": "p", "model": "m"})
    await scope.dispose()
    service.register(made.root, new, ["p"])
    await collect(service.stream(request(), prepared))
    assert (len(old.requests), len(new.requests)) == (1, 0)


@pytest.mark.rule("LS-25")
async def test_a_direct_call_fixes_its_adapter_before_it_resolves() -> None:
    made = host()
    service = made.get(LlmService)
    scope = made.root.scope()

    class Slow(Described):
        async def resolve_model(self, provider: str, model: str) -> ResolvedModel:
            await scope.dispose()
            return await super().resolve_model(provider, model)

    slow = Slow()
    service.register(scope, slow, ["p"])
    assert (await collect(service.stream(request()))).text == "ok"
    assert len(slow.requests) == 1


@pytest.mark.rule("LS-26")
def test_configurations_compare_by_field() -> None:
    def config(**rest: Any) -> Any:
        return {"provider": "p", "model": "m", **rest}

    assert same_config(config(stop=["a"], temperature=1), config(temperature=1.0, stop=["a"]))
    assert not same_config(config(), config(stop=[]))
    assert not same_config(config(stop=["a", "b"]), config(stop=["b", "a"]))


# --- interception


@pytest.mark.rule("LS-27")
async def test_a_listener_may_answer_for_a_route_without_adapter() -> None:
    made, service = setup()

    async def answers(request: Request, next: Next) -> AsyncGenerator[Chunk, None]:
        for chunk in text_chunks(f"for {request.model}"):
            yield chunk

    made.root.on("llm/stream", answers)
    assert (await collect(service.stream(request()))).text == "for m"
    assert await code_of_async(service.prepare({"provider": "p", "model": "m"})) == "NO_ADAPTER"


@pytest.mark.rule("LS-27")
async def test_without_a_listener_the_dispatch_says_no_adapter() -> None:
    _, service = setup(("q", Scripted()))
    answer = await collect(service.stream(request()))
    assert answer.code == "NO_ADAPTER"
    assert answer.error is not None
    assert service.is_boundary(answer.error)


@pytest.mark.rule("LS-27")
async def test_a_listener_may_route_a_hand_built_request_elsewhere() -> None:
    there = Described()
    made, service = setup(("q", there))

    def reroute(request: Request, next: Next) -> AsyncIterator[Chunk]:
        return next(request.changed(config={"provider": "q", "model": "x"}))

    made.root.on("llm/stream", reroute)
    assert (await collect(service.stream(request()))).text == "ok"
    assert there.requests[0].model == "x"


@pytest.mark.rule("LS-28", "LS-31")
async def test_a_request_of_the_loop_is_not_to_be_changed() -> None:
    adapter = Described()
    made, service = setup(("p", adapter))

    def change(request: Request, next: Next) -> AsyncIterator[Chunk]:
        return next(request.changed(system="more"))

    made.root.on("llm/stream", change)
    assert (await collect(service.stream(request()))).text == "ok"
    with pytest.raises(InvariantError) as caught:
        await collect(service.stream(request(loop_built=True)))
    assert not service.is_boundary(caught.value)
    assert len(adapter.requests) == 1
    assert not adapter.requests[0].loop_built


# --- replay state


@pytest.mark.rule("LS-29", "CO-15")
async def test_replay_state_reaches_only_the_instance_that_made_it() -> None:
    one, two = Described(), Described()
    made, service = setup(("p", one), ("q", two))
    service.register(made.root, one, ["p2"])

    def said(provider: str) -> Any:
        provenance = {"provider": provider, "model": "m", "replayState": {"x": 1}, "extra": 2}
        return {"role": "assistant", "content": [], "provenance": provenance}

    history = [freeze(m) for m in (user(), said("p"), said("p2"), said("q"), said("gone"))]
    await collect(service.stream(request(*history)))
    assert [m["provenance"].get("replayState") for m in one.requests[0].messages[1:]] == [{"x": 1}] * 2 + [None] * 2
    assert one.requests[0].messages[3]["provenance"] == {"provider": "q", "model": "m"}
    await collect(service.stream(request(*history, user())))
    again = zip(one.requests[1].messages, one.requests[0].messages, strict=False)
    assert all(a is b for a, b in again)  # so that a body costs what is new in it
    plain = request(user())
    await collect(service.stream(plain))
    assert one.requests[2] is plain


# --- failures


@pytest.mark.rule("LS-40", "AL-41")
async def test_adapter_failures_carry_the_mark() -> None:
    own = LlmError("m", "SERVER")
    _, service = setup(("p", Scripted(error=own)))
    answer = await collect(service.stream(request()))
    assert answer.error is own
    assert service.is_boundary(own)
    assert not service.is_boundary(LlmError("m", "SERVER"))
    assert not service.is_boundary(ValueError())


@pytest.mark.rule("LS-40")
async def test_failures_of_listeners_do_not() -> None:
    made, service = setup(("p", Described()))
    own = LlmError("mine", "SERVER")

    async def breaks(request: Request, next: Next) -> AsyncGenerator[Chunk, None]:
        async for chunk in next():
            yield chunk
            raise own

    made.root.on("llm/stream", breaks)
    answer = await collect(service.stream(request()))
    assert answer.error is own
    assert not service.is_boundary(own)


@pytest.mark.rule("LS-40")
async def test_failures_of_a_nested_call_do_not() -> None:
    made, service = setup(("p", Described()), ("q", Scripted(error=LlmError("nested", "SERVER"))))

    async def asks(request: Request, next: Next) -> AsyncGenerator[Chunk, None]:
        if request.provider == "p":
            async with aclosing(service.stream(request.changed(config={"provider": "q", "model": "m"}))) as inner:
                async for _ in inner:
                    pass
        async for chunk in next():
            yield chunk

    made.root.on("llm/stream", asks)
    answer = await collect(service.stream(request()))
    assert answer.error is not None
    assert answer.error.message == "nested"
    assert not service.is_boundary(answer.error)
    alone = await collect(service.stream(request(provider="q")))
    assert alone.error is not None
    assert service.is_boundary(alone.error)


class _Loud(Exception):
    code = "QUOTA"

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.rule("LS-41")
@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (ValueError("odd"), "odd", "UNKNOWN"),
        (ValueError(), "LLM adapter failed", "UNKNOWN"),
        (_Loud(), "LLM adapter failed", "UNKNOWN"),
        (ConfigError("no model here", code="LOCAL_MODEL_FAILED"), "no model here", "LOCAL_MODEL_FAILED"),
        (ExceptionGroup("two", [ValueError("a"), ValueError("b")]), "two [a; b]", "UNKNOWN"),
    ],
)
async def test_foreign_errors_of_adapters(error: Exception, message: str, code: str) -> None:
    _, service = setup(("p", Scripted(error=error)))
    answer = await collect(service.stream(request()))
    assert answer.error is not None
    assert answer.error.failure == {"message": message, "code": code}
    assert answer.error.__cause__ is error
    assert service.is_boundary(answer.error)


@pytest.mark.rule("LS-77")
async def test_a_cancellation_is_not_converted() -> None:
    class Sleeps(Scripted):
        async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
            await trio.sleep_forever()
            yield text_chunks("")[0]

    _, service = setup(("p", Sleeps()))
    with trio.move_on_after(0.05) as scope:
        await collect(service.stream(request()))
    assert scope.cancelled_caught


@pytest.mark.rule("LS-42")
async def test_leaving_early_closes_the_adapter_first() -> None:
    adapter = Scripted(*text_chunks("a"))
    made, service = setup(("p", adapter))

    async def wraps(request: Request, next: Next) -> AsyncGenerator[Chunk, None]:
        async with aclosing(next()) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk

    made.root.on("llm/stream", wraps)
    async with aclosing(service.stream(request())) as chunks:
        await anext(chunks)
        assert adapter.closed == 0
    assert adapter.closed == 1


@pytest.mark.rule("LS-42")
async def test_a_failing_close_masks_nothing() -> None:
    class Bad(Scripted):
        async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
            try:
                yield text_chunks("a")[0]
                raise LlmError("first", "SERVER")
            except GeneratorExit:
                raise ValueError("close failed") from None

    _, service = setup(("p", Bad()))
    assert (await collect(service.stream(request()))).code == "SERVER"
    async with aclosing(service.stream(request())) as chunks:
        await anext(chunks)


@pytest.mark.rule("LS-3")
async def test_debugging_checks_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    _, service = setup(("p", Scripted(*text_chunks("a")[1:])))
    async with aclosing(service.stream(request())) as loose:
        assert len([c async for c in loose]) == 3
    monkeypatch.setenv("DSH_DEBUG", "1")
    with pytest.raises(InvariantError):
        async with aclosing(service.stream(request())) as strict:
            assert [c async for c in strict]
