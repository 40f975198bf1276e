"""Properties of each kind of bundle."""

import msgspec
import pytest
from tests.runtime.bundle.test_manifest_kinds import document_of, image

from ortolan.runtime.bundle.kinds import KINDS, MAPS_ROLE, OUTPUTS, ModelKind
from ortolan.runtime.bundle.manifest import Manifest, wrong_kind


def manifest_of(kind: str, output: str | None = None, *, is_image: bool = False) -> Manifest:
    document = document_of(kind)
    if output is not None:
        labels = [] if OUTPUTS[output].scores is None else ["no", "yes"]
        document["output"] = {"kind": output, "size": 2, "labels": labels}
    if is_image:
        image(document)
    return msgspec.convert(document, Manifest)


@pytest.mark.parametrize(
    ("kind", "has_encoder", "has_decoder", "reads_source"),
    [
        ("decoder", False, True, False),
        ("encoder", True, False, False),
        ("encoder-decoder", True, True, True),
    ],
)
def test_encoder_and_decoder_follow_from_the_graphs(
    kind: str, has_encoder: bool, has_decoder: bool, reads_source: bool
) -> None:
    model_kind = KINDS[kind]
    assert (model_kind.has_encoder, model_kind.has_decoder) == (has_encoder, has_decoder)
    assert model_kind.reads_source is reads_source
    assert all(roles and MAPS_ROLE not in roles for roles in model_kind.graphs)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_only_encoders_are_described_by_their_output(kind: ModelKind) -> None:
    words = [bool(text) for text in (kind.gives, kind.description, kind.use)]
    assert words == [kind.has_decoder] * 3


@pytest.mark.parametrize(
    ("manifest", "takes", "gives"),
    [
        (
            manifest_of("decoder"),
            "texts of at most 16 tokens",
            "more text, together at most 16 tokens",
        ),
        (
            manifest_of("encoder-decoder"),
            "texts of at most 16 tokens",
            "another text of at most 16 tokens",
        ),
        (
            manifest_of("encoder", "embedding"),
            "texts of at most 16 tokens",
            "embeddings of 2 numbers",
        ),
        (
            manifest_of("encoder", "labels", is_image=True),
            "images, RGB, of 8 by 8 pixels",
            "2 labels and their probabilities",
        ),
    ],
    ids=["decoder", "encoder-decoder", "embedding", "labels"],
)
def test_inputs_and_outputs_are_described_in_words(
    manifest: Manifest, takes: str, gives: str
) -> None:
    assert (manifest.takes, manifest.gives) == (takes, gives)


@pytest.mark.parametrize("output", OUTPUTS)
def test_the_error_for_a_wrong_encoder_says_how_to_use_it(output: str) -> None:
    error = wrong_kind(manifest_of("encoder", output), what="translate", expected="a translator")
    assert f"{OUTPUTS[output].summary}. Use {OUTPUTS[output].use}." in str(error)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_the_error_for_a_wrong_kind_says_how_to_use_it(kind: str) -> None:
    error = wrong_kind(manifest_of(kind), what="embed", expected="an encoder")
    assert f"got {KINDS[kind].description}. Use {KINDS[kind].use}." in str(error)
