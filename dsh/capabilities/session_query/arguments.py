"""What a model wrote, as filters of the service: lists, seqs and times (SQT-7, SQT-8)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dsh.core.lossless import MAX_INT
from dsh.query.service.values import refuse

Clause = dict[str, Any]

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_EPOCH_DAY = 719_163  # of 1970-01-01, as date.toordinal counts


class Nothing(Exception):
    """No failure: the request is valid, and its bounds leave nothing to search."""


def texts(args: Mapping[str, Any], name: str) -> list[str] | None:
    """A list of texts if it was given; it must not be empty."""
    values: list[str] | None = args.get(name)
    if values is not None and not values:
        refuse("INVALID_FILTER", f"{name} must not be an empty list")
    return values


def chosen(args: Mapping[str, Any], name: str, kind: str) -> list[Clause]:
    """The clause of a list, if it was given."""
    values = texts(args, name)
    return [] if values is None else [{"kind": kind, "values": values}]


def seq(args: Mapping[str, Any], name: str) -> int | None:
    """A seq if it was given."""
    value: int | None = args.get(name)
    if value is not None and not 0 <= value <= MAX_INT:
        refuse("INVALID_FILTER", f"{name} must be a whole number from 0 to {MAX_INT}")
    return None if value is None else int(value)


def seqs(args: Mapping[str, Any], prefix: str, *, below: int | None = None) -> list[Clause]:
    """The clause of a range of seqs, if one was given or they must be `below` one. Nothing if that empties it."""
    low, high = seq(args, f"{prefix}from"), seq(args, f"{prefix}to")
    if low is not None and high is not None and low > high:
        refuse("INVALID_FILTER", f"{prefix}from is greater than {prefix}to")
    if below is not None:
        high = below - 1 if high is None else min(high, below - 1)
        if high < (low or 0):
            raise Nothing
    return _range("seq", low, high)


def times(args: Mapping[str, Any], prefix: str, kind: str) -> list[Clause]:
    """The clause of a range of times, if one was given. What is finer than the milliseconds of an event counts: a lower
    bound inside a millisecond leaves it out, an upper one does not. Nothing if that empties the range."""
    low = _moment(args, f"{prefix}from")
    high = _moment(args, f"{prefix}to")
    if low is not None and high is not None and low > high:
        refuse("INVALID_FILTER", f"{prefix}from is later than {prefix}to")
    first = None if low is None else low[0] + (low[1] != "")
    last = None if high is None else high[0]
    if first is not None and last is not None and first > last:
        raise Nothing
    return _range(kind, first, last)


def _range(kind: str, low: int | None, high: int | None) -> list[Clause]:
    bounds = {name: bound for name, bound in (("from", low), ("to", high)) if bound is not None}
    return [{"kind": kind, **bounds}] if bounds else []


def _moment(args: Mapping[str, Any], name: str) -> tuple[int, str] | None:
    """A time as epoch ms and the digits below it, without the zeros at their end; as such, two of them compare."""
    if name not in args:
        return None
    found = _TIME.fullmatch(args[name])
    moment = None if found is None else _read(found)
    if moment is None:
        refuse("INVALID_FILTER", f"{name} must be a time like 2026-01-31T09:30:00Z or 2026-01-31T09:30+02:00")
    return moment


def _read(found: re.Match[str]) -> tuple[int, str] | None:
    from datetime import date

    year, month, day, hour, minute = (int(part) for part in found.groups()[:5])
    second = int(found[6] or 0)
    ahead_hour, ahead_minute = int(found[9] or 0), int(found[10] or 0)
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    if hour > 23 or minute > 59 or second > 59 or ahead_hour > 23 or ahead_minute > 59:
        return None
    ahead = (ahead_hour * 60 + ahead_minute) * (-1 if found[8] == "-" else 1)
    digits = (found[7] or "").ljust(3, "0")
    whole = ((days * 24 + hour) * 60 + minute - ahead) * 60 + second
    return whole * 1000 + int(digits[:3]), digits[3:].rstrip("0")
