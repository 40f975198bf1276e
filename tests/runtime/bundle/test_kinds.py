"""Kinds of bundle and of output: their words, and scores of labels."""

import msgspec
import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.runtime.bundle.manifests import SOURCES, document_of

from ortolan.runtime.bundle.kinds import KINDS, OUTPUTS, ScoreFunction
from ortolan.runtime.bundle.labels import distinct, named_scores, scores_of
from ortolan.runtime.bundle.manifest import Manifest, wrong_kind


def manifest_of(name: str) -> Manifest:
    """Manifest of a kind, or of an encoder with this output."""
    if name in KINDS:
        return msgspec.convert(document_of(name), Manifest)
    labels = [] if OUTPUTS[name].scores is None else ["no", "yes"]
    output = {"kind": name, "size": 2, "labels": labels}
    source = {"source": SOURCES["image"]} if name == "labels" else {}
    return msgspec.convert(document_of("encoder") | {"output": output} | source, Manifest)


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder", *OUTPUTS])
def test_bundles_and_the_error_for_a_wrong_one_are_described_in_words(
    name: str, snapshot: SnapshotAssertion
) -> None:
    manifest = manifest_of(name)
    error = wrong_kind(manifest, what="Translating", expected="a translator")
    assert [manifest.takes, manifest.gives, f"{error}"] == snapshot


@pytest.mark.parametrize("logit", [-800.0, -1.5, 0.0, 2.0, 800.0])
@pytest.mark.parametrize("function", ["softmax", "sigmoid"])
def test_a_single_label_is_likely_or_not(logit: float, function: ScoreFunction) -> None:
    expected = 1 / (1 + np.exp(-np.clip(logit, -700, 700)))
    scores = scores_of(np.array([logit], np.float32), function)
    np.testing.assert_allclose(scores, [expected], rtol=1e-12, atol=1e-300)


def test_scores_are_named_and_ordered_and_repeated_labels_get_their_numbers() -> None:
    logits = np.array([0.0, 3.0, -2.0], np.float32)
    softmax = named_scores(logits, "softmax", ["a", "b", "c"])
    sigmoid = named_scores(logits, "sigmoid", ["a", "b", "c"])
    assert list(softmax) == list(sigmoid) == ["b", "a", "c"]
    assert sum(softmax.values()) == pytest.approx(1)
    assert sigmoid == pytest.approx({"b": 0.9525741268, "a": 0.5, "c": 0.1192029220})
    assert named_scores(logits, "none", ["a", "b", "c"]) == {"b": 3.0, "a": 0.0, "c": -2.0}
    assert distinct(("crane", "crane", "heron")) == ["crane (0)", "crane (1)", "heron"]
