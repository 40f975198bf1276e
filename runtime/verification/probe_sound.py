"""Sounds for the probes of an encoder of sounds, made by the same rule in export and runtime."""

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import AudioSource

__all__ = ["probe_sound"]

_MULTIPLIER = 2_654_435_761
"""Odd, close to 2**32 divided by the golden ratio, so that its multiples look like noise."""

BURSTS = 7
"""Times that the loudness of a sound rises and falls."""

OCTAVES = 5
"""Sounds before the smoothness of the noise begins again."""


def probe_sound(source: AudioSource, number: int) -> NDArray[np.float32]:
    """Make a sound for an encoder: bursts of noise, each sound duller than the one before.

    Args:
        source: of the encoder.
        number: of the probe, from 0. Sounds with odd numbers are half as long as the encoder reads.

    Returns:
        float32 `(N,)` at the rate of the encoder.
    """
    size = source.samples // (1 + number % 2)
    width = 1 << number % OCTAVES
    index = np.arange(1, size + width + 1, dtype=np.uint64) * np.uint64(_MULTIPLIER + 2 * number)
    noise = (index % np.uint64(1 << 32)).astype(np.float64) / (1 << 31) - 1
    sums = np.cumsum(noise)
    smooth = (sums[width:] - sums[:-width]) / width
    loudness = np.abs(np.linspace(-BURSTS, BURSTS, size) % 2 - 1)
    return (0.5 * smooth * loudness).astype(np.float32)
