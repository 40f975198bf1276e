"""Maps of attention and portable graphs of families beyond decoders."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from tests.cases.comparison import loaded
from tests.cases.run import Run, Runs
from tests.cases.texts import COMMON, MAPS
from tests.export.graph_runs import assert_close, run, sessions
from tests.modeling.tiny_encoders import IMAGES, ragged, random_images, reference_output

pytestmark = pytest.mark.slow

TRANSLATORS = ("marian", "t5")

SOURCES = ragged(13, 4, 9)

TARGETS = ragged(12, 12, 12, seed=1).ids.clamp(5)

Arrays = dict[str, NDArray[Any]]

FEEDS: Arrays = {
    "input_ids": SOURCES.ids.numpy(),
    "lengths": SOURCES.lengths.numpy().astype(np.int32),
}


@pytest.fixture(params=["bert", *TRANSLATORS])
def reader(request: pytest.FixtureRequest, runs: Runs) -> Run:
    return runs(COMMON[request.param], MAPS.name)


@pytest.fixture(params=TRANSLATORS)
def translator(request: pytest.FixtureRequest, runs: Runs) -> Run:
    return runs(COMMON[request.param], MAPS.name)


def inputs_of(run: Run) -> dict[str, Any]:
    """The same sources and targets for transformers."""
    inputs: dict[str, Any] = {"input_ids": SOURCES.ids, "attention_mask": SOURCES.mask}
    if "decoder" in run.model.manifest.graphs:
        ones = torch.ones_like(TARGETS)
        inputs |= {"decoder_input_ids": TARGETS, "decoder_attention_mask": ones}
    return inputs


def test_maps_of_texts_equal_hugging_face(reader: Run) -> None:
    model, feeds = reader.model, FEEDS
    kinds = ["attentions"]
    if "decoder" in model.manifest.graphs:
        feeds = FEEDS | {"target_ids": TARGETS.numpy()}
        kinds = [f"{kind}_attentions" for kind in ("encoder", "decoder", "cross")]
    got = run(sessions(model.bundle)["attention"], feeds)
    assert tuple(got) == model.manifest.attention_maps
    with torch.inference_mode():
        theirs = loaded(reader.checkpoint)(**inputs_of(reader), output_attentions=True)
    wanted = [layer.numpy() for kind in kinds for layer in theirs[kind]]
    order = ("encoder", "self"), ("decoder", "self"), ("decoder", "cross")
    layers = [
        name for side, kind in order for name in got if name.startswith(side) and kind in name
    ]
    for name, other in zip(layers, wanted, strict=True):
        for row, length in enumerate(SOURCES.lengths):
            queries = length if name.startswith("encoder") else TARGETS.shape[1]
            one = got[name][row, :, :queries]
            np.testing.assert_allclose(one, other[row, :, :queries], atol=1e-5)


def test_maps_of_images_equal_hugging_face(runs: Runs) -> None:
    vit = runs(COMMON["vit"], MAPS.name)
    pixels = random_images(IMAGES["vit-classifier"].values)
    got = run(sessions(vit.model.bundle)["attention"], {"pixels": pixels.numpy()})
    with torch.inference_mode():
        theirs = loaded(vit.checkpoint)(pixel_values=pixels, output_attentions=True)
    for one, other in zip(got.values(), theirs["attentions"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def in_reference(bundle: Any, role: str) -> Callable[[Arrays], Arrays]:
    """A graph of a bundle in `onnx.reference`, which has only standard operators."""
    model = onnx.load(str(bundle.file(bundle.manifest.graphs[role].file)))
    for node in model.graph.node:
        # onnx.reference passes an unnamed output to every omitted input.
        for place, name in enumerate(node.output):
            node.output[place] = name or f"{node.output[0]}.{place}"
    evaluator = ReferenceEvaluator(model)

    def evaluate(inputs: Arrays) -> Arrays:
        return dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))

    return evaluate


def test_portable_encoder_gives_the_same_without_onnxruntime(reader: Run) -> None:
    bundle = reader.model.bundle
    wanted = run(sessions(bundle)["encoder"], FEEDS)
    got = in_reference(bundle, "encoder")(FEEDS)
    assert list(got) == list(wanted)
    for output, values in wanted.items():
        for row, length in enumerate(SOURCES.lengths.tolist()):
            axis, inside = 0 if values.ndim == 3 else 1, range(length)
            one, other = got[output][row].take(inside, axis), values[row].take(inside, axis)
            assert_close(one, other, delta=1e-5)


def test_portable_decoder_gives_the_same_without_onnxruntime(translator: Run) -> None:
    bundle, targets = translator.model.bundle, TARGETS.numpy()
    source = {**run(sessions(bundle)["encoder"], FEEDS), "source_lengths": FEEDS["lengths"]}
    wanted = reference_output(loaded(translator.checkpoint), **inputs_of(translator)).numpy()
    evaluate = in_reference(bundle, "decoder")
    growing = [state for state in bundle.manifest.states if state.update == "append"]
    sizes = {"batch": len(targets), "capacity": 16}
    caches: Arrays = {
        state.output: np.zeros([sizes.get(str(size), size) for size in state.shape], np.float32)
        for state in growing
    }
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        outputs = evaluate(
            {
                "input_ids": targets[:, start:stop],
                "seqlens_k": np.full(len(targets), stop - 1, np.int32),
                "total_sequence_length": np.array(stop, np.int32),
                "logit_positions": np.full((len(targets), 1), stop - start - 1),
                **source,
                **{state.input: caches[state.output] for state in growing},
            }
        )
        caches = {name: outputs[name] for name in caches}
        assert_close(outputs["logits"][:, 0], wanted[:, stop - 1], delta=1e-4)
