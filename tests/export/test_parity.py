import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.export.conftest import Exported
from tests.export.tiny_models import CASES, CONTEXT
from tests.tiny.numbers import random_ids

from ortolan.export.proof.certificate import THRESHOLDS
from ortolan.modeling import DecoderModel
from ortolan.runtime import verify

Export = Callable[[str], Exported]

EXACT = [name for name in CASES if "fp16" not in name]

PROMPTS = [[1, 5, 9, 13, 44], [3], [60, 2, 7, 7, 90, 11, 12, 31, 8]]


def torch_logits(module: DecoderModel, ids: Sequence[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        logits: NDArray[np.float32] = module(torch.tensor([ids]))[0].numpy()
    return logits


def torch_greedy(module: DecoderModel, prompt: Sequence[int], new: int) -> tuple[int, ...]:
    ids = list(prompt)
    for _ in range(new):
        ids.append(int(torch_logits(module, ids)[-1].argmax()))
    return tuple(ids[len(prompt) :])


def assert_close(got: NDArray[np.float32], wanted: NDArray[np.float32], precision: str) -> None:
    delta = THRESHOLDS[precision].max_abs_delta
    assert delta is not None
    bound = delta * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("name", CASES)
def test_logits_of_a_text_equal_pytorch(name: str, exported: Export) -> None:
    case = exported(name)
    ids = random_ids(100)
    wanted = torch_logits(case.reference, ids)
    assert wanted.std() > 0.1  # not a constant model
    assert_close(case.model.logits(ids), wanted, case.model.manifest.precision)


@pytest.mark.parametrize("name", CASES)
def test_cached_steps_of_any_length_equal_pytorch(name: str, exported: Export) -> None:
    case = exported(name)
    ids = random_ids(40)
    wanted = torch_logits(case.reference, ids)
    with case.model.session() as session:
        start = 0
        for stop in (5, 8, *range(9, 21), 33, 34, 40):
            got = session.append(ids[start:stop])
            assert_close(got, wanted[stop - 1], case.model.manifest.precision)
            start = stop


@pytest.mark.parametrize("name", EXACT)
def test_ragged_batch_generates_greedily_what_pytorch_does(name: str, exported: Export) -> None:
    case = exported(name)
    done = case.model.generate(PROMPTS, max_new_tokens=20, ignore_eos=True)
    for prompt, completion in zip(PROMPTS, done, strict=True):
        assert tuple(completion.tokens) == torch_greedy(case.reference, prompt, 20)


def test_last_position_of_the_context_equals_pytorch(exported: Export) -> None:
    case = exported("gpt2-portable")
    ids = random_ids(300)
    assert case.model.manifest.context_length == len(ids)
    with case.model.session() as session:
        session.append(ids[:-1])
        got = session.append(ids[-1:])
    assert_close(got, torch_logits(case.reference, ids)[-1], "fp32")


def test_llama_generates_greedily_what_hugging_face_does(
    exported: Export, checkpoint: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaForCausalLM

        theirs: Any = LlamaForCausalLM.from_pretrained(str(checkpoint))
        prompt = torch.tensor([PROMPTS[0]])
        ids = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=48,
            eos_token_id=None,
            pad_token_id=0,
        )
    wanted = tuple(ids[0, prompt.shape[1] :].tolist())
    ours = exported("llama").model.generate(PROMPTS[0], max_new_tokens=48, ignore_eos=True)
    assert tuple(ours.tokens) == wanted
    assert len(set(wanted)) > 5


def test_log_probabilities_of_a_prompt_are_those_of_hugging_face(
    exported: Export, checkpoint: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaForCausalLM

        theirs: Any = LlamaForCausalLM.from_pretrained(str(checkpoint))
        ids = random_ids(200)
        with torch.inference_mode():
            wanted = torch.log_softmax(theirs(torch.tensor([ids])).logits[0], dim=-1)
    done = exported("llama").model.generate(ids, max_new_tokens=0, prompt_logprobs=0)
    assert done.prompt_logprobs is not None
    got = [logprobs.logprob for logprobs in done.prompt_logprobs]
    expected = [float(row[token]) for row, token in zip(wanted, ids[1:], strict=False)]
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_split_and_unified_graphs_give_the_same_logits(exported: Export) -> None:
    unified, split = exported("llama").model, exported("llama-split-portable").model
    assert set(split.manifest.graphs) == {"prefill", "decode"}
    ids = random_ids(30)
    # The portable graph does not fuse sum and norm, which changes the last digit.
    np.testing.assert_allclose(split.logits(ids), unified.logits(ids), atol=1e-5)
    with unified.session() as one, split.session() as other:
        for token in ids:
            np.testing.assert_allclose(other.append([token]), one.append([token]), atol=1e-5)


def test_fp16_bundle_keeps_within_its_thresholds_at_half_the_size(exported: Export) -> None:
    half, full = exported("llama-fp16").bundle, exported("llama").bundle
    report = verify(half.path, threads=1)
    assert report.verdict != "FAIL"
    # Evidence that half precision was used.
    assert report.max_abs_delta > 1e-5
    assert {state.dtype for state in half.manifest.states} == {"float16"}
    sizes = [
        sum(tensor.length for tensor in bundle.graphs["decoder"].external)
        for bundle in (half, full)
    ]
    assert sizes[0] * 2 == sizes[1]


def test_verify_replays_every_phase_of_an_exported_bundle(exported: Export) -> None:
    bundle = exported("qwen2-long").bundle
    report = verify(bundle.path, threads=1)
    assert report.verdict == "PASS"
    assert set(report.phases) == {"prefill", "decode", "chunked", "batch"}


def test_context_length_is_the_one_that_was_asked_for(exported: Export) -> None:
    assert exported("llama").bundle.manifest.context_length == CONTEXT
    assert exported("qwen2-long").bundle.manifest.context_length == 400
