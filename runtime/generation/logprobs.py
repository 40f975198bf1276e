"""Log-probabilities of tokens, from one row of logits.

As OpenAI defines them: at temperature 1, before bias, penalties, grammar, top-k, top-p and min-p.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import NumericError
from ortolan.runtime.generation.completion import TokenLogprobs
from ortolan.runtime.generation.sampling import keep_top_k

__all__ = ["Logprobs", "top_tokens"]


class Logprobs:
    """The log-probabilities of one row.

    Args:
        logits_V: `(V,)`, not to be overwritten before `of`.
        count: number of top tokens.

    Raises:
        NumericError: a logit is NaN or +inf, or all are -inf.
    """

    def __init__(self, logits_V: NDArray[np.float32], count: int) -> None:
        highest = float(logits_V.max())
        if not math.isfinite(highest):
            raise NumericError(
                f"logprobs: the highest logit is {highest}, so the model overflows. "
                "Run `ortolan verify` on this device, or export in fp32."
            )
        exponentials_V = np.subtract(logits_V, np.float32(highest))
        np.exp(exponentials_V, out=exponentials_V)
        self._log_sum = highest + math.log(float(exponentials_V.sum(dtype=np.float64)))
        self._logits_V = logits_V
        self._top = tuple(
            (int(token), float(logits_V[token]) - self._log_sum)
            for token in top_tokens(logits_V, count)
        )

    def of(self, token: int) -> TokenLogprobs:
        """Log-probabilities of the chosen token and of the top tokens."""
        logprob = float(self._logits_V[token]) - self._log_sum
        return TokenLogprobs(token=token, logprob=logprob, top=self._top)


def top_tokens(logits_V: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Ids of the `count` highest logits, highest first, ties by id."""
    if count == 0:
        return np.empty(0, np.intp)
    ids_N = keep_top_k(logits_V, min(count, logits_V.size))
    return ids_N[np.argsort(-logits_V[ids_N], kind="stable")[:count]]
