"""llm (the command line tool of that name): the database `logs.db` in its own folder.

Since version 0.32 a thread has turns, and a turn names two messages: what was sent and what came back. Messages are
kept once each, by a hash of what they are, and each names the one before it. Before that a conversation has responses,
with everything in a row's columns. An upgrade leaves those where they are, so a thread may go on where a conversation
of the same id ended. Which provider answered is not told, only the name that llm knows the model by.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from dsh.core.messages import Block, TokenUsage
from dsh.importing.foreign_db import attachment, database_source, document, fields, known_text, opened, shown
from dsh.importing.model import (
    Assistant,
    Home,
    Item,
    ReadError,
    Result,
    Skipped,
    Source,
    Transcript,
    User,
    call,
    epoch_ms,
    reasoning,
    text,
    usage,
)
from dsh.store.foreign import Foreign

_PROVIDER = "llm"
_DATABASE = "logs.db"
_DEEPEST = 100_000  # messages in a chain


class Turn(NamedTuple):
    id: str
    sent: Any  # hashes
    answered: Any
    model: str
    usage: TokenUsage | None
    began: int | None
    at: int | None


def places(home: Home) -> Iterator[str]:
    if folder := home.env.get("LLM_USER_PATH"):
        yield folder
    elif sys.platform == "darwin":
        yield os.path.join(home.path, "Library", "Application Support", "io.datasette.llm")
    else:
        yield home.config("io.datasette.llm")


def sources(place: str) -> Iterator[Source]:
    found = database_source(place if os.path.isfile(place) else os.path.join(place, _DATABASE))
    if found:
        yield found


def transcripts(source: Source) -> Iterator[Transcript]:
    with opened(source.path, _llm_migrations=("name",)) as db:
        if not (db.has("responses", "id") or db.has("turns", "id")):
            raise ReadError("is of a version of llm that is not known here")
        old = _Responses(db)
        threads = {row[0]: row for row in db.rows("threads", ("id", "name", "forked_from", "datetime_utc"))}
        for conversation, name in list(db.rows("conversations", ("id", "name"), order=("id",))):
            if conversation not in threads and isinstance(conversation, str):
                yield Transcript(
                    id=conversation,
                    items=old.items(conversation),
                    title=known_text(name) or None,
                    stamp=old.stamp(conversation),
                )
        forks = {thread: row[2] for thread, row in threads.items()}
        for thread, name, _, created in sorted(threads.values(), key=lambda row: (str(row[3]), str(row[0]))):
            if not isinstance(thread, str):
                continue
            before = old.of.get(thread)
            yield Transcript(
                id=thread,
                items=_thread(db, old, thread),
                created_at=None if before else epoch_ms(created),
                root=_origin(thread, forks),
                title=known_text(name) or None,
                stamp=f"{old.stamp(thread)}+{_stamp(db, thread)}",
            )
        for response in old.alone:
            yield Transcript(id=response, items=old.each([response]), stamp="1")


# ---------------------------------------------------------------------------------------------------------- threads


def _origin(thread: Any, forks: dict[Any, Any]) -> str:
    """The thread that this one is a fork of, and that of which, up to the first."""
    seen: set[Any] = set()
    while forks.get(thread) is not None and thread not in seen:
        seen.add(thread)
        thread = forks[thread]
    return shown(thread)


def _stamp(db: Foreign, thread: str) -> str:
    """Turns are only added."""
    where = ("thread_id", thread)
    last = next(db.rows("turns", ("id",), where=where, order=_ORDER, last=True), None)
    return f"{db.count('turns', where)}:{last}"


_ORDER = ("datetime_utc", "id")
_TURN = ("id", "parent_message_hash", "tip_message_hash", "model", "resolved_model", "input_tokens", "output_tokens",
         "token_details", "datetime_utc", "duration_ms")  # fmt: skip


def _thread(db: Foreign, old: _Responses, thread: str) -> Iterator[Item]:
    before = old.of.get(thread, [])
    yield from old.each(before)
    known = bool(before)  # what was said before a turn is there already
    previous: Any = None
    for row in db.rows("turns", _TURN, where=("thread_id", thread), order=_ORDER):
        turn = _turn(row)
        yield from _sent(db, _chain(db, turn.sent, previous, whole=not known), turn)
        if turn.answered is None:
            yield Skipped(f"turn {turn.id}", "has no answer")
        elif turn.answered != turn.sent:
            yield from _message(db, turn.answered, "assistant", turn, spent=turn.usage)
        previous, known = turn.answered, True


def _sent(db: Foreign, chain: list[tuple[Any, str]], turn: Turn) -> Iterator[Item]:
    """What a turn sent. Answers in it were made by turns of another thread, of which this one is a fork."""
    waiting: list[tuple[Any, str]] = []
    for message, role in chain:
        waiting.append((message, role))
        if role == "assistant":
            found = next(db.rows("turns", _TURN, where=("tip_message_hash", message), order=_ORDER), None)
            made = turn if found is None else _turn(found)
            for each, by in waiting:
                yield from _message(db, each, by, made, made.usage if by == "assistant" and found else None)
            waiting = []
    for message, role in waiting:
        yield from _message(db, message, role, turn)


def _turn(row: tuple[Any, ...]) -> Turn:
    id, sent, answered, model, resolved, asked, output, details, at, took = row  # noqa: A001 - the column's name
    began = epoch_ms(at)
    ended = began + took if began is not None and type(took) is int and 0 <= took < 2**40 else began
    name = known_text(resolved) or known_text(model)
    return Turn(shown(id), sent, answered, name, _usage(asked, output, details), began, ended)


def _chain(db: Foreign, tip: Any, previous: Any, *, whole: bool) -> list[tuple[Any, str]]:
    """The messages that a turn sent and that were not there before it, the first one first.

    They begin behind the answer of the turn before, or behind the last answer where that is not in the chain: who went
    back and said something else. With `whole` they begin at the very first message.
    """
    found: list[tuple[Any, str]] = []
    seen: set[Any] = set()
    while tip is not None and tip != previous and tip not in seen and len(found) < _DEEPEST:
        seen.add(tip)
        row = next(db.rows("messages", ("role", "parent_hash"), where=("hash", tip)), None)
        if row is None or (row[0] == "assistant" and not whole):
            break
        found.append((tip, known_text(row[0])))
        tip = row[1]
    return found[::-1]


def _message(db: Foreign, message: Any, role: str, turn: Turn, spent: TokenUsage | None = None) -> Iterator[Item]:
    blocks: list[Block] = []
    columns = ("id", "type", "tool_name", "text", "payload")
    for number, kind, tool, said, payload in db.rows(
        "parts", columns, where=("message_hash", message), order=("position",)
    ):
        try:
            found = document(payload)
        except ValueError as error:
            yield Skipped(f"part {number}", str(error))
            continue
        about = found if isinstance(found, dict) else {}
        told = known_text(said) or _pieced(db, about.get("text_ref"))
        if kind in ("text", "reasoning"):
            if told:
                blocks.append(text(told) if kind == "text" else reasoning(told))
        elif kind == "tool_call":
            name = known_text(about.get("name")) or known_text(tool) or "unknown"
            blocks.append(call(known_text(about.get("tool_call_id")), name, about.get("arguments", {})))
        elif kind == "tool_result":
            failed = about.get("exception")
            files = [_attachment(db, each) for each in _listed(about.get("attachments"))]
            given = [text(shown(about.get("output")) or shown(failed)), *files]
            yield Result(known_text(about.get("tool_call_id")), given, turn.began, is_error=bool(failed))
        elif kind == "attachment":
            blocks.append(_attachment(db, about.get("attachment")))
    if role == "assistant":
        yield Assistant(blocks, turn.at if spent else turn.began, _PROVIDER, turn.model, spent, began=turn.began)
    elif blocks:
        yield User(blocks, turn.began, human=role == "user")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _pieced(db: Foreign, pieces: Any) -> str:
    """Text that was put together from fragments, which are kept by themselves."""
    told: list[str] = []
    for piece in _listed(pieces):
        if isinstance(piece, dict) and "fragment" in piece:
            row = next(db.rows("fragments", ("content",), where=("id", piece["fragment"])), (None,))
            told.append(known_text(row[0]))
        elif isinstance(piece, dict):
            told.append(known_text(piece.get("literal")))
    return "".join(told)


def _attachment(db: Foreign, named: Any) -> Block:
    key = named.get("id") if isinstance(named, dict) else named
    row = next(db.rows("attachments", ("type", "path", "url"), where=("id", key)), ("", "", ""))
    return attachment(row[0])


def _usage(asked: Any, output: Any, details: Any) -> TokenUsage | None:
    """llm counts what came from a cache as input too."""
    if not (type(asked) is int or type(output) is int):
        return None
    more = fields(details)
    prompt, completion = more.get("prompt_tokens_details"), more.get("completion_tokens_details")
    read = prompt.get("cached_tokens") if isinstance(prompt, dict) else more.get("cache_read_input_tokens")
    thought = completion.get("reasoning_tokens") if isinstance(completion, dict) else None
    if isinstance(prompt, dict) and type(asked) is int and type(read) is int and 0 <= read <= asked:
        asked -= read
    return usage(asked, output, read, more.get("cache_creation_input_tokens"), thought)


# -------------------------------------------------------------------------------------------------------- responses


class _Responses:
    """The responses of older versions. `of` has their ids by conversation, `alone` those that belong to none."""

    def __init__(self, db: Foreign) -> None:
        self._db = db
        self.of: dict[str, list[str]] = {}
        self.alone: list[str] = []
        for response, conversation, _ in db.rows(
            "responses", ("id", "conversation_id", "datetime_utc"), order=("datetime_utc", "id")
        ):
            if isinstance(response, str):
                mine = self.of.setdefault(conversation, []) if isinstance(conversation, str) else self.alone
                mine.append(response)
        # No index leads from a response to its calls, so each table is read once.
        self._calls = self._by_response("tool_calls")
        self._results = self._by_response("tool_results")

    def _by_response(self, table: str) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for key, response in self._db.rows(table, ("id", "response_id"), order=("id",)):
            found.setdefault(response, []).append(key)
        return found

    def stamp(self, conversation: str) -> str:
        mine = self.of.get(conversation, [])
        return f"{len(mine)}:{mine[-1] if mine else ''}"

    def items(self, conversation: str) -> Iterator[Item]:
        yield from self.each(self.of.get(conversation, []))

    def each(self, responses: list[str]) -> Iterator[Item]:
        system = ""
        columns = ("model", "resolved_model", "prompt", "system", "response", "reasoning", "datetime_utc",
                   "duration_ms", "input_tokens", "output_tokens", "token_details")  # fmt: skip
        for response in responses:
            for row in self._db.rows("responses", columns, where=("id", response)):
                told = "\n".join([*self._fragments("system_fragments", response), *filter(None, [known_text(row[3])])])
                yield from self._response(response, row, told if told != system else "")
                system = told

    def _response(self, response: str, row: tuple[Any, ...], system: str) -> Iterator[Item]:
        model, resolved, prompt, _, answer, thought, began, took, asked, output, details = row
        turn = _turn((response, None, None, model, resolved, asked, output, details, began, took))
        for key in self._results.get(response, ()):
            for call_id, name, given in self._db.rows(
                "tool_results", ("tool_call_id", "name", "output"), where=("id", key)
            ):
                yield Result(known_text(call_id) or known_text(name), [text(shown(given))], turn.began)
        if system:
            yield User([text(system)], turn.began, human=False)
        said = "\n".join([*self._fragments("prompt_fragments", response), *filter(None, [known_text(prompt)])])
        blocks = [text(said)] if said else []
        attached = self._db.rows("prompt_attachments", ("attachment_id",), where=("response_id", response))
        blocks += [_attachment(self._db, each) for (each,) in list(attached)]
        if blocks:
            yield User(blocks, turn.began)
        answered: list[Block] = [reasoning(thought)] if known_text(thought) else []
        answered += [text(answer)] if known_text(answer) else []
        for key in self._calls.get(response, ()):
            for call_id, name, arguments in self._db.rows(
                "tool_calls", ("tool_call_id", "name", "arguments"), where=("id", key)
            ):
                id = known_text(call_id) or known_text(name)  # noqa: A001 - old rows have no id
                answered.append(call(id, known_text(name) or "unknown", shown(arguments) or "{}"))
        yield Assistant(answered, turn.at, _PROVIDER, turn.model, turn.usage, began=turn.began)

    def _fragments(self, table: str, response: str) -> list[str]:
        found: list[str] = []
        for (key,) in list(self._db.rows(table, ("fragment_id",), where=("response_id", response), order=("order",))):
            found += [known_text(content) for (content,) in self._db.rows("fragments", ("content",), where=("id", key))]
        return found
