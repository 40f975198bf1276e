"""Encoders of images and of texts in one bundle, beyond what holds for all."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cases.contrast import LABELS, OF_CLIP, OF_SIGLIP, PICTURES, TEXTS, write
from tests.cases.run import Run, Runs
from tests.cli.conftest import run_here
from tests.runtime.damaged_bundles import damage, edit_json, put
from tests.runtime.tiny_encoder import IMAGE, write_bundle
from tests.tiny.media import picture, png

import ortolan
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
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.inspect.card import model_card

pytestmark = pytest.mark.slow


@pytest.fixture
def clip(runs: Runs) -> Run:
    return runs(OF_CLIP)


@pytest.fixture
def siglip(runs: Runs) -> Run:
    return runs(OF_SIGLIP)


def test_labels_are_embedded_once(siglip: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    embed = Encoder.embed

    def counted(encoder: Encoder, inputs: Any, **options: Any) -> Any:
        calls.append(inputs)
        return embed(encoder, inputs, **options)

    monkeypatch.setattr(Encoder, "embed", counted)
    labels = ["one", "two"]
    for image in PICTURES:
        siglip.model.classify_as(image, labels)
    assert calls == [["This is a photo of one.", "This is a photo of two."]]
    siglip.model.classify_as(PICTURES, labels, template="{}")
    assert calls[1:] == [labels]


def test_a_single_label_of_clip_is_certain(clip: Run, siglip: Run) -> None:
    assert clip.model.classify_as(PICTURES[0], ["cat"])[0].scores == {"cat": 1.0}
    free = siglip.model.classify_as(PICTURES[0], ["cat"], multi_label=True)
    assert 0 < free[0].score < 1
    assert free == siglip.model.classify_as(PICTURES[0], ["cat"])
    assert clip.model.classify_as([], LABELS) == []


def test_a_label_that_is_too_long_can_be_cut(siglip: Run) -> None:
    label, kept = "z" * 50, "z" * 44
    (cut,) = siglip.model.classify_as(PICTURES[0], [label, "a"], truncate=True)
    (same,) = siglip.model.classify_as(PICTURES[0], [kept], template="This is a photo of {}")
    assert cut.scores[label] == pytest.approx(same.scores[kept])


def test_ids_are_padded_like_texts_and_a_service_embeds_both(siglip: Run) -> None:
    texts = siglip.model.texts
    ids = texts.tokenizer.encode("a cat")
    np.testing.assert_array_equal(texts.embed([ids]), texts.embed(["a cat"]))
    with texts.serve() as service:
        vectors = service.embed(TEXTS).result()
    np.testing.assert_allclose(vectors, texts.embed(TEXTS), atol=1e-5)


def test_a_certificate_measures_both(clip: Run) -> None:
    report = verify(clip.bundle, isolate=False)
    assert (report.output, report.media) == ("embedding", None)
    assert report.texts is not None
    assert (report.texts.verdict, report.texts.output) == ("PASS", "embedding")
    assert report.texts.surroundings is not None
    assert report.texts.surroundings.readings > 0
    lines = run_here("verify", clip.bundle, "--no-isolate").stdout.decode().splitlines()
    assert any(line.startswith("texts") and "PASS" in line for line in lines)


@pytest.mark.parametrize("part", ["text", "."])
def test_the_report_of_the_whole_names_the_damaged_part(
    part: str, clip: Run, tmp_path: Path
) -> None:
    copied = clip.copied(tmp_path)
    graphs = open_bundle(copied / part).graphs.values()
    names = [tensor.name for graph in graphs for tensor in graph.external]

    def change(values: NDArray[Any]) -> None:
        values[0] *= 1.5

    damage(copied / part, next(name for name in names if name.endswith("up.weight")), change)
    if part == "text":
        other = fingerprint(open_bundle(copied / part).manifest)
        edit_json(copied, "manifest.json", put("texts", "encoder", value=other))
    report = verify(copied, isolate=False)
    assert report.verdict == "FAIL"
    assert report.texts is not None
    assert report.texts.verdict == ("FAIL" if part == "text" else "PASS")


def test_an_encoder_of_texts_of_another_width_is_refused(
    clip: Run, siglip: Run, tmp_path: Path
) -> None:
    copied = clip.copied(tmp_path)
    shutil.rmtree(copied / "text")
    shutil.copytree(siglip.bundle / "text", copied / "text")
    other = fingerprint(open_bundle(copied / "text").manifest)
    edit_json(copied, "manifest.json", put("texts", "encoder", value=other))
    with pytest.raises(BundleError, match="that suits the bundle around it"):
        ortolan.load(copied)


def test_a_bundle_without_a_tokenizer_embeds_ids_and_no_labels(tmp_path: Path) -> None:
    write(tmp_path, "siglip", has_tokenizer=False)
    ortolan.export(tmp_path, tmp_path / "bundle")
    model = ortolan.load(tmp_path / "bundle", Encoder, threads=1)
    assert model.texts.tokenizer is None
    source = model.texts.manifest.source
    assert isinstance(source, TextSource)
    assert source.padding == 0  # of config.json
    assert model.texts.embed([[5, 6, 7]]).shape == (1, 32)
    with pytest.raises(TokenizerError, match="no tokenizer"):
        model.classify_as(PICTURES, LABELS)


def test_a_tokenizer_that_is_passed_is_for_the_texts(clip: Run, tmp_path: Path) -> None:
    write(tmp_path, "clip", has_tokenizer=False)
    options = ExportOptions(tokenizer=clip.checkpoint / "tokenizer.json")
    ortolan.export(tmp_path, tmp_path / "bundle", options=options)
    model = ortolan.load(tmp_path / "bundle", Encoder, threads=1)
    assert (model.tokenizer, model.texts.tokenizer is None) == (None, False)
    expected = clip.model.classify_as(PICTURES, LABELS)
    assert [r.scores for r in model.classify_as(PICTURES, LABELS)] == [r.scores for r in expected]


def test_an_encoder_of_images_alone_has_no_texts(tmp_path: Path) -> None:
    write_bundle(tmp_path / "images", image=IMAGE)
    model = ortolan.load(tmp_path / "images", Encoder, threads=1)
    with pytest.raises(BundleKindError, match="encoders of images and of texts"):
        model.classify_as(picture(seed=1), LABELS)
    with pytest.raises(BundleKindError, match="an encoder of images with one of texts"):
        _ = model.texts


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The pictures."""
    paths = [tmp_path / f"{number}.png" for number in range(len(PICTURES))]
    for path, image in zip(paths, PICTURES, strict=True):
        path.write_bytes(png(image))
    return paths


def test_the_command_scores_labels_of_images(siglip: Run, files: list[Path]) -> None:
    command = ("classify", siglip.bundle, files[0], "--image", files[1], "--labels", "cat, a dog")
    rows = json.loads(run_here(*command, "--json").stdout)["results"]
    assert [row["input"] for row in rows] == [str(path) for path in files]
    expected = siglip.model.classify_as(PICTURES, LABELS[:2])
    for row, result in zip(rows, expected, strict=True):
        assert row["probabilities"] == pytest.approx(result.probabilities)
    (first, *_) = siglip.model.classify_as(PICTURES, LABELS[:2], template="{}")
    assert f"{first.score:.1%}" in run_here(*command, "--template", "{}").stdout.decode()


def test_the_command_embeds_images_and_texts(clip: Run, files: list[Path]) -> None:
    done = run_here("embed", clip.bundle, "--text", "a cat", "--image", files[0], "--json")
    result = json.loads(done.stdout)
    assert (result["width"], [row["input"] for row in result["results"]]) == (
        24,
        [str(files[0]), "a cat"],
    )
    image, text = (row["embedding"] for row in result["results"])
    np.testing.assert_allclose(image, clip.model.embed(PICTURES[:1])[0], atol=1e-6)
    np.testing.assert_allclose(text, clip.model.texts.embed("a cat")[0], atol=1e-6)
    only = run_here("embed", clip.bundle, "--text", "a cat").stdout.decode().split()
    np.testing.assert_allclose([float(number) for number in only], text, atol=1e-5)


@pytest.mark.parametrize(
    ("command", "part", "words", "said"),
    [
        ("classify", ".", ["--labels", "a"], "FILE_OR_TEXT"),
        ("classify", ".", ["IMAGE", "--template", "{}"], "needs --labels"),
        ("classify", ".", ["IMAGE", "--labels", ""], "non-empty"),
        ("classify", "text", ["--image", "IMAGE", "--labels", "a"], "--image is for"),
        ("embed", ".", [], "Pass a TEXT"),
        ("embed", "text", ["--text", "a"], "an encoder of images with one of texts"),
        ("embed", "text", ["--image", "IMAGE"], "--image is for"),
    ],
)
def test_a_command_that_does_not_fit_is_refused(
    command: str, part: str, words: list[str], said: str, clip: Run, files: list[Path]
) -> None:
    given = [files[0] if word == "IMAGE" else word for word in words]
    done = run_here(command, clip.bundle / part, *given)
    assert (done.returncode, said in done.stderr.decode()) == (2, True), done.stderr


def test_export_replaces_such_a_bundle_and_prints_both(clip: Run, tmp_path: Path) -> None:
    out = clip.copied(tmp_path)
    done = run_here("export", clip.checkpoint, out, "--force")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith("texts")]
    assert "texts of at most 64 tokens" in line
    assert "texts to compare with" in run_here("inspect", out, "--no-isolate").stdout.decode()


@pytest.mark.parametrize("part", ["text_config", "vision_config", None])
def test_an_unknown_key_of_either_encoder_can_be_accepted(part: str | None, tmp_path: Path) -> None:
    checkpoint, key = tmp_path / "checkpoint", "new_key" if part is None else f"{part}.new_key"
    write(checkpoint, "clip")
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


def test_a_card_shows_how_to_classify(clip: Run) -> None:
    card = model_card([open_bundle(clip.bundle)])
    assert "zero-shot-image-classification" in card
    assert f'classify {clip.bundle.name} photo.jpg --labels "a cat,a dog"' in card
