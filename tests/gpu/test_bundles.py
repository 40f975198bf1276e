"""A trained model in float16 on a device, against PyTorch in float32 on the CPU."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.runtime.damaged_bundles import damage

import ortolan
from ortolan.export.proof.certificate import THRESHOLDS
from ortolan.modeling import load as load_module
from ortolan.runtime import Bundle, Decoder, DeviceError, verify
from ortolan.runtime.engine.providers import choose_device, obstacle

Numbers = NDArray[np.float32]

CHECKPOINT = Path(__file__).parents[2] / "models" / "pythonic"

PROMPT = "def read_lines(path):\n"

TEXT = CHECKPOINT / "calibration.txt"

POSITIONS, STEPS = 512, 96

MEAN_KL = 1e-4
"""Largest mean KL divergence, in nats. Float16 on the CPU reaches 1e-6."""

NEAR_TIE = THRESHOLDS["fp16"].near_tie or 0.0
"""Largest distance of a chosen token's logit from the best one."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("cpu", marks=pytest.mark.slow),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def device(request: pytest.FixtureRequest) -> str:
    """A device that the runtime can use; otherwise the test is skipped with its reason."""
    name: str = request.param
    try:
        choose_device(name, (name,), obstacle)
    except DeviceError as error:
        pytest.skip(str(error))
    return name


@pytest.fixture(scope="module")
def bundle(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("halves") / "bundle"
    bundle: Bundle = ortolan.export(CHECKPOINT, out, device=device, precision="fp16")
    return bundle


@pytest.fixture(scope="module")
def model(device: str, bundle: Bundle) -> Decoder:
    return ortolan.load(bundle.path, Decoder, device=device, threads=1)


@cache
def reference(ids: tuple[int, ...]) -> Numbers:
    """Logits of PyTorch in float32."""
    with torch.inference_mode():
        logits: Numbers = load_module(CHECKPOINT).eval()(torch.tensor([ids]))[0].float().numpy()
    return logits


def mean_kl(expected: Numbers, got: Numbers) -> float:
    p, q = (torch.from_numpy(logits).double().log_softmax(-1) for logits in (expected, got))
    return float((p.exp() * (p - q)).sum(-1).mean())


def below_the_best(logits: Numbers, chosen: NDArray[np.integer[Any]]) -> Numbers:
    """How far each chosen token's logit is below the best one."""
    own: Numbers = np.take_along_axis(logits, chosen[:, None], axis=-1)[:, 0]
    return np.asarray(logits.max(-1) - own, np.float32)


def test_logits_are_those_of_pytorch(model: Decoder, device: str) -> None:
    assert model.tokenizer is not None
    ids = tuple(model.tokenizer.encode(TEXT.read_text()))[:POSITIONS]
    expected, got = reference(ids), model.logits(ids)
    assert mean_kl(expected, got) <= MEAN_KL
    # They are not those of float32, and a shift by one token would show.
    assert np.abs(got - expected).max() > 1e-4
    assert mean_kl(expected[:-1], got[1:]) > 100 * MEAN_KL
    gaps = below_the_best(expected, got.argmax(-1))
    assert gaps.max() <= NEAR_TIE
    print(f"{device}: {(gaps > 0).sum()} near ties in {len(ids)}")
    assert (gaps > 0).mean() < 0.01


def test_greedy_tokens_are_those_of_pytorch_but_for_near_ties(model: Decoder, device: str) -> None:
    assert model.tokenizer is not None
    ids = list(model.tokenizer.encode(PROMPT))
    prompts = [ids, ids[:3]]
    done = model.generate(prompts, max_new_tokens=STEPS, ignore_eos=True)
    for prompt, completion in zip(prompts, done, strict=True):
        tokens = completion.tokens
        expected = reference((*prompt, *tokens))[len(prompt) - 1 : -1]
        gaps = below_the_best(expected, np.array(tokens))
        assert gaps.max() <= NEAR_TIE
        print(f"{device}: {(gaps > 0).sum()} near ties in {len(tokens)}")
        assert (gaps > 0).mean() < 0.05
        assert below_the_best(expected, np.roll(tokens, 1)).max() > NEAR_TIE


def test_verify_passes_until_a_weight_is_damaged(
    bundle: Bundle, device: str, tmp_path: Path
) -> None:
    report = verify(bundle.path, device=device, threads=1, isolate=False)
    assert (report.verdict, report.device, report.non_finite) == ("PASS", device, 0)
    assert report.mean_kl is not None
    assert report.mean_kl <= MEAN_KL
    assert set(report.phases) == {"prefill", "decode", "chunked", "batch"}
    copy = tmp_path / "bundle"
    shutil.copytree(bundle.path, copy)
    name = "blocks.3.attention.out.weight"

    def change(values: NDArray[Any]) -> None:
        values[7] *= 4

    damage(copy, name, change)
    report = verify(copy, device=device, threads=1, exact=False, isolate=False)
    assert report.verdict == "FAIL"
    assert report.weights is not None
    assert report.weights.wrong == (name,)
