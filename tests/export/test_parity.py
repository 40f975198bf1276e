"""Decoders against PyTorch and transformers, beyond what holds for all."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases.modules import TINY
from tests.cases.run import Run, Runs
from tests.export.tiny_models import CONTEXT
from tests.tiny.numbers import assert_close, random_ids

from ortolan.runtime import verify


@pytest.fixture
def llama(runs: Runs) -> Run:
    return runs(TINY["llama"])


def test_last_position_of_the_context_equals_pytorch(runs: Runs) -> None:
    case, ids = TINY["gpt2-portable"], random_ids(300)
    run = runs(case)
    assert run.model.manifest.context_length == len(ids)
    assert case.logits is not None
    with run.model.session() as session:
        session.append(ids[:-1])
        got = session.append(ids[-1:])
    assert_close(got, case.logits(run.checkpoint, ids)[-1])


def test_answers_and_log_probabilities_of_a_prompt_are_those_of_hugging_face(
    llama: Run, checkpoint: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaForCausalLM

        theirs: Any = LlamaForCausalLM.from_pretrained(str(checkpoint))
        ids = random_ids(200)
        alone: Any = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        written = theirs.generate(torch.tensor([ids]), **alone, max_new_tokens=48)[0, 200:].tolist()
        with torch.inference_mode():
            wanted = torch.log_softmax(theirs(torch.tensor([ids])).logits[0], dim=-1)
    done = llama.model.generate(ids, max_new_tokens=48, ignore_eos=True, prompt_logprobs=0)
    assert list(done.tokens) == written
    assert len(set(written)) > 3
    assert done.prompt_logprobs is not None
    got = [logprobs.logprob for logprobs in done.prompt_logprobs]
    expected = [float(row[token]) for row, token in zip(wanted, ids[1:], strict=False)]
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_split_and_unified_graphs_give_the_same_logits(llama: Run, runs: Runs) -> None:
    unified, split = llama.model, runs(TINY["llama-split-portable"]).model
    assert set(split.manifest.graphs) == {"prefill", "decode"}
    ids = random_ids(30)
    # The portable graph does not fuse sum and norm, which changes the last digit.
    np.testing.assert_allclose(split.logits(ids), unified.logits(ids), atol=1e-5)
    with unified.session() as one, split.session() as other:
        for token in ids:
            np.testing.assert_allclose(other.append([token]), one.append([token]), atol=1e-5)


def test_half_precision_is_half_the_size(llama: Run, runs: Runs) -> None:
    half = runs(TINY["llama-fp16"])
    assert verify(half.bundle, threads=1).max_abs_delta > 1e-5  # evidence that it was used
    assert {state.dtype for state in half.model.manifest.states} == {"float16"}
    sizes = [
        sum(tensor.length for tensor in run.model.bundle.graphs["decoder"].external)
        for run in (half, llama)
    ]
    assert sizes[0] * 2 == sizes[1]


def test_context_length_is_the_one_that_was_asked_for(llama: Run, runs: Runs) -> None:
    assert llama.model.manifest.context_length == CONTEXT
    assert runs(TINY["qwen2-long"]).model.manifest.context_length == 400
