"""Encoders of images and of texts in one bundle: its parts, its proof and its commands."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cli.conftest import run_here
from tests.export import tiny_contrast
from tests.export.tiny_contrast import LABELS, PICTURES, Case
from tests.runtime.damaged_bundles import damage, edit_json, put
from tests.runtime.tiny_encoder import IMAGE, write_bundle
from tests.tiny.media import picture, png

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions
from ortolan.export.source import unknown_keys_of
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.errors import ConfigError
from ortolan.runtime import (
    BundleError,
    BundleKindError,
    Encoder,
    TokenizerError,
    open_bundle,
    verify,
)
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.bundle.sources import TextSource
from ortolan.runtime.inspect.card import model_card

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Export a case, once."""
    return cache(lambda name: Case(tmp_path_factory.mktemp(name), name))


def test_a_certificate_measures_both(case: Callable[[str], Case]) -> None:
    folder = case("clip").folder
    report = verify(folder, isolate=False)
    assert (report.verdict, report.output, report.media) == ("PASS", "embedding", None)
    assert report.texts is not None
    assert (report.texts.verdict, report.texts.output) == ("PASS", "embedding")
    assert report.texts.surroundings is not None
    assert report.texts.surroundings.readings > 0
    for bundle in (open_bundle(folder), open_bundle(folder / "text")):
        assert bundle.manifest.foreign_operators == ()
        assert bundle.manifest.quality is not None
    lines = run_here("verify", folder, "--no-isolate").stdout.decode().splitlines()
    assert any(line.startswith("texts") and "PASS" in line for line in lines)


@pytest.mark.parametrize("name", ["clip", pytest.param("siglip", marks=pytest.mark.slow)])
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
        model.classify_as(picture(seed=1), LABELS)
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


@pytest.mark.parametrize(
    "part",
    ["text_config", *(pytest.param(p, marks=pytest.mark.slow) for p in ("vision_config", None))],
)
def test_an_unknown_key_of_either_encoder_can_be_accepted(part: str | None, tmp_path: Path) -> None:
    checkpoint, key = tmp_path / "checkpoint", "new_key" if part is None else f"{part}.new_key"
    tiny_contrast.write(checkpoint, "clip")
    config = json.loads((checkpoint / "config.json").read_text())
    (config if part is None else config[part])["new_key"] = 3
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=f"--accept-unknown {key}"):
        ortolan.export(checkpoint, tmp_path / "bundle")
    assert unknown_keys_of(open_checkpoint(checkpoint), None) == (key,)
    options = ExportOptions(accept_unknown=(key,))
    bundle = ortolan.export(checkpoint, tmp_path / "bundle", options=options)
    images, texts = bundle.manifest, open_bundle(bundle.path / "text").manifest
    assert images.provenance.accepted_keys == (() if part == "text_config" else (key,))
    assert texts.provenance.accepted_keys == (() if part == "vision_config" else (key,))


def test_a_card_shows_how_to_classify(case: Callable[[str], Case]) -> None:
    card = model_card([open_bundle(case("clip").folder)])
    assert "zero-shot-image-classification" in card
    assert 'classify bundle photo.jpg --labels "a cat,a dog"' in card
