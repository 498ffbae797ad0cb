"""How a run ended: the last JSON line, the line on standard error, the exit code (HD-5, HD-9, HD-14, HD-15)."""

from __future__ import annotations

import errno
import signal as signals
import time
from typing import Any

from dsh import query
from dsh.core.errors import DshError, code_of, exit_code, failure_object, retryable
from dsh.kernel.config import Config
from dsh.store.database import Database

_USAGE = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")


class Outcome:
    """Collected while the run goes on; asked once it is over."""

    def __init__(self, began: float) -> None:
        self._began = began
        self.session: str | None = None
        self.turn: int | None = None
        self.steps = 0
        self.answer: str | None = None
        self.reason: dict[str, Any] | None = None
        self.usage: dict[str, int] | None = None
        self.cost: float | None = None
        self.seconds: float | None = None  # how long the turn took, where that is known better than by our own clock
        self.signal: signals.Signals | None = None
        self.limit: tuple[str, str] | None = None
        self.reader_left = False
        self.reports: list[tuple[str, BaseException]] = []
        self._error: dict[str, Any] | None = None
        self._hint: str | None = None

    def stop_clock(self) -> None:
        """The answer is there; what the process does from now on is no part of it."""
        self.seconds = self._seconds()

    def fail(self, error: BaseException) -> None:
        """A failure outside the turn, or one that kept it from being recorded."""
        self._error = failure_object(error)
        self._hint = error.hint if isinstance(error, DshError) else None

    def late(self, turn: int, error: BaseException) -> None:
        """A failure that was reported; after the turn's end it means that the turn is not safely stored (HD-8)."""
        if turn == self.turn and self.reason is not None and self._error is None:
            self.fail(error)

    def broken(self, error: OSError) -> None:
        """Standard output could not be written (HD-11)."""
        if error.errno in (errno.EPIPE, errno.ECONNRESET):
            self.reader_left = True
        elif self._error is None:
            message = f"standard output cannot be written: {error.strerror}"
            self._error = {"code": "OUTPUT", "message": message, "retryable": False}

    def read_usage(self, db: Database, config: Config) -> None:
        """What the task turn used, and its cost in USD unless a price is not known."""
        if self.turn is None:
            return
        rows = query.rows(db, "turn_usage", session=self.session, turn=self.turn)
        if not rows:
            return
        from dsh.llm.prices import Prices

        self.cost = Prices(config).cost(row[:6] for row in rows)
        for name, figures in zip(_USAGE, list(zip(*rows, strict=True))[2:], strict=True):
            reported = [figure for figure in figures if figure is not None]
            if reported or name in ("inputTokens", "outputTokens"):
                self.usage = {**(self.usage or {}), name: sum(reported)}

    @property
    def completed(self) -> bool:
        return (self.reason or {}).get("kind") == "completed" and self.limit is None

    def error(self) -> dict[str, Any] | None:
        """`{code, message, retryable}` of a run that did not complete."""
        if self._error is not None:
            return self._error
        if self.signal is not None:
            return {"code": "ABORTED", "message": f"interrupted by {self.signal.name}", "retryable": False}
        if self.limit is not None:
            return {"code": self.limit[0], "message": self.limit[1], "retryable": False}
        reason = self.reason or {"kind": "none"}
        match reason["kind"]:
            case "completed":
                return None
            case "error":
                facts = reason.get("failure") or reason
                code = facts.get("code", "UNKNOWN")
                return {"code": code, "message": facts["message"], "retryable": retryable(code)}
            case "max-tokens":
                return {"code": "MAX_TOKENS", "message": "the answer reached its token limit", "retryable": False}
            case "rejected":
                why = reason.get("reason") or "the prompt was rejected"
                return {"code": "REJECTED", "message": why, "retryable": False}
            case "none":
                return self._unstarted()
            case kind:
                return {"code": "ABORTED", "message": f"the turn ended {kind}", "retryable": False}

    def _unstarted(self) -> dict[str, Any]:
        for _, error in self.reports:
            if code_of(error):
                return failure_object(error)
        return {"code": "UNKNOWN", "message": "the turn did not start", "retryable": False}

    def status(self) -> str:
        """completed, interrupted, limit, rejected or error."""
        if self.completed and self._error is None:
            return "completed"
        kind = (self.reason or {}).get("kind")
        if self._error is None and (self.signal is not None or self.reader_left):
            return "interrupted"
        over_budget = kind == "error" and (self.reason or {}).get("code") == "BUDGET_LIMIT"
        if self._error is None and (self.limit is not None or kind == "max-tokens" or over_budget):
            return "limit"
        if self._error is None and kind in ("aborted", "disposed", "interrupted"):  # from another shell, or by a crash
            return "interrupted"
        return "rejected" if kind == "rejected" else "error"

    def result(self) -> dict[str, Any]:
        """The last line of `--json`. `result` is HD-5's name for the answer."""
        line: dict[str, Any] = {
            "type": "result",
            "status": self.status(),
            "success": self.status() == "completed",
            "sessionId": self.session,
            "turn": self.turn,
            "answer": self.answer,
            "result": self.answer,
            "reason": self.reason,
            "steps": self.steps,
            "durationMs": round(self._seconds() * 1000),
        }
        if self.usage is not None:
            line["usage"] = self.usage
        if self.cost is not None:
            line["cost"] = self.cost
        if (error := self.error()) is not None:
            line["error"] = error
        return line

    def lines(self) -> list[str]:
        """Why there is no (whole) answer, then a way on if there is one; nothing if there is nothing to say."""
        error = self.error()
        if error is None or (self._error is None and self._reader_saw_enough):
            return []
        where = f"turn {self.turn}: " if self.turn is not None else ""
        text = f"{where}{error['message']} ({error['code']})"
        return [text, self._hint] if self._hint else [text]

    @property
    def _reader_saw_enough(self) -> bool:
        """The reader left, and nothing else went wrong (HD-11)."""
        return self.reader_left and (self.reason or {}).get("kind") in (None, "completed", "aborted")

    def exit_code(self) -> int:
        if self.signal is not None:  # whatever else happened (HD-10)
            return 128 + self.signal
        if self._error is not None:
            return 1 if self._error["code"] == "OUTPUT" else exit_code(self._error["code"])
        if self._reader_saw_enough:
            return 0
        error = self.error()
        if error is None:
            return 0
        if error["code"] in ("MAX_TOKENS", "TIME_LIMIT", "STEP_LIMIT"):
            return 6
        return exit_code(error["code"])

    def summary(self) -> str:
        parts = [f"{self.steps} step{'' if self.steps == 1 else 's'}", f"{self._seconds():.1f} s"]
        if self.usage is not None:
            cached = self.usage.get("cacheReadTokens", 0)
            parts.append(f"{self.usage['inputTokens'] + cached:,} tokens in, {self.usage['outputTokens']:,} out")
        if self.cost:  # a model on this machine costs nothing, which needs no saying
            from dsh.llm.prices import dollars

            parts.append(dollars(self.cost))
        if self.session is not None:
            parts.append(f"session {self.session}")
        return " · ".join(parts)

    def _seconds(self) -> float:
        return time.monotonic() - self._began if self.seconds is None else self.seconds
