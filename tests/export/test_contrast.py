"""Encoders of images and of texts in one bundle, against transformers."""

import base64
import io
import json
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.cli.conftest import run_here
from tests.export import tiny_contrast
from tests.runtime.damaged_bundles import damage, edit_json, put
from tests.runtime.tiny_encoder import IMAGE, write_bundle

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions
from ortolan.runtime import (
    BundleError,
    BundleKindError,
    ContextLengthError,
    Encoder,
    InputError,
    TokenizerError,
    open_bundle,
    verify,
)
from ortolan.runtime.bundle.manifest import TextSource
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.encoding.comparison import logits_of

LABELS = ["cat", "a dog", "fish & chips"]

TEXTS = [f"This is a photo of {label}." for label in LABELS]

Pixels = NDArray[np.uint8]


def picture(seed: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (8, 8, 3)).astype(np.uint8)


PICTURES = [picture(1), picture(2)]


class Case:
    """A checkpoint, its bundle, and both as models."""

    def __init__(self, folder: Path, kind: str, **options: Any) -> None:
        self.kind, self.checkpoint, self.folder = kind, folder / "checkpoint", folder / "bundle"
        self.reference: Any = tiny_contrast.write(self.checkpoint, kind, **options)
        ortolan.export(self.checkpoint, self.folder)
        self.model = ortolan.load(self.folder, Encoder, threads=1)
        self.tokenizer = tiny_contrast.tokenizer(kind)

    def expected(self, texts: list[str]) -> Any:
        """What transformers computes for all pictures and texts."""
        ids = [self.tokenizer.encode(text).ids for text in texts]
        pad = self.tokenizer.token_to_id("<pad>")
        length = tiny_contrast.LENGTH if self.kind == "siglip" else max(map(len, ids))
        rows = [[*row, *[pad] * (length - len(row))] for row in ids]
        pixels = np.stack([self.model.pixels(image) for image in PICTURES])
        given = {"input_ids": torch.tensor(rows), "pixel_values": torch.from_numpy(pixels)}
        with torch.inference_mode():
            return self.reference(**given)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("clip", {}),
    "clip-own-end": ("clip", {"eos_token_id": tiny_contrast.tokenizer("clip").token_to_id("</s>")}),
    "siglip": ("siglip", {}),
}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Export a case, once."""

    @cache
    def make(name: str) -> Case:
        kind, options = CASES[name]
        return Case(tmp_path_factory.mktemp(name), kind, **options)

    return make


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
    np.testing.assert_allclose(logits_NL, expected.logits_per_image, rtol=1e-4)


def test_probabilities_and_their_order_are_those_of_transformers(each: Case) -> None:
    logits = each.expected(TEXTS).logits_per_image
    expected_NL = logits.sigmoid() if each.kind == "siglip" else logits.softmax(-1)
    for result, expected in zip(
        each.model.classify_as(PICTURES, LABELS), expected_NL.tolist(), strict=True
    ):
        ranked = sorted(zip(expected, LABELS, strict=True), reverse=True)
        assert list(result.probabilities) == [label for _, label in ranked]
        assert [*result.probabilities.values()] == pytest.approx([p for p, _ in ranked], abs=1e-4)
        assert result.label == ranked[0][1]


@pytest.mark.parametrize("name", ["clip", "siglip"])
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
        prefix = {"clip": "CLIP", "siglip": "Siglip"}[name]
        processor = getattr(transformers, f"{prefix}ImageProcessorPil")
        kind: Any = transformers.ZeroShotImageClassificationPipeline
        pipeline = kind(
            model=made.reference.eval(),
            tokenizer=library,
            image_processor=processor.from_pretrained(str(made.checkpoint)),
        )
    template = "a picture: {}"
    for image in (picture(3), np.random.default_rng(4).integers(0, 256, (13, 9, 3), np.uint8)):
        theirs = pipeline(
            Image.fromarray(image), candidate_labels=LABELS, hypothesis_template=template
        )
        (own,) = made.model.classify_as(png(image), LABELS, template=template)
        expected = {row["label"]: row["score"] for row in theirs}
        assert list(own.scores) == list(expected)
        assert own.scores == pytest.approx(expected, abs=1e-4)


def png(pixels: Pixels) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


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
    assert case("clip").model.classify_as(picture(1), ["cat"])[0].scores == {"cat": 1.0}
    assert 0 < case("siglip").model.classify_as(picture(1), ["cat"])[0].score < 1


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
    (cut,) = model.classify_as(picture(1), [label, "a"], truncate=True)
    (same,) = model.classify_as(picture(1), [kept], template="This is a photo of {}")
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


def test_a_certificate_measures_both(case: Callable[[str], Case]) -> None:
    folder = case("clip").folder
    report = verify(folder, isolate=False)
    assert (report.verdict, report.output, report.images) == ("PASS", "embedding", None)
    assert report.texts is not None
    assert (report.texts.verdict, report.texts.output) == ("PASS", "embedding")
    assert report.texts.surroundings is not None
    assert report.texts.surroundings.readings > 0
    for bundle in (open_bundle(folder), open_bundle(folder / "text")):
        assert bundle.manifest.foreign_operators == ()
        assert bundle.manifest.quality is not None
    lines = run_here("verify", folder, "--no-isolate").stdout.decode().splitlines()
    assert any(line.startswith("texts") and "PASS" in line for line in lines)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_int8_weights_keep_the_scores(
    name: str, case: Callable[[str], Case], tmp_path: Path
) -> None:
    ortolan.export(case(name).checkpoint, tmp_path / "bundle", precision="int8")
    model = ortolan.load(tmp_path / "bundle", Encoder, threads=1)
    assert model.texts.manifest.precision == "int8"
    for rounded, exact in zip(
        model.classify_as(PICTURES, LABELS),
        case(name).model.classify_as(PICTURES, LABELS),
        strict=True,
    ):
        assert rounded.scores == pytest.approx(exact.scores, abs=0.02)


@pytest.mark.parametrize("part", ["text", "."])
def test_a_damaged_weight_is_found(part: str, case: Callable[[str], Case], tmp_path: Path) -> None:
    copied = Path(shutil.copytree(case("clip").folder, tmp_path / "copy"))
    bundle = open_bundle(copied / part)
    names = [tensor.name for graph in bundle.graphs.values() for tensor in graph.external]

    def change(values: NDArray[Any]) -> None:
        values[0] *= 1.5

    damage(copied / part, next(name for name in names if name.endswith("up.weight")), change)
    if part == "text":
        with pytest.raises(BundleError, match="expected the encoder of texts"):
            verify(copied, isolate=False)
        other = fingerprint(open_bundle(copied / part).manifest)
        edit_json(copied, "manifest.json", put("texts", "encoder", value=other))
    report = verify(copied, isolate=False)
    assert report.verdict == "FAIL"
    assert report.texts is not None
    assert report.texts.verdict == ("FAIL" if part == "text" else "PASS")


def test_another_encoder_of_texts_is_refused(case: Callable[[str], Case], tmp_path: Path) -> None:
    copied = Path(shutil.copytree(case("clip").folder, tmp_path / "copy"))
    edit_json(copied / "text", "manifest.json", put("provenance", "model_type", value="other"))
    with pytest.raises(BundleError, match="expected the encoder of texts with the fingerprint"):
        ortolan.load(copied)
    shutil.rmtree(copied / "text")
    with pytest.raises(BundleError, match="There is no folder"):
        ortolan.load(copied)


def test_an_encoder_of_texts_of_another_width_is_refused(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(case("clip").folder, tmp_path / "copy"))
    shutil.rmtree(copied / "text")
    shutil.copytree(case("siglip").folder / "text", copied / "text")
    other = fingerprint(open_bundle(copied / "text").manifest)
    edit_json(copied, "manifest.json", put("texts", "encoder", value=other))
    with pytest.raises(BundleError, match="as wide as"):
        ortolan.load(copied)


def test_a_bundle_without_a_tokenizer_embeds_ids_and_no_labels(tmp_path: Path) -> None:
    case = Case(tmp_path, "siglip", has_tokenizer=False)
    assert case.model.texts.tokenizer is None
    source = case.model.texts.manifest.source
    assert isinstance(source, TextSource)
    assert source.filler == 0  # of config.json
    assert case.model.texts.embed([[5, 6, 7]]).shape == (1, 32)
    with pytest.raises(TokenizerError, match="no tokenizer"):
        case.model.classify_as(PICTURES, LABELS)


def test_a_tokenizer_that_is_passed_is_for_the_texts(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    tiny_contrast.write(bare, "clip", has_tokenizer=False)
    options = ExportOptions(tokenizer=case("clip").checkpoint / "tokenizer.json")
    ortolan.export(bare, tmp_path / "bundle", options=options)
    model = ortolan.load(tmp_path / "bundle", Encoder, threads=1)
    assert (model.tokenizer, model.texts.tokenizer is None) == (None, False)
    expected = case("clip").model.classify_as(PICTURES, LABELS)
    assert [r.scores for r in model.classify_as(PICTURES, LABELS)] == [r.scores for r in expected]


def test_an_encoder_of_images_alone_has_no_texts(tmp_path: Path) -> None:
    write_bundle(tmp_path / "images", image=IMAGE)
    model = ortolan.load(tmp_path / "images", Encoder, threads=1)
    with pytest.raises(BundleKindError, match="encoders of images and of texts"):
        model.classify_as(picture(1), LABELS)
    with pytest.raises(BundleKindError, match="an encoder of images with one of texts"):
        _ = model.texts


def test_padding_that_is_not_a_token_is_refused(tmp_path: Path) -> None:
    tiny_contrast.write(tmp_path / "checkpoint", "siglip")
    (tmp_path / "checkpoint" / "tokenizer_config.json").write_text('{"pad_token": "pads"}')
    with pytest.raises(OptionError, match="pad_token must be one token"):
        ortolan.export(tmp_path / "checkpoint", tmp_path / "bundle")


def test_the_command_scores_labels_of_images(case: Callable[[str], Case], tmp_path: Path) -> None:
    folder = case("siglip").folder
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for path, image in zip(paths, PICTURES, strict=True):
        path.write_bytes(png(image))
    command = ("classify", folder, paths[0], "--image", paths[1], "--labels", "cat, a dog")
    rows = json.loads(run_here(*command, "--json").stdout)["results"]
    assert [row["input"] for row in rows] == [str(path) for path in paths]
    model = case("siglip").model
    for row, expected in zip(rows, model.classify_as(PICTURES, LABELS[:2]), strict=True):
        assert row["probabilities"] == pytest.approx(expected.probabilities)
    text = run_here(*command, "--template", "{}").stdout.decode()
    (first, *_) = model.classify_as(PICTURES, LABELS[:2], template="{}")
    assert f"{first.score:.1%}" in text
    for arguments, words in (
        (("classify", folder, "--labels", "a"), b"FILE_OR_TEXT"),
        (("classify", folder, paths[0], "--template", "{}"), b"needs --labels"),
        (("classify", folder, paths[0], "--labels", ""), b"non-empty"),
        (("classify", folder / "text", "--image", paths[0], "--labels", "a"), b"--image is for"),
    ):
        refused = run_here(*arguments)
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr


def test_the_command_embeds_images_and_texts(case: Callable[[str], Case], tmp_path: Path) -> None:
    made, path = case("clip"), tmp_path / "a.png"
    path.write_bytes(png(PICTURES[0]))
    done = run_here("embed", made.folder, "--text", "a cat", "--image", path, "--json")
    result = json.loads(done.stdout)
    assert (result["width"], [row["input"] for row in result["results"]]) == (
        24,
        [str(path), "a cat"],
    )
    image, text = (row["embedding"] for row in result["results"])
    np.testing.assert_allclose(image, made.model.embed(PICTURES[:1])[0], atol=1e-6)
    np.testing.assert_allclose(text, made.model.texts.embed("a cat")[0], atol=1e-6)
    only = run_here("embed", made.folder, "--text", "a cat").stdout.decode().split()
    np.testing.assert_allclose([float(number) for number in only], text, atol=1e-5)
    for arguments, expected in (
        (("embed", made.folder), b"Pass a TEXT"),
        (("embed", made.folder / "text", "--text", "a"), b"an encoder of images with one of texts"),
        (("embed", made.folder / "text", "--image", path), b"--image is for"),
    ):
        refused = run_here(*arguments)
        assert (refused.returncode, expected in refused.stderr) == (2, True), refused.stderr


def test_export_replaces_such_a_bundle_and_prints_both(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    checkpoint, out = case("clip").checkpoint, tmp_path / "bundle"
    ortolan.export(checkpoint, out)
    done = run_here("export", checkpoint, out, "--force")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith("texts")]
    assert "texts of at most 64 tokens" in line
    assert "texts to compare with" in run_here("inspect", out, "--no-isolate").stdout.decode()


def test_data_urls_are_no_paths(case: Callable[[str], Case]) -> None:
    url = "data:image/png;base64," + base64.b64encode(png(PICTURES[0])).decode()
    with pytest.raises(InputError):
        case("clip").model.classify_as(url, LABELS)
