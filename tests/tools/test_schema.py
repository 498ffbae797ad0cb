"""The schema language: declarations, raw schemas, validation and its exact words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.tools.errors import JsonSchemaError
from dsh.tools.schema import check_schema, compile_node, compile_parameters, require_schema, violations


@pytest.mark.rule("TL-1")
def test_parameters_compile_to_an_open_object() -> None:
    compiled = compile_parameters(
        {"b": {"type": "string", "required": True}, "a": {"type": "integer"}, "c": {"type": "json", "required": True}}
    )
    assert compiled == {
        "type": "object",
        "properties": {"b": {"type": "string"}, "a": {"type": "integer"}, "c": {}},
        "required": ["b", "c"],
    }
    assert compile_parameters({"a": {"type": "null"}}) == {"type": "object", "properties": {"a": {"type": "null"}}}


@pytest.mark.rule("TL-3")
def test_json_keeps_annotations_only() -> None:
    assert compile_node({"type": "json", "description": "d"}) == {"description": "d"}


@pytest.mark.rule("TL-2")
@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"type": "object"}, "p.a.additionalProperties must be true or false"),
        ({"type": "string", "required": False}, "p.a.required must be true"),
        ({"type": "string", "pattern": "x"}, "p.a.pattern has no meaning"),
        ({"type": "array", "items": {"type": "string", "minimum": 1}}, "p.a.items.minimum"),
        ({"type": "array", "items": {"type": "string", "required": True}}, "p.a.items.required"),
        ({"type": "text"}, "p.a.type"),
        ({"oneOf": [{"type": "string"}]}, "oneOf must be a list of at least 2"),
        ({"type": "string", "enum": []}, "enum must be a non-empty list"),
        ({"type": "string", "const": "x", "enum": ["y"]}, "const is not in enum"),
        ("string", "p.a must be a schema node"),
    ],
)
def test_the_first_author_mistake_is_named(node: Any, words: str) -> None:
    with pytest.raises(JsonSchemaError) as caught:
        compile_parameters({"a": node})
    assert caught.value.code == "UNSUPPORTED_SCHEMA"
    assert words.replace("p.a", "parameters.a") in caught.value.message


@pytest.mark.rule("TL-4", "TL-5", "TL-6")
def test_raw_schemas_are_judged_as_a_whole() -> None:
    schema = {
        "type": "object",
        "properties": {
            "x": {"type": "array", "items": {"type": "string", "pattern": "a"}},
            "y": {"type": ["string", "null"]},
            "z": {"$ref": "#"},
            "e": {"type": "integer", "enum": [1, "2"]},
            "o": {"oneOf": [{"type": "string"}, {"type": "null"}], "enum": [1]},
            "b": {"type": "string", "oneOf": [{}, {}]},
            "n": {"enum": [1]},
            "c": {"type": "boolean", "const": 1},
            "d": {"type": "string", "description": 5},
        },
        "required": ["x", "nope"],
        "additionalProperties": "no",
        "items": {},
    }
    found = check_schema(schema)
    assert any("schema.properties.x.items.pattern" in line for line in found)
    for path in ("y.type", "z.$ref", "e.enum", "o.enum", "b has both", "n.enum", "c.const", "d.description"):
        assert any(f"schema.properties.{path}" in line for line in found), path
    assert any('"nope"' in line for line in found)
    assert any("schema.additionalProperties" in line for line in found)
    assert any("schema.items" in line for line in found)
    with pytest.raises(JsonSchemaError) as caught:
        require_schema(schema)
    assert caught.value.message == "; ".join(found)


@pytest.mark.rule("TL-6")
def test_cycles_are_violations_and_sharing_is_fine() -> None:
    shared = {"type": "string"}
    assert check_schema({"type": "object", "properties": {"a": shared, "b": shared}}) == []
    loop: dict[str, Any] = {"type": "array"}
    loop["items"] = loop
    assert check_schema(loop) == ["schema is cyclic"]


@pytest.mark.rule("TL-6")
def test_a_schema_too_deep_to_be_json_is_refused_without_a_crash() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    assert "deeper" in check_schema(schema)[0]


@pytest.mark.rule("TL-7")
def test_an_object_root_is_asked_for_only_when_all_else_is_right() -> None:
    assert check_schema({"type": "string"}, object_root=True) == ["schema must have an object root"]
    assert check_schema({"type": "strin"}, object_root=True) != ["schema must have an object root"]
    assert check_schema({"type": "object"}, object_root=True) == []


SHAPE = compile_node(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "required": True},
            "size": {"type": "integer", "required": True},
            "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            "inner": {
                "type": "object",
                "additionalProperties": True,
                "properties": {"k": {"type": "null", "required": True}},
            },
            "one": {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "number"}]},
            "fix": {"type": "integer", "const": 1},
        },
    }
)


@pytest.mark.rule("TL-8", "TL-9")
def test_violations_come_in_walk_order_and_in_these_words() -> None:
    value = {
        "extra": 1,
        "fix": 2,
        "one": 3,
        "inner": {},
        "tags": ["a", 5, "c"],
        "size": True,
    }
    assert violations(SHAPE, value) == [
        'missing required property "name"',
        '"size" must be an integer',
        '"tags[1]" must be a string',
        '"tags[2]" must be one of ["a","b"]',
        'missing required property "inner.k"',
        '"one" must match exactly one of 3 shapes, but matches 2',
        '"fix" must be 1',
        'unexpected property "extra"',
    ]
    assert violations(SHAPE, value, "value")[0] == 'missing required property "value.name"'
    assert violations(SHAPE, [], "value") == ['"value" must be an object']
    assert violations(SHAPE, "text") == ['"arguments" must be an object']


@pytest.mark.rule("TL-9")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("string", "a string"),
        ("number", "a number"),
        ("integer", "an integer"),
        ("boolean", "a boolean"),
        ("null", "null"),
        ("array", "an array"),
        ("object", "an object"),
    ],
)
def test_type_words(kind: str, words: str) -> None:
    assert violations({"type": kind}, (), "value") == [f'"value" must be {words}']


@pytest.mark.rule("TL-10")
@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        ("integer", 3, True),
        ("integer", 3.0, True),
        ("integer", 3.5, False),
        ("integer", True, False),
        ("number", False, False),
        ("number", float("nan"), False),
        ("number", float("inf"), False),
        ("number", -0.0, False),
        ("number", 0.0, True),
        ("integer", 2**53, False),
        ("boolean", 1, False),
        ("null", None, True),
    ],
)
def test_types_are_strict(kind: str, value: Any, fits: bool) -> None:
    assert (violations({"type": kind}, value) == []) is fits


@pytest.mark.rule("TL-10")
def test_enum_tells_true_from_one_but_not_one_from_its_float() -> None:
    assert violations({"type": "integer", "enum": [1]}, 1.0) == []
    assert violations({"type": "boolean", "const": True}, 1) != []


@pytest.mark.rule("TL-11")
def test_nothing_is_coerced_or_filled_in() -> None:
    schema = compile_parameters({"n": {"type": "integer", "required": True, "default": 4}})
    assert violations(schema, {"n": "5"}) == ['"n" must be an integer']
    assert violations(schema, {}) == ['missing required property "n"']


@pytest.mark.rule("TL-12")
@pytest.mark.parametrize("value", [float("nan"), b"x", (1,), {1: 2}, {"a": {1}}, object(), "\ud83d", 2**60])
def test_an_open_node_takes_lossless_json_only(value: Any) -> None:
    assert violations({}, value, "value") == ['"value" must be lossless JSON']
    assert violations({}, {"a": [1, None, "x"]}, "value") == []


@pytest.mark.rule("TL-8", "TL-12")
def test_very_deep_values_do_not_crash() -> None:
    deep: Any = []
    for _ in range(200_000):
        deep = [deep]
    assert violations({}, deep, "value") == ['"value" must be lossless JSON']
    assert violations({"type": "array", "items": {"type": "array"}}, deep, "value") == []
    while deep:  # taken apart by hand: freeing a deep list recurses
        deep = deep[0]


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=1), inner, max_size=3),
    max_leaves=8,
)
_nodes: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.sampled_from(["string", "number", "integer", "boolean", "null", "json"]).map(lambda t: {"type": t}),
    lambda inner: (
        st.builds(lambda i: {"type": "array", "items": i}, inner)
        | st.builds(
            lambda p, a: {"type": "object", "properties": p, "additionalProperties": a},
            st.dictionaries(st.sampled_from("abc"), inner | inner.map(lambda n: {**n, "required": True}), max_size=3),
            st.booleans(),
        )
        | st.builds(lambda b: {"oneOf": b}, st.lists(inner, min_size=2, max_size=3))
    ),
    max_leaves=6,
)


def _naive(schema: dict[str, Any], value: Any) -> bool:
    """An independent reading of the language, by recursion."""
    if "oneOf" in schema:
        return sum(_naive(branch, value) for branch in schema["oneOf"]) == 1
    kind = schema.get("type")
    if kind is None:
        return violations({}, value) == []
    if kind == "object":
        known = schema.get("properties", {})
        return (
            isinstance(value, dict)
            and all(name in value for name in schema.get("required", []))
            and all(_naive(node, value[name]) for name, node in known.items() if name in value)
            and (schema.get("additionalProperties", True) or all(name in known for name in value))
        )
    if kind == "array":
        return isinstance(value, list) and all(_naive(schema.get("items", {}), item) for item in value)
    if kind in ("number", "integer"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) != abs(value):
            return False
        if isinstance(value, float) and (value in (float("inf"), float("-inf")) or str(value) == "-0.0"):
            return False
        if isinstance(value, int) and abs(value) >= 2**53:
            return False
        return kind == "number" or value == int(value)
    return {"string": str, "boolean": bool, "null": type(None)}[kind] is type(value)


@pytest.mark.rule("TL-8")
@settings(max_examples=200, deadline=None)
@given(_nodes, _values)
def test_the_validator_agrees_with_a_plain_reading(node: dict[str, Any], value: Any) -> None:
    schema = compile_node({k: v for k, v in node.items() if k != "required"})
    assert check_schema(schema) == []
    assert (violations(schema, value) == []) is _naive(schema, value)
