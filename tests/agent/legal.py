"""Whether a log is one that the loop may write: numbering, enclosure, calls and results (SE-40 to SE-46, AL-58, AL-59).

Independent of the rules in the database, so that tests of crashes and of the loop do not take its word for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

SURFACE = {"user/message", "assistant/message", "tool/result", "steering/message"}
INSIDE_STEP = {"assistant/chunk", "assistant/message", "tool/call", "tool/result"}


def problems(events: Iterable[Any], *, closed: bool = True) -> list[str]:
    """What is wrong with a whole log, in words; `closed` also wants its last turn ended and every call answered."""
    found: list[str] = []
    turn: int | None = None
    step: int | None = None
    turns = steps = 0
    asked: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    started: set[str] = set()

    def want(condition: bool, what: str) -> None:
        if not condition:
            found.append(f"event {seq} ({kind}): {what}")

    seq, kind = -1, ""
    for number, event in enumerate(events):
        seq, kind, data = event["seq"], event["type"], event["data"]
        want(seq == number, f"is at position {number}")
        want((kind in SURFACE) == ("surfaceOp" in event), "surface operation")
        want(all(s < seq for s in event.get("sourceEventSeqs", [])), "has a later source")
        if kind == "turn/start":
            want(turn is None and data["turn"] == turns + 1, "turn number")
            turn = turns = data["turn"]
            steps = 0
            continue
        want(turn is not None, "outside a turn")
        if kind == "turn/end":
            want(step is None and data["turn"] == turn, "ends another turn, or in a step")
            turn = None
        elif kind == "step/start":
            want(step is None and data["turn"] == turn and data["step"] == steps + 1, "step number")
            step = steps = data["step"]
            asked, answered = Counter(), Counter()
            started = set()
        elif kind == "step/end":
            want((data["turn"], data["step"]) == (turn, step), "ends another step")
            if closed:
                want(asked == answered, f"calls {dict(asked)} have results {dict(answered)}")
            step = None
        elif kind in INSIDE_STEP and event.get("surfaceOp", "append") == "append":
            want((data["turn"], data["step"]) == (turn, step), "in another step")
            if kind == "assistant/message":
                asked.update(b["id"] for b in data["content"] if b["type"] == "tool-call")
            elif kind == "tool/call":
                want(data["callId"] in asked, "a call that no message made")
                started.add(data["callId"])
            elif kind == "tool/result":
                answered[data["callId"]] += 1
                unstarted = data.get("error", {}).get("code") == "TOOL_NOT_STARTED"
                want(data["callId"] in started or unstarted, "a result without a call")
    if closed:
        want(turn is None, "the last turn is open")
    return found
