"""`ortolan classify`, `embed`, `attention` and `inspect`, on tiny encoders."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import Run
from tests.runtime import tiny_bundle, tiny_encoder
from tests.runtime.tiny_encoder import LABELS, MAX_TOKENS, WIDTH

import ortolan as package


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    tiny_encoder.write_bundle(folder / "labels", maps=True)
    for kind in ("tags", "scores", "embedding", "states"):
        tiny_encoder.write_bundle(folder / kind, kind=kind)
    tiny_encoder.write_bundle(folder / "images", image=tiny_encoder.IMAGE)
    tiny_bundle.write(folder / "decoder")
    return folder


def encoder(bundle: Path) -> package.Encoder:
    return package.load(bundle, package.Encoder, threads=1)


def test_classify_prints_the_likeliest_label(ortolan: Run, bundles: Path) -> None:
    (label, share), *_ = encoder(bundles / "labels").classify("a b")[0].probabilities.items()
    done = ortolan("classify", bundles / "labels", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split() == [label, f"{share:.1%}"]


def test_classify_prints_every_tag_and_every_score(ortolan: Run, bundles: Path) -> None:
    for kind, form in (("tags", ".1%"), ("scores", ".4f")):
        (expected,) = encoder(bundles / kind).classify("a b")
        lines = ortolan("classify", bundles / kind, "a b").stdout.decode().splitlines()
        rows = [(label, format(score, form)) for label, score in expected.scores.items()]
        assert [tuple(line.split()) for line in lines] == rows
    (row,) = json.loads(ortolan("classify", bundles / "scores", "a b", "--json").stdout)["results"]
    assert row.keys() == {"input", "label", "score", "scores"}
    assert row["score"] == pytest.approx(expected.score)


def test_classify_prints_texts_and_labels_as_json(ortolan: Run, bundles: Path) -> None:
    done = ortolan(
        "classify", bundles / "labels", "a b", "-", "--top", "2", "--json", stdin=b"c\n\nd"
    )
    rows = json.loads(done.stdout)["results"]
    assert [row["input"] for row in rows] == ["a b", "c", "d"]
    for row in rows:
        expected = encoder(bundles / "labels").classify(row["input"])[0].probabilities
        assert list(row["probabilities"]) == list(expected)[:2]
        assert row["probability"] == pytest.approx(max(expected.values()), rel=1e-5)
        assert row["label"] == next(iter(expected))


def test_classify_prints_image_files_next_to_their_labels(
    ortolan: Run, bundles: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{name}.png" for name in ("red", "blue")]
    for path in paths:
        Image.new("RGB", (20, 10), path.stem).save(path)
    lines = ortolan("classify", bundles / "images", *paths).stdout.decode().splitlines()
    rows = [line.split() for line in lines]
    assert [row[2] for row in rows] == [str(path) for path in paths]
    assert {row[0] for row in rows} <= {*LABELS}


def test_embed_prints_one_vector_per_line_or_json(ortolan: Run, bundles: Path) -> None:
    done = ortolan("embed", bundles / "embedding", "a b", "-", stdin=b"c d e\n")
    vectors = [[float(value) for value in line.split()] for line in done.stdout.splitlines()]
    expected = encoder(bundles / "embedding").embed(["a b", "c d e"])
    np.testing.assert_allclose(vectors, expected, rtol=1e-4)

    about = json.loads(ortolan("embed", bundles / "embedding", "a b", "--json").stdout)
    assert about["width"] == WIDTH
    (row,) = about["results"]
    assert row["input"] == "a b"
    np.testing.assert_allclose(row["embedding"], expected[0], rtol=1e-5)


def test_attention_draws_the_chosen_maps(ortolan: Run, bundles: Path, tmp_path: Path) -> None:
    path = tmp_path / "maps.png"
    done = ortolan("attention", bundles / "labels", "a b c", "-o", path, "--heads", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert done.stdout.decode() == f"{path}  1 maps\n"
    with Image.open(path) as picture:
        assert len(np.unique(np.asarray(picture))) > 20


def test_inspect_prints_kind_inputs_outputs_and_maps(ortolan: Run, bundles: Path) -> None:
    text = ortolan("inspect", bundles / "labels").stdout.decode()
    rows = dict(line.split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    assert "tiny encoder, fp32" in text
    assert f"texts of at most {MAX_TOKENS} tokens" in rows["input"]
    assert "3 labels and their probabilities: no, perhaps, yes" in rows["output"]
    assert "1: encoder.0.self" in rows["maps"]
    assert "attention: 1 x in plain operators" in text
    about = json.loads(ortolan("inspect", bundles / "images", "--json").stdout)
    assert about["takes"] == "images, RGB, of 4 by 6 pixels"
    assert about["labels"] == list(LABELS)
    assert about["cache_bytes_per_token"] == 0
