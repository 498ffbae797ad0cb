"""One step: a model request built from logged facts only, its stream logged as it arrives, and the tools it asked for.

Order is the contract (AL-30 to AL-47): steering, prompt, prefix, pre-step, boundary snapshot, `step/start`, call
config, header, flush, stream, assistant message, tool batch, steering, post-step, `step/end`.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, NamedTuple

from dsh.agent.agent import Agent
from dsh.agent.batch import run_batch
from dsh.agent.decisions import context_data, prompt_data
from dsh.agent.prompt import AssembleContext, Assembly, Prompt
from dsh.core.errors import ConfigError, DshError, render_chain
from dsh.core.lossless import FrozenList, freeze, mend_surrogates, same
from dsh.core.messages import CallConfig, EpochHeader, LlmFailure, Message, Request, same_header
from dsh.kernel.signal import Signal
from dsh.llm.assembler import BlockAssembler
from dsh.llm.failure import LlmError
from dsh.llm.service import LlmService, PreparedCall
from dsh.session.session import APPEND
from dsh.tools.registry import Tools


class Interrupted(Exception):
    """The turn's signal has fired; leaves the normal path at a checkpoint (AL-21)."""


class ModelFailure(Exception):
    """A failure of the model request itself, to be offered to recovery (AL-41)."""

    def __init__(self, error: BaseException, failure: LlmFailure) -> None:
        super().__init__(failure["message"])
        self.error = error
        self.failure = failure


class StepResult(NamedTuple):
    had_calls: bool
    steered: bool
    max_tokens: bool


class Loop:
    """What one loop instance remembers between steps: its services, the frozen prefix, whether it logged a header."""

    def __init__(self, llm: LlmService, prompt: Prompt, tools: Tools) -> None:
        self.llm = llm
        self.prompt = prompt
        self.tools = tools
        self.step = 0
        self.prefix: FrozenList | None = None
        self.header_logged = False
        self.selected = False  # the agent's model was chosen anew, and no header says so yet

    @staticmethod
    def check(signal: Signal) -> None:
        if signal.cancelled:
            raise Interrupted


async def run_step(agent: Agent, loop: Loop, turn: int, signal: Signal) -> StepResult:
    log, hooks = agent.session, agent.ctx.host.hooks
    loop.step += 1
    step = loop.step
    _drain_steering(agent, turn)
    loop.selected |= agent.apply_selection()
    assembly = loop.prompt.assemble(AssembleContext(agent, signal))
    system = assembly.render()
    loop.check(signal)
    if loop.prefix is None:
        loop.prefix = await _compose_prefix(agent, loop, signal)
    await hooks.serial("agent/pre-step", agent, agent, turn, step, signal)
    loop.check(signal)
    boundary = log.derive_messages()
    log.append("step/start", {"turn": turn, "step": step})
    loop.check(signal)

    prepared, config = await _prepare(agent, loop, turn, signal)
    header = _log_header(agent, loop, config, system, assembly)
    loop.selected = False
    await log.flush()
    loop.check(signal)
    request = Request(
        config=header["config"],
        messages=(*header.get("messagePrefix", ()), *boundary),
        system=header.get("system"),
        tools=tuple(header.get("tools", ())),
        session_id=log.id,
        loop_built=True,
    )
    assembler, chunk_seqs = await _stream(agent, loop, turn, request, prepared, signal)

    message = await _step_result(agent, loop, turn, config, assembler, chunk_seqs, signal)
    max_tokens = assembler.finish["kind"] == "max-tokens"
    calls = [b for b in message["content"] if b["type"] == "tool-call"]
    if calls:
        await run_batch(agent, loop.tools, turn, step, calls, signal)
    steered = _drain_steering(agent, turn)
    await hooks.serial("agent/post-step", agent, agent, turn, step, signal)
    loop.check(signal)
    log.append("step/end", {"turn": turn, "step": step})
    return StepResult(bool(calls), steered, max_tokens)


def _drain_steering(agent: Agent, turn: int) -> bool:
    agent.collect()
    drained = False
    while (item := agent.inbox.next_steering()) is not None:
        drained = True
        data = {**prompt_data(item.content, item.source, item.contexts, item.meta), "turn": turn}
        agent.session.append("steering/message", data, surface=APPEND, takes=item.row)
        for context in item.contexts:
            if context.get("placement") != "prompt-prefix":
                agent.session.append("user/message", context_data(context), surface=APPEND)
    return drained


async def _compose_prefix(agent: Agent, loop: Loop, signal: Signal) -> FrozenList:
    """AL-32: once per loop instance; an interrupted composition is thrown away."""

    async def default(*_: Any) -> list[Message]:
        return []

    prefix = await agent.ctx.host.hooks.waterfall("agent/session-prefix", agent, default, agent, [], signal)
    loop.check(signal)
    frozen: FrozenList = freeze(list(prefix))
    return frozen


async def _prepare(agent: Agent, loop: Loop, turn: int, signal: Signal) -> tuple[PreparedCall | None, CallConfig]:
    """AL-35, AL-36: the route, effort and sampling of this request, and the adapter that will serve it."""
    seed = _config_seed(agent, loop)

    async def default(*args: Any) -> CallConfig:
        chosen: CallConfig = args[3]
        return chosen

    config: CallConfig = await agent.ctx.host.hooks.waterfall(
        "agent/request", agent, default, agent, turn, loop.step, seed, signal
    )
    loop.check(signal)
    if not config.get("provider") or not config.get("model"):
        raise ConfigError(f"agent {agent.id} has no provider and model", code="NO_MODEL")
    config = freeze(dict(config))
    try:
        prepared = await loop.llm.prepare(config)
    except DshError as error:
        if error.code != "NO_ADAPTER":  # a stream listener may serve the route; dispatch decides
            raise
        return None, config
    loop.check(signal)
    return prepared, prepared.config


def _config_seed(agent: Agent, loop: Loop) -> CallConfig:
    logged = agent.session.header_in_force()
    seed: dict[str, Any] = {k: v for k, v in agent.options.items() if k in _OPTION_FIELDS and v is not None}
    if loop.header_logged and logged is not None:
        if not loop.selected:
            return logged["config"]
        kept = {k: v for k, v in logged["config"].items() if k not in _ROUTE_FIELDS}
        seed = {**kept, **{k: seed[k] for k in _ROUTE_FIELDS if k in seed}}
    elif logged is not None and "reasoningEffort" not in seed and not loop.selected:
        before = logged["config"]
        same_route = all(before[f] == seed.get(f) for f in ("provider", "model"))
        if same_route and "reasoningEffort" in before:
            seed["reasoningEffort"] = before["reasoningEffort"]
    frozen: CallConfig = freeze(seed)
    return frozen


_ROUTE_FIELDS = ("provider", "model", "reasoningEffort")
_OPTION_FIELDS = (*_ROUTE_FIELDS, "temperature", "maxTokens", "stop")


def _log_header(agent: Agent, loop: Loop, config: CallConfig, system: str, assembly: Assembly) -> EpochHeader:
    """AL-37: log the header when owed, canonical (SE-30), and return the one in force."""
    fresh: dict[str, Any] = {"config": config}
    if system:
        fresh["system"] = system
    if assembly.tools:
        fresh["tools"] = assembly.tools
    if loop.prefix:
        fresh["messagePrefix"] = loop.prefix
    header: EpochHeader = freeze(fresh)
    logged = agent.session.header_in_force()
    if not loop.header_logged:
        reason = "initial" if logged is None else "resume"
    elif logged is not None and same_header(logged, header):
        return logged
    else:
        reason = "change"
    agent.session.append("request/header", {"header": header, "reason": reason})
    loop.header_logged = True
    return header


async def _stream(
    agent: Agent, loop: Loop, turn: int, request: Request, prepared: PreparedCall | None, signal: Signal
) -> tuple[BlockAssembler, list[int]]:
    """AL-39 to AL-42: log each chunk as it arrives, then feed it to the assembler."""
    assembler, seqs = BlockAssembler(), []
    try:
        async with aclosing(loop.llm.stream(request, prepared)) as chunks:
            async for chunk in chunks:
                loop.check(signal)
                data = {"turn": turn, "step": loop.step, "chunk": chunk}
                seqs.append(agent.session.append("assistant/chunk", data)["seq"])
                assembler.feed(chunk)
    except LlmError as error:
        if loop.llm.is_boundary(error):
            raise ModelFailure(error, _failure_of(error)) from error
        raise
    loop.check(signal)
    kind = assembler.finish["kind"]
    if kind in ("error", "aborted"):
        unnamed = LlmFailure(message="the model call failed", code="ABORTED" if kind == "aborted" else "UNKNOWN")
        failure = assembler.finish.get("failure") or unnamed
        raise ModelFailure(LlmError.of(failure), failure)
    return assembler, seqs


def _failure_of(error: LlmError) -> LlmFailure:
    """The facts of a failure, with its whole cause chain as the message (LS-43, AL-49)."""
    rendered: LlmFailure = freeze({**error.failure, "message": mend_surrogates(render_chain(error))})
    return rendered


async def _step_result(
    agent: Agent,
    loop: Loop,
    turn: int,
    config: CallConfig,
    assembler: BlockAssembler,
    chunk_seqs: list[int],
    signal: Signal,
) -> Message:
    """AL-43 to AL-46: let listeners rewrite the message, then log it; it is logged (empty) also when they fail."""
    drop_calls = assembler.finish["kind"] == "max-tokens"
    assembled = freeze(_without_calls(assembler.blocks()) if drop_calls else assembler.blocks())
    provenance: dict[str, Any] = {"provider": config["provider"], "model": config["model"]}

    async def default(*args: Any) -> Message:
        message: Message = args[3]
        return message

    def log(content: Any, replay: bool) -> None:
        data: dict[str, Any] = {"turn": turn, "step": loop.step, "content": content, "provenance": dict(provenance)}
        if replay and assembler.replay_state is not None:
            data["provenance"]["replayState"] = assembler.replay_state
        if assembler.usage is not None:
            data["usage"] = assembler.usage
        agent.session.append("assistant/message", data, surface=APPEND, sources=chunk_seqs)

    message: Message = freeze({"role": "assistant", "content": assembled, "provenance": provenance})
    try:
        final: Message = await agent.ctx.host.hooks.waterfall(
            "agent/step-result", agent, default, agent, turn, loop.step, message, signal
        )
        loop.check(signal)
        content = freeze(_without_calls(final["content"]) if drop_calls else final["content"])
    except BaseException:
        log([], replay=False)
        raise
    log(content, replay=same(content, assembled))
    return {"role": "assistant", "content": content}


def _without_calls(blocks: Any) -> list[Any]:
    return [b for b in blocks if b["type"] != "tool-call"]
