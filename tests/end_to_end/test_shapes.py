"""models/shapes answers questions about pictures, in bundles as in PyTorch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ortolan
import shapes.quality
from ortolan.runtime import Decoder
from shapes.scenes import kind_of

MODEL = Path(__file__).parents[2] / "models" / "shapes"

SCENE = "a red circle, a blue square, a yellow triangle, a black cross, a purple circle"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shapes") / "bundle"
    ortolan.export(MODEL, out)
    return out


def test_a_picture_is_described(bundle: Path) -> None:
    model = ortolan.load(bundle, Decoder)
    file = MODEL / "scene.png"
    pixels = np.asarray(Image.open(file).convert("RGB"))
    for image in (file, file.read_bytes(), pixels):
        assert model.generate([{"image": image}, "What do you see?"]).text.strip() == SCENE
    part: Any = {"type": "image", "image": file}
    content = [part, {"type": "text", "text": "What do you see?"}]
    assert model.chat([{"role": "user", "content": content}]).content.strip() == SCENE


def test_answers_are_those_of_pytorch(bundle: Path) -> None:
    drawn = shapes.quality.asked("known", 40)
    expected = shapes.quality.by_pytorch(MODEL)(drawn)
    assert shapes.quality.by_bundle(str(bundle))(drawn) == expected


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_known_scenes_are_described(precision: Any, tmp_path: Path) -> None:
    ortolan.export(MODEL, tmp_path / "bundle", precision=precision)
    answer = shapes.quality.by_bundle(str(tmp_path / "bundle"))
    drawn = [e for e in shapes.quality.asked("known") if kind_of(e.question) == "What do you see"]
    assert shapes.quality.accuracy(drawn, answer(drawn))["all"] >= 0.9
