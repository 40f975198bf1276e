"""Schemas are enforced for parsed text, with duplicate and respelled keys."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_tokenizers

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import GrammarError
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.grammar import Grammar, GrammarCompiler, GrammarMatcher
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.schemas import ObjectKeys, close_schemas

TEXT, COUNT = {"type": "string"}, {"type": "integer"}
OPEN = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}


class Stub:
    vocab_size = tiny_tokenizers.ours("byte_level").vocab_size
    tokens = Tokens()


def matcher(grammar: Grammar) -> GrammarMatcher:
    manifest: Any = Stub
    return GrammarCompiler(manifest, tiny_tokenizers.ours("byte_level")).matcher(grammar)


def passes(grammar: Grammar, text: str) -> bool:
    """Whether every token of a text is allowed where it comes, and the text may end there."""
    follower = matcher(grammar)
    _, *tokens = tiny_tokenizers.ours("byte_level").encode(text)  # without the beginning of text
    for token in tokens:
        logits_V = np.zeros(Stub.vocab_size, np.float32)
        follower.rule_out(logits_V, [])
        if logits_V[token] != 0:
            return False
        follower.accept(token)
    return follower.may_end


def schema_passes(schema: dict[str, Any], text: str) -> bool:
    return passes(Grammar.json_schema(schema, whitespace=False), text)


# --- one spelling of each key ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"a": TEXT}}, r'{"\u0061":1}'),
        (OPEN, r'{"a":"x","\u0061":1}'),
        ({"type": "object", "required": ["a"], "additionalProperties": COUNT}, r'{"\u0061":"x"}'),
        ({"type": "object", "properties": {"a": False}}, r'{"\u0061":1}'),
        ({"type": "object", "properties": {"a\n": TEXT}}, r'{"a\u000a":1}'),
        ({"type": "object", "properties": {'a"': TEXT}}, r'{"a\u0022":1}'),
        ({"type": "object", "properties": {"é": TEXT}}, r'{"\u00e9":1}'),
        ({"type": "object", "patternProperties": {"^x": TEXT}}, r'{"\u0078":1}'),
        (
            {
                "oneOf": [
                    {**OPEN, "properties": {"k": {"const": "A"}}, "required": ["k"]},
                    {**OPEN, "properties": {"k": {"const": "B"}, "v": TEXT}, "required": ["k"]},
                ]
            },
            r'{"k":"A","\u006b":"B","v":1}',
        ),
    ],
)
def test_a_respelled_key_does_not_pass(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(text), schema)
    assert not schema_passes(schema, text)


def test_an_embedded_schema_allows_one_spelling() -> None:
    grammar = Grammar.lark(f'start: "%json {{}}" a // %json {{\na: %json {json.dumps(OPEN)}\n')
    assert passes(grammar, '%json {}{"a":"x","b":1}')
    assert not passes(grammar, r'%json {}{"a":"x","\u0061":1}')


@pytest.mark.parametrize(
    "rule",
    [
        '/"/ a',
        '/[^\n"x]/ a',
        '/a\\/"\n/ a',
        '"\\"" a  # it\'s "quoted',
        'a // a "comment',
        'a | <[5]> | <"x> "',
    ],
)
def test_an_embedded_schema_is_found_among_quotes(rule: str) -> None:
    schema = json.dumps(OPEN)
    closed = close_schemas(f"start: {rule}\na: %json // {{}}\n {schema}\n")
    assert "json_allowed_escapes" in closed
    assert closed.startswith(f"start: {rule}\na: %json // {{}}\n {{")


# --- key counts ---------------------------------------------------------------------------------

TWO = {"type": "object", "minProperties": 2}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (TWO, '{"a":1,"a":2}', False),
        (TWO, '{"a":1,"b":2}', True),
        (TWO, '{"a":1,"b":2,"a":3}', False),
        (TWO, '{"a":{"a":1},"b":[{"a":1},{"a":2}]}', True),
        (TWO, r'{"a\"":1,"a\"":2}', False),
        (TWO, r'{"a\\":"a\"a","a":"\\"}', True),
        (TWO, '{"a":1,"":2}', True),
        (TWO, '{"":1,"":2}', False),
        ({"type": "array", "items": TWO}, '[{"a":1,"b":2},{"a":1,"a":2}]', False),
        ({"type": "array", "items": TWO}, '[{"a":1,"b":2},{"a":1,"b":2}]', True),
        ({**OPEN, "minProperties": 3}, '{"a":"x","b":1,"b":2}', False),
        ({**TWO, "patternProperties": {"^x": TEXT}, "additionalProperties": False},
         '{"x":"s","x":"t"}', False),
        ({"type": "object", "minProperties": 1}, '{"a":1,"a":2}', True),
        (OPEN, r'{"a":"a \" \\ \n","b c":{"a":1,"a":[{"a":2}]}}', True),
    ],
)  # fmt: skip
def test_counted_properties_have_different_keys(
    schema: dict[str, Any], text: str, expected: bool
) -> None:
    assert schema_passes(schema, text) == expected


def test_a_token_that_completes_a_duplicate_key_is_ruled_out() -> None:
    keys = ObjectKeys().follow(b'{"a": {"b": "a')
    assert keys is not None
    assert keys.follow(b'"}, "a') is not None
    assert keys.follow(b'"}, "a"') is None
    assert keys.follow(b'", "b":') is None
    assert keys.follow(b'", "c": [",", "b", "b"], "d": 1}, "b"') is not None


# --- rejections ----------------------------------------------------------------------------------


NOT_ENFORCED: dict[str, Any] = {
    "lenient": {**OPEN, "minLength": 5, "x-guidance": {"lenient": True}},
    "coerced": {"oneOf": [OPEN, TWO], "x-guidance": {"coerce_one_of": True}},
    "several spellings": {**OPEN, "x-guidance": {"json_allowed_escapes": "u"}},
    "control characters": {"enum": ["a", "\x01"]},
    "list of guidance": {"x-guidance": ["lenient"]},
    "overlapping alternatives": {"oneOf": [COUNT, {"type": "number"}]},
}


@pytest.mark.parametrize("name", NOT_ENFORCED)
def test_a_schema_that_would_not_be_enforced_is_refused(
    name: str, snapshot: SnapshotAssertion
) -> None:
    schema = NOT_ENFORCED[name]
    assert refusal(lambda: Grammar.json_schema(schema)) == snapshot
    refusal(lambda: Grammar.lark(f"start: %json {json.dumps(schema)}"))


def test_an_embedded_schema_cannot_count_keys(snapshot: SnapshotAssertion) -> None:
    text = f"start: /x*/ %json {json.dumps(TWO)}"
    assert refusal(lambda: Grammar.lark(text)) == snapshot


def test_a_forced_duplicate_key_is_an_error() -> None:
    schema = {**TWO, "patternProperties": {"^a$": COUNT}, "additionalProperties": False}
    follower = matcher(Grammar.json_schema(schema, whitespace=False))
    with pytest.raises(GrammarError, match="duplicate key"):  # noqa: PT012
        for _ in range(40):
            logits_V = np.zeros(Stub.vocab_size, np.float32)
            follower.rule_out(logits_V, [])
            follower.accept((*follower.forced, int(np.argmax(logits_V)))[0])


# --- through a model ------------------------------------------------------------------------------


MAP = {
    **TWO,
    "minProperties": 3,
    "patternProperties": {"^[abc]+$": {"type": "boolean"}},
    "additionalProperties": False,
}


def test_every_way_to_generate_returns_enough_keys(model: Decoder) -> None:
    options: dict[str, Any] = {
        "max_new_tokens": 200,
        "grammar": Grammar.json_schema({**MAP, "maxProperties": 3}, whitespace=False),
        "sampling": Sampling(temperature=1.0, seed=3),
    }
    done = model.generate(["x", "y"], n=8, **options)
    stream = model.stream("x", **options)
    texts = ["".join(stream), *(completion.text for completion in done)]
    texts.append(model.generate("x", draft=PromptLookup(), **options).text)
    with model.serve() as service:
        texts += [service.submit("x", **options).result().text for _ in range(4)]
    for text in texts:
        assert len(json.loads(text)) == 3, text
