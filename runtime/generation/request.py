"""What a request is written with, whatever it is for: checked and made plain.

Knows options and their errors. Does not know models.
"""

from collections.abc import Callable
from threading import Event
from typing import Any

import numpy as np

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.errors import InputError, TokenizerError
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.inputs.tokenizer import Tokenizer

__all__ = [
    "Cancel",
    "asked",
    "checked_count",
    "never",
    "no_tokenizer",
    "open_tokenizer",
    "sampling_of",
]

Cancel = Callable[[], bool] | Event
"""A function or an event, asked between any two calls of the model."""

_GREEDY = Sampling()


def open_tokenizer(bundle: Bundle) -> Tokenizer | None:
    """The tokenizer of a bundle, where it has one."""
    name = bundle.manifest.tokenizer
    if name is None:
        return None
    return Tokenizer.from_bytes(bundle.read(name), model_vocab_size=bundle.manifest.vocab_size)


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


def asked(cancel: Cancel | None) -> Callable[[], bool]:
    """A function that says whether to stop.

    Raises:
        InputError: neither a function nor an event.
    """
    if cancel is None:
        return never
    found = cancel.is_set if isinstance(cancel, Event) else cancel
    if not callable(found):
        raise InputError(f"cancel: expected a function or an event, got {found!r}.")
    return found


def never() -> bool:
    """What a request without `cancel` asks: such a text may be computed in one call."""
    return False


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


def no_tokenizer(what: str) -> TokenizerError:
    """The error for text where a bundle takes only ids."""
    return TokenizerError(
        f"{what}: expected a bundle with a tokenizer, got one without. "
        "Give token ids and `generate`, or export with the tokenizer of the checkpoint."
    )
