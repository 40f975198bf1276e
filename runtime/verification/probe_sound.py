"""Sounds for the probes of an encoder of sounds, made by the same rule in export and runtime."""

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.sources import AudioSource, ChunkedSource, WaveSource

_MIXERS = (0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53)
"""Multipliers of MurmurHash3's 64-bit finalizer (Appleby 2011), which scrambles consecutive
integers."""

BURSTS = 7
"""Number of times that a sound swells and fades."""

OCTAVES = 5
"""Number of different low-pass filters; later sounds repeat them."""


def probe_sound(source: AudioSource, number: int) -> NDArray[np.float32]:
    """Make a sound for an encoder: bursts of white noise through a moving average.

    Returns:
        float32 `(N,)` at the encoder's sampling rate.
    """
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
    noise = _noise(size + width, seed=number)
    sums = np.cumsum(noise)
    smooth = (sums[width:] - sums[:-width]) / width
    loudness = np.abs(np.linspace(-BURSTS, BURSTS, size) % 2 - 1)
    return (0.5 * smooth * loudness).astype(np.float32)


def _noise(count: int, *, seed: int) -> NDArray[np.float64]:
    """White noise from -1 to 1, the same on every machine."""
    bits = np.arange(count, dtype=np.uint64) + np.uint64(1 + (seed << 32))
    for mixer in _MIXERS:
        bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(mixer)
    bits ^= bits >> np.uint64(33)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
