"""JSON schemas for llguidance: rejects, closes or follows what it would not enforce.

It counts the properties of an object without comparing their keys. A JSON parser keeps one of two
equal keys, so an object with too few properties would pass `minProperties`. `DistinctKeys` rules
duplicate keys out.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


class ObjectKeys(NamedTuple):
    """Position in a JSON text, and the keys of each open object.

    Equal keys have equal bytes here: the grammar allows one spelling per character.

    Attributes:
        open: keys of each open object, `None` for each open array, outermost first.
        is_key: whether the open string, or the next one, is a key.
        string: bytes of an open key, `b""` in any other string, `None` outside of strings.
        is_escaped: whether a backslash precedes the next byte.
    """

    open: tuple[frozenset[bytes] | None, ...] = ()
    is_key: bool = False
    string: bytes | None = None
    is_escaped: bool = False

    def follow(self, text: bytes) -> "ObjectKeys | None":
        """The position after more text; `None` if an object gets a duplicate key."""
        levels, is_key, string, is_escaped = self
        for byte in text:
            if string is not None:
                if byte == 0x22 and not is_escaped:
                    if is_key:
                        keys = levels[-1] or frozenset()
                        if string in keys:
                            return None
                        levels = (*levels[:-1], keys | {string})
                    string, is_key = None, False
                    continue
                is_escaped = byte == 0x5C and not is_escaped
                string += bytes([byte]) if is_key else b""
            elif byte == 0x22:
                string = b""
            elif byte in b"{[":
                is_key = byte == 0x7B
                levels = (*levels, frozenset() if is_key else None)
            elif byte in b"}]":
                levels, is_key = levels[:-1], False
            elif byte == 0x2C:
                is_key = bool(levels) and levels[-1] is not None
        return ObjectKeys(levels, is_key, string, is_escaped)


class DistinctKeys:
    """Rules out tokens that would repeat a key of an object; only those with a quote can end it."""

    def __init__(self, bytes_of: Callable[[int], bytes], quoting: Mapping[int, bytes]) -> None:
        self._bytes_of = bytes_of
        self._quoting = quoting
        self._quoting_ids = np.fromiter(quoting, np.intp, len(quoting))
        self._keys = ObjectKeys()

    def rule_out(self, ruled_out_V: NDArray[np.bool_]) -> None:
        """Mark tokens that would repeat a key, next to those that are ruled out already."""
        for token in self._quoting_ids[~ruled_out_V[self._quoting_ids]].tolist():
            ruled_out_V[token] = self._keys.follow(self._quoting[token]) is None

    def accept(self, token: int) -> None:
        """Advance by a token."""
        keys = self._keys.follow(self._bytes_of(token))
        if keys is None:
            raise GrammarError(
                "The grammar forces a duplicate key in an object. Lower minProperties, or allow "
                "more keys."
            )
        self._keys = keys


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
