"""Certificates of encoders of texts and images: verdicts, and the distances behind them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from tests.runtime import tiny_encoder
from tests.runtime.damaged_bundles import reseal
from tests.runtime.verification.certified_encoders import write_bundle

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.verification.certificate import Vectors, kept_positions
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.comparison import compare, summarize, widened
from ortolan.runtime.verification.probe_runs import groups
from ortolan.runtime.verification.replay import replay, verify
from ortolan.runtime.verification.report import Divergence, Report, Thresholds

CASES = [
    *((kind, False) for kind in tiny_encoder.KINDS),
    *((kind, True) for kind in ("labels", "embedding")),
]


def change_weight(path: Path, name: str, delta: float) -> None:
    """Change one number of a weight in the graph."""
    model = onnx.load(path / "encoder.onnx")
    for tensor in model.graph.initializer:
        if tensor.name == name:
            array = numpy_helper.to_array(tensor).copy()
            array.flat[array.size // 2] += delta
            tensor.CopyFrom(numpy_helper.from_array(array, name))
    (path / "encoder.onnx").write_bytes(model.SerializeToString())
    reseal(path)


# --- verdicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "is_image"), CASES)
def test_an_encoder_passes_until_a_weight_changes(
    kind: Any, is_image: bool, tmp_path: Path
) -> None:
    path = tmp_path / "bundle"
    certificate = write_bundle(path, kind, is_image=is_image)
    again = read_certificate(open_bundle(path))
    assert (again.probes, again.thresholds) == (certificate.probes, certificate.thresholds)
    report = verify(path, isolate=False)
    assert (report.verdict, report.first_divergence, report.non_finite) == ("PASS", None, 0)
    assert (report.kind, report.output) == ("encoder", kind)
    is_vector = report.mean_cosine is not None
    assert (report.mean_kl is None, report.top1_agreement is None) == (is_vector, is_vector)
    assert report.perplexity is None
    rows = sum(len(kept_positions(probe.length, kind)) for probe in certificate.probes)
    positions = {name: phase.positions for name, phase in report.phases.items()}
    assert positions == {"single": rows, "batch": rows}
    assert 0 < report.max_abs_delta < 1e-4
    change_weight(path, "pixels_weight" if is_image else "own", 0.05)
    report = verify(path, isolate=False)
    assert report.verdict == "FAIL"
    assert report.first_divergence is not None
    assert report.first_divergence.phase == "single"


@pytest.mark.parametrize("kind", ["states", "labels"])
def test_non_finite_outputs_fail(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    certificate = write_bundle(path, kind)
    poisoned = int(certificate.token_ids[2])
    tiny_encoder.write_bundle(tmp_path / "poisoned", kind=kind, poisoned=poisoned)
    (path / "encoder.onnx").write_bytes((tmp_path / "poisoned" / "encoder.onnx").read_bytes())
    reseal(path)
    report = verify(path, isolate=False)
    assert report.verdict == "FAIL"
    assert report.non_finite > 0
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


@pytest.mark.parametrize("kind", ["states", "labels"])
def test_unmasked_padding_is_located_in_the_batch(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle"
    certificate = write_bundle(path, kind)
    whole: Callable[..., dict[str, NDArray[np.float32]]] = Engine.encode

    def unmasked(engine: Engine, inputs: Mapping[str, NDArray[Any]]) -> Any:
        ids = inputs["input_ids"]
        return whole(engine, {**inputs, "lengths": np.full(len(ids), ids.shape[1], np.int32)})

    monkeypatch.setattr(Engine, "encode", unmasked)
    report = replay(Engine(open_bundle(path)), certificate)
    assert report.verdict == "FAIL"
    assert report.phases["single"].max_abs_delta < 1e-4
    assert report.phases["batch"].max_abs_delta > 1e-2
    assert report.first_divergence == Divergence(probe="probe 0", position=0, phase="batch")


@pytest.mark.parametrize(("bound", "verdict"), [(0.1, "PASS"), (1e-4, "FAIL")])
def test_a_mean_distance_beyond_the_tolerance_fails(
    bound: float, verdict: str, tmp_path: Path
) -> None:
    path = tmp_path / "bundle"
    certificate = write_bundle(path, "embedding")
    assert isinstance(certificate.reference, Vectors)
    values = certificate.reference.values.copy()
    values[:, 0] += 0.2
    moved = replace(
        certificate,
        reference=Vectors(values=values),
        thresholds=Thresholds(mean_cosine=bound),
    )
    report = replay(Engine(open_bundle(path)), moved)
    assert report.verdict == verdict
    assert report.mean_cosine is not None
    assert 1e-4 < report.mean_cosine < 0.1


# --- parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "size", "expected"),
    [
        ([1, 2, 3], 1, [[0, 1, 2]]),
        ([5], 1 << 30, [[0]]),
        ([1, 2, 3], 1 << 30, [[0, 1, 2]]),  # never a batch of one
        ([1, 2, 3, 4], 1 << 30, [[0, 1], [2, 3]]),
        ([1, 2, 4, 8, 9], 1 << 20, [[0, 1, 2], [3, 4]]),
    ],
)
def test_batches_are_as_large_as_memory_allows_and_at_least_two(
    lengths: list[int], size: int, expected: list[list[int]]
) -> None:
    assert groups(lengths, size) == expected


def test_the_distance_of_vectors_ignores_their_length() -> None:
    reference = Vectors(values=np.array([[3, 0], [1, 1], [0, 0], [0, 0], [2, 0]], np.float32))
    outputs = np.array([[5, 0], [1, -1], [0, 0], [1, 0], [-2, 0]], np.float32)
    differences = compare(reference, slice(0, 5), outputs)
    assert differences.distance.tolist() == pytest.approx([0, 1, 0, 1, 2])
    assert differences.delta.tolist() == [2, 2, 0, 1, 4]


def test_independent_labels_are_compared_one_by_one() -> None:
    """A shift of all logits changes every sigmoid but no softmax."""
    logits = np.array([[2.0, 1.0, -3.0]])
    reference = summarize(logits, 3)
    shifted = (logits + 1.5).astype(np.float32)
    assert compare(reference, slice(0, 1), shifted, "softmax").distance == pytest.approx(
        0, abs=1e-6
    )
    p, q = (1 / (1 + np.exp(-x)) for x in (logits, logits + 1.5))
    expected = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).sum()
    distance = compare(reference, slice(0, 1), shifted, "sigmoid").distance
    np.testing.assert_allclose(distance, expected, rtol=1e-5)


def test_the_distance_of_scores_is_their_relative_error() -> None:
    reference = Vectors(values=np.array([[3.0], [-4.0]], np.float32))
    differences = compare(reference, slice(0, 2), np.array([[3.5], [-4.0]], np.float32), "none")
    assert differences.distance.tolist() == pytest.approx([0.25 / 2 / 12.5, 0])


def test_a_single_label_is_compared_with_its_absence() -> None:
    logits = widened(np.array([[2.0], [-1.0]]))
    reference = summarize(logits, 2)
    assert reference.top_ids.tolist() == [[0, 1], [1, 0]]
    differences = compare(reference, slice(0, 2), np.array([[0.5], [1.0]], np.float32))
    assert differences.same_top1.tolist() == [True, False]
    p, q = (1 / (1 + np.exp(-np.array(x))) for x in ([2.0, -1.0], [0.5, 1.0]))
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    np.testing.assert_allclose(differences.distance, expected, rtol=1e-4)
