"""`Sampling`: the options of sampling, each checked when it is set.

Checks types and ranges, but not ids against a vocabulary: `Sampler` does, and defines the order in
which the options apply (`ortolan.runtime.generation.sampling`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

import numpy as np

from ortolan.runtime.errors import SamplingError, shown
from ortolan.runtime.limits import MAX_LOGIT_BIAS, MAX_SEED, MAX_VOCABULARY

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
    """How the next token is chosen. The defaults are greedy.

        Sampling(temperature=0.8, top_p=0.95, seed=1)

    Attributes:
        temperature: 0 takes the most probable token; 1 draws from the model's own distribution.
        top_k: keep this many tokens; 0 keeps all.
        top_p: keep the fewest tokens whose probabilities reach this sum; 1 keeps all.
        min_p: keep tokens at least this probable, relative to the top one; 0 keeps all.
        repetition_penalty: divide positive and multiply negative logits of tokens of the prompt
            and the new text; 1 changes nothing.
        presence_penalty: subtract once from the logit of each token of the new text.
        frequency_penalty: subtract from a token's logit for each time it was generated.
        logit_bias: values to add to the logits of token ids.
        seed: makes draws reproducible; `None` draws differently each time.

    Raises:
        SamplingError: an option has the wrong type or is out of range.

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
        """Check every field, and replace it with plain numbers or a copy."""
        for name, (allowed, is_allowed) in _RANGES.items():
            value = _finite(name, getattr(self, name))
            if not is_allowed(value):
                raise SamplingError(f"{name} must be {allowed} (got {value}).")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "top_k", _natural("top_k", self.top_k, most=None))
        if self.seed is not None:
            object.__setattr__(self, "seed", _natural("seed", self.seed, most=MAX_SEED))
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))


def _finite(name: str, value: object) -> float:
    """Return a finite number as a float. Booleans are not numbers."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise SamplingError(f"{name} must be a finite number (got {shown(value)}).")


def _natural(name: str, value: object, *, most: int | None) -> int:
    """Return a whole number from 0 to `most` as an int."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= 0 and (most is None or number <= most):
            return number
    allowed = "at least 0" if most is None else f"from 0 to {most}"
    raise SamplingError(f"{name} must be a whole number {allowed} (got {shown(value)}).")


def _checked_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise SamplingError(
            f"logit_bias must be a mapping of token ids to numbers (got {type(bias).__name__})."
        )
    if len(bias) > MAX_LOGIT_BIAS:
        raise SamplingError(
            f"logit_bias must have at most {MAX_LOGIT_BIAS} entries (got {len(bias)})."
        )
    checked: dict[int, float] = {}
    for token, value in bias.items():
        number = _finite(f"logit_bias[{shown(token)}]", value)
        if abs(number) > _FLOAT32_MAX:
            raise SamplingError(
                f"logit_bias[{shown(token)}] must fit into float32 (got {number}). "
                "A bias of -100 already rules a token out."
            )
        checked[_natural("logit_bias id", token, most=MAX_VOCABULARY)] = number
    return checked
