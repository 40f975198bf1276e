"""Log-probabilities of tokens, new ones and those of a prompt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime import tiny_decoder
from tests.runtime.chat.tiny_chat import chat_model
from tests.runtime.conftest import POISON
from tests.runtime.tiny_decoder import TinyDecoder

from ortolan.runtime import Decoder, load
from ortolan.runtime.errors import ContextLengthError, MemoryPlanError, NumericError
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.generation.sampling import token_logprobs, top_tokens
from ortolan.runtime.generation.sampling_options import Sampling


@pytest.mark.parametrize("size", [5, 300, 5_000, 70_000])
@pytest.mark.parametrize("scale", [0.1, 5.0, 80.0])
def test_logprobs_equal_pytorch(size: int, scale: float) -> None:
    logits_V = np.random.default_rng(size).normal(0, scale, size).astype(np.float32)
    expected = torch.log_softmax(torch.from_numpy(logits_V).double(), dim=0)
    values, tokens = torch.topk(expected, min(20, size))
    result = token_logprobs(logits_V, size - 1, 20)
    assert [token for token, _ in result.top] == tokens.tolist()
    assert [value for _, value in result.top] == pytest.approx(values.tolist(), rel=1e-5, abs=1e-5)
    assert result.logprob == pytest.approx(float(expected[-1]), rel=1e-5, abs=1e-5)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3_000), st.integers(0, 20), st.integers(1, 50), st.integers(0, 9))
def test_top_tokens_equal_a_stable_sort(size: int, count: int, distinct: int, seed: int) -> None:
    scores_V = np.random.default_rng(seed).integers(0, distinct, size).astype(np.float32)
    expected = np.argsort(-scores_V, kind="stable")[:count]
    assert top_tokens(scores_V, count).tolist() == expected.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    with pytest.raises(NumericError, match="logprobs"):
        token_logprobs(np.array([0, bad, 1], np.float32), 0, 1)


def test_logprobs_do_not_depend_on_sampling_options(model: Decoder, tiny: TinyDecoder) -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, logit_bias={5: 3.0}, seed=1)
    done = model.generate(
        "hello",
        max_new_tokens=12,
        sampling=sampling,
        logprobs=3,
        grammar=Grammar.regex("[a-z]{10}"),
    )
    assert done.logprobs is not None
    assert [logprobs.token for logprobs in done.logprobs] == list(done.tokens)
    assert model.tokenizer is not None
    fed = [*model.tokenizer.encode("hello"), *done.tokens]
    expected_SV = torch.log_softmax(torch.from_numpy(tiny.reference(fed)), dim=1)[4:]
    for logprobs, expected_V in zip(done.logprobs, expected_SV, strict=False):
        assert logprobs.logprob == pytest.approx(float(expected_V[logprobs.token]), abs=1e-3)
        assert [token for token, _ in logprobs.top] == torch.topk(expected_V, 3).indices.tolist()


def test_a_count_of_zero_returns_the_chosen_token_only(model: Decoder) -> None:
    done = model.generate("hello", max_new_tokens=2, logprobs=0)
    assert done.logprobs is not None
    assert [logprobs.top for logprobs in done.logprobs] == [(), ()]
    assert model.generate("hello", max_new_tokens=2).logprobs is None


# --- of a prompt ------------------------------------------------------------------------------

IDS: list[int] = np.random.default_rng(1).integers(0, 90, 301).tolist()
SCORED: Any = {"prompt_logprobs": 3, "max_new_tokens": 0}


def test_they_are_those_of_a_reference(model: Decoder, tiny: TinyDecoder) -> None:
    done, alone = model.generate([IDS, IDS], **SCORED)
    assert done.prompt_logprobs is not None
    assert done.prompt_logprobs == alone.prompt_logprobs
    assert [logprobs.token for logprobs in done.prompt_logprobs] == IDS[1:]
    expected_SV = torch.log_softmax(torch.from_numpy(tiny.reference(IDS)), dim=1)
    for logprobs, expected_V in zip(done.prompt_logprobs, expected_SV[:-1], strict=True):
        assert logprobs.logprob == pytest.approx(float(expected_V[logprobs.token]), abs=1e-3)
        assert [token for token, _ in logprobs.top] == torch.topk(expected_V, 3).indices.tolist()


def empty(model: Decoder, ids: list[int], **options: Any) -> Completion:
    done: Completion = model.generate(ids, **SCORED, **options)
    assert (done.text, done.tokens, done.finish_reason) == ("", (), "length")
    assert done.timings.new_tokens == 0
    return done


def test_no_new_tokens_are_needed(model: Decoder) -> None:
    assert empty(model, IDS, draft=PromptLookup(), logprobs=1).logprobs == ()
    assert empty(model, [5]).prompt_logprobs == ()
    with model.stream("hello", **SCORED) as stream:
        assert list(stream) == []
        assert len(stream.completion.prompt_logprobs or ()) == 4
    with model.serve(slots=2) as service:
        ticket = service.submit("hello", **SCORED)
        assert not list(ticket.pieces())
        assert ticket.result().finish_reason == "length"


@pytest.mark.parametrize("context", [160, 161])
def test_the_longest_prompt_fills_the_context(tmp_path: Path, context: int) -> None:
    path = tiny_decoder.write_bundle(tmp_path / "bundle", context_length=context).path
    model, longest = load(path, Decoder), context - context % 2
    with model.serve(slots=2) as service:
        done = service.submit(IDS[:longest], **SCORED).result()
        assert len(done.prompt_logprobs or ()) == longest - 1
        with pytest.raises(ContextLengthError, match=f"{longest} tokens. Shorten the prompt.$"):
            service.submit(IDS[: longest + 1], **SCORED)


def test_a_defective_prompt_fails_alone(poisoned: Decoder) -> None:
    ids = [token for token in IDS[:200] if token != POISON]
    with poisoned.serve(slots=2) as service:
        sick = service.submit([*ids, POISON, *ids], prompt_logprobs=0, max_new_tokens=3)
        healthy = service.submit(ids, prompt_logprobs=0, max_new_tokens=3)
        with pytest.raises(NumericError, match="logprobs"):
            sick.result()
        assert len(healthy.result().prompt_logprobs or ()) == len(ids) - 1


def test_a_conversation_computes_its_whole_prompt(tmp_path: Path) -> None:
    model = chat_model(tmp_path)
    conversation = model.conversation()
    conversation.ask("Hi.", max_new_tokens=3)
    reply = conversation.ask("And?", max_new_tokens=3, prompt_logprobs=1)
    timings = reply.completion.timings
    assert timings.cached_tokens == 0
    assert len(reply.completion.prompt_logprobs or ()) == timings.prompt_tokens - 1


def test_memory_for_the_logits_of_a_chunk_is_planned(
    model: Decoder, memory_left: Callable[[int], None]
) -> None:
    prompt, states = [1] * 100, 101 * model.manifest.state_bytes("append")
    memory_left(states + 2 * 4 * model.manifest.vocab_size)
    model.generate(prompt, max_new_tokens=1)
    with pytest.raises(MemoryPlanError):
        model.generate(prompt, max_new_tokens=1, prompt_logprobs=0)
