"""Arguments that a model wrote as text, converted to the types of the tool's schema."""

import ast
import json
from collections.abc import Mapping
from typing import Any, NoReturn

MAX_PYTHON = 16_384
"""Maximum characters handed to Python's parser, which is not safe for long hostile input."""

MAX_SCHEMAS = 64
"""Maximum schemas visited for one argument: alternatives, references and theirs."""

_TYPE_NAMES = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
    dict: "object", list: "array",
}  # fmt: skip

_TYPES = frozenset(_TYPE_NAMES.values())


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("duplicate key")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


JSON = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
"""Strict decoder: no duplicate keys, no NaN."""


def typed(text: str, schema: Any, key: str) -> Any:
    """Convert the text of an argument to a type that its schema allows.

    Reads JSON and Python constants. Where the schema allows a string, the text stays a string
    unless it is a null, list or object that the schema allows too.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    own = properties.get(key) if isinstance(properties, Mapping) else None
    types = types_of(own, schema)
    if not types - {"string"}:
        return text
    try:
        value = _value(text)
    except ValueError:
        return text
    is_plain = not isinstance(value, dict | list | None)
    if "string" in types and (is_plain or _TYPE_NAMES[type(value)] not in types):
        return text
    return value


def as_json(value: Any) -> Any:
    """Convert a Python value to its JSON form."""
    return json.loads(json.dumps(value, allow_nan=False))


def types_of(schema: Any, root: Any) -> set[str]:
    """JSON types that a schema allows; empty if it does not say."""
    types: set[str] = set()
    rest, visited = [schema], 0
    while rest and visited < MAX_SCHEMAS:
        current = rest.pop()
        visited += 1
        if not isinstance(current, Mapping):
            continue
        kind = current.get("type")
        types.update(_TYPES & {k for k in _items(kind) or [kind] if isinstance(k, str)})
        if current.get("nullable") is True:
            types.add("null")
        if kind is None:
            constant = [current["const"]] if "const" in current else []
            values = [*_items(current.get("enum")), *constant]
            types.update(_TYPE_NAMES.get(type(value), "string") for value in values)
        for name in ("anyOf", "oneOf", "allOf"):
            rest += _items(current.get(name))
        if isinstance(current.get("$ref"), str):
            rest.append(_referred(current["$ref"], root))
    return types


def _value(text: str) -> Any:
    try:
        return JSON.decode(text)
    except (ValueError, RecursionError):
        pass
    if len(text) > MAX_PYTHON:
        raise ValueError("too long")
    try:
        return as_json(ast.literal_eval(text.strip()))
    except (SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError("neither JSON nor Python") from error


def _items(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list | tuple) else []


def _referred(reference: str, root: Any) -> Any:
    """Follow a reference within a schema; `None` if it leads nowhere."""
    for name in reference.removeprefix("#").strip("/").split("/"):
        root = root.get(name) if isinstance(root, Mapping) else None
    return root
