"""Codex CLI: a rollout for each session, JSON Lines by date below `sessions`, older ones also compressed.

Records are the items of the API as they went to and fro, and events for the program's own screen. The items are read:
what was said, reasoned, called and answered. Of the events those count that tell tokens, a title or the end of a turn.
An answer's items stand one by one, and its tokens behind them, in some versions behind the results of its calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from dsh.core.messages import Block, TokenUsage
from dsh.importing.clean import json_text, parsed
from dsh.importing.lines import records
from dsh.importing.model import (
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
    left_out,
    reasoning,
    source_of,
    text,
    usage,
)

_ENDINGS = (".jsonl", ".jsonl.zst", ".jsonl.zstd")
# How what the program itself puts into a user's message begins.
_CONTEXT = (
    "<environment_context>",
    "<user_instructions>",
    "<permissions instructions>",
    "<skills_instructions>",
    "<turn_aborted>",
    "<subagent_notification>",
    "<user_shell_command>",
    "<INSTRUCTIONS>",
    "# AGENTS.md instructions for ",
)


def places(home: Home) -> Iterator[str]:
    folder = home.under("CODEX_HOME", ".codex")
    yield os.path.join(folder, "sessions")
    yield os.path.join(folder, "archived_sessions")


def sources(place: str) -> Iterator[Source]:
    if os.path.isfile(place):
        if found := source_of(place):
            yield found
        return
    for folder, folders, files in os.walk(place):
        folders.sort()
        for name in files:
            if (
                name.startswith("rollout-")
                and name.endswith(_ENDINGS)
                and (found := source_of(os.path.join(folder, name)))
            ):
                yield found


def transcripts(source: Source) -> Iterator[Transcript]:
    reading = _Rollout(source.path)
    reading.transcript.items = reading.items()
    yield reading.transcript


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """The bytes of a rollout, decompressed."""
    with open(path, "rb") as file:
        if path.endswith(".jsonl"):
            yield file
            return
        import io

        import zstandard

        try:
            with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as plain:
                yield cast(IO[bytes], io.BufferedReader(cast(Any, plain), 1024 * 1024))
        except zstandard.ZstdError as error:
            raise ReadError(f"cannot be decompressed: {error}") from error


def _record(line: bytes | Any) -> dict[str, Any]:
    value = parsed(line) if isinstance(line, bytes) else line
    if not isinstance(value, dict):
        raise ValueError("is no record")
    return value


class _Rollout:
    """One pass over a rollout."""

    def __init__(self, path: str) -> None:
        self.path = path
        name = os.path.basename(path).split(".")[0]
        self.transcript = Transcript(name.removeprefix("rollout-")[20:] or name, iter(()))
        self._provider = "openai"
        self._model = ""
        self._blocks: list[Block] = []  # of the answer that is being gathered
        self._answered: int | None = None
        self._results: list[Result] = []  # of its calls
        self._usage: TokenUsage | None = None
        self._began = False  # whether the header was read

    def items(self) -> Iterator[Item]:
        with _opened(self.path) as file:
            for _, record in records(file, _record, _record):
                if isinstance(record, Skipped):
                    yield record
                else:
                    yield from self._read(record)
        yield from self._flushed(None, at_end=True)

    def _read(self, record: dict[str, Any]) -> Iterable[Item]:
        at = epoch_ms(record.get("timestamp"))
        kind, payload = record.get("type"), record.get("payload")
        if not isinstance(payload, dict):
            if "role" in record or (isinstance(kind, str) and kind in _ITEMS):
                return self._item(record, at)  # rollouts of 2025 before September are the items themselves
            if isinstance(record.get("id"), str) and kind is None:
                self._head(record, at)
            return ()
        if kind == "session_meta":
            self._head(payload, at)
        elif kind == "turn_context":
            self._model = _text(payload.get("model")) or self._model
        elif kind == "response_item":
            return self._item(payload, at)
        elif kind == "event_msg":
            return self._event(payload, at)
        elif kind == "token_usage_record":
            self._usage = _usage(payload.get("usage")) or self._usage
        elif kind == "compacted":
            summary = _text(payload.get("message")) or _told(payload.get("replacement_history"))
            return [*self._flushed(MORE), Summary(summary, at)] if summary else self._flushed(MORE)
        return ()

    def _head(self, payload: dict[str, Any], at: int | None) -> None:
        """What the header says. A rollout that began as a copy has those of its originals behind its own."""
        if self._began:
            return
        self._began = True
        transcript = self.transcript
        transcript.id = _text(payload.get("id")) or transcript.id
        transcript.cwd = _text(payload.get("cwd"))
        transcript.created_at = epoch_ms(payload.get("timestamp")) or at
        transcript.root = _text(payload.get("forked_from_id"))
        self._provider = _text(payload.get("model_provider")) or self._provider
        transcript.parent = _text(payload.get("parent_thread_id")) or _spawned(payload.get("source"))

    # -------------------------------------------------------------------------------------------------------- items

    def _item(self, item: dict[str, Any], at: int | None) -> Iterable[Item]:
        kind = item.get("type")
        if kind == "message" or (kind is None and "role" in item):
            return self._message(item, at)
        if kind == "reasoning":
            said = _texts(item.get("content")) or _texts(item.get("summary"))
            return self._gather([reasoning(each) for each in said], at)
        if kind in ("function_call", "custom_tool_call", "tool_search_call"):
            given = item.get("arguments") if kind != "custom_tool_call" else item.get("input")
            name = _text(item.get("name")) or str(kind)
            space = _text(item.get("namespace"))
            made = call(_text(item.get("call_id")) or "", f"{space}.{name}" if space else name, given or "")
            return self._gather([made], at)
        if kind == "local_shell_call":
            made = call(
                _text(item.get("call_id")) or _text(item.get("id")) or "", "local_shell", item.get("action") or ""
            )
            return self._gather([made], at)
        if kind in ("function_call_output", "custom_tool_call_output", "tool_search_output"):
            return self._output(item, at)
        if kind == "web_search_call":
            return self._gather([text(f"[web search {json_text(item.get('action'))}]")], at)
        if kind == "image_generation_call":
            return self._gather([left_out("image")], at)
        return ()

    def _message(self, item: dict[str, Any], at: int | None) -> Iterable[Item]:
        blocks = _blocks(item.get("content"))
        role = item.get("role")
        if role == "assistant":
            return self._gather(blocks, at)
        if not blocks:
            return ()
        human = role == "user" and not all(b.get("text", "").lstrip().startswith(_CONTEXT) for b in blocks)
        if human and self.transcript.root is None:
            self.transcript.root = _text(item.get("id"))
        return [*self._flushed(MORE), User(blocks, at, human=human)]

    def _gather(self, blocks: list[Block], at: int | None) -> Iterable[Item]:
        before: Iterable[Item] = ()
        if self._blocks and (self._usage is not None or self._results):
            before = list(self._flushed(MORE))
        if blocks:
            self._blocks += blocks
            self._answered = at or self._answered
        return before

    def _output(self, item: dict[str, Any], at: int | None) -> Iterable[Item]:
        output, failed = item.get("output"), False
        if isinstance(output, str) and output.startswith('{"output"'):  # the result as the shell tool once wrote it
            try:
                about = parsed(output)
                code = about["metadata"]["exit_code"]
                output, failed = about["output"], isinstance(code, int) and code != 0
            except (ValueError, KeyError, TypeError):
                pass
        elif isinstance(output, dict):
            failed = output.get("success") is False
            output = output.get("content")
        blocks = _blocks(output)
        result = Result(_text(item.get("call_id")) or "", blocks, at, failed)
        if not self._blocks:
            return [result]
        self._results.append(result)
        return ()

    def _flushed(self, ends: str | None, *, at_end: bool = False) -> Iterator[Item]:
        if self._blocks:
            blocks, self._blocks = self._blocks, []
            tokens, self._usage = self._usage, None
            yield Assistant(blocks, self._answered, self._provider, self._model, tokens, ends, at_end)
        results, self._results = self._results, []
        yield from results

    # ------------------------------------------------------------------------------------------------------- events

    def _event(self, event: dict[str, Any], at: int | None) -> Iterable[Item]:
        kind = event.get("type")
        if kind == "token_count":
            info = event.get("info")
            if isinstance(info, dict) and self._blocks and self._usage is None:
                self._usage = _usage(info.get("last_token_usage"))
            return ()
        if kind in ("task_complete", "turn_complete"):
            return [*self._flushed(MORE), End("completed", at)]
        if kind == "turn_aborted":
            return [*self._flushed(MORE), End("aborted", at)]
        if kind == "error":
            return [*self._flushed(MORE), End("error", at, _text(event.get("message")) or "")]
        if kind == "thread_name_updated":
            self.transcript.title = _text(event.get("thread_name")) or self.transcript.title
        return ()


_ITEMS = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "web_search_call",
    }
)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(parts: Any) -> list[str]:
    """The texts of a list of summary or content parts."""
    given = parts if isinstance(parts, list) else []
    found = [part.get("text") if isinstance(part, dict) else part for part in given]
    return [each for each in found if isinstance(each, str) and each]


def _blocks(content: Any) -> list[Block]:
    if isinstance(content, str):
        return [text(content)] if content else []
    blocks: list[Block] = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        if _text(part.get("text")):
            blocks.append(text(part["text"]))
        elif part.get("type") == "input_image":
            url = _text(part.get("image_url")) or ""
            mime = url[5 : url.find(";")] if url.startswith("data:") else ""
            blocks.append(left_out("image", mime[:40], len(url) * 3 // 4 if mime else 0))
    return blocks


def _told(history: Any) -> str:
    """The summary among the items that took the place of what was compacted: the last thing that is said there."""
    said = [item for item in history if isinstance(item, dict)] if isinstance(history, list) else []
    texts = ["\n".join(_texts(item.get("content"))) for item in said if item.get("type") == "message"]
    return next((each for each in reversed(texts) if each), "")


def _spawned(source: Any) -> str | None:
    """The session that a sub-agent was spawned by."""
    for key in ("subagent", "thread_spawn"):
        source = source.get(key) if isinstance(source, dict) else None
    return _text(source.get("parent_thread_id")) if isinstance(source, dict) else None


def _usage(given: Any) -> TokenUsage | None:
    """Cached tokens are part of the format's input."""
    if not isinstance(given, dict):
        return None
    whole, cached, written = (
        given.get(name) for name in ("input_tokens", "cached_input_tokens", "cache_write_input_tokens")
    )
    fresh = whole
    for part in (cached, written):
        if type(fresh) is int and type(part) is int:
            fresh = max(0, fresh - part)
    return usage(fresh, given.get("output_tokens"), cached, written or None, given.get("reasoning_output_tokens"))
