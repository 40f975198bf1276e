"""Random bodies for an endpoint, from the schemas of the OpenAPI document."""

import json
from random import Random
from typing import Any

from tests.hostile.valid_bodies import valid_body

__all__ = ["Bodies"]

STRINGS = ("", " ", "a", "x" * 3000, "\0", "\ud800", "\U0001f600" * 40, "auto", "required", "../x")
NUMBERS = (*(0, 1, -1, 2, 3, 21, 257, 2**31, 2**63, -(2**63), 2**80), *(0.0, 0.5, -0.5, 1e308))
LITERALS = ("NaN", "Infinity", "1e999", "-0", "1" * 400, '"\\ud800"', "{,}", "[1,]", "tru", '"\t"')
"""JSON that a parser may reject."""

SCHEMAS: tuple[Any, ...] = (
    {"type": "object"},
    {"enum": ["a", 1]},
    {"type": "hiccup"},
    {"$ref": "#/$defs/x"},
    {"type": "array", "items": {"type": "string", "pattern": "("}},
    {"type": "object", "properties": {"x": {"type": "string", "maxLength": 4}}, "required": ["x"]},
)
COMPACT = "/v1/responses/compact"
"""Its summaries are a hundred times as long as other answers here, so it is rare."""


class Bodies:
    """Bodies of the endpoints of a document.

    Args:
        document: of OpenAPI.

    Attributes:
        paths: schemas of bodies in JSON, by path.
        forms: paths that take forms.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = document["components"]["schemas"]
        contents = {
            path: operations["post"]["requestBody"]["content"]
            for path, operations in document["paths"].items()
            if "requestBody" in operations.get("post", {})
        }
        self.paths: dict[str, dict[str, Any]] = {
            path: content["application/json"]["schema"]
            for path, content in contents.items()
            if "application/json" in content
        }
        self.forms = [path for path in contents if path not in self.paths]

    def form(self, random: Random) -> bytes:
        """A form with a boundary of `b`: half are valid, others damaged."""
        fields = {"model": b"tiny", "language": b"en", "response_format": b"json", "x[]": b"\xff"}
        parts = [
            b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
            % (name.encode(), value)
            for name, value in fields.items()
            if random.random() < 0.4
        ]
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        parts.append(head + random.randbytes(random.choice([0, 9, 3000])) + b"\r\n")
        random.shuffle(parts)
        body = b"".join([*parts * random.choice([1, 1, 1, 20]), b"--b--\r\n"])
        return body if random.random() < 0.5 else _damaged(body, random)

    def path(self, random: Random) -> str:
        """A path for a request."""
        path = random.choice(list(self.paths))
        return path if path != COMPACT or random.random() < 0.1 else "/v1/responses"

    def body(self, path: str, random: Random) -> bytes:
        """A body for a path: half are valid, most others differ from a valid one in one field."""
        value: Any = valid_body(path, random)
        match random.choice("vvvvvvvvvvvvmmmmmdds"):  # valid, mutated, damaged, by the schema
            case "m":
                self._mutate(value, self._fields(path), random)
            case "d":
                return _damaged(json.dumps(value).encode(), random)
            case "s":
                value = self._value(self.paths[path], random, 0)
        if isinstance(value, dict):
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                if isinstance(value.get(name), int) and value[name] > 64:
                    value[name] = random.choice([64, 10**6])
        return json.dumps(value).encode()

    def _fields(self, path: str) -> dict[str, Any]:
        schema = self.paths[path]
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        fields: dict[str, Any] = schema["properties"]
        return fields

    def _mutate(self, body: dict[str, Any], fields: dict[str, Any], random: Random) -> None:
        """Change one field: by its schema, to anything, or away."""
        match random.randrange(8):
            case 0:
                body.pop(random.choice(list(body)))
            case 1:
                body[random.choice([*STRINGS, "unknown", *fields])] = anything(random, 0)
            case _:
                name = random.choice([*fields, *body])
                body[name] = self._value(fields[name], random, 1)

    def _value(self, schema: dict[str, Any], random: Random, depth: int) -> Any:
        if random.random() < 0.015:
            return anything(random, 0)
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rpartition("/")[2]], random, depth)
        if "enum" in schema:
            return random.choice(schema["enum"])
        if "anyOf" in schema:
            return self._value(random.choice(schema["anyOf"]), random, depth)
        match schema.get("type"):
            case "object":
                return self._object(schema, random, depth)
            case "array":
                items = schema.get("items") or {}
                count = 0 if depth > 5 else random.choice([0, 1, 1, 2, 3])
                return [self._value(items, random, depth + 1) for _ in range(count)]
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
        value = {name: self._value(fields[name], random, depth + 1) for name in chosen}
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
