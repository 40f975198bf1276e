"""Made-up pictures and sounds of the questions: data."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Samples = NDArray[np.float32]

TEXT = "What is this?"
"""Text of a prompt with a picture or a sound."""

LABELS = ("cat", "red car", "two dogs in the snow")
"""Words to choose from for a picture."""


def picture(height: int, width: int, channels: int = 3) -> Pixels:
    """Soft shapes with sharp edges and some noise, as in photos."""
    random = np.random.default_rng((height, width))
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [
        np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in random.uniform(0, 3, (channels, 3))
    ]
    soft = 128 + 90 * np.stack(waves, -1)
    soft[(x - 0.3) ** 2 + (y - 0.4) ** 2 < 0.04] = random.uniform(0, 255, channels)
    values = (soft + random.normal(0, 12, soft.shape)).clip(0, 255).astype(np.uint8)
    return values[..., 0] if channels == 1 else values


PICTURES: Mapping[str, Pixels] = {
    "a photo": picture(301, 403),
    "a wide picture": picture(70, 310),
    "a tall picture": picture(290, 90),
    "a tiny picture": picture(11, 9),
    "a grey picture": picture(120, 161, channels=1),
    "a picture with alpha": picture(90, 121, channels=4),
}
"""Pictures `(H, W)` or `(H, W, channels)`."""


def sound(seconds: float, rate: int) -> Samples:
    """Tones that change several times a second and fade, with noise and pauses."""
    random, count = np.random.default_rng(round(seconds)), round(seconds * rate)
    steps = count // (rate // 6) + 1
    pitches, loudness = random.uniform(80, rate / 2.5, steps), random.uniform(0, 0.4, steps)
    loudness[::7] = 0
    repeated = [np.repeat(own, rate // 6)[:count] for own in (pitches, loudness)]
    tone = np.sin(2 * np.pi * np.cumsum(repeated[0]) / rate)
    return (repeated[1] * tone + 0.01 * random.normal(size=count)).astype(np.float32)


SECONDS: Mapping[str, float] = {"5 seconds": 5.0, "40 seconds": 40.0}
"""Durations of sounds."""
