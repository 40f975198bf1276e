"""Bundles of the families beyond decoders against Hugging Face transformers."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from tests.export.graph_runs import Steps, assert_close, run, sessions
from tests.modeling.tiny_encoders import (
    ENCODERS,
    IMAGES,
    SEQ2SEQ,
    EncoderCase,
    ragged,
    random_images,
    reference_output,
)
from torch import Tensor
from transformers import PreTrainedModel

import ortolan
from ortolan.export.options import ExportOptions
from ortolan.export.source import family
from ortolan.export.source.family import trace_graph
from ortolan.runtime import Bundle

SHALLOW = {
    "marian": {"encoder_layers": 1, "decoder_layers": 2},
    "bart": {"encoder_layers": 1, "decoder_layers": 2},
    "t5": {"num_layers": 2, "num_decoder_layers": 2},  # later layers share the bias of the first
}
"""Fewer layers, since traces are slow."""

CASES: dict[str, EncoderCase] = (
    ENCODERS
    | IMAGES
    | {
        name: replace(SEQ2SEQ[name], values=SEQ2SEQ[name].values | SHALLOW[name])
        for name in SHALLOW
    }
)

VISION = "vit-classifier"

TRANSLATORS = ("marian", "t5")

pytestmark = pytest.mark.slow  # tests/export/test_verify_kinds.py has quick ones

MAPPED = ("bert", "vit-classifier", "marian", "t5")

SOURCES = ragged(13, 4, 9)

TARGETS = ragged(12, 12, 12, seed=1).ids.clamp(5)


class Exported:
    """A transformers model, and the graphs of its bundle."""

    def __init__(self, name: str, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        CASES[name].reference().save_pretrained(self.checkpoint)
        kind: Any = getattr(transformers, CASES[name].architecture)
        self.theirs: PreTrainedModel = kind.from_pretrained(
            self.checkpoint, attn_implementation="eager"
        ).eval()
        self.bundle: Bundle = ortolan.export(
            self.checkpoint,
            folder / "bundle",
            options=ExportOptions(attention="portable", attention_maps=name in MAPPED),
        )
        self.graphs = sessions(self.bundle)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    @cache
    def export(name: str) -> Exported:
        return Exported(name, tmp_path_factory.mktemp(name))

    return export


def signature(session: Any) -> dict[str, tuple[str, list[int | str]]]:
    values = [*session.get_inputs(), *session.get_outputs()]
    return {value.name: (value.type, value.shape) for value in values}


IDS, INT32, FLOATS = "tensor(int64)", "tensor(int32)", "tensor(float)"


def test_inputs_and_outputs_of_an_encoder_are_those_of_the_contract(
    exported: Callable[[str], Exported],
) -> None:
    assert signature(exported("bert").graphs["encoder"]) == {
        "input_ids": (IDS, ["batch", "tokens"]),
        "lengths": (INT32, ["batch"]),
        "output": (FLOATS, ["batch", "tokens", 32]),
    }
    assert signature(exported(VISION).graphs["encoder"]) == {
        "pixels": (FLOATS, ["batch", 3, 8, 8]),
        "output": (FLOATS, ["batch", 3]),
    }


def test_inputs_and_outputs_of_an_encoder_decoder_are_those_of_the_contract(
    exported: Callable[[str], Exported],
) -> None:
    case, layers = exported("marian"), range(2)
    kinds = [f"{layer}.{kind}" for layer in layers for kind in ("key", "value")]
    cross = {f"cross.{kind}": (FLOATS, ["sources", 2, "source", 16]) for kind in kinds}
    cache: list[int | str] = ["batch", 2, "capacity", 16]
    assert signature(case.graphs["encoder"]) == {
        "input_ids": (IDS, ["sources", "source"]),
        "lengths": (INT32, ["sources"]),
        **cross,
    }
    assert signature(case.graphs["decoder"]) == {
        "input_ids": (IDS, ["batch", "sequence"]),
        "seqlens_k": (INT32, ["batch"]),
        "total_sequence_length": (INT32, []),
        "logit_positions": (IDS, ["batch", "rows"]),
        "source_lengths": (INT32, ["sources"]),
        **{f"past_key_values.{kind}": (FLOATS, cache) for kind in kinds},
        **cross,
        "logits": (FLOATS, ["batch", "rows", 97]),
        **{f"present.{kind}": (FLOATS, cache) for kind in kinds},
    }
    states = case.bundle.manifest.states
    assert [s.update for s in states] == ["append"] * 4 + ["source"] * 4
    assert [s.output for s in states[4:]] == list(cross)


def sources() -> dict[str, NDArray[Any]]:
    return {"input_ids": SOURCES.ids.numpy(), "lengths": SOURCES.lengths.numpy().astype(np.int32)}


def valid(values: NDArray[np.float32] | Tensor, row: int) -> NDArray[np.float32]:
    """Output of an encoder for a row, without padding."""
    found: NDArray[np.float32] = np.asarray(values)[row]
    return found[: SOURCES.lengths[row]] if found.ndim == 2 else found


@pytest.mark.parametrize("name", ["bert"])
def test_padded_texts_equal_hugging_face_and_each_text_alone(
    name: str, exported: Callable[[str], Exported]
) -> None:
    case = exported(name)
    encoder = case.graphs["encoder"]
    wanted = reference_output(case.theirs, input_ids=SOURCES.ids, attention_mask=SOURCES.mask)
    got = run(encoder, sources())["output"]
    assert wanted.std() > 0.1
    for row, length in enumerate(SOURCES.lengths.tolist()):
        assert_close(valid(got, row), valid(wanted, row), delta=1e-4)
        alone = {
            "input_ids": SOURCES.ids[row : row + 1, :length].numpy(),
            "lengths": np.array([length], np.int32),
        }
        assert_close(run(encoder, alone)["output"][0], valid(got, row), delta=1e-5)


def test_images_equal_hugging_face(exported: Callable[[str], Exported]) -> None:
    case = exported(VISION)
    pixels = random_images(IMAGES[VISION].values)
    wanted = reference_output(case.theirs, pixel_values=pixels)
    got = run(case.graphs["encoder"], {"pixels": pixels.numpy()})["output"]
    assert_close(got, wanted.numpy(), delta=1e-4)


def translated(case: Exported) -> NDArray[np.float32]:
    """Logits of transformers for all targets."""
    return reference_output(
        case.theirs,
        input_ids=SOURCES.ids,
        attention_mask=SOURCES.mask,
        decoder_input_ids=TARGETS,
        decoder_attention_mask=torch.ones_like(TARGETS),
    ).numpy()


def encoded(case: Exported) -> dict[str, NDArray[Any]]:
    """Inputs of the decoder from the encoder."""
    given = sources()
    return {**run(case.graphs["encoder"], given), "source_lengths": given["lengths"]}


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_steps_behind_sources_equal_hugging_face(
    name: str, exported: Callable[[str], Exported]
) -> None:
    case = exported(name)
    targets = TARGETS.numpy()
    steps = Steps(case.graphs["decoder"], len(targets), encoded(case))
    got = [steps(targets[:, :5], [5] * len(targets))]
    got += [steps(targets[:, i : i + 1], [1] * len(targets)) for i in range(5, targets.shape[1])]
    wanted = translated(case)
    assert wanted.std() > 0.1
    assert_close(np.concatenate(got, 1), wanted, delta=1e-4)


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_beams_that_share_a_source_equal_rows_with_one_each(
    name: str, exported: Callable[[str], Exported]
) -> None:
    case = exported(name)
    decoder, source = case.graphs["decoder"], encoded(case)
    beams = np.random.default_rng(0).integers(5, 90, (4 * len(TARGETS), 6))
    together = Steps(decoder, len(beams), source)
    folded = [together(beams[:, :2], [2] * len(beams))]
    folded += [together(beams[:, i : i + 1], [1] * len(beams)) for i in range(2, 6)]
    repeated = {name: np.repeat(array, 4, axis=0) for name, array in source.items()}
    alone = Steps(decoder, len(beams), repeated)(beams, [6] * len(beams))
    assert_close(np.concatenate(folded, 1), alone, delta=1e-5)


def maps_of(case: Exported, names: list[str], **inputs: Tensor) -> list[NDArray[np.float32]]:
    """Attention weights of transformers, by layer."""
    with torch.inference_mode():
        output = case.theirs(**inputs, output_attentions=True)
    return [layer.numpy() for name in names for layer in output[name]]


def test_maps_of_texts_equal_hugging_face(exported: Callable[[str], Exported]) -> None:
    case = exported("bert")
    got = run(case.graphs["attention"], sources())
    assert tuple(got) == case.bundle.manifest.attention_maps == ("encoder.0.self", "encoder.1.self")
    wanted = maps_of(case, ["attentions"], input_ids=SOURCES.ids, attention_mask=SOURCES.mask)
    for one, other in zip(got.values(), wanted, strict=True):
        for row, length in enumerate(SOURCES.lengths):
            np.testing.assert_allclose(one[row, :, :length], other[row, :, :length], atol=1e-5)


def test_maps_of_images_equal_hugging_face(exported: Callable[[str], Exported]) -> None:
    case = exported(VISION)
    pixels = random_images(IMAGES[VISION].values)
    got = run(case.graphs["attention"], {"pixels": pixels.numpy()})
    for one, other in zip(
        got.values(), maps_of(case, ["attentions"], pixel_values=pixels), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_maps_of_sources_and_targets_equal_hugging_face(
    name: str, exported: Callable[[str], Exported]
) -> None:
    case = exported(name)
    got = run(case.graphs["attention"], {**sources(), "target_ids": TARGETS.numpy()})
    assert tuple(got) == case.bundle.manifest.attention_maps
    theirs = maps_of(
        case,
        ["encoder_attentions", "decoder_attentions", "cross_attentions"],
        input_ids=SOURCES.ids,
        attention_mask=SOURCES.mask,
        decoder_input_ids=TARGETS,
        decoder_attention_mask=torch.ones_like(TARGETS),
    )
    layers = [name for name in got if name.startswith("encoder")]
    layers += [name for name in got if name.startswith("decoder") and name.endswith("self")]
    layers += [name for name in got if name.endswith("cross")]
    for name, other in zip(layers, theirs, strict=True):
        for row, length in enumerate(SOURCES.lengths):
            queries = length if name.startswith("encoder") else TARGETS.shape[1]
            np.testing.assert_allclose(
                got[name][row, :, :queries], other[row, :, :queries], atol=1e-5
            )


def in_reference(bundle: Bundle, role: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A graph of a bundle in `onnx.reference`, which has only standard operators."""
    file = bundle.file(bundle.manifest.graphs[role].file)
    model = onnx.load(str(file))
    for node in model.graph.node:
        # onnx.reference passes an unnamed output to every omitted input.
        for place, name in enumerate(node.output):
            node.output[place] = name or f"{node.output[0]}.{place}"
    evaluator = ReferenceEvaluator(model)

    def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))

    return evaluate


@pytest.mark.parametrize("name", ["bert", *TRANSLATORS])
def test_portable_encoder_gives_the_same_without_onnxruntime(
    name: str, exported: Callable[[str], Exported]
) -> None:
    case = exported(name)
    wanted = run(case.graphs["encoder"], sources())
    got = in_reference(case.bundle, "encoder")(sources())
    assert list(got) == list(wanted)
    for output, values in wanted.items():
        for row in range(len(SOURCES.lengths)):
            axis = 0 if values.ndim == 3 else 1
            inside = range(int(SOURCES.lengths[row]))
            one, other = got[output][row].take(inside, axis), values[row].take(inside, axis)
            assert_close(one, other, delta=1e-5)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_portable_decoder_gives_the_same_without_onnxruntime(
    name: str, exported: Callable[[str], Exported]
) -> None:
    case, targets = exported(name), TARGETS.numpy()
    evaluate, source, wanted = in_reference(case.bundle, "decoder"), encoded(case), translated(case)
    caches: dict[str, NDArray[Any]] = {}
    for state in case.bundle.manifest.states:
        if state.update == "append":
            sizes = {"batch": len(targets), "capacity": 16}
            shape = [size if isinstance(size, int) else sizes[size] for size in state.shape]
            caches[state.output] = np.zeros(shape, np.float32)
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        outputs = evaluate(
            {
                "input_ids": targets[:, start:stop],
                "seqlens_k": np.full(len(targets), stop - 1, np.int32),
                "total_sequence_length": np.array(stop, np.int32),
                "logit_positions": np.full((len(targets), 1), stop - start - 1),
                **source,
                **{
                    s.input: caches[s.output]
                    for s in case.bundle.manifest.states
                    if s.output in caches
                },
            }
        )
        caches = {name: outputs[name] for name in caches}
        assert_close(outputs["logits"][:, 0], wanted[:, stop - 1], delta=1e-4)


def test_two_exports_of_an_encoder_decoder_are_equal_byte_for_byte(
    exported: Callable[[str], Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "trace_graph", trace_graph)  # which `tests.quick_exports` replaces
    first, again = (
        ortolan.export(
            exported("marian").checkpoint,
            tmp_path / name,
            options=ExportOptions(attention="portable", attention_maps=True),
        )
        for name in ("first", "again")
    )
    assert again.manifest == first.manifest
    for file in again.manifest.files:
        one, other = again.path / file.name, first.path / file.name
        assert one.read_bytes() == other.read_bytes(), file.name
