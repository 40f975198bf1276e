"""models/pythonic: real weights, real text."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

import ortolan
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.options import Attention
from ortolan.export.quantize import find
from ortolan.export.quantize.calibrate import calibrated_weights
from ortolan.export.quantize.rounding import Part, QuantizedWeight
from ortolan.runtime import Bundle, open_bundle
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.replay import verify

CHECKPOINT = Path(__file__).parents[2] / "models" / "pythonic"
PROMPT = "def read_lines(path):\n"
NEAR_TIE = 1e-3


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("pythonic") / "bundle"
    ortolan.export(CHECKPOINT, out, options=ortolan.ExportOptions(attention="portable"))
    return open_bundle(out)


def test_certificate_of_real_text_passes(portable: Bundle) -> None:
    measured = read_certificate(portable).measured
    assert measured is not None
    assert measured.verdict == "PASS"
    assert measured.top1_agreement == 1.0


def test_greedy_text_equals_hugging_face(portable: Bundle) -> None:
    auto: Any = AutoModelForCausalLM  # untyped
    reference = auto.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    model = ortolan.load(portable.path)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(PROMPT)
    ours = model.generate(ids, max_new_tokens=96, ignore_eos=True).tokens
    with torch.inference_mode():
        theirs = reference.generate(torch.tensor([ids]), max_new_tokens=len(ours), do_sample=False)
        logits = reference(torch.tensor([[*ids, *ours]])).logits[0, len(ids) - 1 :].numpy()
    if theirs[0, len(ids) :].tolist() == list(ours):
        return
    # The texts differ after a near tie, so each token is compared with the likeliest there.
    for index, token in enumerate(ours):
        assert logits[index].max() - logits[index, token] <= NEAR_TIE, f"token {index}"


def test_a_portable_bundle_generates_the_same_tokens_in_onnx_reference(portable: Bundle) -> None:
    model = ortolan.load(portable.path)
    assert model.tokenizer is not None
    ids = list(model.tokenizer.encode(PROMPT))
    expected = model.generate(ids, max_new_tokens=8, ignore_eos=True).tokens
    logits = in_onnx_reference(portable, [ids, *([token] for token in expected[:-1])])
    assert tuple(int(row.argmax()) for row in logits) == expected


class CalibratedOnce:
    """`calibrated_weights` that returns its first result again for exports of the same plan."""

    def __init__(self) -> None:
        self._plan: Any = None
        self._weights: list[tuple[QuantizedWeight, tuple[Part, ...]]] = []

    def __call__(
        self, model: Exportable, plan: Any, inputs: Inputs, **options: Any
    ) -> Iterator[QuantizedWeight]:
        if not self._weights:
            weights = calibrated_weights(model, plan, inputs, **options)
            self._plan, self._weights = plan, [(w, tuple(w.parts)) for w in weights]
        assert plan == self._plan
        for weight, parts in self._weights:
            yield replace(weight, parts=iter(parts))


@pytest.fixture(scope="module")
def int4(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Default int4 bundles, by attention."""
    out = tmp_path_factory.mktemp("int4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find, "calibrated_weights", CalibratedOnce())
        for attention in get_args(Attention):
            options = ortolan.ExportOptions(attention=attention)
            ortolan.export(CHECKPOINT, out / attention, precision="int4", options=options)
    return {path.name: open_bundle(path) for path in out.iterdir()}


@pytest.mark.slow  # calibrated on real text
def test_int4_is_calibrated_on_the_text_next_to_the_checkpoint(int4: dict[str, Bundle]) -> None:
    quantized = int4["fused"].manifest.quantized
    assert {(t.method, t.group) for t in quantized} == {("gptq", 32)}  # its rows are narrow
    measured = read_certificate(int4["fused"]).measured
    assert measured is not None
    assert measured.mean_kl is not None
    assert measured.perplexity is not None
    assert measured.reference_perplexity is not None
    # on text that it was neither trained nor calibrated on
    assert measured.mean_kl < 0.03
    assert measured.perplexity < 1.05 * measured.reference_perplexity


@pytest.mark.slow  # calibrated on real text
def test_fused_and_portable_int4_are_exact_and_generate_the_same_tokens(
    int4: dict[str, Bundle],
) -> None:
    tokens = []
    for bundle in int4.values():
        model = ortolan.load(bundle.path)
        tokens.append(model.generate(PROMPT, max_new_tokens=256, ignore_eos=True).tokens)
        report = verify(bundle.path)
        assert report.exact is not None
        assert report.exact.different == ()
    assert tokens[0] == tokens[1]


@pytest.mark.slow  # calibrated on real text
def test_portable_int4_runs_in_onnx_reference(int4: dict[str, Bundle]) -> None:
    model = ortolan.load(int4["portable"].path)
    assert model.tokenizer is not None
    ids = list(model.tokenizer.encode(PROMPT))
    expected = model.logits([*ids, ids[0]])[-2:]
    logits = np.stack(in_onnx_reference(int4["portable"], [ids, ids[:1]]))
    # the kernel rounds activations to 8 bits, the standard operators do not
    np.testing.assert_allclose(logits, expected, atol=0.05 * np.abs(expected).max())


def in_onnx_reference(bundle: Bundle, steps: list[list[int]]) -> list[Any]:
    """Logits after each step, computed by the onnx package alone."""
    evaluator = ReferenceEvaluator(onnx.load(bundle.file("decoder.onnx")))
    states = bundle.manifest.states
    sizes = {"batch": 1, "capacity": 64}
    cache: dict[str, Any] = {
        state.input: np.zeros(
            [sizes[size] if isinstance(size, str) else size for size in state.shape], state.dtype
        )
        for state in states
    }
    rows, length = [], 0
    for new in steps:
        length += len(new)
        step = {
            "input_ids": np.array([new], np.int64),
            "seqlens_k": np.array([length - 1], np.int32),
            "total_sequence_length": np.array(length, np.int32),
            "logit_positions": np.array([[len(new) - 1]], np.int64),
        }
        outputs: list[Any] = list(evaluator.run(None, step | cache))
        logits, *present = outputs
        cache = {state.input: value for state, value in zip(states, present, strict=True)}
        rows.append(logits[0, 0])
    return rows
