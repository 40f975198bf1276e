"""JSON schemas for llguidance: rejects or closes what it would not enforce."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ortolan.runtime.errors import GrammarError

ESCAPES = 'nrbtf\\"'
"""Letters allowed after a backslash in JSON strings. Without `u`, every text has one spelling:
the key `\\u0061` would match no property's name, but a parser reads it as `a`."""

_SWITCHES = {
    "lenient": "ignores keywords",
    "coerce_one_of": "treats oneOf as anyOf",
    "json_allowed_escapes": "allows several spellings of a key",
    "json_allow_general_unicode_escapes": "allows several spellings of a key",
}
"""Options of llguidance (`x-guidance`) that weaken a schema, and how."""

_SPELLED_WITH_U = re.compile(r"\\u00(?:[01][0-9a-f]|7f)|\x7f")
_COMMENT = r"(?://|#)[^\n]*"
_LARK = re.compile(
    rf'{_COMMENT}|"(?:[^"\\\n]|\\.)*"|/(?:[^/\\]|\\.)+/|<[^<>\s]+>|%json(?:\s|{_COMMENT})*'
)
"""Comments, strings and patterns of llguidance's syntax, and `%json` up to its schema."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Reject schemas that llguidance would not enforce, or could not satisfy."""
    options = schema.get("x-guidance", {})
    if not isinstance(options, Mapping):
        raise GrammarError("x-guidance must be an object. Correct or remove it.")
    for name, value in options.items():
        if name in _SWITCHES and value:
            raise GrammarError(
                f"x-guidance: {name} {_SWITCHES[name]}, so text that the schema excludes would "
                "pass. Remove it."
            )
    for node in _objects(schema):
        values = [node[key] for key in ("const", "enum") if key in node]
        if _SPELLED_WITH_U.search(json.dumps(values)):
            raise GrammarError(
                "const and enum cannot contain control characters other than \\n, \\r, \\t, "
                "\\b and \\f. Remove such values."
            )


def asks_for_several_keys(schema: Any) -> bool:
    """Whether it has a `minProperties` that a repeated key could satisfy."""
    counts = (node.get("minProperties") for node in _objects(schema))
    return any(isinstance(count, int | float) and count > 1 for count in counts)


def close_schemas(lark: str) -> str:
    """Restrict the `%json` schemas of a Lark grammar to one spelling of each text."""
    parts, end = [], 0
    for match in _LARK.finditer(lark):
        if not match[0].startswith("%json") or match.start() < end:
            continue
        try:
            schema, stop = json.JSONDecoder().raw_decode(lark, match.end())
        except (ValueError, RecursionError):
            continue  # llguidance reports the error
        if not isinstance(schema, dict):
            continue
        check_schema(schema)
        if asks_for_several_keys(schema):
            raise GrammarError(
                "%json does not support minProperties above 1, since keys can repeat. Use "
                "Grammar.json_schema for the whole text, or name required properties."
            )
        options = {**schema.get("x-guidance", {}), "json_allowed_escapes": ESCAPES}
        parts += [lark[end : match.end()], json.dumps({**schema, "x-guidance": options})]
        end = stop
    return "".join([*parts, lark[end:]])


def _objects(document: Any) -> Iterator[Mapping[str, Any]]:
    """All objects of a JSON document. Iterative, since documents may be deeply nested."""
    nodes = [document]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Mapping):
            yield node
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
