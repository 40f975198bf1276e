"""Encoders of images and of texts in one bundle: their results against transformers."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.export.tiny_contrast import CASES, LABELS, PICTURES, Case, image_processor
from tests.tiny.media import picture, png

from ortolan.runtime import ContextLengthError, Encoder, InputError
from ortolan.runtime.encoding.comparison import logits_of

pytestmark = pytest.mark.slow

TEXTS = [f"This is a photo of {label}." for label in LABELS]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Export a case, once."""
    return cache(lambda name: Case(tmp_path_factory.mktemp(name), name))


@pytest.fixture(params=CASES)
def each(request: pytest.FixtureRequest, case: Callable[[str], Case]) -> Case:
    return case(request.param)


def test_embeddings_and_logits_are_those_of_transformers(each: Case) -> None:
    texts = [*TEXTS, "ends </s> early", "x"]
    expected = each.expected(texts)
    images_NW, texts_LW = each.model.embed(PICTURES), each.model.texts.embed(texts)
    np.testing.assert_allclose(images_NW, expected.image_embeds, atol=1e-4)
    np.testing.assert_allclose(texts_LW, expected.text_embeds, atol=1e-4)
    comparison = each.model.manifest.comparison
    assert comparison is not None
    logits_NL = logits_of(images_NW, texts_LW, comparison)
    np.testing.assert_allclose(logits_NL, expected.logits_per_image, rtol=1e-4, atol=1e-6)


def test_probabilities_and_their_order_are_those_of_transformers(each: Case) -> None:
    logits = each.expected(TEXTS).logits_per_image
    expected_NL = logits.softmax(-1) if each.kind == "clip" else logits.sigmoid()
    for result, expected in zip(
        each.model.classify_as(PICTURES, LABELS), expected_NL.tolist(), strict=True
    ):
        ranked = sorted(zip(expected, LABELS, strict=True), reverse=True)
        assert list(result.probabilities) == [label for _, label in ranked]
        assert [*result.probabilities.values()] == pytest.approx([p for p, _ in ranked], abs=1e-4)
        assert result.label == ranked[0][1]


@pytest.mark.parametrize("name", ["clip", "siglip", "siglip2"])
def test_scores_are_those_of_the_pipeline_of_transformers(
    name: str, case: Callable[[str], Case]
) -> None:
    import transformers

    made = case(name)
    fast: Any = transformers.PreTrainedTokenizerFast
    library = fast(tokenizer_file=str(made.checkpoint / "tokenizer.json"), pad_token="<pad>")
    library.model_input_names = ["input_ids"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        processor = image_processor(name)
        kind: Any = transformers.ZeroShotImageClassificationPipeline
        pipeline = kind(
            model=made.reference.eval(),
            tokenizer=library,
            image_processor=processor.from_pretrained(str(made.checkpoint)),
        )
    template = "a picture: {}"
    for image in (picture(seed=3), np.random.default_rng(4).integers(0, 256, (13, 9, 3), np.uint8)):
        theirs = pipeline(
            Image.fromarray(image), candidate_labels=LABELS, hypothesis_template=template
        )
        (own,) = made.model.classify_as(png(image), LABELS, template=template)
        expected = {row["label"]: row["score"] for row in theirs}
        assert list(own.scores) == list(expected)
        assert own.scores == pytest.approx(expected, abs=1e-4)


def test_labels_are_embedded_once(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = case("siglip").model
    calls: list[Any] = []
    embed = Encoder.embed

    def counted(encoder: Encoder, inputs: Any, **options: Any) -> Any:
        calls.append(inputs)
        return embed(encoder, inputs, **options)

    monkeypatch.setattr(Encoder, "embed", counted)
    labels = ["one", "two"]
    both = model.classify_as(PICTURES, labels)
    assert [model.classify_as(image, labels)[0].scores for image in PICTURES] == [
        pytest.approx(result.scores) for result in both
    ]
    assert calls == [["This is a photo of one.", "This is a photo of two."]]
    model.classify_as(PICTURES, labels, template="{}")
    assert calls[1:] == [labels]


def test_a_single_label_of_clip_is_certain(case: Callable[[str], Case]) -> None:
    assert case("clip").model.classify_as(picture(seed=1), ["cat"])[0].scores == {"cat": 1.0}
    assert 0 < case("siglip").model.classify_as(picture(seed=1), ["cat"])[0].score < 1


def test_nothing_is_computed_without_images(case: Callable[[str], Case]) -> None:
    assert case("clip").model.classify_as([], LABELS) == []


def test_only_siglip_scores_labels_independently(case: Callable[[str], Case]) -> None:
    with pytest.raises(InputError, match="multi_label"):
        case("clip").model.classify_as(PICTURES, LABELS, multi_label=True)
    model = case("siglip").model
    free = model.classify_as(PICTURES, LABELS, multi_label=True)
    assert free == model.classify_as(PICTURES, LABELS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"labels": []}, "labels must be a list"),
        ({"labels": ["a", " "]}, "non-empty"),
        ({"labels": ["a", "a"]}, "unique"),
        ({"template": "It is."}, "template"),
        ({"inputs": "no such file.png"}, "no such file"),
        ({"inputs": 3}, "image"),
        ({"truncate": 1}, "truncate"),
        ({"multi_label": "yes"}, "multi_label"),
    ],
)
def test_bad_arguments_are_refused(
    given: dict[str, Any], words: str, case: Callable[[str], Case]
) -> None:
    arguments: dict[str, Any] = {"inputs": PICTURES, "labels": LABELS} | given
    with pytest.raises(InputError, match=words):
        case("siglip").model.classify_as(**arguments)


def test_a_label_that_is_too_long_is_refused_or_cut(case: Callable[[str], Case]) -> None:
    model, label, kept = case("siglip").model, "z" * 50, "z" * 44
    with pytest.raises(ContextLengthError, match="tokens"):
        model.classify_as(PICTURES, [label, "a"])
    (cut,) = model.classify_as(picture(seed=1), [label, "a"], truncate=True)
    (same,) = model.classify_as(picture(seed=1), [kept], template="This is a photo of {}")
    assert cut.scores[label] == pytest.approx(same.scores[kept])


def test_ids_are_padded_like_texts(case: Callable[[str], Case]) -> None:
    made = case("siglip")
    ids = made.tokenizer.encode("a cat").ids
    texts = made.model.texts
    np.testing.assert_array_equal(texts.embed([ids]), texts.embed(["a cat"]))


def test_a_service_embeds_texts(case: Callable[[str], Case]) -> None:
    model = case("clip").model
    with model.texts.serve() as service:
        vectors = service.embed(TEXTS).result()
    np.testing.assert_allclose(vectors, model.texts.embed(TEXTS), atol=1e-5)
