"""How a call is shown to people: a pending view from its arguments, a completed one from its logged result.

Both are computed again on replay, from the log alone, so they are pure and never fail: a presenter that
cannot cope with old data gives way to the generic card (TL-71, TL-80). `meta` is the only carrier of facts
that were known when the call ran (TL-82).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NotRequired, TypedDict

from dsh.core.lossless import JSON
from dsh.core.messages import Block
from dsh.tools.definition import ToolDefinition

Kind = Literal["read", "edit", "delete", "move", "search", "execute", "fetch", "other"]


class Location(TypedDict):
    """`line` is 1-based."""

    path: str
    line: NotRequired[int]


class Diff(TypedDict):
    """`oldText` None means a new file or no image from before."""

    path: str
    oldText: str | None
    newText: str


class CallView(TypedDict):
    """A pending call: `card` is generic, terminal (title = command) or diff."""

    card: Literal["generic", "terminal", "diff"]
    title: str
    kind: NotRequired[Kind]
    rawInput: NotRequired[JSON]
    content: NotRequired[list[Block]]
    locations: NotRequired[list[Location]]
    description: NotRequired[str]
    cwd: NotRequired[str]
    diffs: NotRequired[list[Diff]]


class ResultView(TypedDict):
    """A completed call; `exitCode` and `signal` of a terminal card exclude each other."""

    card: Literal["generic", "terminal", "diff"]
    title: NotRequired[str]
    content: NotRequired[list[Block]]
    output: NotRequired[str]
    exitCode: NotRequired[int]
    signal: NotRequired[str]
    diffs: NotRequired[list[Diff]]


def call_view(definition: ToolDefinition | None, name: str, args: JSON) -> CallView:
    """The pending card; without a presenter, the tool's name and its raw arguments (TL-80)."""
    view = _presented(definition.present_call if definition else None, args)
    return view if view is not None else {"card": "generic", "title": name, "kind": "other", "rawInput": args}


def result_view(
    definition: ToolDefinition | None, args: JSON, content: list[Block], is_error: bool, meta: JSON = None
) -> ResultView:
    """The completed card, which takes the pending one's place (TL-80, TL-81)."""
    result: dict[str, JSON] = {"content": content, "isError": is_error}
    if meta is not None:
        result["meta"] = meta
    view = _presented(definition.present_result if definition else None, args, result)
    return view if view is not None else {"card": "generic", "content": content}


def _presented(presenter: Callable[..., Mapping[str, Any] | None] | None, *args: Any) -> Any:
    if presenter is None:
        return None
    try:
        return presenter(*args)
    except Exception:  # noqa: BLE001 - showing an old log never fails (TL-71)
        return None
