"""The schema language: author nodes compile to JSON Schema, raw schemas are checked, values are validated.

Three jobs share one vocabulary. `compile_parameters` and `compile_node` turn an author's declaration into
JSON Schema and stop at the first mistake, because a developer fixes it (TL-1 to TL-3). `check_schema` judges
schemas that came from outside and collects every complaint (TL-4 to TL-7). `violations` compares a value with
a schema and never raises (TL-8 to TL-11). Nothing here recurses over a value; only `oneOf` recurses, over the
schema, whose depth is limited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dsh.core.lossless import JSON, MAX_INT, NotJson, dumps, freeze, same
from dsh.tools.errors import JsonSchemaError

Node = Mapping[str, Any]
Schema = dict[str, Any]

_ANNOTATIONS = frozenset({"description", "title", "default", "examples"})
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_TYPES = _SCALARS | {"array", "object"}
_ARTICLE = {
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "a boolean",
    "null": "null",
    "array": "an array",
    "object": "an object",
}
_KEYWORDS = _ANNOTATIONS | {
    "type", "oneOf", "properties", "required", "additionalProperties", "items", "enum", "const",
}  # fmt: skip


# --- values -------------------------------------------------------------------------------------------------


def _number(value: Any) -> bool:
    if type(value) is int:
        return -MAX_INT <= value <= MAX_INT
    return type(value) is float and math.isfinite(value) and not (value == 0 and math.copysign(1, value) < 0)


_IS: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "number": _number,
    "integer": lambda v: _number(v) and float(v).is_integer(),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def _is_lossless(value: Any) -> bool:
    try:
        freeze(value)
    except NotJson:
        return False
    return True


def violations(schema: Mapping[str, Any], value: Any, path: str = "") -> list[str]:
    """Every way in which `value` breaks `schema`, in walk order; empty when it fits (TL-8).

    `path` names the root: empty for arguments, `value` for outputs. Never raises for any value.
    """
    found: list[str] = []
    # Work still to do, last first: a (schema, value, path) to walk, or a finished complaint waiting for its
    # turn.
    todo: list[tuple[Mapping[str, Any], Any, str] | str] = [(schema, value, path)]
    while todo:
        task = todo.pop()
        if isinstance(task, str):
            found.append(task)
            continue
        node, item, at = task
        label = f'"{at or "arguments"}"'
        if "oneOf" in node:
            fitting = sum(not violations(branch, item, at) for branch in node["oneOf"])
            if fitting != 1:
                found.append(f"{label} must match exactly one of {len(node['oneOf'])} shapes, but matches {fitting}")
            continue
        kind = node.get("type")
        if kind is None:
            if not _is_lossless(item):
                found.append(f"{label} must be lossless JSON")
            continue
        if not _IS[kind](item):
            found.append(f"{label} must be {_ARTICLE[kind]}")
        elif kind == "object":
            todo.extend(reversed(_object_tasks(node, item, at)))
        elif kind == "array" and "items" in node:
            todo.extend([(node["items"], entry, f"{at}[{i}]") for i, entry in enumerate(item)][::-1])
        else:
            if "enum" in node and not any(same(item, allowed) for allowed in node["enum"]):
                found.append(f"{label} must be one of {dumps(node['enum'])}")
            if "const" in node and not same(item, node["const"]):
                found.append(f"{label} must be {dumps(node['const'])}")
    return found


def _object_tasks(
    node: Mapping[str, Any], item: dict[Any, Any], at: str
) -> list[tuple[Mapping[str, Any], Any, str] | str]:
    def inner(name: object) -> str:
        return f"{at}.{name}" if at else str(name)

    properties = node.get("properties", {})
    tasks: list[tuple[Mapping[str, Any], Any, str] | str] = [
        f'missing required property "{inner(name)}"' for name in node.get("required", ()) if name not in item
    ]
    tasks += [(child, item[name], inner(name)) for name, child in properties.items() if name in item]
    if node.get("additionalProperties") is False:
        tasks += [f'unexpected property "{inner(name)}"' for name in item if name not in properties]
    return tasks


# --- author declarations ------------------------------------------------------------------------------------


def compile_parameters(declaration: Mapping[str, Node]) -> Schema:
    """`{type: object, properties, required?}` with an open root (TL-1). Raises JsonSchemaError (TL-2)."""
    schema = _compile_members(declaration, "parameters")
    for name, compiled in schema["properties"].items():
        require_schema(compiled, f"parameters.{name}")
    return schema


def compile_node(node: Node, where: str = "output") -> Schema:
    """One author node as JSON Schema (TL-2, TL-3). Raises JsonSchemaError naming the first mistake."""
    schema = _compile_node(node, where)
    require_schema(schema, where)
    return schema


def _compile_node(node: Node, where: str) -> Schema:
    if not isinstance(node, (dict, Mapping)):  # the plain case first: asking an abstract class takes ten times as long
        raise JsonSchemaError(f"{where} must be a schema node")
    kind = node.get("type")
    allowed = set(_ANNOTATIONS)
    if "oneOf" in node:
        allowed |= {"oneOf"}
    elif kind == "array":
        allowed |= {"type", "items"}
    elif kind == "object":
        allowed |= {"type", "properties", "additionalProperties"}
    elif kind == "json":
        allowed |= {"type"}
    elif isinstance(kind, str) and kind in _SCALARS:
        allowed |= {"type", "enum", "const"}
    else:
        raise JsonSchemaError(f"{where}.type is not a type of the schema language")
    for key in node:
        if key not in allowed:
            raise JsonSchemaError(f"{where}.{key} has no meaning here")
    schema = {key: value for key, value in node.items() if key in _ANNOTATIONS or key in ("enum", "const")}
    if "oneOf" in node:
        if not isinstance(node["oneOf"], list):
            raise JsonSchemaError(f"{where}.oneOf must be a list")
        schema["oneOf"] = [_compile_node(branch, f"{where}.oneOf[{i}]") for i, branch in enumerate(node["oneOf"])]
    elif kind != "json":
        schema["type"] = kind
    if kind == "array" and "items" in node:
        schema["items"] = _compile_node(node["items"], f"{where}.items")
    if kind == "object":
        if not isinstance(node.get("additionalProperties"), bool):
            raise JsonSchemaError(f"{where}.additionalProperties must be true or false")
        schema |= _compile_members(node.get("properties", {}), f"{where}.properties")
        schema["additionalProperties"] = node["additionalProperties"]
    return schema


def _compile_members(declaration: Mapping[str, Node], where: str) -> Schema:
    if not isinstance(declaration, (dict, Mapping)):
        raise JsonSchemaError(f"{where} must be a map of names to schema nodes")
    properties: Schema = {}
    required: list[str] = []
    for name, node in declaration.items():
        if not isinstance(node, (dict, Mapping)):
            raise JsonSchemaError(f"{where}.{name} must be a schema node")
        bare = dict(node)
        if "required" in bare:
            if bare.pop("required") is not True:
                raise JsonSchemaError(f"{where}.{name}.required must be true or left out")
            required.append(name)
        properties[name] = _compile_node(bare, f"{where}.{name}")
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


# --- raw schemas --------------------------------------------------------------------------------------------


def check_schema(schema: Any, root: str = "schema", *, object_root: bool = False) -> list[str]:
    """Every reason why a raw schema is outside the subset, in walk order (TL-4 to TL-7)."""
    try:
        freeze(schema)
    except NotJson as error:
        return [error.message.replace("value", root, 1)]
    found: list[str] = []
    todo: list[tuple[Any, str]] = [(schema, root)]
    while todo:
        node, at = todo.pop()
        if not isinstance(node, dict):
            found.append(f"{at} must be an object")
            continue
        children: list[tuple[Any, str]] = []
        _check_node(node, at, found, children)
        todo.extend(reversed(children))
    if object_root and not found and schema.get("type") != "object":
        found.append(f"{root} must have an object root")
    return found


def require_schema(schema: Any, root: str = "schema", *, object_root: bool = False) -> None:
    """Raise one JsonSchemaError with all complaints joined by `; ` (TL-6)."""
    found = check_schema(schema, root, object_root=object_root)
    if found:
        raise JsonSchemaError("; ".join(found))


def _check_node(node: dict[str, Any], at: str, found: list[str], children: list[tuple[Any, str]]) -> None:
    found += [f"{at}.{key} is not supported" for key in node if key not in _KEYWORDS]
    found += [
        f"{at}.{key} must be a string" for key in ("description", "title") if not isinstance(node.get(key, ""), str)
    ]
    kind = node.get("type")
    if "type" in node and (not isinstance(kind, str) or kind not in _TYPES):
        found.append(f"{at}.type must be one of {', '.join(sorted(_TYPES))}")
        return
    constraints = [k for k in node if k in _KEYWORDS and k not in _ANNOTATIONS and k not in ("type", "oneOf")]
    if "oneOf" in node:
        if "type" in node:
            found.append(f"{at} has both type and oneOf")
        found += [f"{at}.{key} cannot stand beside oneOf" for key in constraints]
        branches = node["oneOf"]
        if not isinstance(branches, list) or len(branches) < 2:
            found.append(f"{at}.oneOf must be a list of at least 2 schemas")
        else:
            children += [(branch, f"{at}.oneOf[{i}]") for i, branch in enumerate(branches)]
    elif kind is None:
        found += [f"{at}.{key} needs a type" for key in constraints]
    else:
        fitting = {"object": {"properties", "required", "additionalProperties"}, "array": {"items"}}
        allowed = fitting.get(kind, {"enum", "const"})
        found += [f"{at}.{key} does not fit type {kind}" for key in constraints if key not in allowed]
        if kind == "object":
            _check_object(node, at, found, children)
        elif kind == "array":
            children += [(node["items"], f"{at}.items")] if "items" in node else []
        else:
            _check_scalar(node, kind, at, found)


def _check_object(node: dict[str, Any], at: str, found: list[str], children: list[tuple[Any, str]]) -> None:
    properties = node.get("properties", {})
    if isinstance(properties, dict):
        children += [(child, f"{at}.properties.{name}") for name, child in properties.items()]
    else:
        found.append(f"{at}.properties must be an object")
        properties = {}
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        found.append(f"{at}.required must be a list of names")
    else:
        found += [f'{at}.required names "{name}", which is no property' for name in required if name not in properties]
    if not isinstance(node.get("additionalProperties", False), bool):
        found.append(f"{at}.additionalProperties must be true or false")


def _check_scalar(node: dict[str, Any], kind: str, at: str, found: list[str]) -> None:
    values = node.get("enum")
    if "enum" in node and not (isinstance(values, list) and values and all(_IS[kind](v) for v in values)):
        found.append(f"{at}.enum must be a non-empty list of values of type {kind}")
        values = None
    if "const" in node:
        const: JSON = node["const"]
        if not _IS[kind](const):
            found.append(f"{at}.const must be {_ARTICLE[kind]}")
        elif values is not None and not any(same(const, v) for v in values):
            found.append(f"{at}.const is not in enum")
