"""What may enter the log, how it is frozen, and how it is written (SE-2 to SE-4, CO-30 to CO-33)."""

from __future__ import annotations

import copy
import datetime
import enum
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.core.lossless import (
    MAX_DEPTH,
    MAX_INT,
    FrozenDict,
    FrozenList,
    NotJson,
    dumps,
    freeze,
    loads,
    mend_surrogates,
    same,
    thaw,
)


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


def nested(depth: int, *, of: type = list) -> Any:
    value: Any = [] if of is list else {}
    for _ in range(depth - 1):
        value = [value] if of is list else {"k": value}
    return value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INT, MAX_INT)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda f: not (f.is_integer() and abs(f) > MAX_INT))
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def as_stored(value: Any) -> Any:
    """The value with integral floats as integers, as SE-2 has it; negative zero is not in the domain."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [as_stored(v) for v in value]
    if isinstance(value, dict):
        return {k: as_stored(v) for k, v in value.items()}
    return value


def has_negative_zero(value: Any) -> bool:
    if isinstance(value, float):
        return value == 0 and str(value) == "-0.0"
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(has_negative_zero(v) for v in items)


@pytest.mark.rule("SE-2", "CO-32", "CO-33")
@settings(deadline=None)
@given(JSON)
def test_what_is_frozen_comes_back_the_same(value: Any) -> None:
    if has_negative_zero(value):
        with pytest.raises(NotJson):
            freeze(value)
        return
    frozen = freeze(value)
    text = dumps(frozen)
    assert same(loads(text), as_stored(value))
    assert same(thaw(frozen), as_stored(value))
    assert dumps(thaw(frozen)) == text
    assert text.encode()
    assert json.loads(text) == loads(text)


@pytest.mark.parametrize(
    "bad",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        -0.0,
        2**53,
        -(2**53),
        1e300,  # an integral float beyond the safe range is an integer beyond it
        b"bytes",
        bytearray(b"x"),
        (1, 2),
        {1, 2},
        frozenset(),
        datetime.date(2026, 1, 1),
        object(),
        ...,
        NotImplemented,
        Number.ONE,
        1j,
        "half \ud800 pair",
        "\udc00",
        json,
        len,
    ],
    ids=lambda v: type(v).__name__,
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"a": {"b": [0, v]}}])
@pytest.mark.rule("SE-2")
def test_what_is_not_lossless_json_is_refused(bad: Any, wrap: Any) -> None:
    with pytest.raises(NotJson) as caught:
        freeze(wrap(bad))
    assert caught.value.code == "EVENT_NOT_JSON"


@pytest.mark.parametrize("key", [1, None, True, 1.5, (1,), Colour.RED, "\ud800"], ids=repr)
@pytest.mark.rule("SE-2")
def test_keys_are_plain_strings(key: Any) -> None:
    with pytest.raises(NotJson):
        freeze({"a": [{key: 1}]})


@pytest.mark.rule("SE-2")
def test_the_message_names_the_place() -> None:
    with pytest.raises(NotJson, match=r"value\.a\[1\]\.b is not a finite number"):
        freeze({"a": [0, {"b": float("nan")}]})


@pytest.mark.rule("SE-2", "CO-32")
def test_numbers_keep_their_kind() -> None:
    assert dumps(freeze([1.0, 1.5, True, MAX_INT, -MAX_INT, 0.0])) == f"[1,1.5,true,{MAX_INT},{-MAX_INT},0]"
    assert not same(True, 1)
    assert not same([0], [False])
    assert same(1, 1.0)
    assert not same({"a": None}, {})
    assert not same(None, False)
    assert not same("1", 1)
    assert same({"a": 1, "b": [2]}, {"b": [2], "a": 1})


@pytest.mark.rule("CO-6")
def test_a_branded_string_is_the_plain_string() -> None:
    stored = freeze({"c": Colour.RED})["c"]
    assert type(stored) is str
    assert stored == "red"


@pytest.mark.rule("SE-4")
def test_odd_keys_are_ordinary_data() -> None:
    value = {"__proto__": {"x": 1}, "constructor": 2, "": 3, "a.b": 4, '"': 5, "\u0000": 6}
    assert loads(dumps(freeze(value))) == value


@pytest.mark.rule("SE-3")
def test_a_shared_value_is_stored_twice() -> None:
    shared = {"x": [1]}
    frozen = freeze({"a": shared, "b": shared, "c": [shared, shared]})
    shared["x"].append(2)
    assert dumps(frozen) == '{"a":{"x":[1]},"b":{"x":[1]},"c":[{"x":[1]},{"x":[1]}]}'


@pytest.mark.rule("SE-2", "SE-3")
def test_a_cycle_is_refused() -> None:
    ring: list[Any] = [1]
    ring.append({"back": ring})
    with pytest.raises(NotJson, match="cyclic"):
        freeze({"a": ring})
    loop: dict[str, Any] = {}
    loop["me"] = loop
    with pytest.raises(NotJson):
        freeze(loop)


@pytest.mark.parametrize("of", [list, dict])
@pytest.mark.rule("SE-3")
def test_the_limit_of_depth(of: type) -> None:
    deepest = nested(MAX_DEPTH, of=of)
    frozen = freeze(deepest)
    assert same(loads(dumps(frozen)), deepest)
    assert same(thaw(frozen), frozen)
    assert freeze(frozen) is frozen
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(NotJson, match="deeper"):
            freeze(nested(depth, of=of))


@pytest.mark.rule("SE-3")
def test_frozen_parts_count_towards_the_depth() -> None:
    part = freeze(nested(MAX_DEPTH))
    with pytest.raises(NotJson, match="deeper"):
        freeze([part])
    with pytest.raises(NotJson, match="deeper"):
        freeze({"a": [1, {"b": part}]})
    assert freeze([freeze(nested(MAX_DEPTH - 1))])


@pytest.mark.rule("CO-30", "SE-1")
def test_the_giver_cannot_change_it_afterwards() -> None:
    given_value = {"a": [1, {"b": 2}]}
    frozen = freeze(given_value)
    given_value["a"].append(3)
    given_value["c"] = []
    assert dumps(frozen) == '{"a":[1,{"b":2}]}'


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.__setitem__("a", 1),
        lambda d: d.__delitem__("l"),
        lambda d: d.update(a=1),
        lambda d: d.pop("l"),
        lambda d: d.popitem(),
        lambda d: d.setdefault("z", 1),
        lambda d: d.clear(),
        lambda d: d.__ior__({"a": 1}),
        lambda d: d["l"].append(1),
        lambda d: d["l"].extend([1]),
        lambda d: d["l"].insert(0, 1),
        lambda d: d["l"].__setitem__(0, 1),
        lambda d: d["l"].__delitem__(0),
        lambda d: d["l"].__iadd__([1]),
        lambda d: d["l"].__imul__(2),
        lambda d: d["l"].pop(),
        lambda d: d["l"].remove(1),
        lambda d: d["l"].clear(),
        lambda d: d["l"].sort(),
        lambda d: d["l"].reverse(),
        lambda d: d["l"][1].__setitem__("x", 2),
    ],
)
@pytest.mark.rule("CO-30", "CO-31", "SE-24")
def test_a_frozen_value_refuses_every_change(change: Any) -> None:
    frozen = freeze({"l": [1, {"x": 1}]})
    with pytest.raises(TypeError, match="frozen"):
        change(frozen)
    assert dumps(frozen) == '{"l":[1,{"x":1}]}'


@pytest.mark.rule("CO-30")
def test_copies_of_a_frozen_value() -> None:
    frozen = freeze({"l": [1, {"x": 1}]})
    assert copy.copy(frozen) is frozen
    assert copy.deepcopy(frozen) is frozen
    again = pickle.loads(pickle.dumps(frozen))
    assert type(again) is FrozenDict
    assert type(again["l"]) is FrozenList
    assert again == frozen
    thawed = thaw(frozen)
    thawed["l"][1]["x"] = 5
    assert frozen["l"][1]["x"] == 1


@pytest.mark.rule("CO-33")
def test_the_text_is_compact_ordered_and_unescaped() -> None:
    assert dumps(freeze({"b": "ü 漢 😀", "a": [None, True]})) == '{"b":"ü 漢 😀","a":[null,true]}'


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "{", "", "01", "'x'", "1" * 5000, "[" * 100_000])
@pytest.mark.rule("PE-55")
def test_reading_what_is_not_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


@pytest.mark.rule("SE-2")
@settings(deadline=None)
@given(st.text(st.characters() | st.characters(categories=["Cs"])))
def test_mended_text_can_be_logged(text: str) -> None:
    mended = mend_surrogates(text)
    assert freeze(mended) == mended
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert mended == text


@pytest.mark.rule("SE-2")
def test_halves_side_by_side_are_joined() -> None:
    assert mend_surrogates("a\ud83d\ude00b\ud83d") == "a😀b�"
