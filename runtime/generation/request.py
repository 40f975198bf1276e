"""What to generate: a request, and the options that it is written with, checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import numpy as np

from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.limits import MAX_SEED

__all__ = ["Cancel", "Request", "cancel_function", "checked_count", "numbered", "sampling_of"]

Cancel = Callable[[], bool] | Event
"""A function or an event, checked between any two calls of the model."""


_GREEDY, _UNCONSTRAINED = Sampling(), Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to generate for one prompt or from one source.

    Attributes:
        prompt: ids that the text begins with, at least one.
        limit: most new tokens, such that the text stays within the context.
        prompt_tokens: what timings count: of the prompt, or of the source.
        source: what the encoder takes, for a decoder with an encoder.
        eos: ids that end the text.
        stop: texts that end the text.
        constraints: tokens that are forced or ruled out.
        cancelled: checked between any two calls of the model; `None` where nobody cancels.
    """

    prompt: list[int]
    limit: int
    prompt_tokens: int
    source: Any = None
    sampling: Sampling = _GREEDY
    eos: frozenset[int] = frozenset()
    stop: Sequence[str] = ()
    constraints: Constraints = _UNCONSTRAINED
    cancelled: Callable[[], bool] | None = None


def numbered(sampling: Sampling, index: int) -> Sampling:
    """The sampling of prompt number `index` of a list: seeds count up from that of the first."""
    if sampling.seed is None or index == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + index) % (MAX_SEED + 1))


def sampling_of(sampling: Sampling | None, temperature: float | None) -> Sampling:
    """The options of sampling, of which `temperature` is short for one.

    Raises:
        InputError: both are given.
        SamplingError: the temperature is out of range.
    """
    if temperature is None:
        return _GREEDY if sampling is None else sampling
    if sampling is not None:
        raise InputError(
            "temperature: expected it within `sampling`, got both. "
            "Write Sampling(temperature=..., ...)."
        )
    return Sampling(temperature=temperature)


def cancel_function(cancel: Cancel | None) -> Callable[[], bool] | None:
    """A function that says whether to stop, where there is one.

    Raises:
        InputError: neither a function nor an event.
    """
    found = cancel.is_set if isinstance(cancel, Event) else cancel
    if found is not None and not callable(found):
        raise InputError(f"cancel: expected a function or an event, got {found!r}.")
    return found


def checked_count(what: str, value: Any, *, most: int | None = None) -> int:
    """A whole number of at least 1.

    Raises:
        InputError: it is something else, or more than `most`.
    """
    is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if is_number and value >= 1 and (most is None or value <= most):
        return int(value)
    allowed = "of at least 1" if most is None else f"from 1 to {most}"
    raise InputError(f"{what}: expected a whole number {allowed}, got {value!r}.")
