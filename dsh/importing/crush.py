"""Crush: a database `crush.db` in the folder `.crush` of each project, which a list in the data folder names.

A message is a row whose parts are a JSON array. Times are whole seconds, so rows of one second are in the order in
which they were written. Of tokens a session keeps those of its last request alone, no answer has its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dsh.core.messages import Block
from dsh.importing.clean import parsed
from dsh.importing.foreign_db import SETTLED_MS, attachment, below, database_source, document, known_text, opened, shown
from dsh.importing.model import (
    MORE,
    Assistant,
    End,
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
    text,
)
from dsh.store.foreign import Foreign

_DATABASE = "crush.db"
_UNTITLED = frozenset({"Untitled Session", "New Session", "New Agent Session", "Generate a title"})
_TABLES = {"sessions": ("id",), "messages": ("session_id", "role", "parts")}
_TITLES = "title-"  # sessions in which nothing but the title of another was asked for

Row = tuple[Any, ...]


def places(home: Home) -> Iterator[str]:
    yield os.path.join(home.path, ".crush")
    folder = home.env.get("CRUSH_GLOBAL_DATA") or home.data("crush")
    try:
        with open(os.path.join(folder, "projects.json"), "rb") as file:
            listed = parsed(file.read())
    except (OSError, ValueError):
        return
    projects = listed.get("projects") if isinstance(listed, dict) else None
    for project in projects if isinstance(projects, list) else ():
        if isinstance(project, dict) and known_text(project.get("data_dir")):
            yield os.path.join(known_text(project.get("path")), project["data_dir"])


def sources(place: str) -> Iterator[Source]:
    if os.path.isfile(place):
        paths = [place]
    else:
        near = [os.path.join(place, _DATABASE), os.path.join(place, ".crush", _DATABASE)]
        paths = [path for path in near if os.path.isfile(path)] or list(below(place, _DATABASE))
    for path in paths:
        if found := database_source(path):
            yield found


def transcripts(source: Source) -> Iterator[Transcript]:
    folder = os.path.dirname(os.path.abspath(source.path))
    cwd = os.path.dirname(folder) if os.path.basename(folder) == ".crush" else None
    with opened(source.path, **_TABLES) as db:
        columns = ("id", "parent_session_id", "title", "created_at", "updated_at", "summary_message_id")
        rows = list(db.rows("sessions", columns, order=("created_at", "rowid")))
        for session, parent, title, created, updated, summary in rows:
            if not isinstance(session, str) or session.startswith(_TITLES):
                continue
            summaries = frozenset() if db.has("messages", "is_summary_message") else frozenset([summary])
            stamp, touched = _latest(db, session, updated)
            yield Transcript(
                id=session,
                items=_items(db, session, summaries),
                cwd=cwd,
                created_at=epoch_ms(created),
                parent=known_text(parent) or None,
                title=title if isinstance(title, str) and title not in _UNTITLED else None,
                stamp=stamp,
                touched=touched,
            )


def _latest(db: Foreign, session: str, updated: Any) -> tuple[str, int | None]:
    """What changes with any message, as they are only added and only the last one still changes; and when one did."""
    where = ("session_id", session)
    last = next(db.rows("messages", ("id", "updated_at", "parts"), where=where, order=_ORDER, last=True), None)
    end = last and (last[0], last[1], len(shown(last[2])))
    times = [at for at in (epoch_ms(updated), epoch_ms(last[1] if last else None)) if at is not None]
    return f"{updated}:{db.count('messages', where)}:{end}", max(times, default=None)


_ORDER = ("created_at", "rowid")
_COLUMNS = ("id", "role", "parts", "model", "provider", "created_at", "updated_at", "is_summary_message")


def _items(db: Foreign, session: str, summaries: frozenset[Any]) -> Iterator[Item]:
    held: Row | None = None
    for row in db.rows("messages", _COLUMNS, where=("session_id", session), order=_ORDER):
        if held is not None:
            yield from _message(held, summaries, last=False)
        held = row
    if held is not None:
        yield from _message(held, summaries, last=True)


def _message(row: Row, summaries: frozenset[Any], *, last: bool) -> Iterator[Item]:
    id, role, parts, model, provider, created, updated, is_summary = row  # noqa: A001 - the column's name
    try:
        found = document(parts)
    except ValueError as error:
        yield Skipped(f"message {id}", str(error))
        return
    if not isinstance(found, list):
        yield Skipped(f"message {id}", "has no parts")
        return
    whole = [part for part in found if isinstance(part, dict) and isinstance(part.get("data"), dict)]
    at = epoch_ms(created)
    if role == "user":
        yield from _user(whole, at)
    elif role == "tool":
        yield from _results(whole, at)
    elif role == "assistant":
        import time

        fresh = last and (epoch_ms(updated) or 0) > time.time() * 1000 - SETTLED_MS
        summary = bool(is_summary) or id in summaries
        yield from _answer(whole, known_text(provider), known_text(model), at, fresh=fresh, summary=summary)
    elif role != "system":
        yield Skipped(f"message {id}", "is of no known role")


def _user(parts: list[dict[str, Any]], at: int | None) -> Iterator[Item]:
    said: list[Block] = []
    context: list[Block] = []
    for part in parts:
        data = part["data"]
        if part.get("type") == "text" and known_text(data.get("text")):
            (context if data.get("hidden") else said).append(text(data["text"]))
        elif part.get("type") == "shell_command":
            ended = f"(exit code {shown(data.get('exit_code'))})"
            context.append(text(f"$ {shown(data.get('command'))}\n{shown(data.get('output'))}\n{ended}"))
        elif block := _attachment(part):
            said.append(block)
    if said:
        yield User(said, at)
    if context:
        yield User(context, at, human=False)


def _attachment(part: dict[str, Any]) -> Block | None:
    data = part["data"]
    if part.get("type") == "binary":
        return attachment(data.get("MIMEType"), data.get("Data"))
    return left_out("image") if part.get("type") == "image_url" else None


def _results(parts: list[dict[str, Any]], at: int | None) -> Iterator[Item]:
    for part in parts:
        data = part["data"]
        if part.get("type") == "tool_result":
            blocks = [text(shown(data.get("content")))]
            if data.get("data"):
                blocks.append(attachment(data.get("mime_type"), data["data"]))
            yield Result(known_text(data.get("tool_call_id")), blocks, at, is_error=data.get("is_error") is True)


def _answer(
    parts: list[dict[str, Any]], provider: str, model: str, began: int | None, *, fresh: bool, summary: bool
) -> Iterator[Item]:
    blocks: list[Block] = []
    finish: dict[str, Any] | None = None
    for part in parts:
        kind, data = part.get("type"), part["data"]
        if kind == "text" and known_text(data.get("text")):
            blocks.append(text(data["text"]))
        elif kind == "reasoning" and known_text(data.get("thinking")):
            blocks.append(reasoning(data["thinking"]))
        elif kind == "tool_call":
            id, name = known_text(data.get("id")), known_text(data.get("name")) or "unknown"  # noqa: A001
            blocks.append(call(id, name, known_text(data.get("input")) or shown(data.get("input")) or "{}"))
        elif kind == "finish":
            finish = data
        elif block := _attachment(part):
            blocks.append(block)
    at = epoch_ms(finish.get("time")) if finish is not None else None
    told = "\n\n".join(block["text"] for block in blocks if block["type"] == "text")
    if summary and finish is not None and told:
        yield Summary(told, at or began)
        return
    calls = any(block["type"] == "tool-call" for block in blocks)
    reason = known_text(finish.get("reason")) if finish is not None else ""
    # A call that was begun has its result in the next message, whatever ended the answer.
    ends = None if calls else _ENDS.get(reason)
    yield Assistant(blocks, at or began, provider, model, ends=ends, partial=fresh and finish is None, began=began)
    if reason == "error" and finish is not None and not calls:
        why = [known_text(finish.get("message")), known_text(finish.get("details"))]
        yield End("error", at or began, ": ".join(filter(None, why)))


_ENDS = {"max_tokens": "max-tokens", "canceled": "aborted", "error": MORE}
