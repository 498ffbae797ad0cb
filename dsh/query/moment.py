"""Points in time as people type them."""

from __future__ import annotations

import re

from dsh.core.errors import UsageError

_AGO = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:(s)(?:ec(?:onds?)?)?|(m)(?:in(?:utes?)?)?|(h)(?:ours?)?|(d)(?:ays?)?|(w)(?:eeks?)?)(?:\s+ago)?",
    re.IGNORECASE,
)
_SECONDS = (1, 60, 3600, 86400, 604800)


def point_in_time(text: str, now_ms: int, *, end: bool) -> int:
    """Epoch ms of what a person typed: an ISO date or time (local unless it says otherwise), `2h`, `3d ago`, `today`,
    `yesterday`. A date alone is its first, with `end` its last millisecond. UsageError."""
    from datetime import datetime, timedelta

    typed = text.strip()
    ago = _AGO.fullmatch(typed)
    if ago:
        unit = next(seconds for seconds, letter in zip(_SECONDS, ago.groups()[1:], strict=True) if letter)
        return max(0, now_ms - int(min(float(ago[1]) * unit * 1000, now_ms)))
    day = {"today": 0, "yesterday": 1}.get(typed.lower())
    try:
        if day is not None:
            moment = datetime.fromtimestamp(now_ms / 1000).astimezone() - timedelta(days=day)
            typed = moment.strftime("%Y-%m-%d")
        whole_day = re.fullmatch(r"\d{4}-?\d\d-?\d\d", typed) is not None
        moment = datetime.fromisoformat(typed)
        if whole_day and end:  # the next day's begin in local time: not every day has 24 hours
            return int((moment + timedelta(days=1)).astimezone().timestamp() * 1000) - 1
        return int(moment.astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{text!r} is not a point in time", hint="for example 2026-01-31, 2026-01-31T09:30, 2h, 3d, yesterday"
        ) from None
