"""Cuts a long sound where it is quietest.

    sound     ..... hello there ...... how are you ......
    parts     |----------------------|------------------|

Shape letters: N samples, F frames of a hundredth of a second.
"""

import numpy as np
from numpy.typing import NDArray

SEARCHED = 8
"""The quietest place is looked for in the last eighth of a part."""

FRAMES_PER_SECOND = 100


def quiet_cut(samples_N: NDArray[np.float32], *, rate: int, longest: int, shortest: int = 0) -> int:
    """Return the number of samples of the first part of a sound; all of it if it fits."""
    if len(samples_N) <= longest:
        return len(samples_N)
    frame = max(1, rate // FRAMES_PER_SECOND)
    start = longest - longest // SEARCHED
    last_N = samples_N[start : min(longest, len(samples_N) - shortest)]
    if len(last_N) < frame:
        return start
    frames_F = np.abs(last_N[: len(last_N) // frame * frame]).reshape(-1, frame).mean(1)
    return start + int(frames_F.argmin()) * frame + frame // 2
