"""Lossless JSON: what may enter the log, how it is frozen, how it is written.

The log is read by other programs, so a value is accepted only if every JSON reader gets the same value back (SE-2):
no NaN, no negative zero, no integer beyond 2^53-1, no half of a surrogate pair. `freeze` checks and copies in one
walk and gives an immutable twin made of `FrozenDict` and `FrozenList`, which are a `dict` and a `list` whose mutators
raise: they encode, compare and index like ordinary JSON, and nobody can change what is already logged (CO-30).
The walk keeps its own stack, so depth never reaches the interpreter's (SE-3).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from dsh.core.errors import DshError

JSON = Any

MAX_INT = 2**53 - 1
MAX_DEPTH = 512


class NotJson(DshError):
    """A value is not lossless JSON; the message names the path to the first offence."""

    code = "EVENT_NOT_JSON"


def _immutable(*_: Any, **__: Any) -> NoReturn:
    raise TypeError("this JSON value is frozen; copy it with thaw() to change it")


class FrozenDict(dict[str, Any]):
    """A JSON object whose mutators raise TypeError."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _immutable

    def __copy__(self) -> FrozenDict:
        return self

    def __deepcopy__(self, memo: Any) -> FrozenDict:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A JSON array whose mutators raise TypeError."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _immutable
    append = extend = insert = pop = remove = clear = sort = reverse = _immutable

    def __copy__(self) -> FrozenList:
        return self

    def __deepcopy__(self, memo: Any) -> FrozenList:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenList, (list(self),))


def _scalar(value: Any, path: Iterable[Any]) -> Any:
    kind = type(value)
    if kind is str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise NotJson(f"{_at(path)} has an unpaired surrogate") from None
        return value
    if value is None or kind is bool:
        return value
    if kind is int:
        if -MAX_INT <= value <= MAX_INT:
            return value
        raise NotJson(f"{_at(path)} is an integer beyond 2^53-1")
    if kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            raise NotJson(f"{_at(path)} is not a finite number")
        if value == 0 and str(value)[0] == "-":
            raise NotJson(f"{_at(path)} is negative zero")
        if value.is_integer():
            return _scalar(int(value), path)
        return value
    if isinstance(value, str):  # a branded or enumerated string is the plain string it is (CO-6)
        return _scalar(str.__str__(value), path)
    raise NotJson(f"{_at(path)} is a {kind.__name__}, which is not JSON")


def _at(path: Iterable[Any]) -> str:
    return "value" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)


def freeze(value: Any) -> Any:
    """Check `value` as lossless JSON and return an immutable deep copy (SE-1 to SE-4, CO-30).

    Integral floats become integers; a value that appears twice is copied twice; cycles, foreign types, non-string
    keys and nesting beyond 512 raise NotJson. An already frozen value is returned as it is.
    """
    if isinstance(value, (FrozenDict, FrozenList)):
        return value
    if not isinstance(value, (dict, list)):
        return _scalar(value, ())
    return _freeze_container(value)


def _freeze_container(root: dict[str, Any] | list[Any]) -> Any:
    # Each frame: the source container, its pending (key, item) iterator, the copies so far, and the key it has in its
    # parent. A container is frozen when its iterator is empty, so the result is built from the leaves up.
    open_ids: set[int] = set()

    def frame(container: dict[str, Any] | list[Any], key: Any) -> tuple[Any, Any, Any, Any]:
        if id(container) in open_ids:
            raise NotJson(f"{path()} is cyclic")
        if len(stack) >= MAX_DEPTH:
            raise NotJson(f"value is nested deeper than {MAX_DEPTH} levels")
        open_ids.add(id(container))
        if isinstance(container, dict):
            return container, iter(list(container.items())), {}, key
        return container, iter(list(enumerate(container))), [], key

    def path() -> str:
        return _at([f[3] for f in stack[1:]])

    stack: list[tuple[Any, Any, Any, Any]] = []
    stack.append(frame(root, None))
    while True:
        source, items, done, own_key = stack[-1]
        pushed = False
        is_dict = isinstance(source, dict)
        for key, item in items:
            if is_dict and type(key) is not str:
                raise NotJson(f"{path()} has a key that is not a string")
            if is_dict and not key.isascii():
                _scalar(key, [f[3] for f in stack[1:]])
            if isinstance(item, (dict, list)):
                if isinstance(item, (FrozenDict, FrozenList)) and _fits(item, len(stack)):
                    frozen: Any = item
                else:
                    stack.append(frame(item, key))
                    pushed = True
                    break
            else:
                plain = type(item) is str and item.isascii()
                frozen = item if plain else _scalar(item, [*(f[3] for f in stack[1:]), key])
            if is_dict:
                done[key] = frozen
            else:
                done.append(frozen)
        if pushed:
            continue
        open_ids.discard(id(source))
        stack.pop()
        result = FrozenDict(done) if is_dict else FrozenList(done)
        if not stack:
            return result
        parent = stack[-1]
        if isinstance(parent[0], dict):
            parent[2][own_key] = result
        else:
            parent[2].append(result)


def _fits(value: Any, above: int) -> bool:
    """Whether a frozen value still keeps the whole within MAX_DEPTH; only deep ones are measured exactly."""
    level: list[Any] = [value]
    depth = above
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return False
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, (dict, list))
        ]
    return True


def thaw(value: Any) -> Any:
    """A mutable deep copy of a JSON value.

    Depth is bounded by freeze, so recursion is safe, at one interpreter frame a level: a comprehension would take two
    and not reach MAX_DEPTH.
    """
    if isinstance(value, dict):
        copy: Any = dict(value)
        for key, item in value.items():
            if isinstance(item, (dict, list)):
                copy[key] = thaw(item)
        return copy
    if isinstance(value, list):
        copy = list(value)
        for index, item in enumerate(value):
            if isinstance(item, (dict, list)):
                copy[index] = thaw(item)
        return copy
    return value


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def dumps(value: Any) -> str:
    """Compact JSON text, keys in insertion order, non-ASCII unescaped (CO-33)."""
    return _encode(value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(parse_constant=_no_constant).decode


def loads(text: str) -> Any:
    """Parse JSON text; NaN and Infinity are refused, not read. Raises ValueError (RecursionError never escapes)."""
    try:
        return _decode(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def same(a: Any, b: Any) -> bool:
    """Type-exact JSON equality, key order free: `true` is not `1`, `1` is `1.0` (CO-32). One frame a level, as thaw."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return False
        for key, item in a.items():  # noqa: SIM110 - a generator would be a second frame
            if not same(item, b[key]):
                return False
        return True
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return False
        for x, y in zip(a, b, strict=True):  # noqa: SIM110 - the same
            if not same(x, y):
                return False
        return True
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    return type(a) is type(b) and bool(a == b)


def mend_surrogates(text: str) -> str:
    """Join surrogate halves that stand side by side; any half left alone becomes U+FFFD (SE-2)."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
