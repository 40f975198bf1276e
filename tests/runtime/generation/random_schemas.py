"""Random JSON schemas, of what people write in them."""

from random import Random
from typing import Any

Schema = dict[str, Any]

PATTERNS = ["^[a-z]{2,6}$", "^[A-Z][0-9]+$", "x|y", "^(red|green)-[0-9]{1,2}$"]
WORDS = ["name", "size", "tags", "price", "is open", 'a "quoted" key', "kind", "url"]


def random_schema(random: Random, depth: int = 3) -> Schema:
    """A schema that some text is valid by, nested at most `depth` deep."""
    pair = {"type": "array", "items": _leaf(random), "minItems": 2, "maxItems": 2}
    return _schema(random, depth) | {"$defs": {"leaf": _leaf(random), "pair": pair}}


def _schema(random: Random, depth: int) -> Schema:
    kinds = [_leaf, _leaf, _constant, _reference]
    if depth > 0:
        deep = random.choice([_object, _object, _array, _any_of])
        if random.random() < 0.8:
            return deep(random, depth - 1)
    return random.choice(kinds)(random)


def _leaf(random: Random) -> Schema:
    low = random.randint(-1000, 1000)
    shortest = random.randint(0, 4)
    return random.choice(
        [
            {"type": "string", "maxLength": random.randint(1, 12)},
            {"type": "string", "minLength": shortest, "maxLength": shortest + 3},
            {"type": "string", "pattern": random.choice(PATTERNS), "maxLength": 20},
            {"type": "integer", "minimum": low, "maximum": low + random.randint(0, 500)},
            {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 90},
            {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 999},
            {"type": "number", "minimum": low, "maximum": low + 1.5},
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["integer", "null"], "minimum": 0, "maximum": 99},
            {"type": "string", "format": random.choice(["date", "uuid"])},
        ]
    )


def _constant(random: Random) -> Schema:
    values: list[Any] = ["red", "a\nb", "x y", 7, 2.5, True, None]
    return random.choice(
        [{"const": random.choice(values)}, {"enum": random.sample(values, random.randint(1, 4))}]
    )


def _reference(random: Random) -> Schema:
    return {"$ref": f"#/$defs/{random.choice(['leaf', 'pair'])}"}


def _object(random: Random, depth: int) -> Schema:
    names = random.sample(WORDS, random.randint(0, 4))
    required = [name for name in names if random.random() < 0.6]
    schema = {
        "type": "object",
        "properties": {name: _schema(random, depth) for name in names},
        "required": required,
        "additionalProperties": False,
    }
    if required == names and random.random() < 0.5:
        schema |= {"additionalProperties": {"type": "integer"}, "maxProperties": len(names) + 2}
    return schema


def _array(random: Random, depth: int) -> Schema:
    fewest = random.randint(0, 2)
    schema: Schema = {"type": "array", "items": _schema(random, 0 if depth < 1 else depth)}
    if random.random() < 0.3:
        schema |= {"prefixItems": [_leaf(random)]}
    return schema | {"minItems": fewest, "maxItems": fewest + random.randint(0, 2)}


def _any_of(random: Random, depth: int) -> Schema:
    return {"anyOf": [_schema(random, depth) for _ in range(random.randint(1, 3))]}
