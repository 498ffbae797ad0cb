"""goose: the database `sessions.db`, and before it a JSONL file for each session beside it.

A message is a row with an array of contents; results of calls come in messages of the user's. One answer may be
several rows in a row, which are put together. A compaction hides what was there, which says nothing here, and adds a
summary and a word of goose's own that the user does not see.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from dsh.core.messages import Block, TokenUsage
from dsh.importing.clean import parsed
from dsh.importing.foreign_db import (
    SETTLED_MS,
    attachment,
    database_source,
    document,
    fields,
    ids,
    known_text,
    opened,
    shown,
)
from dsh.importing.lines import lines
from dsh.importing.model import (
    MAX_LINE,
    Assistant,
    Home,
    Item,
    Result,
    Skipped,
    Source,
    Summary,
    Transcript,
    User,
    call,
    epoch_ms,
    left_out,
    reasoning,
    source_of,
    text,
    usage,
)
from dsh.store.foreign import Foreign

_DATABASE = "sessions.db"
_TABLES = {"sessions": ("id",), "messages": ("session_id", "role", "content_json")}
_ORDER = ("created_timestamp", "id")
_UNTITLED = frozenset({"", "CLI Session", "New Chat", "New session", "ACP Session"})


class Message(NamedTuple):
    where: str
    role: str
    contents: list[dict[str, Any]]
    at: int | None
    metadata: dict[str, Any]

    @property
    def unseen(self) -> bool:
        """Whether the user was not shown it."""
        return self.metadata.get("userVisible") is False


def places(home: Home) -> Iterator[str]:
    root = home.env.get("GOOSE_PATH_ROOT")
    yield os.path.join(root, "data", "sessions") if root else home.data("goose", "sessions")


def sources(place: str) -> Iterator[Source]:
    if os.path.isfile(place):
        found = source_of(place) if place.endswith(".jsonl") else database_source(place)
        if found:
            yield found
        return
    for folder in (place, os.path.join(place, "sessions")):
        if found := database_source(os.path.join(folder, _DATABASE)):
            yield found
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            if name.endswith(".jsonl") and (found := source_of(os.path.join(folder, name))):
                yield found


def transcripts(source: Source) -> Iterator[Transcript]:
    if source.path.endswith(".jsonl"):
        return _from_file(source.path)
    return _from_database(source.path)


# --------------------------------------------------------------------------------------------------------- database


def _from_database(path: str) -> Iterator[Transcript]:
    with opened(path, **_TABLES) as db:
        columns = ("id", "name", "description", "working_dir", "created_at", "updated_at", "provider_name",
                   "model_config_json", "parent_session_id")  # fmt: skip
        rows = list(db.rows("sessions", columns, order=("created_at", "rowid")))
        for session, name, description, folder, created, updated, provider, config, parent in rows:
            if not isinstance(session, str):
                continue
            route = known_text(provider), known_text(fields(config).get("model_name"))
            titles = [title for title in (name, description) if known_text(title).strip() not in _UNTITLED]
            yield Transcript(
                id=session,
                items=_items(_stored(db, session), route),
                cwd=known_text(folder) or None,
                created_at=epoch_ms(created),
                parent=known_text(parent) or None,
                root=_root(db, session),
                title=titles[0] if titles else None,
                stamp=_stamp(db, session, updated),
                touched=epoch_ms(updated),
            )


def _root(db: Foreign, session: str) -> str | None:
    """The id of the first message, which a copy of the session keeps."""
    first = next(db.rows("messages", ("message_id",), where=("session_id", session), order=_ORDER), None)
    return known_text(first[0]) or None if first else None


def _stamp(db: Foreign, session: str, updated: Any) -> str:
    """What changes with any message. A compaction writes all of them anew, with new numbers."""
    where = ("session_id", session)
    last = next(db.rows("messages", ("id",), where=where, order=("id",), last=True), None)
    return f"{updated}:{db.count('messages', where)}:{last}"


def _stored(db: Foreign, session: str) -> Iterator[Message | Skipped]:
    columns = ("id", "role", "content_json", "created_timestamp", "metadata_json")
    for number, role, content, created, metadata in db.rows(
        "messages", columns, where=("session_id", session), order=_ORDER
    ):
        try:
            contents = document(content)
        except ValueError as error:
            yield Skipped(f"message {number}", str(error))
            continue
        yield _checked(f"message {number}", role, contents, created, fields(metadata))


def _checked(where: str, role: Any, contents: Any, created: Any, metadata: Any) -> Message | Skipped:
    if not isinstance(contents, list):
        return Skipped(where, "has no content")
    if role not in ("user", "assistant"):
        return Skipped(where, "is of no known role")
    about = metadata if isinstance(metadata, dict) else {}
    return Message(where, role, [each for each in contents if isinstance(each, dict)], epoch_ms(created), about)


# ------------------------------------------------------------------------------------------------------------ files


def _from_file(path: str) -> Iterator[Transcript]:
    session = os.path.basename(path).removesuffix(".jsonl")
    beside = database_source(os.path.join(os.path.dirname(path), _DATABASE))
    if beside and session in ids(beside.path, beside.stamp, "sessions"):
        return
    head: dict[str, Any] = {}
    with open(path, "rb") as file:
        first = next(lines(file), (0, None))[1]
        if first is not None:
            try:
                found = parsed(first)
            except ValueError:
                found = None
            if isinstance(found, dict) and "role" not in found:
                head = found
    description = known_text(head.get("description")).strip()
    yield Transcript(
        id=session,
        items=_items(_written(path, has_head=bool(head)), ("", "")),
        cwd=known_text(head.get("working_dir")) or None,
        title=description if description not in _UNTITLED else None,
    )


def _written(path: str, *, has_head: bool) -> Iterator[Message | Skipped]:
    with open(path, "rb") as file:
        for count, (number, line) in enumerate(lines(file)):
            if count == 0 and has_head:
                continue
            where = f"line {number}"
            if line is None:
                yield Skipped(where, f"is longer than {MAX_LINE // 2**20} MiB")
                continue
            try:
                found = parsed(line)
            except ValueError as error:
                if line.endswith(b"\n"):  # else it is being written
                    yield Skipped(where, str(error))
                continue
            if not isinstance(found, dict):
                yield Skipped(where, "is no record")
                continue
            yield _checked(where, found.get("role"), found.get("content"), found.get("created"), found.get("metadata"))


# ---------------------------------------------------------------------------------------------------------- records


def _items(messages: Iterator[Message | Skipped], route: tuple[str, str]) -> Iterator[Item]:
    """Records of messages. `route` is the provider and the model of answers that do not name theirs."""
    import time

    group: list[Message] = []  # an answer, or one message of the user's, until it is known what comes next
    prompt = repeated = ""  # what a person said last, and whether a compaction may now repeat it
    summed = False
    for message in messages:
        if isinstance(message, Skipped):
            yield message
            continue
        if summed and message.role == "assistant" and message.unseen:
            yield Summary("\n\n".join(_texts(group[0])), group[0].at)
            group, summed, repeated = [], False, prompt
            continue
        if group and not (message.role == group[0].role == "assistant"):
            yield from _group(group, route, repeated, partial=False)
            prompt, repeated = _prompt(group) or prompt, ""
            group = []
        group.append(message)
        summed = message.role == "user" and message.unseen and bool(_texts(message))
    if group:
        fresh = (group[-1].at or 0) > time.time() * 1000 - SETTLED_MS
        yield from _group(group, route, repeated, partial=fresh)


def _texts(message: Message) -> list[str]:
    return [known_text(each.get("text")) for each in message.contents if each.get("type") == "text"]


def _prompt(group: list[Message]) -> str:
    """What a person said, to know it again when a compaction repeats it."""
    return "\n".join(_texts(group[0])) if group[0].role == "user" else ""


def _group(group: list[Message], route: tuple[str, str], repeated: str, *, partial: bool) -> Iterator[Item]:
    if group[0].role == "user":
        yield from _user(group[0], repeated)
    else:
        yield _answer(group, route, partial=partial)


def _user(message: Message, repeated: str) -> Iterator[Item]:
    blocks: list[Block] = []
    for content in message.contents:
        kind = content.get("type")
        if kind == "toolResponse":
            yield _result(content, message.at)
        elif kind == "text" and known_text(content.get("text")):
            blocks.append(text(content["text"]))
        elif kind == "image":
            blocks.append(_image(content))
    if blocks:
        hidden = message.unseen and message.metadata.get("agentVisible") is not False
        again = repeated != "" and _prompt([message]) == repeated
        yield User(blocks, message.at, human=not hidden and not again)


def _image(content: dict[str, Any]) -> Block:
    return attachment(known_text(content.get("mimeType")) or "image/*", content.get("data"))


def _result(content: dict[str, Any], at: int | None) -> Result:
    id = known_text(content.get("id"))  # noqa: A001 - the format's own name
    given = content.get("toolResult")
    outcome = given if isinstance(given, dict) else {}
    if outcome.get("status") == "error" or "error" in outcome:
        return Result(id, [text(shown(outcome.get("error")))], at, is_error=True)
    value = outcome.get("value")
    failed = isinstance(value, dict) and value.get("isError") is True
    contents = value.get("content") if isinstance(value, dict) else value
    if not isinstance(contents, list):
        return Result(id, [text(shown(contents))], at, is_error=failed)
    items = [each for each in contents if isinstance(each, dict)]
    meant = [each for each in items if _for_model(each)] or items
    return Result(id, [_content(each) for each in meant], at, is_error=failed)


def _for_model(content: dict[str, Any]) -> bool:
    notes = content.get("annotations")
    audience = notes.get("audience") if isinstance(notes, dict) else content.get("audience")
    return not isinstance(audience, list) or "assistant" in audience


def _content(content: dict[str, Any]) -> Block:
    kind = content.get("type")
    if kind == "text":
        return text(shown(content.get("text")))
    if kind == "image":
        return _image(content)
    resource = content.get("resource")
    if isinstance(resource, dict) and known_text(resource.get("text")):
        return text(resource["text"])
    return left_out(known_text(kind) or "content", known_text(content.get("mimeType")))


def _answer(group: list[Message], route: tuple[str, str], *, partial: bool) -> Item:
    blocks: list[Block] = []
    spent: TokenUsage | None = None
    provider, model = route
    for message in group:
        blocks += filter(None, map(_said, message.contents))
        spent = _usage(message.metadata.get("usage")) or spent
        inference = message.metadata.get("inference")
        if isinstance(inference, dict):
            provider = known_text(inference.get("provider")) or provider
            model = known_text(inference.get("resolvedModel")) or known_text(inference.get("model")) or model
    return Assistant(blocks, group[-1].at, provider, model, spent, partial=partial, began=group[0].at)


def _said(content: dict[str, Any]) -> Block | None:
    kind = content.get("type")
    if kind == "text" and known_text(content.get("text")):
        return text(content["text"])
    thought = known_text(content.get("thinking")) or known_text(content.get("text"))
    if kind in ("thinking", "reasoning") and thought:
        return reasoning(thought)
    if kind == "image":
        return _image(content)
    if kind in ("toolRequest", "frontendToolRequest"):
        given = content.get("toolCall")
        asked = given if isinstance(given, dict) else {}
        value = asked["value"] if isinstance(asked.get("value"), dict) else asked
        arguments = value.get("arguments")
        if arguments is None:
            arguments = {} if "error" not in asked else shown(asked["error"])
        return call(known_text(content.get("id")), known_text(value.get("name")) or "unknown", arguments)
    return None


def _usage(spent: Any) -> TokenUsage | None:
    """goose counts what was read from a cache and written to it as input too."""
    if not isinstance(spent, dict):
        return None
    asked, read, write = spent.get("inputTokens"), spent.get("cacheReadTokens"), spent.get("cacheWriteTokens")
    cached = sum(each for each in (read, write) if type(each) is int)
    if type(asked) is int and asked >= cached:
        asked -= cached
    return usage(asked, spent.get("outputTokens"), read, write)
