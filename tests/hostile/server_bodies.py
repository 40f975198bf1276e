"""Random bodies for an endpoint, from the schemas of the OpenAPI document."""

import json
from random import Random
from typing import Any

__all__ = ["Bodies"]

STRINGS = ("", " ", "a", "x" * 3000, "\0", "\ud800", "\U0001f600" * 40, "auto", "required", "../x")
NUMBERS = (*(0, 1, -1, 2, 3, 21, 257, 2**31, 2**63, -(2**63), 2**80), *(0.0, 0.5, -0.5, 1e308))
LITERALS = ("NaN", "Infinity", "1e999", "-0", "1" * 400, '"\\ud800"', "{,}", "[1,]", "tru", '"\t"')
"""JSON that a parser may reject."""

MESSAGES: tuple[Any, ...] = (
    [{"role": "user", "content": "Hi."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
    [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
)
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]},
    },
}
SCHEMAS: tuple[Any, ...] = (
    {"type": "object"},
    {"enum": ["a", 1]},
    {"type": "hiccup"},
    {"$ref": "#/$defs/x"},
    {"type": "array", "items": {"type": "string", "pattern": "("}},
    {"type": "object", "properties": {"x": {"type": "string", "maxLength": 4}}, "required": ["x"]},
)
COMMON: dict[str, tuple[Any, ...]] = {
    "model": ("tiny",),
    "messages": MESSAGES,
    "prompt": ("abc", "", [1, 2, 3], ["a", "b"], [[1], [2]]),
    "input": ("abc", ["a", "b"], [1, 2], [{"role": "user", "content": "Hi."}]),
    "content": ("abc",),
    "query": ("abc",),
    "documents": (["a", "b"],),
    "tokens": ([1, 2, 3],),
    "max_tokens": (1, 4, 12),
    "max_completion_tokens": (1, 4, 12),
    "max_output_tokens": (1, 4, 12),
    "n": (1, 2),
    "temperature": (0, 0.7, 1),
    "tools": ([TOOL], [TOOL["function"] | {"type": "function"}]),  # type: ignore[operator]
    "tool_choice": ("auto", "none", "required", {"type": "function", "function": {"name": "f"}}),
    "response_format": ({"type": "json_object"}, {"type": "text"}),
    "stream": (True, False),
    "schema": SCHEMAS,
    "stop": ("a", ["a", "bc"]),
    "logprobs": (True, 2),
    "top_logprobs": (2,),
    "seed": (1, 2**31),
}
"""Likely values by field."""


class Bodies:
    """Bodies of the endpoints of a document.

    Args:
        document: of OpenAPI.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = document["components"]["schemas"]
        self.paths: dict[str, dict[str, Any]] = {
            path: operations["post"]["requestBody"]["content"]["application/json"]["schema"]
            for path, operations in document["paths"].items()
            if "requestBody" in operations.get("post", {})
        }

    def body(self, path: str, random: Random) -> bytes:
        """A body for a path: mostly close to its schema, sometimes no JSON at all."""
        value = self._value(self.paths[path], random, "", 0)
        if random.random() < 0.9 and isinstance(value, dict):
            value |= {"model": "tiny"}
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                if isinstance(value.get(name), int) and value[name] > 64:
                    value[name] = random.choice([64, 10**6])
        data = json.dumps(value).encode()
        return _damaged(data, random) if random.random() < 0.1 else data

    def _value(self, schema: dict[str, Any], random: Random, name: str, depth: int) -> Any:
        if random.random() < 0.015:
            return anything(random, 0)
        if name in COMMON and random.random() < 0.85:
            return random.choice(COMMON[name])
        if "$ref" in schema:
            return self._value(
                self._schemas[schema["$ref"].rpartition("/")[2]], random, name, depth
            )
        if "enum" in schema:
            return random.choice(schema["enum"])
        if "anyOf" in schema:
            return self._value(random.choice(schema["anyOf"]), random, name, depth)
        match schema.get("type"):
            case "object":
                return self._object(schema, random, depth)
            case "array":
                items = schema.get("items") or {}
                count = 0 if depth > 5 else random.choice([0, 1, 1, 2, 3])
                return [self._value(items, random, "", depth + 1) for _ in range(count)]
            case "string":
                return random.choice(STRINGS)
            case "integer" | "number":
                return random.choice(NUMBERS)
            case "boolean":
                return random.random() < 0.5
            case "null":
                return None
        return anything(random, depth)

    def _object(self, schema: dict[str, Any], random: Random, depth: int) -> dict[str, Any]:
        fields = schema.get("properties", {})
        required = set(schema.get("required", ()))
        share = random.choice([0.02, 0.05, 0.2])
        chosen = [name for name in fields if name in required or random.random() < share]
        value = {name: self._value(fields[name], random, name, depth + 1) for name in chosen}
        if value and random.random() < 0.04:
            value.pop(random.choice(list(value)))
        if random.random() < 0.03:
            value[random.choice([*STRINGS, "unknown"])] = anything(random, depth)
        return value


def anything(random: Random, depth: int) -> Any:
    """Any JSON."""
    match random.randrange(7 if depth < 4 else 5):
        case 0:
            return random.choice(NUMBERS)
        case 1 | 2:
            return random.choice(STRINGS)
        case 3:
            return random.choice([None, True, False])
        case 4:
            return random.choice(SCHEMAS)
        case 5:
            return [anything(random, depth + 1) for _ in range(random.choice([0, 1, 3]))]
    return {
        random.choice(["type", "function", "name", "role", "content", "x"]): anything(
            random, depth + 1
        )
        for _ in range(random.choice([0, 1, 3]))
    }


def _damaged(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    match random.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + random.randbytes(random.choice([1, 4, 200])) + data[at:]
        case 2:
            return data[:at] + random.choice(LITERALS).encode() + data[at + 1 :]
        case 3:
            return b"[" * random.choice([10, 5_000, 100_000]) + data
        case 4:
            return random.randbytes(random.choice([0, 1, 100, 5_000]))
    return data.replace(b": ", b": " + random.choice(LITERALS).encode() + b" ", 1)
