"""The options of sampling, each checked.

Knows kinds and ranges. Does not know logits nor the vocabulary: an id that a model does not have
is found by `ortolan.runtime.generation.sampling.Sampler`, which also says in which
order they apply.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

import numpy as np

from ortolan.runtime.errors import SamplingError, shown
from ortolan.runtime.limits import MAX_LOGIT_BIAS, MAX_SEED, MAX_VOCABULARY

__all__ = ["Sampling"]

_FLOAT32_MAX = float(np.finfo(np.float32).max)

_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("at least 0", lambda value: value >= 0),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "min_p": ("from 0 to 1", lambda value: 0 <= value <= 1),
    "repetition_penalty": ("above 0", lambda value: value > 0),
    "presence_penalty": ("from -2 to 2", lambda value: -2 <= value <= 2),
    "frequency_penalty": ("from -2 to 2", lambda value: -2 <= value <= 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen. The defaults take the highest logit.

    Attributes:
        temperature: 0 takes the highest logit; 1 draws from the model's own distribution.
        top_k: keep this many tokens; 0 keeps all.
        top_p: keep the fewest tokens whose probabilities reach this; 1 keeps all.
        min_p: keep tokens at least this likely, relative to the likeliest; 0 keeps all.
        repetition_penalty: divides the positive and multiplies the negative logits of tokens
            of the prompt and the generated text; 1 changes nothing.
        presence_penalty: subtracted once from each token of the generated text.
        frequency_penalty: subtracted from a token once for each time it was generated.
        logit_bias: added to the logits of these token ids.
        seed: makes the draws repeatable; `None` takes fresh randomness.

    Raises:
        SamplingError: an option is of the wrong kind or out of its range.

    Source: arXiv:1909.05858 (repetition), 1904.09751 (top-p), 2407.01082 (min-p).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check every field; keep plain numbers and a private copy of the bias."""
        for name, (allowed, is_allowed) in _RANGES.items():
            value = _finite(name, getattr(self, name))
            if not is_allowed(value):
                raise SamplingError(f"{name}: expected {allowed}, got {value}. Change the option.")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "top_k", _natural("top_k", self.top_k, most=None))
        if self.seed is not None:
            object.__setattr__(self, "seed", _natural("seed", self.seed, most=MAX_SEED))
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))


def _finite(name: str, value: object) -> float:
    """Return a number of an option as a float; infinity, NaN and booleans are not numbers."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise SamplingError(f"{name}: expected a finite number, got {shown(value)}. Change the option.")


def _natural(name: str, value: object, *, most: int | None) -> int:
    """Return an option that counts, or is a seed, as an int from 0 to `most`."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= 0 and (most is None or number <= most):
            return number
    allowed = "at least 0" if most is None else f"from 0 to {most}"
    raise SamplingError(
        f"{name}: expected an integer {allowed}, got {shown(value)}. Change the option."
    )


def _checked_bias(bias: object) -> dict[int, float]:
    """Return a copy of a bias whose ids and values are checked but for the vocabulary."""
    if not isinstance(bias, Mapping):
        raise SamplingError(
            f"logit_bias: expected a mapping of token ids to numbers, got {type(bias).__name__}. "
            "Write it as {id: bias}."
        )
    if len(bias) > MAX_LOGIT_BIAS:
        raise SamplingError(
            f"logit_bias: expected at most {MAX_LOGIT_BIAS} entries, got {len(bias)}. "
            "Bias fewer tokens."
        )
    checked: dict[int, float] = {}
    for token, value in bias.items():
        number = _finite(f"logit_bias[{shown(token)}]", value)
        if abs(number) > _FLOAT32_MAX:
            raise SamplingError(
                f"logit_bias[{shown(token)}]: expected a number within float32, got {number}. "
                "A bias of -100 already rules a token out."
            )
        checked[_natural("logit_bias id", token, most=MAX_VOCABULARY)] = number
    return checked
