"""Sampling: the choice of the next token from one row of logits.

Options apply in the order of Hugging Face's `generate`:

    1. logit_bias            added to the logits of its tokens
    2. repetition_penalty    on all tokens of the prompt and of the new text
    3. presence_penalty,     on all tokens of the new text, as OpenAI defines them
       frequency_penalty
       temperature 0 ends here: the highest logit wins, the lowest id on ties
    4. temperature           divides the logits
    5. top_k                 keeps the k highest, and ties with the k-th
    6. top_p                 keeps the fewest tokens whose probabilities reach top_p
    7. min_p                 keeps tokens at least min_p times as probable as the top one
    8. softmax and one draw

Log-probabilities are those of OpenAI: at temperature 1, before all of these and a grammar.

Knows one row of logits and the tokens before it. Does not know text, EOS or stop texts. Never
writes to a row of logits, which may be a buffer that onnxruntime writes to.

Shape letters: V vocabulary, N remaining candidates, or any part of a row.
"""

import math
from collections.abc import Iterable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import NumericError, SamplingError
from ortolan.runtime.generation.completion import TokenLogprobs
from ortolan.runtime.generation.sampling_options import Sampling

_NO_IDS, _NO_BIAS = np.empty(0, np.intp), np.empty(0, np.float32)
"""Shared by all samplers without a bias: allocating arrays takes longer than choosing a token."""


class Sampler:
    """Chooses the tokens of one sequence, and keeps the state of its penalties and seed."""

    def __init__(self, sampling: Sampling, vocab_size: int, *, prompt: Iterable[int] = ()) -> None:
        self._sampling = sampling
        self._step = 0
        # created on first use: seeding takes longer than a step of a tiny model
        self._bits: np.random.PCG64 | None = None

        self._bias_ids, self._bias = _NO_IDS, _NO_BIAS
        if sampling.logit_bias:
            self._bias_ids = np.array(sorted(sampling.logit_bias), dtype=np.intp)
            self._bias = np.array([sampling.logit_bias[int(i)] for i in self._bias_ids], np.float32)
        if self._bias_ids.size and self._bias_ids[-1] >= vocab_size:
            raise SamplingError(
                f"logit_bias: ids must be below {vocab_size} (got {self._bias_ids[-1]}). "
                "Use ids of this bundle's tokenizer."
            )
        self._seen: _Tally | None = None
        if sampling.repetition_penalty != 1:
            self._seen = _Tally(vocab_size)
            for token in prompt:
                self._seen.add(token)
        self._generated: _Tally | None = None
        if sampling.presence_penalty or sampling.frequency_penalty:
            self._generated = _Tally(vocab_size)
        self._tallies = [tally for tally in (self._seen, self._generated) if tally is not None]
        self._adjusts = self._bias_ids.size > 0 or len(self._tallies) > 0
        self._is_greedy = sampling.temperature == 0
        self._scratch_V = np.empty(vocab_size, np.float32) if self._adjusts else _NO_BIAS

    def next(self, logits_V: NDArray[np.float32]) -> int:
        """Choose the next token, and count it; -inf marks a forbidden one."""
        scores_V = self._adjusted(logits_V)
        if self._is_greedy:
            token = int(scores_V.argmax())
            # argmax returns a NaN or +inf if there is one, so this checks the whole row
            if not -math.inf < scores_V.item(token) < math.inf:
                self._reject(logits_V)
        else:
            ids_N, weights_N = self._weighed(scores_V, logits_V)
            token = int(ids_N[_pick(weights_N, self._uniform())])
        self._step += 1
        for tally in self._tallies:
            tally.add(token)
        return token

    def record(self, token: int) -> None:
        """Count a token that was not chosen by `next`."""
        self._step += 1
        for tally in self._tallies:
            tally.add(token)

    def distribution(
        self, logits_V: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return ids of the candidates for the next draw, ascending, and their probabilities."""
        ids_N, weights_N = self._weighed(self._adjusted(logits_V), logits_V)
        return ids_N, weights_N / weights_N.sum()

    def _uniform(self) -> float:
        """A draw from `[0, 1)`."""
        if self._bits is None:
            self._bits = np.random.PCG64(self._sampling.seed)
        # raw bits: NumPy may change the other methods of its generators
        return float((self._bits.random_raw() >> 11) * 2.0**-53)

    def _weighed(
        self, scores_V: NDArray[np.float32], logits_V: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Apply steps 4 to 7. Weights are probabilities up to a common factor."""
        sampling = self._sampling
        top: float = scores_V.item(int(scores_V.argmax()))
        if not -math.inf < top < math.inf:
            self._reject(logits_V)
        if sampling.temperature == 0:
            return np.array([scores_V.argmax()]), np.ones(1)
        ids_N, scores_N = np.arange(scores_V.size), scores_V
        if 0 < sampling.top_k < scores_V.size:  # before the temperature, which keeps the order
            ids_N = keep_top_k(scores_V, sampling.top_k)
            scores_N = scores_V[ids_N]
        weights_N = _weights(scores_N, top, sampling.temperature)
        if sampling.top_p < 1:
            kept_N = keep_top_p(weights_N, sampling.top_p)
            ids_N, weights_N = ids_N[kept_N], weights_N[kept_N]
        if sampling.min_p > 0:
            kept_N = keep_min_p(weights_N, sampling.min_p)
            ids_N, weights_N = ids_N[kept_N], weights_N[kept_N]
        return ids_N, weights_N

    def _adjusted(self, logits_V: NDArray[np.float32]) -> NDArray[np.float32]:
        """Apply steps 1 to 3. Returns the row itself if there is nothing to do, else a copy."""
        if not self._adjusts:
            return logits_V
        sampling, scores_V = self._sampling, self._scratch_V
        np.copyto(scores_V, logits_V)
        # the caller rejects an overflow to +inf; one to -inf rules the token out
        with np.errstate(all="ignore"):
            scores_V[self._bias_ids] += self._bias
            if self._seen is not None:
                ids_N = self._seen.ids
                scores_V[ids_N] = penalize_repetition(scores_V[ids_N], sampling.repetition_penalty)
            if self._generated is not None:
                ids_N = self._generated.ids
                scores_V[ids_N] = penalize_counts(
                    scores_V[ids_N],
                    self._generated.counts,
                    presence=sampling.presence_penalty,
                    frequency=sampling.frequency_penalty,
                )
        return scores_V

    def _reject(self, logits_V: NDArray[np.float32]) -> NoReturn:
        """Raise for a row without a finite maximum, and blame the model or the options."""
        worst = int(logits_V.argmax())
        value = logits_V.item(worst)
        if math.isfinite(value):
            raise SamplingError(
                f"logit_bias and penalties overflow float32 at step {self._step + 1}. "
                "Use smaller values."
            )
        raise NumericError(
            f"The model overflows at step {self._step + 1}: the logit of id {worst} is {value}. "
            "Run `ortolan verify` on this device, or export in fp32."
        )


class _Tally:
    """Number of occurrences of each token. `add` takes constant time."""

    def __init__(self, vocab_size: int) -> None:
        self._counts_V = np.zeros(vocab_size, np.float32)
        self._ids = np.empty(64, np.intp)
        self._size = 0

    @property
    def ids(self) -> NDArray[np.intp]:
        """Distinct tokens, by first occurrence."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Number of occurrences of each of `ids`."""
        counts: NDArray[np.float32] = self._counts_V[self.ids]
        return counts

    def add(self, token: int) -> None:
        """Count one occurrence."""
        if self._counts_V[token] == 0:
            if self._size == self._ids.size:
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._ids[self._size] = token
            self._size += 1
        self._counts_V[token] += 1


def penalize_repetition(scores_N: NDArray[np.float32], penalty: float) -> NDArray[np.float32]:
    """Lower the scores of tokens that occurred; a penalty below 1 raises them."""
    return np.where(scores_N < 0, scores_N * penalty, scores_N / penalty)


def penalize_counts(
    scores_N: NDArray[np.float32],
    counts_N: NDArray[np.float32],
    *,
    presence: float,
    frequency: float,
) -> NDArray[np.float32]:
    """Subtract `presence` once, and `frequency` for each occurrence."""
    penalized: NDArray[np.float32] = scores_N - frequency * counts_N - presence * (counts_N > 0)
    return penalized


def keep_top_k(scores_V: NDArray[np.float32], top_k: int) -> NDArray[np.intp]:
    """Return the ids of the `top_k` highest scores, ascending, ties with the last included."""
    least = scores_V.size - top_k
    return np.flatnonzero(scores_V >= np.partition(scores_V, least)[least])


def keep_top_p(weights_N: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """Return the indices of the fewest weights whose sum reaches `top_p` of the total.

    The first ones win ties. At least one weight is above 0, and `top_p` is below 1.
    """
    total = weights_N.sum()
    # weights up to (1 - top_p) / N of the total are never kept, so do not sort them;
    # half of that leaves room for rounding
    floor = (1 - top_p) / 2 * total / weights_N.size
    sums = np.cumsum(descending := np.sort(weights_N[weights_N > floor])[::-1])
    count = min(1 + int(np.searchsorted(sums, top_p * total)), descending.size)
    last = descending[count - 1]
    above = np.flatnonzero(weights_N > last)
    equal = np.flatnonzero(weights_N == last)[: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def keep_min_p(weights_N: NDArray[np.float64], min_p: float) -> NDArray[np.intp]:
    """Return the indices of weights of at least `min_p` times the highest."""
    return np.flatnonzero(weights_N >= min_p * weights_N.max())


def _weights(scores_N: NDArray[np.float32], top: float, temperature: float) -> NDArray[np.float64]:
    """Return probabilities up to a common factor: 1 for a score of `top`."""
    weights_N = scores_N.astype(np.float64)  # then in place: allocation dominates here
    weights_N -= top
    with np.errstate(over="ignore"):  # a tiny temperature sends the others to -inf
        weights_N /= temperature
    np.exp(weights_N, out=weights_N)
    return weights_N


def _pick(weights_N: NDArray[np.float64], uniform: float) -> int:
    """Return the index whose part of `[0, total)` contains `uniform * total`."""
    sums = np.cumsum(weights_N)
    # side="right" skips weights of 0; a uniform below 1 stays below the total when rounded
    return int(np.searchsorted(sums, uniform * sums[-1], side="right"))


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
