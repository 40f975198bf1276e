"""Changes to JSON documents and bytes."""

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.nonsense import FLOATS, INTEGERS, STRINGS

_TWICE, _DEEP = "@twice@", "@deep@"


def logarithmic(random: Random, most: int) -> int:
    """Return a number from 1 to `most`, with all magnitudes equally likely."""
    return round(math.pow(most, random.random()))


def flip_bytes(random: Random, data: bytes, *, most: int = 8) -> tuple[bytes, str]:
    """Change a few bytes in place."""
    changed = bytearray(data)
    places = sorted(random.randrange(len(data)) for _ in range(random.randint(1, most)) if data)
    for place in places:
        changed[place] ^= random.randint(1, 255)
    return bytes(changed), f"bytes {places} of {len(data)} flipped"


def change_document(random: Random, data: bytes) -> tuple[bytes, str]:
    """Replace, remove, nest, repeat or rename one value of a JSON document."""
    document = json.loads(data)
    parent, key = _place(random, document)
    if parent is None:
        return b"[]", "document replaced"
    path, value = f"{key!r} of {str(parent)[:60]}", parent[key]
    ways = ["replaced", "replaced", "retyped", "retyped", "removed", "removed", "times", "deep"]
    how = random.choice([*ways, "twice", "renamed"] if isinstance(parent, dict) else ways)
    match how:
        case "replaced":
            parent[key] = _like(random, value)
        case "retyped":
            parent[key] = _any(random, value)
        case "removed":
            del parent[key]
        case "times":  # a text or list, or a list of equal values
            count = logarithmic(random, 5000)
            parent[key] = value * count if isinstance(value, str | list) else [value] * count
        case "deep":
            parent[key] = f"{_DEEP}{logarithmic(random, 200_000)}"
        case "twice":
            parent[f"{key}{_TWICE}"] = random.choice([value, _like(random, value)])
        case "renamed":
            parent[random.choice([*STRINGS, f"{key}_", f"{key}".upper()])] = parent.pop(key)
    return _written(document), f"{path}: {how}, {f'{parent}'[-60:]}"


def _place(random: Random, document: Any) -> tuple[Any, Any]:
    """Return a container and a key, by walking down, so that all depths are likely."""
    parent, key, value = None, None, document
    while isinstance(value, dict | list) and value and (parent is None or random.random() < 0.8):
        keys: Sequence[Any] = list(value) if isinstance(value, dict) else range(len(value))
        parent, key = value, random.choice(keys)
        value = parent[key]
    return parent, key


def _any(random: Random, value: Any) -> Any:
    numbers = (random.choice(INTEGERS), random.choice(FLOATS), 0.5, 2**80)
    return random.choice(
        [None, True, False, [], {}, random.choice(STRINGS), *numbers, [value], {"a": value}]
    )


def _like(random: Random, value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return random.choice([*INTEGERS, value + 1, value - 1, 2 * value, -value])
        case float():
            return random.choice([*FLOATS, value * 10, -value])
        case str():
            return random.choice([*STRINGS, value + "x", value[:-1], value[1:], value.upper()])
        case list():
            return random.sample(value, len(value)) + random.choices(value, k=bool(value))
        case dict():
            return dict(random.sample(list(value.items()), len(value) // 2))
    return random.choice([0, "", [], {}])


def _written(document: Any) -> bytes:
    text = json.dumps(document).replace(_TWICE, "")
    before, mark, after = text.partition(f'"{_DEEP}')
    if mark:
        depth, _, after = after.partition('"')
        text = before + "[" * int(depth) + "]" * int(depth) + after
    return text.encode()
