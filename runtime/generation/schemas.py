"""JSON schemas as llguidance gets them: closed where it would let through what they exclude."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ortolan.runtime.errors import GrammarError

__all__ = ["ESCAPES", "asks_for_several_keys", "check_schema", "close_schemas"]

ESCAPES = 'nrbtf\\"'
"""Letters after a backslash in JSON strings. Without `u` every text has one spelling; else
`\\u0061` is a key that is compared with no property's name, and a parser reads `a`."""

_SWITCHES = {
    "lenient": "ignores keywords",
    "coerce_one_of": "takes oneOf for anyOf",
    "json_allowed_escapes": "allows several spellings of a key",
    "json_allow_general_unicode_escapes": "allows several spellings of a key",
}
"""Options of llguidance in a schema, `x-guidance`, by which it excludes less than it says."""

_SPELLED_WITH_U = re.compile(r"\\u00(?:[01][0-9a-f]|7f)|\x7f")
_COMMENT = r"(?://|#)[^\n]*"
_LARK = re.compile(
    rf'{_COMMENT}|"(?:[^"\\\n]|\\.)*"|/(?:[^/\\]|\\.)+/|<[^<>\s]+>|%json(?:\s|{_COMMENT})*'
)
"""What may hold a `%json` or a quote in llguidance's syntax, and `%json` up to its schema."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse what llguidance would follow to texts that the schema excludes, or to none.

    Raises:
        GrammarError: with the keyword.
    """
    options = schema.get("x-guidance", {})
    if not isinstance(options, Mapping):
        raise GrammarError("grammar: x-guidance must be an object. Correct or remove it.")
    for name, value in options.items():
        if name in _SWITCHES and value:
            raise GrammarError(
                f"grammar: x-guidance: {name} {_SWITCHES[name]}, so texts that the schema excludes "
                "would pass. Remove it."
            )
    for node in _objects(schema):
        values = [node[key] for key in ("const", "enum") if key in node]
        if _SPELLED_WITH_U.search(json.dumps(values)):
            raise GrammarError(
                "grammar: const and enum cannot hold control characters other than \\n, \\r, \\t, "
                "\\b and \\f. Remove such values."
            )


def asks_for_several_keys(schema: Any) -> bool:
    """Whether it has a `minProperties` that one key, written several times, could meet."""
    counts = (node.get("minProperties") for node in _objects(schema))
    return any(isinstance(count, int | float) and count > 1 for count in counts)


def close_schemas(lark: str) -> str:
    """A Lark grammar whose `%json` schemas hold to one spelling of each text.

    Raises:
        GrammarError: a schema is refused, or asks for several keys: whether they differ is
            followed in texts that are JSON from the beginning.
    """
    parts, end = [], 0
    for found in _LARK.finditer(lark):
        if not found[0].startswith("%json") or found.start() < end:
            continue
        try:
            schema, stop = json.JSONDecoder().raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong with it
        if not isinstance(schema, dict):
            continue
        check_schema(schema)
        if asks_for_several_keys(schema):
            raise GrammarError(
                "grammar: %json cannot hold minProperties above 1, since keys may repeat. Use "
                "Grammar.json_schema for the whole text, or name required properties."
            )
        options = {**schema.get("x-guidance", {}), "json_allowed_escapes": ESCAPES}
        parts += [lark[end : found.end()], json.dumps({**schema, "x-guidance": options})]
        end = stop
    return "".join([*parts, lark[end:]])


def _objects(document: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in a JSON document. Not by recursion: documents may be deep."""
    nodes = [document]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Mapping):
            yield node
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
