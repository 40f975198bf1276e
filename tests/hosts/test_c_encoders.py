"""Encoders in C return the vectors and scores of Ortolan's Python runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.hosts.c_library import Built
from tests.runtime import tiny_encoder
from tests.runtime.bundle.manifests import KINDS
from tests.runtime.damaged_bundles import edit_json, put

import ortolan
from ortolan.runtime.encoder import Encoder

pytestmark = pytest.mark.slow

TEXTS = ["a b c", "hello world, this is text", "a", "x y x y x y", "the same length"] * 9
TOLERANCE = 1e-5


def rows(
    built: Built, bundle: Path, task: str, texts: list[str], *, kept: int = 0, prompt: str = "-"
) -> tuple[list[str], NDArray[np.float64]]:
    """Names of the labels, if there are any, and the numbers of each text."""
    done = built.run("encode", bundle, task, kept, prompt, *texts)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names, numbers = lines[: -len(texts)], lines[-len(texts) :]
    return names, np.array([[float(word) for word in line.split()] for line in numbers])


def loaded(bundle: Path) -> Encoder:
    return ortolan.load(bundle, Encoder, isolate=False)


@pytest.mark.parametrize("kind", ["labels", "tags", "scores"])
def test_scores_equal_those_of_python(sanitized: Built, tmp_path: Path, kind: Any) -> None:
    tiny_encoder.write_bundle(tmp_path / "bundle", kind=kind)
    names, scores = rows(sanitized, tmp_path / "bundle", "classify", TEXTS)
    expected = [result.scores for result in loaded(tmp_path / "bundle").classify(TEXTS)]
    assert names == [*tiny_encoder.LABELS]
    reference = [[row[name] for name in names] for row in expected]
    np.testing.assert_allclose(scores, reference, rtol=0, atol=TOLERANCE)


def test_vectors_equal_those_of_python_whole_and_cut(sanitized: Built, tmp_path: Path) -> None:
    tiny_encoder.write_bundle(tmp_path / "bundle", kind="embedding")
    _, vectors = rows(sanitized, tmp_path / "bundle", "embed", TEXTS)
    reference = loaded(tmp_path / "bundle").embed(TEXTS)
    np.testing.assert_allclose(vectors, reference, rtol=0, atol=TOLERANCE)
    _, cut = rows(sanitized, tmp_path / "bundle", "embed", TEXTS, kept=3)
    start = reference[:, :3].astype(np.float64)
    if np.allclose(np.linalg.norm(reference, axis=1), 1, atol=1e-3):
        start /= np.linalg.norm(start, axis=1, keepdims=True)
    np.testing.assert_allclose(cut, start, rtol=0, atol=TOLERANCE)


def test_prompt_of_the_model_stands_before_each_text(built: Built, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    tiny_encoder.write_bundle(bundle, kind="embedding")
    edit_json(bundle, "manifest.json", put("source", "prompts", value={"query": "x y "}))
    edit_json(bundle, "manifest.json", put("source", "default_prompt", value="query"))
    plain, prompted = loaded(bundle).embed("a", prompt=""), loaded(bundle).embed("a")
    assert not np.allclose(plain, prompted)
    assert np.allclose(rows(built, bundle, "embed", ["a"])[1], prompted, atol=TOLERANCE)
    assert np.allclose(rows(built, bundle, "embed", ["a"], prompt="")[1], plain, atol=TOLERANCE)
    done = built.run("encode", bundle, "embed", 0, "passage", "a")
    assert "The model has no prompt `passage`" in done.stderr


def test_calls_of_another_kind_and_long_texts_are_errors(built: Built, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    tiny_encoder.write_bundle(bundle, kind="labels")
    assert built.run("encode", bundle, "embed", 0, "-", "a").stderr.startswith("kind: ")
    assert built.run("run", bundle, *[1] * 13).stderr.startswith("kind: ")
    assert built.run("verify", bundle).stderr.startswith("kind: ")
    assert (
        "Input 1 has no tokens" in built.run("encode", bundle, "classify", 0, "-", "a", "").stderr
    )
    long = "a b " * 4000
    done = built.run("encode", bundle, "classify", 0, "-", long)
    assert done.stderr.startswith("context-length: Input 0 has ")
    cut = built._replace(environment={"TRUNCATE": "1"})
    _, scores = rows(cut, bundle, "classify", [long])
    (expected,) = loaded(bundle).classify([long], truncate=True)
    assert sorted(scores[0]) == pytest.approx(sorted(expected.scores.values()), abs=TOLERANCE)


@pytest.mark.parametrize("name", [name for name in KINDS["encoder"] if "maps" not in name])
def test_damaged_manifest_is_refused_or_harmless(built: Built, tmp_path: Path, name: str) -> None:
    tiny_encoder.write_bundle(tmp_path / "bundle", kind="labels")
    edit_json(tmp_path / "bundle", "manifest.json", KINDS["encoder"][name])
    done = built.run("encode", tmp_path / "bundle", "classify", 0, "-", "a")
    assert done.returncode == 0 or done.stderr.split(":")[0] in ("manifest", "kind", "graph")
