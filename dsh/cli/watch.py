"""Follows the log of one turn and tells the others: the answer's text, progress, and what the result line needs."""

from __future__ import annotations

from typing import Any

from dsh.cli.answer import Answer
from dsh.cli.outcome import Outcome
from dsh.cli.progress import Progress, call_title
from dsh.core.events import Event
from dsh.core.messages import text_of


class Watch:
    """Fed every event of a turn, in order. `model` is what is asked as far as the log does not say."""

    def __init__(self, model: str | None, outcome: Outcome, progress: Progress, answer: Answer | None) -> None:
        self._model = model or "the model"
        self._outcome = outcome
        self._progress = progress
        self._answer = answer
        self._calls: dict[str, tuple[str, int]] = {}

    def event(self, event: Event) -> None:
        handler = getattr(self, "_" + event["type"].replace("/", "_").replace("-", "_"), None)
        if handler is not None:
            handler(event, event["data"])

    def _turn_start(self, event: Event, data: Any) -> None:
        if data["trigger"]["kind"] == "message" and self._outcome.turn is None:
            self._outcome.turn = data["turn"]

    def _step_start(self, event: Event, data: Any) -> None:
        self._outcome.steps += 1
        if self._answer is not None:
            self._answer.step_begins()
        self._progress.text_flows(False)  # not at a step's end: the answer may stand there, without a newline
        self._progress.doing(f"asking {self._model}")

    def _request_header(self, event: Event, data: Any) -> None:
        self._model = data["header"]["config"]["model"]
        self._progress.doing(f"asking {self._model}")

    def _assistant_chunk(self, event: Event, data: Any) -> None:
        chunk = data["chunk"]
        kind = chunk["type"]
        if kind == "text-delta":
            self._progress.count(len(chunk["text"]))
            if self._answer is not None:
                self._progress.text_flows(self._answer.live)
                self._answer.delta(chunk["text"])
        elif kind == "reasoning-delta":
            self._progress.count(len(chunk["text"]))
            self._progress.doing("thinking")
        elif kind == "tool-call-delta":
            self._progress.doing("writing a tool call")

    def _assistant_message(self, event: Event, data: Any) -> None:
        content = data["content"]
        if any(b["type"] == "text" for b in content):
            self._outcome.answer = text_of(content)
        if self._answer is not None:
            self._answer.message_ends(is_answer=not any(b["type"] == "tool-call" for b in content))

    def _tool_call(self, event: Event, data: Any) -> None:
        self._progress.text_flows(False)
        title = call_title(data["name"], data["arguments"])
        self._calls[data["callId"]] = (title, event["time"])
        self._progress.doing(title)

    def _tool_result(self, event: Event, data: Any) -> None:
        title, began = self._calls.pop(data["callId"], ("", event["time"]))
        self._progress.tool(title, failed=data["isError"], seconds=(event["time"] - began) / 1000)

    def _llm_retry(self, event: Event, data: Any) -> None:
        code = data["failure"]["code"]
        self._progress.notice(f"retry {data['retry']}/{data['maxRetries']} in {data['delayMs'] / 1000:.1f} s ({code})")

    def _turn_limit(self, event: Event, data: Any) -> None:
        if data.get("kind", "steps") == "steps":  # of another kind the turn's end tells
            self._outcome.limit = ("STEP_LIMIT", f"stopped after {data['limit']} steps")

    def _turn_end(self, event: Event, data: Any) -> None:
        if data["turn"] == self._outcome.turn:
            self._outcome.reason = data["reason"]

    def close(self) -> None:
        """The turn is over and flushed."""
        if self._answer is not None:
            self._answer.turn_ends(self._outcome.answer, completed=self._outcome.completed)
        self._progress.text_flows(False)
