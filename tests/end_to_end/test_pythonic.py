"""The trained model of this repository: real weights, real text."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from tests.end_to_end.test_hugging_face import same_but_near_ties
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

import ortolan
from ortolan.runtime import Bundle, open_bundle
from ortolan.runtime.certificate import read

CHECKPOINT = Path(__file__).parents[2] / "models" / "pythonic"
PROMPT = "def read_lines(path):\n"


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("pythonic") / "bundle"
    ortolan.export(CHECKPOINT, out, attention="portable")
    return open_bundle(out)


def test_certificate_of_real_text_passes(portable: Bundle) -> None:
    measured = read(portable).measured
    assert measured is not None
    assert measured.verdict == "PASS"
    assert measured.top1_agreement == 1.0


def test_greedy_text_equals_hugging_face(portable: Bundle) -> None:
    auto: Any = AutoModelForCausalLM  # its classes carry no types
    reference = auto.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    model = ortolan.load(portable.path)
    assert model.tokenizer is not None
    ids = np.array(model.tokenizer.encode(PROMPT))
    done = model.generate(ids, max_new_tokens=256, ignore_eos=True)
    equal, ties = same_but_near_ties(reference, ids, done.tokens)
    print(f"pythonic: greedy {equal} of 256 equal, {ties} near ties")


def test_portable_bundle_gives_the_same_tokens_in_onnx_reference(portable: Bundle) -> None:
    model = ortolan.load(portable.path)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(PROMPT)
    expected = model.generate(ids, max_new_tokens=8, ignore_eos=True).tokens

    # Nothing of onnxruntime: nodes, bodies and weights through the onnx package alone.
    evaluator = ReferenceEvaluator(onnx.load(portable.file("decoder.onnx")))
    states = portable.manifest.states
    sizes = {"batch": 1, "capacity": 64}
    cache: dict[str, Any] = {
        state.input: np.zeros(
            [sizes[size] if isinstance(size, str) else size for size in state.shape], state.dtype
        )
        for state in states
    }
    tokens: list[int] = []
    new, length = list(ids), 0
    for _ in range(8):
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
        new = [int(logits[0, 0].argmax())]
        tokens += new
    assert tuple(tokens) == expected
