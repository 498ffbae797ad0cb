"""What a provider of titles is, what it is asked, and what is checked of what it says (ST-30, ST-35)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired, Protocol, TypedDict

from dsh.core.errors import DshError
from dsh.core.lossless import mend_surrogates
from dsh.core.secrets import mask
from dsh.kernel.signal import Signal
from dsh.session.session import Session
from dsh.session.titles import Eligible, cut, normalised

AUTOMATIC = ("first-message", "all-user-messages")


class TitleError(DshError):
    """No title was made: TITLE_PROVIDER_EXISTS, TITLE_PROVIDER_INVALID, TITLE_PROVIDER_REMOVED, TITLE_RESULT_INVALID,
    TITLE_EMPTY, TITLE_INPUT_TOO_LARGE, TITLE_NO_ROUTE, TITLE_SUPERSEDED, SESSION_TITLE_TIMEOUT, ABORTED."""

    code = "TITLE_RESULT_INVALID"


class Route(TypedDict):
    provider: str
    model: str


class TitleResult(TypedDict):
    """What a provider has made: `messageSeqs` are those of the messages it was made from, ascending; `model` is what
    was asked, if one was."""

    title: str
    messageSeqs: Sequence[int]
    model: NotRequired[Route]


class TitleRequest(NamedTuple):
    """One call of a provider: every message that counts up to the moment it is for, the route of the session's main
    request if there was one, and what fires when the title is not wanted any more.

    `log(data)` writes a `session/title-llm-request` in its turn among the session's title events (ST-51, ST-64); it
    raises TitleError once the title is not wanted.
    """

    session: Session
    messages: tuple[Eligible, ...]
    route: Route | None
    cancel: Signal
    log: Callable[[Mapping[str, Any]], Awaitable[Any]]


class TitleProvider(Protocol):
    """`automatic` says which prompts it is asked for unasked. `generate` runs in a scope that `request.cancel` ends."""

    @property
    def id(self) -> str: ...

    @property
    def automatic(self) -> Literal["first-message", "all-user-messages"]: ...

    async def generate(self, request: TitleRequest) -> TitleResult: ...


def check_provider(provider: Any) -> None:
    """TITLE_PROVIDER_INVALID unless it has what a provider has."""
    id_, automatic = getattr(provider, "id", None), getattr(provider, "automatic", None)
    fault = None
    if not isinstance(id_, str) or not id_:
        fault = "has no id"
    elif automatic not in AUTOMATIC:
        fault = f"is automatic for {automatic!r}, not {' or '.join(AUTOMATIC)}"
    elif not callable(getattr(provider, "generate", None)):
        fault = "cannot generate"
    if fault is not None:
        raise TitleError(f"a title provider {fault}", code="TITLE_PROVIDER_INVALID")


def checked(result: Any, provider: TitleProvider, messages: Sequence[Eligible], max_bytes: int) -> dict[str, Any]:
    """The data of the event that a provider's result becomes; TITLE_RESULT_INVALID, TITLE_EMPTY."""
    if not isinstance(result, Mapping) or not isinstance(result.get("title"), str):
        raise _wrong(provider, "made no title that is a text")
    seqs = result.get("messageSeqs")
    if not isinstance(seqs, (list, tuple)) or not seqs or not all(type(s) is int for s in seqs):
        raise _wrong(provider, "names no messages")
    known = {message.seq for message in messages}
    if sorted(set(seqs)) != list(seqs) or not known.issuperset(seqs):
        raise _wrong(provider, "names messages that it was not given, or not in order")
    source: dict[str, Any] = {"kind": "provider", "provider": provider.id}
    if (model := result.get("model")) is not None:
        route = [model.get(k) for k in ("provider", "model")] if isinstance(model, Mapping) else []
        if not route or not all(isinstance(v, str) and v for v in route):
            raise _wrong(provider, "names no provider and model that it asked")
        source["model"] = dict(zip(("provider", "model"), route, strict=True))
    title = cut(mask(normalised(mend_surrogates(result["title"]))), max_bytes)
    if not title:
        raise TitleError(f"the title provider {provider.id!r} made an empty title", code="TITLE_EMPTY")
    return {"title": title, "messageSeqs": list(seqs), "source": source}


def _wrong(provider: TitleProvider, what: str) -> TitleError:
    return TitleError(f"the title provider {provider.id!r} {what}", code="TITLE_RESULT_INVALID")
