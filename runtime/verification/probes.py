"""Inputs of probes, made by the same rules in export and runtime: pictures, sounds, vectors."""

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource

SAMPLES = 256
"""Pixel values of the picture that a certificate keeps."""

LEVELS = 2.5
"""Tolerance in levels of 255, since Pillow rounds after each axis and may round differently by
version."""

EXACT_LEVELS = 0.01
"""Tolerance in levels of 255 where nothing is rounded."""

LONGEST = 1024
"""Longest side, in pixels, of a picture that will be resized or has several squares of patches."""

PICTURES = ((1, 1), (3, 5), (2, 24), (20, 3), (8, 8))
"""Rows and columns of the squares of patches of each probe of an encoder that keeps proportions."""

BURSTS = 7
"""Number of times that a sound swells and fades."""

OCTAVES = 5
"""Number of different low-pass filters; later sounds repeat them."""

_MIXERS = (0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53)
"""Multipliers of MurmurHash3's 64-bit finalizer (Appleby 2011), which scrambles consecutive
integers."""

_STRIDE = 2_654_435_761
"""Odd, close to 2**32 divided by the golden ratio, so that its multiples spread evenly."""


def noise(count: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Return white noise from -1 to 1, the same on every machine."""
    bits = np.arange(count, dtype=np.uint64) + np.uint64(1 + (seed << 32))
    for mixer in _MIXERS:
        bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(mixer)
    bits ^= bits >> np.uint64(33)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1


# --- vectors ----------------------------------------------------------------------------------


def probe_vectors(count: int, size: int) -> NDArray[np.float32]:
    """Return vectors `(count, size)` of numbers from -0.25 to 0.25, in place of a picture's."""
    return (noise(count * size) / 4).astype(np.float32).reshape(count, size)


def probe_grids(ids: Sequence[int], token: int) -> list[tuple[int, int]]:
    """Rows and columns of the images that a text of a probe has: its runs of a placeholder.

    An image has as many rows as fit into a square, without an incomplete one.
    """
    grids = []
    for own, run in groupby(ids):
        if own == token:
            count = len(list(run))
            rows = next(n for n in range(math.isqrt(count), 0, -1) if count % n == 0)
            grids.append((rows, count // rows))
    return grids


# --- pictures ---------------------------------------------------------------------------------


def probe_picture(source: ImageSource | PatchSource) -> NDArray[np.uint8]:
    """Make the picture, `(H, W, channels)`: noise, which every filter resizes differently.

    It has the proportions of neither the encoder nor a square, unless nothing resizes it.
    """
    if isinstance(source, PatchSource):
        side = source.square
        height, width = min(side * 5 // 2 + 1, LONGEST), min(side * 7 // 2 + 3, LONGEST)
        return _picture(height, width, source.channels)
    height, width = source.height, source.width
    if source.steps.resize is not None:
        height, width = min(height * 3 // 2 + 1, LONGEST), min(width * 2 + 3, LONGEST)
    return _picture(height, width, source.channels)


def sized_picture(source: PatchSource, number: int) -> NDArray[np.uint8]:
    """Make the picture of a probe, `(H, W, channels)`: noise of a size that nothing resizes."""
    return _picture(*picture_size(source, number), source.channels)


def picture_size(source: PatchSource, number: int) -> tuple[int, int]:
    """Return height and width of the picture of a probe."""
    rows, columns = PICTURES[number % len(PICTURES)]
    longest = max(1, LONGEST // source.square)
    rows = min(rows, longest, source.vectors)
    columns = min(columns, longest, source.vectors // rows)
    return rows * source.square, columns * source.square


def _picture(*shape: int) -> NDArray[np.uint8]:
    """Noise from 64 to 191.

    Far from 0 and 255, where filters that overshoot clip between the axes: versions of Pillow
    differ in which axis comes first.
    """
    return (noise(math.prod(shape)) * 64 + 128).astype(np.uint8).reshape(shape)


def sampled(pixels_CHW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return up to `SAMPLES` of the pixel values, spread over channels, rows and columns."""
    return pixels_CHW.ravel()[_places(pixels_CHW.size)]


def tolerances(
    source: ImageSource | PatchSource, pixels_CHW: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the largest accepted difference of each sample of these pixels."""
    is_exact = isinstance(source, ImageSource) and source.rounding == "none"
    levels_C = (EXACT_LEVELS if is_exact else LEVELS) * source.scale / np.array(source.std)
    tolerance: NDArray[np.float64] = levels_C[_places(pixels_CHW.size) // pixels_CHW[0].size]
    return tolerance


def _places(size: int) -> NDArray[np.int64]:
    return np.arange(min(size, SAMPLES), dtype=np.int64) * _STRIDE % size


# --- sounds -----------------------------------------------------------------------------------


def probe_sound(source: AudioSource, number: int) -> NDArray[np.float32]:
    """Make a sound `(N,)` for an encoder: bursts of white noise through a moving average."""
    return _sound(source.samples // (1 + number % 2), number)


def probe_wave(
    source: WaveSource | ChunkedSource, number: int, vectors: int
) -> NDArray[np.float32]:
    """Make a sound of which an encoder makes this number of vectors; see `probe_sound`.

    A part of a vector or of a frame remains after most, as in real sounds.
    """
    return _sound(source.reach(vectors) + number % source.hop, number)


def _sound(size: int, number: int) -> NDArray[np.float32]:
    width = 1 << number % OCTAVES
    sums = np.cumsum(noise(size + width, seed=number))
    smooth = (sums[width:] - sums[:-width]) / width
    loudness = np.abs(np.linspace(-BURSTS, BURSTS, size) % 2 - 1)
    return (0.5 * smooth * loudness).astype(np.float32)
