"""Log-probabilities of tokens, from one row of logits.

As OpenAI defines them: at temperature 1, before bias, penalties, grammar, top-k, top-p and min-p.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import NumericError
from ortolan.runtime.generation.completion import TokenLogprobs
from ortolan.runtime.generation.sampling import keep_top_k


def token_logprobs(logits_V: NDArray[np.float32], token: int, count: int) -> TokenLogprobs:
    """Log-probabilities of a token and of the `count` top tokens."""
    highest = float(logits_V.max())
    if not math.isfinite(highest):
        raise NumericError(
            f"logprobs: the highest logit is {highest}, so the model overflows. "
            "Run `ortolan verify` on this device, or export in fp32."
        )
    exponentials_V = np.subtract(logits_V, np.float32(highest))
    np.exp(exponentials_V, out=exponentials_V)
    log_sum = highest + math.log(float(exponentials_V.sum(dtype=np.float64)))
    top = tuple(
        (int(other), float(logits_V[other]) - log_sum) for other in top_tokens(logits_V, count)
    )
    return TokenLogprobs(token=token, logprob=float(logits_V[token]) - log_sum, top=top)


def top_tokens(logits_V: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Ids of the `count` highest logits, highest first, ties by id."""
    if count == 0:
        return np.empty(0, np.intp)
    ids_N = keep_top_k(logits_V, min(count, logits_V.size))
    return ids_N[np.argsort(-logits_V[ids_N], kind="stable")[:count]]
