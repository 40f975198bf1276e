"""Pixels that an image processor makes of a picture, computed without Pillow.

Independent of the runtime's code, which this is a check of, apart from the size of an image that
keeps its proportions.

Shape letters: H height, W width, C channels.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.image_sources import Fit, ImageSource, PatchSource
from ortolan.runtime.inputs.patches import fitted_size

Array = NDArray[np.float64]


def _cubic(x: Array) -> Array:
    """Keys' cubic convolution with a = -1/2 (Keys 1981)."""
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


FILTERS: Mapping[str, tuple[float, Callable[[Array], Array]]] = {
    "box": (0.5, lambda x: np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)),
    "bilinear": (1.0, lambda x: np.maximum(1 - np.abs(x), 0)),
    "hamming": (1.0, lambda x: np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x)) * (np.abs(x) < 1)),
    "bicubic": (2.0, _cubic),
    "lanczos": (3.0, lambda x: np.sinc(x) * np.sinc(x / 3) * (np.abs(x) < 3)),
}
"""Half the width of each filter in pixels, and its weight at a signed distance."""


def reference_pixels(picture_HWC: NDArray[np.uint8], source: ImageSource | PatchSource) -> Array:
    """Pixels `(C, H, W)` of an encoder's input, in float64."""
    steps = Fit() if isinstance(source, PatchSource) else source.steps
    values_HWC = picture_HWC.astype(np.float64)
    if isinstance(source, PatchSource):
        height, width = fitted_size(picture_HWC.shape[:2], source)
    else:
        height, width = _resized_size(picture_HWC.shape[0], picture_HWC.shape[1], steps)
    for axis, size in ((1, width), (0, height)):
        values_HWC = _resize(values_HWC.swapaxes(0, axis), size, source.resample).swapaxes(0, axis)
        if isinstance(source, PatchSource) or source.rounding != "none":
            # after each axis, as in Pillow
            values_HWC = np.clip(np.floor(values_HWC + 0.5), 0, 255)
    if steps.crop is not None:
        for axis, size in enumerate(steps.crop):
            values_HWC = _crop(values_HWC.swapaxes(0, axis), size).swapaxes(0, axis)
    normal_HWC = (values_HWC * source.scale - np.array(source.mean)) / np.array(source.std)
    if isinstance(source, PatchSource):
        pixels_CHW: Array = normal_HWC.transpose(2, 0, 1)
        return pixels_CHW
    pixels_HWC = np.zeros((source.height, source.width, source.channels))
    pixels_HWC[: normal_HWC.shape[0], : normal_HWC.shape[1]] = normal_HWC
    return pixels_HWC.transpose(2, 0, 1)


def _resized_size(height: int, width: int, steps: Fit) -> tuple[int, int]:
    if steps.resize is None:
        return height, width
    if isinstance(steps.resize, int):
        edge, short = steps.resize, min(height, width)
        return edge * height // short, edge * width // short
    high, wide = steps.resize
    if not steps.inside:
        return high, wide
    factor = min(high / height, wide / width)
    return int(height * factor), int(width * factor)


def _resize(values: Array, size: int, name: str) -> Array:
    """Resample the first axis to `size`."""
    before = values.shape[0]
    if before == size:
        return values
    centers = (np.arange(size) + 0.5) * (before / size)
    if name == "nearest":
        nearest: Array = values[centers.astype(int)]
        return nearest
    support, weight = FILTERS[name]
    # a filter covers at least its width in the new pixels, against aliasing
    scale = max(before / size, 1.0)
    start = np.maximum((centers - support * scale + 0.5).astype(int), 0)[:, None]
    stop = np.minimum((centers + support * scale + 0.5).astype(int), before)[:, None]
    pixels = np.arange(before)
    distances = (pixels + 0.5 - centers[:, None]) / scale
    weights = np.where((pixels >= start) & (pixels < stop), weight(distances), 0.0)
    weights /= weights.sum(1, keepdims=True)
    resized: Array = np.tensordot(weights, values, 1)
    return resized


def _crop(values: Array, size: int) -> Array:
    """Cut the center out of the first axis, or put zeros around it."""
    missing = size - len(values)
    if missing <= 0:
        return values[-missing // 2 :][:size]
    before = math.ceil(missing / 2)
    bordered = np.zeros((size, *values.shape[1:]))
    bordered[before : before + len(values)] = values
    return bordered
