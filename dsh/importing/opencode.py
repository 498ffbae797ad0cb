"""opencode: the database `opencode.db`, and before it a file for each session, message and part below `storage`.

All forms hold the same records. A message has a role and parts; an answer's parts are what the model said, the calls
with what came of them, and marks where a request began and ended. Each new form took over the sessions of the one
before and left its files, so a session is read from the newest form that has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from dsh.core.messages import Block, TokenUsage
from dsh.importing.clean import parsed
from dsh.importing.foreign_db import (
    SETTLED_MS,
    attachment,
    database_source,
    document,
    ids,
    known_text,
    opened,
    shown,
)
from dsh.importing.model import (
    MAX_LINE,
    MORE,
    Assistant,
    End,
    Home,
    Item,
    ReadError,
    Result,
    Skipped,
    Source,
    Summary,
    Transcript,
    User,
    call,
    epoch_ms,
    reasoning,
    source_of,
    text,
    usage,
)
from dsh.store.foreign import Foreign

_UNTITLED = r"(?i)(new|child) session - \d{4}-"
_ENDS = {"MessageAbortedError": "aborted", "MessageOutputLengthError": "max-tokens"}

_TABLES = {"session": ("id",), "message": ("id", "session_id", "data"), "part": ("id", "message_id", "data")}

# A message as it was stored: its name, its fields, and its parts; or why it cannot be read.
Message = tuple[str, dict[str, Any], list[dict[str, Any]]] | Skipped


def places(home: Home) -> Iterator[str]:
    yield home.data("opencode")
    named = home.env.get("OPENCODE_DB", "")
    if named and named != ":memory:":
        yield os.path.join(home.data("opencode"), named)


def sources(place: str) -> Iterator[Source]:
    if os.path.isfile(place):
        found = _session_file(place) if place.endswith(".json") else database_source(place)
        if found:
            yield found
        return
    for name in _names(place):
        if name.startswith("opencode") and name.endswith(".db") and (found := database_source(f"{place}/{name}")):
            yield found
    storages = [os.path.join(place, "storage"), place]
    for storage in storages:
        for project in _names(os.path.join(storage, "session")):
            yield from _session_files(os.path.join(storage, "session", project))
    for project in _names(os.path.join(place, "project")):
        yield from _session_files(os.path.join(place, "project", project, "storage", "session", "info"))


def transcripts(source: Source) -> Iterator[Transcript]:
    if source.path.endswith(".json"):
        return _from_files(source.path)
    return _from_database(source.path)


# --------------------------------------------------------------------------------------------------------- database


def _from_database(path: str) -> Iterator[Transcript]:
    with opened(path, **_TABLES) as db:
        columns = ("id", "parent_id", "directory", "title", "time_created", "time_updated")
        rows = list(db.rows("session", columns, order=("time_created", "id")))
        for session, parent, directory, title, created, updated in rows:
            if not isinstance(session, str):
                continue
            stamp, touched = _latest(db, session, updated)
            yield Transcript(
                id=session,
                items=_items(_stored(db, session), touched),
                cwd=known_text(directory) or None,
                created_at=epoch_ms(created),
                parent=known_text(parent) or None,
                root=_root(db, session),
                title=_title(title),
                stamp=stamp,
                touched=touched,
            )


def _root(db: Foreign, session: str) -> str | None:
    """The time of the first message, to the millisecond: all that a fork's copy of it keeps."""
    order = ("time_created", "id")
    first = next(db.rows("message", ("time_created",), where=("session_id", session), order=order), None)
    return str(first[0]) if first and type(first[0]) is int else None


def _latest(db: Foreign, session: str, updated: Any) -> tuple[str, int | None]:
    """What changes with any record, since they are only added and only the last message still changes; and when one
    did."""
    where = ("session_id", session)
    last = next(db.rows("message", ("id", "time_updated"), where=where, order=("time_created", "id"), last=True), None)
    ends = [updated]
    if last is not None:
        parts = [at for (at,) in db.rows("part", ("time_updated",), where=("message_id", last[0])) if type(at) is int]
        ends += [last[1], max(parts, default=None)]
    times = [at for at in map(epoch_ms, ends) if at is not None]
    return f"{ends}:{db.count('message', where)}:{last and last[0]}", max(times, default=None)


def _stored(db: Foreign, session: str) -> Iterator[Message]:
    order = ("time_created", "id")
    for message, data in db.rows("message", ("id", "data"), where=("session_id", session), order=order):
        name = f"message {message}"
        try:
            info = document(data)
        except ValueError as error:
            yield Skipped(name, str(error))
            continue
        parts: list[dict[str, Any]] = []
        for part_id, part_data in db.rows("part", ("id", "data"), where=("message_id", message), order=("id",)):
            try:
                part = document(part_data)
            except ValueError as error:
                yield Skipped(f"part {part_id}", str(error))
                continue
            if isinstance(part, dict):
                parts.append(part)
        yield (name, info, parts) if isinstance(info, dict) else Skipped(name, "is no record")


# ------------------------------------------------------------------------------------------------------------ files


def _session_files(folder: str) -> Iterator[Source]:
    for name in _names(folder):
        if name.endswith(".json") and (found := _session_file(os.path.join(folder, name))):
            yield found


def _session_file(path: str) -> Source | None:
    """A session's file; its stamp changes with the session's messages and parts, of which the newest may be written."""
    found = source_of(path)
    if found is None:
        return None
    messages, parts = _folders(path)
    marks = [found.stamp]
    for name in [messages, *_newest(messages, parts)]:
        try:
            state = os.stat(name)
        except (OSError, ValueError):
            continue
        marks.append(f"{state.st_size}:{state.st_mtime_ns}")
        found = found._replace(modified=max(found.modified, state.st_mtime), size=found.size + state.st_size)
    return found._replace(stamp="+".join(marks))


def _newest(messages: str, parts: str) -> Iterator[str]:
    names = _names(messages)
    if names:
        yield os.path.join(messages, names[-1])
        folder = os.path.join(parts, names[-1].removesuffix(".json"))
        yield folder
        yield from (os.path.join(folder, name) for name in _names(folder))


def _folders(path: str) -> tuple[str, str]:
    """Where the messages of a session are, and the folder of the parts of each of its messages."""
    session = os.path.basename(path).removesuffix(".json")
    folder = os.path.dirname(path)
    if os.path.basename(folder) == "info":
        storage = os.path.dirname(folder)
        return os.path.join(storage, "message", session), os.path.join(storage, "part", session)
    storage = os.path.dirname(os.path.dirname(folder))
    return os.path.join(storage, "message", session), os.path.join(storage, "part")


def _from_files(path: str) -> Iterator[Transcript]:
    try:
        info = _file(path)
    except ValueError as error:
        raise ReadError(f"{error}") from None
    if not isinstance(info, dict):
        raise ReadError("is no session of opencode")
    session = known_text(info.get("id")) or os.path.basename(path).removesuffix(".json")
    if _taken_over(path, session):
        return
    times = info["time"] if isinstance(info.get("time"), dict) else {}
    directory = info.get("directory")
    first, folder = _first(path)
    yield Transcript(
        id=session,
        items=_items(_written(path), times.get("updated")),
        cwd=directory if isinstance(directory, str) else folder,
        created_at=epoch_ms(times.get("created")),
        parent=known_text(info.get("parentID")) or None,
        root=first,
        title=_title(info.get("title")),
    )


def _written(path: str) -> Iterator[Message]:
    messages, all_parts = _folders(path)
    for name in _names(messages):
        if not name.endswith(".json"):
            continue
        message = name.removesuffix(".json")
        try:
            info = _file(os.path.join(messages, name))
        except ValueError as error:
            yield Skipped(f"message {message}", str(error))
            continue
        parts: list[dict[str, Any]] = []
        for part_name in _names(os.path.join(all_parts, message)):
            try:
                part = _file(os.path.join(all_parts, message, part_name))
            except ValueError as error:
                yield Skipped(f"part {part_name.removesuffix('.json')}", str(error))
                continue
            if isinstance(part, dict):
                parts.append(part)
        where = f"message {message}"
        yield (where, info, parts) if isinstance(info, dict) else Skipped(where, "is no record")


def _first(path: str) -> tuple[str | None, str | None]:
    """The time of a session's first message, and the folder of its first answer, which some sessions do not tell."""
    messages, _ = _folders(path)
    created: str | None = None
    for name in _names(messages)[:4]:
        try:
            info = _file(os.path.join(messages, name))
        except ValueError:
            continue
        if not isinstance(info, dict):
            continue
        at = _times(info).get("created")
        created = created or (str(at) if type(at) is int else None)
        where = info.get("path")
        if isinstance(where, dict) and isinstance(where.get("cwd"), str):
            return created, str(where["cwd"])
    return created, None


def _taken_over(path: str, session: str) -> bool:
    """Whether a newer form of the store has the session too: an upgrade copies sessions and leaves the old files."""
    storage = os.path.dirname(os.path.dirname(os.path.dirname(path)))
    folders = [storage, os.path.dirname(storage)]
    if os.path.basename(os.path.dirname(path)) == "info":
        folders.append(os.path.dirname(os.path.dirname(os.path.dirname(storage))))
        newer = os.path.join(folders[-1], "storage", "session")
        if any(os.path.isfile(os.path.join(newer, project, f"{session}.json")) for project in _names(newer)):
            return True
    for folder in folders:
        for name in _names(folder):
            if name.startswith("opencode") and name.endswith(".db"):
                found = database_source(os.path.join(folder, name))
                if found and session in ids(found.path, found.stamp, "session"):
                    return True
    return False


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _file(path: str) -> Any:
    """The JSON value in a file. ValueError says why there is none."""
    try:
        if os.path.getsize(path) > MAX_LINE:
            raise ValueError(f"is longer than {MAX_LINE // 2**20} MiB")
        with open(path, "rb") as file:
            return parsed(file.read())
    except OSError as error:
        raise ValueError(error.strerror or "cannot be read") from None


# ---------------------------------------------------------------------------------------------------------- records


def _title(value: Any) -> str | None:
    if not isinstance(value, str) or re.match(_UNTITLED, value):
        return None
    return value


def _items(messages: Iterator[Message], updated: Any) -> Iterator[Item]:
    """Records of messages; the last one, as long as it is not complete, may still be written."""
    import time

    touched = epoch_ms(updated)
    fresh = touched is None or touched > time.time() * 1000 - SETTLED_MS
    held: Message | None = None
    asked = False
    for message in messages:
        if held is not None:
            yield from _message(held, partial=False, asked=asked)
            asked = _asks_for_summary(held)
        held = message
    if held is not None:
        yield from _message(held, partial=fresh, asked=asked)


def _asks_for_summary(message: Message) -> bool:
    """Whether a person asked for a compaction; else it came in the middle of a turn, which then goes on."""
    parts = [] if isinstance(message, Skipped) else message[2]
    return any(part.get("type") == "compaction" and not part.get("auto") for part in parts)


def _message(message: Message, *, partial: bool, asked: bool) -> Iterator[Item]:
    if isinstance(message, Skipped):
        yield message
        return
    where, info, parts = message
    role = info.get("role")
    if role == "user":
        yield from _user(info, parts)
    elif role == "assistant":
        yield from _assistant(info, parts, partial=partial, asked=asked)
    else:
        yield Skipped(where, "is of no known role")


def _times(value: dict[str, Any]) -> dict[str, Any]:
    found = value.get("time")
    return found if isinstance(found, dict) else {}


def _user(info: dict[str, Any], parts: list[dict[str, Any]]) -> Iterator[Item]:
    said: list[Block] = []
    context: list[Block] = []
    for part in parts:
        kind = part.get("type")
        if kind == "text" and known_text(part.get("text")) and not part.get("ignored"):
            (context if part.get("synthetic") else said).append(text(part["text"]))
        elif kind == "subtask":
            said.append(text(known_text(part.get("prompt")) or known_text(part.get("description"))))
        elif kind == "file" and not _told_as_text(part):
            said.append(_file_mark(part))
    at = epoch_ms(_times(info).get("created"))
    if said:
        yield User(said, at)
    if context:
        yield User(context, at, human=False)


def _told_as_text(part: dict[str, Any]) -> bool:
    """Whether it is a file or folder whose text stands in a part of its own."""
    mime = known_text(part.get("mime"))
    return known_text(part.get("url")).startswith("file:") and (mime.startswith("text/") or "directory" in mime)


def _file_mark(part: dict[str, Any]) -> Block:
    url = known_text(part.get("url"))
    return attachment(part.get("mime"), url.partition(",")[2] if url.startswith("data:") else "")


def _assistant(info: dict[str, Any], parts: list[dict[str, Any]], *, partial: bool, asked: bool) -> Iterator[Item]:
    times = _times(info)
    created, completed = epoch_ms(times.get("created")), epoch_ms(times.get("completed"))
    error = info["error"] if isinstance(info.get("error"), dict) else None
    partial = partial and completed is None and error is None
    requests = list(_requests(parts))
    summary = info.get("summary") is True and error is None and not partial
    for number, request in enumerate(requests):
        last = number == len(requests) - 1
        spent = next((part.get("tokens") for part in request if part.get("type") == "step-finish"), None)
        if spent is None and len(requests) == 1:
            spent = info.get("tokens")
        blocks, results = _answer(request)
        told = "\n\n".join(block["text"] for block in blocks if block["type"] == "text")
        whole = summary and last and told != ""
        at = _said_at(request) or completed or created
        goes_on = whole or (last and error is not None)
        too_long = last and info.get("finish") == "length"
        yield Assistant(
            blocks=[] if whole else blocks,
            at=at,
            provider=known_text(info.get("providerID")),
            model=known_text(info.get("modelID")),
            usage=_usage(spent),
            ends=MORE if goes_on else "max-tokens" if too_long else None,
            partial=partial and last,
            began=created if number == 0 else None,
        )
        if whole:
            yield Summary(told, at)
            if asked:
                yield End("completed", at)
        else:
            yield from results
    if error is not None:
        kind = _ENDS.get(known_text(error.get("name")), "error")
        yield End(kind, completed or created, _reason(error) if kind == "error" else "")


def _requests(parts: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The parts of each request to the model; old messages hold several."""
    request: list[dict[str, Any]] = []
    for part in parts:
        if part.get("type") == "step-start" and request:
            yield request
            request = []
        request.append(part)
    yield request


def _answer(parts: list[dict[str, Any]]) -> tuple[list[Block], list[Result]]:
    blocks: list[Block] = []
    results: list[Result] = []
    for part in parts:
        kind, said = part.get("type"), part.get("text")
        if kind == "text" and known_text(said) and not part.get("ignored"):
            blocks.append(text(known_text(said)))
        elif kind == "reasoning" and known_text(said):
            blocks.append(reasoning(known_text(said)))
        elif kind == "file":
            blocks.append(_file_mark(part))
        elif kind == "tool":
            state = part["state"] if isinstance(part.get("state"), dict) else {}
            name = known_text(part.get("callID")) or known_text(part.get("id"))
            arguments = state.get("input")
            if not isinstance(arguments, dict) or (not arguments and state.get("raw")):
                arguments = known_text(state.get("raw")) or shown(arguments) or "{}"
            blocks.append(call(name, known_text(part.get("tool")) or "unknown", arguments))
            results += _outcome(name, state)
    return blocks, results


def _outcome(call_id: str, state: dict[str, Any]) -> Iterator[Result]:
    at = epoch_ms(_times(state).get("end"))
    if state.get("status") == "error":
        yield Result(call_id, [text(shown(state.get("error")))], at, is_error=True)
    elif state.get("status") == "completed":
        attached = state.get("attachments")
        files = [_file_mark(each) for each in attached if isinstance(each, dict)] if isinstance(attached, list) else []
        yield Result(call_id, [text(shown(state.get("output"))), *files], at)


def _said_at(parts: Iterable[dict[str, Any]]) -> int | None:
    """When the model had said it: the calls begin to run then."""
    ends = [epoch_ms(_times(part).get("end")) for part in parts if part.get("type") in ("text", "reasoning")]
    states = [part["state"] for part in parts if part.get("type") == "tool" and isinstance(part.get("state"), dict)]
    starts = [epoch_ms(_times(state).get("start")) for state in states]
    known = [at for at in ends if at is not None]
    begun = [at for at in starts if at is not None]
    if known and begun:
        return min(max(known), max(begun))
    return max(known or begun, default=None)


def _usage(tokens: Any) -> TokenUsage | None:
    """Whether `output` has the reasoning in it has changed with the versions; `total` tells, where it is there."""
    if not isinstance(tokens, dict):
        return None
    found = tokens.get("cache")
    kept = found if isinstance(found, dict) else {}
    asked, output, thought = tokens.get("input"), tokens.get("output"), tokens.get("reasoning")
    read, write, total = kept.get("read"), kept.get("write"), tokens.get("total")
    if not any((asked, output, thought, read, write)):
        return None
    counts: list[Any] = [asked, output, thought, read, write, total]
    if all(type(each) is int for each in counts):
        rest = total - asked - read - write  # type: ignore[operator]
        if output <= rest <= output + thought:  # type: ignore[operator]
            output = rest
    return usage(asked, output, read, write, thought)


def _reason(error: dict[str, Any]) -> str:
    data = error.get("data")
    message = data.get("message") if isinstance(data, dict) else None
    return known_text(message) or known_text(error.get("name")) or "the request failed"
