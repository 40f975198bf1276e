"""Encoders of images in JavaScript against Python, which resizes with Pillow."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.hosts.js_cases import Calls
from tests.hosts.js_runs import run_tests
from tests.runtime import tiny_encoder
from tests.runtime.damaged_bundles import edit_json
from tests.runtime.tiny_encoder import IMAGE

from ortolan.runtime.bundle.image_sources import Fit

SOURCES: dict[str, dict[str, Any]] = {
    **{name: {"resample": name} for name in ("nearest", "box", "bilinear", "hamming", "bicubic")},
    "lanczos": {"resample": "lanczos", "rounding": "none"},
    "short": {"fit": Fit(resize=9, crop=(4, 6))},
    "inside": {"fit": Fit(resize=(4, 6), inside=True, pad=True)},
    "border": {"fit": Fit(crop=(4, 6))},
    "white": {"background": "white", "rounding": "none", "resample": "bicubic"},
}


def images() -> list[NDArray[np.uint8]]:
    """Images of several sizes, in gray and in color, with and without alpha."""
    rng = np.random.default_rng(0)
    shapes = [(4, 6, 3), (7, 5, 3), (33, 21, 4), (3, 50, 1), (2, 3, 2), (64, 48, 3), (1, 1, 3)]
    return [rng.integers(0, 256, shape, np.uint8) for shape in shapes]


def calls_of(folder: Path) -> list[Calls]:
    pytest.importorskip("PIL")
    each = []
    for name, fields in SOURCES.items():
        image = msgspec.structs.replace(IMAGE, **fields)
        tiny_encoder.write_bundle(folder / name, kind="embedding", image=image)
        calls = Calls(folder / name)
        for pixels in images():
            calls.add("embed", [pixels])
        calls.add("embed", [images()[0], images()[-2]], truncate=True)
        each.append(calls)
    tiny_encoder.write_bundle(folder / "labels", kind="labels", image=IMAGE)
    labels = Calls(folder / "labels")
    labels.add("classify", images())
    labels.add("classify_as", images(), ["a", "b"])
    return [*each, labels]


def compared(folder: Path, scores: str) -> Calls:
    """An encoder of images with one of texts."""
    tiny_encoder.write_bundle(folder, kind="embedding", image=IMAGE)
    tiny_encoder.write_bundle(folder / "text", kind="embedding")
    encoder = hashlib.sha256((folder / "text" / "manifest.json").read_bytes()).hexdigest()
    texts = {"encoder": encoder, "scale": 5.0, "bias": -0.5, "scores": scores}
    edit_json(folder, "manifest.json", lambda manifest: manifest.update(texts=texts))
    calls = Calls(folder)
    for options in ({}, {"template": "a {} b"}, {"multi_label": True}, {"template": "a"}):
        calls.add("classify_as", images(), ["a", "b c", "d"], **options)
    calls.add("classify_as", images()[:1], ["a"])
    calls.add("classify_as", images()[:1], ["a " * 30], template="{}")
    return calls


@pytest.mark.slow
def test_images_equal_those_of_python(tmp_path: Path) -> None:
    both = [compared(tmp_path / scores, scores) for scores in ("softmax", "sigmoid")]
    cases = [case for calls in (*calls_of(tmp_path), *both) for case in calls.cases]
    run_tests("calls", {"cases": cases, "tolerance": 1e-5}, tmp_path)
