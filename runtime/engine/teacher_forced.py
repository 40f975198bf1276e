"""The logits that follow each token of a text that is given.

Shape letters: S tokens, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import NumericError

__all__ = ["teacher_forced"]


def teacher_forced(runner: Runner, ids: Sequence[int]) -> NDArray[np.float32]:
    """Append tokens to row 0, and compute the logits that follow each of them, `(S, V)`.

    Raises:
        ContextLengthError: the row would be longer than the context.
        NumericError: the logits are not finite.
        ForkedError: the process was forked after the engine was made.
    """
    runner.reserve(runner.slots.lengths[0] + len(ids))
    logits_SV = np.empty((len(ids), runner.logits_BV.shape[1]), np.float32)
    for start, part in runner.chunks(0, ids):
        rows = logits_SV[start : start + len(part)]
        runner.chunk(0, part, positions=range(len(part)), logits_RV=rows)
        if not np.isfinite(rows.max(axis=-1)).all():
            # a kernel may spread one over its whole call, so the position is not known
            raise NumericError(
                f"logits: expected finite ones, got others at positions {start} to "
                f"{start + len(part) - 1}. Run `ortolan verify` on the bundle."
            )
    return logits_SV
