"""Neutral records to the events of a log, valid by every rule of docs/spec/session.md.

The log is the one that our own loop would have written: a turn for each prompt, a step for each answer with its calls
and their results, a header where the route changes. Streamed fragments are nobody's history and are not made up; the
usage of a step stands on its message (SE-35).

What is built from the first records never depends on later ones, so a transcript that has grown gives the events that
are stored already, then new ones. Two things come from outside of the records and are repeated at the same place when
the transcript is read again: `titled` and `interrupted`, the marks.
"""

from __future__ import annotations

from typing import Any

from dsh.core.messages import Block
from dsh.importing.clean import json_text
from dsh.importing.model import MORE, Assistant, End, Record, Result, Summary, User
from dsh.session.titles import normalised

MAX_TITLE = 200  # characters
APPEND = '"append"'
UNKNOWN_OUTCOME = "The session ended before the result of this call was recorded, so its outcome is not known."


# An event without its seq, which is its place in the list: type, epoch ms, then data, source seqs and surface op as
# JSON text. A plain tuple, since half a million of them pass between processes.
Row = tuple[str, int, str, str | None, str | None]


class Builder:
    """The log of one transcript. `rows` holds what was built and not taken yet; `length` counts all of it."""

    def __init__(self, tool: str, created_at: int = 0) -> None:
        self.rows: list[Row] = []
        self.length = 0
        self.prompts = 0  # what a person typed
        self.answers = 0
        self._tool = tool
        self._at = created_at
        self._turn = self._step = 0
        self._in_turn = self._in_step = False
        self._going_on = False  # the last answer had calls, so the turn is not over
        self._pending: dict[str, int] = {}  # calls of the open step without a result, and the seqs of their events
        self._unknown: dict[str, tuple[int, dict[str, Any]]] = {}  # results that were made up: where, and what
        self._waiting: list[User] = []  # context for the next turn
        self._route: tuple[str, str] | None = None
        self._surface: list[int] = []
        self._heights: list[int] = []  # nodes on the surface after each record
        self._floor = 0  # the records before the last summary; nobody can go back behind it
        self._first_prompt: int | None = None

    @property
    def open(self) -> bool:
        """Whether a turn is open."""
        return self._in_turn

    def take(self) -> list[Row]:
        rows, self.rows = self.rows, []
        return rows

    # ------------------------------------------------------------------------------------------------------ records

    def feed(self, record: Record) -> None:
        if record.at is not None:
            self._at = record.at
        if isinstance(record, Assistant):
            self._answer(record)
        elif isinstance(record, Result):
            self._result(record)
        elif isinstance(record, User):
            self._user(record)
        elif isinstance(record, End):
            self._ended(record)
        else:
            self._summary(record)
        self._heights.append(len(self._surface))

    def _user(self, item: User) -> None:
        if not item.blocks:
            return
        if not item.human:
            if self._in_turn:
                self._say(item.blocks, human=False)
            else:
                self._waiting.append(item)
            return
        self.prompts += 1
        if item.steers and self._in_turn:
            data = {"content": item.blocks, "source": self._source(human=True), "turn": self._turn}
            self._join("steering/message", json_text(data))
            return
        if self._in_turn and self._step:
            self._leave_turn({"kind": "aborted"} if self._going_on and not self._pending else None)
        gone = self._behind(item.after)
        if not self._in_turn:
            self._enter_turn({"kind": "message", "source": {"kind": "user"}})
        seq = self._say(item.blocks, human=True, instead=gone)
        if self._first_prompt is None:
            self._first_prompt = seq

    def _behind(self, after: int | None) -> list[int]:
        """The nodes that leave the surface when a person goes back to where `after` records had been read."""
        if after is None or not self._floor <= after < len(self._heights):
            return []
        return self._surface[self._heights[after - 1] if after else 0 :]

    def _answer(self, item: Assistant) -> None:
        if not item.blocks and item.usage is None:
            return
        self.answers += 1
        if not self._in_turn:
            self._enter_turn({"kind": "injection", "source": self._source(human=False)})
        elif self._in_step:
            self._leave_step()
        self._step += 1
        self._in_step = True
        at = self._at
        if item.began is not None and item.began < at:
            self._at = item.began
        where = f'{{"turn":{self._turn},"step":{self._step}'
        self._add("step/start", where + "}")
        route = (item.provider, item.model) if item.provider and item.model else self._route or (self._tool, "unknown")
        config = f'{{"provider":{json_text(route[0])},"model":{json_text(route[1])}}}'
        if route != self._route:
            reason = "initial" if self._route is None else "change"
            self._add("request/header", f'{{"header":{{"config":{config}}},"reason":"{reason}"}}')
            self._route = route
        self._at = at
        blocks, calls = _distinct(item.blocks)
        data = f'{where},"content":{json_text(blocks)},"provenance":{config}'
        if item.usage is not None:
            data += f',"usage":{json_text(item.usage)}'
        self._join("assistant/message", data + "}")
        for block in calls:
            self._pending[block["id"]] = self.length
            about = {"callId": block["id"], "name": block["name"], "arguments": block["arguments"]}
            self._add("tool/call", f"{where},{json_text(about)[1:]}")
        self._going_on = bool(calls) if item.ends is None else item.ends == MORE
        if not calls:
            self._leave_step()
        if item.ends or not self._going_on:
            self._leave_turn({"kind": item.ends or "completed"})

    def _result(self, item: Result) -> None:
        seq = self._pending.pop(item.call_id, None)
        if seq is None:
            self._late(item)
            return
        data = {"turn": self._turn, "step": self._step, "callId": item.call_id, "content": item.blocks,
                "isError": item.is_error}  # fmt: skip
        self._join("tool/result", json_text(data), f"[{seq}]")
        if not self._pending:
            self._leave_step()

    def _late(self, item: Result) -> None:
        """A result whose step is over: it takes the place of the one that was made up, or is told as context."""
        made_up = self._unknown.pop(item.call_id, None)
        if made_up is None:
            if item.blocks:
                self._user(User(item.blocks, item.at, human=False))
            return
        seq, data = made_up
        if seq not in self._surface:  # compacted meanwhile
            return
        inside = self._in_turn
        if not inside:
            self._enter_turn({"kind": "injection", "source": self._source(human=False)})
        place = self._surface.index(seq)
        self._surface[place] = self.length
        op = f'{{"op":"replace","start":{seq},"end":{seq}}}'
        self._add("tool/result", json_text({**data, "content": item.blocks}), f"[{seq}]", op)
        if not inside:
            self._leave_turn({"kind": "completed"})

    def _summary(self, item: Summary) -> None:
        inside = self._in_turn
        if self._in_step:
            self._leave_step()
        if not inside:
            self._enter_turn({"kind": "injection", "source": self._source(human=False)})
        height = len(self._surface)
        if item.of is not None and self._floor <= item.of < len(self._heights):
            height = self._heights[item.of - 1] if item.of else 0
        before, self._surface = self._surface[:height], [self.length, *self._surface[height:]]
        self._floor = len(self._heights) + 1
        data = {"content": [{"type": "text", "text": item.text}], "source": self._source(human=False)}
        if before:
            op = f'{{"op":"replace","start":{before[0]},"end":{before[-1]}}}'
            self._add("user/message", json_text(data), json_text(before), op)
        else:
            self._add("user/message", json_text(data), None, APPEND)
        if not inside:
            self._leave_turn({"kind": "completed"})

    def _ended(self, item: End) -> None:
        if not self._in_turn:
            return
        reason: dict[str, Any] = {"kind": item.kind}
        if item.kind == "error":
            reason |= {"step": self._step, "message": item.message or "the request failed"}
        self._leave_turn(reason)

    # -------------------------------------------------------------------------------------------------------- marks

    def titled(self, title: str) -> bool:
        """Log a title as of now; False if nothing is left of it."""
        shown = normalised(title)[:MAX_TITLE].strip()
        if not shown:
            return False
        inside = self._in_turn
        if not inside:
            self._enter_turn({"kind": "session-title"}, bare=True)
        seqs = [] if self._first_prompt is None else [self._first_prompt]
        data = {"title": shown, "messageSeqs": seqs, "source": {"kind": "provider", "provider": self._tool}}
        self._add("session/title", json_text(data))
        if not inside:
            self._leave_turn({"kind": "completed"})
        return True

    def interrupted(self) -> None:
        """Close the open turn of a transcript that nobody writes any more."""
        if self._in_turn:
            self._leave_turn({"kind": "interrupted"})

    # ------------------------------------------------------------------------------------------------------- events

    def _add(self, type: str, data: str, sources: str | None = None, op: str | None = None) -> None:
        self.rows.append((type, self._at, data, sources, op))
        self.length += 1

    def _join(self, type: str, data: str, sources: str | None = None) -> None:
        """An event at the tail of the surface."""
        self._surface.append(self.length)
        self._add(type, data, sources, APPEND)

    def _say(self, blocks: list[Block], *, human: bool, instead: list[int] | None = None) -> int:
        seq = self.length
        data = json_text({"content": blocks, "source": self._source(human=human)})
        if instead:
            place = self._surface.index(instead[0])
            self._surface[place : place + len(instead)] = [seq]
            op = f'{{"op":"replace","start":{instead[0]},"end":{instead[-1]}}}'
            self._add("user/message", data, json_text(instead), op)
        else:
            self._join("user/message", data)
        return seq

    def _source(self, *, human: bool) -> dict[str, str]:
        return {"kind": "user"} if human else {"kind": "plugin", "plugin": self._tool}

    def _enter_turn(self, trigger: dict[str, Any], *, bare: bool = False) -> None:
        self._turn += 1
        self._step = 0
        self._in_turn = True
        self._going_on = False
        self._add("turn/start", json_text({"turn": self._turn, "trigger": trigger}))
        if not bare:
            waiting, self._waiting = self._waiting, []
            for context in waiting:
                self._say(context.blocks, human=False)

    def _leave_step(self) -> None:
        for call_id, seq in self._pending.items():
            data = {"turn": self._turn, "step": self._step, "callId": call_id,
                    "content": [{"type": "text", "text": UNKNOWN_OUTCOME}], "isError": True,
                    "error": {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}}  # fmt: skip
            self._unknown[call_id] = (self.length, data)
            self._join("tool/result", json_text(data), f"[{seq}]")
        self._pending.clear()
        if self._in_step:
            self._in_step = False
            self._add("step/end", f'{{"turn":{self._turn},"step":{self._step}}}')

    def _leave_turn(self, reason: dict[str, Any] | None) -> None:
        """`reason` None: nobody told; a turn with a call that was never answered was interrupted."""
        if reason is None:
            reason = {"kind": "interrupted" if self._pending else "completed"}
        self._leave_step()
        self._in_turn = False
        self._add("turn/end", json_text({"turn": self._turn, "reason": reason}))


def _distinct(blocks: list[Block]) -> tuple[list[Block], list[Block]]:
    """The blocks and the calls among them, each call with an id of its own."""
    calls = [block for block in blocks if block["type"] == "tool-call"]
    if len({call["id"] for call in calls}) == len(calls) and all(call["id"] for call in calls):
        return blocks, calls
    taken: set[str] = set()
    made: list[Block] = []
    for block in blocks:
        if block["type"] == "tool-call":
            name, number = block["id"] or "call", 1
            while name in taken:
                number += 1
                name = f"{block['id'] or 'call'}-{number}"
            taken.add(name)
            block = {**block, "id": name}
        made.append(block)
    return made, [block for block in made if block["type"] == "tool-call"]
