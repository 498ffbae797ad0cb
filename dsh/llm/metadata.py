"""Checks of what adapters say about themselves and their models (LS-20, LS-22 to LS-24)."""

from __future__ import annotations

from typing import Any

from dsh.core.lossless import thaw
from dsh.core.messages import CallConfig
from dsh.llm.adapter import ModelInfo, ProviderInfo, ResolvedModel
from dsh.llm.failure import LlmError


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def checked_provider(route: str, info: ProviderInfo) -> ProviderInfo:
    if info.get("id") != route or not _text(info.get("name")):
        raise LlmError(f"the adapter of {route!r} describes another provider", "INVALID_ADAPTER")
    return {"id": info["id"], "name": info["name"]}


def checked_models(route: str, models: list[ModelInfo]) -> list[ModelInfo]:
    """A detached copy, or INVALID_CATALOG (LS-22)."""
    seen: set[str] = set()
    for model in models:
        fits = (
            model.get("provider") == route
            and _text(model.get("id"))
            and _text(model.get("name"))
            and isinstance(model.get("description", ""), str)
        )
        if not fits or model["id"] in seen:
            raise LlmError(f"the model list of {route!r} is malformed at {model.get('id')!r}", "INVALID_CATALOG")
        seen.add(model["id"])
    copy: list[ModelInfo] = thaw(list(models))
    return copy


def checked_model(route: str, wanted: str, model: ResolvedModel) -> ResolvedModel:
    """A detached copy, or the code of the part that is malformed (LS-23)."""
    about = f"what {route!r} says of model {wanted!r}"
    if model.get("provider") != route or model.get("id") != wanted or not _text(model.get("name")):
        raise LlmError(f"{about} is about another model", "INVALID_MODEL_INFO")
    if "context" in model:
        window = model["context"].get("contextWindow")
        if type(window) is not int or window <= 0:
            raise LlmError(f"{about} has the context window {window!r}", "INVALID_MODEL_CONTEXT")
    if "reasoning" in model:
        efforts = model["reasoning"].get("efforts") or []
        ids = [e.get("id") for e in efforts]
        default = model["reasoning"].get("defaultEffort")
        named = all(_text(e.get("id")) and _text(e.get("name")) for e in efforts)
        fits = ids and named and len(set(ids)) == len(ids)
        if not fits or (default is not None and default not in ids):
            raise LlmError(f"{about} has malformed reasoning efforts", "INVALID_MODEL_REASONING")
    copy: ResolvedModel = thaw(dict(model))
    return copy


def with_effort(config: CallConfig, model: ResolvedModel) -> CallConfig:
    """The effective configuration: an explicit effort is checked, else the default taken (LS-24)."""
    reasoning = model.get("reasoning")
    asked = config.get("reasoningEffort")
    if asked is None:
        default = reasoning.get("defaultEffort") if reasoning else None
        return config if default is None else CallConfig(**{**config, "reasoningEffort": default})
    known = [e["id"] for e in reasoning["efforts"]] if reasoning else []
    if asked not in known:
        raise LlmError(
            f"{config['provider']}/{config['model']} has no reasoning effort {asked!r}",
            "UNSUPPORTED_REASONING_EFFORT",
            hint=f"known efforts: {', '.join(known)}" if known else "leave the effort out",
        )
    return config
