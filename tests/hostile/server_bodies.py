"""Random bodies for an endpoint, from the schemas of the OpenAPI document."""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

__all__ = ["Bodies"]

STRINGS = ("", " ", "a", "x" * 3000, "\0", "\ud800", "\U0001f600" * 40, "auto", "required", "../x")
NUMBERS = (*(0, 1, -1, 2, 3, 21, 257, 2**31, 2**63, -(2**63), 2**80), *(0.0, 0.5, -0.5, 1e308))
LITERALS = ("NaN", "Infinity", "1e999", "-0", "1" * 400, '"\\ud800"', "{,}", "[1,]", "tru", '"\t"')
"""JSON that a parser may reject."""

SCHEMA = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}

SCHEMAS: tuple[Any, ...] = (
    {"type": "object"},
    {"enum": ["a", 1]},
    {"type": "hiccup"},
    {"$ref": "#/$defs/x"},
    {"type": "array", "items": {"type": "string", "pattern": "("}},
    {"type": "object", "properties": {"x": {"type": "string", "maxLength": 4}}, "required": ["x"]},
)

RERANKERS = ("embedder", "prompted", "pairs")

USER = {"role": "user", "content": "Hi."}

VALID: Mapping[str, tuple[Any, ...]] = {
    "content": ("a b",),
    "documents": (["a", "b c", "d e f"], [{"text": "a"}]),
    "encoding_format": ("float", "base64"),
    "ignore_eos": (True, False),
    "include": (["message.output_text.logprobs"],),
    "input": ("abc", [USER]),
    "instructions": ("Be brief.",),
    "logit_bias": ({"5": -100}, {}),
    "max_output_tokens": (1, 4, 12),
    "max_tokens": (1, 4, 12),
    "messages": ([USER], [{"role": "system", "content": "Be brief."}, USER]),
    "metadata": ({"a": "b"},),
    "min_p": (0.05,),
    "model": ("tiny", "tiny", "adapter"),
    "n": (1, 2),
    "presence_penalty": (-1, 0.5),
    "prompt": ("abc", [1, 2, 3], ["a", "b"], [[1], [2]]),
    "query": ("a b",),
    "response_format": ({"type": "json_object"}, {"type": "text"}),
    "seed": (1, 2**31),
    "stop": ("a", ["a", "bc"]),
    "stream": (True, False),
    "temperature": (0, 0.7, 1),
    "text": ({"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}, {}),
    "tokens": ([1, 2, 3],),
    "tool_choice": ("auto", "none"),
    "tools": ([{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],),
    "top_n": (1, 2, 10),
    "top_p": (0.1, 1),
}
"""Values that are accepted in any body with such a field."""

OWN: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "/v1/embeddings": {
        "model": ("embedder", "embedder", "prompted"),
        "input": ("a b", ["a", "b c"], [2, 4, 3], [[2, 4, 3], [2, 5, 3]]),
    },
    "/v1/responses": {"tools": ([{"type": "function", "name": "f", "parameters": SCHEMA}],)},
    "/tokenize": {"model": ("tiny", "embedder")},
    "/v1/rerank": {"model": RERANKERS},
    "/v2/rerank": {"model": RERANKERS},
    "/rerank": {"model": RERANKERS},
}
"""Values that are accepted at one path."""

LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens")


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
            path: self._resolved(content["application/json"]["schema"])
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
        return random.choice(list(self.paths))

    def body(self, path: str, random: Random) -> bytes:
        """A body for a path: half are valid, most others differ from a valid one in one field."""
        schema = self.paths[path]
        value: Any = _valid(path, schema, random)
        match random.choice("vvvvvvvvvvvvmmmmmdds"):  # valid, mutated, damaged, by the schema
            case "m":
                self._mutate(value, schema["properties"], random)
            case "d":
                return _damaged(json.dumps(value).encode(), random)
            case "s":
                value = self._value(schema, random, 0)
        for name in LIMITS if isinstance(value, dict) else ():
            if isinstance(value.get(name), int) and value[name] > 64:
                value[name] = random.choice([64, 10**6])
        return json.dumps(value).encode()

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

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def _value(self, schema: dict[str, Any], random: Random, depth: int) -> Any:
        schema = self._resolved(schema)
        if random.random() < 0.015:
            return anything(random, 0)
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
            case "boolean" | "null":
                return random.choice([True, False]) if schema["type"] == "boolean" else None
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


def _valid(path: str, schema: dict[str, Any], random: Random) -> dict[str, Any]:
    """A body that the server accepts, unless its fields do not go together."""
    known = {**VALID, **OWN.get(path, {})}
    names = [*dict.fromkeys([*schema["required"], "model", "input", "content", *LIMITS[:2]])]
    names += random.sample(sorted(known.keys() - names), random.choice([0, 2, 6]))
    return {name: random.choice(known[name]) for name in names if name in schema["properties"]}


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
    names = random.choices(
        ["type", "function", "name", "role", "content", "x"], k=random.choice([0, 1, 3])
    )
    return {name: anything(random, depth + 1) for name in names}


def _damaged(data: bytes, random: Random) -> bytes:
    at, literal = random.randrange(len(data) + 1), random.choice(LITERALS).encode()
    return random.choice(
        [
            data[:at],
            data[:at] + random.randbytes(random.choice([1, 4, 200])) + data[at:],
            data[:at] + literal + data[at + 1 :],
            b"[" * random.choice([10, 5_000, 100_000]) + data,
            random.randbytes(random.choice([0, 1, 100, 5_000])),
            data.replace(b": ", b": " + literal + b" ", 1),
        ]
    )
