"""How likely a model takes tokens to be: log-probabilities of one row of logits.

They are the model's own, at temperature 1, before bias, penalties, grammar and cuts, as OpenAI
defines them.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import NumericError
from ortolan.runtime.generation.completion import TokenLogprobs
from ortolan.runtime.generation.sampling import keep_top_k

__all__ = ["Logprobs", "likeliest"]


class Logprobs:
    """The log-probabilities of one row.

    Args:
        logits_V: `(V,)`, not to be written to.
        count: of the likeliest tokens to keep.

    Raises:
        NumericError: a logit is NaN or +inf, or all are -inf.
    """

    def __init__(self, logits_V: NDArray[np.float32], count: int) -> None:
        top = float(logits_V.max())
        if not math.isfinite(top):
            raise NumericError(
                f"logprobs: expected finite logits, got {top}. "
                "The model overflows; verify the bundle on this device, or export it in fp32."
            )
        exponentials_V = np.subtract(logits_V, np.float32(top))
        np.exp(exponentials_V, out=exponentials_V)
        self._log_sum = top + math.log(float(exponentials_V.sum(dtype=np.float64)))
        self._logits_V = logits_V
        self._top = tuple(
            (int(token), float(logits_V[token]) - self._log_sum)
            for token in likeliest(logits_V, count)
        )

    def of(self, token: int) -> TokenLogprobs:
        """Those of the likeliest tokens, and of the chosen one."""
        logprob = float(self._logits_V[token]) - self._log_sum
        return TokenLogprobs(token=token, logprob=logprob, top=self._top)


def likeliest(logits_V: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The ids of the `count` highest logits, or of all, highest first, equal ones by id."""
    if count == 0:
        return np.empty(0, np.intp)
    ids_N = keep_top_k(logits_V, min(count, logits_V.size))
    return ids_N[np.argsort(-logits_V[ids_N], kind="stable")[:count]]
