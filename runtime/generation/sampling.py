"""The choice of the next token from one row of logits.

Every option is applied in this order, which is that of Hugging Face's `generate`:

    1. logit_bias            added to the logits of its tokens
    2. repetition_penalty    on every token of the prompt and of the generated text
    3. presence_penalty,     on every token of the generated text, as OpenAI defines them
       frequency_penalty
       temperature 0 ends here: the highest logit wins, the lowest id where several are equal
    4. temperature           divides the logits
    5. top_k                 keeps the k highest, and what equals the k-th
    6. top_p                 keeps the fewest tokens whose probabilities reach top_p
    7. min_p                 keeps what is at least min_p times as likely as the likeliest
    8. softmax and one draw

Knows one row of logits and the tokens that came before it. Does not know the session, text,
end-of-text tokens or stop texts. A row of logits is never written to: it may be a buffer that
the session is bound to.

Shape letters: V vocabulary, N candidates that are left, or any part of a row.
"""

import math
from collections.abc import Iterable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import InputError, NumericError, SamplingError
from ortolan.runtime.generation.sampling_options import Sampling

__all__ = [
    "Sampler",
    "Sampling",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "penalize_counts",
    "penalize_repetition",
]


_NO_IDS, _NO_BIAS = np.empty(0, np.intp), np.empty(0, np.float32)
"""Shared by all samplers without a bias: making arrays takes longer than choosing a token."""


class Sampler:
    """Chooses the tokens of one generation; remembers what the penalties and the seed need."""

    def __init__(self, sampling: Sampling, vocab_size: int, *, prompt: Iterable[int] = ()) -> None:
        """Prepare for the first generated token.

        Args:
            sampling: the options.
            vocab_size: ids are in `[0, vocab_size)`.
            prompt: ids before the first generated one; only a repetition penalty looks at them.

        Raises:
            SamplingError: a biased id is outside the vocabulary.
            InputError: a prompt id is outside the vocabulary.
        """
        self._sampling = sampling
        self._shape = (vocab_size,)
        self._step = 0
        # made when it is first used: seeding takes longer than a step of a small model
        self._bits: np.random.PCG64 | None = None

        self._bias_ids, self._bias = _NO_IDS, _NO_BIAS
        if sampling.logit_bias:
            self._bias_ids = np.array(sorted(sampling.logit_bias), dtype=np.intp)
            self._bias = np.array([sampling.logit_bias[int(i)] for i in self._bias_ids], np.float32)
        if self._bias_ids.size and self._bias_ids[-1] >= vocab_size:
            raise SamplingError(
                f"logit_bias: expected ids below {vocab_size}, got {self._bias_ids[-1]}. "
                "Take the ids from the tokenizer of this bundle."
            )
        self._seen: _Tally | None = None
        if sampling.repetition_penalty != 1:
            self._seen = _Tally(vocab_size)
            for token in prompt:
                self._seen.add(_checked_id(token, vocab_size))
        self._generated: _Tally | None = None
        if sampling.presence_penalty or sampling.frequency_penalty:
            self._generated = _Tally(vocab_size)
        self._tallies = [tally for tally in (self._seen, self._generated) if tally is not None]
        self._adjusts = self._bias_ids.size > 0 or len(self._tallies) > 0
        self._is_greedy = sampling.temperature == 0
        self._scratch_V = np.empty(vocab_size, np.float32) if self._adjusts else _NO_BIAS

    def next(self, logits_V: NDArray[np.float32]) -> int:
        """Choose the next token and remember it as generated.

        Args:
            logits_V: `(V,)`; -inf marks a token that may not be chosen. Left unchanged.

        Raises:
            NumericError: a logit is NaN or +inf, or all are -inf. Names the step.
            SamplingError: bias and penalties push a finite logit out of float32.
        """
        scores_V = self._adjusted(logits_V)
        if self._is_greedy:
            token = int(scores_V.argmax())
            # argmax stops at a NaN and finds +inf, so one value speaks for the whole row
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
        """Count a token as generated, for one that something else has chosen.

        Raises:
            InputError: the id is outside the vocabulary.
        """
        _checked_id(token, *self._shape)
        self._step += 1
        for tally in self._tallies:
            tally.add(token)

    def distribution(
        self, logits_V: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return what the next draw would choose from, without drawing.

        At temperature 0 this is the one token that would be taken.

        Args:
            logits_V: `(V,)`, as for `next`.

        Returns:
            Token ids, ascending, and their probabilities, each `(N,)`.

        Raises:
            NumericError: as for `next`.
            SamplingError: as for `next`.
        """
        ids_N, weights_N = self._weighed(self._adjusted(logits_V), logits_V)
        return ids_N, weights_N / weights_N.sum()

    def _uniform(self) -> float:
        """Draw from `[0, 1)`."""
        if self._bits is None:
            self._bits = np.random.PCG64(self._sampling.seed)
        # the generator's own bits: NumPy may change how its other methods use them
        return float((self._bits.random_raw() >> 11) * 2.0**-53)

    def _top(self, scores_V: NDArray[np.float32], logits_V: NDArray[np.float32]) -> float:
        """The highest score, which is finite."""
        top: float = scores_V.item(int(scores_V.argmax()))
        if not -math.inf < top < math.inf:
            self._reject(logits_V)
        return top

    def _weighed(
        self, scores_V: NDArray[np.float32], logits_V: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Apply steps 4 to 7 to adjusted logits; a weight is a probability times some factor."""
        sampling = self._sampling
        top = self._top(scores_V, logits_V)
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
        """Apply steps 1 to 3: the row itself where there is nothing to do, else a changed copy."""
        if logits_V.shape != self._shape:
            raise InputError(
                f"logits: expected shape {self._shape}, got {logits_V.shape}. "
                "Make the sampler with the vocabulary size of the model."
            )
        if not self._adjusts:
            return logits_V
        sampling, scores_V = self._sampling, self._scratch_V
        np.copyto(scores_V, logits_V)
        # what overflows upwards is rejected by the caller; what overflows downwards is ruled out
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
        """Raise for a row without a finite maximum; say whether the model or an option did it."""
        worst = int(logits_V.argmax())
        value = logits_V.item(worst)
        if math.isfinite(value):
            raise SamplingError(
                f"step {self._step + 1}: expected finite logits after logit_bias and penalties, "
                "got an overflow of float32. Use smaller values."
            )
        raise NumericError(
            f"step {self._step + 1}: expected finite logits, got {value} for id {worst}. "
            "The model overflows; verify the bundle on this device, or export it in fp32."
        )


class _Tally:
    """How often each token occurred; adding one costs the same however many there are."""

    def __init__(self, vocab_size: int) -> None:
        self._counts_V = np.zeros(vocab_size, np.float32)
        self._ids = np.empty(64, np.intp)
        self._size = 0

    @property
    def ids(self) -> NDArray[np.intp]:
        """The distinct tokens, in the order of their first occurrence."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each of `ids` occurred."""
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
    """Push the scores of tokens that occurred towards lower ones, or higher ones below 1."""
    return np.where(scores_N < 0, scores_N * penalty, scores_N / penalty)


def penalize_counts(
    scores_N: NDArray[np.float32],
    counts_N: NDArray[np.float32],
    *,
    presence: float,
    frequency: float,
) -> NDArray[np.float32]:
    """Subtract `presence` for having occurred, and `frequency` for each occurrence."""
    penalized: NDArray[np.float32] = scores_N - frequency * counts_N - presence * (counts_N > 0)
    return penalized


def keep_top_k(scores_V: NDArray[np.float32], top_k: int) -> NDArray[np.intp]:
    """Return the ids of the `top_k` highest scores and of those equal to the last of them.

    Args:
        scores_V: `(V,)`, none of them NaN.
        top_k: from 1 to V.
    """
    least = scores_V.size - top_k
    return np.flatnonzero(scores_V >= np.partition(scores_V, least)[least])


def keep_top_p(weights_N: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """Return the indices of the fewest weights whose share of the total reaches `top_p`.

    Among equal weights the first are kept.

    Args:
        weights_N: `(N,)`, probabilities up to a common factor, at least one above 0.
        top_p: above 0 and below 1.
    """
    total = weights_N.sum()
    # weights up to (1 - top_p) / N of the total are dropped in any case, so they need no sorting;
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
    weights_N = scores_N.astype(np.float64)  # then in place: fresh memory is what costs here
    weights_N -= top
    with np.errstate(over="ignore"):  # at tiny temperatures all but the highest go to -inf
        weights_N /= temperature
    np.exp(weights_N, out=weights_N)
    return weights_N


def _pick(weights_N: NDArray[np.float64], uniform: float) -> int:
    """Return the index whose share of `[0, total)` holds `uniform * total`."""
    sums = np.cumsum(weights_N)
    # side="right" skips what has no share; a uniform below 1 stays below the total when rounded
    return int(np.searchsorted(sums, uniform * sums[-1], side="right"))


def _checked_id(token: int, vocab_size: int) -> int:
    """Return an id that is inside the vocabulary."""
    if not 0 <= token < vocab_size:
        raise InputError(
            f"token id: expected 0 to {vocab_size - 1}, got {token}. "
            "Encode the prompt with the tokenizer of this bundle."
        )
    return token
