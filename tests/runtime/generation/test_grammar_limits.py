"""Invalid and hostile grammars end in a typed error, or in text, and soon."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_tokenizers

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.errors import GrammarError
from ortolan.runtime.generation.grammar import Grammar, GrammarCompiler

LONGEST_S = 5.0
"""Of the processor, since the machine may be busy with others."""


def strings(*patterns: str) -> dict[str, Any]:
    return {"allOf": [{"type": "string", "pattern": pattern} for pattern in patterns]}


def conjunction(pattern: str, *counts: int) -> str:
    """A grammar of text that repeats in all of these lengths."""
    terms = " & ".join(
        f"/{pattern.format(*[count] * pattern.count('{{{}}}'))}/" for count in counts
    )
    return f"start: T\nT: {terms}"


SCHEMAS: dict[str, Any] = {
    "not JSON": "{",
    "a number": "5",
    "false": False,
    "nothing allowed": {"enum": []},
    "unknown type": {"type": "foo"},
    "open group": {"type": "string", "pattern": "("},
    "unknown format": {"type": "string", "format": "nonsense"},
    "not": {"not": {}},
    "on the network": {"$ref": "http://127.0.0.1/schema"},
    "complex": {"type": "object", "properties": {1j: {}}},
    "long": {"enum": ["a value"] * 10_000},
    "many patterns": strings(*[f"x{{{i}}}y" for i in range(30)]),
    "large multiples": {"type": "integer", "multipleOf": 1_000_003},
    "fine multiples": {"type": "number", "multipleOf": 1.000003},
    "hidden multiples": '{"type": "integer", "multiple\\u004ff": 1e300}',
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_invalid_schema_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: Grammar.json_schema(SCHEMAS[name])) == snapshot


INVALID: dict[str, Callable[[], Grammar]] = {
    "open group": lambda: Grammar.regex("("),
    "look-around": lambda: Grammar.regex("(?=a)b"),
    "not a pattern": lambda: Grammar.regex(cast(Any, 5)),
    "nested groups": lambda: Grammar.regex("(" * 9_000 + ")" * 9_000),
    "unknown rule": lambda: Grammar.lark("start: foo"),
    "nested rules": lambda: Grammar.lark("start: " + "(" * 9_000 + '"a"' + ")" * 9_000),
    "many terms": lambda: Grammar.lark("start: T\nT: " + " & ".join(["/a*/"] * 30)),
    "primes": lambda: Grammar.lark(conjunction("([a-z]{{{}}})*", 2, 3, 5, 7, 11, 13, 17)),
    "counts of counts": lambda: Grammar.lark(conjunction("(([a-z]{{{}}}){{{}}})*", 41, 43)),
    "two terminals": lambda: Grammar.lark("A: /(.{400})*/\nB: /(.{401})*/\nstart: T\nT: A & B"),
    "letters": lambda: Grammar.lark(
        "start: T\nT: " + " & ".join(f"/({'a' * n})*/" for n in (400, 401))
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_grammar_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(INVALID[name]) == snapshot


@pytest.mark.parametrize(
    "pattern", ["[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", r"[\w.]{1,64}@[a-z.]{1,255}"]
)
def test_patterns_of_ordinary_length_are_joined(pattern: str) -> None:
    Grammar.lark(f"start: T\nT: /{pattern}/ & /.{{5,100}}/")


def test_an_ampersand_in_text_is_not_a_conjunction() -> None:
    Grammar.lark("start: " + " ".join(['"&"'] * 40))


def nested(depth: int) -> dict[str, Any]:
    return {} if depth == 0 else {"type": "array", "items": nested(depth - 1)}


HOSTILE: dict[str, Callable[[], Grammar]] = {
    "deep": lambda: Grammar.json_schema(nested(100)),
    "deep text": lambda: Grammar.json_schema("[" * 60_000),
    "repeated": lambda: Grammar.regex("((((a{100}){100}){100}){100})"),
    "many items": lambda: Grammar.json_schema({"type": "array", "minItems": 10**9}),
    "long strings": lambda: Grammar.json_schema({"type": "string", "minLength": 10**7}),
    "conjunction": lambda: Grammar.json_schema(strings(*[f"a.{{{i}}}b" for i in range(16)])),
    "multiples": lambda: Grammar.json_schema({"type": "integer", "multipleOf": 49_999}),
    "no end": lambda: Grammar.json_schema({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    "reference to itself": lambda: Grammar.json_schema({"$ref": "#"}),
    "alternatives of alternatives": lambda: Grammar.json_schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}{j}": {"type": "integer"}}} for j in range(8)]}
                for i in range(8)
            ]
        }
    ),
    "many properties": lambda: Grammar.json_schema(
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2_000)}}
    ),
    "ambiguous": lambda: Grammar.lark('start: s\ns: s s s | s s | "a"? "a"?'),
    "many rules": lambda: Grammar.lark(
        "start: "
        + " ".join(f"r{i}" for i in range(2_000))
        + "\n"
        + "\n".join(f'r{i}: "a"*' for i in range(2_000))
    ),
    "references": lambda: Grammar.json_schema(
        json.dumps(
            {
                "$defs": {
                    f"a{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/a{i + 1}"}] * 9}
                    for i in range(40)
                }
                | {"a40": {}},
                "$ref": "#/$defs/a0",
            }
        )
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_soon_ends_in_text_or_an_error(name: str) -> None:
    tokenizer = tiny_tokenizers.ours("byte_level")

    class Stub:
        vocab_size = tokenizer.vocab_size
        tokens = Tokens()

    manifest: Any = Stub
    begun_at = time.process_time()
    with suppress(GrammarError):
        matcher = GrammarCompiler(manifest, tokenizer).matcher(HOSTILE[name]())
        random = np.random.default_rng(0)
        for _ in range(40):
            if matcher.is_complete:
                break
            logits_V = np.zeros(tokenizer.vocab_size, np.float32)
            matcher.rule_out(logits_V, [])
            matcher.accept(int(random.choice(np.flatnonzero(logits_V == 0))))
    assert time.process_time() - begun_at < LONGEST_S
