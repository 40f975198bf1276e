"""Texts that follow a grammar, checked by jsonschema and by `re`."""

import json
import re
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_tokenizers
from tests.runtime.generation.random_schemas import random_schema
from tests.runtime.tiny_decoder import EOS, VOCABULARY

from ortolan.distribution import pip_install
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import GrammarError, MissingExtraError
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.grammar import Grammar, GrammarCompiler, GrammarMatcher
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.inputs.tokenizer import Tokenizer

WARM = Sampling(temperature=1.0, seed=5)
DATE = Grammar.regex(r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]")
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "unit": {"enum": ["mm", "cm"]}},
    "required": ["x", "unit"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler(model: Decoder) -> GrammarCompiler:
    assert model.tokenizer is not None
    return GrammarCompiler(model.manifest, model.tokenizer)


def ids(text: str) -> list[int]:
    return [ord(letter) - 0x20 for letter in text]


def allowed(matcher: GrammarMatcher, ends: Sequence[int] = (EOS,)) -> set[int]:
    logits_V = np.zeros(VOCABULARY, np.float32)
    matcher.rule_out(logits_V, ends)
    return set(np.flatnonzero(logits_V == 0).tolist())


def check_valid(completion: Completion, schema: Any) -> None:
    jsonschema.validate(json.loads(completion.text), schema, cls=jsonschema.Draft202012Validator)


# --- schemas, regular expressions, Lark -----------------------------------------------------------


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 500), marks=pytest.mark.slow)]
)
def test_finished_text_is_valid_under_its_random_schema(model: Decoder, seeds: range) -> None:
    finished = 0
    for seed in seeds:
        schema = random_schema(Random(seed))
        grammar = Grammar.json_schema(schema, whitespace=seed % 2 == 0)
        done = model.generate(
            "x",
            max_new_tokens=400,
            grammar=grammar,
            sampling=Sampling(temperature=1.0, seed=seed),
        )
        if done.finish_reason == "stop":
            finished += 1
            check_valid(done, schema)
    assert finished > 0.9 * len(seeds)


def finished_texts(model: Decoder, grammar: Grammar) -> list[str]:
    done = model.generate("x", n=20, max_new_tokens=200, grammar=grammar, sampling=WARM)
    texts = [completion.text for completion in done if completion.finish_reason == "stop"]
    assert len(texts) > 5
    return texts


@pytest.mark.parametrize("pattern", [r"(ab|cd)+e?", r"[A-F0-9]{8}", r"x*", r"\d+(\.\d+)?"])
def test_finished_text_matches_its_regex(model: Decoder, pattern: str) -> None:
    texts = finished_texts(model, Grammar.regex(pattern))
    assert all(re.fullmatch(pattern, text, re.ASCII) for text in texts)


def test_text_follows_a_lark_grammar(model: Decoder) -> None:
    texts = finished_texts(model, Grammar.lark('start: sum\nsum: "(" sum "+" sum ")" | /[0-9]/'))
    assert all(isinstance(eval(text), int) for text in texts)  # digits, + and brackets


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "tokens", "shown", "reason"),
    [
        ({}, 10, 10, "stop"),
        ({"max_new_tokens": 10}, 10, 10, "stop"),
        ({"max_new_tokens": 4}, 4, 4, "length"),
        ({"stop": ["-"]}, 5, 4, "stop"),
    ],
    ids=["complete", "complete at the limit", "cut off", "stop text"],
)
def test_a_text_ends_without_another_token(
    model: Decoder, options: dict[str, Any], tokens: int, shown: int, reason: str
) -> None:
    done = model.generate("x", grammar=DATE, **options)
    assert (len(done.tokens), len(done.text), done.finish_reason) == (tokens, shown, reason)
    assert re.fullmatch(r"[12]\d{3}(-[01]\d-[0-3]\d)?", done.text)


LIKELY_END: dict[str, Any] = {"sampling": Sampling(logit_bias={EOS: 1000.0})}
STOP: dict[str, Any] = {
    "sampling": Sampling(logit_bias={ids("b")[0]: 1000.0}),
    "stop_tokens": ids("b"),
}
SEVENS = Sampling(logit_bias={ids("7")[0]: 500.0, ids("z")[0]: 900.0})

ENDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "EOS": ("(abc)+", LIKELY_END, "abc", "stop"),
    "EOS ignored": ("(abc)+", {**LIKELY_END, "ignore_eos": True}, "abcabcabc", "length"),
    "stop token": ("a{3,}", STOP, "aaa", "stop"),
    "late end": ("a+", {**LIKELY_END, "min_new_tokens": 7}, "a" * 7, "stop"),
    "complete before": ("a{5}", {**LIKELY_END, "min_new_tokens": 7}, "aaaaa", "stop"),
    "biased": ("[0-9]{5}", {"sampling": SEVENS}, "77777", "stop"),
    "one letter allowed": ("a[éb]", {}, "ab", "stop"),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends_and_biases_apply_where_the_grammar_allows(model: Decoder, name: str) -> None:
    pattern, options, text, reason = ENDS[name]
    done = model.generate("x", max_new_tokens=9, grammar=Grammar.regex(pattern), **options)
    assert (done.text, done.finish_reason) == (text, reason)


@pytest.mark.parametrize(("pattern", "options"), [("ab", STOP), ("a[é]", {})])
def test_a_grammar_that_no_token_can_continue_fails_its_request(
    model: Decoder, pattern: str, options: dict[str, Any]
) -> None:
    with pytest.raises(GrammarError, match="No token"):
        model.generate("x", max_new_tokens=9, grammar=Grammar.regex(pattern), **options)


# --- batches --------------------------------------------------------------------------------------


def test_completions_do_not_share_a_state(model: Decoder) -> None:
    done = model.generate(
        "x", n=6, max_new_tokens=99, grammar=Grammar.json_schema(POINT), sampling=WARM
    )
    for completion in done:
        check_valid(completion, POINT)
    assert len({completion.text for completion in done}) > 1


def test_forced_tokens_are_always_accepted_drafts(model: Decoder) -> None:
    schema = {"const": {"a long name": [1, 2, 3], "another": None}}
    grammar = Grammar.json_schema(schema, whitespace=False)
    plain = model.generate("x", grammar=grammar)
    drafted = model.generate("x", grammar=grammar, draft=PromptLookup())
    assert drafted.tokens == plain.tokens
    timings = drafted.timings
    # the last one ends the text before it is counted
    assert timings.accepted_tokens == timings.drafted_tokens - 1 > 30


@pytest.mark.parametrize("seed", range(8))
def test_a_sequence_with_a_draft_follows_its_grammar(model: Decoder, seed: int) -> None:
    schema = random_schema(Random(seed))
    grammar = Grammar.json_schema(schema, whitespace=False)
    sampling = Sampling(temperature=1.0, seed=seed)
    options: dict[str, Any] = {"max_new_tokens": 200, "grammar": grammar, "sampling": sampling}
    drafted = model.generate('{"name": "size"}', draft=PromptLookup(), **options)
    assert drafted.tokens == model.generate('{"name": "size"}', **options).tokens
    if drafted.finish_reason == "stop":
        check_valid(drafted, schema)


# --- the matcher ----------------------------------------------------------------------------------


def test_forced_tokens_equal_masked_ones(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"a_long_name": {"const": [1, 2]}}}
    grammar = Grammar.json_schema(
        schema | {"required": ["a_long_name"], "additionalProperties": False}, whitespace=False
    )
    forced, masked = compiler.matcher(grammar), compiler.matcher(grammar)
    tokens = list(forced.forced)
    for token in tokens:
        (only,) = allowed(masked)
        assert only == token
        masked.accept(only)
        forced.accept(token)
    assert tokens == ids('{"a_long_name":[1,2]}')
    assert forced.is_complete
    assert masked.is_complete
    matcher = compiler.matcher(Grammar.regex("a[bc]*"))
    matcher.accept(*ids("a"))
    assert (matcher.may_end, matcher.is_complete, matcher.forced) == (True, False, ())
    assert allowed(matcher) == {*ids("bc"), EOS}
    assert allowed(matcher, ends=()) == set(ids("bc"))


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "gemma"])
def test_other_tokenizers_follow_the_grammar(kind: str) -> None:
    tokenizer = tiny_tokenizers.ours(kind)
    compiler = GrammarCompiler(_manifest(tokenizer), tokenizer)
    matcher = compiler.matcher(Grammar.regex(r"Hello, ü日[a-z]{3}"))
    random, tokens = Random(3), []
    while not matcher.is_complete:
        logits_V = np.zeros(tokenizer.vocab_size, np.float32)
        matcher.rule_out(logits_V, [])
        tokens.append(random.choice(np.flatnonzero(logits_V == 0).tolist()))
        matcher.accept(tokens[-1])
    assert re.fullmatch(r"Hello, ü日[a-z]{3}", tokenizer.decode(tokens))


def _manifest(tokenizer: Tokenizer) -> Any:
    class Stub:
        vocab_size = tokenizer.vocab_size
        tokens = Tokens()

    return Stub


# --- rejections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wordpiece", "metaspace", "words"])
def test_an_unsupported_tokenizer_is_refused(kind: str, snapshot: SnapshotAssertion) -> None:
    tokenizer = tiny_tokenizers.ours(kind)
    compiler = GrammarCompiler(_manifest(tokenizer), tokenizer)
    assert refusal(lambda: compiler.matcher(DATE)) == snapshot


def test_without_its_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match=re.escape(pip_install("grammar"))):
        Grammar.regex("a")
