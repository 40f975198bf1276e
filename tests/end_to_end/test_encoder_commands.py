"""`ortolan classify`, `embed`, `attention` and `inspect`, on tiny encoders."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.end_to_end.conftest import Run
from tests.end_to_end.test_cli import fails_in_one_line
from tests.runtime import tiny_bundle, tiny_encoder
from tests.runtime.tiny_encoder import LABELS, MAX_TOKENS, WIDTH

import ortolan as package


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    tiny_encoder.write_bundle(folder / "labels", maps=True)
    tiny_encoder.write_bundle(folder / "tags", kind="tags")
    tiny_encoder.write_bundle(folder / "scores", kind="scores")
    tiny_encoder.write_bundle(folder / "embedding", kind="embedding")
    tiny_encoder.write_bundle(folder / "states", kind="states")
    tiny_encoder.write_bundle(folder / "images", image=tiny_encoder.IMAGE)
    tiny_bundle.write(folder / "decoder")
    return folder


def classes(text: str, bundles: Path) -> dict[str, float]:
    model = package.load(bundles / "labels", package.Encoder, threads=1)
    return model.classify(text)[0].probabilities


# --- classify ---------------------------------------------------------------------------------


def test_classify_prints_the_likeliest_label_of_one_text(ortolan: Run, bundles: Path) -> None:
    (label, share), *_ = classes("a b", bundles).items()

    done = ortolan("classify", bundles / "labels", "a b")

    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split() == [label, f"{share:.1%}"]


def test_classify_prints_every_tag_and_every_score(ortolan: Run, bundles: Path) -> None:
    for kind, form in (("tags", ".1%"), ("scores", ".4f")):
        model = package.load(bundles / kind, package.Encoder, threads=1)
        (found,) = model.classify("a b")

        done = ortolan("classify", bundles / kind, "a b")

        expected = [(label, format(score, form)) for label, score in found.scores.items()]
        assert [tuple(line.split()) for line in done.stdout.decode().splitlines()] == expected
    (said,) = json.loads(ortolan("classify", bundles / "scores", "a b", "--json").stdout)["results"]
    assert said.keys() == {"input", "label", "score", "scores"}
    assert said["score"] == pytest.approx(found.score)


def test_classify_gives_several_texts_and_labels_as_json(ortolan: Run, bundles: Path) -> None:
    done = ortolan(
        "classify", bundles / "labels", "a b", "-", "--top", "2", "--json", stdin=b"c\n\nd"
    )

    found = json.loads(done.stdout)["results"]
    assert [one["input"] for one in found] == ["a b", "c", "d"]
    for one in found:
        expected = classes(one["input"], bundles)
        assert list(one["probabilities"]) == list(expected)[:2]
        np.testing.assert_allclose(one["probability"], max(expected.values()), rtol=1e-5)
        assert one["label"] == next(iter(expected))


def test_classify_names_image_files_beside_their_labels(
    ortolan: Run, bundles: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{name}.png" for name in ("red", "blue")]
    for path in paths:
        Image.new("RGB", (20, 10), path.stem).save(path)

    lines = ortolan("classify", bundles / "images", *paths).stdout.decode().splitlines()

    assert len(lines) == 2
    for line, path in zip(lines, paths, strict=True):
        label, _, name = line.split()
        assert label in LABELS
        assert name == str(path)


# --- embed ------------------------------------------------------------------------------------


def test_embed_prints_one_vector_a_line(ortolan: Run, bundles: Path) -> None:
    model = package.load(bundles / "embedding", package.Encoder, threads=1)

    done = ortolan("embed", bundles / "embedding", "a b", "-", stdin=b"c d e\n")

    vectors = [[float(value) for value in line.split()] for line in done.stdout.splitlines()]
    np.testing.assert_allclose(vectors, model.embed(["a b", "c d e"]), rtol=1e-4)


def test_embed_gives_json(ortolan: Run, bundles: Path) -> None:
    about = json.loads(ortolan("embed", bundles / "embedding", "a b", "--json").stdout)

    assert about["width"] == WIDTH
    assert about["results"][0]["input"] == "a b"
    np.testing.assert_allclose(np.linalg.norm(about["results"][0]["embedding"]), 1, rtol=1e-5)


def test_embed_with_a_prompt_that_the_model_has_not_fails_in_one_line(
    ortolan: Run, bundles: Path
) -> None:
    line = fails_in_one_line(ortolan, "embed", bundles / "embedding", "a", "--prompt", "query")

    assert "prompt: expected none, since the model has none, got 'query'" in line


# --- attention --------------------------------------------------------------------------------


def test_attention_draws_the_maps_that_were_asked_for(
    ortolan: Run, bundles: Path, tmp_path: Path
) -> None:
    path = tmp_path / "maps.png"

    done = ortolan("attention", bundles / "labels", "a b c", "-o", path, "--heads", "1")

    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert done.stdout.decode() == f"{path}  1 maps\n"
    with Image.open(path) as picture:
        assert len(np.unique(np.asarray(picture))) > 20


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--heads", "0,2"), "heads: expected 0 to 1, got 2"), (("--heads", "x"), "0,2")],
)
def test_attention_with_a_wrong_option_fails_in_one_line(
    ortolan: Run, bundles: Path, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    place = tmp_path / "maps.png"

    line = fails_in_one_line(ortolan, "attention", bundles / "labels", "a b", "-o", place, *options)

    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_attention_without_maps_names_the_option(
    ortolan: Run, bundles: Path, tmp_path: Path
) -> None:
    arguments = ("attention", bundles / "embedding", "a b", "-o", tmp_path / "maps.png")

    assert "--attention-maps" in fails_in_one_line(ortolan, *arguments)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "bundle", "named"),
    [
        ("classify", "embedding", "ortolan embed"),
        ("classify", "states", "Encoder).states"),
        ("embed", "labels", "ortolan classify"),
        ("embed", "decoder", "ortolan run"),
        ("run", "labels", "ortolan classify"),
        ("bench", "embedding", "ortolan embed"),
    ],
)
def test_bundle_of_another_kind_fails_in_one_line_with_the_right_command(
    ortolan: Run, bundles: Path, command: str, bundle: str, named: str
) -> None:
    inputs = [] if command == "bench" else ["a"]

    assert named in fails_in_one_line(ortolan, command, bundles / bundle, *inputs)


def test_wrong_inputs_fail_in_one_line(ortolan: Run, bundles: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.png"
    notes.write_text("def main():")

    assert "at least one token" in fails_in_one_line(ortolan, "classify", bundles / "labels", "")
    long = fails_in_one_line(ortolan, "classify", bundles / "labels", "a " * 30)
    assert f"at most {MAX_TOKENS} tokens, got 32" in long
    assert "notes.png" in fails_in_one_line(ortolan, "classify", bundles / "images", notes)
    assert "nowhere" in fails_in_one_line(ortolan, "classify", bundles / "images", "nowhere.png")
    wrong = fails_in_one_line(ortolan, "embed", bundles / "embedding", "-", stdin=b"a\xff")
    assert "0xff at 1" in wrong


# --- devices ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "name"), [("classify", "labels"), ("embed", "embedding")])
def test_cuda_fails_in_one_line_that_names_the_device(
    ortolan: Run, bundles: Path, command: str, name: str
) -> None:
    line = fails_in_one_line(ortolan, command, bundles / name, "a b", "--device", "cuda")
    assert "device 'cuda': expected" in line


# --- inspect ----------------------------------------------------------------------------------


def test_inspect_says_kind_inputs_outputs_and_maps(ortolan: Run, bundles: Path) -> None:
    text = ortolan("inspect", bundles / "labels").stdout.decode()

    assert "tiny encoder, fp32" in text
    assert f"takes          texts of at most {MAX_TOKENS} tokens" in text
    assert "gives          3 labels and their probabilities: no, perhaps, yes" in text
    assert "maps           1: encoder.0.self" in text
    assert "attention: 1 x spelled out in plain operators" in text
    about = json.loads(ortolan("inspect", bundles / "images", "--json").stdout)
    assert about["takes"] == "images, RGB, of 4 by 6 pixels"
    assert about["labels"] == list(LABELS)
    assert about["cache_bytes_per_token"] == 0
