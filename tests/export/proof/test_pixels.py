"""The reference of pixels, which does without Pillow, against Pillow and the runtime."""

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ortolan.export.proof.pixels import reference_pixels
from ortolan.runtime.bundle.image_sources import Fit, ImageSource
from ortolan.runtime.inputs.images import read_pixels
from ortolan.runtime.verification.probes import probe_picture, sampled, tolerances

FILTERS = ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

RAW = ImageSource(
    channels=3,
    height=20,
    width=24,
    mean=(0.0,) * 3,
    std=(1.0,) * 3,
    scale=1.0,
    resample="bicubic",
)

FITS = {
    "exact": Fit(resize=(20, 24)),
    "edge": Fit(resize=30, crop=(20, 24)),
    "edge-border": Fit(resize=11, crop=(20, 24)),
    "inside": Fit(resize=(20, 24), inside=True, pad=True),
    "crop": Fit(crop=(20, 24)),
    "pad": Fit(pad=True),
}


def picture(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(7).integers(64, 192, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("size", [(51, 37), (20, 40), (9, 7)])
def test_each_filter_is_that_of_pillow(name: Any, size: tuple[int, int]) -> None:
    source = msgspec.structs.replace(RAW, resample=name)
    values = picture(*size)
    resized = Image.fromarray(values).resize((24, 20), Image.Resampling[name.upper()])
    expected = np.asarray(resized).transpose(2, 0, 1)
    np.testing.assert_allclose(reference_pixels(values, source), expected, atol=2.01)


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("size", [(51, 37), (15, 62), (19, 19)])
def test_the_runtime_agrees_on_every_step(name: str, size: tuple[int, int]) -> None:
    source = msgspec.structs.replace(RAW, fit=FITS[name])
    values = picture(*((13, 22) if name == "pad" else size))
    expected = reference_pixels(values, source)
    np.testing.assert_allclose(read_pixels(values, source), expected, atol=2.01)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("size", [(51, 37), (9, 7)])
def test_values_that_are_not_rounded_agree_closely(name: Any, size: tuple[int, int]) -> None:
    source = msgspec.structs.replace(RAW, resample=name, rounding="none")
    values = picture(*size)
    got = read_pixels(values, source)
    np.testing.assert_allclose(got, reference_pixels(values, source), atol=1e-3)


def test_samples_of_the_probe_picture_tell_rounding_apart() -> None:
    exact = msgspec.structs.replace(RAW, resample="bilinear", rounding="none")
    rounded = msgspec.structs.replace(exact, rounding=None)
    values = probe_picture(exact)
    expected = sampled(reference_pixels(values, exact).astype(np.float32))
    for source in (exact, rounded):
        pixels_CHW = read_pixels(values, source)
        bounds = tolerances(exact, pixels_CHW)
        is_close = bool((np.abs(sampled(pixels_CHW) - expected) <= bounds).all())
        assert is_close == (source is exact)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("other", FILTERS)
def test_samples_of_the_probe_picture_tell_filters_apart(name: Any, other: Any) -> None:
    source = msgspec.structs.replace(RAW, resample=name, scale=1 / 255, std=(0.1, 0.2, 0.3))
    values = probe_picture(source)
    pixels_CHW = read_pixels(values, msgspec.structs.replace(source, resample=other))
    got = sampled(pixels_CHW)
    expected = sampled(reference_pixels(values, source).astype(np.float32))
    is_close = bool((np.abs(got - expected) <= tolerances(source, pixels_CHW)).all())
    assert is_close == (name == other)


def test_the_probe_picture_never_changes() -> None:
    values = probe_picture(RAW)
    assert values.shape == (31, 51, 3)
    assert values.ravel()[:8].tolist() == [154, 93, 69, 99, 171, 180, 122, 99]
    assert values.std() > 35
