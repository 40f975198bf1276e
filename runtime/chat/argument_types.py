"""Values of arguments that a model wrote as text, read by the schema of the tool."""

import ast
import json
from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["JSON", "MAX_PYTHON", "as_json", "kinds_of", "typed"]

MAX_PYTHON = 16_384
"""Characters of Python; its parser is not made for hostile ones."""

MAX_SCHEMAS = 64
"""Schemas within one: alternatives, references and the alternatives of these."""

_KINDS = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
    dict: "object", list: "array",
}  # fmt: skip


_TYPES = frozenset(_KINDS.values())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


JSON = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refused)
"""Strict: no key twice, no NaN."""


def typed(text: str, schema: Any, key: str) -> Any:
    """The value of an argument as its schema has it.

    JSON and Python's constants are read; what the schema allows as a text stays one, unless it is
    a list or an object that the schema allows too.

    Args:
        text: as the model wrote it.
        schema: of all parameters of the tool; anything else says nothing.
        key: of the argument.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    own = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = kinds_of(own, schema)
    if not kinds - {"string"}:
        return text
    try:
        value = _value(text)
    except ValueError:
        return text
    if "string" in kinds and not (
        isinstance(value, dict | list | None) and _KINDS[type(value)] in kinds
    ):
        return text
    return value


def as_json(value: Any) -> Any:
    """A value of Python's as JSON has it.

    Raises:
        TypeError: JSON has none, such as a set.
        ValueError: the same, such as NaN.
    """
    return json.loads(json.dumps(value, allow_nan=False))


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


def kinds_of(schema: Any, root: Any) -> set[str]:
    """The types that a schema allows; empty where it says nothing."""
    kinds: set[str] = set()
    rest, seen = [schema], 0
    while rest and seen < MAX_SCHEMAS:
        each = rest.pop()
        seen += 1
        if not isinstance(each, Mapping):
            continue
        kind = each.get("type")
        kinds.update(_TYPES & {k for k in _listed(kind) or [kind] if isinstance(k, str)})
        if each.get("nullable") is True:
            kinds.add("null")
        values = [*_listed(each.get("enum")), *([each["const"]] if "const" in each else [])]
        if kind is None:
            kinds.update(_KINDS.get(type(value), "string") for value in values)
        for name in ("anyOf", "oneOf", "allOf"):
            rest += _listed(each.get(name))
        if isinstance(each.get("$ref"), str):
            rest.append(_referred(each["$ref"], root))
    return kinds


def _listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list | tuple) else []


def _referred(reference: str, root: Any) -> Any:
    """The schema that a reference within the same one names; None where there is none."""
    for name in reference.removeprefix("#").strip("/").split("/"):
        root = root.get(name) if isinstance(root, Mapping) else None
    return root
