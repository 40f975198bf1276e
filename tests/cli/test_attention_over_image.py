"""Attention over the patches of an image, drawn on it."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from numpy.typing import NDArray
from PIL import Image
from tests.cli.conftest import Run, error_line
from tests.runtime import tiny_encoder

import ortolan as package
from ortolan.cli.attention_over_image import gazes
from ortolan.cli.attention_picture import Panel
from ortolan.runtime import InputError
from ortolan.runtime.attention_maps import attention_maps
from ortolan.runtime.bundle.sources import ImageSource

MODELS = Path(__file__).parents[2] / "models"

SOURCE = ImageSource(
    channels=3, height=8, width=12, mean=(0.5,) * 3, std=(0.5,) * 3, scale=1 / 255, resample="box"
)


def panel(queries: int, keys: int, *, row: str = "encoder.0.self") -> Panel:
    shares = np.random.default_rng(0).dirichlet(np.ones(keys), queries).astype(np.float32)
    names = tuple("abcdefghij"[:queries])
    return Panel(row=row, title="layer", shares=shares, queries=names, keys=("",) * keys)


@pytest.mark.parametrize("trained", [0, 1, 2, 5])
def test_patches_lie_as_in_the_image(trained: int) -> None:
    shown = panel(6 + trained, 6 + trained)
    (gaze,) = gazes([shown], SOURCE)
    row = shown.shares[0] if trained else shown.shares.mean(0)
    assert gaze.shares.shape == (2, 3)
    assert np.array_equal(gaze.shares.ravel(), row[trained:])
    assert gaze.title == f"layer\n{'class token' if trained else 'mean of patches'}"


def test_every_written_token_has_a_gaze() -> None:
    shown = panel(3, 7, row="decoder.1.cross")
    found = gazes([shown], SOURCE)
    assert [gaze.title for gaze in found] == ["layer\n0 a", "layer\n1 b", "layer\n2 c"]
    assert np.array_equal(found[2].shares.ravel(), shown.shares[2, 1:])


def test_keys_that_are_no_patches_are_rejected() -> None:
    with pytest.raises(InputError, match="9 keys are no grid of patches"):
        gazes([panel(3, 9)], SOURCE)


@pytest.mark.slow
def test_the_command_draws_on_the_image(
    ortolan: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package.export(
        MODELS / "digits",
        tmp_path / "bundle",
        options=package.ExportOptions(attention_maps=True, proof="quick"),
    )
    image, out = tmp_path / "digit.png", tmp_path / "gaze.png"
    Image.fromarray(np.load(MODELS / "digits" / "calibration.npy")[3, :, :, 0]).save(image)
    drawn: list[NDArray[np.float32]] = []
    original = Axes.imshow

    def imshow(axes: Axes, values: NDArray[np.float32], **options: object) -> object:
        drawn.append(values)
        return original(axes, values, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Axes, "imshow", imshow)
    words = ("attention", tmp_path / "bundle", image, "-o", out, "--over-image")
    done = ortolan(*words, "--layers", "2", "--heads", "1")
    assert done.returncode == 0, done.stderr
    seen, shares = drawn
    assert seen == pytest.approx(np.asarray(Image.open(image)) / 255, abs=1e-6)
    maps = attention_maps(tmp_path / "bundle", str(image)).maps["encoder.2.self"]
    assert shares.ravel() == pytest.approx(maps[1, 0, 1:])
    with Image.open(out) as picture:
        assert min(picture.size) > 100


def test_texts_have_no_image(tmp_path: Path) -> None:
    bundle = tiny_encoder.write_bundle(tmp_path / "labels", maps=True).path
    line = error_line("attention", bundle, "a b", "-o", tmp_path / "a.png", "--over-image")
    assert "--over-image is for bundles that read images" in line
